"""Questions made from single sentences of natural English by rules, without a parser: closed classes (auxiliaries, prepositions, connectives) find the places.

    python3 asking.py <natural.txt>      prints some

ask(sentence) gives [(question, answer)]; the answer stands literally in the sentence. Rules that need to know more than the closed classes are left out:
a wrong question teaches more harm than ten good ones teach good.
"""
import functools
import os
import random
import re
import sys

import vocabulary as V

AUX = "is are was were can could will would may might must should has have had does do did cannot".split()
PLURAL = {"are", "were", "have", "do"}
DET = "the a an this each every any all some these most many several another no both our their its".split()
STARTS_BAD = {"it", "this", "that", "these", "those", "there", "they", "he", "she", "what", "which", "who", "here", "such", "you", "we", "i", "if", "when", "while", "but",
              "and", "or", "so", "also", "however", "for", "in", "on", "at", "by", "to", "as", "after", "before", "because", "although", "note", "see", "with", "from", "not",
              "since", "until", "unless", "instead", "thus", "then", "otherwise", "therefore", "because", "similarly", "finally", "first", "second", "only", "even", "like", "unlike"}
PREPS = "in on at for with from to of by into through during under over between against about without within via using".split()
TAIL = "in on at from for with by into through after before during until without within under over".split()
CONJ = {"and", "or", "but", "which", "that", "who", "where", "if", "when", "because", "so", "while", "unless", "since", "whether", "than", "as"}
NAME = re.compile(r"^[\w'’./()-]+$")


@functools.cache
def verbs():
    """WordNet's one-word verbs, and the base of each irregular past form."""
    base, past = set(), {}
    with open(os.path.join(V.WORDNET, "index.verb")) as f:
        for line in f:
            w = line.split(" ", 1)[0]
            if w.isalpha():
                base.add(w)
    with open(os.path.join(V.WORDNET, "verb.exc")) as f:
        for line in f:
            w, b = line.split()[:2]
            if w.isalpha() and not w.endswith(("ing", "s")):
                past[w] = b
    return base, past


def base_of(w):
    """(base form, auxiliary) of a verb in the third person or the past, or None."""
    base, past = verbs()
    if w in ("has", "is", "was", "does"):
        return None
    if w.endswith("s") and not w.endswith("ss"):
        for b in ([w[:-3] + "y"] if w.endswith("ies") else []) + ([w[:-2]] if w.endswith("es") else []) + [w[:-1]]:
            if b in base and len(b) > 2:
                return b, "does"
    if w in past and past[w] in base:
        return past[w], "did"
    if w.endswith("ed"):
        for b in ([w[:-3] + "y"] if w.endswith("ied") else []) + [w[:-1], w[:-2]] + ([w[:-3]] if len(w) > 5 and w[-3] == w[-4] else []):
            if b in base and len(b) > 2:
                return b, "did"
    return None


def lower_first(s):
    first = s.split(" ", 1)[0]
    return s if first.isupper() or not first.isalpha() or first == "I" or (first.lower() not in DET and first[0].isupper() and len(s.split()) == 1) else s[0].lower() + s[1:]


def noun_phrase(words):
    """Whether words look like one simple noun phrase that begins a sentence."""
    if not 1 <= len(words) <= 7 or words[0].lower() in STARTS_BAD:
        return False
    if words[0].lower() not in DET and not (words[0][0].isupper() and len(words) <= 4):
        return False
    if len(words) == 1 and words[0].lower() in DET:
        return False
    return all(NAME.match(w) for w in words) and not any(w.lower() in CONJ - {"of"} or w.lower() in AUX for w in words[1:])


