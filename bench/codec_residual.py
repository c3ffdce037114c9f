#!/usr/bin/env python3
"""Bits of a variant's K/V coded against the base's of the same context, beside coding it by itself. Needs numpy.

Both are quantised with the same steps, those of the codec (0.46 of the layer's deviation before RoPE, V's grown with the token),
and the squared error is printed beside the bits, which are the entropy of each channel's symbols. "translated" fits, for each
layer, the best affine map of the base's [K | V] to the variant's on the first rows: more than a plan book's low-rank map can do.
"coded" is the base as it comes out of the codec, which is what a reader has when both come from a cache. The other rows are
measured. The first four tokens of a context are left out, as the codec does.

  bench/codec_residual.py --receiver qa --rows 12 --scratch /tmp/residual
"""

import argparse
import gzip
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TOKENS = 64  # of a block
EXACT = 4
STEP = 0.46
ROPE_THETA = 100000.0
RIDGE = 1e-3


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models/smollm2/family.json"))
    parser.add_argument("--sender", default="base")
    parser.add_argument("--receiver", default="qa")
    parser.add_argument("--data", default=str(ROOT / "tests/data/qa/qa.profile.jsonl.gz"))
    parser.add_argument("--rows", type=int, default=12, help="two thirds of them fit the maps")
    parser.add_argument("--scratch", type=Path, required=True)
    return parser.parse_args()


