#!/usr/bin/env python3
"""Makes a plan book's frontier anew from many profile rows, so that its index counts what is shown and not what is hoped for.

A profile finds plans and maps on few rows. Here plans named before are measured on many more rows of the profile part (`run.py
--part confirm`), and only those stay in the book. Rows that serve as confirmation have measured nothing before, and no map was
fitted to their questions.

  python3 bench/evidence/run.py --part confirm --plans "full;reuse+10%;0,16,20+25%;..." --sets own ... --out OUT
  python3 bench/evidence/confirm.py families/smollm2/plans/qa-from-base.json OUT/rows/qa-from-base.qa.jsonl.gz [--write]
"""

import argparse
import gzip
import json
import math
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "paper"))

from fit_index import gold_lost, index_of, loss_of  # noqa: E402

FLOORS = (0.95, 0.98, 0.99)
LEAST_GAIN = 0.97
LEFT_OUT = 5 / 6  # of the last recomputed layer: src/sharing/reuse_plan.h


def read(path):
    rows = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            rows.setdefault((row["plan"], row["translated"]), {})[row["id"]] = row
    return rows


def parts_of(plan):
    """(recomputed layers, work of them in layers, share of the tokens) of a plan's text."""
    layers, _, share = plan.partition("+")
    share = float(share.rstrip("%")) / 100 if share else 0.0
    if layers == "reuse":
        return 0, 0.0, share
    a, b, c = map(int, layers.split(","))
    ranges = (1 if a > 0 and (a < b or b == c) else 0) + (1 if b < c else 0)
    return a + c - b, a + c - b - LEFT_OUT * ranges, share


class Costs:
    """Predicted prefill work as a share of full prefill's, as src/profiler/frontier.cpp has it, by what a book says of its plans."""

    def __init__(self, book):
        self.layers = book["num_layers"]
        plain = next((e for e in book["frontier"] if e["plan"] == "reuse" and not e["translated"]), None)
        if plain is None:
            sys.exit("the book has no plain reuse; expected one as `droidspeak profile --confirm-contexts 0` writes it")
        self.suffix, self.translation = plain["relative_cost"], 0.0
        for entry in book["frontier"]:
            if entry["translated"]:
                rest = entry["relative_cost"] - self.of(entry["plan"], False)
                self.translation = rest / (1 - self.suffix) / (1 - parts_of(entry["plan"])[0] / self.layers)
                break

    def of(self, plan, translated):
        layers, work, share = parts_of(plan)
        maps = (1 - layers / self.layers) * self.translation if translated else 0.0
        return (2 if share else 1) * self.suffix + (1 - self.suffix) * (work / self.layers + maps + share)


def interval(values, rng):
    """95 % bootstrap interval of the mean."""
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(1000))
    return [means[25], means[974]]


def entry_of(plan, translated, rows, full, cost):
    ids = sorted(full)
    kls = [rows[i]["kl"] for i in ids]
    changes = [rows[i]["score"] - full[i]["score"] for i in ids]
    lost, error = gold_lost(full, rows)
    made = {"plan": plan, "translated": translated, "recomputed_layers": parts_of(plan)[0], "kl": statistics.fmean(kls),
            "kl_ci95": interval(kls, random.Random(1)), "agreement": statistics.fmean(rows[i]["agreement"] for i in ids),
            "score": statistics.fmean(rows[i]["score"] for i in ids), "score_difference_ci95": interval(changes, random.Random(2)),
            "relative_cost": cost}
    if lost is not None:
        made |= {"gold_lost": lost, "gold_lost_se": error}
    made["quality_index"] = index_of(made)
    return made


def worth_having(entries):
    """As pareto_plans() of src/profiler/frontier.cpp."""
    kept, best = [], None
    for entry in sorted(entries, key=lambda e: (e["relative_cost"], loss_of(e))):
        loss = loss_of(entry)
        first = best is not None and any(1 - loss >= floor > 1 - best for floor in FLOORS)
        if best is None or loss < best * LEAST_GAIN or first:
            kept.append(entry)
            best = loss
    return kept


def confirmed(book, rows):
    """The book with a frontier of the plans that were measured on all rows."""
    rows = dict(rows)
    full = rows.pop(("full", False))
    costs = Costs(book)
    entries = [entry_of(plan, translated, of_plan, full, costs.of(plan, translated))
               for (plan, translated), of_plan in rows.items() if set(of_plan) >= set(full)]
    made = dict(book)
    made["frontier"] = worth_having(entries)
    made["full_score"] = statistics.fmean(row["score"] for row in full.values())
    made["confirmed_contexts"] = len(full)
    golds = [math.exp(-row["nll"]) for row in full.values() if row["nll"] is not None]
    if len(golds) >= 2:
        made["full_gold_probability"] = statistics.fmean(golds)
    return made, entries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("book", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", type=Path, nargs="?", const=True, help="write the book, here or to this file")
    options = parser.parse_args()
    book, entries = confirmed(json.loads(options.book.read_text()), read(options.rows))
    kept = [id(e) for e in book["frontier"]]
    print(f"{options.book.stem}: {book['confirmed_contexts']} rows, full prefill {book['full_score']:.3f}")
    for e in sorted(entries, key=lambda e: e["relative_cost"]):
        gold = f"lost {e['gold_lost']:6.2%} +- {e['gold_lost_se']:.2%}, " if "gold_lost" in e else ""
        print(f"  {e['plan'] + (' t' if e['translated'] else ''):>16} cost {e['relative_cost']:.3f} KL {e['kl']:.4f} {gold}"
              f"score {e['score'] - book['full_score']:+.4f}, index {e['quality_index']:.4f}{' *' if id(e) in kept else ''}")
    for floor in FLOORS:
        taken = next((e for e in book["frontier"] if e["quality_index"] >= floor), None)
        print(f"  at {floor}: " + (f"{taken['plan']}{' t' if taken['translated'] else ''}, cost {taken['relative_cost']:.3f}" if taken else "full prefill"))
    if options.write:
        target = options.book if options.write is True else options.write
        target.write_text(json.dumps(book, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
