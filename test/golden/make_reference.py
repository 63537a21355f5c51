"""Makes the golden folders: tiny random models of every family and what `transformers` computes from them.

    python3 make_reference.py OUT [NAME ...]     # needs torch, transformers, safetensors

Weights are random, rounded to bfloat16 and stored so; a folder is then loaded again in float32 with eager attention,
and all references come from what was stored. Where there is a GPU, `bf16_errors` says how far transformers in
bfloat16 is from its own float32: the bar for backends that compute in bfloat16. README.md has the format.
"""
import json
import sys
import traceback
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    rms_norm_eps=1e-5,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
DEFAULT = dict(rope_type="default", rope_theta=10000.0)
# Scaled so that within some 150 positions every part of the formula shows: dimensions kept, blended and stretched.
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128)

# Folder -> (model type, fields that differ from COMMON). Head sizes 64, 80, 96 and 128 all occur.
FAMILIES = {
    "llama-llama3": ("llama", dict(num_attention_heads=4, num_key_value_heads=2, rope_parameters=LLAMA3)),
    "llama-linear": ("llama", dict(head_dim=80, tie_word_embeddings=False,
                                   rope_parameters=dict(DEFAULT, rope_type="linear", factor=2.0))),
    "llama-yarn": ("llama", dict(rope_parameters=dict(YARN, attention_factor=1.25, beta_fast=8.0, beta_slow=1.0,
                                                      truncate=False))),
    "qwen2": ("qwen2", dict(rope_parameters=DEFAULT, num_attention_heads=3, use_sliding_window=False)),
    "qwen2-yarn": ("qwen2", dict(rope_parameters=YARN, tie_word_embeddings=False, use_sliding_window=False)),
    "qwen3-yarn": ("qwen3", dict(head_dim=128, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.0))),
    "mistral": ("mistral", dict(head_dim=128, tie_word_embeddings=False, sliding_window=None,
                                rope_parameters=dict(DEFAULT, rope_theta=1000000.0))),
    "granite": ("granite", dict(rope_parameters=DEFAULT, embedding_multiplier=6.0, attention_multiplier=0.0625,
                                residual_multiplier=0.4, logits_scaling=3.0)),
    "smollm3": ("smollm3", dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1], rope_parameters=DEFAULT)),
    "phi3": ("phi3", dict(head_dim=96, tie_word_embeddings=False, sliding_window=None, rope_parameters=DEFAULT)),
    "phi3-partial": ("phi3", dict(tie_word_embeddings=False, sliding_window=None,
                                  rope_parameters=dict(DEFAULT, partial_rotary_factor=0.75))),
    # Pairs that RoPE turns stand side by side.
    "glm": ("glm", dict(head_dim=128, tie_word_embeddings=False, attention_bias=True,
                        rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5))),
    "ernie": ("ernie4_5", dict(num_attention_heads=4, num_key_value_heads=2, rope_parameters=YARN)),
    "helium": ("helium", dict(hidden_size=128, tie_word_embeddings=False, rope_parameters=DEFAULT)),
    "llama-dynamic": ("llama", dict(rope_parameters=dict(DEFAULT, rope_type="dynamic", factor=4.0))),
}
# Greedy tokens must not hang on rounding: with a smaller lead of the best over the second, other weights are drawn.
LEAST_MARGIN = 0.003


def random_model(model_type, fields, seed):
    """Matrices of deviation 1 / sqrt(inputs), so that attention is far from uniform; norms around 1; biases."""
    config = AutoConfig.for_model(model_type, **{**COMMON, **fields})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() == 2:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
            else:
                parameter.copy_(noise * 0.3 if name.endswith("bias") else 1 + noise * 0.2)
    return model.to(torch.bfloat16)


