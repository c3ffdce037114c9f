#!/usr/bin/env python3
"""A test of non-inferiority as docs/evidence.md names it before its rows are read.

Books are confirmed first, on profile rows that have measured nothing (confirm.py; the shipped ones are), then what `auto` takes is
judged on test rows.
The two full fine-tunes are trained and profiled here, since their weights are not shipped. Everything that is done is kept in
WORK, so a stopped run goes on where it was; what is there when the time is up is written to OUT, or before, beside a run that goes
on, by --collect with another OUT.

  python3 bench/evidence/campaign.py --program build-cuda/droidspeak --gguf SmolLM2-135M-Instruct.Q4_1.gguf --data DATA --work WORK --out OUT --seconds 900
  python3 bench/evidence/noninferiority.py judge OUT/rows/*.jsonl.gz
"""

import argparse
import heapq
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from run import ROOT, Pair, compact, read_lines, write_lines

FULL = "math-full:qa-full"
PAIRS = {FULL: 4, "math:qa": 2, "qa-alt:qa": 2, "base:qa": 2, "qa:qa-alt": 4}  # contexts of each test question
OPEN = [FULL, "base:qa"]  # of the second test
CANDIDATES = "full;reuse;reuse+5%;reuse+10%;reuse+25%;0,16,20+15%;0,16,20+25%;0,16,22+25%;0,12,24+25%;0,12,28+25%;0,8,24+25%;0,8,28+25%"
PROFILE_ROWS = ROOT / "tests/data/qa/qa.profile.jsonl.gz"  # what the shipped books were profiled on
FAMILY = ROOT / "families/smollm2"
FLOOR = 0.99  # of `auto`
MPS_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"  # 0 before 1: the full fine-tunes, which others wait for, before rows


def say(text):
    print(f"[{time.monotonic() - say.begin:5.0f} s] {text}", flush=True)


say.begin = time.monotonic()


def reaches_floor(path):
    """Whether a confirmed book has a plan for `auto`."""
    book = json.loads(path.read_text())
    return "confirmed_contexts" in book and any(entry["quality_index"] >= FLOOR for entry in book["frontier"])


