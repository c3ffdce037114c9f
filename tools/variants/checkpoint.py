"""Saves and loads full fine-tunes as Hugging Face folders (bf16 safetensors)."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .base import LAYER_MODULES, Base
from .llama import Llama, key_of


def _config(base: Base) -> dict:
    shape, tokenizer = base.shape, base.tokenizer
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16",
        "hidden_size": shape.width, "intermediate_size": shape.feed_forward, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context, "rms_norm_eps": round(shape.norm_epsilon, 9),
        "rope_theta": shape.rope_theta, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
        "bos_token_id": tokenizer.token_to_id("<|im_start|>"), "eos_token_id": base.end_token,
    }


def save_checkpoint(model: Llama, base: Base, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    for module in LAYER_MODULES.values():
        for layer, tensor in enumerate(model.stacks[key_of(module)]):
            tensors[f"model.layers.{layer}.{module}.weight"] = tensor
    ready = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(ready, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors keeps it to the owner
    (folder / "config.json").write_text(json.dumps(_config(base), indent=2) + "\n")
    base.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>",
        "model_max_length": base.shape.context}, indent=2) + "\n")


def load_checkpoint(folder: Path, base: Base) -> Base:
    """The base with the folder's weights; shape and tokenizer have to be the same."""
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    wrong = [name for name, tensor in base.weights.items() if weights.get(name, torch.empty(0)).shape != tensor.shape]
    if wrong:
        raise SystemExit(f"{folder}: {wrong[0]} is missing or has another shape than the base's")
    return replace(base, weights=weights)
