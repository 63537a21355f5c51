"""Exact match of greedy answers on the evaluation sets, with full and with span attention, each question asked on its own.

A greedy answer equals the reference if and only if every reference token (and the end token) is the most probable one after the
reference's own beginning; so one forward pass over prompt and reference decides it.

    python3 evaluate.py <model folder> [<evaluation folder>] [--int8]
"""
import glob
import gzip
import json
import os
import random
import re
import sys

import numpy as np
import torch

import asking as A
import batches as B
import model as M
import reading as R

ROWS, WIDTH = 8, 8192


def read_sets(folder):
    out = {}
    for f in sorted(glob.glob(os.path.join(folder, "*.json.gz"))):
        with gzip.open(f, "rt", encoding="utf-8") as h:
            d = json.load(h)
        out[d["name"]] = d["samples"]
    return out


class Evaluator:
    def __init__(self, enc, masks, forward):
        """forward(ids, pos, mask) -> most probable next tokens."""
        self.enc, self.masks, self.forward = enc, masks, forward

    def run(self, samples, span, role="document"):
        """-> per sample, per turn: right or not."""
        arrays = self.enc.samples([{**s, "role": s.get("role", role)} for s in samples], lambda i: span, lambda i: True)
        items = [(i, a) for i, a in enumerate(arrays) if a.shape[1] <= WIDTH]
        right = [[True] * len(s["turns"]) for s in samples]
        while items:
            x = torch.from_numpy(B.pack(items, ROWS, WIDTH)).cuda()
            got = self.forward(x[B.IDS].long(), x[B.POS].long(), self.masks(x[B.SID], x[B.SEG]))
            bad = (got[:, :-1] != x[B.IDS][:, 1:]) & (x[B.WEIGHT][:, 1:] == 2)
            for sid, turn in torch.stack((x[B.SID][:, 1:][bad], x[B.TURN_ID][:, 1:][bad]), 1).unique(dim=0).tolist():
                right[sid][turn] = False
        return right

    def score(self, samples, span, role="document"):
        r = [x for s in self.run(samples, span, role) for x in s]
        return sum(r) / len(r)


class Reader:
    """Generates answers about pages, greedily, and asks whether one of the accepted answers stands in them."""

    LIMIT = 64  # tokens of an answer

    def __init__(self, enc, masks, forward):
        self.enc, self.masks, self.forward = enc, masks, forward

    def answers(self, samples, span):
        arrays = self.enc.samples(samples, lambda i: span, lambda i: True)
        room = np.zeros((6, self.LIMIT), np.int16)
        items = []
        for i, a in enumerate(arrays):
            first = int(np.argmax(a[B.WEIGHT] == 2))
            last = a[:, first - 1:first]
            tail = np.repeat(last, self.LIMIT, 1) + room
            tail[B.IDS], tail[B.POS] = 0, last[B.POS, 0] + 1 + np.arange(self.LIMIT)
            items.append((i, np.concatenate((a[:, :first], tail), 1), first))
        out = [None] * len(samples)
        while items:
            x, places, r, at = np.zeros((6, ROWS, WIDTH), np.int16), [], 0, 0
            while items:
                i, a, first = items[-1]
                if at + a.shape[1] > WIDTH:
                    r, at = r + 1, 0
                    if r == ROWS:
                        break
                items.pop()
                x[:, r, at:at + a.shape[1]] = a
                x[B.SID, r, at:at + a.shape[1]] = i
                places.append((i, r, at + first))
                at += a.shape[1]
            x[B.SID][x[B.POS] + x[B.IDS] + x[B.SEG] == 0] = 32000
            x = torch.from_numpy(x).cuda()
            mask = self.masks(x[B.SID], x[B.SEG])
            ids, pos = x[B.IDS].long(), x[B.POS].long()
            rows = torch.tensor([p[1] for p in places], device="cuda")
            cols = torch.tensor([p[2] for p in places], device="cuda")
            done = torch.zeros(len(places), dtype=torch.bool, device="cuda")
            tokens = []
            for k in range(self.LIMIT):
                next_ids = self.forward(ids, pos, mask)[rows, cols + k - 1]
                done |= next_ids == B.END
                tokens.append(torch.where(done, -1, next_ids))
                if bool(done.all()):
                    break
                ids[rows, cols + k] = torch.where(done, 0, next_ids)
            for (i, _, _), t in zip(places, torch.stack(tokens, 1).tolist()):
                out[i] = self.enc.t.decode([y for y in t if y >= 0])
        return out

    def score(self, pages, others, span, seed="reader", system=None):
        """-> answered right, refused although answerable, unanswerable and said so (shares), and [(question, answer, accepted, right)]."""
        samples, expected = [], []
        for i, p in enumerate(pages):
            r = random.Random(f"{seed}-{i}")
            documents = [p["text"]] + [q["text"] for q in r.sample(pages[:i] + pages[i + 1:], others)]
            r.shuffle(documents)
            for q in p["questions"]:
                samples.append({"system": system, "documents": documents, "turns": [{"question": q["question"], "answer": "-"}]})
                expected.append(q)
        got = self.answers(samples, span)
        right = refused = said = known = unknown = 0
        listed = []
        for q, a in zip(expected, got):
            none = plain("The documents do not say") in plain(a)
            if q["answerable"]:
                ok = any(plain(x) in plain(a) for x in q["answers"])
                known, right, refused = known + 1, right + ok, refused + none
            else:
                ok, unknown, said = none, unknown + 1, said + none
            listed.append((q["question"], a, q["answers"], ok))
        return right / max(1, known), refused / max(1, known), said / max(1, unknown), listed


