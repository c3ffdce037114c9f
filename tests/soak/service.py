"""The server under test: started with little memory, watched, and asked over plain HTTP."""

import http.client
import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Broken(Exception):
    """An answer that is not what the API promises."""


def unprivileged():
    """Arguments for Popen so that file permissions count: root may write anywhere."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def own(folder):
    """Makes a folder usable by the server's user."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)


class Service:
    """`droidspeak serve` on a free port. Memory is scarce so that preemption, eviction and the disk tier are in use."""

    def __init__(self, binary, family, adapter_root, cache_dir, memory, log):
        self.log = open(log, "w")
        command = [binary, "serve", "--family", family, "--port", "0", "--adapter-root", adapter_root, "--drain-s", "60", *memory]
        if cache_dir is not None:
            own(cache_dir)
            command += ["--cache-dir", cache_dir]
        # A write beyond RLIMIT_FSIZE shall fail like one on a full disk, not kill the process.
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN), **unprivileged())
        line = self.process.stdout.readline()
        found = re.match(r"listening on http://[^:]+:(\d+)$", line.strip())
        if not found:
            self.process.kill()
            raise RuntimeError(f"the server did not start, see {log}: {line!r}")
        self.port = int(found[1])

    def connect(self, timeout=900):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def post(self, path, body):
        """(status, parsed JSON or text)"""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read().decode()
        finally:
            connection.close()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.status, json.loads(data) if is_json else data

    def get(self, path):
        connection = self.connect()
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def metrics(self):
        """Name -> sum over labels."""
        sums = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("#") or not line.strip():
                continue
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            sums[name] = sums.get(name, 0) + float(value)
        return sums

    def labelled(self, name):
        """Labels as text -> value."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name + "{")]
        return {line[len(name):].rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def state(self):
        return json.loads(self.get("/v1/droidspeak/state"))

    def plan_books(self):
        return json.loads(self.get("/v1/droidspeak/plan_books"))["plan_books"]

    def resident_mb(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def wait_idle(self, seconds):
        """True when nothing runs, nothing waits and no K/V block is held."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            state = self.state()
            if state["queue"] == {"running": 0, "waiting": 0} and state["kv"]["blocks_used"] == 0:
                return True
            time.sleep(0.1)
        return False

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
