"""Small natural question sets under free licences, brought into one form.

    python3 sets.py <folder> > questions.jsonl      <folder>/{qamr,fairytaleqa,xquad,qed,squad,squad-parts,squad-lines} are clones of the repositories below

| set | what is taken | licence |
| --- | --- | --- |
| QAMR (uwnlp/qamr) | data/readable/{dev,test}.tsv: questions about words of single sentences of Wikipedia and Wikinews | MIT; sentences CC BY-SA and CC BY |
| FairytaleQA (uci-soe/FairytaleQAData) | questions of teachers about sections of old stories, where the answer stands in the section | Apache 2.0 |
| XQuAD's English (google-deepmind/xquad) | all paragraphs but the 70 that serve as validation | CC BY-SA 4.0 |
| QED (google-research-datasets/QED) | qed-dev.jsonlines: questions that people asked a search engine | CC BY-SA 3.0 |
| SQuAD 1.1 and 2.0, development sets (rajpurkar/SQuAD-explorer, branch gh-pages) | explore/{1.1,v2.0}/dev: questions of people, and such as the text seems to answer and does not; without the paragraphs of XQuAD | CC BY-SA 4.0 |
| Parts of SQuAD 1.1's training set (EmptyCityJK/flan-response-evaluator) | data/squad/{train,valid,test}.json: 1,000 paragraphs | CC BY-SA 4.0 |
| The same (KOU-201270/model-selection) | data/squad/train.json: 10,000 questions with the sentence that answers each | CC BY-SA 4.0 |

A line is {"set", "text", "qa": [[question, answer], …], "none": [question, …]}; every answer stands literally in the text, which does not
answer those in "none" (absent: there are none).
"""
import collections
import csv
import glob
import html
import json
import os
import re
import sys

VALIDATION = 70  # XQuAD's paragraphs from the end on that are never trained on


def plain(t):
    """Undoes the spaces and quotation marks of tokenised text."""
    t = t.replace("``", "“").replace("''", "”").replace("-LRB-", "(").replace("-RRB-", ")").replace("-LSB-", "[").replace("-RSB-", "]")
    t = re.sub(r"(“|\(|\[|\$|£) ", r"\1", t)
    t = re.sub(r" (”|\)|\]|[.,;:!?%]|'s\b|n't\b|'re\b|'ve\b|'d\b|'ll\b|'m\b)", r"\1", t)
    return re.sub(r" +", " ", re.sub(r" (-|–) (?=\w)", r"\1", t) if " - " in t else t).strip()


def asked(q):
    q = plain(q.strip())
    return (q[0].upper() + q[1:]).rstrip(" ?") + "?"


def literal(text, answer):
    """The answer as it stands in the text, whole words only, or None."""
    answer = plain(answer).strip(" .,;:!?")
    m = re.search(r"(?<!\w)" + re.escape(answer) + r"(?!\w)", text, re.IGNORECASE) if answer else None
    return m and m[0]


VAGUE = set("what which who whom whose when where why how kind type sort thing someone something name this that they them these those does have been being with from".split())


def telling(question, text, answer):
    """Whether a question of single words says enough to find its sentence among others: two of its words, or one long one, stand there too."""
    if answer.lower() in VAGUE or answer.lower() in ("it", "he", "she", "his", "her", "its", "their", "we", "you", "i"):
        return False
    there = {w[:5] for w in re.findall(r"[a-z0-9]{3,}", text.lower())}
    words = [w for w in re.findall(r"[a-z0-9]{3,}", question.lower()) if w not in VAGUE]
    return sum(1 + (len(w) > 6) for w in words if w[:5] in there) >= 2


def qamr(folder):
    for name in ("dev", "test"):
        with open(os.path.join(folder, "data", "readable", name + ".tsv"), encoding="utf-8") as f:
            for block in f.read().split("\n\n"):
                lines = [x for x in block.split("\n") if x]
                if len(lines) < 3:
                    continue
                text, qa = plain(lines[1]), {}
                for line in lines[2:]:
                    q, *answers = line[:50].rstrip(), *[plain(a) for a in line[50:].split("\t")]
                    votes = collections.Counter(a.strip() for a in answers)
                    best, n = votes.most_common(1)[0]
                    got = literal(text, best)
                    if n >= 2 and got and q.endswith("?") and telling(q, text, got):
                        qa[asked(q)] = got
                if qa:
                    yield {"set": "qamr", "text": text, "qa": list(qa.items())}