def fill_caches(args, model, number, line):
    """A raw cache folder of the model's own reading of one row."""
    folder = args.scratch / f"{model}-{number}"
    if folder.exists():
        return folder
    rows = args.scratch / f"row-{number}.jsonl"
    rows.write_text(line, encoding="utf-8")
    command = [args.program, "evaluate", "--family", args.family, "--sender", model, "--receiver", model, "--plans", "reuse", "--data", rows,
               "--max-tokens", "1", "--metric", "none", "--cache-dir", folder, "--cache-format", "raw"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(done.stderr[-600:])
    return folder


def read_folder(folder):
    """[layers, 2, tokens, heads, head_dim], in the order of the context (docs/store_format.md)."""
    blocks = {}
    for path in folder.glob("??/*.kv"):
        data = path.read_bytes()
        entries, position, layers, heads, dim = (struct.unpack_from("<I", data, at)[0] for at in (12, 88, 92, 96, 100))
        kind = data[108:120].rstrip(b"\0").decode()
        if kind not in ("f16", "f32"):
            sys.exit(f"{path}: K/V is {kind}: run it on the CPU")
        dtype = np.dtype("<f2" if kind == "f16" else "<f4")
        values = np.zeros((layers, 2, TOKENS, heads, dim), np.float32)
        for at in range(128, 128 + 40 * entries, 40):
            if data[at] != 1 or data[at + 1] != 0:
                continue
            layer, offset, size = struct.unpack_from("<i", data, at + 4)[0], *struct.unpack_from("<QQ", data, at + 8)
            stored = np.frombuffer(data, dtype, size // dtype.itemsize, offset).reshape(2, heads, TOKENS, dim)
            values[layer] = stored.transpose(0, 2, 1, 3)
        blocks[position] = values
    whole = np.concatenate([blocks[position] for position in sorted(blocks)], axis=2)
    return turn_back(whole)


def turn_back(values):
    """K as it was before RoPE."""
    pairs = values.shape[-1] // 2
    angles = np.arange(values.shape[2])[:, None] * ROPE_THETA ** (-np.arange(pairs) / pairs)
    cosines, sines = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    x, y = values[:, 0, ..., :pairs].copy(), values[:, 0, ..., pairs:].copy()
    values[:, 0, ..., :pairs] = x * cosines + y * sines
    values[:, 0, ..., pairs:] = y * cosines - x * sines
    return values


def load(args, model, lines):
    """[layers, tokens, 2 * channels] of each row, without the first tokens."""
    rows = []
    for number, line in enumerate(lines):
        values = read_folder(fill_caches(args, model, number, line))[:, :, EXACT:]
        layers, _, tokens = values.shape[:3]
        rows.append(values.transpose(0, 2, 1, 3, 4).reshape(layers, tokens, -1))
    return rows


def entropy(symbols):
    """Mean over channels, in bits; symbols are [tokens, channels]."""
    total = 0.0
    for channel in symbols.T:
        counts = np.unique(channel, return_counts=True)[1]
        shares = counts / counts.sum()
        total -= float((shares * np.log2(shares)).sum())
    return total / symbols.shape[1]


def halves(values):
    """K and V of [tokens, 2 * channels]."""
    return np.split(values, 2, axis=1)


def steps(values):
    """Of K, and of V for each token."""
    made = []
    for half, own in enumerate(halves(values)):
        centred = own - own.mean(axis=0)
        step = STEP * np.sqrt((centred ** 2).mean())
        if half == 1:
            size = np.sqrt((centred ** 2).mean(axis=1, keepdims=True) / (centred ** 2).mean())
            step = step * 2 ** (np.round(2 * np.log2(np.maximum(size, 1e-9))).clip(-8, 7) / 2)
        made.append(step)
    return made


def coded(values, mean):
    """What comes out of the codec."""
    parts = zip(halves(values), halves(mean), steps(values))
    return np.concatenate([centre + np.rint((own - centre) / step) * step for own, centre, step in parts], axis=1)


def bits(values, reference):
    """Of K and V of `values - reference`, with the steps of `values`: bits, and squared error in squared steps; [half, 2]."""
    made = []
    for own, known, step in zip(halves(values), halves(reference), steps(values)):
        rest = (own - known) / step
        symbols = np.rint(rest)
        made.append([entropy(symbols.astype(np.int32)), float(((rest - symbols) ** 2).mean())])
    return made


def fitted(base, own, measured):
    """The best affine map on the fitting rows, applied to `measured`."""
    mean_in, mean_out = base.mean(axis=0), own.mean(axis=0)
    x, y = base - mean_in, own - mean_out
    covariance = x.T @ x
    covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return (measured - mean_in) @ np.linalg.solve(covariance, x.T @ y) + mean_out


def main():
    args = parse_arguments()
    args.scratch.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.data, "rt", encoding="utf-8") as file:
        lines = [line for line in file if line.strip()][:args.rows]
    base, own = load(args, args.sender, lines), load(args, args.receiver, lines)
    split = len(lines) * 2 // 3
    table = []
    for layer in range(base[0].shape[0]):
        fit_in, fit_out = (np.concatenate([row[layer] for row in rows[:split]]).astype(np.float64) for rows in (base, own))
        sent, wanted = (np.concatenate([row[layer] for row in rows[split:]]).astype(np.float64) for rows in (base, own))
        alone = np.broadcast_to(fit_out.mean(axis=0), wanted.shape)
        mean_in = np.broadcast_to(fit_in.mean(axis=0), sent.shape)
        stored = coded(sent, mean_in)
        fit_stored = coded(fit_in, np.broadcast_to(fit_in.mean(axis=0), fit_in.shape))
        references = (alone, sent, fitted(fit_in, fit_out, sent), stored, fitted(fit_stored, fit_out, stored))
        table.append([bits(wanted, reference) for reference in references])
    table = np.array(table)  # [layers, how, half, bits and error]
    print(f"{args.receiver} from {args.sender}, {len(lines) - split} rows measured, {split} fitted")
    print("| layers | by itself K / V | less the base's | less the translated base's | less the coded base's | less the coded, translated base's |")
    print("|---|---|---|---|---|---|")
    groups = [(0, 10), (10, 20), (20, table.shape[0]), (0, table.shape[0])]
    for first, end in groups:
        means = table[first:end].mean(axis=0)
        print(f"| {first} to {end - 1} | " + " | ".join(f"{k[0]:.2f} / {v[0]:.2f}" for k, v in means) + " |")
    means = table.mean(axis=(0, 2))
    print(json.dumps({"bits": [round(float(value), 3) for value in means[:, 0]], "squared error": [round(float(value), 4) for value in means[:, 1]]}))


if __name__ == "__main__":
    main()
