"""The scenarios of docs/scale.md, and how rows are shown."""

from scenario import Scenario


def standard(measured, h200, args):
    """(title, [(scenario, costs)]): one thing grows at a time."""
    common = {"seconds": args.seconds, "seed": args.seed, "load": args.load}
    form = ("redis", "int8")
    peer = next(((source, form) for source, form in (("peer", "memory"), ("peer", "raw")) if f"{source} {form}" in measured.ways), None)

    def row(nodes, given=measured, **changes):
        return Scenario(**{"nodes": nodes, "sources": (form,), "plan": "0,16,24" if given is measured else "0,12,20", **common, **changes}), given

    big = {"memory_gb": 256, "least_tokens": 4000, "most_tokens": 32000, "mbit": 25000, "store_gb": 2000, "seconds": min(args.seconds, 120.0)}
    yield "Nodes, one Redis server (10 Gbit/s), measured costs", [row(nodes) for nodes in (10, 100, 1000)]
    yield "1,000 nodes, more Redis servers", [row(1000, shards=shards) for shards in (3, 10, 30)]
    if peer:
        yield "Peers before Redis", [row(nodes, sources=(peer, form), shards=max(1, nodes // 100)) for nodes in (10, 100, 1000)]
    yield "Routing", [row(100, routing=routing, shards=3) for routing in ("contexts", "turns")]
    yield "Variants on 100 nodes, all adapters resident", [row(100, variants=variants, shards=3) for variants in (100, 1000, 10000)]
    yield "Variants on 100 nodes, 64 adapters resident, others loaded when asked for", [row(100, variants=variants, shards=3, adapters=64) for variants in (100, 1000, 10000)]
    yield "8B on an H200 a node, one Redis server for 10 nodes, 25 Gbit/s", [row(nodes, h200, shards=max(1, nodes // 10), sources=(("redis", form_of),), **big) for nodes in (10, 100) for form_of in ("raw", "int8", "coded")]
    yield "8B on an H200 a node, peers before Redis, 25 Gbit/s", [row(nodes, h200, shards=max(1, nodes // 10), sources=(("peer", form_of), ("redis", "coded")), **big) for nodes in (10, 100) for form_of in ("raw", "coded")]


def show_found(found):
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.items() if share >= 0.005)


def markdown(title, rows):
    lines = [f"### {title}", ""] if title else []
    lines += ["| nodes | variants | from | Redis servers | routed by | hits of readings, of answers | answers found | TTFT p50, p95 (full prefill alone) | GB/s from peers, from Redis, to Redis | commands/s | busy: engines, busiest, store's links, directory | "
              "an answer: late look-ups, dropped writes, adapter loads |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        seconds, busy, moved = row["seconds"], row["busy"], row["gigabytes"]
        lines.append(f"| {row['nodes']} | {row['variants']} | {row['sources']} | {row['shards']} | {row['routing']} | {100 * row['reading_hit_rate']:.0f} %, {100 * row['hit_rate']:.1f} % | {show_found(row['found'])} | "
                     f"{row['ttft_s']['p50']:.3g} s, {row['ttft_s']['p95']:.3g} s ({row['full_s']:.3g} s) | {moved['from peers'] / seconds:.2g}, {moved['from redis'] / seconds:.2g}, {moved['to redis'] / seconds:.2g} | "
                     f"{row['commands_per_second']:.0f} | {100 * busy['engines']:.0f}, {100 * busy['busiest engine']:.0f}, {100 * busy['links']:.0f}, {100 * busy['directory']:.1f} % | "
                     f"{row['late_look_ups']:.2f}, {row['dropped_writes']:.2f}, {row['adapter_loads_per_answer']:.2f} |")
    return "\n".join(lines) + "\n"
