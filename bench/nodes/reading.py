"""What node 2 gains from what node 1 has read: time to the first token from Redis and from a peer at each rate of the
network, beside full prefill and beside the same caches in node 2's own memory."""

import gzip
import json
import re
import secrets
import select
import subprocess
import sys
import time
from pathlib import Path

from machines import PEER_PORT, ROOT, Redis, Server, write_secret

DATA = ROOT / "tests" / "data" / "qa" / "qa.demo.jsonl.gz"
QUESTION = "\n\nQuestion: Which of these documents is about a person?\nAnswer:"
WARM_TOKENS = 256
BLOCK_TOKENS = 64
ANSWER_TOKENS = 16
# Nothing is computed beside it, so it tells what loading alone takes.
LOAD_ONLY = "reuse"


def accepts_format(args, name):
    """Whether this build keeps remote entries in such a format: one that does not says so before it listens."""
    secret = write_secret(args.out)
    command = [args.binary, "serve", "--family", args.family, "--port", "0", "--threads", "1", "--remote-cache", "redis://127.0.0.1:1", "--remote-secret-file", secret,
               "--remote-format", name]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        return bool(ready) and process.stdout.readline().startswith("listening")
    finally:
        process.terminate()
        process.wait()


def configurations(args, network):
    """(source, format) in the order in which they are measured."""
    formats = [name for name in args.formats if name != "coded" or accepts_format(args, name)]
    if "coded" in args.formats and "coded" not in formats:
        print("this build refuses --remote-format coded: left out", file=sys.stderr)
    found = []
    if "redis" in args.sources:
        found += [("redis", name) for name in formats]
    if "peer" in args.sources and network.can_reach_peers:
        with_formats = "--peer-format" in subprocess.run([args.binary, "serve", "--help"], capture_output=True, text=True).stdout
        found += [("peer", name) for name in formats] if with_formats else [("peer", "memory")]
    return found


def flags_of(args, network, node, redis, source, form):
    if source == "host":
        return []
    flags = ["--remote-cache", f"redis://{network.store_address(node, redis.port)}", "--remote-secret-file", args.out / "remote_secret"]
    if form != "memory":
        flags += ["--remote-format", form]
    if source == "peer":
        flags += ["--peer-listen", f"{network.address(node)}:{PEER_PORT}"]
        if form != "memory":
            flags += ["--peer-format", form]
    return flags


