"""What the benchmarks say of themselves: where caches came from, and that trials do not help each other."""

import http.server
import json
import threading

import pytest


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
    salts = [body.get("cache_salt") for body in recorder.asked]
    half = len(salts) // 2
    assert all(salts) and len(set(salts[:half])) == 1 and len(set(salts[half:])) == 1
    assert salts[0] != salts[-1]
