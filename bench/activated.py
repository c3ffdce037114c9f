#!/usr/bin/env python3
"""Time to first token of an activated LoRA on contexts that the base has read, against the base's own hit.

    python3 bench/activated.py [--contexts 20] [--repeats 4] [--threads 2]

The base reads the documents of a row. Then it and the adapter answer questions on them in turns, which differ in a digit,
so that no question finds another's tokens. The ratio is that of each pair; its interval is a bootstrap over contexts."""
import argparse
import gzip
import http.client
import json
import random
import statistics
from pathlib import Path

from speculation import ROOT, Server

SYSTEM = "You are a helpful assistant. Read the documents and do what the user asks."


def ask(server, variant, row, number):
    """The first token's time and what came from a cache."""
    documents = "\n\n".join(f"{part['title']}: {part['text']}" for part in row["documents"])
    messages = [{"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"{documents}\n\nQuestion: ({number}) {row['question']}"}]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    body = {"model": variant, "messages": messages, "max_tokens": 1, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["droidspeak"]["ttft_ms"], cached, answer["usage"]["prompt_tokens"]


def interval(groups, draws=2000):
    """95 % of the median over groups drawn anew."""
    chance = random.Random(1)
    medians = sorted(statistics.median(ratio for group in chance.choices(groups, k=len(groups)) for ratio in group)
                     for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models/smollm2/family.json"))
    parser.add_argument("--adapter", default="qa-activated")
    parser.add_argument("--contexts", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    with gzip.open(ROOT / "tests/data/qa/qa.demo.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file][:options.contexts]
    server = Server(options.binary, options.family, options.threads, "none")
    times, ratios, full, cached, prompt = {"base": [], options.adapter: []}, [], [], [], []
    try:
        for index, row in enumerate(rows):
            full.append(ask(server, "base", row, 0)[0])
            ratios.append([])
            for repeat in range(options.repeats):
                order = ["base", options.adapter] if (index + repeat) % 2 else [options.adapter, "base"]
                found = {name: ask(server, name, row, 10 + 2 * repeat + place) for place, name in enumerate(order)}
                for name, (ttft, own, tokens) in found.items():
                    times[name].append(ttft)
                    cached.append(own)
                    prompt.append(tokens)
                ratios[-1].append(found[options.adapter][0] / found["base"][0])
    finally:
        server.stop()
    low, high = interval(ratios)
    row = {"contexts": len(rows), "repeats": options.repeats, "prompt_tokens_median": statistics.median(prompt), "cached_tokens_least": min(cached),
           "full_ms_median": statistics.median(full), "base_hit_ms_median": statistics.median(times["base"]),
           "adapter_ms_median": statistics.median(times[options.adapter]),
           "ratio_median": statistics.median(ratio for group in ratios for ratio in group), "ratio_low": low, "ratio_high": high}
    print(f"{row['contexts']} contexts, prompts of {row['prompt_tokens_median']:.0f} tokens: full prefill {row['full_ms_median']:.0f} ms, "
          f"the base's own hit {row['base_hit_ms_median']:.1f} ms, {options.adapter} {row['adapter_ms_median']:.1f} ms: "
          f"{row['ratio_median']:.3f} of the base's (95 %: {low:.3f} to {high:.3f}); every answer had at least {row['cached_tokens_least']} cached tokens")
    if options.json:
        Path(options.json).write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