def fairytales(folder):
    base = os.path.join(folder, "data-by-train-split")
    for file in sorted(glob.glob(os.path.join(base, "questions", "*", "*.csv"))):
        story = os.path.join(base, "section-stories", "all", os.path.basename(file).replace("-questions.csv", "-story.csv"))
        if not os.path.exists(story):
            continue
        with open(story, encoding="utf-8", errors="replace", newline="") as f:
            sections = {row["section"]: plain(re.sub(r"\s+", " ", row["text"])) for row in csv.DictReader(f)}
        qa = collections.defaultdict(list)
        with open(file, encoding="utf-8", errors="replace", newline="") as f:
            for row in csv.DictReader(f):
                at = row["cor_section"].strip()
                got = at in sections and row["question"] and literal(sections[at], re.sub(r"\s+", " ", row["answer1"] or ""))
                if got and len(got) > 1:
                    qa[at].append((asked(re.sub(r"\s+", " ", row["question"])), got))
        for at, found in qa.items():
            yield {"set": "fairytales", "text": sections[at], "qa": found}


def xquad(folder, validation=False):
    with open(os.path.join(folder, "xquad.en.json"), encoding="utf-8") as f:
        every = [p for a in json.load(f)["data"] for p in a["paragraphs"]]
    for p in every[-VALIDATION:] if validation else every[:-VALIDATION]:
        yield {"set": "xquad", "text": p["context"], "qa": [(asked(q["question"]), q["answers"][0]["text"]) for q in p["qas"]]}


def qed(folder):
    with open(os.path.join(folder, "qed-dev.jsonlines"), encoding="utf-8") as f:
        for line in f:
            x = json.loads(line)
            text = plain(x["paragraph_text"])
            answers = [literal(text, a[0]["string"]) for a in x["original_nq_answers"] if a]
            answers = sorted((a for a in answers if a), key=len)
            if answers:
                yield {"set": "qed", "text": text, "qa": [(asked(x["question_text"]), answers[0])]}


def squad(folder):
    with open(os.path.join(folder, "..", "xquad", "xquad.en.json"), encoding="utf-8") as f:
        taken = {spaced(p["context"]) for a in json.load(f)["data"] for p in a["paragraphs"]}
    answered, none = {}, collections.defaultdict(list)
    for file in sorted(glob.glob(os.path.join(folder, "explore", "*", "dev", "*.html"))):
        with open(file, encoding="utf-8") as f:
            paragraphs = f.read().split('<div class="para-wrap">')[1:]
        for p in paragraphs:
            text = spaced(re.search(r"<pre>(.*?)</pre>", p, re.S)[1])
            for q in p.split('<div class="qa-wrap"')[1:]:
                question = asked(spaced(re.search(r'<strong class="question">(.*?)</strong>', q, re.S)[1]))
                answers = [spaced(a) for a in re.findall(r'<span class="answer">(.*?)</span>', q, re.S)]
                literals = sorted((a for a in answers if a and a in text), key=len)
                if literals:
                    # The median of what three people marked.
                    answered.setdefault(text, {})[question] = literals[len(literals) // 2]
                elif "no-answer" in q:
                    none[text].append(question)
    for text, qa in answered.items():
        if text not in taken:
            yield {"set": "squad", "text": text, "qa": list(qa.items()), "none": [q for q in dict.fromkeys(none[text]) if q not in qa]}


def squad_parts(folder):
    for part in ("train", "valid", "test"):
        with open(os.path.join(folder, "data", "squad", part + ".json"), encoding="utf-8") as f:
            for p in json.load(f):
                text = spaced(p["context"])
                qa = {asked(spaced(q["question"])): spaced(q["answer"]) for q in p["qas"] if spaced(q["question"])}
                qa = [(q, a) for q, a in qa.items() if a and a in text]
                if qa:
                    yield {"set": "squad-parts", "text": text, "qa": qa}


def squad_lines(folder):
    with open(os.path.join(folder, "data", "squad", "train.json"), encoding="utf-8") as f:
        x = json.load(f)
    lines = collections.defaultdict(list)
    for q, line in zip(x["questions"], x["answers"]):
        q, line = asked(spaced(q).lstrip(".,;: ") or "?"), spaced(line)
        if 30 <= len(line) <= 400 and len(q) > 10:
            lines[line].append(q)
    for line, questions in lines.items():
        yield {"set": "squad-lines", "text": line, "qa": [(q, line) for q in dict.fromkeys(questions)]}


def spaced(t):
    return re.sub(r"\s+", " ", html.unescape(t)).strip()


if __name__ == "__main__":
    for name, read in (("qamr", qamr), ("fairytaleqa", fairytales), ("xquad", xquad), ("qed", qed), ("squad", squad), ("squad-parts", squad_parts),
                       ("squad-lines", squad_lines)):
        n = 0
        for line in read(os.path.join(sys.argv[1], name)):
            assert all(a in line["text"] for _, a in line["qa"]), line
            n += len(line["qa"])
            print(json.dumps(line, ensure_ascii=False))
        print(name, n, "questions", file=sys.stderr)
