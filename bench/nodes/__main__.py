"""Two or more `droidspeak serve` processes on nodes of their own (network namespaces), one Redis between them, links of a
given rate: how fast node 2 answers on what node 1 has read. Needs root for namespaces; without, Redis is measured through
a relay on loopback and peers are left out.

  python3 bench/nodes                                      everything, 4096 tokens (about half an hour on 2 quiet cores)
  python3 bench/nodes --rates 1gbit --sources peer         one rate, one source
  python3 bench/nodes --only trace --servers 1,2,4         the agents' trace
  python3 bench/nodes --check out/nodes/nodes.json         what must hold, from a run's file; status 1 when something fails

Writes nodes.json (every sample) and nodes.md to --out. Link rates are tc tbf's in both directions of every link, the delay
a packet relay's on node 2's link."""

import argparse
import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import agents_trace
import faults
import reading
import report
from machines import ROOT
from network import Network, NotPermitted
from tcp_relay import Loopback


PARTS = ("costs", "directory", "reading", "faults", "trace")


def rate(text):
    """Mbit/s of "10mbit", "2.5gbit"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", text)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no rate: it should be like 100mbit or 10gbit")
    value = float(match[1]) * (1000 if match[2] == "gbit" else 1)
    return int(value) if value == int(value) else value


def rates(text):
    return [rate(part) for part in text.split(",")]


def one_of(*allowed):
    def parse(text):
        parts = text.split(",")
        for part in parts:
            if part not in allowed:
                raise argparse.ArgumentTypeError(f"'{part}' is none of {', '.join(allowed)}")
        return parts
    return parse


def counts(text):
    if not re.fullmatch(r"[1-9]\d?(,[1-9]\d?)*", text):
        raise argparse.ArgumentTypeError(f"'{text}': expected numbers from 1 to 99, separated by commas")
    return [int(part) for part in text.split(",")]


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="bench/nodes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--binary", default=str(ROOT / "build" / "droidspeak"))
    add("--family", default=str(ROOT / "models" / "smollm2" / "family.json"))
    add("--tokens", type=int, default=4096, help="length of the context (4096)")
    add("--rates", type=rates, default=rates("10mbit,100mbit,1gbit,10gbit,25gbit"), help="of the links (10mbit,100mbit,1gbit,10gbit,25gbit)")
    add("--round-trip-ms", type=float, default=1, help="added to node 2's link (1)")
    add("--delay-up-to", type=rate, default=1000, help="fastest rate with the delay: beyond, the relay would take what computing needs (1gbit)")
    add("--formats", type=one_of("raw", "int8", "coded"), default=["raw", "int8", "coded"], help="of remote entries (raw,int8,coded; coded where the build takes it)")
    add("--sources", type=one_of("redis", "peer"), default=["redis", "peer"], help="(redis,peer)")
    add("--plans", type=lambda text: text.split(";"), default=["0,16,24", "auto"], help="separated by ; (0,16,24;auto)")
    add("--sender", default="base")
    add("--receiver", default="qa")
    add("--repeats", type=int, default=5, help="samples of each case (5)")
    add("--threads", type=int, default=os.cpu_count(), help="of each server (one a core)")
    add("--cache-memory", default="1GiB", help="of each server (1GiB)")
    add("--only", type=one_of(*PARTS), default=list(PARTS), help="parts to run (%s)" % ",".join(PARTS))
    add("--servers", type=counts, default=[1, 2, 4], help="of the trace (1,2,4)")
    add("--contexts", type=int, default=8, help="of the trace (8)")
    add("--trace-rate", type=float, default=1.0, help="answers a second asked for (1)")
    add("--trace-mbit", type=rate, default=1000, help="links of the trace (1gbit)")
    add("--trace-format", default="int8", help="remote entries of the trace (int8)")
    add("--trace-peers", action="store_true", help="servers of the trace read from each other before they ask Redis")
    add("--out", type=Path, default=ROOT / "out" / "nodes")
    add("--keep", action="store_true", help="parts that --only leaves out stay as they are in --out's nodes.json; samples of the reading are added to those there")
    add("--json", action="store_true", help="the document on stdout instead of tables")
    add("--check", type=Path, metavar="FILE", help="measure nothing: what must hold, from this file")
    args = parser.parse_args(arguments)
    for name, least in (("tokens", 256), ("repeats", 1), ("threads", 1), ("contexts", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} {getattr(args, name)}: expected {least} or more")
    if args.tokens % reading.BLOCK_TOKENS:
        parser.error(f"--tokens {args.tokens}: expected a multiple of {reading.BLOCK_TOKENS}")
    return args


def make_network(args):
    """(the network, what it is in words)"""
    names = [f"node{i + 1}" for i in range(max([2, *args.servers] if "trace" in args.only else [2]))] + ["store"]
    delayed = ["node2"] if {"reading", "faults"} & set(args.only) else []
    try:
        network = Network(names, delayed)
        return network, "Nodes are network namespaces, rates tc tbf's on both ends of every link, delays a packet relay's on node 2's link."
    except NotPermitted as error:
        print(f"no network namespaces here ({error}): Redis through a relay on loopback instead, no peers, no trace", file=sys.stderr)
        return Loopback(names, delayed), "No network namespaces here: node 2's way to Redis is a relay with a rate and a delay; peers are not measured."


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def show(sample):
    beside = f", full {sample['full_ms']:.0f} ms, {sample['full_ms'] / sample['ttft_ms']:.2f}x" if sample["full_ms"] else ""
    print(f"  {sample['source']} {sample['format']} {report.show_rate(sample['mbit'])} {sample['plan']}: {sample['ttft_ms']:.0f} ms{beside}, "
          f"{report.show_done(sample['done'])}", file=sys.stderr, flush=True)


def begin_document(args, words):
    """What a run says of itself; with --keep what an earlier one has measured stays."""
    command = "python3 bench/nodes " + shlex.join(sys.argv[1:])
    machine = {"cores": os.cpu_count(), "cpu": cpu_name(), "load_before": os.getloadavg()[0]}
    given = {"date": time.strftime("%Y-%m-%d"), "tokens": args.tokens, "sender": args.sender, "receiver": args.receiver, "plans": args.plans, "threads": args.threads,
             "network": words, "machine": machine}
    path = args.out / "nodes.json"
    if not args.keep or not path.exists():
        return {"command": command, **given, "samples": [], "costs": [], "trace": []}
    document = json.loads(path.read_text())
    different = [name for name in ("tokens", "sender", "receiver", "plans", "threads") if document[name] != given[name]]
    if different:
        sys.exit(f"--keep: {path} was measured with another {', '.join(different)}")
    return {**document, **given, "command": f"{document['command']}; {command}"}


def save(args, document):
    document["machine"]["load_after"] = os.getloadavg()[0]
    finish(document)
    (args.out / "nodes.json").write_text(json.dumps(document, indent=1) + "\n")
    (args.out / "nodes.md").write_text(report.markdown(document))


def measure(args):
    network, words = make_network(args)
    try:
        document = begin_document(args, words)
        document["num_layers"], document["recomputed_share"] = reading.layers_of(args, network)
        if "costs" in args.only:
            document["costs"] = reading.measure_costs(args, network)
            save(args, document)
        if "directory" in args.only:
            document["directory"] = reading.measure_directory(args, network, document["num_layers"])
        if "reading" in args.only:
            kept = document["samples"]

            def save_samples(samples):
                document["samples"] = kept + samples
                save(args, document)
            reading.measure(args, network, show, save_samples)
        if "faults" in args.only:
            document["faults"] = faults.measure(args, network)
            save(args, document)
        if "trace" in args.only and network.can_reach_peers:
            document["trace"] = agents_trace.measure(args, network)
            document["trace_options"] = {"contexts": args.contexts, "rate": args.trace_rate, "mbit": args.trace_mbit, "format": args.trace_format, "peers": args.trace_peers}
        save(args, document)
        return document
    finally:
        network.close()


def finish(document):
    """With everything that follows from the samples."""
    document["reading"] = report.summarize(document["samples"])
    document["checks"] = report.check(document["reading"], document["plans"][0]) if document["reading"] else []
    document["checks"] += report.check_faults(document.get("faults", []))
    options = document.get("trace_options", {})
    document["trace_note"] = ("`droidspeak bench serve`'s trace ({contexts} contexts, {rate:g} answers a second asked for) through HAProxy, links of {rate_shown}, remote entries in {format}{peers}. "
                              "All servers share the cores: the table shows what is found where and what travels, not how speed grows with machines. "
                              "A request counts under the slowest tier that it took anything from. HAProxy hashes the first 4096 bytes of a prompt: contexts of less than about 800 tokens are "
                              "scattered with their questions.").format(
        rate_shown=report.show_rate(options["mbit"]), **{**options, "peers": ", peers before Redis" if options["peers"] else ""}) if options else ""
    return document


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.check:
        try:
            document = finish(json.loads(args.check.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{args.check}: not what bench/nodes writes ({type(error).__name__}: {error})")
    else:
        args.out = args.out.resolve()
        args.out.mkdir(parents=True, exist_ok=True)
        document = measure(args)
    print(json.dumps(document, indent=1) if args.json else "\n".join(report.check_table(document["checks"])) if args.check else report.markdown(document))
    return 1 if args.check and any(holds is False for _, holds, _ in document["checks"]) else 0


if __name__ == "__main__":
    sys.exit(main())