def make_cases(seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(count):
        return torch.randint(3, COMMON["vocab_size"], (count,), generator=generator).tolist()

    cases = [dict(kind="causal", ids=draw(count)) for count in (1, 5, 40, 150)]
    system, user = draw(7), draw(9)
    a, b, c = draw(16), draw(48), draw(11)
    cases += [dict(kind="span", system=system, fragments=parts, user=user) for parts in ([a, b, c], [c, a, b])]
    return cases


def tokens_of(case):
    if case["kind"] == "causal":
        return case["ids"]
    return case["system"] + [token for part in case["fragments"] for token in part] + case["user"]


def visible(case, count):
    """[count, count] bool: may the row's token see the column's? Generated tokens see all before them."""
    seen = torch.ones(count, count).tril().bool()
    if case["kind"] == "span":
        start = len(case["system"])
        for part in case["fragments"]:
            seen[start : start + len(part), :start] = False
            start += len(part)
    return seen


@torch.no_grad()
def logits_of(model, case, tokens):
    """Logits of all rows, float32 on the CPU, through an additive mask of our own."""
    device, dtype = model.device, model.dtype
    hidden = ~visible(case, len(tokens))
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
    out = model(
        input_ids=torch.tensor([tokens], device=device),
        position_ids=torch.arange(len(tokens), device=device)[None],
        attention_mask=mask[None, None].to(device),
        use_cache=False,
    )
    return out.logits[0].float().cpu()


def refer(case, model, bf16_model):
    """Adds what the model answers. Row prompt - 1 + i of the whole text gives the i-th greedy token."""
    tokens = list(tokens_of(case))
    prompt = len(tokens)
    greedy_count = 12 if case["kind"] == "causal" else 8
    for _ in range(greedy_count):
        tokens.append(int(logits_of(model, case, tokens)[-1].argmax()))
    rows = logits_of(model, case, tokens[:-1])[prompt - 1 :]
    top = rows.topk(2).values
    case["last_logits"] = [round(float(x), 5) for x in rows[0]]
    case["greedy"] = tokens[prompt:]
    case["margins"] = [round(float(x), 5) for x in top[:, 0] - top[:, 1]]
    if bf16_model is not None:
        errors = (logits_of(bf16_model, case, tokens[:-1])[prompt - 1 :] - rows).abs().amax(-1)
        case["bf16_errors"] = [round(float(x), 5) for x in errors]
    return case


def make_family(folder, seed):
    model_type, fields = FAMILIES[folder.name]
    random_model(model_type, fields, seed).save_pretrained(folder)
    load = AutoModelForCausalLM.from_pretrained
    model = load(folder, attn_implementation="eager", dtype=torch.float32)
    # One pass without a mask of our own: transformers' own causal mask must say the same.
    ids = make_cases(seed)[2]["ids"]
    with torch.no_grad():
        own = model(input_ids=torch.tensor([ids])).logits[0]
    assert torch.allclose(own, logits_of(model, dict(kind="causal"), ids), atol=1e-5), "masks disagree"
    bf16_model = None
    if torch.cuda.is_available():
        bf16_model = load(folder, attn_implementation="eager", dtype=torch.bfloat16).to("cuda")
    cases = [refer(case, model, bf16_model) for case in make_cases(seed)]
    golden = dict(transformers=transformers.__version__, cases=cases)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    return cases


def make_decided_family(folder, seed):
    for attempt in range(30):
        cases = make_family(folder, seed + 100 * attempt)
        if least_margin(cases) >= LEAST_MARGIN:
            return cases
    raise RuntimeError(f"no draw of weights leads by {LEAST_MARGIN} everywhere")


def least_margin(cases):
    return min(x for case in cases for x in case["margins"])


def main(out, names):
    failed = []
    for seed, name in enumerate(FAMILIES, start=20):
        if names and name not in names:
            continue
        try:
            cases = make_decided_family(out / name, seed)
        except Exception:
            failed.append(name)
            print(f"{name}: FAILED\n{traceback.format_exc(limit=-4)}", flush=True)
            continue
        largest = max(abs(x) for case in cases for x in case["last_logits"])
        error = max((x for case in cases for x in case.get("bf16_errors", [])), default=float("nan"))
        size = sum(file.stat().st_size for file in (out / name).iterdir())
        print(f"{name:14} {size:8} bytes  logits to {largest:.2f}  least margin {least_margin(cases):.5f}  bf16 off by {error:.4f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
