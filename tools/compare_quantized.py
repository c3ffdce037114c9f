#!/usr/bin/env python3
"""Compares droidspeak with folders that quantising libraries write, on tiny random models.

    python3 tools/compare_quantized.py llmcompressor --program build/droidspeak
    python3 tools/compare_quantized.py gptqmodel autoawq --keep /tmp/quantised

Each library quantises a model on the CPU (AutoAWQ packs it, its search needs a GPU) and turns the codes back into floats
by its own code; transformers runs on these in float32. A case passes when the log probabilities of all tokens are within
1e-3; what droidspeak refuses is listed with what it says. Needs torch, transformers and what is asked for: llmcompressor
(0.14 with compressed-tensors 0.19 was tried), gptqmodel (7.7), autoawq (0.2.9, without its
dependencies), auto-round (0.16)."""
import argparse
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import transformers
from safetensors.torch import load_file, save_file

from compare_models import TOLERANCE, Refused, ask, reference, write_tokenizer

TEXT = "".join(chr(ord("a") + (7 * i + i * i) % 26) for i in range(150))


def new_model(kind="llama"):
    torch.manual_seed(3)
    config = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[kind](
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.1, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def rows():
    return [torch.randint(3, 250, (64,)).tolist() for _ in range(16)]


def source(model, dtype, folder):
    """The model as a folder with a tokenizer that libraries take."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="!", eos_token="#")
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def plain_model(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


# llm-compressor

def weights(**fields):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    return {"config_groups": {"group_0": QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(type="int", **fields))}}


def llmcompressor_cases():
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    group = dict(strategy="group", group_size=32)
    for scheme in ("W4A16", "W4A16_ASYM", "W8A16", "W8A8", "INT8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16"):
        yield scheme, (QuantizationModifier, {"scheme": scheme})
    yield "GPTQ", (GPTQModifier, {"scheme": "W4A16"})
    yield "GPTQ-ordered", (GPTQModifier, weights(num_bits=4, symmetric=False, actorder="weight", **group))
    yield "groups-of-16", (QuantizationModifier, weights(num_bits=4, symmetric=False, strategy="group", group_size=16))
    for bits in (2, 3, 6):
        yield f"{bits}-bits", (QuantizationModifier, weights(num_bits=bits, symmetric=True, **group))


def write_llmcompressor(case, folder):
    from datasets import Dataset
    from llmcompressor import oneshot
    modifier, fields = case
    tokenizer = source(new_model("qwen2"), torch.bfloat16, folder / "source")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "source", dtype=torch.bfloat16)
    data = Dataset.from_dict({"input_ids": rows(), "attention_mask": [[1] * 64] * 16})
    oneshot(model=model, dataset=data, recipe=modifier(targets="Linear", ignore=["lm_head"], **fields), max_seq_length=64,
            num_calibration_samples=16, processor=tokenizer)
    model.save_pretrained(folder / "model", save_compressed=True)


def read_llmcompressor(folder):
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    group = config["config_groups"]["group_0"]
    compressor = BaseCompressor.get_value_from_registry(group.get("format") or config["format"])
    tensors, model = load_file(folder / "model.safetensors"), plain_model(folder)
    for name, parameter in model.named_parameters():
        module = name.rsplit(".", 1)[0] + "."
        parts = {key[len(module):]: value for key, value in tensors.items() if key.startswith(module)}
        parts = {key: value.float() if "scale" in key else value for key, value in parts.items()}  # products in float32
        value = compressor.decompress(parts, QuantizationScheme(**group))["weight"] if "weight_scale" in parts and name.endswith("weight") else tensors[name]
        parameter.copy_(value.float())
    return model


# GPTQModel

def gptqmodel_cases():
    for bits, size in ((4, 32), (4, 128), (8, 128), (2, 32), (3, 32)):
        yield f"gptq-{bits}-{size}", dict(bits=bits, group_size=size, desc_act=False)
    yield "gptq-ordered", dict(bits=4, group_size=32, desc_act=True)
    yield "gptq-zeros", dict(bits=4, group_size=32, sym=False, desc_act=False)
    yield "gptq-v2", dict(bits=4, group_size=64, sym=False, desc_act=True, format="gptq_v2")
    yield "awq-symmetric", dict(bits=4, group_size=32, method="awq", format="gemm")
    yield "awq-zeros", dict(bits=4, group_size=32, sym=False, method="awq", format="gemm")


@contextlib.contextmanager
def many_cores():
    """GPTQModel wants more workers than a small machine has."""
    count, os.cpu_count = os.cpu_count, lambda: 16
    try:
        yield
    finally:
        os.cpu_count = count


def write_gptqmodel(case, folder):
    with many_cores(), contextlib.chdir(folder):  # where it writes its logs
        quantise_by_gptqmodel(case, folder)


def quantise_by_gptqmodel(case, folder):
    from gptqmodel import GPTQModel, QuantizeConfig
    source(new_model(), torch.float16, folder / "source")
    model = GPTQModel.load(str(folder / "source"), QuantizeConfig(**case), device="cpu", dtype=torch.float16)
    model.quantize([{"input_ids": row, "attention_mask": [1] * 64} for row in rows()], batch_size=1)
    model.save(str(folder / "model"))


def gptqmodel_weight(parts, config):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
    module = TorchLinear(bits=config["bits"], group_size=config["group_size"], sym=config["sym"], desc_act=config["desc_act"],
                         in_features=len(parts["g_idx"]), out_features=parts["scales"].shape[1]).eval()
    module.qweight, module.qzeros, module.g_idx = parts["qweight"], parts["qzeros"], parts["g_idx"]
    module.scales = parts["scales"].float()  # products in float32
    if config["format"] == "gptq":
        convert_gptq_v1_to_v2_format_module(module, config["bits"], torch.int32)
    return module.dequantize_weight().float().T


def read_gptqmodel(folder):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    if config["quant_method"] == "awq":
        return read_autoawq(folder)
    tensors, model = load_file(folder / "model.safetensors"), plain_model(folder)
    for name, parameter in model.named_parameters():
        module = name.rsplit(".", 1)[0] + "."
        parts = {key[len(module):]: value for key, value in tensors.items() if key.startswith(module)}
        parameter.copy_(gptqmodel_weight(parts, config) if "qweight" in parts else tensors[name].float())
    return model


# AutoAWQ

def autoawq_cases():
    yield from ((f"awq-{size}", size) for size in (16, 32, 64, 128))


def write_autoawq(size, folder):
    from awq.modules.linear.gemm import WQLinear_GEMM
    model, tensors = new_model("qwen2").half().float(), {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        groups = module.weight.reshape(module.weight.shape[0], -1, size)
        low, high = groups.amin(-1), groups.amax(-1)
        scales = ((high - low).clamp(min=1e-5) / 15).half()
        zeros = (-(low / scales.float()).round()).clamp(0, 15)
        packed = WQLinear_GEMM.from_linear(module.half(), 4, size, False, scales.T.contiguous(), zeros.T.contiguous())
        tensors |= {f"{name}.{key}": value for key, value in packed.state_dict().items()}
    for name, value in model.state_dict().items():
        if f"{name.rsplit('.', 1)[0]}.qweight" not in tensors:
            tensors[name] = value.half()
    (folder / "model").mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model" / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"quantization_config": {
        "bits": 4, "group_size": size, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm", "zero_point": True}}
    (folder / "model" / "config.json").write_text(json.dumps(config, default=str))


def read_autoawq(folder):
    from awq.utils.packing_utils import dequantize_gemm
    tensors, model = load_file(folder / "model.safetensors"), plain_model(folder)
    size = json.loads((folder / "config.json").read_text())["quantization_config"]["group_size"]
    for name, parameter in model.named_parameters():
        module = name.rsplit(".", 1)[0]
        if name in tensors:
            parameter.copy_(tensors[name].float())
        else:
            parts = [tensors[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales")]
            parameter.copy_(dequantize_gemm(*parts[:2], parts[2].float(), 4, size).T)
    return model


# AutoRound

def autoround_cases():
    for form in ("auto_gptq", "auto_awq", "auto_round"):
        for symmetric in (True, False):
            yield f"{form}-{'symmetric' if symmetric else 'zeros'}", (form, symmetric)
    yield "auto_round:gptqmodel", ("auto_round:gptqmodel", False)


def write_autoround(case, folder):
    from auto_round import AutoRound
    form, symmetric = case
    tokenizer = source(new_model("qwen2"), torch.bfloat16, folder / "source")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "source", dtype=torch.bfloat16)
    rounding = AutoRound(model, tokenizer, scheme="W4A16", group_size=32, sym=symmetric, iters=0, device_map="cpu",
                         dataset=[torch.tensor([row]) for row in rows()], seqlen=64, nsamples=16, batch_size=1)
    rounding.quantize_and_save(str(folder / "made"), format=form)
    shutil.move(str(next((folder / "made").rglob("model.safetensors")).parent), folder / "model")


def autoround_weight(parts, config):
    """What its layers compute of one row for each column."""
    packing = config.get("packing_format", config["quant_method"])
    if "awq" in packing:
        from auto_round.export.export_to_awq.utils import dequantize_gemm
        return dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].float(), 4, config["group_size"]).T
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp
    module = qlinear_torch if packing.endswith(":gptqmodel") else qlinear_torch_zp
    columns, outputs = 8 * parts["qweight"].shape[0], parts["qweight"].shape[1]
    layer = module.QuantLinear(config["bits"], config["group_size"], columns, outputs, bias=False)
    layer.qweight, layer.qzeros, layer.scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
    return layer(torch.eye(columns)).T


def read_autoround(folder):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors, model = load_file(folder / "model.safetensors"), plain_model(folder)
    for name, parameter in model.named_parameters():
        module = name.rsplit(".", 1)[0] + "."
        parts = {key[len(module):]: value for key, value in tensors.items() if key.startswith(module)}
        is_packed = "qweight" in parts and name.endswith("weight")
        parameter.copy_(autoround_weight(parts, config) if is_packed else tensors[name].float())
    return model


LIBRARIES = {"autoround": (autoround_cases, write_autoround, read_autoround), "llmcompressor": (llmcompressor_cases, write_llmcompressor, read_llmcompressor),
             "gptqmodel": (gptqmodel_cases, write_gptqmodel, read_gptqmodel),
             "autoawq": (autoawq_cases, write_autoawq, read_autoawq)}


def difference(program, folder, read):
    """The largest of a log probability."""
    write_tokenizer(folder)
    (folder.parent / "prompt.txt").write_text(TEXT)
    (folder.parent / "family.json").write_text(json.dumps({"name": "x", "base": {"name": "base", "path": folder.name}, "variants": []}))
    scored = ask(program, "score", "--family", folder.parent / "family.json", "--model", "base", "--file", folder.parent / "prompt.txt",
                 "--logprobs", "--precision", "exact", "--kv-dtype", "f32", "--device", "cpu", "--threads", 1, "--kv-memory", "64MiB", "--json")
    expected = reference(read(folder), list(TEXT.encode()))[0]
    return max(abs(a - b) for a, b in zip(scored["logprobs"][1:], expected, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", choices=LIBRARIES)
    parser.add_argument("--program", default="build/droidspeak")
    parser.add_argument("--keep", type=Path, help="folder for what is written")
    options = parser.parse_args()
    wrong = 0
    for library in options.libraries:
        cases, write, read = LIBRARIES[library]
        for name, case in cases():
            folder = Path(tempfile.mkdtemp(prefix="quantised"))
            try:
                with torch.no_grad():
                    write(case, folder)
                    worst = difference(options.program, folder / "model", read)
                wrong += not worst < TOLERANCE
                print(f"-- {library} {name}: {worst:.2g}{'' if worst < TOLERANCE else ' DIFFERENT'}", flush=True)
            except Refused as refusal:
                print(f"-- {library} {name}: refused: {str(refusal).replace(str(folder), '')}", flush=True)
            finally:
                if options.keep:
                    shutil.copytree(folder, options.keep / f"{library}-{name}", dirs_exist_ok=True)
                shutil.rmtree(folder)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
