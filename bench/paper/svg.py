"""Just enough SVG for the plots of docs/results.md; the style sheet is the profiler's (src/profiler/svg.cpp)."""

import math
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

STYLE = """
  .paper { fill: #ffffff; }
  text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; font-size: 11px; }
  .title { font-size: 15px; font-weight: 600; }
  .label { font-size: 12px; }
  .tick { fill: #52606d; }
  .grid { stroke: #e4e7eb; stroke-width: 1; }
  .frame { fill: none; stroke: #cbd2d9; stroke-width: 1; }
  .bar { fill: #4c7f9e; }
  .whisker { stroke: #1f2933; stroke-width: 1; }
  .line { fill: none; stroke-width: 1.5; }
  .s0 { stroke: #52606d; fill: #52606d; } .s1 { stroke: #b4552d; fill: #b4552d; } .s2 { stroke: #1f6fb2; fill: #1f6fb2; }
  .s3 { stroke: #4b8b3b; fill: #4b8b3b; } .s4 { stroke: #8a5aa8; fill: #8a5aa8; } .s5 { stroke: #b08a1e; fill: #b08a1e; }
  path.line { fill: none; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #161b22; } text { fill: #e6edf3; } .tick { fill: #9aa7b4; } .grid { stroke: #2a323c; }
    .frame { stroke: #3b4654; } .bar { fill: #6aa5c8; } .whisker { stroke: #e6edf3; }
    .s0 { stroke: #9aa7b4; fill: #9aa7b4; } .s1 { stroke: #e08a5f; fill: #e08a5f; } .s2 { stroke: #6cb2ee; fill: #6cb2ee; }
    .s3 { stroke: #7cc46a; fill: #7cc46a; } .s4 { stroke: #bd90da; fill: #bd90da; } .s5 { stroke: #dcb64a; fill: #dcb64a; }
    path.line { fill: none; }
  }
"""


@dataclass
class Dot:
    x: float
    y: float
    low: float | None = None   # interval of y
    high: float | None = None
    tooltip: str = ""


@dataclass
class Curve:
    name: str
    colour: int  # class of the style sheet, s0 to s5
    dots: list[Dot]
    is_joined: bool = True


@dataclass
class Panel:
    title: str
    curves: list[Curve] = field(default_factory=list)
    bars: list[Dot] = field(default_factory=list)  # whole numbers on x


