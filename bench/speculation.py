#!/usr/bin/env python3
"""What `serve --speculate lookup` gains: decoding with and without it in turn, on answers that quote and on others.

    python3 bench/speculation.py [--answers 8] [--tokens 96] [--rounds 3] [--threads 2] [--json out.json]

Answers that quote repeat a document of the profile rows; the others go on with a story. Rates are those of the decoding
phase. Every answer must have the same text with and without."""
import argparse
import gzip
import http.client
import json
import re
import signal
import statistics
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def prompts(count):
    """Kind -> prompts in the form of the base's chat template."""
    with gzip.open(ROOT / "tests/data/qa/qa.profile.jsonl.gz", "rt") as file:
        texts = [json.loads(next(file))["documents"][0]["text"] for _ in range(count)]

    def chat(text):
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    return {"quoting": [chat(f"Repeat this text word for word:\n{text}") for text in texts],
            "other": [chat(f"Write a long story about the number {number} and the sea.") for number in range(count)]}


class Server:
    def __init__(self, binary, family, threads, speculate):
        self.process = subprocess.Popen([binary, "serve", "--family", family, "--port", "0", "--threads", str(threads),
                                         "--speculate", speculate], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r":(\d+)\s*$", self.process.stdout.readline())[1])

    def answer(self, prompt, tokens):
        """(text, tokens a second behind the first)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"model": "base", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        times, text = [], ""
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                text += json.loads(line[6:])["choices"][0]["text"]
        return text, (tokens - 1) / (times[-1] - times[0])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models/smollm2/family.json"))
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    servers = {name: Server(options.binary, options.family, options.threads, name) for name in ("none", "lookup")}
    rows = []
    try:
        for kind, texts in prompts(options.answers).items():
            ratios, rates, same = [], {name: [] for name in servers}, 0
            for _ in range(options.rounds):
                for prompt in texts:
                    answers = {name: server.answer(prompt, options.tokens) for name, server in servers.items()}
                    same += answers["none"][0] == answers["lookup"][0]
                    ratios.append(answers["lookup"][1] / answers["none"][1])
                    for name, (_, rate) in answers.items():
                        rates[name].append(rate)
            rows.append({"answers": kind, "n": len(ratios), "same": same, "ratio_median": statistics.median(ratios), "ratio_min": min(ratios),
                         **{f"{name}_tokens_per_second": statistics.median(values) for name, values in rates.items()}})
            row = rows[-1]
            print(f"{kind:8} {row['none_tokens_per_second']:7.1f} tokens/s, with lookup {row['lookup_tokens_per_second']:7.1f}: "
                  f"{row['ratio_median']:.2f}x (least {row['ratio_min']:.2f}), {same} of {len(ratios)} texts the same")
    finally:
        for server in servers.values():
            server.stop()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
