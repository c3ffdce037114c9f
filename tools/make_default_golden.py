#!/usr/bin/env python3
"""What transformers computes with the default model: greedy tokens, and logits behind a prompt.

    python3 tools/make_default_golden.py models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf tests/data/models/default.json

transformers reads the GGUF file itself, dequantises it and runs in float32. Needs torch, transformers, gguf."""
import argparse
import hashlib
import json
from pathlib import Path

import torch
import transformers

PROMPT = ("<|im_start|>user\nName the three largest planets of the solar system and say in one sentence what each of "
          "them is known for.<|im_end|>\n<|im_start|>assistant\n")
GENERATED = 24
SHOWN = 64  # logits of each row that is kept: the largest ones


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    where = {"pretrained_model_name_or_path": options.model.parent, "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    ids = tokenizer(PROMPT, add_special_tokens=False).input_ids
    prompt = list(ids)
    rows = []
    with torch.no_grad():
        for _ in range(GENERATED):
            logits = model(torch.tensor([ids])).logits[0, -1]
            top = torch.topk(logits, SHOWN)
            rows.append({"ids": top.indices.tolist(), "logits": [round(v, 5) for v in top.values.tolist()]})
            ids.append(int(logits.argmax()))
    golden = {"model_sha256": hashlib.sha256(options.model.read_bytes()).hexdigest(), "prompt": prompt,
              "greedy": ids[len(prompt):], "rows": rows}
    options.out.write_text(json.dumps(golden))
    print(tokenizer.decode(ids))


if __name__ == "__main__":
    main()
