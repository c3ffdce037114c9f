#!/usr/bin/env python3
"""Non-inferiority of the plan that `auto` takes: how many questions a test needs, and what a test has shown.

Rows are `TASK-NUMBER-DRAW` (`train_variants.py rows TASK test --draws 1 2`): a question is asked in several contexts, its rows
are averaged, and the interval is over questions. The margin is 2 % of full prefill's score.

  before a test row is read, from rows of the profile part that the plan was chosen by:
    noninferiority.py power ROWS/qa-from-base.qa.jsonl.gz --plan "0,16,20+25%" --draws 2
  afterwards:
    noninferiority.py judge OUT/rows/*.jsonl.gz
"""

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import NormalDist

from tables import MARGIN, Measured, auto_of, error_of, mean, name_of, verdict

LIKENESS = 0.3  # correlation of what two contexts of one question lose, assumed; senders on one context have 0.5 to 0.65
TAIL, POWER = 0.975, 0.9
LOSSES = (0.0, 0.003, 0.006)


CLUSTERS = Path(__file__).resolve().parents[1] / "results/rows/noninferiority/clusters.json"  # of a question's number: its SQuAD article or page


def by_question(m, plan):
    """Differences to full prefill by question, averaged over its rows."""
    changes = {}
    for name, row in m.full.items():
        question = name.rsplit("-", 1)[0] if name.count("-") > 1 else name
        changes.setdefault(question, []).append(m.plans[plan][name]["score"] - row["score"])
    return {question: mean(values) for question, values in changes.items()}


def clustered_error(changes):
    """Standard error of the mean when questions on one article or page err together."""
    clusters, center, sums = json.loads(CLUSTERS.read_text()), mean(changes.values()), {}
    for question, change in changes.items():
        cluster = clusters[int(question.rsplit("-", 1)[1])]
        sums[cluster] = sums.get(cluster, 0.0) + change - center
    return math.sqrt(len(sums) / (len(sums) - 1) * sum(value ** 2 for value in sums.values())) / len(changes)


def needed(deviation, loss, draws):
    """Questions for the power, of a deviation and a true loss in shares of the score."""
    if loss >= MARGIN:
        return math.inf
    z = NormalDist().inv_cdf(TAIL) + NormalDist().inv_cdf(POWER)
    return math.ceil((z * deviation / (MARGIN - loss)) ** 2 * (LIKENESS + (1 - LIKENESS) / draws))


def chance(deviation, loss, draws, questions):
    """That so many questions show the margin."""
    error = deviation * math.sqrt((LIKENESS + (1 - LIKENESS) / draws) / questions)
    return NormalDist().cdf((MARGIN - loss) / error - NormalDist().inv_cdf(TAIL))


def power(options):
    for path in options.rows:
        m = Measured(path)
        full = m.full_score() / 100
        plans = [plan for plan in m.plans if plan[0] == options.plan] if options.plan else [plan for plan in m.plans if plan[0] != "full"]
        for plan in plans:
            changes = m.differences(plan)
            deviation = error_of(changes) * math.sqrt(len(changes)) / full
            head = f"{m.pair}, {name_of(plan)}: {len(changes)} rows, deviation {deviation:.3f} of the score; {options.draws} contexts a question: "
            if options.questions:
                print(head + f"chance with {options.questions} questions " + ", ".join(
                    f"{chance(deviation, loss, options.draws, options.questions):.0%} at a loss of {loss:.1%}" for loss in LOSSES))
            else:
                print(head + f"questions for a power of {POWER:.0%} " + ", ".join(
                    f"{needed(deviation, loss, options.draws)} at a loss of {loss:.1%}" for loss in LOSSES))


def judge(options):
    for path in options.rows:
        m = Measured(path)
        plan, full = auto_of(m), m.full_score()
        by_name = by_question(m, plan)
        changes = list(by_name.values())
        change, error, clustered = 100 * mean(changes), 196 * error_of(changes), 196 * clustered_error(by_name)
        print(f"{m.pair}, {name_of(plan)}: {len(changes)} questions, {m.count()} rows, full prefill {full:.1f}, "
              f"{change:+.2f} ({change - error:+.2f} .. {change + error:+.2f}; by article and page {change - clustered:+.2f} .. {change + clustered:+.2f}) points, "
              f"non-inferior: {verdict(changes, full)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (power, judge):
        command = commands.add_parser(run.__name__)
        command.set_defaults(run=run)
        command.add_argument("rows", type=Path, nargs="+")
        if run is power:
            command.add_argument("--plan", help="one plan (default: each that was measured)")
            command.add_argument("--draws", type=int, default=1)
            command.add_argument("--questions", type=int, help="how likely so many show it, instead of how many are needed")
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
