"""The simulator beside what `bench/nodes` has measured. The costs come from other measurements than those that are compared:
computing by length on one server, and loads that nothing is computed beside on links without a limit."""

import random
import statistics

from cluster import BASE, Cluster
from costs import from_nodes
from parts import Options, Workflow
from workload import context_tokens

MOST_OFF = 0.10
TRACE_SEEDS = 40


def simulate_reading(costs, row, tokens):
    """Node 2 answers on what node 1 has read, and nothing else goes on. Seconds, and where it was found."""
    options = Options(nodes=2, sources=() if row["source"] == "host" else ((row["source"], row["format"]),), plan=row["plan"], round_trip_s=row["round_trip_ms"] / 1000,
                      link_bytes_per_second=(row["mbit"] or 1e6) * 1e6 / 8, routing="turns", shared_cores=True)
    cluster = Cluster(options, costs)
    cluster.place(cluster.nodes[1 if row["source"] == "host" else 0], (0, BASE), tokens * costs.memory_bytes_per_token)
    cluster.turn = 1
    cluster.run([(0.0, Workflow(0, tokens, [1], position=0))])
    [(found, ttft, _)] = cluster.answers
    return ttft, found


def compare_readings(document):
    """(case, measured, simulated) of TTFT over full prefill."""
    costs = from_nodes(document)
    rows = []
    for row in document["reading"]:
        if row["source"] != "host" and f"{row['source']} {row['format']}" not in costs.ways:
            continue
        ttft, found = simulate_reading(costs, row, document["tokens"])
        rate = "" if row["mbit"] is None else f" {row['mbit']:g} Mbit/s"
        rows.append((f"{row['source']} {row['format']}{rate}, {row['plan']}: {found}", row["over_full"]["median"], ttft / costs.full(document["tokens"])))
    return rows


def trace_workflows(document, answers, seed):
    """As `bench serve` makes them: other contexts each time, one answer of each receiver."""
    options, source = document["trace_options"], random.Random(seed)
    gaps = [source.expovariate(1) for _ in range(options["contexts"])]
    scale = options["contexts"] / sum(gaps) / (options["rate"] / answers)
    now, found = 0.0, []
    for context, gap in enumerate(gaps):
        tokens = context_tokens(1000 * seed + context, document["tokens"] // 4, document["tokens"], 64)
        found.append((now, Workflow(1000 * seed + context, tokens, list(range(1, answers + 1)))))
        now += gap * scale
    return found


def simulate_trace(document, costs, row):
    """Means over seeds: the share of answers that found something, and bytes. Where each found it is not compared: a server
    names the slowest tier that it took anything from, be it one layer's input."""
    options = document["trace_options"]
    answers = row["servers_row"]["answers"] // options["contexts"]
    sources = (("redis", options["format"]),)
    if options["peers"]:
        sources = (("peer", "memory"), *sources)
    means = dict.fromkeys(("found", "bytes from redis", "bytes from peers", "bytes written"), 0.0)
    for seed in range(TRACE_SEEDS):
        cluster = Cluster(Options(nodes=row["servers"], sources=sources, plan=document["plans"][-1], link_bytes_per_second=options["mbit"] * 1e6 / 8, round_trip_s=0.0001,
                                  routing=row["routing"], shared_cores=True), costs)
        cluster.run(trace_workflows(document, answers, seed))
        means["found"] += sum(found != "full" for found, _, _ in cluster.answers) / len(cluster.answers) / TRACE_SEEDS
        for name in ("bytes from redis", "bytes from peers", "bytes written"):
            means[name] += cluster.counts[name] / TRACE_SEEDS
    return means


def compare_traces(document):
    """(what, measured, simulated)"""
    if not document.get("trace"):
        return []
    costs = from_nodes(document)
    rows = []
    for row in document["trace"]:
        simulated, name = simulate_trace(document, costs, row), f"{row['servers']} servers by {row['routing']}"
        tiers = row["tiers"]
        rows.append((f"{name}: answers that found something", sum(row["hits"].values()) / row["servers_row"]["answers"], simulated["found"]))
        rows.append((f"{name}: MB from Redis", tiers["remote"]["bytes_read"] / 1e6, simulated["bytes from redis"] / 1e6))
        if "peer" in tiers:
            rows.append((f"{name}: MB from peers", tiers["peer"]["bytes_read"] / 1e6, simulated["bytes from peers"] / 1e6))
        rows.append((f"{name}: MB to Redis", tiers["remote"]["bytes_written"] / 1e6, simulated["bytes written"] / 1e6))
    return rows


def difference(measured, simulated):
    return simulated / measured - 1 if measured else (0.0 if simulated < 0.02 else float("inf"))


def show(rows):
    """Prints every comparison; how many are within the bound."""
    good = 0
    for name, measured, simulated in rows:
        off = difference(measured, simulated)
        good += abs(off) <= MOST_OFF
        print(f"{name:<64}{measured:>9.3f} measured{simulated:>9.3f} simulated{100 * off:>8.1f} %{'' if abs(off) <= MOST_OFF else '  <--'}")
    return good


def check(document):
    """True when everything is within the bound."""
    print("TTFT on node 2 over full prefill")
    readings = compare_readings(document)
    good = show(readings)
    print(f"{good} of {len(readings)} within {100 * MOST_OFF:.0f} %, median difference {100 * statistics.median(abs(difference(m, s)) for _, m, s in readings):.1f} %")
    traces = compare_traces(document)
    if traces:
        print("\nThe agents' trace (few contexts: one of them is several percent)")
        good_traces = show(traces)
        print(f"{good_traces} of {len(traces)} within {100 * MOST_OFF:.0f} %")
    return good == len(readings)
