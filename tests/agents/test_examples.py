"""The workflows of examples/agents, as a person starts them."""

import subprocess
import sys

import pytest

from server_process import ROOT

STEPS = ["planner", "researcher calls", "researcher", "writer", "reviewer", "all"]


@pytest.mark.parametrize("client", ["openai-agents", "langgraph"])
def test_the_table_compares_every_step(server, client):
    command = [sys.executable, ROOT / "examples/agents/compare.py", "--client", client, "--url", server.url]
    done = subprocess.run([*command, "--document-bytes", "2500"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    headings = next(i for i, line in enumerate(lines) if line.startswith("step "))
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[headings + 1:]]
    assert [row[0] for row in rows] == STEPS
    planner, *receivers, total = rows
    assert planner[4:7] == ["-", "full", "0"] and planner[8] == "100 %"
    for row in receivers:
        assert row[4] == "base" and int(row[6]) > 0, row
    for row in (receivers[0], *receivers[2:]):  # the researcher's second call finds what it read itself
        assert row[-1] == "100 %" and row[8] != "100 %"
    cost_shared, cost_alone = int(total[-5].split()[0]), int(total[-1].split()[0])
    assert cost_shared < cost_alone
