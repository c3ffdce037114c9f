#!/usr/bin/env python3
"""What HTTP costs beside the engine: streams over HTTP against the engine alone, and processor time by thread.

    python3 bench/server_overhead.py [--streams 1,8] [--tokens 200] [--rounds 3] [--json out.json]

Rates over HTTP are those of the decoding phase, from the first token of the last stream to begin to the end of the
first stream to end. Overhead is the processor time of connection threads over that of the engine's threads."""
import argparse
import http.client
import json
import re
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpu_by_thread(pid):
    """Thread id -> seconds."""
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds[task.name] = nanoseconds * 1e-9
    return seconds


class Stream:
    """One connection with one long answer; it stays open, so that its thread's time can be read afterwards."""

    def __init__(self, port, tokens, number):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.body = {"model": "base", "prompt": f"Story number {number}: once upon a time", "max_tokens": tokens, "temperature": 0,
                     "ignore_eos": True, "stream": True}
        self.times = []

    def run(self):
        self.connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        for line in response:
            if line.startswith(b"data: {"):
                self.times.append(time.perf_counter())
        assert response.status == 200


def measure(server, port, num_streams, tokens):
    """(tokens per second, processor seconds of connections, of the engine)"""
    streams = [Stream(port, tokens, i) for i in range(num_streams)]
    before = cpu_by_thread(server.pid)
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = cpu_by_thread(server.pid)
    for stream in streams:
        stream.connection.close()
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    count = sum(sum(begin < moment <= end for moment in stream.times) for stream in streams)
    connections = sum(seconds for thread, seconds in after.items() if thread not in before)
    engine = sum(seconds - before[thread] for thread, seconds in after.items() if thread in before)
    return count / (end - begin), connections, engine


def start(binary, family, threads):
    server = subprocess.Popen([binary, "serve", "--family", family, "--port", "0", "--threads", str(threads)], stdout=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)\s*$", server.stdout.readline())[1])
    return server, port


def engine_alone(binary, family, threads, streams):
    out = subprocess.run([binary, "bench", "decode", "--family", family, "--model", "base", "--threads", str(threads), "--repeats", "1",
                          "--batch", ",".join(map(str, streams)), "--json"], check=True, capture_output=True, text=True).stdout
    return [row["tokens_per_second"] for row in json.loads(out)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models" / "smollm2" / "family.json"))
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    args = parser.parse_args()
    counts = [int(count) for count in args.streams.split(",")]
    rows = {count: {"http": [], "engine": [], "overhead": []} for count in counts}
    server, port = start(args.binary, args.family, args.threads)
    try:
        for _ in range(args.rounds):
            for count, alone in zip(counts, engine_alone(args.binary, args.family, args.threads, counts)):
                rate, connections, engine = measure(server, port, count, args.tokens)
                rows[count]["http"].append(rate)
                rows[count]["engine"].append(alone)
                rows[count]["overhead"].append(connections / engine)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    print(f"{'streams':>8} {'over HTTP':>14} {'engine alone':>14} {'ratio':>7} {'processor time of HTTP':>24}")
    medians = {count: {name: statistics.median(values) for name, values in row.items()} for count, row in rows.items()}
    for count, row in medians.items():
        print(f"{count:>8} {row['http']:>8.1f} tok/s {row['engine']:>8.1f} tok/s {row['http'] / row['engine']:>7.3f} {100 * row['overhead']:>22.2f} %")
    first, last = counts[0], counts[-1]
    print(f"{last} streams against {first}: {medians[last]['http'] / medians[first]['http']:.2f}x over HTTP")
    if args.json:
        Path(args.json).write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    main()
