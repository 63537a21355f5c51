"""What AsyncSpade claims, measured: how much of the right choice a predicted query finds.

    python3 claims.py <model folder> chains <texts> [<rows a text>]            # chains of test/bench/chains, seeds 0, 1, …
    python3 claims.py <model folder> <name of a demo set> <texts> [<rows>]     # e.g. needles-4k: worker/model/demo/eval
    python3 claims.py check                                                    # the choice against plain loops
    python3 predict.py                                                         # the Newton steps against gradient descent

A text is a prompt with its right answer. At drawn rows of the answer, for each layer and KV head, a query (the row's own,
or a prediction from those before it) chooses an eighth of the row's context among all tokens but the prompt's first 4 and
the newest 64, which are always read. Score of a token: the greatest, over the heads that share K, of its log-weight, by K
itself. Printed is JSON: `overlap`, the part of the own query's choice that the prediction's has; `mass`, the part of the
row's attention weight that is read; `cosine` with the own query; the right answer's tokens that the model gives. float64.
"""
import gzip
import json
import os
import sys

import numpy as np

import predict
import queries

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(queries.RECIPE, "..")
sys.path += [os.path.join(HERE, "..", "chains", "recipe")]

FORCED, TAIL, RING, SHARE = 4, 64, 17, 8
DISTANCES = (1, 2, 3, 4, 6, 8)
FAR = ("last query", "mean of 16", "equations", "equations, no shift", "all (Algorithm 1)")
AGO = (1, 2, 4, 8, 16)
LEAST_COSINE = 0.6


def texts_of(name, count):
    """(prompt, answer, what each of the answer's tokens is for or None), in the form that the model was trained on."""
    if name == "chains":
        import chains
        import parts

        for seed in range(count):
            chain = chains.chain(seed, 91, 181)
            yield f"<|im_start|>user\n{chain.prompt}<|im_end|>\n<|im_start|>assistant\n", chain.answer + "<|im_end|>", parts.of
        return
    with gzip.open(os.path.join(DEMO, "eval", name + ".json.gz"), "rt", encoding="utf-8") as f:
        samples = json.load(f)["samples"]
    for sample in samples[:count]:
        said = [("system", sample["system"])] if sample["system"] else []
        said += [(sample.get("role", "document"), text) for text in sample["documents"]] + [("user", sample["turns"][0]["question"])]
        prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
        yield prompt + "<|im_start|>assistant\n", sample["turns"][0]["answer"] + "<|im_end|>", None


def chosen(model, q, k, position, count):
    """Tokens that queries choose, as masks [queries, candidates]. q [queries, heads of a group, dim] bare, k [candidates, dim]."""
    turned = model.rotated(q.reshape(-1, q.shape[-2], q.shape[-1]), np.full(len(q), position))
    z = turned @ k.T * model.dim**-0.5
    top = z.max(-1, keepdims=True)
    score = (z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))).max(1)
    mask = np.zeros(score.shape, bool)
    np.put_along_axis(mask, np.argpartition(-score, count - 1, axis=-1)[:, :count], True, axis=-1)
    return mask


def weights_of(model, q, k, position):
    """The row's attention over all it sees. q [heads of a group, dim] bare."""
    z = model.rotated(q[None], np.array([position]))[0] @ k[: position + 1].T * model.dim**-0.5
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cosines(a, b):
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


class Sums:
    """Means by name, and by name and kind of row."""

    def __init__(self):
        self.sums = {}

    def add(self, name, kinds, **values):
        for kind in kinds:
            for what, value in values.items():
                entry = self.sums.setdefault(kind, {}).setdefault(name, {}).setdefault(what, [0.0, 0])
                entry[0] += float(np.sum(value))
                entry[1] += np.size(value)

    def json(self):
        return {kind: {name: {what: round(total / count, 4) for what, (total, count) in of.items()} for name, of in names.items()}
                for kind, names in self.sums.items()}


