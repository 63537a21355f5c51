"""Trains the chains model. See ../README.md.

    python3 train.py --seconds 600 --out <folder> [--device cpu --shape '{"hidden_size": 128, …}' …]
"""
import argparse
import json
import math
import multiprocessing as mp
import os
import queue
import random
import shutil
import threading
import time

STARTED = time.time()
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import torch.nn.functional as F

import evaluate_chains as E  # first: it says where the demo's recipe is
import batches as B
import chains
import model as M
from optimizer import optimizers

SHAPE = {"num_hidden_layers": 6}
LONGEST = 186
FIRST_SEED = 1 << 31  # of training; what is evaluated has smaller ones


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=600, help="from the program's start to the last step")
    a.add_argument("--lr", type=float, default=1.5e-3)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--rows", type=int, default=E.ROWS)
    a.add_argument("--width", type=int, default=E.WIDTH)
    a.add_argument("--longest", type=int, default=LONGEST, help="lines of the longest chain")
    a.add_argument("--shape", default="{}", help="JSON over model.py's CONFIG")
    a.add_argument("--weights", help="folder of a model to go on from")
    a.add_argument("--from-progress", type=float, default=0.0)
    a.add_argument("--report", type=float, default=40, help="seconds between two evaluations")
    a.add_argument("--evaluate", type=int, default=1000, help="chains of the last evaluation")
    a.add_argument("--device", default="cuda")
    a.add_argument("--out", required=True)
    return a.parse_args()


def bounds(draw, p, longest):
    """Least and most lines of a chain, by progress p in 0..1: short ones first, and some of them to the end."""
    if p < 0.08:
        return 1, min(longest, 6)
    if p < 0.20 or draw < 0.1:
        return 1, min(longest, 24)
    if p < 0.35 or draw < 0.25:
        return 1, min(longest, 80)
    return min(longest, 40), longest


def evaluated(a):
    """Lines of the chains of an evaluation; fewer in a trial with shorter chains."""
    return (E.EVALUATED[0] if a.longest > E.EVALUATED[0] else 1), min(a.longest, E.EVALUATED[1])


def worker(rank, a, progress, packed):
    """Fills the queue with packed rows [6, rows, width]."""
    encoder = B.Encoder(os.path.join(E.DEMO, "tokenizer.json"))
    draws, made, ready = random.Random(f"{a.seed}-{rank}"), 0, []
    while True:
        while sum(x.shape[1] for _, x in ready) < 1.5 * a.rows * a.width:
            batch = []
            for _ in range(8):
                seed = FIRST_SEED + (a.seed * 64 + rank) * (1 << 22) + made
                batch.append(E.sample(chains.chain(seed, *bounds(draws.random(), progress.value, a.longest))))
                made += 1
            ready += [(None, x) for x in encoder.samples(batch, lambda i: False, lambda i: False) if x.shape[1] <= a.width]
        draws.shuffle(ready)
        packed.put(B.pack(ready, a.rows, a.width)[:5])


def batches_of(a, progress):
    """A queue of tensors, and the processes that make them."""
    fork = mp.get_context("fork")
    packed, ready = fork.Queue(maxsize=40), queue.Queue(maxsize=4)
    makers = [fork.Process(target=worker, args=(i, a, progress, packed), daemon=True) for i in range(a.workers)]
    for maker in makers:
        maker.start()

    def feed():
        while True:
            x = torch.from_numpy(packed.get())
            ready.put(x.pin_memory() if a.device == "cuda" else x)

    threading.Thread(target=feed, daemon=True).start()
    return ready, makers


def loss_function(model, device):
    def loss_of(ids, pos, weight, mask):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(ids, pos, mask)
        target, is_answer = ids[:, 1:], weight[:, 1:] == 2
        ce = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        with torch.no_grad():
            wrong = ((logits[:, :-1].argmax(-1) != target) & is_answer).sum() / is_answer.sum()
        return (ce * is_answer).sum() / is_answer.sum(), wrong

    return torch.compile(loss_of, dynamic=False) if device == "cuda" else loss_of


def main():
    a = arguments()
    M.configure(**SHAPE | json.loads(a.shape))
    progress = mp.get_context("fork").Value("d", a.from_progress)
    ready, makers = batches_of(a, progress)
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    model = (E.load(a.weights) if a.weights else M.Qwen3()).to(a.device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, after {time.time() - STARTED:.1f} s", flush=True)
    masks = M.Masks(a.rows, a.width, a.device)
    mask_of = masks if a.device == "cuda" else masks.dense
    evaluator = E.Evaluator(model, mask_of, B.Encoder(os.path.join(E.DEMO, "tokenizer.json")), a.rows, a.width, a.device)
    step, tokens = train(a, model, mask_of, ready, makers, progress, evaluator)
    print(f"done: {step} steps, {tokens / 1e6:.0f}M tokens", flush=True)
    model.eval()
    M.save(model, a.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(E.DEMO, name), a.out)
    for bits in (16, 8):
        E.round_weights(model, bits)
        print(f"last, weights in {bits} bits:", E.line(evaluator(range(a.evaluate), *evaluated(a))), flush=True)
    if a.device == "cuda":
        print("peak memory", torch.cuda.max_memory_allocated() >> 20, "MiB", flush=True)
    for maker in makers:
        maker.kill()
    os._exit(0)


def train(a, model, mask_of, ready, makers, progress, evaluator):
    model.eval()
    evaluator(range(a.rows), 1, 1)  # compiles, before the clock runs
    model.train()
    loss_of, opts, params = loss_function(model, a.device), optimizers(model, "muon", a.lr), list(model.parameters())
    begin, step, tokens, reported, mark = None, 0, 0, time.time(), (time.time(), 0)
    print(f"ready to train after {time.time() - STARTED:.1f} s", flush=True)
    while True:
        part = 0 if begin is None else (time.time() - begin) / (STARTED + a.seconds - begin)
        if part >= 1:
            return step, tokens
        p = progress.value = a.from_progress + (1 - a.from_progress) * part
        rate = a.lr * min(1, (step + 1) / 200) * min(1, (1 - p) / 0.6) + 1e-6
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = rate
        if step % 20 == 0 and not all(maker.is_alive() for maker in makers):
            raise SystemExit("a process that makes chains has died")
        x = ready.get(timeout=120).to(a.device, non_blocking=True)
        loss, wrong = loss_of(x[B.IDS].long(), x[B.POS].long(), x[B.WEIGHT], mask_of(x[B.SID], x[B.SEG]))
        for opt in opts:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for opt in opts:
            opt.step()
        step += 1
        tokens += a.rows * a.width
        if begin is None:
            loss.item()
            begin = time.time()
            print(f"first step after {begin - mark[0]:.1f} s", flush=True)
        if step % 100 == 0:
            now, value = time.time(), loss.item()
            print(f"step {step} p={p:.3f} lr={rate:.2e} loss={value:.5f} wrong={wrong.item():.6f} "
                  f"{(tokens - mark[1]) / (now - mark[0]) / 1e6:.3f}M tokens/s ready={ready.qsize()}", flush=True)
            assert math.isfinite(value)
            mark = (now, tokens)
            if now - reported > a.report:
                model.eval()
                print(f"eval {step}:", E.line(evaluator(range(64), *evaluated(a))), flush=True)
                model.train()
                M.save(model, a.out)
                reported = time.time()
                mark = (reported, tokens)


if __name__ == "__main__":
    main()
