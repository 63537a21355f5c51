"""A folder's bfloat16 weights in 8 bits, as compressed-tensors stores them ("int-quantized").

    python3 eight_bits.py <folder with bf16 weights> <folder to write>

Every matrix, the embedding among them, becomes whole numbers of -127 to 127; 128 numbers along a row share a scale.
Scales are powers of two, so that a number times its scale is a bfloat16 number exactly: every backend computes with
the same weights, and one that multiplies bfloat16 needs no more than that. Norms stay as they are. Written are the
weights, their index and config.json. Needs numpy.
"""
import json
import os
import struct
import sys

import numpy as np

GROUP, LARGEST, SHARDS = 128, 127, 2


def read(folder):
    """name -> (type, shape, bytes), in the order of the files."""
    found = {}
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".safetensors")):
        with open(os.path.join(folder, name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        for tensor, about in header.items():
            if tensor != "__metadata__":
                found[tensor] = about["dtype"], about["shape"], data[slice(*about["data_offsets"])]
    return found


def widened(shape, data):
    """bfloat16 is the upper half of a float32."""
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)


def floats(folder):
    """name -> float32 array, of a folder in bfloat16 or in these 8 bits."""
    found, out = read(folder), {}
    for name, (dtype, shape, data) in found.items():
        if dtype == "BF16" and not name.endswith("weight_scale"):
            out[name] = widened(shape, data)
        elif dtype == "I8":
            scales = widened(*found[name.removesuffix("weight") + "weight_scale"][1:])
            out[name] = np.frombuffer(data, np.int8).reshape(shape).astype(np.float32) * np.repeat(scales, GROUP, axis=1)
    return out


def bfloat16(powers):
    """Powers of two lose nothing."""
    bits = powers.astype("<f4").view("<u4")
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype("<u2").tobytes()


def rounded(groups, scales):
    """Whole numbers, and what rounding loses in each group (sums of squares)."""
    numbers = np.clip(np.rint(groups / scales), -LARGEST, LARGEST)
    return numbers, ((numbers * scales - groups) ** 2).sum(axis=2, keepdims=True)


def quantise(weights):
    """Numbers [rows, columns] and scales [rows, groups]."""
    groups = weights.reshape(len(weights), -1, GROUP).astype(np.float64)
    largest = np.maximum(np.abs(groups).max(axis=2, keepdims=True), 1e-30)
    scales = 2.0 ** np.ceil(np.log2(largest / LARGEST))
    numbers, loss = rounded(groups, scales)
    # Half the least scale that nothing exceeds cuts off the largest numbers, and rounds the others half as much.
    finer, finer_loss = rounded(groups, scales / 2)
    is_finer = finer_loss < loss
    numbers, scales = np.where(is_finer, finer, numbers), np.where(is_finer, scales / 2, scales)
    return numbers.astype(np.int8).reshape(weights.shape), scales[:, :, 0]


def quantised(tensors):
    """name -> (type, shape, bytes) of the folder to write, and the relative error of all matrices together."""
    out, lost, all_ = {}, 0.0, 0.0
    for name, (dtype, shape, data) in tensors.items():
        assert dtype == "BF16", f"{name} has type {dtype}"
        if len(shape) < 2:
            out[name] = dtype, shape, data
            continue
        weights = widened(shape, data)
        numbers, scales = quantise(weights)
        out[name] = "I8", shape, numbers.tobytes()
        out[name.removesuffix("weight") + "weight_scale"] = "BF16", list(scales.shape), bfloat16(scales)
        lost += ((numbers * np.repeat(scales, GROUP, axis=1) - weights) ** 2).sum()
        all_ += (weights.astype(np.float64) ** 2).sum()
    return out, (lost / all_) ** 0.5


def write(folder, tensors):
    """Shards of about the same size; a matrix and its scales stay together."""
    total = sum(len(data) for _, _, data in tensors.values())
    shards, size, at = [{} for _ in range(SHARDS)], 0, 0
    for name, tensor in tensors.items():
        if not name.endswith("weight_scale"):
            at = min(SHARDS - 1, size * SHARDS // total)
        shards[at][name] = tensor
        size += len(tensor[2])
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name, (dtype, shape, data) in shard.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in shard.values()))
        index["weight_map"].update({name: file for name in shard})
    write_json(os.path.join(folder, "model.safetensors.index.json"), index)


def write_json(path, data):
    with open(path, "w") as f:
        json.dump(data, f, indent=2)
        f.write("\n")


def main(source, folder):
    os.makedirs(folder, exist_ok=True)
    tensors, error = quantised(read(source))
    write(folder, tensors)
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP, "dynamic": False}
    group = {"targets": ["Linear", "Embedding"], "weights": weights, "input_activations": None, "output_activations": None}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "int-quantized",
                                     "quantization_status": "compressed", "ignore": [], "config_groups": {"group_0": group}}
    write_json(os.path.join(folder, "config.json"), config)
    print(f"{sum(len(data) for _, _, data in tensors.values()):,} bytes; the matrices' relative error is {error:.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
