#!/usr/bin/env python3
"""The quality index of plan books: the smaller of 1 - (KL / K)^p and what the known answer's probability is shown to keep. K and p are
fitted to what plans lost on profile rows, and checked on rows apart; the known answer's lost probability is compared as it is.

  bench/paper/fit_index.py families/smollm2/plans/*.json --check bench/results/rows/calibration.*.jsonl.gz

Books and rows whose receiver hardly ever solves its task (full score below 0.1) say nothing about losses and are left out.
With --write the books' indices are made anew with --constant and --power. Sixty rows tell the lost probability to two or three
per cent; --gold adds rows of the profile's task that neither the book nor its maps have seen, and keeps plans that are still the best for their cost:

  droidspeak evaluate --sender base --receiver sentiment --data MORE.profile.jsonl.gz --plans "full;0,14,20;..." --rows ROWS.jsonl
  bench/paper/fit_index.py families/smollm2/plans/sentiment-from-base.json --gold ROWS.jsonl.gz --beyond 240 --write
"""

import argparse
import collections
import gzip
import json
import math
import statistics
from pathlib import Path

POWERS = (1, 1.5, 2)
CONSTANT, POWER = 1.08, 1.5  # of the index
MOST_KL = 0.5
LEAST_SCORE = 0.1
BINS = (0, 0.03, 0.06, 0.1, 0.15, 0.25, MOST_KL)

def losses(books, field):
    """(field, share of full prefill's score that was lost) of every scored plan that has the field."""
    return [(entry[field], 1 - entry["score"] / book["full_score"]) for book in books if book.get("full_score", 0) >= LEAST_SCORE
            for entry in book["frontier"] if "score" in entry and field in entry and entry["kl"] < MOST_KL]


def fit(points, power):
    """Least squares through the origin: constant and residual."""
    slope = sum(kl ** power * loss for kl, loss in points) / sum(kl ** (2 * power) for kl, _ in points)
    return slope ** (-1 / power), sum((loss - slope * kl ** power) ** 2 for kl, loss in points)


def slope_and_correlation(points):
    """Of the loss against what is to tell it: slope through the origin, and correlation (None where nothing varies)."""
    means = [statistics.mean(values) for values in zip(*points)]
    spread = [math.sqrt(sum((value - mean) ** 2 for value in values)) for values, mean in zip(zip(*points), means)]
    slope = sum(x * loss for x, loss in points) / sum(x * x for x, _ in points)
    if not all(spread):
        return slope, None
    return slope, sum((x - means[0]) * (loss - means[1]) for x, loss in points) / (spread[0] * spread[1])


def print_fit(name, points):
    if len(points) < 2 or not any(x for x, _ in points):
        return
    slope, correlation = slope_and_correlation(points)
    shown = "" if correlation is None else f", correlation {correlation:.2f}"
    print(f"loss against {name}: {len(points)} plans, slope {slope:.2f}{shown}")


def loss_of(entry, constant=CONSTANT, power=POWER):
    """shown_loss() of src/profiler/frontier.cpp: what is lost at most, as far as the rows show it."""
    loss = (entry["kl"] / constant) ** power
    return max(loss, entry["gold_lost"] + entry["gold_lost_se"]) if "gold_lost" in entry else loss


def index_of(entry, constant=CONSTANT, power=POWER):
    return 1 - min(max(loss_of(entry, constant, power), 0.0), 1.0)


def nll_of(row):
    return row["nll"] if "nll" in row else row.get("gold_nll")


def gold_lost(full, of_plan):
    """Of rows in pairs: the share of the known answer's probability that is lost and its standard error; (None, None) without."""
    pairs = [(math.exp(-nll_of(full[i])), math.exp(-nll_of(of_plan[i]))) for i in full
             if i in of_plan and nll_of(full[i]) is not None and nll_of(of_plan[i]) is not None]
    if len(pairs) < 2:
        return None, None
    all_of_it = statistics.mean(before for before, _ in pairs)
    lost = [before - after for before, after in pairs]
    return statistics.mean(lost) / all_of_it, statistics.stdev(lost) / math.sqrt(len(lost)) / all_of_it


def read_rows(path):
    """Full prefill's rows by id, and those of every (plan, translated)."""
    rows = collections.defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            rows[row["plan"], row["translated"]][row["id"]] = row
    return rows.pop(("full", False)), rows


def pooled(book, entry, share, error, rows):
    """A plan's lost probability over the book's rows and others."""
    own, both = book["data"]["contexts"], book["data"]["contexts"] + rows
    return {"gold_lost": (own * entry["gold_lost"] + rows * share) / both,
            "gold_lost_se": math.hypot(own * entry["gold_lost_se"], rows * error) / both}


