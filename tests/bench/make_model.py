#!/usr/bin/env python3
"""Write a checkpoint of random weights: a Hugging Face folder that loads as a real model does.

    make_model.py FOLDER [--shape tiny|mid|wide] [--format bf16|int4|int4-experts] [--seed N]

Every matrix is drawn with a variance of 1 / inputs, so activations stay near one however deep the
model, and the router spreads tokens over its experts. `int4` stores every matrix in groups of 32
that the loader takes so (not the embedding, kv_b and the router); `int4-experts` the routed experts
alone, as Kimi K2.6 does. Tensors are drawn and written one by one: memory stays small.

Needs numpy alone. There is no tokenizer: the folder is for programs that deal in token ids.
"""
import argparse
import json
import math
import os
import struct
import sys

import numpy as np

SHAPES = {
    # What the numbers of docs/PERFORMANCE.md are about: 668 M weights, 180 M of them active.
    "mid": dict(hidden=1024, layers=12, dense_width=4096, heads=16, q_rank=384, kv_rank=512,
                rope=64, nope=128, value=128, experts=32, topk=4, width=512, vocab=4096),
    # The same with more experts, 4 GB in BF16: for loading.
    "wide": dict(hidden=1024, layers=12, dense_width=4096, heads=16, q_rank=384, kv_rank=512,
                 rope=64, nope=128, value=128, experts=108, topk=4, width=512, vocab=4096),
    # A second's work, to try the tools themselves.
    "tiny": dict(hidden=256, layers=3, dense_width=512, heads=8, q_rank=128, kv_rank=128,
                 rope=32, nope=32, value=32, experts=8, topk=2, width=256, vocab=512),
}
FORMATS = ("bf16", "int4", "int4-experts")
CONTEXT_LEN = 32768
ROPE_THETA = 50000.0
ROUTED_SCALE = 2.827
NORM_EPS = 1e-5
GROUP = 32
# Standard deviation of an integer drawn evenly from -8 to 7.
INT4_DEVIATION = math.sqrt((16 * 16 - 1) / 12)
CHUNK_VALUES = 1 << 23
DTYPE_BYTES = {"BF16": 2, "F32": 4, "I32": 4}


def config(shape, form):
    """config.json of a shape."""
    out = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "first_k_dense_replace": 1,
        "intermediate_size": shape["dense_width"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"],
        "q_lora_rank": shape["q_rank"],
        "kv_lora_rank": shape["kv_rank"],
        "qk_rope_head_dim": shape["rope"],
        "qk_nope_head_dim": shape["nope"],
        "v_head_dim": shape["value"],
        "n_routed_experts": shape["experts"],
        "num_experts_per_tok": shape["topk"],
        "moe_intermediate_size": shape["width"],
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": ROUTED_SCALE,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": CONTEXT_LEN,
        "vocab_size": shape["vocab"],
        "eos_token_id": shape["vocab"] - 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if form != "bf16":
        out["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {
                "targets": ["Linear"], "input_activations": None, "output_activations": None,
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                            "group_size": GROUP, "dynamic": False, "actorder": None}}},
        }
    return out


def matrices(shape):
    """(name, outputs, inputs, kind) of every matrix, kind: what may be INT4 in which format."""
    d, h = shape["hidden"], shape["heads"]
    yield "model.embed_tokens", shape["vocab"], d, "embed"
    yield "lm_head", shape["vocab"], d, "other"
    for l in range(shape["layers"]):
        layer = f"model.layers.{l}."
        attn, mlp = layer + "self_attn.", layer + "mlp."
        yield attn + "q_a_proj", shape["q_rank"], d, "other"
        yield attn + "q_b_proj", h * (shape["nope"] + shape["rope"]), shape["q_rank"], "other"
        yield attn + "kv_a_proj_with_mqa", shape["kv_rank"] + shape["rope"], d, "other"
        yield attn + "kv_b_proj", h * (shape["nope"] + shape["value"]), shape["kv_rank"], "plain"
        yield attn + "o_proj", d, h * shape["value"], "other"
        if l == 0:
            parts = [(mlp, shape["dense_width"], "other")]
        else:
            yield mlp + "gate", shape["experts"], d, "plain"
            parts = [(mlp + "shared_experts.", shape["width"], "other")]
            parts += [(f"{mlp}experts.{e}.", shape["width"], "expert")
                      for e in range(shape["experts"])]
        for prefix, width, kind in parts:
            yield prefix + "gate_proj", width, d, kind
            yield prefix + "up_proj", width, d, kind
            yield prefix + "down_proj", d, width, kind


def vectors(shape):
    """(name, size, dtype) of norms and biases."""
    yield "model.norm.weight", shape["hidden"], "BF16"
    for l in range(shape["layers"]):
        layer = f"model.layers.{l}."
        yield layer + "input_layernorm.weight", shape["hidden"], "BF16"
        yield layer + "post_attention_layernorm.weight", shape["hidden"], "BF16"
        yield layer + "self_attn.q_a_layernorm.weight", shape["q_rank"], "BF16"
        yield layer + "self_attn.kv_a_layernorm.weight", shape["kv_rank"], "BF16"
        if l > 0:
            yield layer + "mlp.gate.e_score_correction_bias", shape["experts"], "F32"


def is_int4(kind, form):
    return kind == "expert" and form != "bf16" or kind == "other" and form == "int4"


def bf16(values):
    """Truncated: what is random may as well be rounded towards zero."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def normals(rng, count, deviation):
    for begin in range(0, count, CHUNK_VALUES):
        values = rng.standard_normal(min(CHUNK_VALUES, count - begin), dtype=np.float32)
        yield bf16(values * np.float32(deviation))


def tensors(shape, form, rng):
    """(name, dtype, shape, chunks of data) in file order; the chunks are drawn when asked for."""
    for name, size, dtype in vectors(shape):
        values = np.ones(size, np.float32) if name.endswith(".weight") else np.zeros(size, "f4")
        yield name, dtype, [size], [bf16(values) if dtype == "BF16" else values]
    for name, rows, columns, kind in matrices(shape):
        if not is_int4(kind, form):
            deviation = 1.0 if kind == "embed" else columns ** -0.5
            yield (name + ".weight", "BF16", [rows, columns],
                   normals(rng, rows * columns, deviation))
            continue
        words = rows * columns // 8
        yield (name + ".weight_packed", "I32", [rows, columns // 8],
               (rng.integers(0, 1 << 32, n, dtype=np.uint32) for n in [words]))
        scale = np.float32(columns ** -0.5 / INT4_DEVIATION)
        yield (name + ".weight_scale", "BF16", [rows, columns // GROUP],
               (bf16(scale * rng.uniform(0.7, 1.3, n).astype(np.float32))
                for n in [rows * columns // GROUP]))


def write(folder, shape, form, seed):
    rng = np.random.default_rng(seed)
    os.makedirs(folder, exist_ok=True)
    parts = list(tensors(shape, form, rng))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, dims, _ in parts:
        size = math.prod(dims) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(folder, "model.safetensors")
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, chunks in parts:
            for chunk in chunks:
                file.write(chunk)
        assert file.tell() == 8 + len(text) + at
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config(shape, form), file, indent=1)
    os.rename(path + ".part", path)
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--shape", choices=SHAPES, default="mid")
    parser.add_argument("--format", choices=FORMATS, default="bf16")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    size = write(args.folder, SHAPES[args.shape], args.format, args.seed)
    print(f"{args.folder}: {args.shape}, {args.format}, {size / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
