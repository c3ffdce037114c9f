#!/usr/bin/env python3
"""Makes tiny random GGUF models of every architecture and the logits that transformers computes for them.

    python3 tools/make_gguf_models.py tests/data/models/gguf

Tensors are named, ordered and permuted as llama.cpp's converter does it; matrices are f16 or quantised, and
transformers runs in float32 on the same rounded values. NAME.json holds token ids and the logits of the last positions. Needs torch,
transformers, gguf."""
import argparse
import json
import math
import shutil
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
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def common(**more):
    return dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                initializer_range=0.3, **more)


def scaled(kind, **fields):
    return {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 64, **fields}


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
}

FORMATS = {"llama-q8_0": gguf.GGMLQuantizationType.Q8_0, "llama-q4_1": gguf.GGMLQuantizationType.Q4_1}  # others: f16


def make_model(config, dtype):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif "bias" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                stored = gguf.quants.quantize(parameter.numpy(), dtype)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, dtype).astype(numpy.float32)))
    return model


def adjacent_pairs(rows, heads):
    """Rows of q or k in the order of llama's GGUF files."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, stem = stem[len("model.layers."):].split(".", 1)
        return f"blk.{layer}.{NAMES[stem]}.{suffix}"
    return f"{NAMES[stem]}.{suffix}"


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
    rope = config.rope_parameters
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(size)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, size))
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", numpy.array(rope[f"{kind}_factor"], dtype=numpy.float32))
    if architecture == "phi3" and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)


def write_gguf(model, architecture, dtype, path):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
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
    if architecture == "llama" and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    add_rope(writer, config, architecture)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = adjacent_pairs(values, heads)
        if values.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, dtype), raw_dtype=dtype)
        else:
            writer.add_tensor(gguf_name(name), values)
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
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name, (architecture, config) in MODELS.items():
        dtype = FORMATS.get(name, gguf.GGMLQuantizationType.F16)
        model = make_model(config, dtype)
        write_gguf(model, architecture, dtype, out / f"{name}.gguf")
        write_golden(model, out / f"{name}.json")
        print(name, (out / f"{name}.gguf").stat().st_size // 1024, "KiB")


if __name__ == "__main__":
    main()
