"""What the benchmarks say of themselves: where caches came from, and that trials do not help each other."""

import http.server
import itertools
import json
import pathlib
import shutil
import socket
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "soak"))
from network_faults import Redis, server_port  # noqa: E402
from server_process import has_peers  # noqa: E402


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers every completion with one word and keeps what was asked."""

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b'data: {"choices":[{"text":"yes"}]}\n\ndata: [DONE]\n\n')

    def log_message(self, *_):
        pass


@pytest.fixture
def recorder():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_each_trial_of_bench_serve_has_caches_of_its_own(program_with_books, rows, recorder):
    """With --cache-dir or --remote-cache all trials share a store."""
    found = program_with_books.json("bench", "serve", "--data", rows, "--contexts", 2, "--rates", "50,100", "--min-context", 64,
                                    "--max-context", 128, "--max-tokens", 2, "--slo-ms", 1000, "--arms", "off",
                                    "--url", f"http://127.0.0.1:{recorder.server_port}")
    assert len(found) == 4
    trials = [salt for salt, _ in itertools.groupby(body.get("cache_salt") for body in recorder.asked)]
    assert all(trials) and len(trials) == len(set(trials)) == 2


def reuse(program, *flags):
    return program.json("bench", "reuse", "--model", "alpha", "--sender", "base", "--plan", "0,1,3", "--tokens", 128, "--repeats", 1, *flags)


def tiers(found):
    return [row["tier"] for row in found]


def test_bench_reuse_names_the_tier_that_was_read(program, tmp_path):
    assert tiers(reuse(program)) == ["none", "host", "host"]
    assert tiers(reuse(program, "--cache-dir", tmp_path / "a")) == ["none", "host", "host", "none", "disk", "disk"]
    without_host = reuse(program, "--cache-dir", tmp_path / "b", "--cache-memory", 0)
    assert tiers(without_host) == ["none", "disk", "disk"] * 2


def test_bench_reuse_needs_a_block(program):
    done = program.run("bench", "reuse", "--model", "alpha", "--sender", "base", "--tokens", "64,63", "--family", program.family)
    assert done.returncode == 1 and done.stdout == ""
    assert "--tokens 63" in done.stderr and "expected at least 64" in done.stderr


def remote_flags(tmp_path, port):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    secret.chmod(0o600)
    return ["--remote-cache", f"redis://127.0.0.1:{port}", "--remote-secret-file", secret]


def test_bench_reuse_reads_from_disk_beside_peers(program, tmp_path):
    """Both stores would listen at the same address."""
    if not has_peers():
        pytest.skip("this build has no UCX")
    found = reuse(program, "--cache-dir", tmp_path / "cache", *remote_flags(tmp_path, server_port()), "--peer-listen", f"127.0.0.1:{server_port()}")
    assert tiers(found) == ["none", "host", "host", "none", "disk", "disk"]


@pytest.fixture
def redis(tmp_path):
    """Its port."""
    if not (shutil.which("redis-server") or shutil.which("valkey-server")):
        pytest.skip("no redis-server on this machine")
    server = Redis(tmp_path)
    yield server.port
    server.kill()


def slow_to_answer(port, seconds):
    """A port behind which connections are accepted at once and carried on so much later."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source, sink):
        try:
            while data := source.recv(1 << 20):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def meet(near):
        time.sleep(seconds)
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=carry, args=(near, far), daemon=True).start()
        carry(far, near)

    def accept():
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=meet, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def test_bench_reuse_of_an_empty_remote_store(program, tmp_path, redis):
    found = reuse(program, "--cache-memory", 0, *remote_flags(tmp_path, redis))
    assert tiers(found) == ["none", "remote", "remote"]


def test_commands_find_what_a_remote_store_has_that_is_slow_to_answer(program, text, tmp_path, redis):
    with slow_to_answer(redis, 0.2) as relay:
        flags = remote_flags(tmp_path, relay.getsockname()[1])
        ask = ["generate", "--model", "alpha", "--sender", "base", "--plan", "reuse", "--context-file", text, "--prompt", "And then?",
               "--max-tokens", 1, *flags]
        assert program.json(*ask)["timings"]["sender_ms"] > 0
        # What takes longer than a second on a busy machine is not waited for.
        assert any(program.json(*ask)["timings"]["sender_ms"] == 0 for _ in range(5))
