"""Makes golden folders where torch and transformers are not: a slow and plain model of each family, in float64.

    python3 plain_reference.py OUT [NAME ...]     # needs numpy alone
    python3 plain_reference.py --check FOLDER ...  # compares with what other references say

The families are written from their published descriptions. --check shows over folders that transformers referred to that
their parts are what they should be: RoPE and YaRN, windows, norms of every kind, experts, sinks, gates, multipliers.
Weights are random, rounded to bfloat16 (or to MXFP4) and stored so, and referred to as stored. README.md has the format.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

LLAMA_NORMS = dict(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
BOTH_NORMS = dict(before_attention="input_layernorm", after_attention="post_attention_layernorm",
                  before_mlp="pre_feedforward_layernorm", after_mlp="post_feedforward_layernorm")
AFTER_NORMS = dict(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm")
GLM4_NORMS = dict(before_attention="input_layernorm", after_attention="post_self_attn_layernorm",
                  before_mlp="post_attention_layernorm", after_mlp="post_mlp_layernorm")
EACH = dict(router="mlp.gate", gate="mlp.experts.{}.gate_proj", up="mlp.experts.{}.up_proj",
            down="mlp.experts.{}.down_proj")
MIXTRAL = dict(router="block_sparse_moe.gate", gate="block_sparse_moe.experts.{}.w1",
               up="block_sparse_moe.experts.{}.w3", down="block_sparse_moe.experts.{}.w2")

# What sets a family apart from a Llama. `slides(i, count)`: layer i slides where layer_types does not say.
FAMILIES = {
    "Llama": {},
    "Qwen3": dict(qk_norm="head"),
    "Mistral": dict(slides=lambda i: True),
    "Ministral": dict(slides=lambda i: True),
    "SeedOss": dict(bias=True),
    "Granite": dict(multipliers=True),
    "Glm": dict(bias=True, fused=True, interleaved=True),
    "Glm4": dict(bias=True, fused=True, interleaved=True, norms=GLM4_NORMS),
    "Olmo2": dict(norms=AFTER_NORMS, qk_norm="all"),
    "Olmo3": dict(norms=AFTER_NORMS, qk_norm="all", slides=lambda i: i % 4 != 3, plain_sliding_rope=True),
    "Gemma2": dict(norms=BOTH_NORMS, gemma=True, slides=lambda i: i % 2 == 0),
    "Gemma3": dict(norms=BOTH_NORMS, gemma=True, qk_norm="head", slides=lambda i: i % 6 != 5),
    "Qwen3Moe": dict(qk_norm="head", experts=EACH),
    "Olmoe": dict(qk_norm="all", experts=EACH),
    "Mixtral": dict(experts=MIXTRAL, normalised=True),
    "GraniteMoe": dict(multipliers=True, experts=dict(router="block_sparse_moe.router.layer"), normalised=True),
    "GptOss": dict(bias=True, experts=dict(router="mlp.router"), normalised=True, slides=lambda i: i % 2 == 0),
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def frequencies(rope, dims):
    """Angles of a position by pairs, and the factor of cos and sin. YaRN: Peng et al. 2023, section 3.2 and 3.4."""
    theta = rope.get("rope_theta", 10000.0)
    plain = theta ** (-np.arange(0, dims, 2) / dims)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / rope["factor"], 1.0
    assert kind == "yarn", kind
    pair_of = lambda turns: dims * np.log(rope["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta))
    first, last = pair_of(rope.get("beta_fast", 32)), pair_of(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        first, last = np.floor(first), np.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    stretched = np.clip((np.arange(dims // 2) - first) / max(last - first, 0.001), 0, 1)
    factor = rope.get("attention_factor", 0.1 * np.log(rope["factor"]) + 1)
    return plain / rope["factor"] * stretched + plain * (1 - stretched), factor


class Model:
    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors
        self.name = config["architectures"][0].removesuffix("ForCausalLM")
        self.family = FAMILIES[self.name]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads

    def norm(self, x, name):
        weight = self.tensors[name + ".weight"] + (1 if self.family.get("gemma") else 0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def linear(self, x, name):
        bias = self.tensors.get(name + ".bias", 0)
        return x @ self.tensors[name + ".weight"].T + bias

    def slides(self, layer):
        types = self.config.get("layer_types")
        if types:
            return types[layer] == "sliding_attention"
        return "slides" in self.family and self.config.get("sliding_window") is not None and self.family["slides"](layer)

    def rope_of(self, layer):
        given = self.config.get("rope_parameters") or {}
        if "full_attention" in given:
            return given["sliding_attention" if self.slides(layer) else "full_attention"]
        if self.slides(layer) and self.family.get("plain_sliding_rope"):
            return dict(rope_theta=given["rope_theta"])
        return given

    def rotate(self, x, layer):
        """x: [tokens, heads, head_dim], a token's position being its index."""
        rope = self.rope_of(layer)
        partial = rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor", 1))
        dims = int(self.head_dim * partial)
        turns, factor = frequencies(rope, dims)
        angles = np.arange(len(x))[:, None, None] * turns
        cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
        out = x.copy()
        if self.family.get("interleaved"):
            a, b = x[..., 0:dims:2], x[..., 1:dims:2]
            out[..., 0:dims:2], out[..., 1:dims:2] = a * cos - b * sin, b * cos + a * sin
        else:
            a, b = x[..., : dims // 2], x[..., dims // 2 : dims]
            out[..., : dims // 2], out[..., dims // 2 : dims] = a * cos - b * sin, b * cos + a * sin
        return out

    def attention(self, x, layer, seen):
        config, prefix = self.config, f"model.layers.{layer}.self_attn."
        count = len(x)
        q, k, v = (self.linear(x, prefix + part) for part in ("q_proj", "k_proj", "v_proj"))
        if self.family.get("qk_norm") == "all":
            q, k = self.norm(q, prefix + "q_norm"), self.norm(k, prefix + "k_norm")
        q = q.reshape(count, self.heads, self.head_dim)
        k, v = (part.reshape(count, self.kv_heads, self.head_dim) for part in (k, v))
        if self.family.get("qk_norm") == "head":
            q, k = self.norm(q, prefix + "q_norm"), self.norm(k, prefix + "k_norm")
        q, k = self.rotate(q, layer), self.rotate(k, layer)
        k, v = (np.repeat(part, self.heads // self.kv_heads, axis=1) for part in (k, v))
        scale = self.head_dim**-0.5
        if self.family.get("multipliers"):
            scale = config["attention_multiplier"]
        if self.family.get("gemma"):
            scale = config["query_pre_attn_scalar"] ** -0.5
        scores = np.einsum("ihd,jhd->hij", q, k) * scale
        cap = config.get("attn_logit_softcapping")
        if cap:
            scores = cap * np.tanh(scores / cap)
        if self.slides(layer):
            distance = np.arange(count)[:, None] - np.arange(count)
            seen = seen & (distance < config["sliding_window"])
        scores = np.where(seen, scores, -np.inf)
        sinks = self.tensors.get(prefix + "sinks")
        if sinks is not None:
            scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (self.heads, count, 1))], axis=-1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hij,jhd->ihd", weights[..., :count], v).reshape(count, -1)
        return self.linear(out, prefix + "o_proj")

    def activate(self, gate, up):
        if self.name == "GptOss":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return gate * sigmoid(1.702 * gate) * (up + 1)
        if self.family.get("gemma"):
            return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        return gate * sigmoid(gate) * up

    def mlp(self, x, prefix):
        if self.family.get("fused"):
            gate, up = np.split(self.linear(x, prefix + "mlp.gate_up_proj"), 2, axis=-1)
        else:
            gate, up = self.linear(x, prefix + "mlp.gate_proj"), self.linear(x, prefix + "mlp.up_proj")
        return self.linear(self.activate(gate, up), prefix + "mlp.down_proj")

    def expert(self, x, prefix, index):
        """One expert over rows."""
        tensors = self.tensors
        if self.name == "GptOss":
            inner = x @ tensors[prefix + "mlp.experts.gate_up_proj"][index] + tensors[prefix + "mlp.experts.gate_up_proj_bias"][index]
            gated = self.activate(inner[:, 0::2], inner[:, 1::2])
            return gated @ tensors[prefix + "mlp.experts.down_proj"][index] + tensors[prefix + "mlp.experts.down_proj_bias"][index]
        if self.name == "GraniteMoe":
            inner = x @ tensors[prefix + "block_sparse_moe.input_linear.weight"][index].T
            gated = self.activate(*np.split(inner, 2, axis=-1))
            return gated @ tensors[prefix + "block_sparse_moe.output_linear.weight"][index].T
        names = {part: prefix + name.format(index) for part, name in self.family["experts"].items()}
        return self.linear(self.activate(self.linear(x, names["gate"]), self.linear(x, names["up"])), names["down"])

    def experts(self, x, prefix):
        scores = self.linear(x, prefix + self.family["experts"]["router"])
        taken = self.config["num_experts_per_tok"]
        ranked = np.sort(scores, axis=-1)
        self.least_gap = min(self.least_gap, (ranked[:, -taken] - ranked[:, -taken - 1]).min())
        best = np.argsort(-scores, axis=-1)[:, :taken]
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for row, chosen in enumerate(best):
            weights = shares[row, chosen]
            if self.family.get("normalised") or self.config.get("norm_topk_prob"):
                weights = weights / weights.sum()
            for weight, index in zip(weights, chosen):
                out[row] += weight * self.expert(x[row : row + 1], prefix, index)[0]
        return out

    def logits(self, tokens, seen):
        """Of all rows. seen: [tokens, tokens]; windows come on top."""
        config, family = self.config, self.family
        self.least_gap = np.inf
        multiplied = family.get("multipliers")
        x = self.tensors["model.embed_tokens.weight"][tokens]
        x = x * (config["embedding_multiplier"] if multiplied else 1)
        if family.get("gemma"):
            x = x * to_bfloat16(np.array([config["hidden_size"] ** 0.5]))[0]
        residual = config["residual_multiplier"] if multiplied else 1
        norms = family.get("norms", LLAMA_NORMS)
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            at = lambda place, value: self.norm(value, prefix + norms[place]) if place in norms else value
            x = x + residual * at("after_attention", self.attention(at("before_attention", x), layer, seen))
            inner = self.experts if "experts" in family else self.mlp
            x = x + residual * at("after_mlp", inner(at("before_mlp", x), prefix))
        head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
        scores = self.norm(x, "model.norm") @ self.tensors[head].T / (config["logits_scaling"] if multiplied else 1)
        cap = config.get("final_logit_softcapping")
        return cap * np.tanh(scores / cap) if cap else scores


def to_bfloat16(values):
    """Rounded to the nearest, ties to even; as float64."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def to_mxfp4(values):
    """[..., rows, columns] as blocks, scales and what these hold: the largest of 32 becomes 4 or 6."""
    groups = values.reshape(*values.shape[:-1], -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))).astype(int) - 2
    scaled = groups / 2.0 ** exponents[..., None]
    codes = np.abs(scaled[..., None] - E2M1).argmin(-1)
    held = (E2M1[codes] * 2.0 ** exponents[..., None]).reshape(values.shape)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
    return blocks, (exponents + 127).astype(np.uint8), held


def shapes_of(config):
    """Stored names and shapes."""
    model = Model(config, {})
    family, hidden, size = model.family, config["hidden_size"], config["intermediate_size"]
    heads, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        add = lambda name, *shape: shapes.__setitem__(f"model.layers.{layer}.{name}", shape)
        for name in family.get("norms", LLAMA_NORMS).values():
            add(name + ".weight", hidden)
        for part, rows in (("q", heads), ("k", kv), ("v", kv)):
            add(f"self_attn.{part}_proj.weight", rows, hidden)
            if family.get("bias"):
                add(f"self_attn.{part}_proj.bias", rows)
            if part != "v" and "qk_norm" in family:
                add(f"self_attn.{part}_norm.weight", rows if family["qk_norm"] == "all" else model.head_dim)
        add("self_attn.o_proj.weight", hidden, heads)
        if model.name == "GptOss" or config.get("attention_out_bias"):
            add("self_attn.o_proj.bias", hidden)
        if "experts" not in family:
            if family.get("fused"):
                add("mlp.gate_up_proj.weight", 2 * size, hidden)
            else:
                add("mlp.gate_proj.weight", size, hidden)
                add("mlp.up_proj.weight", size, hidden)
            add("mlp.down_proj.weight", hidden, size)
            continue
        count = config.get("num_local_experts") or config["num_experts"]
        add(family["experts"]["router"] + ".weight", count, hidden)
        if model.name == "GptOss":
            add("self_attn.sinks", model.heads)
            add("mlp.router.bias", count)
            add("mlp.experts.gate_up_proj", count, hidden, 2 * size)
            add("mlp.experts.gate_up_proj_bias", count, 2 * size)
            add("mlp.experts.down_proj", count, size, hidden)
            add("mlp.experts.down_proj_bias", count, hidden)
        elif model.name == "GraniteMoe":
            add("block_sparse_moe.input_linear.weight", count, 2 * size, hidden)
            add("block_sparse_moe.output_linear.weight", count, hidden, size)
        else:
            for index in range(count):
                for part, shape in (("gate", (size, hidden)), ("up", (size, hidden)), ("down", (hidden, size))):
                    add(family["experts"][part].format(index) + ".weight", *shape)
    return shapes


def random_model(config, seed):
    """Matrices of deviation 1 / sqrt(inputs), so that attention is far from uniform; norms around 1; biases, sinks."""
    random = np.random.default_rng(seed)
    gemma = FAMILIES[config["architectures"][0].removesuffix("ForCausalLM")].get("gemma")
    tensors, stored = {}, {}
    for name, shape in shapes_of(config).items():
        noise = random.standard_normal(shape)
        if "norm" in name:
            values = 0.2 * noise + (0 if gemma else 1)
        elif name.endswith(("bias", "sinks")):
            values = noise * (1.5 if name.endswith("sinks") else 0.3)
        else:
            inputs = shape[1] if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else shape[-1]
            values = noise / inputs**0.5
        if config.get("quantization_config") and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            # Blocks have outputs before inputs.
            blocks, scales, held = to_mxfp4(values.swapaxes(1, 2))
            stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
            tensors[name] = held.swapaxes(1, 2)
        else:
            tensors[name] = stored[name] = to_bfloat16(values)
    return Model(config, tensors), stored


def write_safetensors(file, tensors):
    header, parts, at = {}, [], 0
    for name, values in tensors.items():
        is_bytes = values.dtype == np.uint8
        data = values.tobytes() if is_bytes else (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = dict(dtype="U8" if is_bytes else "BF16", shape=list(values.shape), data_offsets=[at, at + len(data)])
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read_safetensors(file):
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + size + at for at in entry["data_offsets"])
        if entry["dtype"] == "F32":
            values = np.frombuffer(data[start:end], np.float32)
        else:
            assert entry["dtype"] == "BF16", entry
            values = (np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


def tokens_of(case):
    if case["kind"] == "causal":
        return list(case["ids"])
    return case["system"] + [token for part in case["fragments"] for token in part] + case["user"]


def visible(case, count):
    """[count, count] may the row's token see the column's? Generated tokens see all before them."""
    seen = np.tril(np.ones((count, count), bool))
    if case["kind"] == "span":
        start = len(case["system"])
        for part in case["fragments"]:
            seen[start : start + len(part), :start] = False
            start += len(part)
    return seen


def refer(case, model):
    """Adds what the model answers, and tells how near a router was to other experts."""
    tokens = tokens_of(case)
    prompt, gap = len(tokens), np.inf
    rows = []
    for _ in range(12 if case["kind"] == "causal" else 8):
        rows.append(model.logits(np.array(tokens), visible(case, len(tokens)))[-1])
        gap = min(gap, model.least_gap)
        tokens.append(int(rows[-1].argmax()))
    top = np.sort(np.array(rows), axis=-1)
    case["last_logits"] = [round(float(x), 5) for x in rows[0]]
    case["greedy"] = tokens[prompt:]
    case["margins"] = [round(float(x), 5) for x in top[:, -1] - top[:, -2]]
    return gap


def make_cases(seed, vocab):
    random = np.random.default_rng(seed)
    draw = lambda count: random.integers(3, vocab, count).tolist()
    cases = [dict(kind="causal", ids=draw(count)) for count in (1, 5, 40, 150)]
    system, user, a, b, c = draw(7), draw(9), draw(16), draw(48), draw(11)
    return cases + [dict(kind="span", system=system, fragments=parts, user=user) for parts in ([a, b, c], [c, a, b])]


COMMON = dict(vocab_size=160, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, max_position_embeddings=512, dtype="bfloat16",
              tie_word_embeddings=True, eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128)
MULTIPLIERS = dict(embedding_multiplier=6.0, attention_multiplier=0.125, residual_multiplier=0.4, logits_scaling=3.0)
SLIDING = ["sliding_attention", "full_attention"]

# Folder -> (architecture, fields that differ from COMMON). Every field that sets a family apart has a value that shows.
FOLDERS = {
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False)),
    "olmoe": ("Olmoe", dict(num_experts=8, num_experts_per_tok=3, head_dim=16, num_key_value_heads=4, norm_topk_prob=False)),
    "granite-moe": ("GraniteMoe", dict(num_local_experts=6, num_experts_per_tok=3, **MULTIPLIERS)),
    "gpt-oss-mxfp4": ("GptOss", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=96, sliding_window=24,
                                     attention_bias=True, rope_parameters=dict(YARN, truncate=False),
                                     quantization_config=dict(quant_method="mxfp4"))),
    "ministral": ("Ministral", dict(sliding_window=24, num_hidden_layers=3, layer_types=[SLIDING[0], SLIDING[1], SLIDING[0]])),
    "seed-oss": ("SeedOss", dict(attention_bias=True, attention_out_bias=True)),
    "glm4": ("Glm4", dict(attention_bias=True, partial_rotary_factor=0.5)),
    "olmo3": ("Olmo3", dict(sliding_window=24, num_hidden_layers=4, rope_parameters=YARN)),
    "gemma2": ("Gemma2", dict(sliding_window=24, query_pre_attn_scalar=24, attn_logit_softcapping=1.5,
                              final_logit_softcapping=4.0, hidden_activation="gelu_pytorch_tanh")),
}
# Greedy tokens and experts must not hang on rounding: with less of a lead other weights are drawn.
LEAST_MARGIN, LEAST_GAP = 0.003, 0.0003


def make_folder(folder, seed):
    name, fields = FOLDERS[folder.name]
    config = dict(architectures=[name + "ForCausalLM"], **{**COMMON, **fields})
    for attempt in range(60):
        model, stored = random_model(config, seed + 100 * attempt)
        cases = make_cases(seed, config["vocab_size"])
        gap = np.inf
        for case in cases:
            gap = min(gap, refer(case, model))
            if gap < LEAST_GAP or min(case["margins"]) < LEAST_MARGIN:
                break
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            write_safetensors(folder / "model.safetensors", stored)
            (folder / "golden.json").write_text(json.dumps(dict(reference="plain_reference.py", cases=cases)) + "\n")
            print(f"{folder.name}: draw {attempt}, router gap {gap:.5f}")
            return
    raise RuntimeError(f"{folder.name}: no draw of weights decides everything")


def check(folder):
    """The greatest difference from the reference that is there, and whether the next token is its own."""
    config = json.loads((folder / "config.json").read_text())
    model = Model(config, read_safetensors(folder / "model.safetensors"))
    worst = 0
    for case in json.loads((folder / "golden.json").read_text())["cases"]:
        tokens = tokens_of(case)
        logits = model.logits(np.array(tokens), visible(case, len(tokens)))[-1]
        worst = max(worst, np.abs(logits - case["last_logits"]).max())
        assert int(logits.argmax()) == case["greedy"][0], folder
    print(f"{folder.name}: off by {worst:.1e}")
    return worst < 1e-3


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        sys.exit(0 if all([check(Path(name)) for name in sys.argv[2:]]) else 1)
    for seed, name in enumerate(FOLDERS, start=200):
        if not sys.argv[2:] or name in sys.argv[2:]:
            make_folder(Path(sys.argv[1]) / name, seed)
