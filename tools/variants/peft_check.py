"""Checks that an adapter folder means the same to PEFT as to this tool."""

from pathlib import Path

import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM

from .base import Base
from .llama import Llama


def hugging_face_model(base: Base) -> LlamaForCausalLM:
    """The base as a transformers model, from the dequantised weights."""
    shape = base.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        rms_norm_eps=shape.norm_epsilon, rope_theta=shape.rope_theta, max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta}, tie_word_embeddings=True)
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(base.weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights do not fit transformers' Llama: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.eval()


@torch.no_grad()
def greatest_difference(base: Base, own: Llama, folder: Path, text: str) -> dict:
    """Greatest absolute difference of logits, own forward against PEFT's, and how far the adapter moves them."""
    ids = torch.tensor([base.tokenizer.encode(text, add_special_tokens=False).ids])
    plain = hugging_face_model(base)
    before = plain(ids).logits
    after = PeftModel.from_pretrained(plain, folder).eval()(ids).logits
    mine = own.logits(own(ids))
    return {"tokens": ids.shape[1], "difference": float((mine - after).abs().max()),
            "adapter_moves": float((after - before).abs().max()),
            "same_argmax": float((mine.argmax(-1) == after.argmax(-1)).float().mean())}
