"""What run.sh measured, and the plan books, for figures.py."""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from intervals import difference, mean_interval


ROWS = Path(__file__).resolve().parents[1] / "results/rows"


@dataclass(frozen=True, order=True)
class Pair:
    receiver: str
    sender: str

    def __str__(self) -> str:
        return f"{self.receiver} from {self.sender}"


@dataclass
class Measured:
    """One plan of an `evaluate` report."""

    plan: str
    is_translated: bool
    score: float
    ci95: list[float]
    difference_ci95: list[float]  # against full prefill, rows in pairs
    kl: float
    agreement: float

    @property
    def key(self) -> tuple[str, bool]:
        return self.plan, self.is_translated

    @property
    def name(self) -> str:
        if self.plan == "full":
            return "full prefill"
        layers, _, share = self.plan.partition("+")
        if layers in ("reuse", "0,0,0"):
            block = "plain reuse" if not (share or self.is_translated) else "reuse"
        else:
            a, b, c = layers.split(",")
            block = f"{b}-{c}" if a == "0" else f"0-{a}, {b}-{c}"
        block += f"+{share}" if share else ""
        return block if block == "plain reuse" else f"{block}{' translated' if self.is_translated else ' raw'}"


@dataclass
class Evaluation:
    metric: str
    n: int
    plans: list[Measured]  # in the order asked for; run.sh asks for full, reuse and auto first

    @property
    def full(self) -> Measured:
        return self.plans[0]

    @property
    def reuse(self) -> Measured:
        return self.plans[1]

    @property
    def auto(self) -> Measured:
        return self.plans[2]

    def distinct(self) -> list[Measured]:
        return list({plan.key: plan for plan in self.plans}.values())

    def find(self, plan: str, is_translated: bool) -> Measured | None:
        return next((p for p in self.plans if p.key == (plan, is_translated)), None)


def _evaluation(document: dict) -> Evaluation:
    plans = [Measured(p["plan"], p["translated"], p["score"], p["ci95"], p["difference_ci95"], p["kl"], p["agreement"]) for p in document["plans"]]
    return Evaluation(document["metric"], document["n"], plans)


def from_rows(path: Path) -> Evaluation:
    """Of rows by plan as bench/evidence/run.py keeps them."""
    plans: dict[tuple[str, bool], dict] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            plans.setdefault((row["plan"], row["translated"]), {})[row["id"]] = row
    full = plans["full", False]
    column = lambda rows, field: [rows[name][field] for name in full]
    agreements = lambda rows: [row["agreement"] for row in rows.values() if "agreement" in row]  # older rows have none
    made = [Measured(plan, is_translated, float(np.mean(column(rows, "score"))), mean_interval(column(rows, "score")),
                     difference(column(rows, "score"), column(full, "score"))["ci95"], float(np.mean(column(rows, "kl"))),
                     float(np.mean(agreements(rows) or [np.nan]))) for (plan, is_translated), rows in plans.items()]
    return Evaluation("", len(full), made)


class Results:
    """Reports by pair and by what follows the pair in a file's name (data set, tokens)."""

    def __init__(self, folder: Path, family: Path):
        self.folder = folder
        self.length = self._by_pair("length", _evaluation)
        self.transfer = self._by_pair("transfer", _evaluation)
        self.baselines = self._by_pair("baselines", lambda document: document)
        self.rows = {}  # of the family as it is, by (pair, task or set), what confirms books behind the rest
        for name in ("evidence", "confirmed"):
            for path in sorted((ROWS / name).glob("*.jsonl.gz")):
                receiver, sender, kind = re.fullmatch(r"(.+)-from-([^.]+)\.(.+)\.jsonl\.gz", path.name).groups()
                self.rows[Pair(receiver, sender), kind] = from_rows(path)
        self.books = {}
        for relative in json.loads(family.read_text()).get("plan_books", []):
            path = family.parent / relative
            book = json.loads(path.read_text())
            self.books[Pair(book["receiver"]["name"], book["sender"]["name"])] = (path.resolve(), book)

    def _by_pair(self, kind: str, convert) -> dict[tuple[Pair, str], object]:
        found = {}
        for path in sorted(self.folder.glob(f"{kind}.*.json.gz")):
            if match := re.fullmatch(rf"{kind}\.(.+)-from-([^.]+)\.(.+)\.json\.gz", path.name):
                found[Pair(match[1], match[2]), match[3]] = convert(json.loads(gzip.decompress(path.read_bytes())))
        return found

    @property
    def num_layers(self) -> int:
        return next((book["num_layers"] for _, book in self.books.values()), 30)