def take_gold(book, path, first):
    """Lost probabilities with the rows of a file from number `first` on, for the plans that are there."""
    full, rows = read_rows(path)
    wanted = {name: row for name, row in full.items() if int(name.rsplit("-", 1)[1]) >= first}
    for entry in book["frontier"]:
        share, error = gold_lost(wanted, rows.get((entry["plan"], entry["translated"]), {}))
        if share is not None:
            print(f"{entry['plan']}: probability lost {entry['gold_lost']:.1%} ({entry['gold_lost_se']:.1%}), "
                  f"on {len(wanted)} more rows {share:.1%} ({error:.1%})")
            entry |= pooled(book, entry, share, error, len(wanted))


def best_for_their_cost(frontier):
    """Plans whose index no cheaper one reaches."""
    best = -1.0
    for entry in frontier:
        if entry["quality_index"] > best:
            yield entry
            best = entry["quality_index"]


def check(path, constant, power):
    """Prints what plans lost on the rows of a file. Returns (KL, loss) and (lost probability, loss) of each."""
    full, rows = read_rows(path)
    score = statistics.mean(row["score"] for row in full.values())
    print(f"{path.name}: {len(full)} rows, full prefill {score:.3f}")
    by_kl, by_gold = [], []
    if score < LEAST_SCORE:
        return by_kl, by_gold
    for (plan, translated), of_plan in rows.items():
        lost = [full[i]["score"] - of_plan[i]["score"] for i in full]
        entry = {"kl": statistics.mean(row["kl"] for row in of_plan.values())}
        error = statistics.stdev(lost) / math.sqrt(len(lost))
        share, share_error = gold_lost(full, of_plan)
        gold = ""
        by_kl.append((entry["kl"], statistics.mean(lost) / score))
        if share is not None:
            gold = f", probability lost {share:6.1%} (standard error {share_error:.1%})"
            entry |= {"gold_lost": share, "gold_lost_se": share_error}
            by_gold.append((share, statistics.mean(lost) / score))
        print(f"  {plan + (' t' if translated else ''):>14}: KL {entry['kl']:.3f}{gold}, "
              f"lost {statistics.mean(lost) / score:6.1%} (standard error {error / score:.1%}), "
              f"index says {1 - index_of(entry, constant, power):6.1%}")
    return by_kl, by_gold


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", nargs="+", type=Path)
    parser.add_argument("--check", nargs="*", type=Path, default=[], help="rows of `droidspeak evaluate --rows`, compressed")
    parser.add_argument("--constant", type=float, default=CONSTANT)
    parser.add_argument("--power", type=float, default=POWER)
    parser.add_argument("--gold", type=Path, help="rows of one book's pair, to be added to those that tell its plans' lost probability")
    parser.add_argument("--beyond", type=int, default=0, help="of these, rows from this number on: those before served the book or its maps")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    books = {path: json.loads(path.read_text()) for path in options.books}
    if options.gold:
        if len(books) != 1:
            parser.error(f"--gold {options.gold}: expected one book, its pair's; {len(books)} were given")
        take_gold(next(iter(books.values())), options.gold, options.beyond)
    points = losses(books.values(), "kl")
    print(f"{len(points)} plans with a KL below {MOST_KL}")
    for low, high in zip(BINS, BINS[1:]):
        part = [(kl, loss) for kl, loss in points if low <= kl < high]
        if part:
            print(f"  KL {statistics.mean(kl for kl, _ in part):.3f}: lost {statistics.mean(loss for _, loss in part):5.1%} "
                  f"({len(part)} plans), predicted {statistics.mean((kl / options.constant) ** options.power for kl, _ in part):.1%}")
    for power in POWERS:
        constant, residual = fit(points, power)
        print(f"power {power}: constant {constant:.2f}, residual {residual:.3f}, one per cent at a KL of {constant * 0.01 ** (1 / power):.3f}")
    print_fit("KL", points)
    print_fit("lost probability", losses(books.values(), "gold_lost"))
    checked = [check(path, options.constant, options.power) for path in options.check]
    if checked:
        print("all rows apart:")
        print_fit("KL", [point for by_kl, _ in checked for point in by_kl])
        print_fit("lost probability", [point for _, by_gold in checked for point in by_gold])
    if options.write:
        for path, book in books.items():
            for entry in book["frontier"]:
                entry["quality_index"] = index_of(entry, options.constant, options.power)
            if options.gold:
                book["frontier"] = list(best_for_their_cost(book["frontier"]))
            path.write_text(json.dumps(book, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