@dataclass
class Axes:
    x: str
    y: str
    logarithmic: bool = False
    y_from_zero: bool = True


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    span = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(span))
    step = next(unit * f for f in (1, 2, 2.5, 5, 10) if unit * f >= span * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    return [f * 10.0 ** p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for f in (1, 2, 5)
            if low <= f * 10.0 ** p <= high]


class _Scale:
    """Maps values of one axis to [0, 1]."""

    def __init__(self, values: list[float], logarithmic: bool, from_zero: bool):
        self.logarithmic = logarithmic
        if logarithmic:
            values = [v for v in values if v > 0] or [0.1, 1.0]
            self.low, self.high = min(values) / 1.15, max(values) * 1.15
            return
        low, high = min(values, default=0.0), max(values, default=1.0)
        margin = 0.06 * ((high - low) or abs(high) or 1.0)
        self.low, self.high = (0.0 if from_zero and low >= 0 else low - margin), high + margin

    def share(self, value: float) -> float:
        if not self.logarithmic:
            return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        value = max(value, self.low)
        return min(1.0, math.log(value / self.low) / math.log(self.high / self.low))

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.logarithmic else _ticks(self.low, self.high)


class _Drawing:
    def __init__(self, panel: Panel, axes: Axes, x: float, y: float, width: float, height: float):
        self.panel, self.x, self.y, self.width, self.height, self.out = panel, x, y, width, height, []
        dots = panel.bars + [dot for curve in panel.curves for dot in curve.dots]
        heights = [v for d in dots for v in (d.y, d.low, d.high) if v is not None]
        self.y_scale = _Scale(heights, axes.logarithmic, axes.y_from_zero)
        self.x_scale = _Scale([d.x for d in dots], False, not panel.bars)
        if panel.bars:
            self.x_scale.low, self.x_scale.high = -0.5, max(d.x for d in panel.bars) + 0.5

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.x + self.width * self.x_scale.share(x), self.y + self.height * (1 - self.y_scale.share(y))

    def draw(self) -> list[str]:
        right, bottom = self.x + self.width, self.y + self.height
        self.out.append(f'<text class="label" x="{self.x:.1f}" y="{self.y - 8:.1f}">{escape(self.panel.title)}</text>')
        for value in self.y_scale.ticks():
            y = self.at(0, value)[1]
            self.out.append(f'<line class="grid" x1="{self.x:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>')
            self.out.append(f'<text class="tick" x="{self.x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        for value in self.x_scale.ticks():
            x = self.at(value, 0)[0]
            self.out.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{value:g}</text>')
        self.out.append(f'<rect class="frame" x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}"/>')
        for bar in self.panel.bars:
            self._bar(bar)
        for curve in self.panel.curves:
            self._curve(curve)
        return self.out

    def _bar(self, bar: Dot) -> None:
        (left, top), (right, _) = self.at(bar.x - 0.35, bar.y), self.at(bar.x + 0.35, bar.y)
        height = self.y + self.height - top
        self.out.append(f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{height:.1f}">'
                        f'<title>{escape(bar.tooltip)}</title></rect>')
        self._interval(bar, "whisker")

    def _interval(self, dot: Dot, style: str) -> None:
        if dot.low is None or dot.high is None:
            return
        (x, low), (_, high) = self.at(dot.x, dot.low), self.at(dot.x, dot.high)
        self.out.append(f'<line class="{style}" x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}"/>')

    def _curve(self, curve: Curve) -> None:
        places = [self.at(dot.x, dot.y) for dot in curve.dots]
        if curve.is_joined and len(places) > 1:
            path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
            self.out.append(f'<path class="s{curve.colour} line" d="{path}"/>')
        for dot, (x, y) in zip(curve.dots, places):
            self._interval(dot, f"s{curve.colour}")
            self.out.append(f'<circle class="s{curve.colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(dot.tooltip)}</title></circle>')


def write_chart(path: Path, title: str, panels: list[Panel], axes: Axes, columns: int = 3, size: tuple[int, int] = (260, 190)) -> None:
    """Small multiples with one legend; each panel has scales of its own."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    left, top, gap_x, gap_y = 64, 84, 56, 56
    width = max(760, left + columns * size[0] + (columns - 1) * gap_x + 24)
    height = top + rows * size[1] + (rows - 1) * gap_y + 48
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
           f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", '<rect class="paper" width="100%" height="100%"/>',
           f'<text class="title" x="{left}" y="24">{escape(title)}</text>']
    x = left
    for name, colour in dict.fromkeys((curve.name, curve.colour) for panel in panels for curve in panel.curves):
        out.append(f'<circle class="s{colour}" cx="{x + 4}" cy="44" r="4"/><text class="label" x="{x + 13}" y="48">{escape(name)}</text>')
        x += 32 + round(6.6 * len(name))
    for i, panel in enumerate(panels):
        place = left + i % columns * (size[0] + gap_x), top + i // columns * (size[1] + gap_y)
        out += _Drawing(panel, axes, *place, *size).draw()
    middle_y = top + (height - top - 48) / 2
    out += [f'<text class="label" x="{width / 2}" y="{height - 12}" text-anchor="middle">{escape(axes.x)}</text>',
            f'<text class="label" x="16" y="{middle_y}" text-anchor="middle" transform="rotate(-90 16 {middle_y})">{escape(axes.y)}</text>', "</svg>"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(out) + "\n", encoding="utf-8")
