"""The files read by transformers' Qwen3ForCausalLM against model.py, and one greedy answer from it.

    python3 parity.py <model folder>
"""
import json
import os
import sys

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

import batches as B
import model as M

folder = sys.argv[1]
enc, m, k = B.Encoder(os.path.join(folder, "tokenizer.json")), M.load(folder).cuda(), M.Masks(1, 128)
hf, tok = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda(), AutoTokenizer.from_pretrained(folder)
with open(os.path.join(folder, "eval", "facts-3.json")) as f:
    samples = json.load(f)["samples"][:20]
right = 0
with torch.no_grad():
    for s in samples:
        messages = [{"role": "system", "content": s["system"]}] + [{"role": "document", "content": d} for d in s["documents"]]
        t = s["turns"][0]
        text = tok.apply_chat_template(messages + [{"role": "user", "content": t["question"]}], tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tok(text, add_special_tokens=False).input_ids]).cuda()
        ours = enc.samples([{**s, "role": "document", "turns": [t]}], lambda i: False, lambda i: False)[0][B.IDS]
        assert ids[0].tolist() == ours[:ids.shape[1]].tolist(), "prompt ids differ"
        n = ids.shape[1]
        zero = torch.zeros(1, n, dtype=torch.int16, device="cuda")
        a, b = hf(ids).logits, m(ids, torch.arange(n, device="cuda")[None], k.dense(zero, zero))
        error = ((a - b).norm() / a.norm()).item()
        answer = tok.decode(hf.generate(ids, max_new_tokens=40)[0, n:], skip_special_tokens=True)
        right += answer == t["answer"]
print(f"relative difference of the logits {error:.1e}; {right} of {len(samples)} answers right; the last: {t['question']} -> {answer}")
