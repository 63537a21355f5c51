"""Samples of reading: pages from templates with questions, glossaries, natural paragraphs with gaps. The same form as generate.sample's.

    python3 reading.py [<pages folder> [<natural.txt>]]    prints a few samples
"""
import functools
import json
import os
import random
import re
import sys
import zlib

import asking as A
import cloze as C
import generate as G
import pages as P
import strange as S
import vocabulary as V

NONE = G.NONE
SENTENCE = [" Answer in a full sentence.", " Answer in one sentence.", " Please answer with a sentence.", " Quote the sentence."]
BRIEF = [" Answer briefly.", " Be brief.", " Short answer, please.", " Answer in a few words."]
SENTENCE_SYSTEMS = ["You are a careful assistant. Answer in one short sentence.", "Answer with the sentence of the document that holds the answer.",
                    "You answer questions from the documents in full sentences."]
BRIEF_SYSTEMS = ["Answer with a few words.", "You answer questions from the documents. Keep answers as short as possible.", "Be brief. Answer with the words of the document.",
                 "Answer briefly.", "Give short answers: a name, a number, a few words.", "You are a careful assistant. Answer in a few words."]
NOISE = ["Please tell me: ", "Question: ", "Hello! ", "Hi, ", "Can you tell me: ", "I have a question. ", "Using the page, answer this: ", "Quick question: ", "I'd like to know: "]


class Library:
    """Templates and natural text. held: the share of templates that is kept out of training, for validation."""

    def __init__(self, folder=None, natural=None, questions=None):
        files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith((".txt", ".txt.xz"))) if folder else None
        every = [t for t in P.read(files) if not any(f.startswith("slots") for f in P.faults(t))]
        out = [t for t in every if zlib.crc32(t.kind.encode()) % 25 == 0]
        self.held, self.templates = out, [t for t in every if zlib.crc32(t.kind.encode()) % 25]
        self.paragraphs = []
        if natural and os.path.exists(natural):
            with open(natural, encoding="utf-8") as f:
                self.paragraphs = f.read().splitlines()
        self.passages, self.sentences = [], []  # with questions by people: whole paragraphs, and single sentences
        if questions and os.path.exists(questions):
            with open(questions, encoding="utf-8") as f:
                for x in map(json.loads, f):
                    (self.sentences if x["set"] in ("qamr", "squad-lines") else self.passages).append(x)
            self.plain = [x["text"] for x in self.passages]

    def paragraph(self, r):
        """A natural paragraph: of documentation, or of the question sets (stories, encyclopedias)."""
        return r.choice(self.plain) if self.passages and r.random() < 0.4 else r.choice(self.paragraphs)

    def warm(self):
        """Reads what is read once, so that forked processes share it."""
        glosses(), S.lexicon(), S.mates(), S.kinds(), A.verbs()
        for kind in V.NOUN_FILES:
            V.nouns(kind)


@functools.cache
def glosses():
    """[(word, gloss)] of WordNet's nouns and verbs."""
    out = []
    for f in ("data.noun", "data.verb"):
        with open(os.path.join(V.WORDNET, f)) as h:
            for line in h:
                if line.startswith("  "):
                    continue
                head, _, gloss = line.partition(" | ")
                w = head.split(" ")[4].replace("_", " ")
                g = re.sub(r"\([^)]*\)\s*", "", gloss.split(";")[0]).strip()
                if re.fullmatch(r"[a-z][a-z -]{2,20}", w) and 15 <= len(g) <= 110 and w not in g:
                    out.append((w, g))
    return out


def cut(r, p, size):
    """The page as one or several texts of about `size` characters, cut between its parts."""
    whole = P.text_of(p)
    if len(whole) <= size:
        return [whole]
    out, now = [], dict(p, parts=[])
    for x in p["parts"]:
        if now["parts"] and sum(map(len, now["parts"])) + len(x) > size:
            out.append(P.text_of(now))
            now = dict(p, parts=[])
        now["parts"].append(x)
    return out + [P.text_of(now)]


