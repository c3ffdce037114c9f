"""HAProxy with the configuration of deploy/ in front of small servers that say who they are."""

import http.client
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from server_port import server_port

CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
NUM_SERVERS = 3
# Debian keeps it where only root's PATH looks.
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin") or "haproxy"


def environment(bind, stats, servers):
    """The variables that the configuration reads."""
    named = {f"DROIDSPEAK_SERVER_{i + 1}": server for i, server in enumerate(servers)}
    return {**os.environ, "DROIDSPEAK_BIND": bind, "DROIDSPEAK_STATS": stats, **named}


class Backend:
    """A server of the cluster as HAProxy sees it: /health, and answers that can be held back or refused."""

    def __init__(self):
        self.is_draining = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.num_running = 0
        self.num_refused = 0
        self.lock = threading.Lock()
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.reply(503 if backend.is_draining else 200)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if backend.is_draining:
                    with backend.lock:
                        backend.num_refused += 1
                    return self.reply(503)
                with backend.lock:
                    backend.num_running += 1
                backend.may_answer.wait(30)
                with backend.lock:
                    backend.num_running -= 1
                self.reply(200, {"bytes": len(body), "host": self.headers["Host"]})

            def reply(self, status, value=None):
                text = json.dumps(value or {}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_):
                pass  # a health check that has seen enough

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()


class Front:
    """A running HAProxy and its servers, by the names server-1 to server-3."""

    def __init__(self, log):
        self.backends = {f"server-{i + 1}": Backend() for i in range(NUM_SERVERS)}
        self.port, self.stats_port = server_port(), server_port()
        addresses = [f"127.0.0.1:{backend.port}" for backend in self.backends.values()]
        self.log = open(log, "w")
        self.process = subprocess.Popen(
            [HAPROXY, "-db", "-f", CONFIG], stdout=self.log, stderr=self.log,
            env=environment(f"127.0.0.1:{self.port}", f"127.0.0.1:{self.stats_port}", addresses))
        self.wait_for(lambda: self.states() == ["UP"] * NUM_SERVERS)

    def wait_for(self, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except OSError:
                assert self.process.poll() is None, "HAProxy has ended"
            time.sleep(0.02)
        raise AssertionError("HAProxy did not get there")

    def table(self, column):
        """A column of HAProxy's table of servers."""
        _, _, text = request(self.stats_port, "GET", "/;csv")
        lines = text.decode().splitlines()
        place = lines[0].split(",").index(column)
        return [line.split(",")[place] for line in lines if line.startswith("servers,server-")]

    def states(self):
        """UP or DOWN of each server."""
        return [status.split()[0] for status in self.table("status")]

    def post(self, body, path="/v1/chat/completions", **headers):
        """(status, name of the server, answer)"""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, head, text = request(self.port, "POST", path, data, {"Content-Type": "application/json", **headers})
        return status, head.get("X-Served-By"), json.loads(text or b"{}") if status == 200 else text

    def server_of(self, body, **headers):
        """Who answers when nothing else is running: the bound on the load decides nothing."""
        self.wait_for(lambda: self.table("scur") == ["0"] * NUM_SERVERS)
        status, name, _ = self.post(body, **headers)
        assert status == 200
        return name

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        for backend in self.backends.values():
            backend.stop()
        self.log.close()


def request(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()
