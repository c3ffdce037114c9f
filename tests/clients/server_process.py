"""Starts `droidspeak serve` for tests and stops it again."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build_folder():
    return pathlib.Path(os.environ.get("DROIDSPEAK_BUILD", ROOT / "build"))


def has_peers():
    """Whether this build can talk to other nodes."""
    said = subprocess.run([build_folder() / "droidspeak", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    return "peer" in next(line for line in said.splitlines() if line.startswith("features:")).split()


def family_file(folder):
    """The family to serve: DROIDSPEAK_FAMILY, or a tiny one with plan books made for the occasion."""
    given = os.environ.get("DROIDSPEAK_FAMILY")
    if given:
        return pathlib.Path(given)
    maker = build_folder() / "bin" / "tiny_family"
    made = subprocess.run([maker, folder, "--plan-books"], check=True, capture_output=True, text=True)
    return pathlib.Path(made.stdout.strip())


def adapters(family):
    """Name -> folder of the family's adapters."""
    entries = json.loads(family.read_text())["variants"]
    return {entry["name"]: (family.parent / entry["adapter"]).resolve() for entry in entries if "adapter" in entry}


def adapter_root(family):
    """The folder that holds them all."""
    return os.path.commonpath(list(adapters(family).values()))


class Server:
    """A running server. `url` has no trailing slash."""

    def __init__(self, family, *flags, log=None, cache_memory="64MiB"):
        command = [build_folder() / "droidspeak", "serve", "--family", family, "--port", "0"]
        command += ["--kv-memory", "64MiB", "--cache-memory", cache_memory, *flags]
        self.log = open(log or os.devnull, "w")
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.match(r"listening on (https?://[^:]+:(\d+))$", line.strip())
        if not found:
            self.process.kill()
            raise RuntimeError(f"the server did not start: {line!r}")
        self.url = found[1]
        self.port = int(found[2])

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def terminate(self, timeout=60):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        deadline = time.time() + timeout
        while self.process.poll() is None and time.time() < deadline:
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            raise RuntimeError("the server did not exit after SIGTERM")
        self.log.close()
        return self.process.returncode