def estranged(r, p):
    """The page with some of its words changed; names, numbers and dates stay as they are."""
    share = r.choice([0.15, 0.3, 0.5, 0.8])
    texts = p["parts"] + [t["question"] for t in p["turns"]] + p["missing"]
    new = S.changes(r, texts, share, ())
    do = lambda t: S.applied(t, new)  # noqa: E731
    turns = [{"question": do(t["question"]), "answer": t["answer"] if t["answer"] in ("Yes", "No") else do(t["answer"]), "sentence": do(t["sentence"])} for t in p["turns"]]
    return dict(p, title=p["title"] and do(p["title"]), parts=[do(x) for x in p["parts"]], turns=turns, missing=[do(q) for q in p["missing"]])


def titled(r, p, texts, style):
    """A title on the first piece or on all, as servers and people write it."""
    t = p["title"]
    if not t or style == 0:
        return texts
    if style == 1:
        return [f"# {t}\n\n" + texts[0]] + texts[1:]
    if style == 2:
        return [f"{t}\n\n" + texts[0]] + texts[1:]
    name = t if style == 3 else re.sub(r"[^a-z0-9]+", "-", t.lower()).strip("-")[:40] + r.choice([".md", ".txt", ".pdf"])
    return [f"Title: {name}\n" + x for x in texts]


def wording(r, q):
    x = r.random()
    if x < 0.06:
        q = q.rstrip("?.")
    elif x < 0.12:
        q = q[0].lower() + q[1:]
    elif x < 0.17:
        q = r.choice(NOISE) + q
    elif x < 0.19:
        q = q.lower()
    elif x < 0.22:
        q += r.choice([" Thanks.", " Use the documents.", " Answer from the documents only.", "?", " Please."])
    return q


def turn_of(r, t, mode):
    """A question about a page is answered with the sentence that holds the answer, unless the system message or the question asks for a short one."""
    if t["answer"] == NONE:
        return {"question": wording(r, t["question"]), "answer": NONE, "kind": "unanswerable"}
    if t.get("brief"):
        return {"question": t["question"], "answer": t["answer"], "kind": "gap"}
    whole = t["answer"] == t["sentence"]  # nothing shorter is known
    q, sentence = wording(r, t["question"]), mode != "brief" or whole
    if whole and mode == "brief":
        q += r.choice(SENTENCE)
    elif not whole and r.random() < 0.15:
        sentence = not sentence
        q += r.choice(SENTENCE if sentence else BRIEF)
    a = t["answer"]
    if sentence:
        a = f"{a}. {t['sentence']}" if a in ("Yes", "No") else t["sentence"]
    return {"question": q, "answer": a, "kind": "read"}


def styled(r, s):
    """The mode of a sample's answers, and its system message where that says so."""
    mode = r.choice(["plain", "plain", "sentence", "brief", "brief"])
    if mode != "plain":
        s["system"] = r.choice(SENTENCE_SYSTEMS if mode == "sentence" else BRIEF_SYSTEMS)
    return mode


def gap_of(r, sentence):
    """(question, answer): the sentence, or its middle, with some of its words left out; None when it is too short or too long for that."""
    words = sentence.split(" ")
    if not 6 <= len(words) <= 40 or "\n" in sentence:
        return None
    n = min(r.randint(1, 5), len(words) - 4)
    i = r.randrange(len(words) - n + 1)
    answer = " ".join(words[i:i + n]).strip(".,;:!?()\"“”")
    left, right = words[:i][-r.randint(3, 12):], words[i + n:][:r.randint(3, 12)]
    if len(answer) < 3:
        return None
    return r.choice(["Fill the gap: ", "What stands in the gap? ", "Complete: "]) + " ".join(left + ["____"] + right), answer