def plain(s):
    """Lower case without articles and signs, so that "The 24 months." holds "24 months"."""
    s = re.sub(r"[^\w\s]", " ", s.lower())
    return " " + " ".join(w for w in s.split() if w not in ("a", "an", "the")) + " "


def read_pages(folder):
    """-> name of each file of pages: its pages."""
    out = {}
    for f in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(f, encoding="utf-8") as h:
            out[os.path.basename(f)[:-5]] = json.load(h)
    return out


def gaps(pages):
    """The pages with gaps in their sentences as the only questions."""
    out = []
    for i, p in enumerate(pages):
        r = random.Random(f"gaps-{i}")
        found = [g for s in A.sentences(p["text"].replace("\n", " ")) if (g := R.gap_of(r, s))]
        asked = r.sample(found, min(4, len(found)))
        out.append(dict(p, questions=[{"question": q, "answers": [a], "answerable": True} for q, a in asked]))
    return out


def greedy(model, precision):
    def forward(ids, pos, mask):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return model(ids, pos, mask).argmax(-1)
    return torch.compile(forward, dynamic=False)


def int8(model):
    """Weights of the matrices rounded to 8 bits in blocks of 32 along the input, as the CPU backend holds them."""
    for n, p in model.named_parameters():
        if p.dim() == 2:
            w = p.data.view(p.shape[0], -1, 32)
            s = w.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
            p.data = ((w / s).round() * s).view(p.shape)
    return model


def table(folder, sets, precision="fp32", quantise=False, roles=("document", "user")):
    enc, masks = B.Encoder(os.path.join(folder, "tokenizer.json")), M.Masks(ROWS, WIDTH)
    m = M.load(folder).cuda()
    ev = Evaluator(enc, masks, greedy(int8(m) if quantise else m, precision))
    rows = []
    for name, samples in sets.items():
        n = sum(len(s["turns"]) for s in samples)
        rows.append([name, n] + [round(100 * ev.score(samples, span, role), 2) for role in roles for span in (False, True)])
        print(*rows[-1], sep="\t", flush=True)
    return rows


if __name__ == "__main__":
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    print("set\tquestions\tfull\tspan\tfull, role user\tspan, role user")
    table(args[0], read_sets(args[1] if len(args) > 1 else os.path.join(args[0], "eval")),
          "bf16" if "--bf16" in sys.argv else "fp32", "--int8" in sys.argv)
