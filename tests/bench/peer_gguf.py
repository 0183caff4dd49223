#!/usr/bin/env python3
"""Write a checkpoint of make_model.py as a GGUF file for llama.cpp: the same model, bit for bit.

    peer_gguf.py FOLDER FILE.gguf

BF16 stays BF16. INT4 in groups of 32 becomes Q4_0, whose blocks hold the same integers and a scale
that f16 represents exactly. Only kv_b, which an INT4 checkpoint keeps in BF16, is quantized where
the rest of attention is INT4, as llama.cpp's own tools would: it reads 36 MB a token less for it.
"""
import json
import os
import struct
import sys

import gguf
import numpy as np
from gguf.quants import quantize

BF16, Q4_0 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q4_0
GROUP = 32
NUMPY = {"BF16": np.uint16, "F32": np.float32, "I32": np.uint32}


class Checkpoint:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            self.config = json.load(file)
        path = os.path.join(folder, "model.safetensors")
        with open(path, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            self.header = json.loads(file.read(size))
        self.data = np.memmap(path, np.uint8, "r", offset=8 + size)

    def tensor(self, name):
        info = self.header[name]
        begin, end = info["data_offsets"]
        return self.data[begin:end].view(NUMPY[info["dtype"]]).reshape(info["shape"])

    def is_int4(self, module):
        return module + ".weight_packed" in self.header

    def matrix(self, module):
        """(bytes of the rows, type) as GGUF has them."""
        if not self.is_int4(module):
            return self.tensor(module + ".weight").view(np.uint8), BF16
        packed = self.tensor(module + ".weight_packed")
        scale = to_f32(self.tensor(module + ".weight_scale")).astype(np.float16)
        pairs = packed.view(np.uint8).reshape(*scale.shape, GROUP // 2)
        nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*scale.shape, GROUP)
        values = nibbles[..., :GROUP // 2] | nibbles[..., GROUP // 2:] << 4
        blocks = np.concatenate([scale[..., None].view(np.uint8), values], axis=-1)
        return blocks.reshape(len(packed), -1), Q4_0


def to_f32(bf16):
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def write_config(writer, config):
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rope)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rope)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_kv_b(writer, checkpoint, module, block):
    """Split by head into what makes keys, transposed for the absorbed form, and values."""
    config = checkpoint.config
    nope = config["qk_nope_head_dim"]
    both = checkpoint.tensor(module + "kv_b_proj.weight").reshape(
        config["num_attention_heads"], -1, config["kv_lora_rank"])
    for name, part in (("attn_k_b", both[:, :nope].swapaxes(1, 2)), ("attn_v_b", both[:, nope:])):
        part = np.ascontiguousarray(part)
        if checkpoint.is_int4(module + "o_proj"):
            writer.add_tensor(block + name + ".weight", quantize(to_f32(part), Q4_0),
                              raw_dtype=Q4_0)
        else:
            writer.add_tensor(block + name + ".weight", part.view(np.uint8), raw_dtype=BF16)


def write_layer(writer, checkpoint, l):
    layer, block = f"model.layers.{l}.", f"blk.{l}."
    attn, mlp = layer + "self_attn.", layer + "mlp."

    def vector(name, source):
        writer.add_tensor(block + name, to_f32(checkpoint.tensor(source)))

    def matrix(name, module):
        data, kind = checkpoint.matrix(module)
        writer.add_tensor(f"{block}{name}.weight", data, raw_dtype=kind)

    vector("attn_norm.weight", layer + "input_layernorm.weight")
    vector("ffn_norm.weight", layer + "post_attention_layernorm.weight")
    vector("attn_q_a_norm.weight", attn + "q_a_layernorm.weight")
    vector("attn_kv_a_norm.weight", attn + "kv_a_layernorm.weight")
    matrix("attn_q_a", attn + "q_a_proj")
    matrix("attn_q_b", attn + "q_b_proj")
    matrix("attn_kv_a_mqa", attn + "kv_a_proj_with_mqa")
    matrix("attn_output", attn + "o_proj")
    write_kv_b(writer, checkpoint, attn, block)
    if l < checkpoint.config["first_k_dense_replace"]:
        for part in ("gate", "up", "down"):
            matrix(f"ffn_{part}", f"{mlp}{part}_proj")
        return
    vector("ffn_gate_inp.weight", mlp + "gate.weight")
    writer.add_tensor(block + "exp_probs_b.bias",
                      checkpoint.tensor(mlp + "gate.e_score_correction_bias"))
    for part in ("gate", "up", "down"):
        matrix(f"ffn_{part}_shexp", f"{mlp}shared_experts.{part}_proj")
        experts = [checkpoint.matrix(f"{mlp}experts.{e}.{part}_proj")
                   for e in range(checkpoint.config["n_routed_experts"])]
        writer.add_tensor(f"{block}ffn_{part}_exps.weight", np.stack([data for data, _ in experts]),
                          raw_dtype=experts[0][1])


def main():
    folder, path = sys.argv[1:]
    checkpoint = Checkpoint(folder)
    writer = gguf.GGUFWriter(path + ".part", "deepseek2")
    write_config(writer, checkpoint.config)
    for name, module in (("token_embd", "model.embed_tokens"), ("output", "lm_head")):
        data, kind = checkpoint.matrix(module)
        writer.add_tensor(name + ".weight", data, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", to_f32(checkpoint.tensor("model.norm.weight")))
    for l in range(checkpoint.config["num_hidden_layers"]):
        write_layer(writer, checkpoint, l)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main()
