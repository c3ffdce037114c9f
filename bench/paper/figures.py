#!/usr/bin/env python3
"""Writes the plots and tables of docs/results.md from what run.sh measured.

A table stands between `<!-- NAME -->` and `<!-- end -->`; what lies outside is written by hand and kept.
Example: figures.py --results out/paper
"""

import argparse
import re
from pathlib import Path

import numpy as np
from results import Evaluation, Measured, Pair, Results
from svg import Axes, Curve, Dot, Panel, write_chart

ROOT = Path(__file__).resolve().parents[2]
SETS = {"hotpotqa": "HotpotQA", "2wikimqa": "2WikiMultihopQA", "musique": "MuSiQue", "multi_news": "multi_news"}
ARMS = {"contiguous": ("contiguous block", 1), "critical": ("critical layers one by one", 3),
        "tokens": ("tokens (CacheBlend)", 4), "translated": ("contiguous, translated", 2)}
NOT_YET = "Not measured yet."


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


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


class Document:
    def __init__(self, results: Results, plots: Path):
        self.results, self.plots = results, plots

    # ---- figure 6: full reuse

    def reuse(self) -> str:
        rows = []
        for pair in pairs_of(self.results.evaluate):
            for name, title in SETS.items():
                if (found := self.results.evaluate.get((pair, name))) is None:
                    continue
                rows.append([pair, f"{title}, {found.n}", f"{percent(found.full.score)} ({percent(found.full.ci95[0])} .. "
                             f"{percent(found.full.ci95[1])})", percent(found.reuse.score), change(found.reuse, found.full),
                             f"{found.reuse.kl:.3f}", f"{100 * found.reuse.agreement:.0f} %"])
        return table(["pair", "data, rows", "full prefill (95 %)", "plain reuse", "difference (95 %)", "KL", "agreement"], rows)

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
            curves.append(Curve("plain reuse", 5, [dot(found["reuse"])]))
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

    # ---- figure 14: time to first token against quality

    def frontier(self) -> str:
        devices, sections = self.results.devices(), []
        for (pair, name), found in self.results.evaluate.items():
            if name != "hotpotqa":
                continue
            rows = [[("auto: " if plan is found.auto else "") + plan.name, plan.layers(self.results.num_layers),
                     *(times(self.results.speedup(plan, device)) for device in devices),
                     percent(plan.score), change(plan, found.full), f"{plan.kl:.3f}", f"{100 * plan.agreement:.0f} %"]
                    for plan in sorted(found.distinct(), key=lambda p: (p.layers(self.results.num_layers), p.is_translated))]
            sections.append(f"**{pair}**, {found.n} rows\n\n" + table(
                ["plan", "layers", *(f"speed-up, {device}" for device in devices), "F1", "difference (95 %)", "KL", "agreement"], rows))
        self._plot_frontier()
        return "\n\n".join(sections) or NOT_YET

    def _plot_frontier(self) -> None:
        for value, file, title in (("score", "ttft_f1.svg", "Time to first token against F1, minus full prefill's (HotpotQA)"),
                                   ("kl", "ttft_kl.svg", "Time to first token against KL (HotpotQA)")):
            panels = [Panel(str(pair), self._frontier_curves(pair, found, value))
                      for (pair, name), found in self.results.evaluate.items() if name == "hotpotqa"]
            if panels:
                write_chart(self.plots / file, title, panels, Axes(
                    f"time to first token, % of full prefill ({self._device()})", "points of F1" if value == "score" else "KL, nats per token",
                    logarithmic=value == "kl", y_from_zero=False))

    def _device(self) -> str:
        return (self.results.devices() or ["in the same run"])[0]

    def _share(self, plan: Measured, found: Evaluation) -> float:
        """Time to first token in percent of full prefill's."""
        speedup = self.results.speedup(plan, self._device())
        return 100 / speedup if speedup else 100 * plan.ttft_ms / found.full.ttft_ms

    def _frontier_curves(self, pair: Pair, found: Evaluation, value: str) -> list[Curve]:
        def dot(plan: Measured) -> Dot:
            share, tip = self._share(plan, found), f"{plan.name}: F1 {percent(plan.score)}, KL {plan.kl:.4f}"
            if value == "kl":
                return Dot(share, plan.kl, tooltip=tip)
            return Dot(share, 100 * (plan.score - found.full.score), *(100 * v for v in plan.difference_ci95), tip)

        plans = sorted((p for p in found.distinct() if p.plan != "full"), key=lambda p: self._share(p, found))
        curves = [Curve("raw", 1, [dot(p) for p in plans if not p.is_translated]),
                  Curve("translated", 2, [dot(p) for p in plans if p.is_translated])]
        report = self.results.baselines.get((pair, "hotpotqa"))
        blended = [a for a in report["arms"] if a["arm"].startswith("tokens")] if report else []
        by_layers = {p.layers(self.results.num_layers): self._share(p, found) for p in plans if not p.is_translated}
        curves.append(Curve("tokens (CacheBlend), at the block's time", 4, [
            Dot(by_layers[a["layers"]], a["kl"] if value == "kl" else 100 * a["f1_difference"]["mean"],
                tooltip=f"{a['arm']}: KL {a['kl']:.4f}, F1 {percent(a['f1'])}") for a in blended if a["layers"] in by_layers]))
        return curves + ([Curve("full prefill", 0, [dot(found.full)])] if value == "score" else [])

    # ---- what the project set out to reach

    def goals(self) -> str:
        rows = []
        for (pair, name), found in self.results.evaluate.items():
            if name == "hotpotqa":
                rows.append([pair, percent(found.full.score)] + [self._fastest(found, *goal) for goal in ((3.1, 0.01), (5, 0.01), (10, 0.05))])
        return table(["pair", "full F1", "3.1x, F1 within 1 % or not distinguishable with KL at most 1/3 of reuse's",
                      "5x, F1 within 1 %", "10x, F1 within 5 %"], rows)

    def _fastest(self, found: Evaluation, least: float, loss: float) -> str:
        """The plan of least KL that is fast enough and good enough."""
        kept = []
        for plan in found.distinct():
            speedup = 100 / self._share(plan, found)
            is_near = plan.score >= (1 - loss) * found.full.score
            is_alike = least == 3.1 and plan.difference_ci95[1] >= 0 and plan.kl <= found.reuse.kl / 3
            if plan.plan != "full" and speedup >= least and (is_near or is_alike):
                kept.append((plan.kl, f"{plan.name}: {speedup:.1f}x, F1 {change(plan, found.full)}, KL {plan.kl:.3f}"))
        return min(kept)[1] if kept else "none"

    # ---- figure 16: context length

    def length(self) -> str:
        rows, panels = [], []
        for pair in pairs_of(self.results.length):
            lengths = {"1300": self.results.evaluate.get((pair, "hotpotqa"))}
            lengths |= {tokens: found for (other, tokens), found in self.results.length.items() if other == pair}
            lengths = {tokens: found for tokens, found in sorted(lengths.items(), key=lambda item: int(item[0])) if found}
            for tokens, found in lengths.items():
                data = "hotpotqa" if tokens == "1300" else tokens
                speeds = [times(self.results.speedup(plan, self._device(), data)) for plan in (found.reuse, found.auto)]
                rows.append([pair, tokens, found.n, percent(found.full.score), f"{change(found.reuse, found.full)}, KL {found.reuse.kl:.3f}",
                             found.auto.name, f"{change(found.auto, found.full)}, KL {found.auto.kl:.3f}", *speeds])
            dots = lambda choose: [Dot(int(t), 100 * choose(f).score, 100 * choose(f).ci95[0], 100 * choose(f).ci95[1], f"{t} tokens: {choose(f).name}")
                                   for t, f in lengths.items()]
            panels.append(Panel(str(pair), [Curve("full prefill", 0, dots(lambda f: f.full)), Curve("plain reuse", 1, dots(lambda f: f.reuse)),
                                            Curve("DroidSpeak, auto", 2, dots(lambda f: f.auto))]))
        if panels:
            write_chart(self.plots / "length.svg", "F1 by length of the context (HotpotQA with added paragraphs)", panels,
                        Axes("tokens of the context, about", "F1", y_from_zero=False))
        return table(["pair", "tokens", "rows", "full F1", "plain reuse", "auto", "auto: difference (95 %)",
                      f"speed-up of reuse, {self._device()}", "of auto"], rows)

    # ---- figure 17: other data

    def transfer(self) -> str:
        rows = []
        for pair in pairs_of(self.results.transfer):
            for name in SETS:
                far = self.results.transfer.get((pair, f"{name}.hotpotqa_profile"))
                own = self.results.transfer.get((pair, f"{name}.own_profile"))
                if far is None or own is None:
                    continue
                describe = lambda found: f"{found.auto.name}: {percent(found.auto.score)} ({signed(found.auto.difference_ci95)}), KL {found.auto.kl:.3f}"
                rows.append([pair, f"{SETS[name]}, {far.n}", far.metric, percent(far.full.score), describe(far), describe(own),
                             f"{100 * (far.auto.score - own.auto.score):+.1f}"])
        return table(["pair", "data, rows", "metric", "full", "auto by the HotpotQA profile", "auto by a profile on the data itself", "difference"], rows)

    def other_sets(self) -> str:
        rows = []
        for (pair, name), found in self.results.evaluate.items():
            rows.append([pair, f"{SETS[name]}, {found.n}", found.metric, percent(found.full.score), change(found.reuse, found.full),
                         found.auto.name, change(found.auto, found.full), f"{found.reuse.kl:.3f} -> {found.auto.kl:.3f}"])
        return table(["pair", "data, rows", "metric", "full", "plain reuse (95 %)", "auto", "auto: difference (95 %)", "KL of reuse -> auto"], rows)


def put_in(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the document has no marker <!-- {name} --> ... <!-- end -->")
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "out/paper", help="OUT of run.sh")
    parser.add_argument("--family", type=Path, default=ROOT / "models/smollm2/family.json")
    parser.add_argument("--document", type=Path, default=ROOT / "docs/results.md")
    parser.add_argument("--plots", type=Path, help="folder of the plots; default: the document's name without .md")
    options = parser.parse_args()
    document = Document(Results(options.results, options.family), options.plots or options.document.with_suffix(""))
    text = options.document.read_text(encoding="utf-8")
    for name in ("goals", "reuse", "sensitivity", "baselines", "paired", "heat_map", "frontier", "length", "transfer", "other_sets"):
        text = put_in(text, name, getattr(document, name)())
    options.document.write_text(text, encoding="utf-8")
    print(f"{options.document} and {options.document.with_suffix('')}/*.svg written")


if __name__ == "__main__":
    main()
