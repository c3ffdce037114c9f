#!/usr/bin/env python3
"""Compares droidspeak with transformers on random tiny GGUF models, in the layout of llama.cpp's converter.

    python3 tools/compare_gguf.py --program build/droidspeak --count 10

As tools/compare_models.py, with matrices of random types, each of its own, in one file or several; transformers runs
in float32 on what the types make of the values. Configurations are those that GGUF files can say. Needs torch,
transformers, gguf."""
import random
import re

import gguf
import numpy
import torch
from gguf import GGMLQuantizationType as Type

import compare_models
import make_gguf_models

NAMES = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2_moe": "qwen2moe",
         "qwen3_moe": "qwen3moe", "phi3": "phi3", "gemma2": "gemma2", "gemma3": "gemma3", "granite": "granite",
         "olmo2": "olmo2", "olmo3": "olmo2", "smollm3": "smollm3", "gpt_oss": "gpt-oss"}
FLOATS = [Type.F32, Type.F16, Type.BF16]
QUANTISED = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.MXFP4]
# What the package can only read: bytes of a block of random codes, and where its halves of scales lie.
READ_ONLY = {Type.IQ4_NL: (18, [0]), Type.Q2_K: (84, [80, 82]), Type.Q3_K: (110, [108]), Type.Q4_K: (144, [0, 2]),
             Type.Q5_K: (176, [0, 2]), Type.Q6_K: (210, [208]), Type.IQ4_XS: (136, [0])}
ROPES = ["default", "linear", "llama3", "yarn", "longrope"]


class GgufCase(compare_models.Case):
    def draw(self):
        self.is_old, self.dtype = False, torch.float32
        self.options.rope = ["default", "longrope"] if self.name == "phi3" else ROPES
        fields = super().draw()
        self.width = width = self.random.choice([8, 32, 32, 256])  # which rows of matrices are multiples of
        if width > 8:
            heads, kv_heads = self.random.choice([(2, 1), (4, 2), (8, 8), (8, 2)])
            self.head_dim = width // min(heads, 8) * (2 if width == 32 else 1)
            fields |= dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=self.head_dim, hidden_size=width,
                           intermediate_size=width * self.random.randint(1, 3))
            for field in ("moe_intermediate_size", "shared_expert_intermediate_size"):
                if field in fields:
                    fields[field] = width
            if self.name in ("phi3", "mixtral"):
                fields["hidden_size"] = heads * self.head_dim
            if heads * self.head_dim % width:
                fields["hidden_size"] = fields["head_dim"] * heads
            if self.name == "phi3":
                del fields["head_dim"]
        self.say_less(fields)
        return fields

    def say_less(self, fields):
        """Leaves out what such files do not say."""
        for field in ("use_sliding_window", "no_rope_layers", "decoder_sparse_step", "mlp_only_layers", "qkv_bias"):
            fields.pop(field, None)
        fields.pop("no_rope_layer_interval", None)
        rope = fields["rope_parameters"].get("full_attention", fields["rope_parameters"])
        for field in ("mscale", "mscale_all_dim", "truncate"):
            rope.pop(field, None)
        if rope["rope_type"] == "yarn":
            rope.pop("attention_factor", None)
        share = rope.get("partial_rotary_factor", 1)
        for field in ("short_factor", "long_factor"):
            if field in rope:
                rope[field] = [round(1 + 3 * self.random.random(), 3) for _ in range(int(self.head_dim * share) // 2)]
        if self.name == "smollm3":
            fields.pop("sliding_window", None)
        if self.name == "gpt_oss":
            rope["truncate"] = False  # which its files mean
        if self.name not in ("gemma3", "olmo3"):
            fields.pop("layer_types", None)
        if "norm_topk_prob" in fields:
            fields["norm_topk_prob"] = self.name == "qwen3_moe"
        if "query_pre_attn_scalar" in fields:
            fields["query_pre_attn_scalar"] = self.head_dim
        if self.name == "gemma3":
            fields |= dict(attn_logit_softcapping=None, final_logit_softcapping=None)
            fields["rope_parameters"]["sliding_attention"]["rope_theta"] = 10000.0


def random_blocks(random_bytes, shape, dtype, strength):
    size, halves = READ_ONLY[dtype]
    elements = gguf.GGML_QUANT_SIZES[dtype][0]
    blocks = random_bytes.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=numpy.uint8)
    for place in halves:
        scale = random_bytes.uniform(0.5, 1, blocks.shape[:-1]).astype(numpy.float16) * numpy.float16(strength)
        blocks[..., place:place + 2] = scale[..., None].view(numpy.uint8)
    return blocks.reshape(*shape[:-1], -1)


def encoder(case, fused):
    """A function that stores a matrix in one of the types that its rows allow, and remembers how. `fused`: q, k and v
    have one type."""
    generator, stored, types = numpy.random.default_rng(case.seed), {}, {}
    choose = random.Random(case.seed)

    def encode(name, values):
        if name not in stored:
            blocks = [t for t in (*QUANTISED, *READ_ONLY) if values.shape[-1] % gguf.GGML_QUANT_SIZES[t][0] == 0]
            kind = re.sub("[qkv]_proj", "qkv_proj", name) if fused else name
            dtype = types.setdefault(kind, choose.choice(FLOATS + 2 * blocks))
            if dtype in READ_ONLY:
                unit = gguf.quants.dequantize(random_blocks(generator, (64, 256), dtype, 1e-2), dtype).std()
                stored[name] = random_blocks(generator, values.shape, dtype, 1e-2 * 0.15 / unit), dtype
            else:
                stored[name] = gguf.quants.quantize(values, dtype), dtype
        return stored[name]

    return encode


def add_tokenizer(writer):
    tokens = [*compare_models.byte_tokens(), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])  # none is not one
    writer.add_add_bos_token(False)


def run_case(case, folder):
    fused = case.name != "phi3" and case.chance(0.3)  # whose files always are
    model, encode = compare_models.make_model(case), encoder(case, fused)
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            is_twice = name == "lm_head.weight" and model.config.tie_word_embeddings
            if not is_twice and not make_gguf_models.stays(name, parameter):
                rows = make_gguf_models.as_rows(model, name, parameter)
                values, dtype = encode(name, rows.numpy())
                rows.copy_(torch.from_numpy(gguf.quants.dequantize(values, dtype).astype(numpy.float32).reshape(rows.shape)))
    path = folder / "model.gguf"
    split = 5 if case.is_sharded else 0
    make_gguf_models.write_gguf(model, NAMES[case.name], encode, path, add_tokenizer, split, fused)
    if split:
        path = min(folder.glob("model-00001-of-*.gguf"))
    return compare_models.compare(case.options, model, path, case.text("cdefghijklmnopqrstuvwxyz .,;-0123456789"), case.limit())


if __name__ == "__main__":
    compare_models.main(__doc__, GgufCase, run_case)
