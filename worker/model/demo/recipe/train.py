"""Trains the demo model on one GPU. See README.md.

    python3 train.py --minutes 18 --out <folder> --files <folder with tokenizer.json and eval/>
"""
import argparse
import math
import multiprocessing as mp
import os
import queue
import threading
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import torch.nn.functional as F

import batches as B
import evaluate as E
import model as M

ROWS, WIDTH = E.ROWS, E.WIDTH


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--minutes", type=float, default=18)
    a.add_argument("--steps", type=int, default=0, help="stop after so many steps (for trials)")
    a.add_argument("--lr", type=float, default=1.2e-3)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--start", help="folder of a model to go on from")
    a.add_argument("--from-progress", type=float, default=0.0)
    a.add_argument("--out", required=True)
    a.add_argument("--files", required=True)
    a = a.parse_args()

    ctx = mp.get_context("fork")
    progress, batches = ctx.Value("d", a.from_progress), ctx.Queue(maxsize=40)
    tok = os.path.join(a.files, "tokenizer.json")
    makers = [ctx.Process(target=B.worker, args=(i, a.seed, tok, ROWS, WIDTH, progress, batches), daemon=True) for i in range(a.workers)]
    for m in makers:
        m.start()

    ready = queue.Queue(maxsize=4)

    def feed():
        while True:
            ready.put(torch.from_numpy(batches.get()).pin_memory())

    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    model = (M.load(a.start) if a.start else M.Qwen3()).cuda()
    threading.Thread(target=feed, daemon=True).start()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    masks = M.Masks(ROWS, WIDTH)
    two = [p for p in model.parameters() if p.dim() == 2]
    one = [p for p in model.parameters() if p.dim() != 2]
    opt = torch.optim.AdamW([{"params": two, "weight_decay": 0.05}, {"params": one, "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.98), fused=True)

    def loss_of(ids, pos, weight, mask):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, pos, mask)
        logits, target, w = logits[:, :-1].float(), ids[:, 1:], weight[:, 1:]
        ce = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        factor = torch.where(w == 2, 1.0, torch.where(w == 1, 0.03, 0.0))
        answer = w == 2
        with torch.no_grad():
            right = ((logits.argmax(-1) == target) & answer).sum() / answer.sum()
            ce_answer = (ce * answer).sum() / answer.sum()
        return (ce * factor).sum() / factor.sum(), ce_answer, right

    loss_of = torch.compile(loss_of, dynamic=False)
    ev = E.Evaluator(B.Encoder(tok), masks, E.greedy(model, "bf16"))
    sets = E.read_sets(os.path.join(a.files, "eval"))
    watch = [n for n in ("facts-1", "facts-3", "facts-12", "two-hop", "near-duplicates", "unanswerable", "needles-512", "needles-2k", "merge", "mixed-long") if n in sets]

    def report(step):
        t = time.time()
        print(f"eval {step} " + " ".join(f"{n}={100 * ev.score(sets[n], False):.1f}/{100 * ev.score(sets[n], True):.1f}" for n in watch)
              + f" ({time.time() - t:.1f}s)", flush=True)

    begin, step, tokens, mark, last_eval = None, 0, 0, (time.time(), 0), time.time()
    while True:
        now = time.time()
        part = 0 if begin is None else (now - begin) / (60 * a.minutes)
        p = a.from_progress + (1 - a.from_progress) * part
        progress.value = p
        if part >= 1 or (a.steps and step >= a.steps):
            break
        lr = a.lr * min(1, (step + 1) / 400) * (0.5 * (1 + math.cos(math.pi * min(1, part))) * 0.995 + 0.005)
        for g in opt.param_groups:
            g["lr"] = lr
        x = ready.get().to("cuda", non_blocking=True)
        loss, ce, right = loss_of(x[B.IDS].long(), x[B.POS].long(), x[B.WEIGHT], masks(x[B.SID], x[B.SEG]))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        tokens += ROWS * WIDTH
        if begin is None:
            torch.cuda.synchronize()
            begin = time.time()
            print(f"first step after {begin - now:.1f}s", flush=True)
        if step in (2, 5, 10, 20, 40) or step % 100 == 0:
            ce, right = ce.item(), right.item()
            t = time.time()
            print(f"step {step} p={p:.3f} lr={lr:.2e} answer-loss={ce:.4f} answer-tokens-right={100 * right:.2f}% "
                  f"{(tokens - mark[1]) / (t - mark[0]) / 1e6:.2f}M tok/s waiting={batches.qsize()}", flush=True)
            assert math.isfinite(ce)
            mark = (t, tokens)
            if t - last_eval > 75:
                report(step)
                M.save(model, a.out)
                last_eval = time.time()
                mark = (last_eval, tokens)
    print(f"done: {step} steps, {tokens / 1e6:.0f}M tokens, {time.time() - begin:.0f}s", flush=True)
    M.save(model, a.out)
    for q in model.parameters():
        q.data = q.data.bfloat16().float()
    report(step)
    print("peak memory", torch.cuda.max_memory_allocated() >> 20, "MiB", flush=True)
    for m in makers:
        m.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
