#!/usr/bin/env python3
"""Profiles pairs and judges their plans on test rows of the receiver's own task.

Plans are fixed by the profile rows before a test row is read: the choice of the family's own plan book (`auto`, quality floor
0.99; `--profile` makes a new book first) and plans named below. What exists is kept, so a stopped run goes on where it was. `tables.py` makes the tables of the results.

  rows:     python3 tools/train_variants.py rows TASK profile|test --data DATA --out ROWS/TASK.PART.jsonl.gz
  example:  python3 bench/evidence/run.py --family models/smollm2/family.json --rows ROWS --out OUT --device cuda --pairs base:qa
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANS = "full;reuse;auto;0,16,24;reuse+5%;reuse+10%"
# task -> (metric, longest answer in tokens, test rows at most)
TASKS = {"qa": ("f1", 32, 0), "sentiment": ("exact_match", 8, 0), "entities": ("f1", 128, 400), "math": ("final_number", 256, 200)}
OTHER_SETS = ("hotpotqa", "2wikimqa", "musique")  # of the tasks that answer questions over documents
OTHER_PLANS = "full;auto;0,16,24;0,16,20+10%;reuse+5%;reuse+10%;reuse+15%"
SPAN = 32  # tokens of an answer whose divergence is summed up together


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True, help="folder of TASK.profile.jsonl.gz, TASK.test.jsonl.gz and the other sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", required=True, help="sender:receiver,...")
    parser.add_argument("--program", default=str(ROOT / "build-cuda/droidspeak"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", action="store_true", help="make new plan books in OUT/plans instead of taking the family's")
    parser.add_argument("--contexts", type=int, default=60, help="profile rows that are measured by --profile")
    parser.add_argument("--fit-contexts", type=int, default=240, help="profile rows that maps are fitted on by --profile")
    parser.add_argument("--parallel", type=int, default=2, help="processes side by side")
    parser.add_argument("--merge", action="store_true", help="measure nothing; put together the parts that are there")
    parser.add_argument("--shards", type=int, default=6, help="parts of the test rows")
    parser.add_argument("--kv-memory", default="3GiB")
    parser.add_argument("--part", default="test", help="which rows of the receiver's own task: ROWS/TASK.PART.jsonl.gz")
    parser.add_argument("--plans", help="plans instead of those named above, separated by ;")
    parser.add_argument("--seconds", type=float, default=0, help="begin no part after so long, and end what runs then (0: no limit)")
    parser.add_argument("--sets", default="own,other", help="own: the receiver's task; other: HotpotQA, 2WikiMultihopQA, MuSiQue; else ROWS/NAME.test.jsonl.gz")
    return parser.parse_args()


def task_of(variant):
    return variant.split("-")[0]


def run(command, log, until=None):
    """Ends the command when the clock says `until`."""
    with open(log, "w") as file:
        seconds = None if until is None else max(until - time.monotonic(), 0)
        try:
            done = subprocess.run([str(word) for word in command], stdout=file, stderr=subprocess.STDOUT, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{log}: no time left") from error
    if done.returncode != 0:
        raise RuntimeError(f"{log}: {Path(log).read_text()[-500:]}")


def read_lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text, mtime=0))


def compact(row):
    """What the tables need of a row and plan."""
    made = {"id": row["id"], "plan": row["plan"], "translated": row["translated"], "score": round(row["score"], 4),
            "kl": round(row["kl"], 5), "agreement": round(row["agreement"], 4), "nll": None if row["gold_nll"] is None else round(row["gold_nll"], 4)}
    kls = row["token_kls"]
    if len(kls) > SPAN:
        made["kl_by_span"] = [[round(sum(kls[i:i + SPAN]), 4), len(kls[i:i + SPAN])] for i in range(0, len(kls), SPAN)]
    return made


class Pair:
    def __init__(self, args, text):
        self.args = args
        self.sender, self.receiver = text.split(":")
        self.name = f"{self.receiver}-from-{self.sender}"
        self.task = task_of(self.receiver)
        self.common = ["--sender", self.sender, "--receiver", self.receiver, "--device", args.device, "--kv-memory", args.kv_memory]
        for folder in ("rows", "work"):
            (args.out / folder).mkdir(parents=True, exist_ok=True)

    def make_book(self):
        book = self.args.out / "plans" / f"{self.name}.json"
        if not book.exists():
            metric = TASKS[self.task][0]
            run([self.args.program, "profile", "--family", self.args.family, *self.common, "--metric", metric,
                 "--data", self.args.rows / f"{self.task}.profile.jsonl.gz", "--contexts", self.args.contexts,
                 "--fit-contexts", self.args.fit_contexts, "--out", book],
                self.args.out / "work" / f"{self.name}.profile.log")
        return str(book.resolve())

    def prepare(self):
        """A family with this pair's book alone."""
        family = json.loads(self.args.family.read_text())
        place = lambda path: str((self.args.family.parent / path).resolve())
        for variant in [family["base"], *family["variants"]]:
            for key in ("path", "adapter"):
                if key in variant:
                    variant[key] = place(variant[key])
        books = [place(book) for book in family.get("plan_books", []) if Path(book).stem == self.name]
        if not self.args.profile and not books:
            raise RuntimeError(f"{self.args.family}: no plan book {self.name}.json; make one with --profile")
        family["plan_books"] = [self.make_book()] if self.args.profile else books
        self.family = self.args.out / "work" / f"{self.name}.family.json"
        self.family.write_text(json.dumps(family))

    def jobs(self):
        """(set, rows, plans) of everything that is judged."""
        wanted = self.args.sets.split(",")
        if "own" in wanted:
            rows = read_lines(self.args.rows / f"{self.task}.{self.args.part}.jsonl.gz")
            most = TASKS[self.task][2] if self.args.part == "test" else 0
            yield self.task, rows[:most or None], self.args.plans or PLANS
        others = [name for one in wanted for name in (OTHER_SETS if one == "other" else [] if one == "own" else [one])]
        for name in others if self.task == "qa" else []:
            yield name, read_lines(self.args.rows / f"{name}.test.jsonl.gz"), self.args.plans or OTHER_PLANS

    def shards(self):
        for name, rows, plans in self.jobs():
            count = min(self.args.shards, max(1, len(rows) // 50))
            for number in range(count):
                yield number, self, name, f"{number}of{count}", rows[number::count], plans

    def place(self, name, part, kind):
        return self.args.out / "work" / f"{self.name}.{name}.{part}.{kind}"

    def evaluate(self, name, part, rows, plans):
        found = self.place(name, part, "rows.jsonl")
        if found.exists():
            return
        data, unfinished = self.place(name, part, "data.jsonl.gz"), self.place(name, part, "part.jsonl")
        write_lines(data, rows)
        metric, tokens, _ = TASKS[self.task]
        run([self.args.program, "evaluate", "--family", self.family, *self.common, "--metric", metric, "--max-tokens", tokens,
             "--plans", plans, "--data", data, "--rows", unfinished], self.place(name, part, "log"), self.args.until)
        unfinished.rename(found)

    def merge(self):
        """Rows of the parts that are done; a part holds every n-th row, so any number of them is a fair sample."""
        found = (self.args.out / "work").glob(f"{self.name}.*.rows.jsonl")
        for name in sorted({path.name.removeprefix(self.name + ".").split(".")[0] for path in found}):
            parts = sorted((self.args.out / "work").glob(f"{self.name}.{name}.*.rows.jsonl"))
            rows = [compact(json.loads(line)) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
            if rows:
                write_lines(self.args.out / "rows" / f"{self.name}.{name}.jsonl.gz", rows)
                print(f"{self.name}, {name}: {len({row['id'] for row in rows})} rows", flush=True)


def measure(args, pairs):
    """Every pair's first parts before its second ones, so that a run that is stopped has some of each. Returns what failed."""
    failed = []

    def attempt(what, function, *arguments):
        try:
            function(*arguments)
        except (RuntimeError, OSError) as error:
            failed.append(what)
            print(f"{what}: {error}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(args.parallel) as pool:
        list(pool.map(lambda pair: attempt(pair.name, pair.prepare), pairs))
        shards = sorted((shard for pair in pairs if pair.name not in failed for shard in pair.shards()), key=lambda shard: shard[0])  # shard: number, pair, set, part, rows, plans
        list(pool.map(lambda shard: attempt(f"{shard[1].name} {shard[2]}", shard[1].evaluate, *shard[2:]), shards))
    return failed


def main():
    args = parse_arguments()
    args.until = time.monotonic() + args.seconds if args.seconds else None
    pairs = [Pair(args, text) for text in args.pairs.split(",")]
    failed = [] if args.merge else measure(args, pairs)
    for pair in pairs:
        pair.merge()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
