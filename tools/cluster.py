#!/usr/bin/env python3
"""A cluster on loopback without containers: three servers of the default family, Redis between them, HAProxy in front
(deploy/haproxy/haproxy.cfg). Through it the demo's story: a sender reads long contexts, the receiver answers on them; then
the server that has read most of the rest goes away, and the receiver answers on those. Prints a table, writes
out/cluster/result.json."""
import collections
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import demo
from server_port import server_port

ROOT = Path(__file__).resolve().parent.parent
NUM_SERVERS = 3
# Debian keeps it where only root's PATH looks.
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin") or "haproxy"


def get(port, path):
    """The status, or None while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


class Cluster:
    """The processes of a cluster; each logs to a file of its own in `out`."""

    def __init__(self, args):
        self.out = args.out
        self.processes = {}
        self.ports = {}
        try:
            self.start(args)
        except BaseException:
            self.stop()
            raise

    def start(self, args):
        flags = ["--kv-memory", "512MiB", "--cache-memory", "1GiB", "--min-quality", str(args.min_quality)]
        if not args.without_redis:
            flags += self.start_redis()
        for i in range(NUM_SERVERS):
            self.start_server(f"server-{i + 1}", [args.binary, "serve", "--family", args.family, "--host", "127.0.0.1", "--port", "0", *flags])
        self.start_haproxy()

    def run(self, name, command, environment=None, stdout=None):
        log = open(self.out / f"{name}.log", "w")
        process = subprocess.Popen([str(part) for part in command], stdout=stdout or log, stderr=log, text=True, env=environment)
        self.processes[name] = process
        return process

    def wait_for(self, name, condition):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.processes[name].poll() is None:
            if condition():
                return
            time.sleep(0.05)
        sys.exit(f"{name} did not start; see {self.out / name}.log")

    def start_redis(self):
        """The flags that let servers use it."""
        port = server_port()
        self.run("redis", ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", self.out, "--save", "", "--appendonly", "no",
                           "--maxmemory", "2gb", "--maxmemory-policy", "allkeys-lru"])
        ping = ["redis-cli", "-h", "127.0.0.1", "-p", str(port), "ping"]
        self.wait_for("redis", lambda: "PONG" in subprocess.run(ping, capture_output=True, text=True).stdout)
        secret = self.out / "remote_secret"
        secret.unlink(missing_ok=True)
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        return ["--remote-cache", f"redis://127.0.0.1:{port}", "--remote-secret-file", str(secret)]

    def start_server(self, name, command):
        process = self.run(name, command, stdout=subprocess.PIPE)
        for line in process.stdout:
            match = re.search(r"listening on http://[^:]+:(\d+)", line)
            if match:
                self.ports[name] = int(match[1])
                return
        process.wait()
        sys.exit(f"{name} did not start: {(self.out / f'{name}.log').read_text().strip()[-500:]}")

    def start_haproxy(self):
        self.port, stats = server_port(), server_port()
        servers = {f"DROIDSPEAK_SERVER_{i + 1}": f"127.0.0.1:{self.ports[f'server-{i + 1}']}" for i in range(NUM_SERVERS)}
        environment = {**os.environ, "DROIDSPEAK_BIND": f"127.0.0.1:{self.port}", "DROIDSPEAK_STATS": f"127.0.0.1:{stats}", **servers}
        self.run("haproxy", [HAPROXY, "-db", "-f", ROOT / "deploy" / "haproxy" / "haproxy.cfg"], environment)
        self.wait_for("haproxy", lambda: get(self.port, "/health") == 200)

    def ask(self, model, context, question, max_tokens, sharing, salt):
        """(the answer, the name of the server that gave it)"""
        body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "sharing": sharing, "cache_salt": salt,
                "messages": [{"role": "system", "content": demo.SYSTEM}, {"role": "user", "content": f"{context}\n\n{question}"}]}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            sys.exit(f"{response.headers.get('X-Served-By') or 'HAProxy'} answered {response.status}: {text.decode()[:500]}")
        return json.loads(text), response.headers["X-Served-By"]

    def end(self, name):
        """Lets a process finish what it does."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self):
        for name in reversed(list(self.processes)):
            self.end(name)