def of_sentences(r, texts):
    """Questions that need no author: rules on single sentences, and gaps."""
    out = []
    for s in A.sentences(" ".join(texts).replace("\n", " ")):
        out += [{"question": q, "answer": a, "sentence": s} for q, a in A.ask(s)]
        out += [{"question": q, "answer": a, "sentence": s} for q, a in C.ask(r, s, r.choice([0, 1, 1, 2]))]
        if r.random() < 0.15 and (g := gap_of(r, s)):
            out.append({"question": g[0], "answer": g[1], "sentence": s, "brief": True})
        if r.random() < 0.10 and (q := C.about(r, s)):
            out.append({"question": q, "answer": s, "sentence": s})
    return out


def one_page(r, lib, templates, strange, rough):
    """A page of one template or, as a collage, of parts of several; with questions of all kinds. rough: how many questions by rules for each of an author."""
    if r.random() < COLLAGE:
        some = [P.page(r, t, keep=1) for t in r.sample(templates, min(len(templates), r.randint(3, 8)))]
        p = dict(some[0], title=None, parts=[], turns=[], missing=[])
        for q in some:
            parts = [x for x in q["parts"] if not x.startswith("\n## ")]
            for x in r.sample(parts, min(len(parts), r.randint(1, 3))):
                p["parts"].append(x)
            joined = "\n".join(p["parts"])
            inside = [t for t in q["turns"] if t["sentence"] and t["sentence"] in joined]
            p["turns"] += inside
            p["missing"] += [t["question"] for t in q["turns"] if t not in inside and t["answer"] not in joined]
        if lib.paragraphs and r.random() < 0.4:
            p["parts"] += [lib.paragraph(r) for _ in range(r.randint(1, 3))]
        r.shuffle(p["parts"])
        joined = "\n".join(p["parts"])
        p["missing"] = [q for q in p["missing"] if r.random() < 0.5]
        p["kind"] = "collage"
    else:
        p = P.page(r, r.choice(templates))
    p["turns"] = p["turns"] + r.sample(x := of_sentences(r, p["parts"]), min(len(x), max(2, int(len(p["turns"]) * rough))))
    if r.random() < strange:
        return estranged(r, p)
    return dict(p, turns=[dict(t, question=S.reworded(r, t["question"])) if r.random() < 0.25 else t for t in p["turns"]])


def without(documents, sentence):
    """The documents without a sentence that stands in them once; None where it does not, or where little is left of its document."""
    at = [i for i, d in enumerate(documents) if sentence in d]
    if len(at) != 1 or documents[at[0]].count(sentence) != 1:
        return None
    before, after = documents[at[0]].split(sentence)
    rest = before + after.lstrip(" ") if before.endswith((" ", "\n")) or not before else before + after
    rest = re.sub(r"\n[-*•\d.) ]*\n", "\n", rest).strip()
    return [*documents[:at[0]], rest, *documents[at[0] + 1:]] if len(rest) >= 60 else None


def near_misses(r, documents, turns, share):
    """(documents, turns) in which some sentences that hold answers are gone, and their questions say so: what is left is about the same, but does not answer."""
    gone = []
    for s in dict.fromkeys(t["sentence"] for t in turns):
        if not s or r.random() >= share:
            continue
        rest = without(documents, s)
        answers = [t["answer"].lower() for t in turns if t["sentence"] == s and t["answer"] not in ("Yes", "No")]
        if rest and not any(a in d.lower() for d in rest for a in answers):
            documents = rest
            gone.append(s)
    if not gone:
        return documents, turns
    # A question whose sentence overlaps with one that is gone has no sure answer any more.
    return documents, [dict(t, answer=NONE) if t["sentence"] in gone else t for t in turns
                       if t["sentence"] in gone or not t["sentence"] or any(t["sentence"] in d for d in documents)]


COLLAGE = 0.35  # a page that mixes subjects cannot be recognised as a whole: each question has to find its sentence


