#!/usr/bin/env python3
"""What coded caches change: `droidspeak evaluate` on the same rows with a sender's cache as it was computed and as it is
coded, raw against coded row by row.

Each shard of the rows runs twice on one cache folder. The first process reads what the sender computed from host memory, and
writes it coded; the second finds it on disk. For --own the sender itself reads it, too, whose KL from values as they were counts as 0.
Tables are learned before, from one row that is not measured. Intervals are 95 %, of rows drawn anew.

  bench/codec_quality.py --device cuda --program build-cuda/droidspeak --out OUT       about two minutes on an H200
  bench/codec_quality.py --limit 4 --shards 1 --parallel 1 --pairs base:qa --out OUT
"""

import argparse
import gzip
import json
import random
import shutil
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESAMPLES = 2000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models/smollm2/family.json"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", default=str(ROOT / "tests/data/qa/qa.profile.jsonl.gz"))
    parser.add_argument("--table-data", default=str(ROOT / "tests/data/qa/qa.demo.jsonl.gz"), help="its first row teaches the tables")
    parser.add_argument("--limit", type=int, default=200, help="rows")
    parser.add_argument("--pairs", default="base:qa,math:qa,entities:qa", help="sender:receiver,...")
    parser.add_argument("--own", default="base", help="senders that read their own cache as well, all of it")
    parser.add_argument("--plans", default="0,16,24;auto", help="of the pairs")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--shards", type=int, default=4, help="parts of the rows, of each pair")
    parser.add_argument("--parallel", type=int, default=8, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=3600, help="shards that take longer are left out")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/codec_quality"), help="cache folders; emptied before and after")
    parser.add_argument("--out", type=Path, required=True, help="rows and the table")
    return parser.parse_args()


def read_lines(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if str(path).endswith(".gz") else open(path, encoding="utf-8")
    with opened as file:
        return [line for line in file if line.strip()]


def evaluate(args, pair, data, cache, rows, plans):
    """The rows that came out; nothing when time is up."""
    sender, receiver = pair
    command = [args.program, "evaluate", "--device", args.device, "--family", args.family, "--sender", sender, "--receiver", receiver,
               "--plans", plans, "--data", data, "--max-tokens", args.max_tokens, "--metric", "none", "--cache-dir", cache,
               "--cache-format", "coded", "--cache-memory", "4GiB", "--kv-memory", "1GiB", "--rows", rows]
    try:
        left = args.until - time.monotonic()
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=max(0.1, left))
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        sys.exit(f"{sender} to {receiver}: {done.stderr[-600:]}")
    return [json.loads(line) for line in read_lines(rows)]


def stored_sizes(folder):
    """Bytes of coded K/V in a cache folder: values, stored, number of entries, and how many lie there raw (docs/store_format.md)."""
    values = stored = coded = raw = 0
    for path in Path(folder).glob("??/*.kv"):
        header = path.open("rb").read(1 << 16)
        for at in range(128, 128 + 40 * struct.unpack_from("<I", header, 12)[0], 40):
            kind, encoding = header[at], header[at + 1]
            if kind != 1:
                continue
            raw += encoding == 0
            if encoding == 2:
                entry = struct.unpack_from("<QQ", header, at + 16)
                coded, stored, values = coded + 1, stored + entry[0], values + entry[1]
    return {"values": values, "stored": stored, "coded": coded, "raw": raw}


def run_shard(args, pair, number, lines):
    folder = args.scratch / f"{pair[0]}-{pair[1]}-{number}"
    cache = folder / "cache"
    cache.mkdir(parents=True)
    shutil.copytree(args.scratch / "tables/cache/tables", cache / "tables")
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    made = {"coded_own": []}
    for kind in ("raw", "coded"):
        made[kind] = evaluate(args, pair, folder / "rows.jsonl", cache, folder / kind, args.plans)
    if pair[0] in args.own.split(",") and made["coded"]:
        made["coded_own"] = evaluate(args, (pair[0], pair[0]), folder / "rows.jsonl", cache, folder / "own", "reuse") or []
    made["sizes"] = stored_sizes(cache)
    shutil.rmtree(folder)
    print(f"{pair[0]} to {pair[1]}, shard {number}: {time.monotonic() - args.start:.0f} s", file=sys.stderr)
    return made if made["coded"] else None


