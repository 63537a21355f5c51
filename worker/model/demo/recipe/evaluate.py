"""Exact match of greedy answers on the evaluation sets, with full and with span attention, each question asked on its own.

A greedy answer equals the reference if and only if every reference token (and the end token) is the most probable one after the
reference's own beginning; so one forward pass over prompt and reference decides it.

    python3 evaluate.py <model folder> [<evaluation folder>] [--int8]
"""
import glob
import json
import os
import sys

import numpy as np
import torch

import batches as B
import model as M

ROWS, WIDTH = 8, 8192


def read_sets(folder):
    out = {}
    for f in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(f) as h:
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
