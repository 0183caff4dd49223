#!/usr/bin/env python3
"""Write ../checkpoints: tiny checkpoints of every kind that is loaded, and what `transformers` makes of them.

    pip install -r requirements.txt && python3 make_checkpoints.py [NAME ...]

Weights come from integers (splitmix64 of a counter), so that files are the same everywhere. The
reference runs transformers' own modeling code in float32 on the dequantised weights. Two of its
departures from the published models are undone, each named where it happens.
"""
import json
import os
import sys
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "checkpoints")
PROMPT_TOKENS = (48, 15, 1)
BF16, F16, F32, INT4, FP8 = "BF16", "F16", "F32", "INT4", "F8_E4M3"


def yarn(factor, beta_fast, mscale=1.0):
    return dict(type="yarn", factor=factor, original_max_position_embeddings=4096, beta_fast=beta_fast,
                beta_slow=1.0, mscale=mscale, mscale_all_dim=mscale)


SMALL = dict(hidden_size=64, num_hidden_layers=3, first_k_dense_replace=1, num_attention_heads=8,
             num_key_value_heads=8, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16,
             qk_rope_head_dim=16, v_head_dim=8, intermediate_size=72, moe_intermediate_size=24,
             n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=1, topk_group=1,
             scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True,
             routed_scaling_factor=2.827, vocab_size=96, max_position_embeddings=4096, rms_norm_eps=1e-6,
             rope_theta=50000.0, hidden_act="silu", attention_bias=False, tie_word_embeddings=False,
             moe_layer_freq=1, num_nextn_predict_layers=0, bos_token_id=1, eos_token_id=95)

# `linear` is what projections are stored as, `experts` the routed ones, `plain` all else.
MODELS = {
    "k26": dict(  # as Kimi K2.6: nested, prefixed, routed experts in INT4
        model_type="kimi_k2", nested=True, prefix="language_model.", plain=BF16, linear=BF16, experts=INT4,
        files=2, junk="vision",
        config=dict(num_hidden_layers=2, moe_intermediate_size=256, rms_norm_eps=1e-5,
                    rope_scaling=yarn(64.0, 32.0))),
    "k2-fp8": dict(  # as Kimi K2: blocks of scales, ragged and cut everywhere
        model_type="kimi_k2", plain=BF16, linear=FP8, experts=FP8, files=2, junk="inv_freq",
        config=dict(hidden_size=160, num_hidden_layers=2, q_lora_rank=48, kv_lora_rank=48,
                    intermediate_size=136, moe_intermediate_size=24, rope_scaling=yarn(32.0, 1.0))),
    "k2-bf16": dict(  # as K2-Thinking, not quantised
        model_type="kimi_k2", plain=BF16, linear=BF16, experts=BF16, files=3,
        config=dict(rms_norm_eps=1e-5, rope_scaling=yarn(64.0, 1.0))),
    "v2-lite": dict(  # as DeepSeek-V2-Lite: no query rank, softmax, two shared experts
        model_type="deepseek_v2", plain=BF16, linear=BF16, experts=BF16, files=1,
        config=dict(q_lora_rank=None, scoring_func="softmax", topk_method="greedy", norm_topk_prob=False,
                    routed_scaling_factor=1.0, n_shared_experts=2, rope_theta=10000.0,
                    moe_intermediate_size=16, rope_scaling=yarn(40.0, 32.0, 0.707))),
    "v3": dict(  # as DeepSeek-V3: groups of experts, a layer for multi-token prediction
        model_type="deepseek_v3", plain=BF16, linear=BF16, experts=BF16, files=2, junk="mtp",
        config=dict(n_routed_experts=16, n_group=4, topk_group=2, moe_intermediate_size=8,
                    routed_scaling_factor=2.5, rope_theta=10000.0, num_nextn_predict_layers=1,
                    rope_scaling=yarn(40.0, 32.0))),
    "f16": dict(  # one file, half precision, no YaRN
        model_type="kimi_k2", plain=F16, linear=F16, experts=F16, files=1,
        config=dict(num_hidden_layers=2, rope_scaling=None)),
}


# ---- numbers ---------------------------------------------------------------------------------


