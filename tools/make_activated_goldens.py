#!/usr/bin/env python3
"""Makes an activated LoRA for a tiny model with PEFT, and the logits that PEFT computes with it.

    python3 tools/make_activated_goldens.py tests/data/models/smollm2

Beside the checkpoint comes activated/ (adapter_config.json with alora_invocation_tokens, ranks and alphas by module,
adapter_model.safetensors) and golden_activated.json: for prompts with the invocation at telling places the token ids,
the float32 logits of the last positions and what PEFT's generate() adds greedily. Needs torch, transformers, peft."""
import argparse
import json
from pathlib import Path

import peft
import torch
import transformers

INVOCATION = [5, 9, 5]
TOKENS = 150
LOGITS = 4  # of the last positions
GREEDY = 8


def prompts():
    """By name: random tokens with the invocation at these places."""
    places = {"middle": [70], "two": [40, 101], "block_boundary": [63], "block_begin": [64], "first_token": [0],
              "second_token": [1], "last_tokens": [TOKENS - len(INVOCATION)], "overlapping": [100, 102], "absent": []}
    for name, starts in places.items():
        generator = torch.Generator().manual_seed(11)
        tokens = torch.randint(10, 128, (TOKENS,), generator=generator).tolist()  # none of the invocation's
        for start in starts:
            tokens[start:start + len(INVOCATION)] = INVOCATION
        yield name, tokens
    yield "cut_off", tokens[:-2] + INVOCATION[:2]  # not all of it


def make_adapter(model):
    torch.manual_seed(3)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=5, use_rslora=True, init_lora_weights=False,
        alora_invocation_tokens=INVOCATION,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"layers.1.self_attn.q_proj": 6, "up_proj": 2}, alpha_pattern={"down_proj": 9})
    return peft.get_peft_model(model, config).eval()


def golden(model, name, tokens):
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, -LOGITS:].float()
        answer = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                max_new_tokens=GREEDY, min_new_tokens=GREEDY)
    return {"name": name, "tokens": tokens, "logits": [[round(v, 6) for v in row] for row in logits.tolist()],
            "greedy": answer[0, len(tokens):].tolist()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the checkpoint; files are written into it")
    folder = parser.parse_args().model
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float()
    base.generation_config.eos_token_id = None
    model = make_adapter(base)
    cases = [golden(model, name, tokens) for name, tokens in prompts()]
    (folder / "golden_activated.json").write_text(json.dumps(cases))
    model.save_pretrained(folder / "activated", safe_serialization=True)
    (folder / "activated" / "README.md").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
