"""What `transformers` gives on the same device in the true shape of Qwen3-8B, random weights: python3 FILE OUT.json.

Prefill with SDPA, and decoding at a context of 1,024 with a static cache, compiled (CUDA graphs), at batch 1 and 64:
the baseline that bench.ts is compared with. Times are medians in milliseconds.
"""
import json
import sys
import time

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=False,
)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3ForCausalLM(config).eval()
model.set_attn_implementation("sdpa")
out = {"transformers": transformers.__version__, "torch": torch.__version__, "device": torch.cuda.get_device_name()}


def median_ms(work, rounds):
    times = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times[2:])[rounds // 2]


@torch.inference_mode()
def main():
    for tokens in (1024, 8192):
        ids = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
        out[f"prefill{tokens}Ms"] = median_ms(lambda: model(ids, use_cache=True, logits_to_keep=1), 5)
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    for batch in (1, 64):
        cache = StaticCache(config=config, max_cache_len=1152)
        prompt = torch.randint(0, config.vocab_size, (batch, 1024), device="cuda")
        positions = torch.arange(1024, device="cuda")
        for first in range(0, 1024, 256):
            part = positions[first:first + 256]
            model(prompt[:, first:first + 256], past_key_values=cache, cache_position=part, logits_to_keep=1)
        ids = prompt[:, :1].clone()
        at = torch.tensor([1024], device="cuda")

        def decode():
            torch.compiler.cudagraph_mark_step_begin()
            step(ids, past_key_values=cache, cache_position=at, position_ids=at[None].expand(batch, 1), use_cache=True)
            at.add_(1)

        out[f"decodeBatch{batch}Ms"] = median_ms(decode, 32)


main()
print(json.dumps(out))
json.dump(out, open(sys.argv[1], "w"))