def compared(pair, raw, coded):
    return {"pair": ":".join(pair), "id": coded["id"], "plan": coded["plan"], "translated": coded["translated"],
            "tokens": len(coded["token_kls"]), "kl_raw": round(raw["kl"], 6), "kl_coded": round(coded["kl"], 6),
            "agreement_raw": round(raw["agreement"], 4), "agreement_coded": round(coded["agreement"], 4)}


def put_together(pair, shards):
    """One object for each row and plan."""
    rows = []
    for shard in shards:
        for raw, coded in zip(shard["raw"], shard["coded"], strict=True):
            if (raw["id"], raw["plan"]) != (coded["id"], coded["plan"]):
                sys.exit("the two runs of a shard have different rows")
            rows.append(compared(pair, raw, coded))
        own = {"kl": 0.0, "agreement": 1.0}
        rows += [compared((pair[0], pair[0]), own, coded) for coded in shard["coded_own"]]
    return rows


def mean(values):
    return sum(values) / len(values)


def interval(rows, figure):
    """95 % of `figure` over rows drawn anew."""
    draw = random.Random(16)
    drawn = sorted(figure(draw.choices(rows, k=len(rows))) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def describe(rows):
    raw = mean([row["kl_raw"] for row in rows])
    coded = mean([row["kl_coded"] for row in rows])
    agree = (mean([row["agreement_raw"] for row in rows]), mean([row["agreement_coded"] for row in rows]))
    if rows[0]["pair"].split(":")[0] == rows[0]["pair"].split(":")[1]:
        low, high = interval(rows, lambda drawn: mean([row["kl_coded"] for row in drawn]))
        change = f"{low:.4f} to {high:.4f} nats"
    else:
        def relative(drawn):
            before = sum(row["kl_raw"] for row in drawn)
            return sum(row["kl_coded"] - row["kl_raw"] for row in drawn) / before if before else 0.0
        low, high = interval(rows, relative)
        change = f"{100 * (coded - raw) / raw:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})" if raw else "reads no cache"
    plan = rows[0]["plan"] + (" translated" if rows[0]["translated"] else "")
    return f"| {rows[0]['pair'].replace(':', ' to ')} | {plan} | {len(rows)} | {raw:.4f} | {coded:.4f} | {change} | {agree[0]:.3f} | {agree[1]:.3f} |"


def main():
    args = parse_arguments()
    args.start = time.monotonic()
    args.until = args.start + args.seconds
    pairs = [tuple(text.split(":")) for text in args.pairs.split(",")]
    lines = read_lines(args.data)[:args.limit]
    shutil.rmtree(args.scratch, ignore_errors=True)
    (args.scratch / "tables").mkdir(parents=True)
    args.out.mkdir(parents=True, exist_ok=True)
    first = args.scratch / "tables/rows.jsonl"
    first.write_text(read_lines(args.table_data)[0], encoding="utf-8")
    base = json.loads(Path(args.family).read_text())["base"]["name"]
    evaluate(args, (base, base), first, args.scratch / "tables/cache", args.scratch / "tables/rows", "reuse")
    jobs = [(pair, number, lines[number::args.shards]) for number in range(args.shards) for pair in pairs]
    with ThreadPoolExecutor(args.parallel) as pool:
        made = list(pool.map(lambda job: run_shard(args, *job), jobs))
    rows = []
    sizes = {"values": 0, "stored": 0, "coded": 0, "raw": 0}
    for pair in pairs:
        shards = [shard for (of, _, _), shard in zip(jobs, made) if of == pair and shard]
        rows += put_together(pair, shards)
        for shard in shards:
            sizes = {key: sizes[key] + shard["sizes"][key] for key in sizes}
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (args.out / "codec_quality.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
    table = ["| pair | plan | rows | KL raw | KL coded | change, 95 % | agreement raw | coded |", "|---|---|---|---|---|---|---|---|"]
    for key in dict.fromkeys((row["pair"], row["plan"], row["translated"]) for row in rows):
        table.append(describe([row for row in rows if (row["pair"], row["plan"], row["translated"]) == key]))
    table.append("")
    table.append(f"Of K/V on disk {sizes['coded']} entries are coded, {sizes['values'] / max(1, sizes['stored']):.2f} times smaller than 16-bit "
                 f"values ({16 * sizes['stored'] / max(1, sizes['values']):.2f} bits each); {sizes['raw']} are raw.")
    (args.out / "codec_quality.md").write_text("\n".join(table) + "\n")
    shutil.rmtree(args.scratch, ignore_errors=True)
    print("\n".join(table))
    print(f"{time.monotonic() - args.start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
