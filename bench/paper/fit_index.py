#!/usr/bin/env python3
"""The quality index of plan books: 1 - (KL / K)^p, fitted to what plans lost on profile rows, and checked on rows apart.

  bench/paper/fit_index.py families/smollm2/plans/*.json --check bench/results/rows/calibration.*.jsonl.gz

Books whose receiver hardly ever solves its task (full score below 0.1) say nothing about losses and are left out.
With --write the books' indices are made anew with --constant and --power.
"""

import argparse
import collections
import gzip
import json
import math
import statistics
from pathlib import Path

POWERS = (1, 1.5, 2)
MOST_KL = 0.5
BINS = (0, 0.03, 0.06, 0.1, 0.15, 0.25, MOST_KL)
DOUBT = 0.05


def losses(books):
    """(KL, share of full prefill's score that was lost) of every scored plan."""
    found = []
    for book in books:
        if book["full_score"] >= 0.1:
            found += [(e["kl"], 1 - e["score"] / book["full_score"]) for e in book["frontier"] if "score" in e]
    return [(kl, loss) for kl, loss in found if kl < MOST_KL]


def fit(points, power):
    """Least squares through the origin: constant and residual."""
    slope = sum(kl ** power * loss for kl, loss in points) / sum(kl ** (2 * power) for kl, _ in points)
    return slope ** (-1 / power), sum((loss - slope * kl ** power) ** 2 for kl, loss in points)


def deviations_for(probability):
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) > probability else (low, middle)
    return low


def index_of(entry, full_score, scored, constant, power):
    """As src/profiler/frontier.cpp has it."""
    index = 1 - min(1.0, (entry["kl"] / constant) ** power)
    if "score" not in entry or full_score <= 0:
        return index
    low, high = entry["score_difference_ci95"]
    error = (high - low) / (2 * deviations_for(DOUBT))
    is_worse = entry["score"] < full_score - deviations_for(DOUBT / scored) * error
    return min(max(entry["score"] / full_score, 0.0), index) if is_worse else index


def check(path, constant, power):
    rows = collections.defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            rows[row["plan"]][row["id"]] = row
    full = rows.pop("full")
    score = statistics.mean(row["score"] for row in full.values())
    print(f"{path.name}: {len(full)} rows, full prefill {score:.3f}")
    for plan, of_plan in rows.items():
        lost = [full[i]["score"] - of_plan[i]["score"] for i in full]
        kl = statistics.mean(row["kl"] for row in of_plan.values())
        error = statistics.stdev(lost) / math.sqrt(len(lost))
        print(f"  {plan:>12}: KL {kl:.3f}, lost {statistics.mean(lost) / score:6.1%} (standard error {error / score:.1%}), "
              f"predicted {min(1.0, (kl / constant) ** power):6.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", nargs="+", type=Path)
    parser.add_argument("--check", nargs="*", type=Path, default=[], help="rows of `droidspeak evaluate --rows`, compressed")
    parser.add_argument("--constant", type=float, default=1.08)
    parser.add_argument("--power", type=float, default=1.5)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    books = {path: json.loads(path.read_text()) for path in options.books}
    points = losses(books.values())
    print(f"{len(points)} plans with a KL below {MOST_KL}")
    for low, high in zip(BINS, BINS[1:]):
        part = [(kl, loss) for kl, loss in points if low <= kl < high]
        if part:
            print(f"  KL {statistics.mean(kl for kl, _ in part):.3f}: lost {statistics.mean(loss for _, loss in part):5.1%} "
                  f"({len(part)} plans), predicted {statistics.mean((kl / options.constant) ** options.power for kl, _ in part):.1%}")
    for power in POWERS:
        constant, residual = fit(points, power)
        print(f"power {power}: constant {constant:.2f}, residual {residual:.3f}, one per cent at a KL of {constant * 0.01 ** (1 / power):.3f}")
    for path in options.check:
        check(path, options.constant, options.power)
    if options.write:
        for path, book in books.items():
            scored = sum("score" in entry for entry in book["frontier"])
            for entry in book["frontier"]:
                entry["quality_index"] = index_of(entry, book["full_score"], scored, options.constant, options.power)
            path.write_text(json.dumps(book, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
