#!/usr/bin/env python3
"""Writes the plots and tables of docs/results.md from the plan books, from bench/results/rows, and from what run.sh measured.

A table stands between `<!-- NAME -->` and `<!-- end -->`; what lies outside is written by hand and kept.
Example: figures.py --results out/paper
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np
from results import Evaluation, Measured, Pair, Results
from svg import Axes, Curve, Dot, Panel, write_chart

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/evidence"))

from confirm import Costs  # noqa: E402

SETS = {"hotpotqa": "HotpotQA", "2wikimqa": "2WikiMultihopQA", "musique": "MuSiQue", "multi_news": "multi_news"}
ARMS = {"contiguous": ("contiguous block", 1), "critical": ("critical layers one by one", 3), "tokens": ("tokens (CacheBlend)", 4),
        "filtered": ("tokens, gradually filtered", 5), "translated": ("contiguous, translated", 2)}
KINDS = {"confirm": "profile", "qa": "test"}  # of the receiver's own task
LEAST_SCORE = 0.1
NOT_YET = "Not measured on today's variants yet."


def table(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return NOT_YET
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(interval: list[float]) -> str:
    return f"{100 * interval[0]:+.1f} .. {100 * interval[1]:+.1f}"


def change(plan: Measured, full: Measured) -> str:
    """Difference to full prefill in points, with its paired interval."""
    return f"{100 * (plan.score - full.score):+.1f} ({signed(plan.difference_ci95)})"


def pairs_of(found: dict) -> list[Pair]:
    return sorted({pair for pair, _ in found})


def share_of(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.0f} %"


class Document:
    def __init__(self, results: Results, plots: Path):
        self.results, self.plots = results, plots

    # ---- figure 6: full reuse

    def reuse(self) -> str:
        rows = []
        for (pair, kind), found in sorted(self.results.rows.items()):
            if (plain := found.find("reuse", False)) is None or found.full.score < LEAST_SCORE:
                continue
            rows.append([pair, f"{KINDS.get(kind, kind)}, {found.n}", f"{percent(found.full.score)} ({percent(found.full.ci95[0])} .. {percent(found.full.ci95[1])})",
                         percent(plain.score), change(plain, found.full), f"{plain.kl:.3f}", share_of(plain.agreement)])
        return table(["pair", "rows", "full prefill (95 %)", "plain reuse", "difference (95 %)", "KL", "agreement"], rows)

    # ---- figures 7 and 8: sensitivity

    def sensitivity(self) -> str:
        panels, rows = [], []
        for pair, (_, book) in sorted(self.results.books.items()):
            layers = book["sensitivity"]
            panels.append(Panel(f"{pair} ({book['data']['contexts']} contexts)", bars=[
                Dot(s["layer"], s["kl"], max(0.0, s["kl"] - s["spread"]), s["kl"] + s["spread"],
                    f"layer {s['layer']}: KL {s['kl']:.4f}, standard deviation {s['spread']:.4f}") for s in layers]))
            top = sorted(layers, key=lambda s: -s["kl"])[:8]
            share = sum(s["kl"] for s in top) / max(1e-12, sum(s["kl"] for s in layers))
            ratio = float(np.median([s["spread"] / s["kl"] for s in layers if s["kl"] > 0]))
            inside = sum(16 <= s["layer"] < 24 for s in top)
            rows.append([pair, ", ".join(str(s["layer"]) for s in sorted(top, key=lambda s: s["layer"])), inside,
                         f"{100 * share:.0f} %", f"{ratio:.1f}", self._overlap(pair)])
        if panels:
            write_chart(self.plots / "sensitivity.svg", "One layer alone reused: KL from full prefill, by layer", panels,
                        Axes("reused layer; whiskers: standard deviation over contexts", "KL, nats per token"), columns=2, size=(420, 150))
        return table(["pair", "8 most sensitive layers", "of them in 16-24", "their share of the sum", "deviation / mean (median layer)",
                      "a single row's own 8 among them"], rows)

    def _overlap(self, pair: Pair) -> str:
        """How many of a row's own 8 most sensitive layers are among the 8 of the mean."""
        report = self.results.baselines.get((pair, "hotpotqa"))
        if report is None:
            return "-"
        values = np.array([layer["rows"] for layer in report["sensitivity"]])  # [layers, rows]
        top = set(np.argsort(-values.mean(1))[:8].tolist())
        return f"{np.mean([len(top & set(np.argsort(-column)[:8].tolist())) for column in values.T]):.1f} of 8"

    # ---- figures 11 and 14: other ways to spend the same work

    def baselines(self) -> str:
        self._plot_baselines("kl", "baselines_kl.svg", "KL from full prefill at equal work (HotpotQA)", Axes(
            f"recomputed layers of {self.results.num_layers}, or the same share of tokens", "KL, nats per token"))
        self._plot_baselines("f1", "baselines_f1.svg", "F1 at equal work, minus full prefill's (HotpotQA)", Axes(
            f"recomputed layers of {self.results.num_layers}, or the same share of tokens", "points of F1", y_from_zero=False))
        rows = []
        for (pair, name), report in self.results.baselines.items():
            found = {arm["arm"]: arm for arm in report["arms"]}
            for layers in sorted({arm["layers"] for arm in found.values() if "contiguous" in arm["arm"]}):
                cells = [f"{found[f'{kind} {layers}']['kl']:.3f} / {percent(found[f'{kind} {layers}']['f1'])}"
                         if f"{kind} {layers}" in found else "-" for kind in ARMS]
                critical = found[f"critical {layers}"]
                rows.append([pair, f"{SETS[name]}, {report['n']}", layers, *cells, critical["transitions"],
                             f"{percent(found['full']['f1'])}", f"{found['reuse']['kl']:.3f} / {percent(found['reuse']['f1'])}"])
        return table(["pair", "data, rows", "layers", *(title for title, _ in ARMS.values()), "E loads of critical",
                      "full F1", "plain reuse"], rows)

    def paired(self) -> str:
        kinds = [kind for kind in ARMS if kind != "contiguous"]
        rows, lower, higher = [], dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
        for (pair, name), report in self.results.baselines.items():
            found = {c["second"]: c for c in report["comparisons"]}
            for layers in sorted({int(second.split()[1]) for second in found}):
                cells = []
                for kind in kinds:
                    if (c := found.get(f"{kind} {layers}")) is None:
                        cells.append("-")
                        continue
                    low, high = c["kl"]["ci95"]
                    lower[kind] += high < 0
                    higher[kind] += low > 0
                    cells.append(f"{c['kl']['mean']:+.3f} ({low:+.3f} .. {high:+.3f}), F1 {100 * c['f1']['mean']:+.1f} ({signed(c['f1']['ci95'])})")
                rows.append([pair, SETS[name], layers, *cells])
        counts = "; ".join(f"than {ARMS[kind][0]} lower {lower[kind]}, higher {higher[kind]}" for kind in kinds)
        summary = f"KL of the raw block beyond doubt, of {len(rows)} cases: {counts}.\n\n" if rows else ""
        return summary + table(["pair", "data", "layers", *(f"block minus {ARMS[kind][0]}: KL (95 %), F1" for kind in kinds)], rows)

    def _plot_baselines(self, value: str, file: str, title: str, axes: Axes) -> None:
        def dot(arm: dict) -> Dot:
            tip = f"{arm['arm']}: KL {arm['kl']:.4f}, F1 {percent(arm['f1'])}"
            if value == "kl":
                return Dot(arm["layers"], arm["kl"], *arm["kl_ci95"], tip)
            change = arm["f1_difference"]
            return Dot(arm["layers"], 100 * change["mean"], *(100 * v for v in change["ci95"]), tip)

        panels = []
        for (pair, name), report in self.results.baselines.items():
            if name != "hotpotqa":
                continue
            found = {arm["arm"]: arm for arm in report["arms"]}
            curves = []
            for kind, (label, colour) in ARMS.items():
                chosen = sorted((a for a in found.values() if a["arm"].startswith(kind + " ")), key=lambda a: a["layers"])
                curves.append(Curve(label, colour, [dot(arm) for arm in chosen]))
            curves.append(Curve("plain reuse", 0, [dot(found["reuse"])]))
            panels.append(Panel(str(pair), curves))
        if panels:
            write_chart(self.plots / file, title, panels, axes)

    # ---- figure 12: heat map

    def heat_map(self) -> str:
        rows = []
        for pair, (path, book) in sorted(self.results.books.items()):
            cells = [pair]
            for is_translated in (False, True):
                inside = [c for c in book["heat_map"] if c["translated"] == is_translated and 0 < c["c"] - c["b"] <= 8]
                best = min(inside, key=lambda c: c["kl"], default=None)
                cells.append("-" if best is None else f"{best['b']}-{best['c']}: {best['kl']:.3f}")
            reuse = next(c for c in book["heat_map"] if c["b"] == c["c"] and not c["translated"])
            link = path.with_suffix(".heatmap.svg")
            where = Path("..") / link.relative_to(ROOT) if link.is_relative_to(ROOT) else link
            rows.append([*cells, f"{reuse['kl']:.3f}", book["data"]["contexts"], f"{book['profile_seconds']:.0f}",
                         f"{book['prefill_equivalents']:.1f}", f"[heat map]({where})"])
        return table(["pair", "best raw block of at most 8 layers: KL", "translated", "plain reuse", "contexts", "profile, s",
                      "full prefills of context work", ""], rows)

    # ---- figure 14: work against quality

    def frontier(self) -> str:
        """Candidates on the rows that confirm the books, by predicted work."""
        found = {pair: (evaluation, Costs(self.results.books[pair][1])) for (pair, kind), evaluation in sorted(self.results.rows.items())
                 if kind == "confirm" and pair in self.results.books}
        rows = []
        for pair, (evaluation, costs) in found.items():
            for plan in sorted(evaluation.plans, key=lambda p: self._work(p, costs)):
                if plan.plan != "full":
                    rows.append([pair, plan.name, f"{self._work(plan, costs):.2f}", change(plan, evaluation.full), f"{plan.kl:.3f}", share_of(plan.agreement)])
        for value, file, title, axis in (("score", "cost_f1.svg", "Work against F1, minus full prefill's", "points of F1"), ("kl", "cost_kl.svg", "Work against KL", "KL, nats per token")):
            write_chart(self.plots / file, title + " (own task, profile rows that confirm)", [
                Panel(str(pair), [Curve("plans", 2, [self._dot(plan, evaluation, costs, value) for plan in sorted(evaluation.plans, key=lambda p: self._work(p, costs))
                                                     if plan.plan != "full"])]) for pair, (evaluation, costs) in found.items()],
                Axes("predicted work, % of full prefill", axis, logarithmic=value == "kl", y_from_zero=False))
        return table(["pair", "plan", "work", "shared - full, points of F1 (95 %)", "KL", "agreement"], rows)

    @staticmethod
    def _work(plan: Measured, costs: Costs) -> float:
        return 1.0 if plan.plan == "full" else costs.of(plan.plan, plan.is_translated)

    def _dot(self, plan: Measured, found: Evaluation, costs: Costs, value: str) -> Dot:
        work, tip = 100 * self._work(plan, costs), f"{plan.name}: F1 {percent(plan.score)}, KL {plan.kl:.4f}"
        if value == "kl":
            return Dot(work, plan.kl, tooltip=tip)
        return Dot(work, 100 * (plan.score - found.full.score), *(100 * v for v in plan.difference_ci95), tip)

    # ---- figure 16: context length

    def length(self) -> str:
        rows, panels = [], []
        for pair in pairs_of(self.results.length):
            lengths = {int(tokens): found for (other, tokens), found in self.results.length.items() if other == pair}
            lengths = dict(sorted(lengths.items()))
            names = [plan.name for plan in next(iter(lengths.values())).plans if plan.plan != "full"]
            for name in names:
                of_plan = {tokens: next(p for p in found.plans if p.name == name) for tokens, found in lengths.items()}
                rows.append([pair, name, *(f"{change(plan, lengths[t].full)}, KL {plan.kl:.3f}" for t, plan in of_plan.items())])
            rows.append([pair, "full prefill's F1", *(f"{percent(found.full.score)}, {found.n} rows" for found in lengths.values())])
            dots = lambda choose: [Dot(t, choose(f).kl, tooltip=f"{t} tokens: {choose(f).kl:.3f}") for t, f in lengths.items()]
            panels.append(Panel(str(pair), [Curve(name, colour, dots(lambda f, n=name: next(p for p in f.plans if p.name == n)))
                                            for colour, name in enumerate(names, 1)]))
        if not rows:
            return NOT_YET
        write_chart(self.plots / "length.svg", "KL by length of the context (HotpotQA with added paragraphs)", panels,
                    Axes("tokens of the context, about", "KL, nats per token", logarithmic=True, y_from_zero=False))
        return table(["pair", "plan", *(f"{t} tokens" for t in lengths)], rows)

    # ---- figure 17: other data

    def transfer(self) -> str:
        rows = []
        for pair in pairs_of(self.results.transfer):
            for name in SETS:
                far = self.results.transfer.get((pair, f"{name}.family_book"))
                own = self.results.transfer.get((pair, f"{name}.own_profile"))
                if far is None or own is None:
                    continue
                describe = lambda found: f"{found.auto.name}: {percent(found.auto.score)} ({signed(found.auto.difference_ci95)}), KL {found.auto.kl:.3f}"
                rows.append([pair, f"{SETS[name]}, {far.n}", far.metric, percent(far.full.score), describe(far), describe(own),
                             f"{100 * (far.auto.score - own.auto.score):+.1f}"])
        return table(["pair", "data, rows", "metric", "full", "auto by the family's book", "auto by a book made on the data itself", "difference"], rows)


def put_in(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the document has no marker <!-- {name} --> ... <!-- end -->")
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results/paper", help="OUT of run.sh")
    parser.add_argument("--family", type=Path, default=ROOT / "models/smollm2/family.json")
    parser.add_argument("--document", type=Path, default=ROOT / "docs/results.md")
    parser.add_argument("--plots", type=Path, help="folder of the plots; default: the document's name without .md")
    options = parser.parse_args()
    document = Document(Results(options.results, options.family), options.plots or options.document.with_suffix(""))
    text = options.document.read_text(encoding="utf-8")
    for name in ("reuse", "sensitivity", "heat_map", "baselines", "paired", "frontier", "length", "transfer"):
        text = put_in(text, name, getattr(document, name)())
    options.document.write_text(text, encoding="utf-8")
    print(f"{options.document} and {options.document.with_suffix('')}/*.svg written")


if __name__ == "__main__":
    main()
