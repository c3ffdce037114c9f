#!/usr/bin/env python3
"""Tables of docs/evidence.md from the rows that run.py left.

  python3 bench/evidence/tables.py                  prints them
  python3 bench/evidence/tables.py --write          puts them between the marks of docs/evidence.md
  python3 bench/evidence/tables.py --check          fails when the document says something else

Intervals are of the mean of paired differences, question by question, by the normal approximation: 1.96 standard errors.
A plan is non-inferior when the lower end of the 95 % interval of (shared - full) lies above -2 % of full prefill's score."""

import argparse
import gzip
import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "bench/results/rows/evidence"
SHARES = ROOT / "bench/results/rows/shares"  # further plans on some of the other sets' rows
CONFIRMED = ROOT / "bench/results/rows/confirmed"  # candidates of the announced test, on profile rows
JUDGED = ROOT / "bench/results/rows/noninferiority"
DOCUMENT = ROOT / "docs/evidence.md"
LEAST_POOLED = 1000  # rows of a pair
MARGIN = 0.02
METRICS = {"f1": "F1", "exact_match": "accuracy", "final_number": "right numbers"}
SETS = {"hotpotqa": "HotpotQA", "2wikimqa": "2WikiMultihopQA", "musique": "MuSiQue"}
LEAST_SPANS = 4  # of 32 tokens, of an answer that counts as long


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def mean(values):
    return sum(values) / len(values)


def error_of(values):
    if len(values) < 2:
        return float("nan")
    center = mean(values)
    return math.sqrt(sum((v - center) ** 2 for v in values) / (len(values) - 1) / len(values))


class Measured:
    """One pair on one set of rows: plan -> id -> row."""

    def __init__(self, path):
        self.pair, self.set = re.match(r"(.+)\.([a-z0-9_]+)\.jsonl\.gz$", path.name).groups()
        self.plans = {}
        for row in read(path):
            self.plans.setdefault((row["plan"], row["translated"]), {})[row["id"]] = row
        self.full = self.plans[("full", False)]

    def count(self):
        return len(self.full)

    def full_score(self):
        return 100 * mean([row["score"] for row in self.full.values()])

    def differences(self, plan, field="score"):
        rows = self.plans[plan]
        return [rows[i][field] - self.full[i][field] for i in self.full if rows[i][field] is not None]

    def kl(self, plan):
        return mean([row["kl"] for row in self.plans[plan].values()])


def name_of(plan):
    return plan[0] + (", translated" if plan[1] else "")


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)])


def pairs_of(measured, of_own):
    return [m for m in measured if (m.set not in SETS) == of_own]


def verdict(changes, full):
    """Of the differences of a plan, in shares of one, against the margin."""
    change, error, limit = 100 * mean(changes), 196 * error_of(changes), -MARGIN * full
    if full == 0:
        return "-"
    return "yes" if change - error > limit else "no: worse" if change + error < limit else "open"


def auto_of(m):
    """What the pair's book took when the rows were measured: the first plan of the command's list but full prefill and plain reuse."""
    return next(plan for plan in m.plans if plan[0] not in ("full", "reuse"))


def pooled_table(measured):
    """Pairs whose receivers answer the same questions, averaged question by question."""
    pairs = [m for m in pairs_of(measured, True) if m.set == "qa" and m.count() >= LEAST_POOLED]
    shared = set.intersection(*(set(m.full) for m in pairs))
    rows = []
    for name, choose in {"auto": auto_of, "0,16,24": lambda m: ("0,16,24", True), "reuse+5%": lambda m: ("reuse+5%", True),
                         "reuse+10%": lambda m: ("reuse+10%", True), "reuse, raw": lambda m: ("reuse", False)}.items():
        changes = [mean([m.plans[choose(m)][i]["score"] - m.full[i]["score"] for m in pairs]) for i in sorted(shared)]
        full = 100 * mean([mean([m.full[i]["score"] for m in pairs]) for i in sorted(shared)])
        change, error = 100 * mean(changes), 196 * error_of(changes)
        kl = mean([m.kl(choose(m)) for m in pairs])
        rows.append([name, str(len(pairs)), str(len(shared)), f"{full:.1f}", f"{change:+.2f} ({change - error:+.2f} .. {change + error:+.2f})",
                     f"{100 * change / full:+.1f} %", f"{kl:.3f}", verdict(changes, full)])
    return table(["plan", "pairs", "questions", "full F1", "shared - full, points (95 %)", "of full", "KL", "non-inferior at 2 %"], rows)


def own_table(measured):
    rows = []
    for m in pairs_of(measured, True):
        full = m.full_score()
        for plan in m.plans:
            if plan[0] == "full":
                continue
            changes = m.differences(plan)
            change, error = 100 * mean(changes), 196 * error_of(changes)
            nll = m.differences(plan, "nll")
            rows.append([m.pair, str(m.count()), f"{full:.1f}", name_of(plan) + (" (auto)" if plan == auto_of(m) else ""),
                         f"{change:+.2f} ({change - error:+.2f} .. {change + error:+.2f})", f"{m.kl(plan):.4f}", f"{mean(nll):+.4f}" if nll else "-", verdict(changes, full)])
    return table(["pair", "rows", "full", "plan", "shared - full, points (95 %)", "KL", "gold NLL", "non-inferior at 2 %"], rows)


def other_table(measured):
    rows = []
    for m in pairs_of(measured, False):
        for plan in m.plans:
            if plan[0] == "full":
                continue
            changes = m.differences(plan)
            change, error = 100 * mean(changes), 196 * error_of(changes)
            rows.append([m.pair, SETS[m.set], str(m.count()), f"{m.full_score():.1f}", name_of(plan),
                         f"{change:+.2f} ({change - error:+.2f} .. {change + error:+.2f})", f"{m.kl(plan):.4f}"])
    return table(["pair", "set", "rows", "full F1", "plan", "shared - full, points (95 %)", "KL"], rows)


