"""One row of the tables: a cluster, a workload, what came of it."""

import dataclasses
import math
import statistics

from cluster import RECORD_BYTES, Cluster
from parts import ALL_ADAPTERS, Options
from workload import make_workflows


@dataclasses.dataclass
class Scenario:
    nodes: int
    variants: int = 100
    contexts_per_node: float = 50
    answers: int = 5
    context_exponent: float = 0.9
    variant_exponent: float = 0.9
    least_tokens: int = 1000
    most_tokens: int = 6000
    load: float = 0.5  # of what all nodes could compute if nothing were shared
    seconds: float = 600.0
    seed: int = 1
    sources: tuple = (("redis", "int8"),)
    plan: str = "0,16,24"
    mbit: float = 10000
    round_trip_ms: float = 1.0
    routing: str = "contexts"
    memory_gb: float = 2.0
    store_gb: float = 64.0
    shards: int = 1
    adapters: int = ALL_ADAPTERS  # resident on a node
    workflows_per_second: float = 0.0  # set instead of the load where it is known
    shared_cores: bool = False

    @property
    def contexts(self):
        return max(1, int(self.contexts_per_node * self.nodes))


def mean_tokens(scenario):
    """Of lengths that are even in the logarithm."""
    if scenario.least_tokens == scenario.most_tokens:
        return scenario.least_tokens
    return (scenario.most_tokens - scenario.least_tokens) / math.log(scenario.most_tokens / scenario.least_tokens)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def simulate(scenario, costs):
    tokens = mean_tokens(scenario)
    if not scenario.workflows_per_second:
        alone = costs.reading(tokens) + scenario.answers * costs.full(tokens)
        scenario = dataclasses.replace(scenario, workflows_per_second=scenario.load * scenario.nodes / alone)
    options = Options(nodes=scenario.nodes, sources=scenario.sources, plan=scenario.plan, link_bytes_per_second=scenario.mbit * 1e6 / 8,
                      round_trip_s=scenario.round_trip_ms / 1000, routing=scenario.routing, memory_bytes=scenario.memory_gb * 1e9, store_bytes=scenario.store_gb * 1e9,
                      shards=scenario.shards, adapters=scenario.adapters, shared_cores=scenario.shared_cores)
    cluster = Cluster(options, costs)
    end = cluster.run(make_workflows(scenario))
    return summarize(scenario, cluster, max(end, scenario.seconds))


def summarize(scenario, cluster, seconds):
    answers, counts = cluster.answers, cluster.counts
    found = {}
    for name, _, _ in answers:
        found[name] = found.get(name, 0) + 1
    times = [ttft for _, ttft, _ in answers]
    commands = sum(counts[name] for name in ("look-ups", "reads", "writes", "records written", "records told anew"))
    links = cluster.options.link_bytes_per_second * seconds
    return {"nodes": scenario.nodes, "variants": scenario.variants, "contexts": scenario.contexts, "routing": scenario.routing, "shards": scenario.shards,
            "sources": " then ".join(f"{source} {form}" for source, form in scenario.sources) or "none", "mbit": scenario.mbit, "seed": scenario.seed,
            "seconds": round(seconds, 1), "answers": len(answers), "found": {name: count / len(answers) for name, count in sorted(found.items())},
            "hit_rate": 1 - found.get("full", 0) / len(answers),
            "reading_hit_rate": 1 - cluster.readings["full"] / cluster.readings.total(), "ttft_s": {"p50": percentile(times, 0.5), "p95": percentile(times, 0.95), "mean": statistics.mean(times)},
            "full_s": statistics.median(full for _, _, full in answers), "answers_per_second": len(answers) / seconds,
            "gigabytes": {"from peers": counts["bytes from peers"] / 1e9, "from redis": counts["bytes from redis"] / 1e9, "to redis": counts["bytes written"] / 1e9},
            "busy": {"engines": statistics.mean(node.engine.used for node in cluster.nodes) / seconds, "busiest engine": max(node.engine.used for node in cluster.nodes) / seconds,
                     "busiest uplink": max(node.up.used for node in cluster.nodes) / links, "links": max(cluster.store_up.used, cluster.store_down.used) / links / scenario.shards,
                     "redis": (cluster.directory.used + cluster.values.used) / seconds / scenario.shards},
            "commands_per_second": commands / seconds, "late_look_ups": counts["late look-ups"] / max(1, len(answers)), "dropped_writes": counts["dropped writes"] / max(1, len(answers)), "records": cluster.most_records,
            "record_megabytes": cluster.most_records * RECORD_BYTES / 1e6, "evictions": {"nodes": sum(node.memory.evictions for node in cluster.nodes), "store": cluster.store.evictions},
            "adapter_loads_per_answer": counts["adapter loads"] / len(answers)}
