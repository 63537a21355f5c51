"""Rough questions from single sentences of any English text: a part of the sentence is the answer, what stands around it, mixed and thinned, is the question.

    python3 cloze.py <text file>      prints some

After "Unsupervised question answering by cloze translation" (Lewis, Denoyer and Riedel, 2019): such questions are seldom good English, but each can only
be answered by finding its words again and by knowing what kind of thing "when" or "how many" asks for. There is one for nearly every sentence.
"""
import random
import re
import sys

import asking as A
import strange as S

NUMBER = r"(?:\d[\d.,/:-]*\d|\d|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fifteen|sixteen|eighteen|twenty|thirty|forty|fifty|sixty|eighty|ninety|hundred|thousand|million)(?:[ -](?:one|two|three|four|five|six|seven|eight|nine|hundred|thousand|million|half))*"
UNIT = r"(?:seconds?|minutes?|hours?|days?|nights?|weeks?|months?|years?|centuries|summers|winters)"
MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DAY = r"(?:Mondays?|Tuesdays?|Wednesdays?|Thursdays?|Fridays?|Saturdays?|Sundays?)"
MONEY = rf"(?:[$€£]\s?\d[\d.,]*(?: million)?|{NUMBER} (?:euros?|dollars?|pounds?|francs?|crowns?|cents?|pence))"
NAME = r"(?:[A-Z][\w'’.-]+)(?: (?:of |the |de |van |von |and )?[A-Z0-9][\w'’.-]*)*"
PLACE = r"(?:in|at|on|under|behind|near|beside|above|below|inside|outside|from|to|into|along|opposite|between|through)"
STOP = set(("a an the of to in on at for with from by into as is are was were be been has have had do does did will would can could may might must shall should and or but "
            "that which who it its he she they them his her their this these those there not so than then if").split())
NOUNS = rf"(?:the|a|an|our|their|his|her|its|your|my|every|each|some|all|any)(?: (?!(?:{'|'.join(sorted(STOP))})\b)[a-z][a-z'’-]+){{1,3}}"
# What the question begins with, the pattern of the answer, and what has to stand in front of it.
KINDS = [
    (("How much", "How much", "What price", "What sum"), MONEY, ""),
    (("How long", "How long", "How many {unit}", "For how long"), rf"{NUMBER} {UNIT}", ""),
    (("What percentage", "How many per cent", "What share"), rf"{NUMBER} ?(?:%|per ?cent)", ""),
    (("When", "When", "On which date", "What date"), rf"(?:\d{{1,2}}(?:st|nd|rd|th)? {MONTH}|{MONTH} \d{{1,2}}|{MONTH})(?:,? \d{{4}})?", ""),
    (("When", "In which year", "What year"), r"(?:1[5-9]|20)\d\d", "(?:in|since|until|by|from|of) "),
    (("When", "On which day", "Which day"), DAY, ""),
    (("When", "At what time", "What time"), r"(?:\d{1,2}[:.]\d\d(?: ?[ap]\.?m\.?)?|\d{1,2} ?[ap]\.?m\.?|noon|midnight|half past \w+|\w+ o'clock)", ""),
    (("How many", "How many", "What number of", "How many {unit}"), NUMBER, ""),
    (("How many {unit}", "How much", "How far", "How large", "How heavy", "What size"), rf"{NUMBER} ?(?:km|kilometres?|metres?|m|cm|mm|miles?|feet|kg|kilos?|grams?|g|litres?|ml|degrees|MB|GB|watts?|tons?|tonnes)", ""),
    (("Where", "Where", "In which place", "In which {head}"), rf"(?:{NOUNS}|{NAME})", rf"{PLACE} "),
    (("Who", "Who", "Which person", "What is the name of the one who", "By whom"), r"(?:(?:Mr|Mrs|Ms|Dr|Professor|Sir)\.? )?[A-Z][a-z'’-]+(?: [A-Z][a-z'’-]+){1,2}", ""),
    (("Who", "What", "Which", "What name", "What is called"), NAME, "[a-z,] "),
    (("Why", "Why", "For what reason", "What is the reason"), r"[^,.;]{8,90}", "(?:because|since|as|so that|due to|thanks to|for fear of) "),
    (("Why", "What for", "For what purpose"), r"to (?!the|a|an|our|their|his|her|its|your|my|us|them|him|it|be\b)[a-z]+ [^,.;]{6,60}", " "),
    (("How", "How", "In what way"), r"(?:by [a-z]+ing|with) [^,.;]{5,60}", " "),
    (("When", "When", "At which moment", "Under which condition"), r"(?:before|after|until|while|when|if|unless|during|once) [^,.;]{6,60}", " "),
    (("What", "What", "Which {head}", "What kind of {head}", "What thing"), NOUNS, " "),
    (("What", "Who", "Which {head}", "What thing"), NOUNS.replace("(?:the|", "(?:The|the|", 1).replace("|a|an|our", "|A|a|An|an|Our|our", 1), "^"),
    (("What colour",), r"(?:red|blue|green|yellow|black|white|brown|grey|orange|purple|pink|silver|golden)", " "),
]
PATTERNS = [(heads, re.compile(rf"(?:(?<=^)|{before})({answer})(?![\w’'-])" if before == "^" else rf"{before}(?<![\w’'$€£-])({answer})(?![\w’'-])")) for heads, answer, before in KINDS]


