"""Trains the demo model on one GPU or, by torchrun, on several. See README.md.

    python3 train.py --minutes 18 --out <folder> --files <folder with tokenizer.json and eval/> --pages <folder> --natural <file>
    torchrun --nproc-per-node 2 train.py …
"""
import argparse
import json
import math
import multiprocessing as mp
import os
import queue
import threading
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import torch.distributed as dist
import torch.nn.functional as F

import batches as B
import evaluate as E
import model as M
import reading as R
from optimizer import optimizers

WIDTH = E.WIDTH
WATCH = ("facts-1", "facts-3", "facts-12", "two-hop", "near-duplicates", "unanswerable", "needles-512", "needles-2k", "merge", "mixed-long")


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("--minutes", type=float, default=18)
    a.add_argument("--steps", type=int, default=0, help="stop after so many steps (for trials)")
    a.add_argument("--lr", type=float, default=1.5e-3)
    a.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--rows", type=int, default=E.ROWS, help="rows of a step on each GPU; half of them on two GPUs makes as large steps as one GPU does")
    a.add_argument("--shape", default="{}", help="JSON over model.py's CONFIG")
    a.add_argument("--weights", dest="start", help="folder of a model to go on from")
    a.add_argument("--from-progress", type=float, default=0.0, help="with --to-progress: a run in parts")
    a.add_argument("--to-progress", type=float, default=1.0)
    a.add_argument("--report", type=float, default=75, help="seconds between two evaluations")
    a.add_argument("--out", required=True)
    a.add_argument("--files", required=True)
    a.add_argument("--pages", required=True)
    a.add_argument("--natural", required=True)
    a.add_argument("--questions", help="question sets, brought into one form by sets.py")
    a.add_argument("--dropout", type=float, default=0.0)
    a.add_argument("--dev", help="folder of validation pages")
    return a.parse_args()


BRIEF = "Answer with a few words."


