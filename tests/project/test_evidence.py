"""Figures of docs/evidence.md are those of the committed rows."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tables_follow_from_the_rows():
    subprocess.run([sys.executable, ROOT / "bench/evidence/tables.py", "--check"], check=True)