def measure_row(model, layers, position, kinds, sums):
    """One row: every layer, every KV head."""
    share = model.heads // model.groups
    first, end = FORCED, position + 1 - TAIL
    count = (position + 1) // SHARE
    for layer, (q, k, _) in enumerate(layers):
        # Rings that end 1 to 8 rows before this one, newest query first: [distances, heads, 17, dim].
        rings = np.stack([q[position - d - RING + 1 : position - d + 1][::-1].transpose(1, 0, 2) for d in DISTANCES]).astype(np.float64)
        guesses = predict.predictions(rings)
        for group in range(model.groups):
            heads = slice(group * share, (group + 1) * share)
            own = q[position, heads].astype(np.float64)
            keys = k[:, group].astype(np.float64)
            names = [(name, 0) for name in guesses] + [(name, i) for name in FAR for i in range(1, len(DISTANCES))]
            asked = np.stack([own] + [guesses[name][i, heads] for name, i in names])
            masks = chosen(model, asked, keys[first:end], position, count)
            weights = weights_of(model, own, keys, position).mean(0)
            always = weights[:first].sum() + weights[end:].sum()
            read = masks @ weights[first:end] + always
            sums.add("own query", kinds, mass=read[0], always=always)
            least = cosines(asked[1:], own[None]).min(-1)
            overlaps = (masks[1:] & masks[0]).sum(-1) / count
            for (name, i), overlap, mass, cosine in zip(names, overlaps, read[1:], least):
                label = name if i == 0 else f"{name}, {DISTANCES[i]} ahead"
                sums.add(label, kinds, overlap=overlap, mass=mass, cosine=cosine)
                if name == "equations" and DISTANCES[i] in (1, 4):
                    again = cosine < LEAST_COSINE
                    sums.add(f"equations with the check, {DISTANCES[i]} ahead", kinds, overlap=1.0 if again else overlap,
                             mass=read[0] if again else mass, again=again)
            for ago in AGO:  # what the row so many rows before chose, of what both could choose
                before = chosen(model, q[position - ago, heads].astype(np.float64)[None], keys[first : end - ago], position - ago, count)[0]
                sums.add(f"choice of {ago} rows ago", kinds, overlap=(masks[0, : end - first - ago] & before).sum() / count)
            sums.add("equations", [f"layer {layer}"], overlap=overlaps[names.index(("equations", 0))], mass=read[1 + names.index(("equations", 0))])
            sums.add("own query", [f"layer {layer}"], mass=read[0], always=always)


def main(folder, name, count, rows=40):
    from tokenizers import Tokenizer

    model, encoder = queries.Qwen3(folder), Tokenizer.from_file(os.path.join(DEMO, "tokenizer.json"))
    random, sums, right, total, measured, lengths = np.random.default_rng(1), Sums(), 0, 0, 0, []
    for prompt, answer, part_of in texts_of(name, int(count)):
        before, said = (encoder.encode(text, add_special_tokens=False).ids for text in (prompt, answer))
        ids = np.array(before + said)
        layers, likeliest = model(ids)
        right, total = right + int((likeliest[len(before) - 1 : -1] == said).sum()), total + len(said)
        lengths.append(len(ids))
        possible = np.arange(max(len(before) - 1, 1024), len(ids) - 1)  # rows that give a token of the answer
        for position in sorted(random.choice(possible, min(int(rows), len(possible)), replace=False).tolist()):
            kinds = ["all"] + ([part_of(position + 1 - len(before), len(said))] if part_of else [])
            measure_row(model, layers, position, kinds, sums)
            measured += 1
        print(f"{len(lengths)} of {count}: {len(ids)} tokens, {right} of {total} right", file=sys.stderr, flush=True)
    print(json.dumps({"model": os.path.basename(os.path.abspath(folder)), "texts": name, "count": len(lengths), "rows": measured,
                      "meanTokens": round(float(np.mean(lengths))), "share": f"1/{SHARE}", "forced": FORCED, "tail": TAIL, "epsilon": predict.EPSILON,
                      "rightTokens": right, "answerTokens": total, "means": sums.json()}, indent=1))


def check():
    """`chosen` and `weights_of` against plain loops, with outliers in K."""
    random, model = np.random.default_rng(3), queries.Qwen3(DEMO)
    for _ in range(20):
        count, position, least = 200, int(random.integers(300, 9000)), int(random.integers(1, 100))
        q, k = random.normal(size=(1, 3, model.dim)), random.normal(size=(count, model.dim))
        k[:, random.integers(model.dim)] *= 30
        best, half = np.full(count, -np.inf), model.dim // 2
        for head in q[0]:
            turned = np.empty(model.dim)
            for i in range(half):
                angle = position * 100000.0 ** (-i / half)
                turned[i] = head[i] * np.cos(angle) - head[i + half] * np.sin(angle)
                turned[i + half] = head[i + half] * np.cos(angle) + head[i] * np.sin(angle)
            z = np.array([sum(a * b for a, b in zip(turned, key)) / model.dim**0.5 for key in k])
            log = z - z.max() - np.log(sum(np.exp(value - z.max()) for value in z))
            best = np.maximum(best, log)
        assert set(np.flatnonzero(chosen(model, q, k, position, least)[0])) == set(sorted(range(count), key=lambda i: -best[i])[:least])
        weights = weights_of(model, q[0], np.concatenate((k, random.normal(size=(position + 1 - count, model.dim)))), position)
        assert np.allclose(weights.sum(-1), 1) and np.allclose(np.log(weights[-1, 0] / weights[-1, 1]), log[0] - log[1])
    print("as plain loops choose")


if __name__ == "__main__":
    check() if sys.argv[1:] == ["check"] else main(*sys.argv[1:])