def candidates(sentence):
    """[(question heads, begin, end)]: the parts of the sentence that a question can ask for."""
    out = []
    for heads, pattern in PATTERNS:
        for m in pattern.finditer(sentence):
            if len(m[1]) < 0.6 * len(sentence) and len(m[1]) > 1:
                out.append((heads, m.start(1), m.end(1)))
    return out


def thinned(r, words, share):
    """Without some of the small words, and with some words in another form or replaced by a synonym."""
    out = []
    for w in words:
        bare = re.sub(r"^\W+|\W+$", "", w)
        if not bare or (bare.lower() in STOP and r.random() < share):
            continue
        if bare.islower() and len(bare) > 3 and r.random() < 0.15:
            x, same = r.random(), S.mates().get(bare)
            if x < 0.5 and same:
                bare = r.choice(same)
            elif x < 0.8:
                bare = S.kind_of(r, bare) or bare
            elif bare.endswith("s") and not bare.endswith("ss"):
                bare = bare[:-1]
        out.append(bare)
    return out


def question(r, sentence, heads, begin, end):
    answer, left, right = sentence[begin:end], sentence[:begin].split(), sentence[end:].split()
    unit = answer.split(" ")[-1] if " " in answer else ""
    head = r.choice(heads)
    following = right[0].strip(".,;:!?") if right else ""
    if "{unit}" in head:
        head = head.replace("{unit}", unit if re.fullmatch("[a-z]{2,}", unit) else following)
    if "{head}" in head:
        head = head.replace("{head}", (unit and S.kind_of(r, unit.strip(".,"))) or (unit if r.random() < 0.3 else "thing"))
    left, right = left[-r.randint(2, 12):], right[:r.randint(2, 12)]
    share = r.choice([0.0, 0.3, 0.7, 1.0])
    left, right = thinned(r, left, share), thinned(r, right, share)
    x = r.random()
    words = left + right if x < 0.6 else right + left
    if x > 0.88:
        r.shuffle(words)
    while len(words) > 4 and r.random() < 0.35:
        words.pop(r.randrange(len(words)))
    words = words[:16]
    if sum(w.lower() not in STOP for w in words) < 2:
        return None
    if words[0][0].isupper() and words[0].lower() in STOP | {"our", "your", "my", "all", "every", "each", "some", "no"}:
        words[0] = words[0].lower()
    if head.startswith(("How many", "What number")) and following in words and words[0] != following and r.random() < 0.7:
        words.remove(following)
        words.insert(0, following)
    glue = r.choice(["", "", "", "is", "did", "does", "was", "are", "has", "can"]) if r.random() < 0.5 else ""
    q = " ".join([head] + [glue] * bool(glue) + words)
    return re.sub(r" +", " ", q).strip() + ("?" if r.random() < 0.92 else "")


def ask(r, sentence, n=1):
    """Up to n (question, answer) of a sentence; kinds that are rare come as often as common ones."""
    words = sentence.count(" ") + 1
    if not 5 <= words <= 45 or "\n" in sentence:
        return []
    found = candidates(sentence)
    out = []
    for _ in range(n):
        if not found:
            break
        heads = r.choice(sorted({h for h, _, _ in found}))
        h, b, e = r.choice([c for c in found if c[0] == heads])
        found.remove((h, b, e))
        q = question(r, sentence, h, b, e)
        if q:
            out.append((q, sentence[b:e].strip(" ,;:")))
    return out


def about(r, sentence):
    """A question that only names words of the sentence; the whole sentence is its answer. None when there are too few words."""
    words = [w for w in re.findall(r"[A-Za-z][\w'’-]{2,}|\d[\d.,]*\d", sentence) if w.lower() not in STOP and w.lower() not in S.KEPT]
    if len(words) < 3:
        return None
    some = thinned(r, r.sample(words, min(len(words), r.randint(2, 4))), 0)
    if len(some) < 2:
        return None
    form = r.choice(["What is said about {x}?", "What do the documents say about {x}?", "What about {x}?", "Which sentence speaks of {x}?", "Tell me about {x}.",
                     "{x}?", "What does it say on {x}?", "Is there something about {x}?", "What is known of {x}?"])
    return form.format(x=", ".join(some[:-1]) + r.choice([" and ", " and ", " with ", ", "]) + some[-1])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        every = f.read().splitlines()
    rng = random.Random(3)
    for paragraph in rng.sample(every, 12):
        for one in A.sentences(paragraph)[:3]:
            print(one)
            for pair in ask(rng, one, 3):
                print("    Q", pair[0], "->", pair[1])
            print("    A", about(rng, one))
