"""How many of an answer's tokens still come out right when their rows read a choice alone.

    python3 tokens.py <model folder> <chains, or a demo set> <texts> [<rows a text>]

One row at a time: all KV and all earlier queries are those of the right answer, computed densely; the row itself reads, in
every layer and KV head, an eighth of its context, chosen as `claims.py` says, by each of WAYS. Of chains as many rows are
drawn for each kind of token. Mistakes do not add up as they would in an answer, so this favours every way alike.
"""
import json
import os
import sys

import numpy as np

import claims
import predict
import queries

LEAST_COSINE, PAGE = claims.LEAST_COSINE, 16
# 2 bits: the four numbers that lose least of a normal distribution, in parts of the rms (Max 1960).
TWO_BITS = np.array([-1.510, -0.453, 0.453, 1.510])


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / len(h) ** 0.5


def shadow(k, bits, turned=True):
    """K [tokens, dim] as its shadow says it: `bits` a number, after a Hadamard transform (or without it)."""
    h = hadamard(k.shape[-1])
    y = k @ h if turned else k
    if bits == 2:
        rms = np.sqrt((y * y).mean(-1, keepdims=True)) + 1e-30
        y = TWO_BITS[np.abs(y[..., None] / rms[..., None] - TWO_BITS).argmin(-1)] * rms
    else:
        scale = (np.abs(y).max(-1, keepdims=True) / 7 + 1e-30).astype(np.float16).astype(np.float64)
        y = np.clip(np.rint(y / scale), -7, 7) * scale
    return y @ h.T if turned else y


