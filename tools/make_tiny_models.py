#!/usr/bin/env python3
"""Makes tiny random models of every architecture with transformers, and the logits it computes for them.

    python3 tools/make_tiny_models.py tests/data/models

Each folder holds a Hugging Face checkpoint (config.json, model.safetensors) and golden.json: token ids and
the float32 logits of the last positions, and the tokens that greedy decoding adds. rope.json holds RoPE frequencies. The parity test (tests/parity) compares ours with them. Needs
torch, transformers, peft, safetensors."""
import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers

VOCAB = 128
GREEDY = 8  # tokens of an answer
TOKENS = 150  # beyond the sliding windows and the original longrope length below


def common(**more):
    return dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.2, **more)


def small(**more):
    return {**common(**more), "hidden_size": 32, "intermediate_size": 40}


def served(**more):
    """For families of whole commands: a vocabulary for the tiny tokenizer of tests/support, room for prompts."""
    return {**small(**more), "vocab_size": 320, "max_position_embeddings": 2048}


def llama3_rope():
    return {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 10000.0}


def long_rope(pairs=8, original=128):
    return {"rope_type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
            "long_factor": [1.5 + 0.5 * i for i in range(pairs)], "rope_theta": 10000.0,
            "original_max_position_embeddings": original}


def yarn_rope():
    return {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}


def rope_by_layer(full):
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}


