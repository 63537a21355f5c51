"""Bare queries of a real model over a text: a Qwen3 in NumPy, float32, that keeps what attention looks for with.

Reads bfloat16 weights and those that `worker/model/demo/recipe/eight_bits.py` rounded.
"""
import json
import os
import sys

import numpy as np

RECIPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "worker", "model", "demo", "recipe")
sys.path.append(RECIPE)

import eight_bits


def tensors_of(folder):
    """name -> float32 array."""
    found = eight_bits.read(folder)
    out = {}
    for name, (dtype, shape, data) in found.items():
        if dtype == "BF16":
            out[name] = eight_bits.widened(shape, data)
        elif dtype == "I8":
            scales = eight_bits.widened(*found[name.removesuffix("weight") + "weight_scale"][1:])
            out[name] = np.frombuffer(data, np.int8).reshape(shape).astype(np.float32) * np.repeat(scales, shape[1] // scales.shape[1], axis=1)
        else:
            raise ValueError(f"{name} has type {dtype}")
    return out


class Qwen3:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            self.config = c = json.load(f)
        if c["architectures"] != ["Qwen3ForCausalLM"] or not c["tie_word_embeddings"]:
            raise ValueError(f"{folder} is no Qwen3 with tied embeddings")
        self.tensors = tensors_of(folder)
        self.heads, self.groups, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        half = self.dim // 2
        self.turns = c["rope_parameters"]["rope_theta"] ** (-np.arange(half) / half)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.tensors[name + ".weight"]

    def rotated(self, x, positions):
        """x [tokens, heads, dim] at its tokens' positions."""
        angles = positions[:, None, None] * self.turns
        cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def __call__(self, ids):
        """-> by layer (bare q [tokens, heads, dim], rotated K [tokens, groups, dim]), and the likeliest next token after each."""
        w, positions, layers = self.tensors, np.arange(len(ids)), []
        x = w["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            y = self.norm(x, at + "input_layernorm")
            q, k, v = ((y @ w[f"{at}self_attn.{part}_proj.weight"].T).reshape(len(ids), -1, self.dim) for part in "qkv")
            q, k = self.norm(q, at + "self_attn.q_norm"), self.norm(k, at + "self_attn.k_norm")
            k = self.rotated(k, positions)
            layers.append((q, k))
            x = x + self.attended(self.rotated(q, positions), k, v) @ w[at + "self_attn.o_proj.weight"].T
            y = self.norm(x, at + "post_attention_layernorm")
            gate, up = y @ w[at + "mlp.gate_proj.weight"].T, y @ w[at + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
        x = self.norm(x, "model.norm")
        return layers, np.concatenate([(part @ w["model.embed_tokens.weight"].T).argmax(-1) for part in np.array_split(x, 1 + len(x) // 1024)])

    def attended(self, q, k, v, rows=512):
        """Causal attention, some rows at a time."""
        out, share = np.empty_like(q), self.heads // self.groups
        for first in range(0, len(q), rows):
            end = min(first + rows, len(q))
            hidden = np.arange(end)[None, :] > np.arange(first, end)[:, None]
            for head in range(self.heads):
                scores = q[first:end, head] @ k[:end, head // share].T * np.float32(self.dim**-0.5)
                scores[hidden] = -np.inf
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                out[first:end, head] = (weights @ v[:end, head // share]) / weights.sum(-1, keepdims=True)
        return out.reshape(len(q), -1)
