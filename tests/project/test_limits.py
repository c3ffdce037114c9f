"""Tests end: those of Python by tests/conftest.py, and none waits for a server that cannot start."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "soak"))
import network_faults
from server_port import HIGHEST, LOWEST, server_port

HANGS = """
import threading

def test_that_hangs():
    threading.Event().wait()
"""


def run_pytest(folder, text, seconds):
    (folder / "test_one.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "DROIDSPEAK_TEST_SECONDS": seconds}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", folder / "test_one.py"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)


def test_a_test_that_hangs_is_ended_and_named(tmp_path):
    done = run_pytest(tmp_path, HANGS, "1")
    assert done.returncode != 0
    assert "test_that_hangs" in done.stderr


def test_one_that_ends_in_time_is_left_alone(tmp_path):
    done = run_pytest(tmp_path, "def test_that_ends():\n    pass\n", "60")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ports_are_free_and_below_those_of_connections(monkeypatch):
    with socket.create_server(("127.0.0.1", server_port())) as taken:
        port = taken.getsockname()[1]
        assert LOWEST <= port < HIGHEST
        drawn = iter([port, port, port + 1 if port + 1 < HIGHEST else LOWEST])
        monkeypatch.setattr("random.SystemRandom.randrange", lambda *_: next(drawn))
        assert server_port() != port, "it is not free"


@pytest.mark.skipif(not (shutil.which("redis-server") or shutil.which("valkey-server")), reason="no redis-server on this machine")
def test_a_redis_whose_port_is_taken_is_not_waited_for(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(network_faults, "server_port", lambda: taken.getsockname()[1])
        monkeypatch.setattr(network_faults.Redis, "command", lambda *_: None)
        with pytest.raises(RuntimeError, match=f"port {taken.getsockname()[1]}"):
            network_faults.Redis(tmp_path)
