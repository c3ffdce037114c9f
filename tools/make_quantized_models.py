#!/usr/bin/env python3
"""Makes tiny random Hugging Face folders with quantised weights and the logits that transformers computes for them.

    python3 tools/make_quantized_models.py tests/data/models/quantized

The packers below are written from the definitions of the formats: AWQ, GPTQ, AutoRound, compressed-tensors, FP8 and MXFP4. transformers runs
in float32 on the weights that the codes stand for. Each folder holds config.json, model.safetensors, golden.json (token
ids, logits of the last positions) and expected.safetensors (the first rows of two matrices as floats). Needs torch, transformers."""
import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

VOCAB, TOKENS = 96, 40
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word is code AWQ_ORDER[i]


def common(**more):
    return dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                initializer_range=0.2, **more)


def llama(**more):
    return transformers.LlamaConfig(**{**common(tie_word_embeddings=False), **more})


def words(codes, bits, order=None):
    """Codes along the last dimension, which is a multiple of a word's, as signed 32-bit words."""
    per = 32 // bits
    grouped = codes.reshape(*codes.shape[:-1], codes.shape[-1] // per, per).to(torch.int64)
    word = sum(grouped[..., (order[i] if order else i)] << (bits * i) for i in range(per))
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def padded(codes, multiple):
    return torch.nn.functional.pad(codes, (0, -codes.shape[-1] % multiple))


def group_scheme(weight, bits, size, dtype, symmetric, groups):
    """Codes [rows, columns], scales and zeros [rows, groups] by minimum and maximum of each group; groups: of columns."""
    top, rows, count = 2**bits - 1, weight.shape[0], int(groups.max()) + 1
    scales, zeros = torch.zeros(rows, count), torch.zeros(rows, count, dtype=torch.int64)
    for g in range(count):
        part = weight[:, groups == g]
        if symmetric:
            scales[:, g], zeros[:, g] = 2 * part.abs().amax(1) / top, 2 ** (bits - 1)
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, g] = (high - low) / top
            zeros[:, g] = (-low / scales[:, g]).round()
    scales = scales.to(dtype)
    codes = (weight / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, top).to(torch.int64)
    return codes, scales, zeros, scales.float()[:, groups] * (codes - zeros[:, groups])


def column_groups(columns, size, shuffled):
    groups = torch.arange(columns) // (columns if size == -1 else size)
    return groups[torch.randperm(columns)] if shuffled else groups


def gptq(bits, size, symmetric, desc_act=False, version=1):
    def pack(name, weight):
        groups = column_groups(weight.shape[1], size, desc_act)
        codes, scales, zeros, value = group_scheme(weight, bits, size, torch.float16, symmetric, groups)
        if not symmetric and version == 1:  # files of this form cannot say zero: 2^bits wraps
            assert int(zeros.min()) >= 0
        stored = (zeros - (1 if version == 1 else 0)) % 2**bits
        return value, {f"{name}.qweight": words(codes, bits).T.contiguous(),
                       f"{name}.qzeros": words(stored.T.contiguous(), bits), f"{name}.scales": scales.T.contiguous(),
                       f"{name}.g_idx": groups.to(torch.int32)}
    return pack, {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": desc_act,
                  "damp_percent": 0.1, **({"checkpoint_format": "gptq_v2"} if version == 2 else {})}


def auto_round(scheme, packing, size, symmetric):
    return scheme[0], {"quant_method": "auto-round", "autoround_version": "0.16.1", "packing_format": packing, "bits": 4, "data_type": "int",
                       "group_size": size, "sym": symmetric, "block_name_to_quantize": "model.layers", "enable_quanted_input": False}


def awq(size):
    def pack(name, weight):
        groups = column_groups(weight.shape[1], size, False)
        codes, scales, zeros, value = group_scheme(weight, 4, size, torch.float16, False, groups)
        return value, {f"{name}.qweight": words(codes.T.contiguous(), 4, AWQ_ORDER),
                       f"{name}.qzeros": words(zeros.T.contiguous(), 4, AWQ_ORDER),
                       f"{name}.scales": scales.T.contiguous()}
    return pack, {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True,
                  "modules_to_not_convert": None}


def compressed(form, weights, activations=None):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "kv_cache_scheme": None, "global_compression_ratio": 1.5,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 8, "type": "int", "strategy": "channel", "group_size": None, "symmetric": True, "dynamic": False,
                "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}, **weights},
                "input_activations": activations, "output_activations": None}}}