def ask(sentence):
    s = sentence.strip()
    if not s.endswith(".") or '"' in s or "(" in s or ";" in s or ":" in s or not 6 <= s.count(" ") + 1 <= 34:
        return []
    s, out = s[:-1], []
    words = s.split(" ")
    m = re.match(r"^(If|When|Whenever|Once|As soon as) ([^,]{12,90}), (?:then )?([^,]{12,120})$", s)
    if m and m[2].split(" ")[0].lower() not in ("it", "this", "that"):
        out.append((f"What happens {m[1].lower()} {m[2]}?", m[3]))
    m = re.match(r"^To ([a-z]+ [^,]{6,80}), ([^,]{8,120})$", s)
    if m:
        out += [(f"How do I {m[1]}?", m[2]), (f"What must I do to {m[1]}?", m[2])]
    m = re.match(r"^(?:You|We|One) (can|must|should|may|need to) ([a-z]+ .{4,60}?) (by [a-z]+ing .+|to [a-z]+ .+)$", s)
    if m and m[2].split(" ")[0] not in ("also", "not", "then", "only"):
        how = m[3].startswith("by ")
        out.append((f"{'How' if how else 'Why'} {m[1] if m[1] != 'need to' else 'must'} I {m[2]}?" if m[1] != "need to" or how else f"Why do I need to {m[2]}?", m[3]))
    m = re.match(r"^(.{8,110}) because ((?!of ).{8,110})$", s)
    main = words
    if m:
        main = m[1].rstrip(",").split(" ")
    at = next((i for i, w in enumerate(main) if w in AUX), None)
    if at is not None and noun_phrase(main[:at]) and len(main) > at + 2:
        np, aux, rest = " ".join(main[:at]), main[at], main[at + 1:]
        neg = rest[0] == "not" or aux == "cannot"
        tail = " ".join(rest)
        if m and not neg:
            out.append((f"Why {aux} {lower_first(np)} {tail}?", m[2]))
        if not m and "," not in tail and not neg:
            out.append((f"What {aux} {tail}?" if aux not in PLURAL or True else "", np))
            k = re.match(r"^(?:(?:also|often|usually|sometimes) )?(called|named|known as) (.{2,60})$", tail)
            if k and aux in ("is", "are", "was", "were"):
                out.append((f"What {aux} {lower_first(np)} {k[1]}?", k[2]))
            elif rest[0] in ("a", "an", "the") and aux in ("is", "are", "was", "were"):
                out.append((f"What {aux} {lower_first(np)}?", tail))
            i = next((i for i in range(len(rest) - 2, 0, -1) if rest[i] in TAIL), None)
            if i is not None and i >= 1 and not any(w in CONJ or w in TAIL for w in rest[i + 1:]) and rest[i - 1] not in CONJ:
                verb, obj = " ".join(rest[:i]), " ".join(rest[i + 1:])
                if rest[i] == "by" and not re.match(r"[a-z]+ing\b", obj):
                    out.append((f"What {aux} {lower_first(np)} {verb} by?", obj))
                elif rest[i] == "by":
                    out.append((f"How {aux} {lower_first(np)} {verb}?", "by " + obj))
                elif rest[i] in ("after", "before", "during", "until"):
                    out.append((f"When {aux} {lower_first(np)} {verb}?", rest[i] + " " + obj))
                else:
                    out.append((f"What {aux} {lower_first(np)} {verb} {rest[i]}?", obj))
        return [(q, a) for q, a in out if q.count(" ") <= 24]
    if m or "," in s:
        return out
    for i in range(1, min(8, len(words) - 2)):
        if not noun_phrase(words[:i]):
            continue
        found = base_of(words[i])
        if not found or words[i - 1].lower() in DET or i + 1 >= len(words):
            continue
        base, aux = found
        np, rest = " ".join(words[:i]), words[i + 1:]
        if rest[0] in PREPS and len(rest) > 1:
            out.append((f"What {aux} {lower_first(np)} {base} {rest[0]}?", " ".join(rest[1:])))
        elif rest[0].lower() in DET or not rest[0].islower():
            j = next((j for j, w in enumerate(rest) if w in CONJ or w in TAIL or w in ("to",)), len(rest))
            out.append((f"What {aux} {lower_first(np)} {base}{' ' + ' '.join(rest[j:]) if j < len(rest) and len(rest) - j < 8 else ''}?", " ".join(rest[:j])))
        out.append((f"What {words[i]} {' '.join(rest)}?", np))
        break
    return [(q, a) for q, a in out if q.count(" ") <= 24]


def sentences(paragraph):
    return re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        ps = f.read().splitlines()
    r, n, k = random.Random(3), 0, 0
    for p in r.sample(ps, 20000):
        for s in sentences(p):
            k += 1
            got = ask(s)
            n += len(got)
            for q, a in got:
                assert a in s, (s, a)
                if r.random() < 0.004:
                    print(q, "->", a)
    print(n, "questions from", k, "sentences")