BLOCK = ("0,16,24", True)
AGAINST_BLOCK = [("0,16,20+10%", True), ("0,16,20+15%", True), ("reuse+25%", True)]


def ratio_table(measured):
    """KL of plans as a share of the block's, on the rows where both were measured; where several runs have a plan, that of most rows."""
    found = {}
    for m in [*pairs_of(measured, False), *(Measured(path) for path in sorted(SHARES.glob("*.jsonl.gz")))]:
        for plan in (plan for plan in AGAINST_BLOCK if plan in m.plans):
            ids = [i for i in m.plans[plan] if i in m.plans[BLOCK]]
            of_plan, of_block = (mean([m.plans[p][i]["kl"] for i in ids]) for p in (plan, BLOCK))
            best = found.setdefault((m.pair, m.set), {})
            if plan not in best or len(ids) > best[plan][0]:
                best[plan] = (len(ids), of_plan, of_block)
    cell = lambda one: f"{one[1] / one[2]:.2f} ({one[1]:.3f} of {one[2]:.3f}, {one[0]} rows)" if one else "-"
    rows = [[pair, SETS[name], *(cell(best.get(plan)) for plan in AGAINST_BLOCK)] for (pair, name), best in sorted(found.items())]
    return table(["pair", "set", *(plan[0] for plan in AGAINST_BLOCK)], rows)


def span_table(measured):
    """KL by place in the answer, of the same answers in every column: those that reach the last one."""
    rows = []
    for m in pairs_of(measured, True):
        for plan in m.plans:
            spans = [row["kl_by_span"] for row in m.plans[plan].values() if len(row.get("kl_by_span", [])) >= LEAST_SPANS]
            if plan[0] != "full" and len(spans) >= 10:
                means = [sum(s[i][0] for s in spans) / sum(s[i][1] for s in spans) for i in range(LEAST_SPANS)]
                rows.append([m.pair, str(len(spans)), name_of(plan), *(f"{value:.4f}" for value in means)])
    return table(["pair", "answers", "plan", *(f"tokens {32 * i + 1}-{32 * i + 32}" for i in range(LEAST_SPANS))], rows)


def judged_table(_):
    """The announced test: questions, their rows averaged."""
    from noninferiority import by_question, clustered_error  # which needs this module
    rows = []
    for m in (Measured(path) for path in sorted(JUDGED.glob("*.jsonl.gz"))):
        plan, full = auto_of(m), m.full_score()
        by_name = by_question(m, plan)
        changes, nll = list(by_name.values()), m.differences(plan, "nll")
        change, error, clustered = 100 * mean(changes), 196 * error_of(changes), 196 * clustered_error(by_name)
        rows.append([m.pair, name_of(plan), str(len(changes)), str(m.count()), f"{full:.1f}", f"{change:+.2f} ({change - error:+.2f} .. {change + error:+.2f})",
                     f"{change - clustered:+.2f} .. {change + clustered:+.2f}", f"{-MARGIN * full:.2f}", f"{m.kl(plan):.4f}", f"{mean(nll):+.4f}", verdict(changes, full)])
    return table(["pair", "plan (`auto`)", "questions", "rows", "full F1", "shared - full, points (95 %)", "by article and page", "margin", "KL", "gold NLL",
                  "non-inferior"], rows)


def confirmed_table(_):
    """Candidates on profile rows that have measured nothing else, and what `auto` takes at its default floor."""
    from confirm import gold_lost, loss_of
    rows = []
    for m in (Measured(path) for path in sorted(CONFIRMED.glob("*.jsonl.gz"))):
        full = m.full_score()
        for plan in (plan for plan in m.plans if plan[0] != "full"):
            changes, (lost, error) = m.differences(plan), gold_lost(m.full, m.plans[plan])
            index = 1 - max(0.0, loss_of({"kl": m.kl(plan), "gold_lost": lost, "gold_lost_se": error}))
            rows.append([m.pair, str(m.count()), name_of(plan), f"{m.kl(plan):.4f}", f"{100 * lost:+.2f} % ({100 * error:.2f})",
                         f"{100 * mean(changes):+.2f} of {full:.1f} ({100 * error_of(changes):.2f})", f"{index:.4f}"])
    return table(["pair", "rows", "plan", "KL", "probability lost (standard error)", "shared - full, points (standard error)", "index"], rows)


TABLES = {"judged": judged_table, "confirmed": confirmed_table, "pooled": pooled_table, "own": own_table, "other": other_table, "ratios": ratio_table, "spans": span_table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    measured = [Measured(path) for path in sorted(args.rows.glob("*.jsonl.gz"))]
    made = {name: make(measured) for name, make in TABLES.items()}
    if not (args.write or args.check):
        for name, text in made.items():
            print(f"{name}\n{text}\n")
        return 0
    before = DOCUMENT.read_text(encoding="utf-8")
    after = before
    for name, text in made.items():
        after, count = re.subn(f"(<!-- {name} -->\n).*?(<!-- end -->)", lambda found: found[1] + text + "\n" + found[2], after, flags=re.S)
        if count != 1:
            sys.exit(f"{DOCUMENT}: expected the mark <!-- {name} --> once, found it {count} times")
    if args.write:
        DOCUMENT.write_text(after, encoding="utf-8")
    elif after != before:
        print(f"{DOCUMENT}: tables are not those of {args.rows}; run bench/evidence/tables.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
