#!/usr/bin/env python3
"""Makes tiny random GGUF models of every architecture and the logits that transformers computes for them.

    python3 tools/make_gguf_models.py tests/data/models/gguf

Tensors are named, ordered and permuted as llama.cpp's converter does it; matrices are f16 or quantised, and
transformers runs in float32 on the same rounded values. NAME.json holds token ids and the logits of the last positions. Needs torch,
transformers, gguf."""
import argparse
import json
import math
from pathlib import Path

import gguf
import numpy
import torch
import transformers

VOCAB = 96
TOKENS = 90  # beyond the sliding windows and original lengths below
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
NORMS_AFTER = {  # of architectures with norms behind attention and FFN
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def common(**more):
    return dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                initializer_range=0.3, **more)


def scaled(kind, **fields):
    return {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 64, **fields}


def by_layer(full):
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}


LLAMA3 = scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = scaled("yarn", factor=4.0)
LONG = scaled("longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 1.5, 2.0, 4.0])
MODELS = {  # name: (architecture of the file, config)
    "llama": ("llama", transformers.LlamaConfig(**common(rms_norm_eps=1e-5))),
    "llama-q8_0": ("llama", transformers.LlamaConfig(**common(rms_norm_eps=1e-5))),
    "llama-q4_1": ("llama", transformers.LlamaConfig(**common(rms_norm_eps=1e-5))),
    "llama31": ("llama", transformers.LlamaConfig(**common(rope_parameters=LLAMA3, tie_word_embeddings=True))),
    "mistral": ("llama", transformers.MistralConfig(**common(sliding_window=40, head_dim=16))),
    "qwen2": ("qwen2", transformers.Qwen2Config(**common())),
    "qwen2-yarn": ("qwen2", transformers.Qwen2Config(**common(rope_parameters=YARN))),
    "qwen3": ("qwen3", transformers.Qwen3Config(**common(head_dim=16, tie_word_embeddings=True))),
    "phi3": ("phi3", transformers.Phi3Config(**common(sliding_window=40))),
    "phi3-long": ("phi3", transformers.Phi3Config(**common(sliding_window=None, rope_parameters=LONG,
                                                           original_max_position_embeddings=64))),
    "phi4-mini": ("phi3", transformers.Phi3Config(**common(
        sliding_window=None, tie_word_embeddings=True, original_max_position_embeddings=64,
        rope_parameters={**LONG, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.2],
                         "long_factor": [1.0, 1.5, 2.0]}))),
    # GGUF files do not hold "query_pre_attn_scalar": it is the head size.
    "gemma2": ("gemma2", transformers.Gemma2Config(**common(
        head_dim=16, query_pre_attn_scalar=16, sliding_window=40, attn_logit_softcapping=6.0,
        final_logit_softcapping=8.0))),
    "gemma3": ("gemma3", transformers.Gemma3TextConfig(**{**common(
        head_dim=16, query_pre_attn_scalar=16, sliding_window=40, rope_parameters=by_layer(
            {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0})), "num_hidden_layers": 7})),
    "granite": ("granite", transformers.GraniteConfig(**common(
        embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=3.0))),
    "olmo2": ("olmo2", transformers.Olmo2Config(**common(head_dim=16))),
    "mixtral": ("llama", transformers.MixtralConfig(**common(num_local_experts=5, num_experts_per_tok=2))),
    "mixtral-q8_0": ("llama", transformers.MixtralConfig(**common(num_local_experts=3, num_experts_per_tok=2))),
    "qwen2-moe": ("qwen2moe", transformers.Qwen2MoeConfig(**common(
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64))),
    "qwen3-moe": ("qwen3moe", transformers.Qwen3MoeConfig(**common(
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, norm_topk_prob=True))),
    "smollm3": ("smollm3", transformers.SmolLM3Config(**{**common(), "num_hidden_layers": 5})),
    "olmo3": ("olmo2", transformers.Olmo3Config(**{**common(
        sliding_window=40, rope_parameters=by_layer(YARN)), "num_hidden_layers": 4})),
    "gpt-oss": ("gpt-oss", transformers.GptOssConfig(**common(
        head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=40, tie_word_embeddings=False,
        rope_parameters={**YARN, "truncate": False}))),
    "gpt-oss-mxfp4": ("gpt-oss", transformers.GptOssConfig(**common(
        head_dim=16, num_local_experts=3, num_experts_per_tok=2, sliding_window=40, tie_word_embeddings=False,
        rope_parameters={**YARN, "truncate": False}))),
    # With --fuse-qkv and --fuse-gate-up-exps of the converter.
    "llama-fused": ("llama", transformers.LlamaConfig(**{**common(attention_bias=True), "num_hidden_layers": 1})),
    "qwen2-moe-fused": ("qwen2moe", transformers.Qwen2MoeConfig(**{**common(
        num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24), "num_hidden_layers": 1})),
}

FORMATS = {"gpt-oss-mxfp4": gguf.GGMLQuantizationType.MXFP4, "llama-q8_0": gguf.GGMLQuantizationType.Q8_0, "mixtral-q8_0": gguf.GGMLQuantizationType.Q8_0, "llama-q4_1": gguf.GGMLQuantizationType.Q4_1}  # others: f16


def stays(name, values):
    """Whether it is f32 in every file: vectors and routers."""
    return (values.ndim == 1 or name.endswith("bias") or
            any(part in name for part in ("shared_expert_gate", "mlp.gate.", "mlp.router.")))


