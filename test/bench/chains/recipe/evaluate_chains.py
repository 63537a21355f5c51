"""How many chains a model works off without a mistake. See ../README.md.

    python3 evaluate_chains.py <model folder> [<chains>]     # on a GPU

A greedy answer is the reference if and only if each of the reference's tokens is the most probable one after its own
beginning, so one forward pass over prompt and answer decides it.
"""
import json
import os
import sys

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "worker", "model", "demo")
sys.path.append(os.path.join(DEMO, "recipe"))

import numpy as np
import torch

import batches as B
import chains
import eight_bits
import model as M
import parts

ROWS, WIDTH = 4, 10240  # a prompt and an answer of 186 lines have 9,770 tokens at most
EVALUATED = (91, 181)  # lines: answers of 4,010 to 7,970 tokens


def sample(chain):
    """In the form of the demo's samples, which `batches.Encoder` reads."""
    return {"system": "", "documents": [], "turns": [{"question": chain.prompt, "answer": chain.answer}]}


def line(result):
    return " ".join(f"{name}={value}" for name, value in result.items())


@torch.no_grad()
def round_weights(model, bits):
    """To bfloat16, or to the 8 bits of the demo recipe's `eight_bits.py`."""
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
        if bits == 8 and p.dim() == 2:
            numbers, scales = eight_bits.quantise(p.data.cpu().numpy())
            p.data = (torch.from_numpy(numbers).double() * torch.from_numpy(scales).repeat_interleave(eight_bits.GROUP, 1)).float().to(p.device)


class Evaluator:
    def __init__(self, model, mask_of, encoder, rows, width, device):
        self.mask_of, self.encoder, self.rows, self.width, self.device = mask_of, encoder, rows, width, device

        def likeliest(ids, pos, mask):
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                return model(ids, pos, mask).argmax(-1)

        self.likeliest = torch.compile(likeliest, dynamic=False) if device == "cuda" else likeliest

    def items(self, seeds, least, most):
        """Token rows by chain; what a token is for stands where the encoder puts a turn's number."""
        arrays = self.encoder.samples([sample(chains.chain(seed, least, most)) for seed in seeds], lambda i: False, lambda i: False)
        for x in arrays:
            answer = np.flatnonzero(x[B.WEIGHT] == 2)
            x[B.TURN_ID][answer] = parts.codes(len(answer))
        return list(enumerate(arrays))

    @torch.no_grad()
    def __call__(self, seeds, least, most):
        """Shares of the chains of these seeds that are right as a whole and in their last value, and mistakes by what a token is for."""
        items = self.items(seeds, least, most)
        count, mistakes, last = len(items), np.zeros(len(items), int), np.zeros(len(items), bool)
        by_part, tokens = np.zeros(len(parts.PARTS), int), 0
        while items:
            x = torch.from_numpy(B.pack(items, self.rows, self.width)).to(self.device)
            wrong, is_answer = self.wrong(x)
            owner, part = x[B.SID][:, 1:][wrong].long().cpu().numpy(), x[B.TURN_ID][:, 1:][wrong].long().cpu().numpy()
            np.add.at(mistakes, owner, 1)
            last[owner[part == parts.LAST]] = True
            by_part += np.bincount(part, minlength=len(parts.PARTS))
            tokens += int(is_answer.sum())
        percent = lambda share: f"{100 * share.mean():.1f}%"
        return {"chains": count, "right": percent(mistakes == 0), "one mistake": percent(mistakes == 1), "last value right": percent(~last),
                "mistakes a token": f"{by_part.sum() / tokens:.2e}", "answer tokens": f"{tokens / count:.0f}", "by part": dict(zip(parts.PARTS, by_part.tolist()))}

    def wrong(self, x):
        """[rows, width - 1]: the answer's tokens that are not the most probable ones, and which are an answer's."""
        got = self.likeliest(x[B.IDS].long(), x[B.POS].long(), self.mask_of(x[B.SID], x[B.SEG]))
        is_answer = x[B.WEIGHT][:, 1:] == 2
        return (got[:, :-1] != x[B.IDS][:, 1:]) & is_answer, is_answer


def load(folder):
    """A model in bfloat16 or in 8 bits."""
    with open(os.path.join(folder, "config.json")) as f:
        M.configure(**json.load(f))
    model = M.Qwen3()
    model.load_state_dict({name: torch.from_numpy(x) for name, x in eight_bits.floats(folder).items()})
    return model


def main(folder, count=1000):
    encoder = B.Encoder(os.path.join(DEMO, "tokenizer.json"))
    evaluator = Evaluator(load(folder).cuda().eval(), M.Masks(ROWS, WIDTH), encoder, ROWS, WIDTH, "cuda")
    print(line(evaluator(range(int(count)), *EVALUATED)))


if __name__ == "__main__":
    main(*sys.argv[1:])