class Prompts:
    """A long context and a short one to warm up with, both before the same question."""

    def __init__(self, server, tokens):
        with gzip.open(DATA, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        text = "\n\n".join(f"{document['title']}: {document['text']}" for row in rows for document in row["documents"])
        found = server.tokenize(text[:(tokens + WARM_TOKENS) * 8])
        if len(found) < tokens + WARM_TOKENS:
            sys.exit(f"--tokens {tokens}: the text has {len(found) - WARM_TOKENS}")
        question = server.tokenize(QUESTION)
        self.warm_context, self.context = found[:WARM_TOKENS], found[WARM_TOKENS:WARM_TOKENS + tokens]
        self.warm, self.prompt = self.warm_context + question, self.context + question


class Measurement:
    """One (source, format) with a node 1 that has read: a fresh node 2 for each rate, so that nothing lies there already."""

    def __init__(self, args, network, source, form):
        self.args, self.network, self.source, self.form = args, network, source, form
        self.redis = self.first = None

    def __enter__(self):
        self.network.set_rate(None)
        write_secret(self.args.out)
        try:
            if self.source != "host":
                self.redis = Redis(self.args.out, self.network)
                self.first = Server(self.args, self.network, "node1", self.flags("node1"))
                self.prompts = Prompts(self.first, self.args.tokens)
                self.read(self.first)
                self.first.wait_written()
                if self.source == "peer":
                    self.redis.forget_values()
                self.read_by_first = self.redis.names()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in (self.first, self.redis):
            if process:
                process.stop()

    def flags(self, node):
        return flags_of(self.args, self.network, node, self.redis, self.source, self.form)

    def read(self, server):
        """The sender reads, once for each plan: a salt keeps what one request leaves behind from the next."""
        server.ask(self.args.sender, self.prompts.warm_context, "off", "warm")
        for plan in [*self.args.plans, LOAD_ONLY]:
            server.ask(self.args.sender, self.prompts.context, "off", plan)

    def warm_up(self, second):
        """What happens once in a process's life: memory, translation maps, the first look at a link."""
        plan = {"sender": self.args.sender, "plan": self.args.plans[0]}
        second.ask(self.args.sender, self.prompts.warm_context, "off", "own")
        second.ask(self.args.receiver, self.prompts.warm, plan, "own")
        if self.source != "host":
            second.wait_linked("remote")
            second.ask(self.args.receiver, self.prompts.warm, {"sender": self.args.sender, "plan": "auto"}, "warm")
        if self.source == "peer":
            second.wait_linked("peer", 2)

    def sample(self, mbit, round_number, plans):
        """One row for each plan."""
        self.network.set_rate(mbit)
        delay = self.args.round_trip_ms if mbit is not None and mbit <= self.args.delay_up_to else 0
        if self.source != "host":
            self.network.set_delay("node2", delay)
        second = Server(self.args, self.network, "node2", self.flags("node2"))
        try:
            if self.source == "host":
                self.prompts = Prompts(second, self.args.tokens)
                self.read(second)
            self.warm_up(second)
            return self.ask_all(second, mbit, delay, plans if plans == [LOAD_ONLY] else [*plans, "full"], round_number)
        finally:
            second.stop()
            self.network.set_rate(None)
            self.forget_second()

    def forget_second(self):
        """The next node 2 must not find what this one has left in Redis."""
        if self.redis:
            self.redis.forget_all_but(self.read_by_first)

    def cpu_seconds(self, second):
        processes = {"node1": self.first, "store": self.redis, "node2": second}
        spent = {name: process.cpu_seconds() for name, process in processes.items() if process}
        return {"node1": 0.0, "store": 0.0, "relay": self.network.relay_cpu_seconds(), **spent}

    def ask_all(self, second, mbit, delay, plans, round_number):
        """In an order that turns from round to round."""
        shift = round_number % len(plans)
        rows, full_ms = [], 0.0
        for plan in plans[shift:] + plans[:shift]:
            if plan == "full":
                # What an earlier node 2 has left in Redis must not be found.
                full_ms, _ = second.ask(self.args.receiver, self.prompts.prompt, "off", secrets.token_hex(8))
                continue
            before, cpu_before = second.tiers(), self.cpu_seconds(second)
            ttft, done = second.ask(self.args.receiver, self.prompts.prompt, {"sender": self.args.sender, "plan": plan}, plan)
            cpu_after = self.cpu_seconds(second)
            time.sleep(0.05)
            rows.append({"source": self.source, "format": self.form, "mbit": mbit, "round_trip_ms": delay, "plan": plan, "ttft_ms": round(ttft, 1), "done": done,
                         "tiers": moved(before, second.tiers()), "cpu_s": {name: round(spent - cpu_before[name], 3) for name, spent in cpu_after.items()}})
        return [{**row, "full_ms": round(full_ms, 1)} for row in rows]


def moved(before, after):
    """What a request has read from each tier other than host memory, and how fast its links are thought to be."""
    result = {}
    for name, tier in after.items():
        if name == "host":
            continue
        link = next((link for link in tier.get("links", []) if link["bytes_per_second"] > 0), {})
        result[name] = {"bytes_read": tier["bytes_read"] - before[name]["bytes_read"], "bytes_per_second": link.get("bytes_per_second", 0),
                        "round_trip_ms": link.get("round_trip_ms", 0)}
    return result


def cases(args, source):
    """(rate, plans) of a source."""
    if source == "host":
        return [(None, [*args.plans, LOAD_ONLY])]
    return [(None, [LOAD_ONLY]), *[(mbit, args.plans) for mbit in args.rates]]  # the first one without a full prefill


def measure(args, network, show, save):
    """Adds all samples to what `save` keeps after each round; rounds go over everything, so that drifts of the machine hit
    all alike."""
    found = [("host", "memory"), *configurations(args, network)]
    total, done, samples, begin = args.repeats * sum(len(cases(args, source)) for source, _ in found), 0, [], time.monotonic()
    for round_number in range(args.repeats):
        for source, form in found:
            with Measurement(args, network, source, form) as measurement:
                for mbit, plans in cases(args, source):
                    for row in measurement.sample(mbit, round_number, plans):
                        samples.append({"round": round_number, **row})
                        show(samples[-1])
                    done += 1
                    print(f"{done} of {total}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        save(samples)


def layers_of(args, network):
    """(layers of the model, share of them that the first plan recomputes)"""
    server = Server(args, network, "node2", [])
    try:
        layers = server.get("/v1/droidspeak/state")["families"][0]["num_layers"]
    finally:
        server.stop()
    bounds = [int(part) for part in re.findall(r"\d+", args.plans[0])]
    return layers, (bounds[-1] - bounds[-2]) / layers if len(bounds) == 3 else 1.0


def measure_costs(args, network):
    """What computing costs by length, on one server: full prefill, the sender's reading, and each plan from memory."""
    rows = []
    server = Server(args, network, "node2", ["--adapter-root", adapter_folder(args).parent])
    try:
        for tokens in sorted({max(BLOCK_TOKENS * 4, args.tokens // divisor // BLOCK_TOKENS * BLOCK_TOKENS) for divisor in (8, 4, 2, 1)}):
            prompts = Prompts(server, tokens)
            if not rows:
                cost_row(args, server, prompts, "warm")
            rows += [cost_row(args, server, prompts, f"{tokens}-{round_number}") for round_number in range(args.repeats)]
            print(f"costs at {tokens} tokens: full prefill {rows[-1]['full_ms']:.0f} ms", file=sys.stderr, flush=True)
    finally:
        server.stop()
    return rows


def adapter_folder(args):
    path = Path(args.family).resolve()
    path = path / "family.json" if path.is_dir() else path
    family = json.loads(path.read_text())
    return (path.parent / next(variant["adapter"] for variant in family["variants"] if variant["name"] == args.receiver)).resolve()


def measure_directory(args, network, num_layers):
    """Processor seconds of Redis for a look-up of a block (one EXISTS with the names of its values) and for a record (SET), in
    pipelines of 64."""
    names = [f"{{droidspeak:block:__rand_int__}}:{i:060d}" for i in range(-(-num_layers // 4) + 1)]
    return {"look_up_s": redis_seconds(args, network, ["EXISTS", *names]), "record_s": redis_seconds(args, network, ["SET", "droidspeak:peer:block:__rand_int__" + "0" * 60, "x" * 110])}


def redis_seconds(args, network, command, count=200000):
    redis = Redis(args.out, network)
    try:
        before = redis.cpu_seconds()
        bench = ["redis-benchmark", "-h", network.address("store"), "-p", redis.port, "-P", "64", "-c", "4", "-r", "100000", "-n", count, "-q", *command]
        subprocess.run(network.command("store", bench), check=True, stdout=subprocess.DEVNULL)
        return (redis.cpu_seconds() - before) / count
    finally:
        redis.stop()


def load_adapter(args, server):
    """Milliseconds until one more adapter can be asked for; it goes again."""
    begin = time.perf_counter()
    status, text = server.call("POST", "/v1/load_lora_adapter", {"lora_name": "one-more", "lora_path": str(adapter_folder(args))})
    elapsed = (time.perf_counter() - begin) * 1000
    if status != 200:
        sys.exit(f"{server.name}: /v1/load_lora_adapter: {status} {text.decode()[:300]}")
    server.call("POST", "/v1/unload_lora_adapter", {"lora_name": "one-more"})
    return elapsed


def cost_row(args, server, prompts, salt):
    row = {"tokens": len(prompts.context), "plans_ms": {}}
    row["full_ms"] = round(server.ask(args.receiver, prompts.prompt, "off", salt + "-full")[0], 1)
    for plan in [*args.plans, LOAD_ONLY]:
        row["reading_ms"] = round(server.ask(args.sender, prompts.context, "off", f"{salt}-{plan}")[0], 1)
        row["plans_ms"][plan] = round(server.ask(args.receiver, prompts.prompt, {"sender": args.sender, "plan": plan}, f"{salt}-{plan}")[0], 1)
    row["own_ms"] = round(server.ask(args.receiver, prompts.prompt, "off", salt + "-full")[0], 1)  # from its own cache
    several, _ = server.ask(args.receiver, prompts.prompt, "off", salt + "-full", 1 + ANSWER_TOKENS)
    row["token_ms"] = round(max(several - row["own_ms"], 0.1) / ANSWER_TOKENS, 3)
    row["adapter_ms"] = round(load_adapter(args, server), 1)
    return row
