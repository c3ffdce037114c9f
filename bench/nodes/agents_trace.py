"""The agents' trace of `droidspeak bench serve` over several servers behind HAProxy: how much of what one server has read
the others find, and what that costs in traffic."""

import json
import re
import subprocess
import sys
import time

from machines import HTTP_PORT, PEER_PORT, Front, Redis, Server, write_secret
from reading import DATA

COUNTED = ("hits", "misses", "bytes_read", "bytes_written", "dropped_writes")


def read_hits(metrics):
    """Requests that found something, by the slowest tier that they read."""
    found = re.findall(r'^droidspeak_cache_hits_total\{tier="(\w+)"\} (\S+)$', metrics, re.MULTILINE)
    return {tier: int(float(value)) for tier, value in found}


def play(args, network, front, rate):
    """The rows of `bench serve`: off (in its own process, one server), then the servers behind the front."""
    command = [args.binary, "bench", "serve", "--family", args.family, "--data", DATA, "--contexts", args.contexts, "--max-context", args.tokens, "--min-context", args.tokens // 4,
               "--threads", args.threads, "--sender", args.sender, "--rates", rate, "--arms", "off", "--slo-ms", 60000, "--url", f"http://{front.address}", "--json"]
    done = subprocess.run(network.command("switch", command), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"bench serve ended with {done.returncode}")
    rows = json.loads(done.stdout)
    return {"off_row": next(row for row in rows if row["arm"] == "off"), "servers_row": next(row for row in rows if row["arm"] != "off")}


def measure_servers(args, network, count, routing, redis):
    names = [f"node{i + 1}" for i in range(count)]
    flags = ["--remote-cache", f"redis://{network.store_address('node1', redis.port)}", "--remote-secret-file", args.out / "remote_secret", "--remote-format", args.trace_format]
    servers, front = [], None
    try:
        for name in names:
            servers.append(Server(args, network, name, [*flags, "--peer-listen", f"{network.address(name)}:{PEER_PORT}"] if args.trace_peers else flags))
        front = Front(args.out, network, [f"{network.address(name)}:{HTTP_PORT}" for name in names], routing)
        before = redis.figures()
        begin = time.monotonic()
        rows = play(args, network, front, args.trace_rate)
        seconds = time.monotonic() - begin
        after = redis.figures()
        tiers, hits = {}, {}
        for server in servers:
            for tier, count_of in read_hits(server.call("GET", "/metrics")[1].decode()).items():
                hits[tier] = hits.get(tier, 0) + count_of
            for name, tier in server.tiers().items():
                total = tiers.setdefault(name, dict.fromkeys(COUNTED, 0))
                for field in COUNTED:
                    total[field] += tier[field]
        return {"servers": count, "routing": routing, "seconds": round(seconds, 1), "tiers": tiers, "hits": hits, "requests": args.contexts + rows["servers_row"]["answers"], **rows,
                "redis": {name: after[name] - before[name] for name in before if name != "used_memory"}, "commands": redis.command_costs()}
    finally:
        for process in [front, *servers]:
            if process:
                process.stop()


def measure(args, network):
    """One row for each number of servers and routing."""
    rows = []
    for count in args.servers:
        for routing in ("contexts", "turns") if count > 1 else ("contexts",):
            network.set_rate(args.trace_mbit)
            write_secret(args.out)
            redis = Redis(args.out, network)
            try:
                rows.append(measure_servers(args, network, count, routing, redis))
            finally:
                redis.stop()
                network.set_rate(None)
            print(f"{count} servers, routed by {routing}: {rows[-1]['seconds']:.0f} s", file=sys.stderr, flush=True)
    return rows
