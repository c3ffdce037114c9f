#!/usr/bin/env python3
"""Compares droidspeak with transformers on random tiny models of random configurations.

    python3 tools/compare_models.py --program build/droidspeak --count 20
    python3 tools/compare_models.py --only gemma3 --seed 7 --keep /tmp/models

Every case is a Hugging Face folder as people have them: float32, float16 or bfloat16, one file or shards, RoPE as
transformers 5 writes it or as before. transformers reads the same folder and computes in float32. A case passes when
the log probabilities of all tokens are within 1e-3 and the greedy answers are the same; one that droidspeak refuses is
listed with what it says. With --odd sizes are not multiples of 8; with --adapter a random LoRA of PEFT answers. Needs
torch and transformers, for adapters peft."""
import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import transformers

TOLERANCE = 1e-3
ANSWER = 8  # greedy tokens
EAGER = dict(attn_implementation="eager", experts_implementation="eager")  # for any size and type


def rope_parameters(r, pairs, positions, kinds):
    """A RoPE object as transformers 5 has it."""
    kind = r.choice(kinds)
    rope = {"rope_type": kind, "rope_theta": r.choice([5000.0, 10000.0, 500000.0, 1000000.0])}
    original = r.choice([positions // 4, positions // 2])
    if kind in ("linear", "dynamic"):
        rope["factor"] = r.choice([1.0, 2.0, 2.5, 8.0])
    elif kind == "llama3":
        rope |= {"factor": r.choice([4.0, 8.0, 32.0]), "low_freq_factor": 1.0, "high_freq_factor": r.choice([2.0, 4.0]),
                 "original_max_position_embeddings": original}
    elif kind == "yarn":
        rope |= {"factor": positions / original, "original_max_position_embeddings": original}
        for field, value in (("beta_fast", 16.0), ("beta_slow", 2.0), ("attention_factor", 1.3), ("truncate", False)):
            if r.random() < 0.3:
                rope[field] = value
        if r.random() < 0.3:
            rope |= {"mscale": 0.7, "mscale_all_dim": r.choice([1.0, 1.3])}
    elif kind == "longrope":
        rope |= {"short_factor": [round(1 + r.random(), 3) for _ in range(pairs)],
                 "long_factor": [round(1 + 4 * r.random(), 3) for _ in range(pairs)],
                 "original_max_position_embeddings": original}
        if r.random() < 0.3:
            rope["attention_factor"] = 1.2
    return rope


ALL_ROPES = ["default", "default", "linear", "dynamic", "llama3", "yarn", "longrope"]
# What follows from the name of an architecture: its configuration class, whether it has "head_dim", and RoPE's kinds.
CONFIGS = {
    "llama": (transformers.LlamaConfig, ALL_ROPES),
    "mistral": (transformers.MistralConfig, ALL_ROPES),
    "mixtral": (transformers.MixtralConfig, ALL_ROPES),
    "qwen2": (transformers.Qwen2Config, ALL_ROPES),
    "qwen3": (transformers.Qwen3Config, ALL_ROPES),
    "qwen2_moe": (transformers.Qwen2MoeConfig, ALL_ROPES),
    "qwen3_moe": (transformers.Qwen3MoeConfig, ALL_ROPES),
    "phi3": (transformers.Phi3Config, ["default", "longrope"]),
    "gemma2": (transformers.Gemma2Config, ["default", "default", "linear", "yarn"]),
    "gemma3": (transformers.Gemma3TextConfig, ALL_ROPES),
    "granite": (transformers.GraniteConfig, ALL_ROPES),
    "olmo2": (transformers.Olmo2Config, ALL_ROPES),
    "olmo3": (transformers.Olmo3Config, ALL_ROPES),
    "smollm3": (transformers.SmolLM3Config, ALL_ROPES),
    "gpt_oss": (transformers.GptOssConfig, ALL_ROPES),
}


class Case:
    """A random configuration and how its files are written."""

    def __init__(self, name, seed, options):
        self.name, self.seed, self.options = name, seed, options
        self.random = r = random.Random(f"{name} {seed}")
        self.positions = r.choice([128, 256, 384])
        self.tokens = r.randint(self.positions // 8, self.positions - ANSWER - 1)
        self.dtype = r.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
        self.is_sharded = r.random() < 0.3
        self.is_old = r.random() < 0.4
        self.more_fields = {}  # of config.json alone
        self.fields = self.draw()
        if 0 <= self.original() - self.tokens < ANSWER:  # the factors would change within the answer
            self.tokens = self.original() + 1

    def chance(self, share):
        return self.random.random() < share

    def draw(self):
        r, unit = self.random, 2 if self.options.odd else 8
        kv_heads = r.choice([1, 2, 3, 4])
        heads = kv_heads * r.choice([1, 2, 3, 5])
        head_dim = unit * r.choice([1, 2, 3, 4, 5] if unit == 8 else [3, 5, 7, 9, 13])
        has_head_dim = self.name in ("qwen3", "gemma2", "gemma3", "mixtral", "gpt_oss") or self.chance(0.4)
        hidden = heads * (unit * r.randint(1, 5) if has_head_dim else head_dim)
        fields = dict(
            vocab_size=r.choice([257, 300, 333, 320]), hidden_size=hidden, num_hidden_layers=r.randint(1, 5),
            intermediate_size=(1 if self.options.odd else 8) * r.randint(3, 25), num_attention_heads=heads, num_key_value_heads=kv_heads,
            max_position_embeddings=self.positions, bos_token_id=1, eos_token_id=2, pad_token_id=0,
            initializer_range=min(1.0, r.choice([1.0, 1.5]) / hidden**0.5), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-3]),
            tie_word_embeddings=self.chance(0.5), use_cache=True)
        if has_head_dim:
            fields["head_dim"] = head_dim
        self.head_dim = head_dim
        kinds = self.options.rope or CONFIGS[self.name][1]
        fields["rope_parameters"] = rope_parameters(r, head_dim // 2, self.positions, kinds)
        getattr(self, f"draw_{self.name}", lambda fields: None)(fields)
        if self.options.bias and self.name not in ("mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "gpt_oss"):
            fields["attention_bias"] = self.chance(0.7)
            if self.name in ("llama", "granite", "smollm3"):
                fields["mlp_bias"] = self.chance(0.5)
        return fields

    def window(self):
        return self.random.choice([1, 5, 17, 40, 64, 100])

    def layer_types(self, fields):
        return [self.random.choice(["full_attention", "sliding_attention"]) for _ in range(fields["num_hidden_layers"])]

    def draw_mistral(self, fields):
        fields["sliding_window"] = self.random.choice([None, self.window()])
        if fields["sliding_window"] and self.chance(0.3):
            self.more_fields["layer_types"] = self.layer_types(fields)  # which make it a Ministral

    def draw_mixtral(self, fields):
        fields["sliding_window"] = self.random.choice([None, self.window()])
        fields["num_local_experts"] = self.random.randint(2, 9)
        fields["num_experts_per_tok"] = self.random.randint(1, fields["num_local_experts"])

    def draw_qwen2(self, fields):
        if self.chance(0.6):
            fields |= dict(use_sliding_window=True, sliding_window=self.window(),
                           max_window_layers=self.random.randint(0, fields["num_hidden_layers"]))
            if self.chance(0.4):
                fields["layer_types"] = self.layer_types(fields)

    def draw_qwen3(self, fields):
        self.draw_qwen2(fields)

    def draw_qwen2_moe(self, fields):
        self.draw_qwen3_moe(fields)
        fields["shared_expert_intermediate_size"] = (1 if self.options.odd else 8) * self.random.randint(3, 12)
        if fields.get("use_sliding_window"):
            fields["max_window_layers"] = self.random.randint(0, fields["num_hidden_layers"])
        if self.chance(0.15):
            fields["qkv_bias"] = False

    def draw_qwen3_moe(self, fields):
        fields |= dict(num_experts=self.random.randint(2, 9), norm_topk_prob=self.chance(0.5),
                       moe_intermediate_size=(1 if self.options.odd else 8) * self.random.randint(3, 10))
        fields["num_experts_per_tok"] = self.random.randint(1, fields["num_experts"])
        if self.chance(0.3):
            fields |= dict(use_sliding_window=True, sliding_window=self.window())
        if self.chance(0.15):
            fields["decoder_sparse_step"] = 2
        if self.chance(0.15):
            fields["mlp_only_layers"] = [0]

    def draw_phi3(self, fields):
        fields["sliding_window"] = self.random.choice([None, self.window()])
        fields["eos_token_id"], fields["pad_token_id"] = 2, 0
        share = self.random.choice([1.0, 0.5, 0.75])
        head_dim = fields.pop("head_dim", None)
        if head_dim:
            self.head_dim = fields["hidden_size"] // fields["num_attention_heads"]
        if int(self.head_dim * share) % 2:
            share = 1.0
        rope, pairs = fields["rope_parameters"], int(self.head_dim * share) // 2
        rope["partial_rotary_factor"] = share
        original = rope.get("original_max_position_embeddings", self.positions // 2)
        fields["original_max_position_embeddings"] = original
        for field in ("short_factor", "long_factor"):
            if field in rope:
                rope[field] = [round(1 + 3 * self.random.random(), 3) for _ in range(pairs)]

    def draw_gemma2(self, fields):
        fields |= dict(query_pre_attn_scalar=self.random.choice([8, 20, 256]), sliding_window=self.window(),
                       attn_logit_softcapping=self.random.choice([None, 3.0, 50.0]),
                       final_logit_softcapping=self.random.choice([None, 4.0, 30.0]))
        if self.chance(0.4):
            fields["layer_types"] = self.layer_types(fields)

    def draw_gemma3(self, fields):
        self.draw_gemma2(fields)
        fields["attn_logit_softcapping"] = None  # which others have
        if "layer_types" not in fields and self.chance(0.7):
            fields["sliding_window_pattern"] = self.random.randint(1, 3)
        full = fields.pop("rope_parameters")
        self.nest_rope(fields, full, {"rope_type": "default", "rope_theta": self.random.choice([10000.0, 5000.0])})

    def nest_rope(self, fields, full, local):
        full.pop("truncate", None)  # which transformers looks for beside the layer types
        fields["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
        if "layer_types" not in fields:  # else the objects are not taken for those of layer types
            fields["layer_types"] = self.layer_types(fields)

    def draw_granite(self, fields):
        pick = self.random.choice
        fields |= dict(embedding_multiplier=pick([1.0, 6.0, 12]), attention_multiplier=pick([1.0, 0.2, 0.015625]),
                       residual_multiplier=pick([1.0, 0.4, 0.22]), logits_scaling=pick([1.0, 3.0, 8]))

    def draw_olmo3(self, fields):
        fields["sliding_window"] = self.window()
        full = fields.pop("rope_parameters")
        self.nest_rope(fields, full, {"rope_type": "default", "rope_theta": full["rope_theta"]})

    def draw_smollm3(self, fields):
        layers = fields["num_hidden_layers"]
        if self.chance(0.5):
            fields["no_rope_layers"] = [self.random.randint(0, 1) for _ in range(layers)]
        else:
            fields["no_rope_layer_interval"] = self.random.randint(1, 4)
        if self.chance(0.3):
            fields |= dict(use_sliding_window=True, sliding_window=self.window())

    def draw_gpt_oss(self, fields):
        self.draw_mixtral(fields)
        fields["sliding_window"] = self.window()
        if self.chance(0.4):
            fields["layer_types"] = self.layer_types(fields)

    def original(self):
        """Up to which length longrope takes its short factors; -1: there is no longrope."""
        rope = self.fields["rope_parameters"].get("full_attention", self.fields["rope_parameters"])
        return rope["original_max_position_embeddings"] if rope["rope_type"] == "longrope" else -1

    def limit(self):
        """--max-model-len: the short factors are those of a length in force within the original one."""
        return self.original() if self.tokens + ANSWER <= self.original() else 0

    def text(self, letters):
        return "".join(self.random.choice(letters) for _ in range(self.tokens))

    def describe(self):
        form = f"{str(self.dtype)[6:]}{' sharded' if self.is_sharded else ''}{' old' if self.is_old else ''}"
        return f"{self.name} --seed {self.seed}: {form}, {self.tokens} of {self.positions} tokens, {json.dumps(self.fields | self.more_fields)}"


def make_model(case):
    torch.manual_seed(case.seed)
    config = CONFIGS[case.name][0](**json.loads(json.dumps(case.fields)))
    model = transformers.AutoModelForCausalLM.from_config(config, **EAGER).float().eval()
    is_gemma = case.name.startswith("gemma")  # whose norms are added to 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_((0 if is_gemma else 1) + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif name.endswith("sinks"):
                parameter.copy_(torch.randn_like(parameter))
            elif case.name == "gpt_oss" and name.endswith("gate_up_proj"):
                parameter.mul_(4)  # beyond the limit of its gate
    return model


def as_before(config, name):
    """config.json as transformers 4 wrote it."""
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        local, rope = rope["sliding_attention"], rope["full_attention"]
        if name == "gemma3":
            config["rope_local_base_freq"] = local["rope_theta"]
        config["rope_theta"] = rope.pop("rope_theta", None)
        if name == "olmo3":
            config["rope_theta"] = 500000.0  # transformers 5 takes it for layers without a window alone
    else:
        config["rope_theta"] = rope.pop("rope_theta", None)
        if rope["rope_type"] in ("linear", "dynamic"):
            rope["type"] = rope.pop("rope_type")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope.get("rope_type") == "default":
        config["rope_scaling"] = None
    else:
        config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype", "float32")
    return config


def byte_tokens():
    """Every byte is a token, in the alphabet of byte-level tokenizers."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in range(256)]


def write_tokenizer(folder):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(byte_tokens())}, "merges": []}}))


def write_folder(case, folder):
    model = make_model(case)
    model.to(case.dtype).save_pretrained(folder, max_shard_size="20KB" if case.is_sharded else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text()) | case.more_fields
    (folder / "config.json").write_text(json.dumps(as_before(config, case.name) if case.is_old else config, indent=2))
    write_tokenizer(folder)


def reference(model, tokens):
    """Log probabilities of tokens given those before, greedy tokens behind them, and how clear each of these is."""
    with torch.no_grad():
        ids = torch.tensor([tokens])
        logits = model(ids).logits[0]
        scores = torch.log_softmax(logits, -1)[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        answer, margins = [], []
        for _ in range(ANSWER):
            best = torch.topk(logits[-1], 2)
            answer.append(best.indices[0].item())
            margins.append((best.values[0] - best.values[1]).item())
            ids = torch.cat([ids, best.indices[None, :1]], dim=1)
            logits = model(ids).logits[0]
    return scores, answer, margins


class Refused(Exception):
    pass


class Unstable(Exception):
    """float32 is not enough for transformers itself."""


def is_unstable(model, text, scores):
    exact = reference(model.double(), list(text.encode()))[0]
    model.float()
    return max(abs(a - b) for a, b in zip(scores, exact)) > TOLERANCE / 4


def ask(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode == 1:
        raise Refused(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def compare(options, model, checkpoint, text, limit=0, adapter=None):
    """What differs; empty: nothing. `model` computes for the same checkpoint."""
    folder = checkpoint.parent
    (folder / "prompt.txt").write_text(text)
    family = {"name": "random", "base": {"name": "base", "path": checkpoint.name}, "variants": []}
    if adapter:
        family["variants"] = [{"name": "tuned", "adapter": adapter.name}]
    (folder / "family.json").write_text(json.dumps(family))
    common = ["--family", folder / "family.json", "--model", "tuned" if adapter else "base", "--precision", "exact", "--kv-dtype", "f32",
              "--device", options.device, "--threads", 1, "--kv-memory", "64MiB", "--max-model-len", limit, "--json"]
    scored = ask(options.program, "score", "--file", folder / "prompt.txt", "--logprobs", *common)
    scores, answer, margins = reference(model, list(text.encode()))
    if scored["tokens"] != len(text):
        return f"{scored['tokens']} tokens of {len(text)} characters"
    differences = [abs(a - b) for a, b in zip(scored["logprobs"][1:], scores, strict=True)]
    worst = max(differences)
    if not worst < TOLERANCE and is_unstable(model, text, scores):
        raise Unstable()
    if not worst < TOLERANCE:
        first = next(i for i, d in enumerate(differences) if not d < TOLERANCE)
        return f"log probabilities differ by up to {worst:.4g}, from token {first + 1} on"
    made = ask(options.program, "generate", "--prompt-file", folder / "prompt.txt", "--raw", "--ignore-eos", "--temperature", 0,
               "--max-tokens", ANSWER, *common)["tokens"]
    for ours, theirs, margin in zip(made, answer, margins):
        if ours != theirs:
            return f"answer {made} instead of {answer}" if margin > 2 * TOLERANCE else ""
    return ""


def add_adapter(case, model, folder):
    """A random LoRA; experts, which are parameters, have it whole or not at all."""
    import peft
    r, has_experts = case.random, case.name in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")
    modules = ["qkv_proj"] if case.name == "phi3" else ["q_proj", "k_proj", "v_proj"]
    modules += ["o_proj"] + ([] if has_experts else ["gate_up_proj", "down_proj"] if case.name == "phi3" else ["gate_proj", "up_proj", "down_proj"])
    chosen = sorted(r.sample(modules, r.randint(1, len(modules))))
    more = {}
    if has_experts:
        more["target_parameters"] = r.sample(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], r.randint(0, 2)) or None
        if case.name == "qwen2_moe" and not more["target_parameters"]:
            chosen += ["shared_expert.gate_proj", "shared_expert.down_proj"]
    elif r.random() < 0.3:
        more["layers_to_transform"] = [r.randrange(case.fields["num_hidden_layers"])]
    config = peft.LoraConfig(
        r=r.randint(1, 5), lora_alpha=r.choice([2, 6]), use_rslora=r.random() < 0.4, target_modules=chosen, init_lora_weights=False,
        rank_pattern=r.choice([{}, {chosen[0]: 2}, {rf".*layers\.0\..*{chosen[-1]}": 3}]),
        alpha_pattern=r.choice([{}, {chosen[0]: 12}]), **more)
    torch.manual_seed(case.seed)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.mul_(0.5)
    adapted.save_pretrained(folder)
    return adapted


def run_case(case, folder):
    write_folder(case, folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, **EAGER)
    text = case.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,;-")
    adapter = folder / "adapter" if case.options.adapter else None
    if adapter:
        model = add_adapter(case, model, adapter)
    return compare(case.options, model.eval(), folder / "model", text, case.limit(), adapter)


class Tally:
    """What became of cases; what differs is shown at once."""

    def __init__(self):
        self.results, self.refusals, self.wrong = Counter(), Counter(), 0

    def add(self, case, run):
        folder = Path(tempfile.mkdtemp(prefix="compare"))
        try:
            outcome = self.outcome(case, run, folder)
            if outcome == "different" and case.options.keep:
                shutil.copytree(folder, case.options.keep / f"{case.name}-{case.seed}", dirs_exist_ok=True)
            self.results[case.name, outcome] += 1
        finally:
            shutil.rmtree(folder)

    def outcome(self, case, run, folder):
        try:
            difference = run(case, folder)
        except Refused as refusal:
            self.refusals[case.name, str(refusal).replace(str(folder), "").split(" (")[0]] += 1
            return "refused"
        except Unstable:
            return "unstable"
        except Exception as error:  # transformers cannot make it, or the program broke
            difference = f"{type(error).__name__}: {error}"
        if not difference:
            return "same"
        self.wrong += 1
        print(f"{case.describe()}\n    {difference}", flush=True)
        return "different"

    def show(self):
        for (name, text), count in sorted(self.refusals.items()):
            print(f"refused {count} of {name}: {text}")
        for name in sorted({name for name, _ in self.results}):
            print(name, {kind: count for (of, kind), count in sorted(self.results.items()) if of == name}, flush=True)


def main(description, make_case, run):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/droidspeak")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=10, help="cases of each architecture")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--rope", nargs="+", help="these kinds alone")
    parser.add_argument("--odd", action="store_true", help="sizes that are not multiples of 8")
    parser.add_argument("--bias", action="store_true", help="attention_bias and mlp_bias, too")
    parser.add_argument("--adapter", action="store_true", help="with a LoRA")
    parser.add_argument("--keep", type=Path, help="folder for cases that differ")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tally = Tally()
    try:
        for seed in range(options.seed, options.seed + options.count):
            for name in options.only:
                tally.add(make_case(name, seed, options), run)
    finally:
        tally.show()
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main(__doc__, Case, run_case)
