"""What goes wrong between machines while they work: Redis, the link to it, and a peer."""

import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from server_port import server_port

START_SECONDS = 60


class Redis:
    """A real server on loopback that can be killed and started again, empty."""

    def __init__(self, folder):
        self.folder = folder
        self.port = server_port()
        self.process = None
        self.start()

    def start(self):
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        command = [program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", str(self.folder), "--maxmemory", "256mb",
                   "--maxmemory-policy", "allkeys-lru"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while self.command("PING") is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{program} did not start on port {self.port} (exit status {self.process.returncode})")
            time.sleep(0.02)

    def command(self, *words, password=None):
        """The first bytes of the answer; None: there is none."""
        commands = ([["AUTH", password]] if password else []) + [words]
        text = "".join(f"*{len(command)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in command) for command in commands)
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(text.encode())
                return connection.recv(65536).decode(errors="replace")
        except OSError:
            return None

    def kill(self):
        self.process.kill()
        self.process.wait()


class NetworkFaults:
    """One fault after another, each for a while, then it is healed."""

    def __init__(self, redis, relay, peer, checker, seed):
        self.redis = redis
        self.relay = relay
        self.peer = peer  # has start() and kill(), and a process
        self.checker = checker
        self.random = random.Random(seed)

    def kinds(self):
        return [self.redis_killed, self.redis_stopped, self.redis_flushed, self.redis_full, self.redis_locked, self.values_replayed, self.peer_killed,
                self.peer_stopped, *[lambda stop, period, mode=mode: self.link(mode, stop, period) for mode in self.relay.MODES[1:]]]

    def run(self, stop, period):
        """Every kind comes before one comes again."""
        waiting = []
        while not stop.wait(self.random.uniform(0.3, 1) * period):
            if not waiting:
                waiting = self.kinds()
                self.random.shuffle(waiting)
            waiting.pop()(stop, self.random.uniform(0.3, 1) * period)

    def link(self, mode, stop, period):
        self.checker.count(f"fault: link {mode}")
        self.relay.mode = mode
        stop.wait(period)
        self.relay.mode = "fine"

    def redis_killed(self, stop, period):
        self.checker.count("fault: redis killed")
        self.redis.kill()
        stop.wait(period)
        self.redis.start()

    def redis_stopped(self, stop, period):
        self.checker.count("fault: redis stopped")
        self.redis.process.send_signal(signal.SIGSTOP)
        stop.wait(period)
        self.redis.process.send_signal(signal.SIGCONT)

    def redis_flushed(self, stop, period):
        self.checker.count("fault: redis flushed")
        self.redis.command("FLUSHALL")

    def redis_full(self, stop, period):
        self.checker.count("fault: redis full")
        self.redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.redis.command("CONFIG", "SET", "maxmemory", "1")
        stop.wait(period)
        self.redis.command("CONFIG", "SET", "maxmemory", "256mb")
        self.redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    def redis_locked(self, stop, period):
        """A password that the servers do not know, and all of them have to log in again."""
        self.checker.count("fault: redis wants a password")
        self.redis.command("CONFIG", "SET", "requirepass", "another")
        self.redis.command("CLIENT", "KILL", "TYPE", "normal", password="another")
        stop.wait(period)
        self.redis.command("CONFIG", "SET", "requirepass", "", password="another")

    def values_replayed(self, stop, period):
        """Some values get the content of others, whole and well sealed."""
        self.checker.count("fault: values replayed")
        for _ in range(20):
            keys = [(self.redis.command("RANDOMKEY") or "").split("\r\n") for _ in range(2)]
            names = [lines[1] for lines in keys if len(lines) > 1 and lines[1].startswith("ds1:{")]
            if len(names) == 2:
                self.redis.command("COPY", names[0], names[1], "REPLACE")

    def peer_killed(self, stop, period):
        self.checker.count("fault: peer killed")
        self.peer.kill()
        stop.wait(period)
        self.peer.start()

    def peer_stopped(self, stop, period):
        self.checker.count("fault: peer stopped")
        self.peer.service.process.send_signal(signal.SIGSTOP)
        stop.wait(period)
        self.peer.service.process.send_signal(signal.SIGCONT)
