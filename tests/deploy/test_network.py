"""A minute of requests while Redis, the link to it and a peer fail at random; longer by hand: tests/soak/network.py."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "clients"))

from server_process import build_folder, has_peers  # noqa: E402


@pytest.mark.skipif(not (shutil.which("redis-server") or shutil.which("valkey-server")), reason="no redis-server on this machine")
def test_answers_stay_right_whatever_fails(tmp_path):
    command = [sys.executable, ROOT / "tests" / "soak" / "network.py", "--tiny", "--minutes", "1", "--build", build_folder(), "--out", tmp_path]
    done = subprocess.run([*command, *([] if has_peers() else ["--without-peers"])], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = json.loads((tmp_path / "report.json").read_text())
    faults = {name: count for name, count in report["counts"].items() if name.startswith("fault: ")}
    assert len(faults) >= 5, faults
