#!/usr/bin/env python3
"""Mixed load on a server that shares caches through Redis and with a peer, while both, and the link to Redis, fail at
random: killed, stopped, flushed, out of memory, a password, old values under other names, connections that stand
still, break in the middle of a value, slow down or flip bytes. Every greedy answer is compared with full prefill's, or
with what the same plan gave before; nothing may be stuck at the end. Prints what happened and writes it to
out/network/report.json; exit status 1 when something did not hold."""

import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from checks import AdapterTimeline, Checker
from clients import Client
from network_faults import NetworkFaults, Redis, server_port
from prompts import make_prompts, record_references
from relay import Relay
from service import ROOT, Service
from soak import adapter_folders, check_after, check_drain

SCARCE = ["--kv-memory", "48MiB", "--cache-memory", "48MiB"]
SCARCE_TINY = ["--kv-memory", "2MiB", "--cache-memory", "2MiB"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--family", type=pathlib.Path, default=ROOT / "models" / "smollm2" / "family.json")
    parser.add_argument("--tiny", action="store_true", help="the tests' tiny family instead: many more requests")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "network")
    return parser.parse_args()


class Peer:
    """A server that reads contexts, which the other one then has from it or from Redis."""

    def __init__(self, start_service, prompts, models, seed):
        self.start_service = start_service
        self.prompts = prompts
        self.models = models
        self.random = random.Random(seed)
        self.start()

    def start(self):
        self.service = self.start_service("peer")

    def kill(self):
        self.service.kill()

    def read(self, stop):
        """Whatever comes back: it may be dead at any moment."""
        while not stop.wait(0.05):
            prompt = self.random.choice(self.prompts)
            body = {"model": self.random.choice(self.models), "messages": prompt.messages, "max_tokens": 1, "temperature": 0}
            try:
                connection = self.service.connect(timeout=5)
                connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
                connection.getresponse().read()
                connection.close()
            except OSError:
                stop.wait(0.2)
            except Exception:  # half an answer
                pass


def run_load(args, service, peer, redis, relay, prompts, models, pairs, checker):
    stop = threading.Event()
    period = max(1.0, min(10.0, args.minutes * 60 / 40))
    jobs = [(NetworkFaults(redis, relay, peer, checker, args.seed).run, (stop, period)), (peer.read, (stop,))]
    for i in range(args.clients):
        client = Client(service, prompts, models, pairs, checker, AdapterTimeline(), args.seed * 1000 + i)
        jobs.append((client.run, (stop,)))
    threads = [threading.Thread(target=job, args=arguments) for job, arguments in jobs]
    for thread in threads:
        thread.start()
    end = time.time() + args.minutes * 60
    while time.time() < end and service.process.poll() is None:
        time.sleep(min(10, max(0.1, end - time.time())))
        print(f"  {max(0, end - time.time()) / 60:5.1f} min left, {checker.counts}", file=sys.stderr, flush=True)
    stop.set()
    for thread in threads:
        thread.join()


def tiers_of(service):
    return {tier["name"]: tier for tier in service.state()["caches"]["tiers"]}


def check_tiers(tiers, checker):
    """The counters say what happened."""
    remote = tiers.get("remote", {})
    for counters in (["hits"], ["misses", "damaged"]):
        if sum(remote.get(counter, 0) for counter in counters) == 0:
            checker.problem(f"the remote tier counts no {' or '.join(counters)}: {remote}")
    if not any(link["failures"] > 0 for link in remote.get("links", [])):
        checker.problem(f"no link to Redis has failed: {remote}")


def run(args, folder):
    if args.tiny:
        made = subprocess.run([args.build / "bin" / "tiny_family", folder / "family", "--plan-books"], check=True, capture_output=True, text=True)
        args.family = pathlib.Path(made.stdout.strip())
    secret = folder / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o644)  # the server's user reads it
    folder.chmod(0o755)
    root = os.path.commonpath(list(adapter_folders(args.family).values()))
    program = shutil.copy(args.build / "droidspeak", folder)
    redis = Redis(folder)
    relay = Relay(redis.port, args.seed)

    def start_service(name):
        port = relay.port if name == "server" else redis.port
        flags = ["--remote-cache", f"redis://127.0.0.1:{port}", "--remote-secret-file", secret, "--remote-format", "raw"]
        if not args.without_peers:
            flags += ["--peer-listen", f"127.0.0.1:{server_port()}"]
        log = args.out / f"{name}.log"
        return Service(program, args.family, root, None, [*(SCARCE_TINY if args.tiny else SCARCE), *flags], log)

    service, peer = start_service("server"), None
    try:
        state = service.state()
        pairs = [(book["sender"], book["receiver"]) for book in service.plan_books()]
        models = [variant["name"] for variant in state["families"][0]["variants"]]
        prompts = make_prompts(service, args.contexts, 4)
        checker = Checker(record_references(service, prompts, models))
        peer = Peer(start_service, prompts, models, args.seed)
        run_load(args, service, peer, redis, relay, prompts, models, pairs, checker)
        check_after(service, prompts, models, checker)
        tiers = tiers_of(service)
        check_tiers(tiers, checker)
        fallbacks = service.labelled("droidspeak_share_fallbacks_total")
        check_drain(service, prompts[0], models[0], checker)
    finally:
        service.kill()
        if peer:
            peer.kill()
        relay.close()
        redis.kill()
    return report(args, checker, tiers, fallbacks)


def report(args, checker, tiers, fallbacks):
    shown = ("hits", "misses", "damaged", "dropped_writes", "write_errors", "bytes_read")
    result = {"minutes": args.minutes, "clients": args.clients, "counts": dict(sorted(checker.counts.items())),
              "tiers": {name: {field: tier.get(field) for field in shown} for name, tier in tiers.items()}, "fallbacks": fallbacks,
              "problems": checker.problems}
    (args.out / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 1 if checker.problems else 0


def main():
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="network-"))
    try:
        status = run(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("everything held" if status == 0 else "something did NOT hold (see above)")
    return status


if __name__ == "__main__":
    sys.exit(main())
