"""The scenarios of docs/scale.md, and how rows are shown."""

from scenario import Scenario

REDIS = ("redis", "int8")
NODES = (10, 100, 1000)
LARGE = {"memory_gb": 256, "least_tokens": 4000, "most_tokens": 32000, "mbit": 25000, "store_gb": 2000}
LONGEST_LARGE_S = 120.0  # GPUs answer so much faster that less time will do


def servers(count):
    return f"{count} Redis server{'s' if count > 1 else ''}"


def standard(measured, h200, args):
    """(title, [(label, scenario, costs)]): one thing grows at a time."""
    common = {"seconds": args.seconds, "seed": args.seed, "load": args.load}
    peer = next((("peer", form) for form in ("memory", "raw") if f"peer {form}" in measured.ways), None)

    def row(label, nodes, **changes):
        return label, Scenario(**{"nodes": nodes, "sources": (REDIS,), **common, **changes}), measured

    def large(label, nodes, *sources, **changes):
        options = {**common, **LARGE, "seconds": min(args.seconds, LONGEST_LARGE_S), "plan": "0,12,20", "shards": max(1, nodes // 10), **changes}
        return label, Scenario(nodes=nodes, sources=sources, **options), h200

    yield "Nodes", [row(f"{nodes} nodes, {servers(1)}", nodes) for nodes in NODES] + [row(f"1000 nodes, {servers(count)}", 1000, shards=count) for count in (3, 10)]
    if peer:
        yield "Nodes, peers before Redis", [row(f"{nodes} nodes, {servers(max(1, nodes // 100))}", nodes, sources=(peer, REDIS), shards=max(1, nodes // 100)) for nodes in NODES]
    yield "Routing on 100 nodes, 3 Redis servers", [row(f"by {routing}, {'shared through Redis' if sources else 'nothing between nodes'}", 100, routing=routing, sources=sources, shards=3)
                                                    for routing in ("contexts", "turns") for sources in ((REDIS,), ())]
    yield "Load on 100 nodes, 3 Redis servers (1: what they could compute if nothing were shared)", [row(f"load {load:g}", 100, load=load, shards=3) for load in (0.5, 1, 2, 3)]
    yield "Variants on 100 nodes, 3 Redis servers", [row(f"{variants} variants, all resident", 100, variants=variants, shards=3) for variants in (100, 1000, 10000)] + [
        row(f"{variants} variants, 64 resident, others loaded when asked for", 100, variants=variants, shards=3, adapters=64) for variants in (100, 1000, 10000)]
    yield "8B on an H200 a node, 25 Gbit/s, one Redis server for 10 nodes", [large(f"{nodes} nodes, Redis {form}", nodes, ("redis", form)) for nodes in (10, 100) for form in ("raw", "int8", "coded")] + [
        large(f"{nodes} nodes, peers {form}, then Redis coded", nodes, ("peer", form), ("redis", "coded")) for nodes in (10, 100) for form in ("raw", "coded")] + [
        large(f"100 nodes, Redis coded, {servers(count)}", 100, ("redis", "coded"), shards=count) for count in (3, 1)]


def show_found(found):
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.items() if share >= 0.005)


def markdown(title, rows):
    """`rows`: (label, what came of it)."""
    lines = [f"### {title}", ""] if title else []
    lines += ["| | hits of readings, of answers | answers found in | TTFT p50, p95 (full prefill alone) | GB/s from peers, from Redis, to Redis | commands/s | busy: nodes, busiest node, Redis's links, Redis's threads | "
              "late look-ups, adapter loads an answer |", "|---|---|---|---|---|---|---|---|"]
    for label, row in rows:
        seconds, busy, moved = row["seconds"], row["busy"], row["gigabytes"]
        lines.append(f"| {label} | {100 * row['reading_hit_rate']:.0f} %, {100 * row['hit_rate']:.1f} % | {show_found(row['found'])} | "
                     f"{row['ttft_s']['p50']:.3g} s, {row['ttft_s']['p95']:.3g} s ({row['full_s']:.3g} s) | {moved['from peers'] / seconds:.2g}, {moved['from redis'] / seconds:.2g}, {moved['to redis'] / seconds:.2g} | "
                     f"{row['commands_per_second']:.0f} | {100 * busy['engines']:.0f}, {100 * busy['busiest engine']:.0f}, {100 * busy['links']:.0f}, {100 * busy['redis']:.0f} % | "
                     f"{row['late_look_ups']:.2f}, {row['adapter_loads_per_answer']:.2f} |")
    return "\n".join(lines) + "\n"
