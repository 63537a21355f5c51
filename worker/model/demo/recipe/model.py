"""Qwen3 in plain PyTorch, with Hugging Face's parameter names, and its files."""
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096,
    "hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False,
    "attention_dropout": 0.0, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, "max_position_embeddings": 32768,
    "initializer_range": 0.02, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 8,
    "layer_types": ["full_attention"] * 8, "bos_token_id": None, "pad_token_id": 0, "eos_token_id": [2, 0], "use_cache": True, "dtype": "bfloat16",
}


def configure(**shape):
    """Another shape than the shipped one, before a model is made: hidden_size, num_hidden_layers, intermediate_size, vocab_size, …"""
    CONFIG.update(shape)
    CONFIG["max_window_layers"] = CONFIG["num_hidden_layers"]
    CONFIG["layer_types"] = ["full_attention"] * CONFIG["num_hidden_layers"]


GENERATION = {"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0}
C = CONFIG
# FlexAttention's own choice of tiles was 19 times slower in the forward pass (6.8 ms against 0.36 ms)
KERNEL = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "fwd_num_warps": 4, "fwd_num_stages": 2}
DROPOUT = {"rate": 0.0}  # of what a layer adds, in training only
TURN = 10000  # segments: 0 main chain, 1.. spans, TURN.. turns asked on their own


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + C["rms_norm_eps"])
        return (y * self.weight.float()).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        d, h, g, n = C["hidden_size"], C["head_dim"], C["num_key_value_heads"], C["num_attention_heads"]
        self.q_proj, self.o_proj = nn.Linear(d, n * h, bias=False), nn.Linear(n * h, d, bias=False)
        self.k_proj, self.v_proj = nn.Linear(d, g * h, bias=False), nn.Linear(d, g * h, bias=False)
        self.q_norm, self.k_norm = Norm(h), Norm(h)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        h = C["head_dim"]
        q = self.q_norm(self.q_proj(x).view(b, t, -1, h))
        k = self.k_norm(self.k_proj(x).view(b, t, -1, h))
        v = self.v_proj(x).view(b, t, -1, h).transpose(1, 2)
        q, k = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)
        if isinstance(mask, torch.Tensor):  # a plain boolean mask: slow, for checks
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        else:
            o = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, kernel_options=KERNEL)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        d, m = C["hidden_size"], C["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(d, m, bias=False), nn.Linear(d, m, bias=False), nn.Linear(m, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        d = C["hidden_size"]
        self.input_layernorm, self.post_attention_layernorm = Norm(d), Norm(d)
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin, mask):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin, mask), DROPOUT["rate"], self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), DROPOUT["rate"], self.training)


class Qwen3(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(C["vocab_size"], C["hidden_size"])
        self.model.layers = nn.ModuleList(Layer() for _ in range(C["num_hidden_layers"]))
        self.model.norm = Norm(C["hidden_size"])
        half = C["head_dim"] // 2
        angle = torch.outer(torch.arange(16384).double(), C["rope_parameters"]["rope_theta"] ** (-torch.arange(half).double() / half))
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / (2 * C["num_hidden_layers"]) ** 0.5 if deep else 0.02)

    def hidden(self, ids, pos, mask):
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled():
            x = x.to(torch.get_autocast_dtype("cuda"))
        cos, sin = self.cos[pos].unsqueeze(2), self.sin[pos].unsqueeze(2)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def forward(self, ids, pos, mask):
        return F.linear(self.hidden(ids, pos, mask), self.model.embed_tokens.weight)


def visible(sid, seg, b, q, k):
    """A token sees earlier tokens of its own segment; the main chain and the turns also see the main chain and all spans."""
    sq, sk = seg[b, q], seg[b, k]
    return (k <= q) & (sid[b, q] == sid[b, k]) & ((sq == sk) | (((sq == 0) | (sq >= TURN)) & (sk < TURN)))


class Masks:
    """Block masks over fixed buffers, so that one compiled graph serves every batch."""

    def __init__(self, rows, width, device="cuda"):
        self.sid = torch.zeros(rows, width, dtype=torch.int16, device=device)
        self.seg = torch.zeros_like(self.sid)
        sid, seg = self.sid, self.seg

        def mod(b, h, q, k):
            return visible(sid, seg, b, q, k)

        self.mod, self.rows, self.width = mod, rows, width
        self.make = torch.compile(create_block_mask, dynamic=False)

    def __call__(self, sid, seg):
        self.sid.copy_(sid)
        self.seg.copy_(seg)
        return self.make(self.mod, self.rows, None, self.width, self.width, device="cuda")

    def dense(self, sid, seg):
        t = torch.arange(sid.shape[1], device=sid.device)
        b = torch.arange(sid.shape[0], device=sid.device)
        return visible(sid, seg, b[:, None, None], t[None, :, None], t[None, None, :]).unsqueeze(1)


def save(model, folder):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    w = {n: p.detach().to("cpu", torch.bfloat16).contiguous() for n, p in model.named_parameters()}
    total = sum(t.numel() * 2 for t in w.values())
    shards, size = [{}, {}], 0
    for n, t in w.items():
        shards[0 if size + t.numel() * 2 <= total / 2 + 4096 else 1][n] = t
        size += t.numel() * 2
    index = {"metadata": {"total_size": total, "total_parameters": total // 2}, "weight_map": {}}
    for i, s in enumerate(shards):
        name = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file(s, os.path.join(folder, name), metadata={"format": "pt"})
        index["weight_map"].update({n: name for n in s})
    for name, data in (("model.safetensors.index.json", index), ("config.json", CONFIG), ("generation_config.json", GENERATION)):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(data, f, indent=2)
            f.write("\n")


def load(folder):
    from safetensors.torch import load_file
    with open(os.path.join(folder, "config.json")) as f:
        configure(**json.load(f))
    m = Qwen3()
    w = {}
    for i in (1, 2):
        w.update(load_file(os.path.join(folder, f"model-{i:05d}-of-00002.safetensors")))
    m.load_state_dict({n: t.float() for n, t in w.items()}, strict=True)
    return m
