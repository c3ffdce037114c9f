#!/usr/bin/env python3
"""Writes PEFT adapters of the tiny models as GGUF files, in the layout of llama.cpp's converter.

    python3 tools/make_gguf_adapters.py tests/data/models

granite/adapter.gguf and smollm2/activated.gguf have their scales in lora_b and no alpha, since such files have one alpha for
all ranks; mixtral/adapter.gguf has alpha and all experts of a layer in one tensor, zero where PEFT's folder has none. Needs
gguf, numpy, safetensors."""
import argparse
import json
import math
import re
from pathlib import Path

import gguf
import numpy
from safetensors.numpy import load_file

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
EXPERTS = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}
ADAPTERS = [("granite", "adapter", "granite"), ("smollm2", "activated", "llama"), ("mixtral", "adapter", "llama")]


def adjacent_pairs(rows, heads):
    """Rows of q or k in the order of llama's GGUF files."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def by_pattern(patterns, module, default):
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def scale_of(peft, module):
    rank = by_pattern(peft.get("rank_pattern") or {}, module, peft["r"])
    alpha = by_pattern(peft.get("alpha_pattern") or {}, module, peft["lora_alpha"])
    return alpha / (math.sqrt(rank) if peft.get("use_rslora") else rank)


def write(folder, adapter, architecture):
    model = json.loads((folder / "config.json").read_text())
    peft = json.loads((folder / adapter / "adapter_config.json").read_text())
    has_alpha = folder.name == "mixtral"
    tensors, experts = {}, {}
    for name, values in load_file(folder / adapter / "adapter_model.safetensors").items():
        module, side = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name).groups()
        layer, stem = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module).groups()
        expert = re.fullmatch(r"block_sparse_moe\.experts\.(\d+)\.(w\d)", stem)
        if expert:
            key = f"blk.{layer}.{EXPERTS[expert[2]]}.weight.lora_{side.lower()}"
            shape = (model["num_local_experts"], *values.shape)
            experts.setdefault(key, numpy.zeros(shape, numpy.float32))[int(expert[1])] = values
            continue
        if side == "B" and not has_alpha:
            values = (values * scale_of(peft, module)).astype(numpy.float32)
        if side == "B" and stem.endswith(("q_proj", "k_proj")):
            heads = model["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"]
            values = adjacent_pairs(values, heads)
        tensors[f"blk.{layer}.{NAMES[stem]}.weight.lora_{side.lower()}"] = numpy.ascontiguousarray(values)
    writer = gguf.GGUFWriter(folder / f"{adapter}.gguf", architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(peft["lora_alpha"]) if has_alpha else 0.0)
    if peft.get("alora_invocation_tokens"):
        writer.add_array("adapter.alora.invocation_tokens", peft["alora_invocation_tokens"])
    for name, values in {**tensors, **experts}.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    models = parser.parse_args().models
    for folder, adapter, architecture in ADAPTERS:
        write(models / folder, adapter, architecture)


if __name__ == "__main__":
    main()