MODELS = {
    "llama2": lambda: transformers.LlamaConfig(**common(rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "llama3": lambda: transformers.LlamaConfig(**common(rope_parameters=llama3_rope(), tie_word_embeddings=False)),
    "smollm2": lambda: transformers.LlamaConfig(**common(rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
                                                         tie_word_embeddings=True)),
    "mistral": lambda: transformers.MistralConfig(**common(sliding_window=40, head_dim=24)),
    "qwen2": lambda: transformers.Qwen2Config(**common(tie_word_embeddings=True)),
    "qwen3": lambda: transformers.Qwen3Config(**common(head_dim=32)),
    "phi3": lambda: transformers.Phi3Config(**common(sliding_window=100)),
    "phi3-long": lambda: transformers.Phi3Config(**common(sliding_window=None, rope_parameters=long_rope(),
                                                          original_max_position_embeddings=128)),
    "phi4-mini": lambda: transformers.Phi3Config(**small(
        sliding_window=None, tie_word_embeddings=True, original_max_position_embeddings=128,
        rope_parameters={**long_rope(pairs=3), "partial_rotary_factor": 0.75})),
    "qwen2-windows": lambda: transformers.Qwen2Config(**small(
        use_sliding_window=True, sliding_window=40, max_window_layers=1)),
    # Heads wider than d_model / heads, a scale that is not theirs, caps that are felt.
    "gemma2": lambda: transformers.Gemma2Config(**served(
        head_dim=24, query_pre_attn_scalar=20, sliding_window=40, attn_logit_softcapping=6.0,
        final_logit_softcapping=8.0)),
    "gemma3": lambda: transformers.Gemma3TextConfig(**small(
        head_dim=24, query_pre_attn_scalar=20, sliding_window=40, rope_parameters=rope_by_layer({"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}),
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "granite": lambda: transformers.GraniteConfig(**small(
        embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=3.0)),
    "granite-bias": lambda: transformers.GraniteConfig(**small(
        attention_multiplier=0.2, residual_multiplier=0.4, attention_bias=True, mlp_bias=True)),
    # Sizes that no vector is a multiple of.
    "llama-odd": lambda: transformers.LlamaConfig(**{**small(
        head_dim=10, attention_bias=True, mlp_bias=True), "vocab_size": 131, "hidden_size": 42, "intermediate_size": 43,
        "num_attention_heads": 6}),
    "olmo2": lambda: transformers.Olmo2Config(**small(head_dim=24)),
    "mixtral": lambda: transformers.MixtralConfig(**served(num_local_experts=5, num_experts_per_tok=2,
                                                          sliding_window=40)),
    "qwen2-moe": lambda: transformers.Qwen2MoeConfig(**small(
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=48)),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**small(
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, head_dim=16, norm_topk_prob=True)),
    # Two layers of five without RoPE, not where the default has them.
    "smollm3": lambda: transformers.SmolLM3Config(**{**small(
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0}, no_rope_layers=[1, 0, 1, 0, 1]),
        "num_hidden_layers": 5}),
    "gpt-oss": lambda: transformers.GptOssConfig(**{**served(
        head_dim=24, num_local_experts=5, num_experts_per_tok=2, sliding_window=40, tie_word_embeddings=False,
        rope_parameters={**yarn_rope(), "truncate": False}), "num_hidden_layers": 4}),
    "olmo3": lambda: transformers.Olmo3Config(**{**small(sliding_window=40, rope_parameters=rope_by_layer(yarn_rope())),
                                                 "num_hidden_layers": 4}),
}


def make_model(config):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():  # norms and biases off their trivial initial values
        for name, parameter in model.named_parameters():
            if "norm" in name:  # Gemma's weights are added to 1
                parameter.copy_((0 if "Gemma" in type(model).__name__ else 1) + 0.2 * torch.randn_like(parameter))
            if "bias" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            if "sinks" in name:
                parameter.copy_(torch.randn_like(parameter))
            if "GptOss" in type(model).__name__ and name.endswith("gate_up_proj"):
                parameter.mul_(5)  # beyond the limit of its gate
    return model


def write_golden(model, folder, name):
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(3, VOCAB, (1, TOKENS), generator=generator)
    with torch.no_grad():
        logits = model(ids).logits[0, -4:].float()
        answer = ids
        for _ in range(GREEDY):
            answer = torch.cat([answer, model(answer).logits[:, -1:].argmax(-1)], dim=1)
    golden = {"tokens": ids[0].tolist(), "logits": [[round(v, 6) for v in row] for row in logits.tolist()],
              "greedy": answer[0, TOKENS:].tolist()}
    (folder / name).write_text(json.dumps(golden))


def add_adapter(model, folder):
    """Two adapters with rank patterns and rslora on a subset of the linear layers."""
    import peft
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"],
                             rank_pattern={"layers.1.self_attn.q_proj": 8}, alpha_pattern={"down_proj": 12},
                             init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    write_golden(adapted, folder, "golden_adapter.json")
    adapted.save_pretrained(folder / "adapter", safe_serialization=True)
    (folder / "adapter" / "README.md").unlink(missing_ok=True)


def add_expert_adapter(model, folder):
    """LoRA on attention and on some experts, in PEFT's form for experts that are modules of their own; the logits are
    those of the model with the corrections added to its weights."""
    from safetensors.torch import save_file
    torch.manual_seed(5)
    rank, alpha, tensors = 3, 6, {}
    width = model.config.hidden_size
    ffn = model.config.intermediate_size

    def correction(module, rows, columns):
        down, up = 0.2 * torch.randn(rank, columns), 0.2 * torch.randn(rows, rank)
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
        return alpha / rank * up @ down

    with torch.no_grad():
        for i, layer in enumerate(model.model.layers):
            stem = f"model.layers.{i}"
            q = layer.self_attn.q_proj.weight
            q += correction(f"{stem}.self_attn.q_proj", *q.shape)
            for expert in range(i, model.config.num_local_experts, 2):
                name = f"{stem}.block_sparse_moe.experts.{expert}"
                experts = layer.mlp.experts
                experts.gate_up_proj[expert, :ffn] += correction(f"{name}.w1", ffn, width)
                if i > 0:
                    experts.gate_up_proj[expert, ffn:] += correction(f"{name}.w3", ffn, width)
                experts.down_proj[expert] += correction(f"{name}.w2", width, ffn)
    write_golden(model, folder, "golden_adapter.json")
    (folder / "adapter").mkdir()
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["q_proj", "w1", "w2", "w3"],
              "task_type": "CAUSAL_LM", "bias": "none"}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config, indent=2))


def add_parameter_adapter(model, folder):
    """LoRA on attention and on all experts, which are two parameters of a layer."""
    import peft
    torch.manual_seed(5)
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights=False,
                             target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    adapted = peft.get_peft_model(model, config)
    write_golden(adapted, folder, "golden_adapter.json")
    adapted.save_pretrained(folder / "adapter", safe_serialization=True)
    (folder / "adapter" / "README.md").unlink(missing_ok=True)


def rope_cases():
    """RoPE objects of config.json, and their frequencies and attention factor."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    yarn = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1000000.0, "original_max_position_embeddings": 4096}
    objects = {
        "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        "llama3": llama3_rope(),
        "yarn": yarn,
        "yarn-betas": {**yarn, "beta_fast": 16.0, "beta_slow": 2.0},
        "yarn-mscale": {**yarn, "mscale": 0.7, "mscale_all_dim": 1.3},
        "yarn-one-mscale": {**yarn, "mscale": 0.7},
        "yarn-attention-factor": {**yarn, "attention_factor": 1.25},
        "yarn-no-rounding": {**yarn, "truncate": False},
        "yarn-short-original": {**yarn, "original_max_position_embeddings": 48},
        "yarn-factor-one": {**yarn, "factor": 1.0},
        "longrope-short": long_rope(8, 32768),
        "longrope-long": long_rope(8, 4096),
        "longrope-factor": {**long_rope(8, 4096), "factor": 3.0},
        "longrope-attention-factor": {**long_rope(8, 4096), "attention_factor": 1.5},
    }
    for name, rope in objects.items():
        config = transformers.LlamaConfig(**{**common(rope_parameters=dict(rope)), "max_position_embeddings": 32768})
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=32768)
        yield {"name": name, "head_dim": 16, "max_positions": 32768, "rope": rope,
               "frequencies": frequencies.tolist(), "attention_factor": factor}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", metavar="MODEL", help="make these alone; without a name: rope.json alone")
    options = parser.parse_args()
    out = options.out
    (out / "rope.json").write_text(json.dumps(list(rope_cases()), indent=1))
    for name in MODELS if options.only is None else options.only:
        config = MODELS[name]
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = make_model(config())
        sharded = "200KB" if name == "llama2" else "1GB"
        model.save_pretrained(folder, max_shard_size=sharded)
        (folder / "generation_config.json").unlink(missing_ok=True)
        write_golden(model, folder, "golden.json")
        if name in ("smollm2", "gemma2", "granite"):
            add_adapter(model, folder)
        if name == "mixtral":
            add_expert_adapter(model, folder)
        if name in ("qwen3-moe", "gpt-oss"):
            add_parameter_adapter(model, folder)
        print(name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) // 1024, "KiB")


if __name__ == "__main__":
    main()
