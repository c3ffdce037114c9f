"""Simulates clusters that are larger than the machines at hand, from measured costs: hit rate, time to first token, traffic,
load on the directory.

  python3 bench/scale                                              the tables of docs/scale.md
  python3 bench/scale --nodes 10,100,1000 --variants 1000          a table of one's own
  python3 bench/scale --costs bench/scale/h200.json --plan 0,12,20 --forms redis:coded
  python3 bench/scale --check bench/results/nodes-1024.json        the simulator beside what bench/nodes has measured: status 1
                                                                   when a time to first token is off by more than 10 %

Same seed, same result. A row is `--seconds` of the cluster's time."""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import against_nodes
import costs
import tables
from parts import ALL_ADAPTERS
from scenario import Scenario, simulate

COSTS = Path(__file__).resolve().parent / "two_cores.json"


def integers(text):
    values = [int(part) for part in text.split(",")]
    if any(value < 1 for value in values):
        raise argparse.ArgumentTypeError(f"'{text}': expected numbers of at least 1")
    return values


def forms(text):
    """"peer:memory,redis:int8" in the order in which they are asked."""
    found = []
    for part in text.split(","):
        source, _, form = part.partition(":")
        if source not in ("peer", "redis") or not form:
            raise argparse.ArgumentTypeError(f"'{part}': expected peer:FORMAT or redis:FORMAT")
        found.append((source, form))
    return tuple(found)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="bench/scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--costs", type=Path, default=COSTS, help="what bench/nodes wrote, or a file like bench/scale/h200.json (bench/scale/two_cores.json)")
    add("--nodes", type=integers, help="numbers of nodes; without it the tables of docs/scale.md")
    add("--variants", type=integers, default=[100])
    add("--shards", type=integers, default=[1], help="Redis servers")
    add("--contexts-per-node", type=float, default=50)
    add("--answers", type=int, default=5, help="for each reading of a context")
    add("--zipf", type=float, default=0.9, help="exponent of contexts and of variants")
    add("--load", type=float, default=0.5, help="workflows, as a share of what the nodes could compute without sharing")
    add("--mbit", type=float, default=10000, help="of every link, a Redis server's included")
    add("--round-trip-ms", type=float, default=1.0)
    add("--plan", default="0,16,24")
    add("--forms", type=forms, default=(("redis", "int8"),), metavar="SOURCE:FORMAT,...", help="where entries come from (redis:int8)")
    add("--routing", choices=["contexts", "turns"], default="contexts")
    add("--memory-gb", type=float, default=2.0, help="of a node, for caches")
    add("--store-gb", type=float, default=64.0, help="of all Redis servers together")
    add("--adapters", type=int, default=ALL_ADAPTERS, help="resident on a node; others are loaded when they are asked for (all)")
    add("--seconds", type=float, default=600.0)
    add("--seed", type=int, default=1)
    add("--json", action="store_true")
    add("--check", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    for name in ("contexts_per_node", "answers", "load", "mbit", "memory_gb", "store_gb", "adapters", "seconds"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected more than 0")
    return args


def read(path, use):
    """What `use` makes of a file."""
    try:
        return use(path)
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    except (KeyError, TypeError) as error:
        sys.exit(f"{path}: neither costs nor what bench/nodes writes ({type(error).__name__}: {error})")


def scenarios(args):
    for nodes, variants, shards in itertools.product(args.nodes, args.variants, args.shards):
        yield f"{nodes} nodes, {variants} variants, {tables.servers(shards)}", Scenario(
            nodes=nodes, variants=variants, shards=shards, contexts_per_node=args.contexts_per_node, answers=args.answers, context_exponent=args.zipf, variant_exponent=args.zipf,
            load=args.load, mbit=args.mbit, round_trip_ms=args.round_trip_ms, plan=args.plan, sources=args.forms, routing=args.routing, memory_gb=args.memory_gb,
            store_gb=args.store_gb, adapters=args.adapters, seconds=args.seconds, seed=args.seed)


def run(label, scenario, given):
    begin = time.monotonic()
    row = simulate(scenario, given)
    print(f"{label}: {row['answers']} answers simulated in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    return label, row


def main():
    args = parse_arguments()
    if args.check:
        return 0 if read(args.check, lambda path: against_nodes.check(json.loads(path.read_text()))) else 1
    given = read(args.costs, costs.load)
    missing = [f"{source} {form}" for source, form in args.forms if f"{source} {form}" not in given.ways]
    if missing and args.nodes:
        sys.exit(f"{args.costs} has no costs of {', '.join(missing)}; it has {', '.join(given.ways)}")
    if args.nodes and args.plan not in given.plans:
        sys.exit(f"{args.costs} has no costs of plan {args.plan}; it has {', '.join(given.plans)}")
    if args.nodes:
        groups = {"": [run(label, scenario, given) for label, scenario in scenarios(args)]}
    else:
        standard = tables.standard(given, costs.load(Path(__file__).parent / "h200.json"), args)
        groups = {title: [run(*row) for row in rows] for title, rows in standard}
    if args.json:
        print(json.dumps(groups, indent=1))
    else:
        print("\n".join(tables.markdown(title, rows) for title, rows in groups.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
