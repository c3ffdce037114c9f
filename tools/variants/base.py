"""The base model of a family: shape, dequantised weights under Hugging Face names, tokenizer."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .gguf import read_gguf

# GGUF name of a layer's tensor -> Hugging Face module inside `model.layers.N`
LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LINEAR_MODULES = [module for module in LAYER_MODULES.values() if module.endswith("_proj")]


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    norm_epsilon: float
    rope_theta: float
    context: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass
class Base:
    shape: Shape
    weights: dict[str, torch.Tensor]  # Hugging Face name -> float32
    tokenizer: Tokenizer

    @property
    def end_token(self) -> int:
        return self.tokenizer.token_to_id("<|im_end|>")


def _to_half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps Q and K rows as adjacent rotary pairs (x0,y0,x1,y1,..); Hugging Face as halves (x0,x1,..,y0,y1,..)."""
    out, width = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def _tokenizer(metadata: dict) -> Tokenizer:
    """Byte-level BPE with every digit a token of its own, special tokens parsed in text."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def load_base(path: Path) -> Base:
    metadata, tensors = read_gguf(path)
    get = lambda key: metadata[f"{metadata['general.architecture']}.{key}"]
    shape = Shape(
        layers=get("block_count"), width=get("embedding_length"), heads=get("attention.head_count"),
        kv_heads=get("attention.head_count_kv"), feed_forward=get("feed_forward_length"),
        vocabulary=len(metadata["tokenizer.ggml.tokens"]), norm_epsilon=get("attention.layer_norm_rms_epsilon"),
        rope_theta=get("rope.freq_base"), context=get("context_length"))
    if "output.weight" in tensors:
        raise SystemExit(f"{path}: the output matrix is not tied to the embedding; this tool expects it to be")
    weights = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"]}
    for layer in range(shape.layers):
        for gguf_name, module in LAYER_MODULES.items():
            weights[f"model.layers.{layer}.{module}.weight"] = tensors[f"blk.{layer}.{gguf_name}.weight"]
        for module, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads)):
            name = f"model.layers.{layer}.self_attn.{module}.weight"
            weights[name] = _to_half_split(weights[name], heads)
    return Base(shape, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in weights.items()}, _tokenizer(metadata))
