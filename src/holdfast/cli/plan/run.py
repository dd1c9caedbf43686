"""`holdfast plan`, run: understand, forecast, show."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from holdfast.cli.plan.asked import Asked, Understood, understood
from holdfast.cli.plan.shown import shown
from holdfast.cli.png import drawable
from holdfast.cli.screen import Screen
from holdfast.simulate.reliability.capacity import Needed, Workload, needed
from holdfast.simulate.reliability.forecast import Fleet, Forecast, forecast, running
from holdfast.simulate.reliability.goodput import goodput


def run_plan(asked: Asked, *, lives: int, seed: int, png: Path | None, as_json: bool, out: TextIO) -> int:
    """Gives the exit code."""
    if png is not None:
        drawable(png)
    read = understood(asked)
    found = forecast(read.fleet, lives=lives, seed=seed)
    grown = capacity(read.workload, read.fleet, asked.years) if read.workload is not None else ()
    if as_json:
        print(json.dumps(as_record(read, found, grown)), file=out)
    else:
        console = Screen(out, highlight=False)
        console.print(shown(read, found, grown, width=max(60, min(console.width, 140)), plain="utf" not in console.encoding.lower()))
    if png is not None:
        from holdfast.cli.plan.png import draw

        draw(found, png)
    return 0


def capacity(workload: Workload, fleet: Fleet, years: int) -> tuple[tuple[int, Needed | None], ...]:
    """Year by year; None where no number of GPUs is enough."""

    def goodput_on(gpus: int) -> float:
        return goodput(running(fleet.on(gpus)))

    def interval_on(gpus: int) -> float:
        return running(fleet.on(gpus)).interval_s

    return tuple((year, needed(workload, year, goodput_on, interval_on)) for year in range(years + 1))


def as_record(read: Understood, found: Forecast, grown: tuple[tuple[int, Needed | None], ...]) -> dict[str, Any]:
    record = asdict(replace(found, parts={}, fleet=read.fleet))
    record["parts"] = {str(bucket): share for bucket, share in found.parts.items()}
    record["figures"] = [asdict(figure) for figure in read.figures]
    record["capacity"] = [{"year": year, **(asdict(one) if one is not None else {"gpus": None})} for year, one in grown]
    record["nodes"] = read.fleet.nodes
    record["unsaid"] = read.unsaid or None
    return record
