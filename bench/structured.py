#!/usr/bin/env python3
"""Decoding with a schema against decoding without, and what drafting forced text gains.

    python3 bench/structured.py [--answers 6] [--rounds 2] [--threads 2]
    ninja -C build mask_bench && python3 bench/structured.py --masks [--schemas 500]

The same chats with `response_format` and without; answers of the latter are as long as those of the former. Rates are those of
the decoding phase, taken in turns. With `--speculate forced` and `none` the answers must be the same.
With `--masks`: processor time of a step's mask over random answers to the schemas of tests/clients/schemas.py, with the model's vocabulary."""
import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from speculation import ROOT, Server

SCHEMA = {
    "type": "object",
    "properties": {
        "destination_city": {"enum": ["Oslo", "Paris", "Lisbon", "Vienna"]},
        "number_of_passengers": {"type": "integer", "minimum": 1, "maximum": 9},
        "departure_date": {"type": "string", "format": "date"},
        "travels_with_luggage": {"type": "boolean"},
        "comment_for_the_agency": {"type": "string", "maxLength": 60},
        "preferred_seats": {"type": "array", "items": {"enum": ["window", "aisle", "middle"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["destination_city", "number_of_passengers", "departure_date", "travels_with_luggage", "comment_for_the_agency",
                 "preferred_seats"],
    "additionalProperties": False,
}


def ask(server, number, **fields):
    """(text, tokens, tokens a second behind the first)"""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    messages = [{"role": "user", "content": f"Book journey {number} for me as JSON. I like the sea and need a seat."}]
    body = {"model": "base", "messages": messages, "temperature": 0, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, **fields}), {"Content-Type": "application/json"})
    times, counts, text = [], [], ""
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        for choice in chunk["choices"]:
            if choice["delta"].get("content"):
                times.append(time.perf_counter())
                counts.append(chunk["usage"]["completion_tokens"])
                text += choice["delta"]["content"]
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
    return text, tokens, (counts[-1] - counts[0]) / (times[-1] - times[0])


def measure_masks(options):
    sys.path.insert(0, str(ROOT / "tests/clients"))
    from schemas import random_schema
    program = Path(options.binary).parent / "bin/mask_bench"
    base = json.loads(Path(options.family).read_text())["base"]["path"]
    schemas = "".join(json.dumps(random_schema(seed)) + "\n" for seed in range(options.schemas))
    done = subprocess.run([program, Path(options.family).parent / base, "3"], input=schemas, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout)
    print(f"masks of {row['vocabulary']} tokens, {row['steps']} steps of {row['schemas']} schemas ({row['refused']} refused): "
          f"median {row['p50_ms']:.3f} ms, p99 {row['p99_ms']:.3f} ms, the worst schema's p99 {row['worst_schema_p99_ms']:.3f} ms, "
          f"longest {row['max_ms']:.2f} ms; compiling {row['compile_p50_ms']:.0f} ms, p99 {row['compile_p99_ms']:.0f} ms, "
          f"longest {row['compile_max_ms']:.0f} ms")
    return row


def measure_rates(options):
    servers = {name: Server(options.binary, options.family, options.threads, name) for name in ("none", "forced")}
    wanted = {"type": "json_schema", "json_schema": {"name": "journey", "schema": SCHEMA, "strict": True}}
    rates, same = {"plain": [], "none": [], "forced": []}, 0
    try:
        for server in servers.values():
            ask(server, 0, response_format=wanted)  # compiles it
        for number in list(range(options.answers)) * options.rounds:
            with_schema = {name: ask(server, number, response_format=wanted) for name, server in servers.items()}
            plain = ask(servers["none"], number, max_tokens=with_schema["none"][1], ignore_eos=True)
            same += with_schema["none"][0] == with_schema["forced"][0]
            rates["plain"].append(plain[2])
            for name, answer in with_schema.items():
                rates[name].append(answer[2])
    finally:
        for server in servers.values():
            server.stop()
    count = options.answers * options.rounds
    row = {"n": count, "same": same}
    for name in ("none", "forced"):
        row[f"{name}_ratio_median"] = statistics.median(one / plain for one, plain in zip(rates[name], rates["plain"]))
    row |= {f"{name}_tokens_per_second": statistics.median(values) for name, values in rates.items()}
    print(f"plain {row['plain_tokens_per_second']:.1f} tokens/s; with a schema, token by token {row['none_tokens_per_second']:.1f} "
          f"({row['none_ratio_median']:.2f}x); forced text drafted {row['forced_tokens_per_second']:.1f} "
          f"({row['forced_ratio_median']:.2f}x); {same} of {count} texts the same")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models/smollm2/family.json"))
    parser.add_argument("--answers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--masks", action="store_true")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--json")
    options = parser.parse_args()
    row = measure_masks(options) if options.masks else measure_rates(options)
    if options.json:
        Path(options.json).write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
