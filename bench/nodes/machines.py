"""The programs of a bench on many nodes: Redis, `droidspeak serve`, HAProxy, each on its node, each with a log of its own."""

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Debian keeps it where only root's PATH looks.
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin") or "haproxy"
REDIS_PORT = 6379
PEER_PORT = 7000
HTTP_PORT = 8080
FRONT_PORT = 8090
START_SECONDS = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class UnixConnection(http.client.HTTPConnection):
    """Servers are asked through their Unix sockets: questions and answers take no part of the links."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Process:
    def __init__(self, out, name, command, environment=None):
        self.name = name
        self.log = out / f"{name}.log"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def wait_until(self, condition):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return
            time.sleep(0.02)
        self.stop()
        sys.exit(f"{self.name} did not start; see {self.log}: {self.log.read_text()[-500:].strip()}")

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Redis(Process):
    """On the node "store"."""

    def __init__(self, out, network, memory="4gb"):
        # On loopback other servers may have the usual port.
        self.port = REDIS_PORT if network.can_reach_peers else free_port()
        self.cli = network.command("store", ["redis-cli", "-h", network.address("store"), "-p", self.port])
        super().__init__(out, "redis", network.command("store", ["redis-server", "--port", self.port, "--bind", network.address("store"), "--save", "", "--appendonly", "no",
                                                                 "--dir", out, "--maxmemory", memory, "--maxmemory-policy", "allkeys-lru", "--protected-mode", "no"]))
        self.wait_until(lambda: "PONG" in self.ask("ping"))

    def ask(self, *arguments):
        return subprocess.run([*self.cli, *arguments], capture_output=True, text=True).stdout

    def figures(self):
        """Those of INFO that count."""
        lines = dict(line.split(":", 1) for line in self.ask("info").splitlines() if ":" in line)
        names = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes", "used_memory", "evicted_keys")
        return {name: int(lines[name]) for name in names}

    def names(self):
        return set(self.ask("--scan").split())

    def forget_values(self):
        """Caches go, the directory stays: they are to be had from other nodes alone."""
        self.forget_all_but({name for name in self.names() if name.startswith("droidspeak:peer:")})

    def forget_all_but(self, kept):
        """What came later goes, leases of nodes excepted."""
        gone = [name for name in self.names() - kept if not name.startswith("droidspeak:peer:node:")]
        for begin in range(0, len(gone), 500):
            self.ask("unlink", *gone[begin:begin + 500])

    def command_costs(self):
        """Calls and microseconds of every command so far."""
        found = re.findall(r"cmdstat_(\w+):calls=(\d+),usec=(\d+)", self.ask("info", "commandstats"))
        return {name: {"calls": int(calls), "microseconds": int(spent)} for name, calls, spent in found}


class Server(Process):
    """`droidspeak serve` on a node."""

    def __init__(self, args, network, name, flags=()):
        self.socket = args.out / f"{name}.sock"
        self.socket.unlink(missing_ok=True)
        self.port = HTTP_PORT if network.can_reach_peers else 0
        serve = [args.binary, "serve", "--family", args.family, "--host", network.address(name), "--port", self.port, "--socket", self.socket, "--threads", args.threads,
                 "--cache-memory", args.cache_memory, "--allowed-host", "*", "--min-quality", "0.97", *flags]
        super().__init__(args.out, name, network.command(name, serve))
        self.wait_until(self.is_up)

    def is_up(self):
        try:
            return self.call("GET", "/health", timeout=1)[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None, timeout=600):
        connection = UnixConnection(self.socket, timeout)
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, text

    def get(self, path):
        status, text = self.call("GET", path)
        if status != 200:
            sys.exit(f"{self.name}: {path}: {status} {text.decode()[:300]}")
        return json.loads(text)

    def tokenize(self, text):
        status, answer = self.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        if status != 200:
            sys.exit(f"{self.name}: /tokenize: {status} {answer.decode()[:300]}")
        return json.loads(answer)["tokens"]

    def answer(self, model, prompt, sharing, salt, max_tokens=1):
        """(milliseconds until the answer is here, the answer)"""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "sharing": sharing, "cache_salt": salt}
        begin = time.perf_counter()
        status, text = self.call("POST", "/v1/completions", body)
        elapsed = (time.perf_counter() - begin) * 1000
        if status != 200:
            sys.exit(f"{self.name}: {model}, sharing {sharing}: {status} {text.decode()[:300]}")
        return elapsed, json.loads(text)

    def ask(self, model, prompt, sharing, salt, max_tokens=1):
        """(milliseconds until the answer is here, what was done)"""
        elapsed, answer = self.answer(model, prompt, sharing, salt, max_tokens)
        return elapsed, answer["droidspeak"]

    def tiers(self):
        return {tier["name"]: tier for tier in self.get("/v1/droidspeak/state")["caches"]["tiers"]}

    def wait_written(self, seconds=60):
        """Until nothing more goes out to other tiers."""
        before, since = None, time.monotonic()
        deadline = since + seconds
        while time.monotonic() < deadline:
            now = [(tier["name"], tier["bytes_written"], tier["entries"]) for tier in self.tiers().values()]
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > 0.5:
                return
            time.sleep(0.05)
        sys.exit(f"{self.name}: still writing after {seconds} s")

    def wait_linked(self, tier, seconds=10):
        """Until the rate of the tier's link is known; a link on which nothing moves never is."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            links = self.tiers()[tier].get("links", [])
            if any(link["up"] and link["bytes_per_second"] > 0 for link in links):
                return
            time.sleep(0.05)


def front_configuration(deployed, servers, routing):
    """The deployed configuration with these servers (host:port); with routing "turns" contexts do not decide."""
    lines = deployed.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("server server-"))
    kept = [line for line in lines if not line.strip().startswith("server server-")]
    kept[at:at] = [f"    server server-{i + 1} {address}" for i, address in enumerate(servers)]
    if routing == "turns":
        kept = ["    balance roundrobin" if line.strip().startswith("balance ") else line for line in kept if not line.strip().startswith("hash-")]
    return "\n".join(kept) + "\n"


class Front(Process):
    """HAProxy as deployed (deploy/haproxy/haproxy.cfg), with as many servers as there are."""

    def __init__(self, out, network, servers, routing):
        text = front_configuration((ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text(), servers, routing)
        config = out / "haproxy.cfg"
        config.write_text(text)
        self.address = f"{network.address('switch')}:{FRONT_PORT}"
        environment = {**os.environ, "DROIDSPEAK_BIND": self.address, "DROIDSPEAK_STATS": f"{network.address('switch')}:{FRONT_PORT + 1}"}
        super().__init__(out, "haproxy", network.command("switch", [HAPROXY, "-db", "-f", config]), environment)
        check = network.command("switch", [sys.executable, "-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)", f"http://{self.address}/health"])
        self.wait_until(lambda: subprocess.run(check, capture_output=True).returncode == 0)


def write_secret(out):
    """The family's secret, as a file."""
    path = out / "remote_secret"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return path
