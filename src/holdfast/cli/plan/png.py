"""The plots of `holdfast plan` as one picture: the interval, where the time goes, what the goodput hangs on, spares. matplotlib is used if it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.cli import png
from holdfast.cli.plan.shown import percent
from holdfast.cli.words import count, duration
from holdfast.domain.goodput import Bucket
from holdfast.simulate.reliability.forecast import Forecast, interval_curve

_POINTS = 200
_CHANCE_MIN = 1e-12  # Smaller ones are left out of the picture.
_TICKS_S = (0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 10 * 86400, 100 * 86400, 1000 * 86400)


def draw(found: Forecast, path: Path) -> None:
    png.save(picture(found), path)


def picture(found: Forecast) -> Any:
    fleet = found.fleet
    size = f"{count(fleet.gpus, 'GPU')} on {count(fleet.nodes, 'node')}"
    figure = png.empty(13, 9, f"{size}: goodput {percent(found.goodput.value)}, a model and not a measurement")
    (first, second), (third, fourth) = figure.subplots(2, 2)
    _interval(first, found)
    _parts(second, found)
    _sensitivity(third, found)
    _spares(fourth, found)
    return figure


def _interval(axes: Any, found: Forecast) -> None:
    points = interval_curve(found, _POINTS)
    axes.semilogx([interval_s for interval_s, _ in points], [100 * share for _, share in points], color="tab:blue")
    for one, color in zip(found.rules, ("tab:orange", "tab:green", "tab:red"), strict=False):
        axes.axvline(one.interval_s, linestyle=":", color=color, label=f"{one.rule}: {duration(one.interval_s)}")
    axes.axvline(found.running.interval_s, linestyle="--", color="gray", label=f"used: {duration(found.running.interval_s)}")
    ticks = [tick for tick in _TICKS_S if points[0][0] <= tick <= points[-1][0]]
    if len(ticks) > 1:
        axes.set_xticks(ticks, [_round(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.legend(loc="lower center")
    axes.set(title="How often to save", xlabel="from save to save", ylabel="goodput, %")


def _round(seconds: float) -> str:
    return next((f"{seconds / size:g} {unit}" for unit, size in (("d", 86400), ("h", 3600), ("min", 60)) if seconds >= size), f"{seconds:g} s")


def _parts(axes: Any, found: Forecast) -> None:
    lost = sorted(((share, str(bucket)) for bucket, share in found.parts.items() if bucket is not Bucket.PRODUCTIVE and share > 0.0))
    bars = axes.barh([name for _, name in lost], [100 * share for share, _ in lost], color="tab:orange")
    axes.bar_label(bars, [f"{100 * share:.2g} %" for share, _ in lost], padding=3)
    axes.margins(x=0.2)
    _few_ticks(axes)
    axes.set(title="Where the rest of the time goes", xlabel="% of the time")


def _sensitivity(axes: Any, found: Forecast) -> None:
    rows = list(reversed(found.sensitivity))
    base = 100 * found.goodput.value
    names = [one.name for one in rows]
    axes.barh(names, [100 * one.doubled - base for one in rows], left=base, color="tab:red", label="doubled")
    axes.barh(names, [100 * one.halved - base for one in rows], left=base, color="tab:green", label="halved")
    axes.axvline(base, color="gray")
    axes.ticklabel_format(axis="x", useOffset=False)
    _few_ticks(axes)
    axes.legend(loc="lower left")
    axes.set(title="What the goodput hangs on", xlabel="goodput, %")


def _spares(axes: Any, found: Forecast) -> None:
    shown = [(number, chance) for number, chance in found.spares_table if chance >= _CHANCE_MIN]
    axes.semilogy([number for number, _ in shown], [chance for _, chance in shown], marker="o")
    axes.axvline(found.spares, linestyle="--", color="gray", label=f"used: {found.spares:,}, a chance of {found.stock_out:.2g}")
    _few_ticks(axes, integer=True)
    axes.legend()
    axes.set(title="Spares", xlabel="nodes kept ready", ylabel="chance that a failure finds none")


def _few_ticks(axes: Any, *, integer: bool = False) -> None:
    """Of long numbers more do not fit beside each other."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=integer))
