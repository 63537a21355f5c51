"""Samples to token rows. Tokenises piece by piece, as the server does: special tokens are ids, what lies between is one plain string."""
import random

import numpy as np
from tokenizers import Tokenizer

import generate as G
import reading as R

START, END, TURN = 1, 2, 10000
IDS, POS, SID, SEG, WEIGHT, TURN_ID = range(6)  # weight: 0 none, 1 context, 2 answer, 3 answer that lists names
LISTED = 3


class Encoder:
    def __init__(self, file):
        self.t = Tokenizer.from_file(file)
        self.nl = self.ids(["\n"])[0]
        self.reply = self.ids(["assistant\n"])[0]

    def ids(self, texts):
        return [e.ids for e in self.t.encode_batch_fast(texts, add_special_tokens=False)]

    def samples(self, batch, span, alone):
        """batch of samples -> one array [6, length] each. span(i), alone(i): span attention; every turn asked on its own."""
        texts = []
        for s in batch:
            if s["system"]:
                texts.append("system\n" + s["system"])
            texts += [s.get("role", "document") + "\n" + d for d in s["documents"]]
            for t in s["turns"]:
                texts += ["user\n" + t["question"], t["answer"]]
        it = iter(self.ids(texts))
        return [self.one(s, it, span(i), alone(i)) for i, s in enumerate(batch)]

    def one(self, s, it, span, alone):
        ids, pos, seg, weight, turn = [], [], [], [], []

        def put(x, g, w, at, t=-1):
            ids.extend(x)
            pos.extend(range(at, at + len(x)))
            seg.extend([g] * len(x))
            weight.extend([w] * len(x))
            turn.extend([t] * len(x))
            return at + len(x)

        at = 0
        if s["system"]:
            at = put([START] + next(it) + [END] + self.nl, 0, 1, at)
        for i in range(len(s["documents"])):
            at = put([START] + next(it) + [END] + self.nl, i + 1 if span else 0, 1, at)
        base = at
        for i in range(len(s["turns"])):
            at, g = (base, TURN + i) if alone else (at, 0)
            at = put([START] + next(it) + [END] + self.nl + [START] + self.reply, g, 1, at)
            at = put(next(it) + [END], g, LISTED if s["turns"][i].get("kind") in ("list", "names", "merge") else 2, at, i)
            at = put(self.nl, g, 1, at)
        out = np.empty((6, len(ids)), np.int16)
        out[IDS], out[POS], out[SID], out[SEG], out[WEIGHT], out[TURN_ID] = ids, pos, 0, seg, weight, turn
        out[WEIGHT][out[IDS] == START] = 0
        return out


def pack(items, rows, width):
    """Fills rows greedily from items, which it consumes. Pads with samples of their own."""
    out = np.zeros((6, rows, width), np.int16)
    out[TURN_ID] = -1
    for r in range(rows):
        at, n = 0, 0
        while items:
            j = next((j for j in range(len(items) - 1, -1, -1) if items[j][1].shape[1] <= width - at), None)
            if j is None:
                break
            key, a = items.pop(j)
            m = a.shape[1]
            out[:, r, at:at + m] = a
            out[SID, r, at:at + m] = n if key is None else key
            at, n = at + m, n + 1
        out[SID, r, at:] = 32000
    return out


def length(r, p):
    """Tokens of documents, by progress p in 0..1."""
    if p < 0.10:
        return r.randint(60, 420)
    x = r.random()
    if p < 0.30 or x < 0.40:
        return r.randint(60, 900)
    if x < 0.72:
        return r.randint(900, 2000)
    if x < 0.91:
        return r.randint(2000, 4300)
    return r.randint(4300, 7400)


READING = 0.5  # the share of samples that are pages; the others are people, needles and lists


def worker(rank, seed, file, lib, rows, width, progress, queue):
    """Fills the queue with packed rows. lib: reading.Library, read once and shared with forked processes."""
    enc = Encoder(file)
    i, ready = 0, []
    while True:
        while sum(a.shape[1] for _, a in ready) < 1.3 * rows * width:
            p, batch, modes = progress.value, [], []
            for _ in range(24):
                r = random.Random(f"train-{seed}-{rank}-{i}")
                i += 1
                n = length(r, p)
                turns = 8 if n < 900 else 16 if n < 2000 else 24
                if r.random() < READING:
                    s = R.sample(r, lib, int(n * 3.3), turns, p)
                    if not s["turns"]:
                        continue
                else:
                    s = G.sample(r, int(n * 3.6), r.randint(1, 3) if p < 0.10 else None, turns, stage=p)
                batch.append(s)
                modes.append((r.random() < 0.55, r.random() < 0.6))
            ready += [(None, a) for a in enc.samples(batch, lambda k: modes[k][0], lambda k: modes[k][1]) if a.shape[1] <= width]
        random.Random(i).shuffle(ready)
        queue.put(pack(ready, rows, width)[:5])
