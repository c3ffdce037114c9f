"""Saves and loads LoRA adapters as PEFT folders."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .base import LINEAR_MODULES, Base
from .llama import Lora, key_of


def _name(layer: int, module: str, part: str) -> str:
    return f"base_model.model.model.layers.{layer}.{module}.lora_{part}.weight"


def save_adapter(lora: Lora, folder: Path, base_name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module in LINEAR_MODULES:
        for part, stack in (("A", lora.a[key_of(module)]), ("B", lora.b[key_of(module)])):
            for layer, tensor in enumerate(stack.detach().to("cpu", torch.float16)):
                if layer >= lora.first_layer:
                    tensors[_name(layer, module, part)] = tensor.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)  # safetensors keeps it to the owner
    config = {
        "base_model_name_or_path": base_name, "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
        "init_lora_weights": True, "lora_alpha": int(lora.alpha), "lora_dropout": 0.0, "modules_to_save": None,
        "peft_type": "LORA", "r": lora.rank, "target_modules": sorted(m.split(".")[-1] for m in LINEAR_MODULES),
        "task_type": "CAUSAL_LM", "use_dora": False, "use_rslora": False,
    }
    if lora.invocation is not None:
        config["alora_invocation_tokens"] = lora.invocation
    if lora.first_layer:
        config["layers_to_transform"] = list(range(lora.first_layer, lora.changes.shape[0]))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_adapter(base: Base, folder: Path) -> Lora:
    config = json.loads((folder / "adapter_config.json").read_text())
    lora = Lora(base, config["r"], config["lora_alpha"], config.get("alora_invocation_tokens"),
                min(config.get("layers_to_transform") or [0]))
    tensors = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for module in LINEAR_MODULES:
            for part, stack in (("A", lora.a[key_of(module)]), ("B", lora.b[key_of(module)])):
                for layer in range(lora.first_layer, base.shape.layers):
                    stack[layer] = tensors[_name(layer, module, part)].float()
    return lora