class Report:
    """Evaluates during training: the sets, and the validation pages alone and among five."""

    def __init__(self, a, model, masks, tok):
        enc = B.Encoder(tok)
        forward = E.greedy(model, "bf16")
        self.evaluator, self.reader = E.Evaluator(enc, masks, forward), E.Reader(enc, masks, forward)
        self.sets = E.read_sets(os.path.join(a.files, "eval"))
        self.pages = E.read_pages(a.dev) if a.dev else {}
        # What a model can do that only finds words again: the gaps in the same pages.
        self.pages |= {f"{name}-gaps": E.gaps(pages) for name, pages in self.pages.items() if name == "validation"}

    def __call__(self, step, last=False):
        t = time.time()
        names = [n for n in (self.sets if last else WATCH) if n in self.sets]
        print(f"eval {step} " + " ".join(f"{n}={100 * self.evaluator.score(self.sets[n], False):.1f}/{100 * self.evaluator.score(self.sets[n], True):.1f}"
                                         for n in names) + f" ({time.time() - t:.1f}s)", flush=True)
        for name, pages in self.pages.items():
            cells = []
            for others in (0, 4):
                for span in (False, True):
                    right, refused, said, listed = self.reader.score(pages, others, span)
                    cells.append(f"{100 * right:.1f} (refused {100 * refused:.1f}, said {100 * said:.1f})")
                    if last and span and not others:
                        for q, got, want, ok in listed[::max(1, len(listed) // 40)]:
                            print("   ", "ok " if ok else "BAD", q, "->", got, "|", want)
            for others in (0, 4):
                right, refused, said, listed = self.reader.score(pages, others, True, system=BRIEF)
                cells.append(f"{100 * right:.1f} (refused {100 * refused:.1f}, said {100 * said:.1f})")
                if last and not others:
                    for q, got, want, ok in listed[::max(1, len(listed) // 12)]:
                        print("   ", "ok " if ok else "BAD", q, "->", got, "|", want)
            print(f"pages {step} {name}: brief one {cells[4]} five {cells[5]}; one full {cells[0]} span {cells[1]}, five full {cells[2]} span {cells[3]} ({time.time() - t:.1f}s)", flush=True)


def main():
    a = arguments()
    E.ROWS = a.rows
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(rank)
    M.configure(**json.loads(a.shape))
    M.DROPOUT["rate"] = a.dropout
    ctx = mp.get_context("fork")
    progress, packed = ctx.Value("d", a.from_progress), ctx.Queue(maxsize=40)
    tok = os.path.join(a.files, "tokenizer.json")
    lib = R.Library(a.pages, a.natural, a.questions)
    lib.warm()
    makers = [ctx.Process(target=B.worker, args=(rank * 1000 + i, a.seed, tok, lib, a.rows, WIDTH, progress, packed), daemon=True)
              for i in range(a.workers)]
    for m in makers:
        m.start()
    if world > 1:
        dist.init_process_group("nccl")
    ready = queue.Queue(maxsize=4)

    def feed():
        while True:
            ready.put(torch.from_numpy(packed.get()).pin_memory())

    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    model = (M.load(a.start) if a.start else M.Qwen3()).cuda()
    threading.Thread(target=feed, daemon=True).start()
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    masks = M.Masks(a.rows, WIDTH, f"cuda:{rank}")
    opts = optimizers(model, a.optimizer, a.lr)

    def loss_of(ids, pos, weight, mask, context):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, pos, mask)
        logits, target, w = logits[:, :-1].float(), ids[:, 1:], weight[:, 1:]
        ce = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        answer = w >= 2
        first = answer & (weight[:, :-1] < 2)  # where the answer is chosen; the rest is mostly copying on, but in a list each name is chosen
        second = F.pad(first[:, :-1], (1, 0)) & answer
        third = F.pad(second[:, :-1], (1, 0)) & answer
        factor = torch.where(first, 4.0, torch.where(second | third, 2.0, torch.where(w == B.LISTED, 2.0, torch.where(answer, 1.0, torch.where(w == 1, context, 0.0)))))
        with torch.no_grad():
            right = ((logits.argmax(-1) == target) & first).sum() / first.sum()
            ce_answer = (ce * answer).sum() / answer.sum()
        return (ce * factor).sum() / factor.sum(), ce_answer, right

    loss_of = torch.compile(loss_of, dynamic=False)
    report = Report(a, model, masks, tok) if rank == 0 else None
    params = list(model.parameters())
    begin, step, tokens, mark, last_eval = None, 0, 0, (time.time(), 0), time.time()
    shared = torch.zeros(2, device="cuda")
    while True:
        now = time.time()
        part = 0 if begin is None else (now - begin) / (60 * a.minutes)
        if world > 1:  # rank 0's clock, so that all stop at the same step
            if step % 10 == 0:
                shared[0] = part
                dist.broadcast(shared, 0)
                agreed = shared[0].item()
            part = agreed
        p = a.from_progress + (a.to_progress - a.from_progress) * part
        progress.value = p
        if part >= 1 or (a.steps and step >= a.steps):
            break
        lr = a.lr * min(1, (step + 1) / 300) * min(1, max(0.0, (1 - p) / 0.6)) + 1e-6
        for o in opts:
            for g in o.param_groups:
                g["lr"] = lr
        if step % 20 == 0 and not all(m.is_alive() for m in makers):
            raise SystemExit("a process that makes samples has died")
        x = ready.get(timeout=120).to("cuda", non_blocking=True)
        context = torch.tensor(0.15 if p < 0.3 else 0.04, device="cuda")
        loss, ce, right = loss_of(x[B.IDS].long(), x[B.POS].long(), x[B.WEIGHT], masks(x[B.SID], x[B.SEG]), context)
        for o in opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        if world > 1:
            flat = torch.cat([q.grad.reshape(-1) for q in params])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            torch._foreach_copy_([q.grad for q in params], [f.view_as(q) for f, q in zip(flat.split([q.numel() for q in params]), params)])
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for o in opts:
            o.step()
        step += 1
        tokens += a.rows * WIDTH * world
        if begin is None:
            torch.cuda.synchronize()
            begin = time.time()
            if rank == 0:
                print(f"first step after {begin - now:.1f}s", flush=True)
        if rank == 0 and (step in (2, 10, 50) or step % 500 == 0):
            ce, right = ce.item(), right.item()
            t = time.time()
            print(f"step {step} p={p:.3f} lr={lr:.2e} answer-loss={ce:.4f} first-tokens-right={100 * right:.2f}% "
                  f"{(tokens - mark[1]) / (t - mark[0]) / 1e6:.2f}M tok/s waiting={packed.qsize()}", flush=True)
            assert math.isfinite(ce)
            mark = (t, tokens)
            if step % 4000 == 0:
                M.save(model, a.out)
            if t - last_eval > a.report:
                model.eval()
                report(step)
                model.train()
                M.save(model, a.out)
                last_eval = time.time()
                mark = (last_eval, tokens)
    if rank == 0:
        print(f"done: {step} steps, {tokens / 1e6:.0f}M tokens, {time.time() - begin:.0f}s", flush=True)
        M.save(model, a.out)
        for q in model.parameters():
            q.data = q.data.bfloat16().float()
        model.eval()
        report(step, last=True)
        print("peak memory", torch.cuda.max_memory_allocated() >> 20, "MiB", flush=True)
    if world > 1:
        dist.barrier()
    for m in makers:
        m.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
