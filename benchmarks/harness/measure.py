"""Measuring: series of samples, bars they are held against, and the report of both.

    report = Report("Recovery")
    report.series("torchrun", "s", samples)
    report.bar("faster than torchrun", 9.1, "times", at_least=8)
    report.finish(arguments)                 # the table, the machine, the date; JSON where asked

A missed bar is said loudly and does not change the exit code: a benchmark measures, it does not judge.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_BOOTSTRAPS = 10_000
console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=130)
_began = time.monotonic()


def arguments(
    description: str, *, flags: Mapping[str, str] | None = None, texts: Mapping[str, str] | None = None, **counts: tuple[int, int, str]
) -> argparse.Namespace:
    """The options every benchmark has, its `flags` and `texts` (name to meaning), and its counts: name to (full, quick, meaning); one given beats both."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller counts: a first look that ends within 15 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured, sample by sample")
    parser.add_argument("--keep", action="store_true", help="leave the scratch directory with logs and journals, and say where it is")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices: whom to kill, and when (default: 0)")
    for name, meaning in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    for name, meaning in (texts or {}).items():
        parser.add_argument(f"--{name}", default="", metavar=name.upper(), help=meaning)
    for name, (full, quick, meaning) in counts.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{meaning} (default: {full}, quick: {quick})")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # As an exception it passes every `with`, and so leaves nothing behind.
    for name, (full, quick, _) in counts.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, quick if chosen.quick else full)
    return chosen


def say(text: str) -> None:
    """One line of progress, with the time since the start."""
    console.print(f"{time.monotonic() - _began:7.1f} s  {text}", markup=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    name: str
    value: float | None  # None: nothing was measured, which misses any bar.
    unit: str
    bar: str
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def figures(self) -> dict[str, float | None]:
        """The 99th percentile of few samples is the slowest."""
        values = self.values
        return {"median": median(values), "p99": percentile(values, 0.99), "from": min(values, default=None), "to": max(values, default=None)}


@dataclass(slots=True)
class Report:
    title: str
    series_list: list[Series] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def series(self, name: str, unit: str, values: Sequence[float], note: str = "") -> None:
        self.series_list.append(Series(name=name, unit=unit, values=tuple(values), note=note))

    def bar(self, name: str, value: float | None, unit: str, *, under: float = math.inf, at_most: float = math.inf, at_least: float = -math.inf) -> None:
        """Hold a value against one limit; `value` None means that nothing was measured, which misses any."""
        limits = {"under": under, "at most": at_most, "at least": at_least}
        said = ", ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        ok = value is not None and value < under and at_least <= value <= at_most
        self.bars.append(Bar(name=name, value=value, unit=unit, bar=said, ok=ok))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self, chosen: argparse.Namespace) -> None:
        self._print()
        if chosen.json is not None:
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(self._json(chosen), indent=1) + "\n")
            say(f"written to {chosen.json}")

    def _json(self, chosen: argparse.Namespace) -> dict[str, Any]:
        options = {name: value for name, value in vars(chosen).items() if name not in ("json", "keep")}
        return {
            "benchmark": self.title, "machine": self.machine, "date": self.date, "commit": commit(), "options": options,
            "bars": [asdict(bar) for bar in self.bars], "series": [asdict(one) | one.figures for one in self.series_list], "notes": self.notes, "raw": self.raw,
        }  # fmt: skip

    def _print(self) -> None:
        console.print()
        console.print(Text(self.title, style="bold"))
        console.print(Text(f"{describe(self.machine)}; {self.date}; {commit()[:12]}", style="dim"))
        console.print(self._series_table())
        if self.machine["load_at_start"] > self.machine["cores"] / 2:
            busy = "The machine was busy with something else when this began: times, and ratios of times even more, are not to be relied on."
            console.print(Text(busy, style="bold yellow"))
        for text in self.notes:
            console.print(Text(text, style="dim"))
        console.print(self._bars_table())
        missed = [bar for bar in self.bars if not bar.ok]
        for bar in missed:
            console.print(Text(f"BAR MISSED: {bar.name}: {_number(bar.value)} {bar.unit}, the bar is {bar.bar} {bar.unit}", style="bold red"))
        if self.bars and not missed:
            console.print(Text(f"All {len(self.bars)} bars are met.", style="bold green"))

    def _series_table(self) -> Table:
        table = Table(box=None, padding=(0, 2))
        table.add_column("measured")
        for name in ("n", "median", "p99", "from", "to"):
            table.add_column(name, justify="right")
        table.add_column("")
        for one in self.series_list:
            table.add_row(one.name, str(len(one.values)), *map(_number, one.figures.values()), f"{one.unit}{'; ' if one.note else ''}{one.note}")
        return table

    def _bars_table(self) -> Table:
        table = Table(box=None, padding=(0, 2))
        for name in ("bar", "", "measured", ""):
            table.add_column(name, justify="right" if name == "measured" else "left")
        for bar in self.bars:
            verdict = Text("met", style="green") if bar.ok else Text("MISSED", style="bold red")
            table.add_row(bar.name, f"{bar.bar} {bar.unit}", _number(bar.value), verdict)
        return table


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


# Statistics.


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest sample that at least `share` of all are not above: for 100 samples or fewer the 99th percentile is the largest."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * share // 1) - 1))]


def mean_upper_bound(values: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> float:
    """The one-sided upper bound of the mean, by bootstrap: no shape of the noise is assumed."""
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_BOOTSTRAPS))
    return means[int(confidence * _BOOTSTRAPS)]


# Where and when.


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(), "python": platform.python_version(), "torch": _version("torch"), "load_at_start": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def describe(seen: dict[str, Any]) -> str:
    return (
        f"{seen['cpu']}, {seen['cores']} cores, {seen['memory_gib']} GiB, Linux {seen['kernel']}, Python {seen['python']}, torch {seen['torch']}, "
        f"load {seen['load_at_start']} at the start"
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def commit() -> str:
    """Of the tree that was measured; a `+` behind it says that it had changes which no commit holds."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "uncommitted"
    return f"{head}+" if changed else head