def packed(bits, size, symmetric, ordered=False):
    def pack(name, weight):
        groups = column_groups(weight.shape[1], size, ordered)
        codes, scales, zeros, value = group_scheme(weight, bits, size, torch.bfloat16, symmetric, groups)
        per = 32 // bits
        tensors = {f"{name}.weight_packed": words(padded(codes, per), bits), f"{name}.weight_scale": scales,
                   f"{name}.weight_shape": torch.tensor(weight.shape)}
        if not symmetric:  # along rows
            tensors[f"{name}.weight_zero_point"] = words(padded(zeros.T.contiguous(), per), bits).T.contiguous()
        if ordered:
            tensors[f"{name}.weight_g_idx"] = groups.to(torch.int32)
        return value, tensors
    return pack, compressed("pack-quantized", {"num_bits": bits, "strategy": "group" if size > 0 else "channel",
                                               "group_size": size if size > 0 else None, "symmetric": symmetric,
                                               "actorder": "group" if ordered else None})


def int8(symmetric):
    def pack(name, weight):
        groups = column_groups(weight.shape[1], -1, False)
        codes, scales, zeros, value = group_scheme(weight, 8, -1, torch.bfloat16, symmetric, groups)
        tensors = {f"{name}.weight": (codes - 128).to(torch.int8), f"{name}.weight_scale": scales}
        if not symmetric:
            tensors[f"{name}.weight_zero_point"] = (zeros - 128).to(torch.int8)
        return value, tensors
    return pack, compressed("int-quantized", {"symmetric": symmetric},
                            {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True})


def float8(name, weight, block, dtype, suffix):
    """block: rows and columns of one scale."""
    rows, columns = -(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1])
    scales = torch.zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            part = weight[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]]
            scales[i, j] = part.abs().max() / 448
    scales = scales.to(dtype)
    spread = scales.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    spread = spread[:weight.shape[0], :weight.shape[1]]
    codes = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return spread * codes.float(), {f"{name}.weight": codes, f"{name}.{suffix}": scales}


def fp8_tensor():
    def pack(name, weight):
        value, tensors = float8(name, weight, weight.shape, torch.float32, "weight_scale")
        return value, {f"{name}.weight": tensors[f"{name}.weight"],
                       f"{name}.weight_scale": tensors[f"{name}.weight_scale"].reshape(1),
                       f"{name}.input_scale": torch.tensor(0.02)}
    return pack, {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}


def fp8_scalar():
    """As transformers writes it."""
    def pack(name, weight):
        value, tensors = float8(name, weight, weight.shape, torch.float32, "weight_scale_inv")
        return value, {f"{name}.weight": tensors[f"{name}.weight"],
                       f"{name}.weight_scale_inv": tensors[f"{name}.weight_scale_inv"].reshape(()),
                       f"{name}.activation_scale": torch.tensor(0.02)}
    return pack, {"quant_method": "fp8", "activation_scheme": "static", "dequantize": False, "expert_dtype": "fp8",
                  "modules_to_convert": None, "modules_to_not_convert": ["lm_head"], "scale_fmt": "float", "weight_block_size": None}


def fp8_block(rows, columns):
    def pack(name, weight):
        return float8(name, weight, (rows, columns), torch.float32, "weight_scale_inv")
    return pack, {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [rows, columns]}


def fp8_channel():
    def pack(name, weight):
        return float8(name, weight, (1, weight.shape[1]), torch.bfloat16, "weight_scale")
    return pack, compressed("float-quantized", {"type": "float"},
                            {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True})


def fbgemm():
    def pack(name, weight):
        return float8(name, weight, (1, weight.shape[1]), torch.float32, "weight_scale")
    return pack, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}


FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4():
    """Experts alone, all of a layer in one parameter [experts, columns, rows]; the blocks lie along the columns."""
    def pack(name, weight):
        blocks = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
        exponents = (blocks.abs().amax(-1) / 6).log2().ceil()
        scaled = blocks / 2 ** exponents[..., None]
        codes = (scaled.abs()[..., None] - FP4_VALUES).abs().argmin(-1)
        value = FP4_VALUES[codes] * scaled.sign() * 2 ** exponents[..., None]
        codes = (codes + 8 * (scaled < 0)).to(torch.uint8)
        return value.reshape(weight.transpose(1, 2).shape).transpose(1, 2), {
            f"{name}_blocks": codes[..., 0::2] | codes[..., 1::2] << 4, f"{name}_scales": (exponents + 127).to(torch.uint8)}
    return pack, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                      "model.embed_tokens", "lm_head"]}


