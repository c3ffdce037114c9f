#!/usr/bin/env python3
"""Tables of what bench/gpu/run.sh measured: `python3 bench/gpu/report.py --folder out/gpu`."""
import argparse
import json
from pathlib import Path


BANDWIDTH = 4.8e12  # bytes/s, the card's data sheet
LAYERS, WIDTH, FFN, Q, KV = 32, 4096, 14336, 4096, 1024
LAYER_PARAMETERS = WIDTH * (Q + 2 * KV) + Q * WIDTH + 3 * WIDTH * FFN
TOKEN_KV_BYTES = 2 * 2 * KV  # of one layer
RECOMPUTED = 8


def read(folder, name):
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else []


def prefill_flops(tokens):
    return LAYERS * (2 * tokens * LAYER_PARAMETERS + 2 * tokens * tokens * Q)


def show_prefill(prefill, peers):
    print("| prefill | tokens | ms | TFLOP/s |\n|---|---|---|---|")
    rows = [("droidspeak", r["tokens"], r["tokens"] * 1000 / r["tokens_per_second"]) for r in prefill]
    rows += [(r["what"], r["tokens"], r["ms"]) for r in peers]
    for name, tokens, ms in sorted(rows, key=lambda row: row[1]):
        print(f"| {name} | {tokens} | {ms:.1f} | {prefill_flops(tokens) / ms / 1e9:.0f} |")
    print()


def show_decode(rows, vocab_size):
    weights = 2 * (LAYERS * LAYER_PARAMETERS + WIDTH * vocab_size)
    print("| decode batch | context | tokens/s | ms a step | share of 4.8 TB/s | times batch 1 |\n|---|---|---|---|---|---|")
    for row in rows:
        seconds = row["batch"] / row["tokens_per_second"]
        context = row["context_tokens"] + row["tokens"] / 2
        moved = weights + row["batch"] * context * LAYERS * TOKEN_KV_BYTES
        print(f"| {row['batch']} | {row['context_tokens']} | {row['tokens_per_second']:.0f} | {seconds * 1000:.2f} | "
              f"{100 * moved / seconds / BANDWIDTH:.0f} % | {row['tokens_per_second'] / rows[0]['tokens_per_second']:.1f} |")
    print()


def show_family_decode(rows):
    if not rows:
        return
    print("| default family, batch | tokens/s | times batch 1 |\n|---|---|---|")
    for row in rows:
        print(f"| {row['batch']} | {row['tokens_per_second']:.0f} | "
              f"{row['tokens_per_second'] / rows[0]['tokens_per_second']:.1f} |")
    print()


def show_profiles(profiles):
    profiles = {name: book for name, book in profiles.items() if book}
    if not profiles:
        return
    print("| profile | contexts | seconds | full prefills of context work | plans on the frontier |\n|---|---|---|---|---|")
    for name, book in profiles.items():
        print(f"| {name} | {book['contexts']} | {book['seconds']:.0f} | {book['prefill_equivalents']:.1f} | "
              f"{len(book['frontier'])} |")
    print()


def show_reuse(rows, prefill):
    suffix = next((32000 / r["tokens_per_second"] for r in prefill if r["tokens"] == 32), 0.0)
    print("| plan | tokens | TTFT ms | speed-up | load ms | GB/s | TTFT / max(load, compute) |\n|---|---|---|---|---|---|---|")
    full = {r["tokens"]: r["ttft_ms_median"] for r in rows if r["plan"] == "full"}
    for row in rows:
        tokens, ttft = row["tokens"], row["ttft_ms_median"]
        share = {"full": 1.0, "reuse": 0.0}.get(row["plan"], RECOMPUTED / LAYERS)
        moved = tokens * (LAYERS * (1 - share) * TOKEN_KV_BYTES + (2 * WIDTH if 0 < share < 1 else 0))
        compute = full[tokens] * share + (suffix if share < 1 else 0)
        load = row["load_ms"]
        rate = f"{moved / load / 1e6:.1f}" if share < 1 and load > 0 else ""
        ratio = f"{ttft / max(load, compute):.2f}" if share < 1 else ""
        print(f"| {row['plan']} | {tokens} | {ttft:.1f} | {full[tokens] / ttft:.2f} | {load:.1f} | {rate} | {ratio} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/gpu"))
    parser.add_argument("--vocab-size", type=int, default=128256)
    options = parser.parse_args()
    prefill = read(options.folder, "prefill.json")
    show_prefill(prefill, read(options.folder, "torch.json"))
    show_decode(read(options.folder, "decode.json"), options.vocab_size)
    show_reuse(read(options.folder, "reuse.json"), prefill)
    show_family_decode(read(options.folder, "decode_family.json"))
    show_profiles({"8B shape, 8192 tokens": read(options.folder, "profile.json"),
                   "default family": read(options.folder, "profile_family.json")})


if __name__ == "__main__":
    main()