def pages_sample(r, lib, chars, turns, templates=None, strange=0.5, unanswerable=0.10, rough=0.5, mixed=0.0):
    templates = templates or lib.templates
    size = r.choice([10 ** 6, 10 ** 6, r.randint(250, 700), r.randint(500, 1200), r.randint(900, 2000)])
    style, used, documents, answerable, missing, total = r.randint(0, 4), set(), [], [], [], 0
    while total < chars and len(documents) < 60:
        p = one_page(r, lib, templates, strange, rough)
        if p["kind"] in used and p["kind"] != "collage":
            if len(used) >= len(templates):
                break
            continue
        used.add(p["kind"])
        texts = titled(r, p, cut(r, p, size), style if r.random() < 0.9 else r.randint(0, 4))
        texts = [x for x in texts if x.strip()]
        documents.append(texts)
        total += sum(map(len, texts))
        answerable += p["turns"]
        missing += p["missing"]
    r.shuffle(documents)
    documents = [x for d in documents for x in d]
    documents, answerable = near_misses(r, documents, answerable, unanswerable)
    joined = "\n".join(documents)
    if r.random() < 0.25:  # questions about pages that are not there
        p = one_page(r, lib, templates, strange, rough)
        missing += [t["question"] for t in p["turns"] if t["answer"] not in joined]
    s = {"kind": "pages", "documents": documents}
    beside = []
    if r.random() < mixed:
        s["documents"], beside = beside_people(r, documents, turns // 2)
        turns -= len(beside)
        mode = "plain"
    else:
        mode = styled(r, s)
    out, seen = [], {t["question"] for t in answerable}
    r.shuffle(answerable)
    r.shuffle(missing)
    n_missing = sum(r.random() < unanswerable / 2 for _ in range(turns))
    for q in missing[:n_missing]:
        if q not in seen:
            seen.add(q)
            out.append({"question": wording(r, q), "answer": NONE, "kind": "unanswerable"})
    asked = set()
    for t in answerable:
        if len(out) >= turns:
            break
        if t["question"] not in asked:
            asked.add(t["question"])
            out.append(turn_of(r, t, mode))
    r.shuffle(out)
    return dict(s, turns=out + beside)


def beside_people(r, documents, turns):
    """The pages among the generator's people and companies, and questions about those. Lists are left out, because pages name people too."""
    w = G.facts_sample(r, r.randint(300, 2500), r.randint(1, 6), 3 * turns, near=r.choice([0, 0.4]))
    asked = [t for t in w["turns"] if t["kind"] not in ("list", "names")][:turns]
    cuts = sorted(r.randint(0, len(documents)) for _ in w["documents"])
    out = list(documents)
    for i, d in reversed(list(zip(cuts, w["documents"]))):
        out.insert(i, d)
    return out, [G.noisy(r, t) for t in asked]


def glossary_sample(r, turns):
    some = r.sample(glosses(), r.randint(4, 16))
    if r.random() < 0.3:
        some = [(V.word(r), g) for _, g in some]
    form = r.choice(["{w}: {g}", "{w} – {g}.", "A {w} is {g}.", "- **{w}**: {g}", "{w} means {g}.", "{W}\n{g}"])
    lines = [form.format(w=w, g=g, W=V.cap(w)) for w, g in some]
    per = r.choice([len(lines), len(lines), 2, 4])
    documents = ["\n".join(lines[i:i + per]) for i in range(0, len(lines), per)]
    out = []
    for w, g in r.sample(some, min(turns, len(some))):
        x = r.random()
        if x < 0.5:
            out.append((r.choice(["What does {w} mean?", "What is the meaning of {w}?", "Define {w}.", "How is {w} explained?", "What is {w}?"]).format(w=w), g))
        elif x < 0.85:
            out.append((r.choice(["Which word means {g}?", "What is the word for {g}?", "What do you call {g}?"]).format(g=g), w))
        else:
            other = r.choice(glosses())[0]
            if not any(other in line for line in lines):
                out.append((f"What does {other} mean?", NONE))
    return {"kind": "glossary", "documents": documents, "turns": [{"question": q, "answer": a, "kind": "glossary"} for q, a in out]}


def gap_sample(r, lib, chars, turns):
    """Natural paragraphs; a question is a sentence of theirs with a gap, the answer what stands there."""
    at, texts, total = r.randrange(len(lib.paragraphs)), [], 0
    while total < chars:
        texts.append(lib.paragraphs[at % len(lib.paragraphs)] if r.random() < 0.3 else lib.paragraph(r))
        at += 1
        total += len(texts[-1])
    joined, out = "\n".join(texts), []
    for _ in range(turns):
        g = gap_of(r, r.choice(A.sentences(r.choice(texts))))
        if g and joined.count(g[1]) < 5:
            out.append({"question": g[0], "answer": g[1], "kind": "gap"})
    if not out:
        return gap_sample(r, lib, chars, turns)
    return {"kind": "gap", "documents": texts, "turns": out}


def asked_sample(r, lib, chars, turns, unanswerable=0.0):
    """Natural paragraphs, with questions that rules make from their sentences."""
    at, texts, total, found = r.randrange(len(lib.paragraphs)), [], 0, []
    for _ in range(60):
        t = lib.paragraphs[at % len(lib.paragraphs)] if r.random() < 0.3 else lib.paragraph(r)
        at += 1
        got = [(x["question"], x["answer"], x["sentence"]) for x in of_sentences(r, [t]) if not x.get("brief")]
        if not got:
            continue
        found += got
        texts.append(t)
        total += len(t)
        if total > chars:
            break
    r.shuffle(found)
    out, seen = [], set()
    new = S.changes(r, texts + [f[0] for f in found], r.choice([0.2, 0.5]), ()) if r.random() < 0.4 else {}
    made = {"kind": "asked"}
    mode = styled(r, made)
    texts, turns_found = near_misses(r, texts, [{"question": q, "answer": a, "sentence": s} for q, a, s in found[:turns]], unanswerable)
    for t in turns_found:
        if t["question"] not in seen:
            seen.add(t["question"])
            out.append(turn_of(r, {k: v if v == NONE else S.applied(v, new) for k, v in t.items()}, mode))
    joined = "\n".join(texts)
    for _ in range(turns // 5 if unanswerable and r.random() < 0.3 else 0):
        other = [x for s in A.sentences(r.choice(lib.paragraphs)) for x in A.ask(s)]
        if other and other[0][1] not in joined:
            out.append({"question": S.applied(other[0][0], new), "answer": NONE, "kind": "unanswerable"})
    if not out:
        return glossary_sample(r, turns)
    return dict(made, documents=[S.applied(t, new) for t in texts], turns=out)


def people_sample(r, lib, chars, turns, unanswerable):
    """Natural passages with questions that people asked about them; in most of them some words are changed, or they would soon be known by heart."""
    texts, asked, none, total = [], [], [], 0
    while total < chars:
        if r.random() < 0.4:
            some = r.sample(lib.sentences, r.randint(1, 6))
        else:
            some = [r.choice(lib.passages)]
        texts.append(" ".join(x["text"] for x in some))
        none += [q for x in some for q in x.get("none", [])]
        asked += [(q, a) for x in some for q, a in r.sample(x["qa"], min(len(x["qa"]), 6))]
        total += len(texts[-1])
    joined = "\n".join(texts)
    r.shuffle(asked)
    out = [(q, a) for q, a in dict(asked).items()][:turns]
    for _ in range(turns):
        if r.random() < unanswerable / 2:
            q, a = r.choice(r.choice(lib.passages)["qa"])
            if a not in joined:
                out.append((q, NONE))
    # Such as the text seems to answer and does not, by people: at most as many as rules make of a page.
    out += [(q, NONE) for q in r.sample(none, min(len(none), turns)) if r.random() < 3 * unanswerable]
    asked = [{"question": q, "answer": a, "sentence": "" if a == NONE else next((x for t in texts for x in A.sentences(t) if a in x), "")} for q, a in out]
    texts, asked = near_misses(r, texts, asked, unanswerable)
    new = S.changes(r, texts + [t["question"] for t in asked], r.choice([0.2, 0.4, 0.6]), ()) if r.random() < 0.6 else {}
    s = {"kind": "people", "documents": [S.applied(t, new) for t in texts]}
    mode, turns = styled(r, s), []
    for t in asked:
        t = {k: v if v == NONE else S.applied(v, new) for k, v in t.items()}
        turns.append(turn_of(r, dict(t, sentence=t["sentence"] or t["answer"]), mode))
    return dict(s, turns=turns)


UNANSWERABLE = 0.12  # the share of sentences that are asked for and taken out; half as many questions are about something else


LEADS = [
    "{d}\n\n{q}", "Context:\n{d}\n\nQuestion: {q}", "Here is a page:\n{d}\n\n{q}", "{q}\n\n{d}", "Use this text to answer.\n\n{d}\n\n{q}",
    # As LlamaIndex, LangChain, Open WebUI and Dify write them.
    "Context information is below.\n---------------------\n{d}\n---------------------\nGiven the context information and not prior knowledge, answer the query.\nQuery: {q}\nAnswer: ",
    "Use the following pieces of context to answer the question at the end. If you don't know the answer, just say that you don't know, don't try to make up an answer."
    "\n\n{d}\n\nQuestion: {q}\nHelpful Answer:",
    "Respond to the user query using the provided context.\n<context>\n{d}\n</context>\n\n{q}",
    "Use the following context as your learned knowledge, inside <context></context> XML tags.\n\n<context>\n{d}\n</context>\n\n{q}",
]


def pasted(r, s):
    """The same sample with its documents in front of each question, as clients write them that know no documents."""
    lead, text = r.choice(LEADS), "\n\n".join(s["documents"])
    return dict(s, documents=[], turns=[{**t, "question": lead.format(d=text, q=t["question"])} for t in s["turns"][:4]])


def sample(r, lib, chars, turns, p):
    """One sample of about `chars` characters of documents; p is the progress of training."""
    # At first every question has an answer: who may refuse what is hard does not learn to find it.
    x, unanswerable = r.random(), 0 if p < 0.3 else UNANSWERABLE
    if lib.passages and r.random() < 0.36:
        s = people_sample(r, lib, min(chars, 6000), turns, unanswerable)
    elif x < 0.66 or not lib.paragraphs:
        s = pages_sample(r, lib, min(chars, r.choice([400, 1200, 3000, 8000, 20000])), turns, unanswerable=unanswerable,
                         rough=2.0 if p < 0.25 else 1.0, mixed=0.2 if p >= 0.3 else 0)
    elif x < 0.70:
        s = glossary_sample(r, turns)
    elif x < 0.90:
        s = asked_sample(r, lib, min(chars, 6000), turns, unanswerable=unanswerable)
    else:
        s = gap_sample(r, lib, min(chars, 5000), turns)
    s.setdefault("system", G.system_message(r) if s["kind"] not in ("pages", "asked", "people") or r.random() < 0.6 else None)
    s["role"] = r.choice(["document"] * 7 + ["user"] * 3)
    if s["kind"] in ("pages", "people") and s["role"] == "user" and sum(map(len, s["documents"])) < 6000 and r.random() < 0.35:
        return pasted(r, s)
    return s


if __name__ == "__main__":
    lib = Library(*(sys.argv[1:] or [None]))
    print(len(lib.templates), "templates,", len(lib.held), "held out")
    for i in range(4):
        r = random.Random(f"show-{os.getpid()}-{i}")
        s = sample(r, lib, 1500, 8, 1)
        print("=" * 100, s["kind"], s["role"], s["system"])
        print("\n---\n".join(s["documents"]))
        for t in s["turns"]:
            print("Q", t["question"], "\n  A", t["answer"])
