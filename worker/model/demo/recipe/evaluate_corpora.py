"""The demo corpora's questions, with the documents cut at random sentence ends: against all fragments and against the best few by BM25.

    python3 evaluate_corpora.py <model folder>
"""
import glob
import json
import math
import os
import random
import re
import sys

from generate import SYSTEM


def cut(r, text):
    """Fragments of 40 to 1000 characters (10 to 256 tokens) that end at sentence ends."""
    out, now, size = [], "", r.randint(40, 1000)
    for s in re.findall(r".*?[.!?](?:\s+|$)", text, re.S):
        now += s
        if len(now) >= size:
            out.append(now.strip())
            now, size = "", r.randint(40, 1000)
    return out + [now.strip()] * bool(now.strip())


def words(t):
    return re.findall(r"[a-z0-9]+", t.lower())


def best(question, fragments, k):
    bags = [words(f) for f in fragments]
    mean = sum(map(len, bags)) / len(bags)
    score = []
    for i, b in enumerate(bags):
        s = 0.0
        for w in set(words(question)):
            n, f = sum(w in x for x in bags), b.count(w)
            s -= math.log(1 + (len(bags) - n + 0.5) / (n + 0.5)) * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * len(b) / mean))
        score.append((s, i))
    return [fragments[i] for s, i in sorted(score)[:k]]


def samples(folder, cuts, k):
    out = []
    for tenant in sorted(os.listdir(folder)):
        path = os.path.join(folder, tenant)
        with open(os.path.join(path, "questions.json")) as f:
            questions = json.load(f)
        texts = [open(f).read() for f in sorted(glob.glob(os.path.join(path, "*.md")))]
        for c in range(cuts):
            r = random.Random(f"eval-corpora-{tenant}-{c}")
            fragments = [x for t in texts for x in cut(r, t)]
            for q in questions:
                some = best(q["question"], fragments, k) if k else fragments[:]
                if k and c % 2:
                    r.shuffle(some)
                out.append({"system": SYSTEM, "documents": some, "turns": [q], "tenant": tenant})
    return out


if __name__ == "__main__":
    import evaluate as E
    import torch  # noqa: F401
    import batches as B
    import model as M
    folder = sys.argv[1]
    enc, masks = B.Encoder(os.path.join(folder, "tokenizer.json")), M.Masks(E.ROWS, E.WIDTH)
    ev = E.Evaluator(enc, masks, E.greedy(M.load(folder).cuda(), "fp32"))
    for k in (0, 4, 8):
        s = samples(os.path.join(folder, "corpora"), 10 if k else 4, k)
        for span in (False, True):
            right = ev.run(s, span)
            bad = [x["tenant"] + ": " + x["turns"][0]["question"] for x, y in zip(s, right) if not y[0]]
            print(f"{'all fragments' if not k else f'best {k}'}\t{'span' if span else 'full'}\t{len(s)} questions\t{100 * (1 - len(bad) / len(s)):.2f}%")
            for b in sorted(set(bad)):
                print("    ", bad.count(b), "x", b)
