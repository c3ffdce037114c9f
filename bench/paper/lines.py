"""Data files: one JSON object a line, gzip or plain."""

import gzip
import json
from pathlib import Path


def read_lines(path: Path) -> list[dict]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file.read().split("\n") if line.strip()]


def write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
