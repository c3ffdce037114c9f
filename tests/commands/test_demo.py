"""`make demo`'s script on the tiny family: what it writes for other programs."""

import json
import pathlib
import subprocess
import sys

from server_process import build_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_result_has_the_fields_that_scripts_read(program_with_books, rows, tmp_path):
    command = [sys.executable, ROOT / "tools" / "demo.py", "--binary", build_folder() / "droidspeak", "--family", program_with_books.family,
               "--data", rows, "--receiver", "alpha", "--contexts", "3", "--out", tmp_path]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["family"], result["sender"], result["receiver"], result["contexts"]) == ("tiny", "base", "alpha", 3)
    assert result["context_tokens_median"] > 100
    assert list(result["modes"]) == ["full", "reuse", "droidspeak"]
    for mode in result["modes"].values():
        assert 0 < mode["ttft_ms_median"] <= mode["ttft_ms_p95"]
        assert 0 <= mode["f1"] <= 100 and 0 <= mode["agreement"] <= 1
    assert result["modes"]["full"]["agreement"] == 1 and result["modes"]["full"]["speedup"] == 1
    assert result["modes"]["droidspeak"]["plan"] == "0,1,3" and result["modes"]["droidspeak"]["translated"] is False
    report = (tmp_path / "report.html").read_text()
    assert "0,1,3" in report and "http" not in report, "opens without a network"
    assert "alpha answers on 3 contexts" in done.stdout