MODELS = {  # name: (scheme, config)
    "gptq-4": (gptq(4, 32, True), llama()),
    "gptq-4-ordered": (gptq(4, 32, False, desc_act=True, version=2), llama()),
    "gptq-4-zeros": (gptq(4, 32, False), llama()),
    "gptq-8": (gptq(8, -1, True, version=2), llama(intermediate_size=72)),
    "auto-round": (auto_round(gptq(4, 32, False, version=2), "auto_round:gptqmodel", 32, False), llama()),
    "awq": (awq(32), transformers.Qwen2Config(**common())),
    "awq-experts": (awq(32), transformers.MixtralConfig(**{**common(num_local_experts=3, num_experts_per_tok=2),
                                                         "intermediate_size": 32})),
    "packed-4": (packed(4, 32, True), llama()),
    "packed-4-ordered": (packed(4, 16, False, ordered=True), llama()),
    "packed-8": (packed(8, -1, False), llama(intermediate_size=72)),
    "int8": (int8(True), llama()),
    "int8-zeros": (int8(False), transformers.Phi3Config(**common(sliding_window=None))),
    "fp8-tensor": (fp8_tensor(), llama()),
    "fp8-scalar": (fp8_scalar(), llama()),
    "fp8-channel": (fp8_channel(), llama(intermediate_size=72)),
    "fp8-block": (fp8_block(24, 40), transformers.Qwen3Config(**common(head_dim=16))),
    "fbgemm": (fbgemm(), llama()),
    "mxfp4": (mxfp4(), transformers.GptOssConfig(**common(
        head_dim=16, num_local_experts=3, num_experts_per_tok=2, sliding_window=16, tie_word_embeddings=False))),
}
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def experts_of(model, layer):
    """Name in files, and the part of the fused parameter that it is."""
    experts = model.model.layers[layer].mlp.experts
    half = experts.gate_up_proj.shape[1] // 2
    for e in range(experts.gate_up_proj.shape[0]):
        parts = {"w1": experts.gate_up_proj[e, :half], "w3": experts.gate_up_proj[e, half:], "w2": experts.down_proj[e]}
        for name, part in parts.items():
            yield f"model.layers.{layer}.block_sparse_moe.experts.{e}.{name}", part


def quantise(model, pack):
    """Packs every linear layer but the head and leaves what its codes stand for in the model."""
    tensors, expected = {}, {}
    linear = [(name, module.weight) for name, module in model.named_modules()
              if isinstance(module, torch.nn.Linear) and name != "lm_head"]
    if "Mixtral" in type(model).__name__:
        for layer in range(model.config.num_hidden_layers):
            linear += list(experts_of(model, layer))
    if "GptOss" in type(model).__name__:
        linear = [(name, p) for name, p in model.named_parameters() if name.endswith(("gate_up_proj", "down_proj"))]
    for name, weight in linear:
        value, stored = pack(name, weight.detach().clone())
        weight.copy_(value)
        tensors.update(stored)
        if name.endswith(("0.self_attn.q_proj", "0.self_attn.qkv_proj", "0.mlp.down_proj", "experts.2.w2")):
            expected[f"{name}.weight"] = value[:16].contiguous()
    packed_names = {name for name, _ in linear}
    for name, value in model.state_dict().items():
        is_packed = name.rsplit(".", 1)[0] in packed_names and not name.endswith(".bias")
        if is_packed or name in packed_names or "mlp.experts." in name and "GptOss" not in type(model).__name__:
            continue
        name = name.replace("mlp.gate.", "block_sparse_moe.gate.") if "Mixtral" in type(model).__name__ else name
        tensors[name] = value.to(torch.float32 if value.ndim == 1 or name.endswith("_bias") else torch.bfloat16)
    return tensors, expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    for name in options.only or MODELS:
        (pack, quantization), config = MODELS[name]
        folder = options.out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "norm" in parameter_name:
                    parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
                elif "bias" in parameter_name:
                    parameter.copy_(0.3 * torch.randn_like(parameter))
                elif "sinks" in parameter_name:
                    parameter.copy_(torch.randn_like(parameter))
                elif "GptOss" in type(model).__name__ or "embed" in parameter_name or "lm_head" in parameter_name or "mlp.gate." in parameter_name:
                    parameter.copy_(parameter.to(torch.bfloat16).float())
            tensors, expected = quantise(model, pack)
            ids = torch.randint(3, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(11))
            logits = model(ids).logits[0, -3:]
        if name == "gptq-4":  # as AutoGPTQ saves models without biases
            tensors["model.layers.0.mlp.up_proj.bias"] = torch.zeros(96, dtype=torch.float16)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        if expected:
            save_file(expected, folder / "expected.safetensors")
        config = {**model.config.to_dict(), "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(config, indent=1, default=str))
        golden = {"tokens": ids[0].tolist(), "logits": [[round(v, 6) for v in row] for row in logits.tolist()]}
        (folder / "golden.json").write_text(json.dumps(golden))


if __name__ == "__main__":
    main()
