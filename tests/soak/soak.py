#!/usr/bin/env python3
"""Mixed load on the real server for a while: chat, completions, streams, variants with and without sharing, salts,
clients that leave, adapters that are replaced, and a disk tier that fails and recovers. Every greedy answer is
compared with a recorded one, memory must stay flat, nothing may be stuck at the end, and SIGTERM must drain.
Prints what happened and writes it to out/soak/report.json; exit status 1 when something did not hold."""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from checks import AdapterTimeline, Checker
from clients import Client
from faults import AdapterChanges, DiskFaults
from prompts import ask_alone, make_prompts, record_references, replay_plan
from service import ROOT, Service, own

WARM_UP_MINUTES = 4  # until the caches are full
MAX_GROWTH_MB = 32   # from then on
MAX_REPLAYS = 40
SCARCE = ["--kv-memory", "48MiB", "--cache-memory", "64MiB", "--cache-disk", "512MiB"]
SCARCE_TINY = ["--kv-memory", "2MiB", "--cache-memory", "4MiB", "--cache-disk", "32MiB"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--family", type=pathlib.Path, default=ROOT / "models" / "smollm2" / "family.json")
    parser.add_argument("--tiny", action="store_true", help="the tests' tiny family instead: many more requests")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mixed", choices=["may differ", "must agree"], default="must agree", help="answers from caches that a plan mixed before")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "soak")
    return parser.parse_args()


def adapter_folders(family):
    entries = json.loads(family.read_text())["variants"]
    return {entry["name"]: (family.parent / entry["adapter"]).resolve() for entry in entries if "adapter" in entry}


class Memory:
    """Resident memory over time."""

    def __init__(self, service):
        self.service = service
        self.samples = []

    def watch(self, stop):
        while not stop.wait(2):
            self.samples.append(self.service.resident_mb())

    def at(self, share):
        """Median of a tenth of the run around this share of it."""
        count = len(self.samples)
        middle = share * (count - 1)
        near = [value for i, value in enumerate(self.samples) if abs(i - middle) <= max(1, count / 20)]
        return statistics.median(near)


def run_load(args, service, prompts, models, pairs, checker, folders):
    stop = threading.Event()
    timeline = AdapterTimeline()
    memory = Memory(service)
    period = max(2.0, min(10.0, args.minutes * 60 / 60))
    changing = dict(list(folders.items())[:2])
    jobs = [(AdapterChanges(service, timeline, changing, checker).run, (stop, period)),
            (DiskFaults(service, args.cache_dir, checker, args.seed).run, (stop, period)), (memory.watch, (stop,))]
    for i in range(args.clients):
        client = Client(service, prompts, models, pairs, checker, timeline, args.seed * 1000 + i)
        jobs.append((client.run, (stop,)))
    threads = [threading.Thread(target=job, args=arguments) for job, arguments in jobs]
    for thread in threads:
        thread.start()
    end = time.time() + args.minutes * 60
    while time.time() < end and service.process.poll() is None:
        time.sleep(min(30, max(0.1, end - time.time())))
        print(f"  {max(0, end - time.time()) / 60:5.1f} min left, {service.resident_mb():.0f} MB, {checker.counts}", file=sys.stderr, flush=True)
    stop.set()
    for thread in threads:
        thread.join()
    return memory


def check_after(service, prompts, models, checker):
    """With the load gone: nothing is stuck, and every answer is still the recorded one."""
    if not service.wait_idle(20):
        checker.problem(f"stuck: {service.state()['queue']} {service.state()['kv']}")
    for prompt in prompts:
        for model in models:
            text, done = ask_alone(service, prompt, model, "off", "")
            checker.answer(prompt, [model], text, done)
            checker.count("answers after the load")
    checker.judge_ambiguous()
    by_name = {prompt.name: prompt for prompt in prompts}
    replayable = sorted(checker.plans.items())
    for i, (key, text) in enumerate(random.Random(1).sample(replayable, min(len(replayable), MAX_REPLAYS))):
        name, model, sender, plan, translated, reused = key
        wanted = {"sender": sender, "plan": plan, "translated": translated, "reused_tokens": reused}
        alone = replay_plan(service, by_name[name], model, wanted, f"replay {i}")
        checker.count("plans replayed alone" if alone is not None else "plans not replayed: caches were gone")
        if alone not in (None, text):
            checker.problem(f"{key}: {text!r} under load, {alone!r} alone")


def check_drain(service, prompt, model, checker):
    """SIGTERM while an answer is on its way: it is finished, and the exit status is 0."""
    connection = service.connect()
    body = {"model": model, "messages": prompt.messages, "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    service.process.send_signal(signal.SIGTERM)
    if b"data: [DONE]" not in response.read():
        checker.problem("SIGTERM cut a running answer short")
    try:
        status = service.process.wait(60)
    except subprocess.TimeoutExpired:
        return checker.problem("the server did not exit within 60 s of SIGTERM")
    if status != 0:
        checker.problem(f"exit status {status} after SIGTERM")
    return None


def run(args, folder):
    if args.tiny:
        made = subprocess.run([args.build / "bin" / "tiny_family", folder / "family", "--plan-books"], check=True, capture_output=True, text=True)
        args.family = pathlib.Path(made.stdout.strip())
    args.cache_dir = folder / "cache"
    folders = adapter_folders(args.family)
    own(folder)
    root = os.path.commonpath(list(folders.values()))
    program = shutil.copy(args.build / "droidspeak", folder)  # where the server's user can reach it
    service = Service(program, args.family, root, args.cache_dir, SCARCE_TINY if args.tiny else SCARCE, args.out / "server.log")
    try:
        state = service.state()
        pairs = [(book["sender"], book["receiver"]) for book in service.plan_books()]
        models = [variant["name"] for variant in state["families"][0]["variants"]]
        prompts = make_prompts(service, args.contexts, 4)
        lengths = sorted(len(prompt.tokens) for prompt in prompts)
        print(f"{len(prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens, models {models}, {len(pairs)} plan books", file=sys.stderr)
        checker = Checker(record_references(service, prompts, models), args.mixed)
        begin = service.metrics()
        memory = run_load(args, service, prompts, models, pairs, checker, folders)
        check_after(service, prompts, models, checker)
        metrics = {name: value - begin.get(name, 0) for name, value in service.metrics().items() if name.endswith("_total")}
        fallbacks = service.labelled("droidspeak_share_fallbacks_total")
        check_drain(service, prompts[0], models[0], checker)
    finally:
        service.kill()
    return report(args, checker, memory, metrics, fallbacks)


def report(args, checker, memory, metrics, fallbacks):
    warm = min(0.5, max(0.2, WARM_UP_MINUTES / args.minutes))
    resident = {"start": memory.samples[0], "warm": memory.at(warm), "middle": memory.at((1 + warm) / 2), "end": memory.at(1)}
    if resident["end"] - resident["warm"] > MAX_GROWTH_MB:
        checker.problem(f"memory grew: {resident} MB")
    shown = ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total", "droidspeak_share_hits_total",
             "droidspeak_cache_hits_total", "droidspeak_store_damaged_total", "droidspeak_store_write_errors_total",
             "droidspeak_store_evictions_total", "droidspeak_store_hits_total"]
    result = {"minutes": args.minutes, "family": str(args.family.name), "clients": args.clients,
              "resident_mb": {name: round(value, 1) for name, value in resident.items()}, "counts": dict(sorted(checker.counts.items())),
              "metrics": {name: metrics.get(name, 0) for name in shown}, "fallbacks": fallbacks, "problems": checker.problems}
    (args.out / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 1 if checker.problems else 0


def main():
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        status = run(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("everything held" if status == 0 else "something did NOT hold (see above)")
    return status


if __name__ == "__main__":
    sys.exit(main())
