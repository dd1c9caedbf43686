"""Charts as SVG, drawn by hand: a line over time or steps, a stacked bar, a row of spans. Text in, markup out; the page's style sheet gives the colours.

Every chart has a title and a description for those who hear it, and shows nothing that a table beside it does not say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from holdfast.cli.words import duration

WIDTH = 920
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 34, 26  # Margins around the plot: values, nothing, marks, the axis.
_POINTS_MAX = 700  # More than this many points are thinner than the line they make.
_TIMES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened on the way: from `since` to `until` on the horizontal axis, a number, and where to read more."""

    since: float
    until: float
    label: str
    title: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A span of one kind; `kind` is the class the style sheet colours."""

    kind: str
    since: float
    until: float
    title: str


def line_chart(
    name: str, runs: Sequence[Sequence[Point]], marks: Sequence[Mark], *, x_label: Callable[[float], str], timed: bool, says: str, from_zero: bool = False
) -> str:
    """Lines over a common axis, one for each run, with marks above. A value that is not finite breaks the line."""
    points = [point for run in runs for point in run if math.isfinite(point[1])]
    if len(points) < 2:
        return '<p class="quiet">There are too few samples for a chart.</p>'
    ends = [mark.until for mark in marks]
    x_high = max(*(x for x, _ in points), *ends, 1e-9)
    x_first = min(x for x, _ in points)
    x_low = x_first if x_first > 0.2 * x_high and not timed else 0.0  # A job that was resumed late need not show the steps it never saw.
    y_low, y_high, y_ticks = _value_axis([y for _, y in points], from_zero=from_zero)
    height = 250

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x_low) / max(x_high - x_low, 1e-9) * (WIDTH - _LEFT - _RIGHT)
        return across, height - _BOTTOM - (y - y_low) / (y_high - y_low) * (height - _TOP - _BOTTOM)

    body = [_grid(place, y_ticks, x_ticks(x_low, x_high, timed=timed), x_low, x_high, y_low, x_label)]
    body += _marks(marks, place, y_low, y_high)
    body += [_line(place, piece) for run in runs for piece in _pieces(run)]
    return _svg(name, height, "".join(body), says)


def stacked_bar(name: str, bars: Sequence[Bar], *, says: str) -> str:
    """One bar, end to end; a hair of space between the pieces tells equal neighbours apart."""
    whole = max((bar.until for bar in bars), default=0.0) or 1.0
    drawn = "".join(_rect(bar, bar.since / whole * WIDTH, max(1.0, (bar.until - bar.since) / whole * WIDTH - 1), 0, 26) for bar in bars)
    return _svg(name, 26, drawn, says, kind="bar")


def span_chart(name: str, rows: Sequence[tuple[str, Sequence[Bar]]], *, says: str) -> str:
    """A row for each part, on one axis of seconds: what came after what, and what took long."""
    end = max((bar.until for _, bars in rows for bar in bars), default=0.0) or 1.0
    left, right, pitch = 92, 64, 24
    height = pitch * len(rows) + 26

    def across(seconds: float) -> float:
        return left + seconds / end * (WIDTH - left - right)

    body = [f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="0" y2="{height - 22}"/>' for tick in x_ticks(0, end, timed=True)]
    body += [_text(across(tick), height - 6, duration(tick) if tick else "0", "middle") for tick in x_ticks(0, end, timed=True)]
    for index, (label, bars) in enumerate(rows):
        top = index * pitch + 4
        body.append(_text(left - 10, top + 12, label, "end", "label"))
        body += [_rect(bar, across(bar.since), max(2.0, across(bar.until) - across(bar.since)), top, 16) for bar in bars]
        body.append(_text(across(max(bar.until for bar in bars)) + 7, top + 12, duration(sum(bar.until - bar.since for bar in bars)), "start"))
    return _svg(name, height, "".join(body), says)


def thinned(points: Sequence[Point], most: int = _POINTS_MAX) -> list[Point]:
    """Fewer points with the same outline: of each stretch its lowest and its highest."""
    if len(points) <= most:
        return list(points)
    stride = math.ceil(2 * len(points) / most)
    kept = []
    for start in range(0, len(points), stride):
        stretch = points[start : start + stride]
        kept += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return kept


def x_ticks(low: float, high: float, *, timed: bool) -> list[float]:
    """Round places, five to nine of them."""
    span = max(high - low, 1e-9)
    if not timed:
        step = max(1.0, _round_step(span / 8))
    elif span > 8 * _TIMES[-1]:
        step = _TIMES[-1] * _round_step(span / _TIMES[-1] / 8)
    else:
        step = next(one for one in _TIMES if span / one <= 8)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, …"""
    power = 10.0 ** math.floor(math.log10(max(rough, 1e-12)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _value_axis(values: Sequence[float], *, from_zero: bool) -> tuple[float, float, list[float]]:
    """Limits that are ticks themselves. A few wild values may leave the picture; they would flatten everything else."""
    ordered = sorted(values)
    high = min(ordered[-1], 4 * ordered[int(0.98 * (len(ordered) - 1))]) if ordered[-1] > 0 else ordered[-1]
    low = min(0.0, ordered[0]) if from_zero else ordered[0]
    step = _round_step(max(high - low, abs(high) * 1e-3, 1e-9) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return first * step, last * step, [index * step for index in range(first, last + 1)]


def _pieces(run: Sequence[Point]) -> Iterator[list[Point]]:
    piece: list[Point] = []
    for point in run:
        if math.isfinite(point[1]):
            piece.append(point)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _line(place: Callable[[float, float], tuple[float, float]], piece: Sequence[Point]) -> str:
    places = [place(x, y) for x, y in thinned(piece)]
    if len(places) == 1:
        return f'<circle class="dot" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="1.6"/>'
    return f'<polyline class="line" points="{" ".join(f"{x:.1f},{max(y, _TOP):.1f}" for x, y in places)}"/>'


def _grid(
    place: Callable[[float, float], tuple[float, float]],
    y_ticks: Sequence[float], xs: Sequence[float], x_low: float, x_high: float, y_low: float, x_label: Callable[[float], str],
) -> str:  # fmt: skip
    lines = []
    step = y_ticks[1] - y_ticks[0]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    for tick in y_ticks:
        (left, y), (right, _) = place(x_low, tick), place(x_high, tick)
        lines.append(f'<line class="{"axis" if tick == y_ticks[0] else "grid"}" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(_text(left - 8, y + 4, f"{tick:.{decimals}f}", "end"))
    for tick in xs:
        x, bottom = place(tick, y_low)
        anchor = "end" if x > WIDTH - 30 else "middle"
        lines.append(_text(x, bottom + 18, x_label(tick), anchor))
    return "".join(lines)


def _marks(marks: Sequence[Mark], place: Callable[[float, float], tuple[float, float]], y_low: float, y_high: float) -> list[str]:
    """Numbers above the plot, each a link to its story; where two would touch, the second stands higher, and a third has its line alone."""
    drawn, taken = [], [-100.0, -100.0]
    for mark in marks:
        left, bottom = place(mark.since, y_low)
        right, top = place(mark.until, y_high)
        row = next((row for row, last in enumerate(taken) if left - last >= 19), None)
        badge = ""
        if row is not None:
            taken[row], y = left, top - 10 - 14 * row
            badge = f'<circle cx="{left:.1f}" cy="{y:.1f}" r="8"/><text x="{left:.1f}" y="{y + 3.6:.1f}" text-anchor="middle">{escape(mark.label)}</text>'
        drawn.append(
            f'<a href="{escape(mark.href)}" class="mark"><title>{escape(mark.title)}</title>'
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1.0, right - left):.1f}" height="{bottom - top:.1f}"/>{badge}</a>'
        )
    return drawn


def _rect(bar: Bar, x: float, width: float, y: float, height: float) -> str:
    return (
        f'<rect class="bucket {escape(bar.kind)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5">'
        f"<title>{escape(bar.title)}</title></rect>"
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(name: str, height: float, body: str, says: str, *, kind: str = "plot") -> str:
    # `group` and not `img`: the marks inside are links, and must be reachable. A bar has no text, and may be squeezed.
    squeeze = ' preserveAspectRatio="none"' if kind == "bar" else ""
    return (
        f'<div class="chart {kind}" tabindex="0" role="group" aria-label="{escape(name)}"><svg viewBox="0 0 {WIDTH} {height:g}"{squeeze}>'
        f"<title>{escape(name)}</title><desc>{escape(says)}</desc>{body}</svg></div>"
    )
