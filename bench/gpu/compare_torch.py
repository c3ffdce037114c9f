#!/usr/bin/env python3
"""Prefill of the 8B shape with random weights in bf16 by Hugging Face transformers (sdpa) and by eager torch
with cuDNN's attention: what `droidspeak bench prefill` is compared with.

    python3 bench/gpu/compare_torch.py --tokens 8192,32768 --out torch.json

Needs torch and transformers, and a GPU with 40 GB."""
import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from make_random_model import make_config  # noqa: E402


def make_transformers_model(config):
    import transformers
    config = transformers.LlamaConfig(**{k: v for k, v in config.items() if k != "architectures"})
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16).eval()


class EagerModel:
    """The same forward pass in plain torch, with the linear layers that read the same rows joined."""

    def __init__(self, model, config):
        self.config = config
        self.heads, self.kv_heads, self.head_dim = (config[k] for k in (
            "num_attention_heads", "num_key_value_heads", "head_dim"))
        self.embedding, self.norm, self.head = model.model.embed_tokens.weight, model.model.norm.weight, model.lm_head.weight
        self.rotary = model.model.rotary_emb
        self.layers = []
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            self.layers.append(dict(
                norm1=layer.input_layernorm.weight, norm2=layer.post_attention_layernorm.weight,
                qkv=torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]), out=a.o_proj.weight,
                gate_up=torch.cat([m.gate_proj.weight, m.up_proj.weight]), down=m.down_proj.weight))

    def rotate(self, x, cos, sin):
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    def __call__(self, ids):
        x = F.embedding(ids[0], self.embedding)
        tokens, width = x.shape
        positions = torch.arange(tokens, device="cuda")[None]
        cos, sin = (t[0][:, None] for t in self.rotary(x[None], positions))
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        for w in self.layers:
            qkv = F.linear(F.rms_norm(x, (width,), w["norm1"], 1e-5), w["qkv"])
            q, k, v = (t.view(tokens, -1, self.head_dim) for t in qkv.split((q_size, kv_size, kv_size), dim=-1))
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                a = F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in (q, k, v)),
                                                   is_causal=True, enable_gqa=True)
            x = x + F.linear(a[0].transpose(0, 1).reshape(tokens, q_size), w["out"])
            gate, up = F.linear(F.rms_norm(x, (width,), w["norm2"], 1e-5), w["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, w["down"])
        return F.linear(F.rms_norm(x[-1:], (width,), self.norm, 1e-5), self.head)


def median_ms(run, repeats):
    times = []
    for i in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=128256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = make_config("8b", options.vocab_size)
    rows = []
    with torch.inference_mode():
        model = make_transformers_model(config)
        eager = EagerModel(model, config)
        for tokens in map(int, options.tokens.split(",")):
            ids = torch.randint(0, options.vocab_size, (1, tokens), device="cuda")
            runs = {"transformers (sdpa)": lambda: model(ids, use_cache=True, logits_to_keep=1),
                    "eager torch (cuDNN)": lambda: eager(ids)}
            for name, run in runs.items():
                rows.append({"what": name, "tokens": tokens, "ms": median_ms(run, options.repeats)})
                print(f"{name:>22} {tokens:>7} tokens {rows[-1]['ms']:>9.1f} ms", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
