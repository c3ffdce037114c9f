#!/usr/bin/env python3
"""Speed of one shape with weights of several formats: random GGUF files, made one after the other and removed.

    python3 bench/gpu/compare_quantized.py --build build-cuda --shape 8b --types bf16,q4_0,q4_k_m

Prints a table of prefill and decode, each against the first format, row by row as they are measured. Needs nothing but
Python; the 8B shape takes 17 GB in --folder in bf16 and 5 GB in 4 bits, the 70B shape 40 GB in 4 bits, that of Mixtral
(`--shape mixtral --types q4_0 --vocab-size 32000`) 26 GB. The last column counts what a step reads, experts that nobody
chose left out, and of a prompt the products of each token with the parameters that are active for it.
`--device cpu --shape tiny` tries the script."""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from make_random_gguf import BLOCKS, SHAPES, read_share, tensors_of  # noqa: E402

BANDWIDTH = 4.8e12  # bytes/s, the card's data sheet
PRODUCTS = 7e14  # operations/s, what cuBLASLt reaches with bf16 and thousands of rows


class Table:
    """Rows are printed as soon as they are known; those of the first format are what the others are compared with."""

    def __init__(self):
        self.first = {}
        print("| weights | file GB | measured | tokens/s | ms | rate to the first's | of 4.8 TB/s or 700 TFLOP/s |\n"
              "|---|---|---|---|---|---|---|", flush=True)

    def add(self, weights, what, tokens, rate, least_seconds):
        seconds = tokens / rate
        print(f"| {weights} | {what} | {rate:.0f} | {seconds * 1000:.2f} | "
              f"{rate / self.first.setdefault(what, rate):.2f} | {100 * least_seconds / seconds:.0f} % |", flush=True)


def measure(options, folder, what, more):
    command = [options.build / "droidspeak", "bench", what, "--device", options.device, "--family",
               folder / "family.json", "--model", "base", "--kv-memory", options.kv_memory, "--json", *more]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def run_format(options, kind, folder, table):
    maker = [sys.executable, ROOT / "tools/make_random_gguf.py", "--shape", options.shape, "--type", kind,
             "--vocab-size", options.vocab_size, "--out", folder]
    subprocess.run([str(part) for part in maker], check=True, stdout=sys.stderr)
    shape = SHAPES[options.shape]
    tensors = tensors_of(shape, kind, options.vocab_size)
    weights = f"{kind} | {sum(tensor.bytes for tensor in tensors) / 1e9:.2f}"

    def elements(tensor):
        of_block, size = BLOCKS[tensor.kind]
        return tensor.bytes // size * of_block

    # The head works on the last token alone.
    active = sum(elements(tensor) * read_share(tensor, shape, 1) for tensor in tensors if tensor.name != "output.weight")
    longest = max(int(tokens) for tokens in options.tokens.split(","))
    length = ["--max-model-len", max(longest, options.context_tokens) + 512]
    for row in measure(options, folder, "prefill", ["--tokens", options.tokens, "--repeats", 5, *length]):
        table.add(weights, f"prefill of {row['tokens']}", row["tokens"], row["tokens_per_second"],
                  2 * active * row["tokens"] / PRODUCTS)
    for row in measure(options, folder, "decode", ["--batch", options.batch, "--tokens", 64, "--context-tokens",
                                                   options.context_tokens, *length]):
        table.add(weights, f"decode of {row['batch']}", row["batch"], row["tokens_per_second"],
                  sum(tensor.bytes * read_share(tensor, shape, row["batch"]) for tensor in tensors) / BANDWIDTH)


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
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where a new folder is made for each file")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: no such folder")
    table = Table()
    for kind in options.types.split(","):
        with tempfile.TemporaryDirectory(prefix="droidspeak-", dir=options.folder) as folder:
            run_format(options, kind, Path(folder), table)


if __name__ == "__main__":
    main()
