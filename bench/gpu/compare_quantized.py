#!/usr/bin/env python3
"""Speed of one shape with weights of several formats: random GGUF files, made one after the other and removed.

    python3 bench/gpu/compare_quantized.py --build build-cuda --shape 8b --types bf16,q4_0,q4_k_m

Prints tables of prefill and decode, each against the first format. Needs nothing but Python; the 8B shape takes 17 GB
in --folder in bf16 and 5 GB in 4 bits, the 70B shape 40 GB in 4 bits. `--device cpu --shape tiny` tries the script."""
import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from make_random_gguf import SHAPES, tensors_of  # noqa: E402

BANDWIDTH = 4.8e12  # bytes/s, the card's data sheet


def measure(options, what, more):
    command = [options.build / "droidspeak", "bench", what, "--device", options.device, "--family",
               options.folder / "family.json", "--model", "base", "--kv-memory", options.kv_memory, "--json", *more]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def run_format(options, kind):
    maker = [sys.executable, ROOT / "tools/make_random_gguf.py", "--shape", options.shape, "--type", kind,
             "--vocab-size", options.vocab_size, "--out", options.folder]
    subprocess.run([str(part) for part in maker], check=True, stdout=sys.stderr)
    tensors = tensors_of(SHAPES[options.shape], kind, options.vocab_size)
    sizes = {tensor.name: tensor.bytes for tensor in tensors}
    try:
        longest = max(int(tokens) for tokens in options.tokens.split(","))
        length = ["--max-model-len", max(longest, options.context_tokens) + 512]
        prefill = measure(options, "prefill", ["--tokens", options.tokens, "--repeats", 5, *length])
        decode = measure(options, "decode", ["--batch", options.batch, "--tokens", 64, "--context-tokens",
                                             options.context_tokens, *length])
    finally:
        shutil.rmtree(options.folder)
    total = sum(sizes.values())
    return {"type": kind, "bytes": total, "read": total - sizes["token_embd.weight"], "prefill": prefill,
            "decode": decode}


def show(results):
    first = results[0]
    print("| weights | file GB | prefill of tokens | ms | times the first's |\n|---|---|---|---|---|")
    for result in results:
        for row, base in zip(result["prefill"], first["prefill"]):
            ms = row["tokens"] * 1000 / row["tokens_per_second"]
            print(f"| {result['type']} | {result['bytes'] / 1e9:.2f} | {row['tokens']} | {ms:.1f} | "
                  f"{base['tokens_per_second'] / row['tokens_per_second']:.2f} |")
    print("\n| weights | decode batch | tokens/s | ms a step | rate to the first's | weights, of 4.8 TB/s |\n"
          "|---|---|---|---|---|---|")
    for result in results:
        for row, base in zip(result["decode"], first["decode"]):
            seconds = row["batch"] / row["tokens_per_second"]
            print(f"| {result['type']} | {row['batch']} | {row['tokens_per_second']:.0f} | {seconds * 1000:.2f} | "
                  f"{row['tokens_per_second'] / base['tokens_per_second']:.2f} | "
                  f"{100 * result['read'] / seconds / BANDWIDTH:.0f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build-cuda")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--types", default="bf16,q4_0,q4_k_m")
    parser.add_argument("--vocab-size", type=int, default=128256)
    parser.add_argument("--tokens", default="512,8192", help="of the prompts")
    parser.add_argument("--batch", default="1,8,16,64")
    parser.add_argument("--context-tokens", type=int, default=1024)
    parser.add_argument("--kv-memory", default="20GiB")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/droidspeak-random-gguf"))
    options = parser.parse_args()
    show([run_format(options, kind) for kind in options.types.split(",")])


if __name__ == "__main__":
    main()
