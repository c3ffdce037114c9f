#!/usr/bin/env python3
"""Makes a random model of a real shape, for speed alone: a Hugging Face folder in bf16 or FP8, a LoRA adapter, and
the family.json that joins them.

    python3 tools/make_random_model.py --shape 8b --out /dev/shm/8b
    python3 tools/make_random_model.py --shape 8b --format fp8 --out /dev/shm/8b-fp8

The tokenizer is a tiny one of the tests: only token ids matter here. Needs torch and safetensors; uses the GPU
when there is one."""
import argparse
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

import own_folder

ROOT = Path(__file__).resolve().parent.parent
OWN_FILES = ["family.json", "base/config.json", "base/tokenizer.json", "base/model*.safetensors",
             "base/model.safetensors.index.json", "variant/adapter_model.safetensors", "variant/adapter_config.json"]
TOKENIZER = ROOT / "tests/data/tokenizers/tiny/llama3"
SHAPES = {
    "8b": dict(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
               head_dim=128, intermediate_size=14336),
    "1b": dict(num_hidden_layers=16, hidden_size=2048, num_attention_heads=32, num_key_value_heads=8,
               head_dim=64, intermediate_size=8192),
    "tiny": dict(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=64, intermediate_size=512),
}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}


# As llm-compressor writes it: E4M3 with a scale for each row, activations rounded alike while they are multiplied.
FP8 = {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
       "ignore": ["lm_head"], "config_groups": {"group_0": {
           "targets": ["Linear"],
           "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
           "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True,
                                 "dynamic": True}}}}


def make_config(shape, vocab_size, weights):
    quantization = {"quantization_config": FP8} if weights == "fp8" else {}
    return dict(SHAPES[shape], **quantization, architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=vocab_size,
                max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE,
                hidden_act="silu", attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
                torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2)


class Maker:
    def __init__(self, config, seed):
        self.config = config
        self.is_fp8 = "quantization_config" in config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.random = torch.Generator(self.device).manual_seed(seed)

    def matrix(self, rows, columns, gain=1.0):
        """Keeps the size of what it is applied to, times the gain."""
        values = torch.empty(rows, columns, dtype=torch.bfloat16, device=self.device)
        return values.normal_(0, gain / columns**0.5, generator=self.random).cpu()

    def linear(self, name, rows, columns, gain):
        """The tensors of a linear layer."""
        matrix = self.matrix(rows, columns, gain)
        if not self.is_fp8:
            return {name + ".weight": matrix}
        matrix = matrix.to(self.device)
        scales = matrix.abs().amax(1, keepdim=True).float() / torch.finfo(torch.float8_e4m3fn).max
        codes = (matrix / scales).to(torch.float8_e4m3fn)
        return {name + ".weight": codes.cpu(), name + ".weight_scale": scales.cpu()}

    def norm(self):
        return torch.ones(self.config["hidden_size"], dtype=torch.bfloat16)

    def sizes(self):
        """Outputs and inputs of the linear layers of one block."""
        c = self.config
        d, ffn = c["hidden_size"], c["intermediate_size"]
        q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        return {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
                "self_attn.o_proj": (d, q), "mlp.gate_proj": (ffn, d), "mlp.up_proj": (ffn, d),
                "mlp.down_proj": (d, ffn)}

    def layer(self, index):
        prefix = f"model.layers.{index}."
        # What is added to the hidden state shrinks with depth, as in trained models.
        gain = {"self_attn.o_proj": 0.2, "mlp.down_proj": 0.2}
        tensors = {}
        for name, (rows, columns) in self.sizes().items():
            tensors.update(self.linear(prefix + name, rows, columns, gain.get(name, 1.0)))
        tensors[prefix + "input_layernorm.weight"] = self.norm()
        tensors[prefix + "post_attention_layernorm.weight"] = self.norm()
        return tensors

    def ends(self):
        c = self.config
        return {"model.embed_tokens.weight": self.matrix(c["vocab_size"], c["hidden_size"], c["hidden_size"]**0.5),
                "model.norm.weight": self.norm(), "lm_head.weight": self.matrix(c["vocab_size"], c["hidden_size"])}

    def adapter(self, rank):
        tensors = {}
        for index in range(self.config["num_hidden_layers"]):
            for name, (rows, columns) in self.sizes().items():
                prefix = f"base_model.model.model.layers.{index}.{name}.lora_"
                tensors[prefix + "A.weight"] = self.matrix(rank, columns)
                tensors[prefix + "B.weight"] = self.matrix(rows, rank, 0.05)
        return tensors


def write_base(maker, folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(maker.config, indent=1))
    shutil.copy(TOKENIZER / "tokenizer.json", folder)
    num_shards = maker.config["num_hidden_layers"] + 1
    places = {}
    total = 0
    with ThreadPoolExecutor(4) as pool:
        pending = []
        for shard in range(num_shards):
            tensors = maker.ends() if shard + 1 == num_shards else maker.layer(shard)
            name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
            places.update({key: name for key in tensors})
            total += sum(t.numel() * t.element_size() for t in tensors.values())
            pending.append(pool.submit(save_file, tensors, folder / name, {"format": "pt"}))
            if len(pending) > 4:
                pending.pop(0).result()
        for future in pending:
            future.result()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def write_adapter(maker, folder, rank):
    folder.mkdir(exist_ok=True)
    save_file(maker.adapter(rank), folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none",
              "use_rslora": False, "target_modules": sorted(name.split(".")[1] for name in maker.sizes())}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=128256)
    parser.add_argument("--format", choices=["bf16", "fp8"], default="bf16", help="of the linear layers")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    own_folder.take(options.out, OWN_FILES)
    maker = Maker(make_config(options.shape, options.vocab_size, options.format), options.seed)
    total = write_base(maker, options.out / "base")
    write_adapter(maker, options.out / "variant", options.rank)
    family = {"name": f"random-{options.shape}", "base": {"name": "base", "path": "base"},
              "variants": [{"name": "variant", "adapter": "variant"}]}
    (options.out / "family.json").write_text(json.dumps(family, indent=2) + "\n")
    print(f"{options.out}: {total / 1e9:.1f} GB of weights, vocabulary {options.vocab_size}")


if __name__ == "__main__":
    main()
