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


class Qwen3:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            self.config = c = json.load(f)
        if c["architectures"] != ["Qwen3ForCausalLM"] or not c["tie_word_embeddings"]:
            raise ValueError(f"{folder} is no Qwen3 with tied embeddings")
        self.tensors = eight_bits.floats(folder)
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
        """-> by layer (bare q [tokens, heads, dim], rotated K and V [tokens, groups, dim]), and the likeliest next token after each."""
        positions, layers = np.arange(len(ids)), []
        x = self.embedded(ids)
        for layer in range(self.config["num_hidden_layers"]):
            q, k, v = self.looked(x, layer, positions)
            layers.append((q, k, v))
            x = self.after(x, self.attended(self.rotated(q, positions), k, v), layer)
        return layers, np.concatenate([self.likeliest(part) for part in np.array_split(x, 1 + len(x) // 1024)])

    def embedded(self, ids):
        return self.tensors["model.embed_tokens.weight"][ids]

    def looked(self, x, layer, positions):
        """Bare q, rotated K, and V of tokens [tokens, hidden] at their positions."""
        at = f"model.layers.{layer}."
        y = self.norm(x, at + "input_layernorm")
        q, k, v = ((y @ self.tensors[f"{at}self_attn.{part}_proj.weight"].T).reshape(len(x), -1, self.dim) for part in "qkv")
        return self.norm(q, at + "self_attn.q_norm"), self.rotated(self.norm(k, at + "self_attn.k_norm"), positions), v

    def after(self, x, attended, layer):
        """The layer's end, from what its heads found [tokens, heads * dim] on."""
        at, w = f"model.layers.{layer}.", self.tensors
        x = x + attended @ w[at + "self_attn.o_proj.weight"].T
        y = self.norm(x, at + "post_attention_layernorm")
        gate, up = y @ w[at + "mlp.gate_proj.weight"].T, y @ w[at + "mlp.up_proj.weight"].T
        return x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T

    def likeliest(self, x):
        """Next tokens."""
        return (self.norm(x, "model.norm") @ self.tensors["model.embed_tokens.weight"].T).argmax(-1)

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
