#!/usr/bin/env python3
"""What a context costs in the cache store when several variants use it: the base reads it, then every other variant
answers a question about it. Prints the bytes of each tier after each step, and what the step added.

A variant with a plan book from a model that has read the context stores the layers that its plan recomputes, and the
blocks of its own question; one without a book reads the context itself and stores all of it once more."""

import argparse
import gzip
import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data" / "qa" / "qa.demo.jsonl.gz"
QUESTION = "\n\nQuestion: Which of these documents is about a person?\nAnswer:"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--family", type=pathlib.Path, default=ROOT / "models" / "smollm2" / "family.json")
    parser.add_argument("--tokens", type=int, default=1024, help="length of the context, rounded to whole blocks of 64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plan", default="auto", help="auto, or a plan by name for every pair that has a book from the base")
    parser.add_argument("--min-quality", type=float, default=0.99)
    parser.add_argument("--cache-format", default="raw", choices=["raw", "int8", "coded"])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


class Server:
    """`droidspeak serve` on a free port."""

    def __init__(self, args, cache_dir):
        command = [args.build / "droidspeak", "serve", "--family", args.family, "--port", "0", "--threads", args.threads, "--cache-dir", cache_dir,
                   "--cache-format", args.cache_format, "--min-quality", args.min_quality]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        found = re.match(r"listening on http://[^:]+:(\d+)$", line.strip())
        if not found:
            self.stop()
            sys.exit(f"the server did not start: {line!r}")
        self.port = int(found[1])

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status != 200:
            sys.exit(f"{path}: {response.status} {answer}")
        return answer

    def stored(self):
        """Bytes of each tier, once the disk has caught up."""
        before = None
        while True:
            caches = self.call("GET", "/v1/droidspeak/state")["caches"]
            now = {"host": 0, "disk": 0, **{tier["name"]: tier["bytes"] for tier in caches["tiers"]}}
            if now == before:
                return now
            before = now
            time.sleep(0.5)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def context_tokens(server, count):
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    text = "\n\n".join(f"{document['title']}: {document['text']}" for row in rows for document in row["documents"])
    tokens = server.call("POST", "/tokenize", {"prompt": text[:count * 8]})["tokens"]
    count = count // 64 * 64
    if len(tokens) < count:
        sys.exit(f"--tokens {count}: the text has {len(tokens)}")
    return tokens[:count]


def measure(args, server):
    state = server.call("GET", "/v1/droidspeak/state")
    models = [variant["name"] for variant in state["families"][0]["variants"]]
    from_base = {book["receiver"] for book in state["plan_books"] if book["sender"] == models[0]}
    context = context_tokens(server, args.tokens)
    question = server.call("POST", "/tokenize", {"prompt": QUESTION, "add_special_tokens": False})["tokens"]
    rows = []
    before = {"host": 0, "disk": 0}
    for model in models:
        prompt = context + question
        sharing = "auto"
        if args.plan != "auto" and model in from_base:
            sharing = {"sender": models[0], "plan": args.plan}
        # A prompt's blocks are stored before its second token is there.
        answer = server.call("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "sharing": sharing})
        done = answer["droidspeak"]
        stored = server.stored()
        rows.append({"model": model, "sender": done["sender"], "plan": done["plan"], "translated": done["translated"],
                     "reused_tokens": done["reused_tokens"], "recomputed_layers": done["recomputed_layers"], "bytes": stored,
                     "added": {tier: stored[tier] - before[tier] for tier in stored}})
        before = stored
    return {"context_tokens": len(context), "cache_format": args.cache_format, "steps": rows}


def show(result):
    first = result["steps"][0]["added"]["disk"]
    print(f"context of {result['context_tokens']} tokens, disk in {result['cache_format']}; MB")
    print(f"{'model':<12}{'took from':<12}{'plan':<14}{'host':>9}{'disk':>9}{'added':>9}   of the first")
    for step in result["steps"]:
        plan = step["plan"] + (" translated" if step["translated"] else "")
        print(f"{step['model']:<12}{step['sender'] or '-':<12}{plan:<14}{step['bytes']['host'] / 1e6:9.2f}{step['bytes']['disk'] / 1e6:9.2f}"
              f"{step['added']['disk'] / 1e6:9.2f}   {step['added']['disk'] / first:6.1%}")
    total = result["steps"][-1]["bytes"]["disk"]
    print(f"together {total / 1e6:.2f} MB: {total / first:.2f}x of what the first stored, {len(result['steps'])}.00x without sharing")


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="shared-storage-") as folder:
        server = Server(args, pathlib.Path(folder) / "cache")
        try:
            result = measure(args, server)
        finally:
            server.stop()
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
