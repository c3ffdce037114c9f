#!/usr/bin/env python3
"""Checks baselines.py: it measures what `droidspeak evaluate` does (plans of both on the same rows, in 32-bit floats), and
every arm is full prefill when the sender is the receiver.

Takes minutes on a CPU: check_baselines.py --data hotpotqa.test.jsonl.gz --limit 3
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import arms
import baselines

KL_TOLERANCE = 0.02        # share of plain reuse's KL
AGREEMENT_TOLERANCE = 0.02
SCORE_TOLERANCE = 0.02
OWN_KL_LIMIT = 1e-5


def product(options, plans: list[str]) -> dict[str, dict]:
    command = [options.program, "evaluate", "--family", options.family, "--sender", options.sender, "--receiver",
               options.receiver, "--data", options.data, "--limit", options.limit, "--plans", ";".join(plans), "--json",
               "--device", "cpu", "--precision", "exact"]
    out = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout
    return dict(zip(plans, json.loads(out)["plans"]))


def load_pair(options, sender: str) -> baselines.Pair:
    return baselines.Pair(baselines.parse([
        "--family", str(options.family), "--sender", sender, "--receiver", options.receiver, "--data", str(options.data),
        "--blocks", "", "--device", "cpu", "--dtype", "f32"]))


def check_own_cache(options) -> None:
    """Nothing is lost by recomputing parts of one's own cache, whatever the parts are."""
    pair = load_pair(options, options.receiver)
    chosen = baselines.make_arms(pair, [(16, 24)], [18, 23, 17, 14, 15, 7, 1, 28])
    found = baselines.measure(pair, pair.prompts(options.data, 2), chosen, lambda text: None)
    wrong = [f"{name} (KL {max(series.kl):.2g})" for name, series in found.items() if max(series.kl) > OWN_KL_LIMIT]
    print(f"a receiver with its own cache: {len(found)} arms, {len(wrong)} differ from full prefill")
    if wrong:
        sys.exit(f"sender is the receiver, yet these differ from full prefill: {', '.join(wrong)}")


def torch_arms(options, plans: list[str]):
    pair = load_pair(options, options.sender)
    chosen = {"full": (arms.full, {}), "reuse": (arms.reuse, {})}
    for plan in plans:
        if "," in plan:
            _, first, last = map(int, plan.rstrip("r").split(","))
            block = list(range(first, last))
            arm = arms.recompute_layers(block) if plan.endswith("r") or not pair.maps else arms.recompute_translated(block, pair.maps)
            chosen[plan] = (arm, {"recomputed": block})
    return baselines.measure(pair, pair.prompts(options.data, options.limit), chosen, lambda text: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=Path("build/droidspeak"))
    parser.add_argument("--family", type=Path, default=Path("models/smollm2/family.json"))
    parser.add_argument("--sender", default="base")
    parser.add_argument("--receiver", default="qa")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=3)
    parser.add_argument("--plans", default="full;reuse;0,16,24r;0,16,24")
    options = parser.parse_args()
    check_own_cache(options)
    plans = options.plans.split(";")
    theirs, ours = product(options, plans), torch_arms(options, plans)
    average = lambda values: sum(values) / len(values)
    scale = max(average(ours["reuse"].kl), 1e-3)
    wrong = []
    print(f"{'plan':>10} {'KL product':>11} {'KL torch':>9} {'agreement':>15} {'F1':>15}")
    for plan in plans:
        want, have = theirs[plan], ours[plan]
        kl, agreement, score = average(have.kl), average(have.agreement), average(have.f1)
        print(f"{plan:>10} {want['kl']:>11.5f} {kl:>9.5f} {want['agreement']:>7.3f} {agreement:>7.3f} "
              f"{want['score']:>7.3f} {score:>7.3f}")
        if (abs(want["kl"] - kl) > KL_TOLERANCE * scale or abs(want["agreement"] - agreement) > AGREEMENT_TOLERANCE
                or abs(want["score"] - score) > SCORE_TOLERANCE):
            wrong.append(plan)
    if wrong:
        sys.exit(f"differs from the product: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
