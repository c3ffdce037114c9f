"""`make cluster` on a tiny family: real servers behind the real HAProxy."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DROIDSPEAK_BUILD", ROOT / "build"))
NUM_CONTEXTS = 12


def modes():
    """With Redis where this build knows what to do with it."""
    program = BUILD / "droidspeak"
    shown = subprocess.run([program, "serve", "--help"], capture_output=True, text=True).stdout if program.exists() else ""
    return [["--without-redis"], *([[]] if "--remote-cache" in shown else [])]


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    made = subprocess.run([BUILD / "bin" / "tiny_family", tmp_path_factory.mktemp("family"), "--plan-books"], check=True, capture_output=True, text=True)
    return pathlib.Path(made.stdout.strip())


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with open(path, "w") as file:
        for i in range(NUM_CONTEXTS):
            document = {"title": f"Report {i}", "text": f"The number {i} stands for {i * 37}. " * 10}
            file.write(json.dumps({"documents": [document], "question": "Which?", "answers": ["it"]}) + "\n")
    return path


@pytest.mark.parametrize("flags", modes(), ids=lambda flags: flags[0] if flags else "with-redis")
def test_the_story_goes_through(family, rows, tmp_path, flags):
    command = [sys.executable, ROOT / "tools" / "cluster.py", "--binary", BUILD / "droidspeak", "--family", family, "--data", rows,
               "--receiver", "alpha", "--contexts", str(NUM_CONTEXTS), "--out", tmp_path, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    contexts, gone = result["contexts"], result["gone"]
    assert len(contexts) == NUM_CONTEXTS and len({entry["read_by"] for entry in contexts}) > 1
    after = contexts[NUM_CONTEXTS // 2:]
    assert gone in {entry["read_by"] for entry in after} and gone not in {entry["answered_by"] for entry in after}
    there = [entry for entry in contexts if entry not in after or entry["read_by"] != gone]
    returned = [entry for entry in there if entry["answered_by"] == entry["read_by"]]
    assert len(returned) >= 0.8 * len(there), "a context comes back to the server that has read it"
    assert all(entry["sender"] == "base" for entry in returned), "and starts from its caches"
    assert gone in done.stdout and "speed-up" in done.stdout


def test_what_cannot_start_is_named(family, rows, tmp_path):
    command = [sys.executable, ROOT / "tools" / "cluster.py", "--binary", BUILD / "droidspeak", "--family", tmp_path / "none.json", "--data", rows,
               "--without-redis", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "server-1" in done.stderr and "none.json" in done.stderr
