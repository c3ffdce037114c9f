"""A minute of requests while Redis, the link to it and a peer fail at random; longer by hand: tests/soak/network.py."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DROIDSPEAK_BUILD", ROOT / "build"))


def has_peers():
    """Whether this build can talk to other nodes."""
    command = [BUILD / "droidspeak", "serve", "--family", "nowhere", "--remote-cache", "redis://127.0.0.1:1", "--remote-secret-file", "/dev/null",
               "--peer-listen", "127.0.0.1:1"]
    return "UCX" not in subprocess.run(command, capture_output=True, text=True, timeout=60).stderr


@pytest.mark.skipif(not (shutil.which("redis-server") or shutil.which("valkey-server")), reason="no redis-server on this machine")
def test_answers_stay_right_whatever_fails(tmp_path):
    command = [sys.executable, ROOT / "tests" / "soak" / "network.py", "--tiny", "--minutes", "1", "--build", BUILD, "--out", tmp_path]
    done = subprocess.run([*command, *([] if has_peers() else ["--without-peers"])], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = json.loads((tmp_path / "report.json").read_text())
    faults = {name: count for name, count in report["counts"].items() if name.startswith("fault: ")}
    assert len(faults) >= 5, faults