class Looker:
    """Chooses for one row of one KV head. Queries are [heads of the group, dim], bare."""

    def __init__(self, model, keys, shadows, first, end, position, count):
        self.model, self.keys, self.shadows = model, keys, shadows
        self.first, self.end, self.position, self.count = first, end, position, count

    def by(self, q, k=None):
        k = self.keys[self.first : self.end] if k is None else k[self.first : self.end]
        return claims.chosen(self.model, q[None], k, self.position, self.count)[0]

    def quest(self, q):
        """Whole pages by the greatest product that a query can have with what is in them (Tang et al. 2024)."""
        turned = self.model.rotated(q[None], np.array([self.position]))[0]
        starts = np.arange(self.first, self.end, PAGE)
        low, high = (f.reduceat(self.keys[: self.end], starts, axis=0) for f in (np.minimum, np.maximum))
        bound = np.maximum(turned[:, None] * low, turned[:, None] * high).sum(-1).max(0)
        pages = np.argsort(-bound, kind="stable")[: self.count // PAGE]
        mask = np.zeros(self.end - self.first, bool)
        for page in pages:
            mask[page * PAGE : (page + 1) * PAGE] = True
        return mask

    def checked(self, q, ahead):
        return self.by(q) if claims.cosines(q, ahead).min() < LEAST_COSINE else self.by(ahead)


# name -> mask, of the row's own query, the looker, and predictions for this row made 1 and 4 rows before.
WAYS = {
    "dense": lambda q, look, one, four: np.ones(look.end - look.first, bool),
    "own query": lambda q, look, one, four: look.by(q),
    "own query, 4 bits": lambda q, look, one, four: look.by(q, look.shadows[0]),
    "own query, 2 bits": lambda q, look, one, four: look.by(q, look.shadows[1]),
    "own query, 4 bits, no Hadamard": lambda q, look, one, four: look.by(q, look.shadows[2]),
    "Quest": lambda q, look, one, four: look.quest(q),
    "last query": lambda q, look, one, four: look.by(one["last query"]),
    "mean of 16": lambda q, look, one, four: look.by(one["mean of 16"]),
    "equations": lambda q, look, one, four: look.by(one["equations"]),
    "equations, 4 ahead": lambda q, look, one, four: look.by(four["equations"]),
    "Algorithm 1": lambda q, look, one, four: look.by(one["all (Algorithm 1)"]),
    "equations with the check": lambda q, look, one, four: look.checked(q, one["equations"]),
    "equations with the check, 4 ahead": lambda q, look, one, four: look.checked(q, four["equations"]),
    "nothing but what is always read": lambda q, look, one, four: np.zeros(look.end - look.first, bool),
}


def row(model, layers, shadows, token, position):
    """The likeliest next token by each way."""
    first, end, share = claims.FORCED, position + 1 - claims.TAIL, model.heads // model.groups
    x = np.repeat(model.embedded([token]), len(WAYS), axis=0)
    for layer, (q_all, k_all, v_all) in enumerate(layers):
        q, k, v = model.looked(x, layer, np.full(len(x), position))
        rings = np.stack([q_all[position - d - claims.RING + 1 : position - d + 1][::-1].transpose(1, 0, 2) for d in (1, 4)]).astype(np.float64)
        guesses = predict.predictions(rings)
        out = np.empty_like(q)
        for group in range(model.groups):
            heads = slice(group * share, (group + 1) * share)
            keys = k_all[:, group].astype(np.float64)
            look = Looker(model, keys, shadows[layer][group], first, end, position, (position + 1) // claims.SHARE)
            one, four = ({name: guess[i, heads] for name, guess in guesses.items()} for i in (0, 1))
            for way, choose in enumerate(WAYS.values()):
                read = np.ones(position + 1, bool)
                read[first:end] = choose(q[way, heads].astype(np.float64), look, one, four)
                ks, vs = np.concatenate((keys[:position], k[way, group][None])), np.concatenate((v_all[:position, group], v[way, group][None]))
                turned = model.rotated(q[way, heads][None].astype(np.float64), np.array([position]))[0]
                z = turned @ ks[read].T * model.dim**-0.5
                e = np.exp(z - z.max(-1, keepdims=True))
                out[way, heads] = (e / e.sum(-1, keepdims=True)) @ vs[read]
        x = model.after(x, out.reshape(len(x), -1), layer)
    return model.likeliest(x)


def rows_of(random, possible, kinds, rows):
    """As many of each kind as there are, at most."""
    each = max(1, rows // len(set(kinds)))
    for kind in sorted(set(kinds)):
        of = possible[np.array([k == kind for k in kinds])]
        for position in sorted(random.choice(of, min(each, len(of)), replace=False).tolist()):
            yield kind, position


def main(folder, name, count, rows=40):
    from tokenizers import Tokenizer

    model, encoder = queries.Qwen3(folder), Tokenizer.from_file(os.path.join(claims.DEMO, "tokenizer.json"))
    random, right, tried, texts = np.random.default_rng(2), {}, {}, 0
    for prompt, answer, part_of in claims.texts_of(name, int(count)):
        before, said = (encoder.encode(text, add_special_tokens=False).ids for text in (prompt, answer))
        ids = np.array(before + said)
        layers, _ = model(ids)
        shadows = [[[shadow(k[:, g].astype(np.float64), bits, turned) for bits, turned in ((4, True), (2, True), (4, False))]
                    for g in range(model.groups)] for _, k, _ in layers]
        possible = np.arange(max(len(before) - 1, 1024), len(ids) - 1)
        kinds = [part_of(p + 1 - len(before), len(said)) if part_of else "all" for p in possible]
        for kind, position in rows_of(random, possible, kinds, int(rows)):
            got = row(model, layers, shadows, ids[position], position)
            for way, token in zip(WAYS, got):
                right.setdefault(kind, dict.fromkeys(WAYS, 0))[way] += int(token == ids[position + 1])
            tried[kind] = tried.get(kind, 0) + 1
        texts += 1
        print(f"{texts} of {count}: {right} of {tried}", file=sys.stderr, flush=True)
    print(json.dumps({"model": os.path.basename(os.path.abspath(folder)), "texts": name, "count": texts, "share": f"1/{claims.SHARE}",
                      "rows": tried, "right": right}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