def bits(name, count):
    """64 random bits for each index."""
    with np.errstate(over="ignore"):
        seed = np.uint64(zlib.crc32(name.encode()))
        x = (seed << np.uint64(32)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def uniform(name, shape):
    """In [-1, 1), multiples of 2^-23."""
    whole = (bits(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return (whole.astype(np.float32) * np.float32(2.0**-23)).reshape(shape)


def bf16(values):
    raw = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


CODES = np.array([c for c in range(256) if c & 127 != 127], np.uint8)


def e4m3(codes):
    e, m = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    size = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7))
    return np.where(codes & 128, -size, size).astype(np.float32)


class Checkpoint:
    """Tensors as stored, and next to them what they mean in float32."""

    def __init__(self, name, prefix):
        self.name, self.prefix = name, prefix
        self.stored, self.real = {}, {}

    def store(self, name, dtype, array):
        self.stored[self.prefix + name] = (dtype, array)

    def plain(self, name, dtype, values):
        if dtype == BF16:
            raw = bf16(values)
            self.store(name, dtype, raw)
            self.real[name] = from_bf16(raw)
        else:
            raw = values.astype(np.float16 if dtype == F16 else np.float32)
            self.store(name, dtype, raw)
            self.real[name] = raw.astype(np.float32)

    def linear(self, module, dtype, rows, columns):
        name, seed = module + ".weight", self.name + module
        spread = np.float32(columns**-0.5)
        if dtype == INT4:
            q = (bits(seed, rows * columns) >> np.uint64(60)).astype(np.int64).reshape(rows, columns)
            words = (q.astype(np.uint32).reshape(rows, -1, 8) << (4 * np.arange(8, dtype=np.uint32))).sum(
                axis=2, dtype=np.uint32)
            scale = bf16((1.0 + 0.5 * uniform(seed + "s", (rows, columns // 32))) * spread / 4.6)
            self.store(module + ".weight_packed", "I32", words.view(np.int32))
            self.store(module + ".weight_scale", BF16, scale)
            # Published files hold rubbish here.
            self.store(module + ".weight_shape", "I32", np.array([-1752796263, -1707567530], np.int32))
            self.real[name] = (q - 8).astype(np.float32) * np.repeat(from_bf16(scale), 32, axis=1)
        elif dtype == FP8:
            codes = CODES[(bits(seed, rows * columns) % np.uint64(len(CODES))).astype(np.int64)]
            codes = codes.reshape(rows, columns)
            blocks = (-(-rows // 128), -(-columns // 128))
            scale = ((1.0 + 0.5 * uniform(seed + "s", blocks)) * spread / 100).astype(np.float32)
            self.store(name, FP8, codes)
            self.store(module + ".weight_scale_inv", F32, scale)
            each = np.repeat(np.repeat(scale, 128, axis=0)[:rows], 128, axis=1)[:, :columns]
            self.real[name] = e4m3(codes) * each
        else:
            self.plain(name, dtype, uniform(seed, (rows, columns)) * spread * np.float32(1.7))

    def norm(self, module, dtype, size):
        self.plain(module + ".weight", dtype, 1 + uniform(self.name + module, (size,)) / 4)


def make(name, model, c):
    ck = Checkpoint(name, model.get("prefix", ""))
    plain, linear = model["plain"], model["linear"]
    D, H, R, P = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    N, V, Q = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"]
    F, shared = c["moe_intermediate_size"], c["n_shared_experts"] * c["moe_intermediate_size"]

    def mlp(module, dtype, width):
        ck.linear(module + "gate_proj", dtype, width, D)
        ck.linear(module + "up_proj", dtype, width, D)
        ck.linear(module + "down_proj", dtype, D, width)

    ck.plain("model.embed_tokens.weight", plain, uniform(name + "embed", (c["vocab_size"], D)))
    for layer in range(c["num_hidden_layers"]):
        n = f"model.layers.{layer}."
        a = n + "self_attn."
        ck.norm(n + "input_layernorm", plain, D)
        if Q:
            ck.linear(a + "q_a_proj", linear, Q, D)
            ck.norm(a + "q_a_layernorm", plain, Q)
            ck.linear(a + "q_b_proj", linear, H * (N + P), Q)
        else:
            ck.linear(a + "q_proj", linear, H * (N + P), D)
        ck.linear(a + "kv_a_proj_with_mqa", linear, R + P, D)
        ck.norm(a + "kv_a_layernorm", plain, R)
        ck.linear(a + "kv_b_proj", linear, H * (N + V), R)
        ck.linear(a + "o_proj", linear, D, H * V)
        ck.norm(n + "post_attention_layernorm", plain, D)
        if layer < c["first_k_dense_replace"]:
            mlp(n + "mlp.", linear, c["intermediate_size"])
            continue
        ck.linear(n + "mlp.gate", plain, c["n_routed_experts"], D)
        if c["topk_method"] == "noaux_tc":
            # Not below zero: transformers gives experts of masked groups a zero, the published code
            # minus infinity.
            bias = (uniform(name + n + "bias", (c["n_routed_experts"],)) + 1) / 20
            ck.plain(n + "mlp.gate.e_score_correction_bias", F16 if plain == F16 else F32, bias)
        mlp(n + "mlp.shared_experts.", linear, shared)
        for e in range(c["n_routed_experts"]):
            mlp(n + f"mlp.experts.{e}.", model["experts"], F)
    ck.norm("model.norm", plain, D)
    ck.linear("lm_head", plain, c["vocab_size"], D)
    add_junk(ck, model.get("junk"), c)
    return ck


def add_junk(ck, junk, c):
    """What published checkpoints hold beside the text model."""
    if junk == "vision":
        ck.stored["vision_tower.encoder.blocks.0.wqkv.weight"] = (BF16, bf16(uniform("v", (6, 4))))
        ck.stored["mm_projector.proj.0.weight"] = (BF16, bf16(uniform("p", (4, 4))))
    if junk == "inv_freq":
        for layer in range(c["num_hidden_layers"]):
            ck.store(f"model.layers.{layer}.self_attn.rotary_emb.inv_freq", BF16, bf16(uniform("f", (8,))))
    if junk == "mtp":
        n = f"model.layers.{c['num_hidden_layers']}."
        for module in ("enorm", "hnorm", "shared_head.norm", "input_layernorm"):
            ck.store(n + module + ".weight", BF16, bf16(uniform(module, (c["hidden_size"],))))
        ck.store(n + "eh_proj.weight", BF16, bf16(uniform("eh", (4, 8))))


# ---- files -----------------------------------------------------------------------------------


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (dtype, array) in tensors.items():
        head[name] = dict(dtype=dtype, shape=list(array.shape), data_offsets=[at, at + array.nbytes])
        at += array.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(np.uint64(len(text)).tobytes() + text)
        for _, array in tensors.values():
            f.write(np.ascontiguousarray(array).tobytes())


def write_checkpoint(folder, model, c, ck):
    os.makedirs(folder, exist_ok=True)
    names = list(ck.stored)
    if model["files"] == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), ck.stored)
    else:
        files = [f"model-{i + 1:05}-of-{model['files']:06}.safetensors" for i in range(model["files"])]
        where = {name: files[i * len(files) // len(names)] for i, name in enumerate(names)}
        for file in files:
            write_safetensors(os.path.join(folder, file), {n: ck.stored[n] for n in names if where[n] == file})
        index = dict(metadata=dict(total_size=sum(a.nbytes for _, a in ck.stored.values())), weight_map=where)
        json.dump(index, open(os.path.join(folder, "model.safetensors.index.json"), "w"), separators=(",", ":"))
    config = dict(c, model_type=model["model_type"])
    if model["experts"] == INT4:
        config["quantization_config"] = dict(
            quant_method="compressed-tensors", format="pack-quantized",
            config_groups=dict(group_0=dict(targets=["Linear"], input_activations=None, weights=dict(
                num_bits=4, type="int", symmetric=True, strategy="group", group_size=32, dynamic=False,
                actorder=None))))
    if model["linear"] == FP8:
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                             weight_block_size=[128, 128])
    if model.get("nested"):
        config = dict(model_type="kimi_k25", text_config=config)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=1)


# ---- the reference ---------------------------------------------------------------------------


def build_reference(model, c, ck):
    import torch
    import transformers as tf

    torch.set_num_threads(1)
    v2 = model["model_type"] == "deepseek_v2"
    known = {k: v for k, v in c.items() if k not in ("scoring_func", "moe_layer_freq", "num_nextn_predict_layers")}
    config = (tf.DeepseekV2Config if v2 else tf.DeepseekV3Config)(**known)
    config._attn_implementation = "eager"
    net = (tf.DeepseekV2ForCausalLM if v2 else tf.DeepseekV3ForCausalLM)(config).float().eval()
    net.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in ck.real.items()}, strict=True)
    if v2 and c["rope_scaling"]:
        # transformers leaves YaRN's factor out of V2's softmax scale, which the published code has.
        m = 0.1 * c["rope_scaling"]["mscale_all_dim"] * np.log(c["rope_scaling"]["factor"]) + 1
        for layer in net.model.layers:
            layer.self_attn.scaling *= m * m
    return net


def margin_of(c, logits, bias):
    """How far the selection of each row is from another one, in scores."""
    if c["scoring_func"] == "softmax":
        s = np.exp(logits - logits.max(axis=1, keepdims=True))
        s = s / s.sum(axis=1, keepdims=True)
    else:
        s = 1 / (1 + np.exp(-logits)) + bias
    rows, groups, margin = len(s), c["n_group"], np.inf
    if groups > 1:
        per = s.reshape(rows, groups, -1)
        total = np.sort(per, axis=2)[:, :, -2:].sum(axis=2)
        order = np.sort(total, axis=1)[:, ::-1]
        margin = order[:, c["topk_group"] - 1] - order[:, c["topk_group"]]
        kept = total >= order[:, c["topk_group"] - 1][:, None]
        s = np.where(np.repeat(kept, s.shape[1] // groups, axis=1), s, -np.inf)
    order = np.sort(s, axis=1)[:, ::-1]
    return np.minimum(margin, order[:, c["num_experts_per_tok"] - 1] - order[:, c["num_experts_per_tok"]])


def run_reference(net, c, ck, prompts):
    """(logits [T, vocab], residual [layers, T, D], margin [layers, T]) over all prompts in turn."""
    import torch

    layers, got = net.model.layers, {}

    def keep(key, value):
        got[key] = value.reshape(-1, c["hidden_size"]).numpy().copy()

    for i, layer in enumerate(layers):
        layer.register_forward_hook(
            lambda _m, _a, out, i=i: keep(("x", i), out[0] if isinstance(out, tuple) else out))
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_pre_hook(lambda _m, args, i=i: keep(("h", i), args[0]))
    logits, residual, margin = [], [], []
    for ids in prompts:
        got.clear()
        with torch.no_grad():
            logits.append(net(torch.tensor([ids]), use_cache=False).logits[0].numpy())
        residual.append(np.stack([got["x", i] for i in range(len(layers))]))
        rows = []
        for i in range(len(layers)):
            if ("h", i) not in got:
                rows.append(np.full(len(ids), 1.0))
                continue
            n = f"model.layers.{i}.mlp.gate."
            rows.append(margin_of(c, got["h", i] @ ck.real[n + "weight"].T.astype(np.float64),
                                  ck.real.get(n + "e_score_correction_bias", np.float32(0)).astype(np.float64)))
        margin.append(np.stack(rows))
    return np.concatenate(logits), np.concatenate(residual, axis=1), np.concatenate(margin, axis=1)


def main():
    for name in sys.argv[1:] or MODELS:
        model = MODELS[name]
        c = dict(SMALL, **model["config"])
        if c["rope_scaling"]:
            c["max_position_embeddings"] = int(4096 * c["rope_scaling"]["factor"])
        ck = make(name, model, c)
        folder = os.path.join(OUT, name)
        write_checkpoint(folder, model, c, ck)
        prompts = [[int(t) for t in bits(name + f"prompt{i}", n) % np.uint64(c["vocab_size"])]
                   for i, n in enumerate(PROMPT_TOKENS)]
        logits, residual, margin = run_reference(build_reference(model, c, ck), c, ck, prompts)
        logits.astype("<f4").tofile(os.path.join(folder, "logits.f32"))
        residual.astype("<f4").tofile(os.path.join(folder, "residual.f32"))
        with open(os.path.join(folder, "golden.json"), "w") as f:
            json.dump(dict(note="by transformers/make_checkpoints.py; rows of all prompts in turn. logits.f32: [rows, vocab]; "
                                "residual.f32: [layers, rows, hidden], after each layer; margin: [layers][rows], how far the "
                                "router is from another selection, in scores (1 without router)",
                           prompts=prompts, margin=[[float(f"{m:.3g}") for m in row] for row in margin]), f,
                      separators=(",", ":"))
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        print(f"{name}: {size / 1024:.0f} KB, logits' deviation {logits.std():.3f}, smallest margin {margin.min():.2e}")


if __name__ == "__main__":
    main()