def as_rows(model, name, parameter):
    """A matrix with a row for each output: GPT-OSS has experts the other way round."""
    return parameter.transpose(1, 2) if "GptOss" in type(model).__name__ and parameter.ndim == 3 else parameter


def make_model(config, dtype):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # Gemma's weights are added to 1
                parameter.copy_((0 if "Gemma" in type(model).__name__ else 1) + 0.2 * torch.randn_like(parameter))
            elif "bias" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif "sinks" in name:
                parameter.copy_(torch.randn_like(parameter))
            elif not stays(name, parameter):
                rows = as_rows(model, name, parameter)
                if "GptOss" in type(model).__name__ and name.endswith("gate_up_proj"):
                    rows.mul_(5)  # beyond the limit of its gate
                stored = gguf.quants.quantize(rows.numpy(), dtype)
                rows.copy_(torch.from_numpy(gguf.quants.dequantize(stored, dtype).astype(numpy.float32)))
    return model


def adjacent_pairs(rows, heads):
    """Rows of q or k in the order of llama's GGUF files."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name, architecture):
    names = {**NAMES, **NORMS_AFTER} if architecture.startswith(("gemma", "olmo", "gpt-oss")) else NAMES
    if name.endswith(".sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, stem = stem[len("model.layers."):].split(".", 1)
        return f"blk.{layer}.{names[stem]}.{suffix}"
    return f"{names[stem]}.{suffix}"


def llama3_divisors(rope, size):
    divisors = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / size)
        smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"])
        kept = min(max(smooth, 0.0), 1.0)
        divisors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return numpy.array(divisors, dtype=numpy.float32)


def add_rope(writer, config, architecture):
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    size = int(size * rope.get("partial_rotary_factor", 1))
    writer.add_rope_dimension_count(size)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, size))
    elif rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if "beta_slow" in rope:
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    elif rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config.max_position_embeddings / original
        factor = rope.get("attention_factor") or math.sqrt(1 + math.log(stretch) / math.log(original))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(factor)
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", numpy.array(rope[f"{kind}_factor"], dtype=numpy.float32))


def has_odd_windows(config):
    """Whether they are on other layers than where readers expect them."""
    period = 6 if config.model_type == "gemma3_text" else 4
    return any((kind == "full_attention") != ((i + 1) % period == 0) for i, kind in enumerate(config.layer_types))


def add_factors(writer, config, architecture):
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        if architecture in ("gemma3", "olmo2") and has_odd_windows(config):
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping or 0)
        writer.add_final_logit_softcapping(config.final_logit_softcapping or 0)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture in ("qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def add_experts(writer, name, stored, dtype, fused, by_turns=False):
    """All experts of a layer are one tensor, with gate and up apart or not. `by_turns`: as rows of gate_up_proj are."""
    layer, kind = name.split(".")[2], "bias" if name.endswith("bias") else "weight"
    half = stored.shape[1] // 2
    parts = {"gate_up": stored} if fused else {"gate": stored[:, :half], "up": stored[:, half:]}
    if by_turns:
        parts = {"gate": stored[:, ::2], "up": stored[:, 1::2]}
    parts = {"down": stored} if "down" in name else parts
    for part, of_all in parts.items():
        writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.{kind}", numpy.ascontiguousarray(of_all), raw_dtype=dtype)


def write_gguf(model, architecture, encode, path, add_more=lambda writer: None, split=0, fused=False):
    """encode(name, values): a matrix as it is stored, row by row, and its type. `split`: tensors of one file.
    `fused`: q, k and v are one tensor, gate and up of experts, too."""
    config, joined = model.config, {}
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    add_more(writer)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    add_factors(writer, config, architecture)
    add_rope(writer, config, architecture)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = as_rows(model, name, parameter).numpy()
        if "Gemma" in type(model).__name__ and "norm" in name:
            values = values + 1
        stored, dtype = (values, None) if stays(name, values) else encode(name, values)
        if architecture in ("llama", "granite", "smollm3") and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            stored = adjacent_pairs(stored, heads)
        if "shared_expert_gate" in name:  # newer files have it as it is, older ones as a vector
            writer.add_tensor(gguf_name(name, architecture), stored if fused else stored[0])
        elif ".mlp.experts." in name:
            add_experts(writer, name, stored, dtype, fused, architecture == "gpt-oss")
        elif fused and name.endswith(tuple(f"{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias"))):
            whole = gguf_name(name, architecture).replace("_q.", "_qkv.").replace("_k.", "_qkv.").replace("_v.", "_qkv.")
            joined.setdefault(whole, []).append(stored)
            if len(joined[whole]) == 3:  # in this order
                writer.add_tensor(whole, numpy.concatenate(joined[whole]), raw_dtype=dtype)
        else:
            writer.add_tensor(gguf_name(name, architecture), stored, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_golden(model, path):
    ids = torch.randint(3, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(11))
    with torch.no_grad():
        logits = model(ids).logits[0, -4:].float()
    path.write_text(json.dumps({"tokens": ids[0].tolist(),
                                "logits": [[round(v, 6) for v in row] for row in logits.tolist()]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="make these alone")
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name in options.only or MODELS:
        architecture, config = MODELS[name]
        dtype = FORMATS.get(name, gguf.GGMLQuantizationType.F16)
        model = make_model(config, dtype)
        write_gguf(model, architecture, lambda _, values: (gguf.quants.quantize(values, dtype), dtype), out / f"{name}.gguf",
                   fused=name.endswith("-fused"))
        write_golden(model, out / f"{name}.json")
        print(name, (out / f"{name}.gguf").stat().st_size // 1024, "KiB")


if __name__ == "__main__":
    main()