def answer_on(cluster, args, number, row, readers):
    """The receiver with full prefill and with the sender's cache; what came of it."""
    context, question, salt = row
    full, _ = cluster.ask(args.receiver, context, question, 32, "off", salt + "-full")
    shared, server = cluster.ask(args.receiver, context, question, 32, {"sender": args.sender, "plan": "auto"}, salt)
    reuse = shared["droidspeak"]
    text = [answer["choices"][0]["message"]["content"] for answer in (full, shared)]
    return {"context": number, "read_by": readers[number], "answered_by": server, "full_ms": full["droidspeak"]["ttft_ms"],
            "ttft_ms": reuse["ttft_ms"], "sender": reuse["sender"], "plan": reuse["plan"], "tier": reuse.get("tier"), "same_answer": text[0] == text[1]}


def run(cluster, args, rows):
    """The story; one result for each context."""
    texts = [("\n\n".join(f"{d['title']}: {d['text']}" for d in row["documents"]), "Question: " + row["question"], f"cluster-{i}") for i, row in enumerate(rows)]
    readers = [cluster.ask(args.sender, *text[:2], 1, "off", text[2])[1] for text in texts]
    half = len(texts) // 2
    results = [answer_on(cluster, args, i, texts[i], readers) for i in range(half)]
    gone = collections.Counter(readers[half:]).most_common(1)[0][0]
    cluster.end(gone)
    print(f"{gone}, which has read most of the other {len(texts) - half} contexts, is gone", flush=True)
    results += [answer_on(cluster, args, i, texts[i], readers) for i in range(half, len(texts))]
    return results, gone


def summarize(results):
    groups = {"on the server that read it": [r for r in results if r["answered_by"] == r["read_by"]],
              "on another server": [r for r in results if r["answered_by"] != r["read_by"]]}
    return {name: {"contexts": len(group), "full_ms_median": round(statistics.median(r["full_ms"] for r in group), 1),
                   "ttft_ms_median": round(statistics.median(r["ttft_ms"] for r in group), 1),
                   "speedup": round(statistics.median(r["full_ms"] for r in group) / statistics.median(r["ttft_ms"] for r in group), 3),
                   "reused": sum(r["sender"] is not None for r in group), "same_answer": round(statistics.mean(r["same_answer"] for r in group), 4),
                   "tiers": dict(collections.Counter(r["tier"] for r in group if r["tier"]))}
            for name, group in groups.items() if group}


def print_table(args, summary):
    print(f"\n{args.receiver} answers through HAProxy on contexts that {args.sender} has read:\n")
    print(f"{'':<28}{'contexts':>9}{'full prefill':>14}{'DroidSpeak':>12}{'speed-up':>10}{'from cache':>12}{'same answer':>13}  tiers")
    for name, group in summary.items():
        tiers = ", ".join(f"{tier} {count}" for tier, count in group["tiers"].items())
        print(f"{name:<28}{group['contexts']:>9}{group['full_ms_median']:>11.0f} ms{group['ttft_ms_median']:>9.0f} ms{group['speedup']:>9.2f}x"
              f"{group['reused']:>12}{100 * group['same_answer']:>12.0f}%  {tiers}")


def parse_arguments():
    parser = demo.argument_parser(__doc__, "cluster", contexts=18)
    parser.add_argument("--without-redis", action="store_true", help="each server keeps its caches to itself")
    parser.add_argument("--stay", action="store_true", help="leave the cluster running until Ctrl-C")
    args = parser.parse_args()
    if args.contexts < 4:
        parser.error(f"--contexts {args.contexts}: expected 4 or more")
    return args


def main():
    args = parse_arguments()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = demo.load_rows(args.data, args.contexts)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = Cluster(args)
    try:
        print(f"HAProxy on http://127.0.0.1:{cluster.port}, servers on {', '.join(str(port) for port in cluster.ports.values())}", flush=True)
        results, gone = run(cluster, args, rows)
        summary = summarize(results)
        print_table(args, summary)
        counts = collections.Counter(result["read_by"] for result in results)
        print("\ncontexts read by each: " + ", ".join(f"{name} {counts[name]}" for name in sorted(cluster.ports)))
        document = {"sender": args.sender, "receiver": args.receiver, "redis": not args.without_redis, "gone": gone, "groups": summary, "contexts": results}
        (args.out / "result.json").write_text(json.dumps(document, indent=2) + "\n")
        if args.stay:
            print("Ctrl-C ends it", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        print()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
