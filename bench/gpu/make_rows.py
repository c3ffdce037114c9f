#!/usr/bin/env python3
"""Rows for profiling a random model (tools/make_random_model.py): documents of a given number of tokens, a short
question, an answer. The text has only characters whose bytes are in no merge of the tokenizer, so that every byte
is one token.

    python3 bench/gpu/make_rows.py --model /dev/shm/8b/base --tokens 8192 --rows 50 --out rows.jsonl"""
import argparse
import json
import random
from pathlib import Path

PROMPT_TOKENS = 72  # of what stands around the documents, about


def byte_symbols():
    """The character that stands for each byte in the vocabulary of a byte-level tokenizer."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    symbols = {b: chr(b) for b in plain}
    symbols.update({b: chr(256 + i) for i, b in enumerate(others)})
    return symbols


def unmerged_letters(tokenizer):
    """Two-byte letters that are two tokens wherever they stand."""
    symbols = byte_symbols()
    merged = set("".join(part for merge in tokenizer["model"]["merges"]
                         for part in (merge.split(" ") if isinstance(merge, str) else merge)))
    letters = [chr(c) for c in range(0xC0, 0x587) if chr(c).isalpha()]
    return [c for c in letters if all(symbols[b] not in merged for b in c.encode())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--tokens", type=int, default=8192, help="of a context, about, and at least")
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    letters = unmerged_letters(json.loads((options.model / "tokenizer.json").read_text()))
    if len(letters) < 16:
        raise SystemExit(f"{options.model}: every letter's bytes are merged; expected a tokenizer with few merges")
    source = random.Random(1)
    text = lambda tokens: "".join(source.choice(letters) for _ in range(tokens // 2))
    with options.out.open("w") as out:
        for i in range(options.rows):
            row = {"id": f"row-{i}", "documents": [{"title": text(8), "text": text(options.tokens - PROMPT_TOKENS)}],
                   "question": text(16), "answers": [text(8)]}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