class Queue:
    """Jobs by priority, several at a time, until the time is up. A job that fails is tried once more, then named, and its followers
    do not begin."""

    def __init__(self, until):
        self.until, self.heap, self.changed, self.open, self.number = until, [], threading.Condition(), 0, itertools.count()
        self.failed = []

    def put(self, priority, name, job, tries=2, is_next=False):
        """Behind what has this priority, or before it."""
        with self.changed:
            number = next(self.number)
            heapq.heappush(self.heap, (priority, -number if is_next else number, name, job, tries))
            self.open += 1
            self.changed.notify()

    def put_all(self, priority, name, jobs, then=lambda: None):
        """`then` when all have succeeded, as a job of its own and before others of this priority."""
        left, lock = [len(jobs)], threading.Lock()

        def counted(job):
            job()
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                self.put(priority, name, then, tries=1, is_next=True)  # not within this job, which may be tried again

        for job in jobs:
            self.put(priority, name, lambda job=job: counted(job))

    def _next(self):
        with self.changed:
            while not self.heap and self.open and time.monotonic() < self.until:
                self.changed.wait(1)
            return heapq.heappop(self.heap) if self.heap and time.monotonic() < self.until else None

    def _work(self):
        while (taken := self._next()) is not None:
            priority, _, name, job, tries = taken
            try:
                job()
            except (RuntimeError, OSError, subprocess.SubprocessError, SystemExit) as error:
                say(f"{name}: {str(error)[-600:]}")
                if tries > 1 and time.monotonic() < self.until:
                    self.put(priority, name, job, tries - 1)
                else:
                    self.failed.append(name)
            with self.changed:
                self.open -= 1
                self.changed.notify_all()

    def run(self, workers):
        threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Campaign:
    def __init__(self, args):
        self.args, self.queue = args, Queue(time.monotonic() + args.seconds)
        self.work = args.work
        for folder in ("data", "models", "plans", "logs"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)

    def call(self, name, command):
        """Runs a command into a log; ends it when the time is up."""
        log = self.work / "logs" / f"{name}.log"
        with open(log, "w") as file:
            done = subprocess.run([str(word) for word in command], stdout=file, stderr=subprocess.STDOUT,
                                  timeout=max(self.queue.until - time.monotonic(), 0), env=os.environ | {MPS_PRIORITY: "0"})
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {log.read_text()[-500:]}")

    # ---- rows

    def make_rows(self, name, *flags):
        path = self.work / "data" / f"qa.{name}.jsonl.gz"
        if path.exists():
            return
        unfinished = path.with_name("new." + path.name)
        self.call(f"rows.{name}", [sys.executable, ROOT / "tools/train_variants.py", "rows", "qa", *flags, "--most-of-article", 1000,
                                   "--data", self.args.data, "--out", unfinished, *(["--count", self.args.limit] if self.args.limit else [])])
        unfinished.rename(path)

    def row_jobs(self):
        yield lambda: self.make_rows("confirm", "profile", "--draws", 1, "--without", PROFILE_ROWS)
        for draw in range(1, max(PAIRS.values()) + 1):
            yield lambda draw=draw: self.make_rows(f"draw{draw}", "test", "--draws", draw)

    # ---- models and books

    def model(self, name):
        if name == "base":
            return {"name": name, "path": str(self.args.gguf)}
        if name.endswith("-full"):
            return {"name": name, "path": str(self.work / "models" / name)}
        return {"name": name, "adapter": str(FAMILY / name)}

    def family(self, pair, book):
        sender, receiver = pair.split(":")
        path = self.work / f"{receiver}-from-{sender}.{'confirmed' if book and book.parent == self.work / 'plans' else 'first'}.json"
        base = self.model("base")
        variants = [self.model(name) for name in (sender, receiver) if name != "base"]
        path.write_text(json.dumps({"name": "campaign", "base": base, "variants": variants, "plan_books": [str(book)] if book else []}))
        return path

    def train(self, name):
        if (self.work / "models" / f"{name}.json").exists():
            return
        self.call(f"train.{name}", [sys.executable, ROOT / "tools/train_variants.py", "train", name, "--gguf", self.args.gguf, "--data", self.args.data,
                                    "--out", self.work / "models", "--limit", 0, "--before", "none",
                                    *(["--steps", self.args.steps] if self.args.steps is not None else [])])
        say(f"{name} is trained")

    def profile(self, pair):
        book = self.first_book(pair)
        if book.exists():
            return
        sender, receiver = pair.split(":")
        book.parent.mkdir(exist_ok=True)
        self.call(f"profile.{receiver}", [self.args.program, "profile", "--family", self.family(pair, None), "--sender", sender, "--receiver", receiver,
                                          "--device", self.args.device, "--kv-memory", self.args.kv_memory, "--threads", 4, "--data", PROFILE_ROWS, "--metric", "f1",
                                          "--contexts", self.args.contexts, "--fit-contexts", self.args.fit_contexts, "--confirm-contexts", 0,
                                          "--group", self.args.group, "--out", book])
        say(f"{receiver} from {sender} is profiled")

    def first_book(self, pair):
        sender, receiver = pair.split(":")
        folder = self.work / "first" if pair == FULL else FAMILY / "plans"
        return folder / f"{receiver}-from-{sender}.json"

    def confirm_book(self, pair):
        """The pair's book with the frontier of the confirming rows, and its maps beside it."""
        first = self.first_book(pair)
        book = self.work / "plans" / first.name
        if not book.exists():
            name = first.stem
            self.call(f"confirm.{name}", [sys.executable, ROOT / "bench/evidence/confirm.py", first, self.merged(pair, ["confirm"]), "--write", book])
            say((self.work / "logs" / f"confirm.{name}.log").read_text())
        maps = json.loads(book.read_text())["maps"]  # "" where none was found
        if maps and not (book.parent / maps).exists():
            shutil.copy(first.parent / maps, book.parent / maps)
        if not reaches_floor(book):
            say(f"{first.stem}: `auto` reads in full, nothing to judge")
            return
        for draw in range(1, PAIRS[pair] + 1):
            self.evaluate(0 if pair == FULL else 3, pair, f"draw{draw}", "full;auto", book)

    # ---- rows of plans

    def pair_of(self, pair, part, plans, book):
        args = argparse.Namespace(family=self.family(pair, book), rows=self.work / "data", out=self.work / part, program=self.args.program,
                                  device=self.args.device, profile=False, shards=self.args.shards, kv_memory=self.args.kv_memory, part=part,
                                  plans=plans, sets="own", until=self.queue.until)
        made = Pair(args, pair)
        made.common += ["--threads", 2, "--cache-memory", "1GiB"]  # many processes share the host
        made.prepare()
        return made

    def evaluate(self, priority, pair, part, plans, book, then=lambda: None):
        judged = self.pair_of(pair, part, plans, book)
        shards = list(judged.shards())
        jobs = [lambda shard=shard: judged.evaluate(*shard[2:]) for shard in shards]

        def done():
            say(f"{judged.name}, {part}: done")
            then()

        self.queue.put_all((priority, part), f"{judged.name} {part}", jobs, done)

    def merged(self, pair, parts):
        """Writes and names the rows of all parts that are done."""
        sender, receiver = pair.split(":")
        name = f"{receiver}-from-{sender}"
        rows = [compact(json.loads(line)) for part in parts for path in sorted((self.work / part / "work").glob(f"{name}.qa.*.rows.jsonl"))
                for line in path.read_text(encoding="utf-8").splitlines()]
        target = self.args.out / ("profile" if parts == ["confirm"] else "rows") / f"{name}.{'confirm' if parts == ['confirm'] else 'qa'}.jsonl.gz"
        if rows:
            write_lines(target, rows)
        return target

    # ---- all of it

    def begin(self):
        pairs = self.args.pairs.split(",")

        def confirm(pair, priority):
            if reaches_floor(self.first_book(pair)):  # confirmed before
                shutil.copy(self.first_book(pair), self.work / "plans")
                self.confirm_book(pair)
                return
            self.evaluate(priority, pair, "confirm", CANDIDATES, self.first_book(pair), lambda: self.confirm_book(pair))

        def confirm_shipped():
            say("rows are made")
            for pair in pairs:
                if pair != FULL:
                    confirm(pair, 2)

        steps = [lambda: self.queue.put_all((-1, ""), "rows", list(self.row_jobs()), lambda: (confirm_shipped(), ready()))]
        if FULL in pairs:
            names = FULL.split(":")
            steps.append(lambda: self.queue.put_all((-2, ""), "training", [lambda name=name: self.train(name) for name in names],
                                                    lambda: self.queue.put_all((-2, ""), "profile", [lambda: self.profile(FULL)], ready)))
        left, lock = [len(steps)], threading.Lock()

        def ready():
            """The full pair is confirmed when it is profiled and the rows are there."""
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last and FULL in pairs:
                confirm(FULL, 1)

        for step in steps:
            step()

    def collect(self):
        for pair in self.args.pairs.split(","):
            self.merged(pair, ["confirm"])
            target = self.merged(pair, [f"draw{n}" for n in range(1, 100) if (self.work / f"draw{n}").exists()])
            if target.exists():
                say(f"{target.name}: {len({row['id'] for row in read_lines(target)})} rows")
        for folder in ("plans", "first"):
            for book in (self.work / folder).glob("*.json"):
                (self.args.out / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(book, self.args.out / folder / book.name)
        shutil.copytree(self.work / "logs", self.args.out / "logs", dirs_exist_ok=True)
        for report in (self.work / "models").glob("*.json"):
            shutil.copy(report, self.args.out / "logs" / report.name)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--program", "--gguf", "--data", "--work", "--out"):
        parser.add_argument(name, type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--collect", action="store_true", help="measure nothing; write what is there to OUT")
    parser.add_argument("--processes", type=int, default=14, help="side by side, training among them")
    parser.add_argument("--pairs", default=",".join(OPEN), help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--shards", type=int, default=24, help="parts of a draw's rows")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kv-memory", default="3GiB")
    parser.add_argument("--contexts", type=int, default=40, help="profile rows that are measured for the full fine-tunes")
    parser.add_argument("--fit-contexts", type=int, default=250)
    parser.add_argument("--group", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of the training, instead of the recipe's (a try)")
    parser.add_argument("--limit", type=int, default=0, help="rows of each part at most (a try)")
    return parser.parse_args()


def main():
    args = parse_arguments()
    campaign = Campaign(args)
    if args.collect:
        campaign.collect()
        return 0
    os.environ[MPS_PRIORITY] = "1"
    campaign.begin()
    campaign.queue.run(args.processes)
    campaign.collect()
    say(f"failed: {', '.join(sorted(set(campaign.queue.failed)))}" if campaign.queue.failed else "nothing failed")
    return 1 if campaign.queue.failed else 0


if __name__ == "__main__":
    sys.exit(main())
