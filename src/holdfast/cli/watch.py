"""`holdfast watch`: the newest numbers of a running job, once a second, until it ends or nobody wants to see more.

    terminal   a table that stays and changes
    a pipe     one line a look, and one for each finding when it comes and when it goes
    --json     one object a look, on one line
    --once     one look, in any of the three

Control sends what is shown; the curves begin with the history in the job's store. Watching costs a job nothing but that: whoever looks cannot stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.cli.job import is_held, jobs, known_job, not_running, state_of
from holdfast.cli.look import Look, look_from, look_json, look_line
from holdfast.cli.screen import Screen
from holdfast.cli.spark import sparkline
from holdfast.cli.watch_table import watch_table
from holdfast.cli.words import duration, finding_sentence, one_line
from holdfast.control.history import ALL, read_history
from holdfast.detect.rules.units import BadNumber, duration_s
from holdfast.domain.finding import Finding
from holdfast.domain.metric import Series
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import Figures, View, Watch

CURVES: Final = ("loss", "step_seconds")
_REREAD_S: Final = 10.0
_FIRST_WITHIN_S: Final = 15.0  # For the first look: a control that has just been started knows nothing yet.
_LIVE_MAX: Final = 600
_DEFAULT_SINCE_S: Final = 3600.0
_WIDTH_MAX: Final = 160  # Over a pipe, where nothing else says how long a curve is.


def watched_job(root: Path, name: str) -> JobDirectory:
    """The one that is named; of none, the newest that runs."""
    if name:
        return known_job(root, name)
    running = [directory for directory in jobs(root) if is_held(directory)]
    if not running:
        raise UserError(f"no job runs in {root}; `holdfast ps` lists those that did, and `holdfast watch JOB --since 1h` shows the curves of one")
    return running[0]


def run_watch(directory: JobDirectory, *, since: str, once: bool, as_json: bool, out: TextIO) -> int:
    since_s = _since_s(since)
    if not is_held(directory):
        if not since:
            curves = f"`holdfast watch {directory.job} --since 1h` shows its last curves"
            raise UserError(f"{not_running(directory)}; {curves}")
        return _past(directory, since_s, as_json=as_json, out=out)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_show(directory, since_s, once=once, as_json=as_json, out=out))
    return 0


async def _show(directory: JobDirectory, since_s: float, *, once: bool, as_json: bool, out: TextIO) -> None:
    async with contextlib.aclosing(_looks(directory, since_s)) as looks:
        await (_once(looks, as_json=as_json, out=out) if once else _go_on(looks, as_json=as_json, out=out))


async def _looks(directory: JobDirectory, since_s: float) -> AsyncGenerator[Look, None]:
    """One a second, until the job has ended. Control may die and come back meanwhile."""
    curves, view = Curves(directory, since_s), None
    deadline = time.monotonic() + _FIRST_WITHIN_S
    while is_held(directory):
        try:
            channel = await connect(directory.control_socket)
        except OSError:
            await asyncio.sleep(0.1)
            if time.monotonic() > deadline:
                raise HoldfastError(f"job {directory.job!r} runs but its control does not answer; it may be restarting: try again") from None
            continue
        channel.send(Watch(figures=True))
        try:
            async for message in channel:
                match message:
                    case View():
                        view = message
                    case Figures() if view is not None:
                        look = look_from(view, message)
                        yield replace(look, curves=curves.after(look))
                    case _:
                        pass
                if view is not None and view.outcome:
                    return
        except BadFrame:
            pass  # It is asked again.
        finally:
            await channel.closed()
        deadline = time.monotonic() + _FIRST_WITHIN_S


class Curves:
    """The course of a few numbers: what the store has, and what was seen since it was read last."""

    def __init__(self, directory: JobDirectory, since_s: float) -> None:
        self._path, self._since_s = directory.series, since_s
        self._read_at = -math.inf
        self._kept: dict[str, list[tuple[float, float]]] = {}
        self._seen: dict[str, deque[tuple[float, float]]] = {metric: deque(maxlen=_LIVE_MAX) for metric in CURVES}

    def after(self, look: Look) -> dict[str, list[float]]:
        now = look.view.at
        if now - self._read_at >= _REREAD_S:
            self._read_at, self._kept = now, kept_curves(self._path, now - self._since_s, now)
        for metric, seen in self._seen.items():
            if math.isfinite(value := look.over_ranks(metric)):
                seen.append((now, value))
        return {metric: self._joined(metric, now - self._since_s) for metric in CURVES}

    def _joined(self, metric: str, since: float) -> list[float]:
        kept = self._kept.get(metric, [])
        newer = [(at, value) for at, value in self._seen[metric] if at >= since and (not kept or at > kept[-1][0] + _REREAD_S)]
        return [value for _, value in (*kept, *newer)]


def kept_curves(path: Path, since: float, until: float) -> dict[str, list[tuple[float, float]]]:
    history = read_history(path, CURVES, since, until)
    return {metric: [(point.at, point.mean) for point in history.get(Series(metric=metric, of=ALL), [])] for metric in CURVES}


async def _once(looks: AsyncIterator[Look], *, as_json: bool, out: TextIO) -> None:
    async for look in looks:
        if as_json:
            _write(out, msgspec.json.encode(look_json(look)).decode())
        else:
            console = Screen(out, highlight=False)
            console.print(watch_table(look, columns=min(console.width, _WIDTH_MAX), rows=200))
        return


async def _go_on(looks: AsyncIterator[Look], *, as_json: bool, out: TextIO) -> None:
    if as_json or not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        lines = Lines()
        async for look in looks:
            for line in [msgspec.json.encode(look_json(look)).decode()] if as_json else lines.of(look):
                _write(out, line)
        return
    console = Console(file=out, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        async for look in looks:
            live.update(watch_table(look, columns=console.width, rows=console.height), refresh=True)


class Lines:
    """For those who read lines: each look, and findings when they come and go."""

    def __init__(self) -> None:
        self._standing: dict[str, Finding] = {}

    def of(self, look: Look) -> Iterator[str]:
        standing = {finding.key: finding for finding in look.findings}
        yield from (f"found: {_told(standing[key])}" for key in standing if key not in self._standing)
        yield from (f"over: {_told(self._standing[key])}" for key in self._standing if key not in standing)
        self._standing = standing
        yield look_line(look)


def _told(finding: Finding) -> str:
    return f"{finding.severity}: {finding_sentence(finding)}: {one_line(finding.because)}"


def _past(directory: JobDirectory, since_s: float, *, as_json: bool, out: TextIO) -> int:
    """The last curves of a job that does not run."""
    end = state_of(directory).at
    curves = kept_curves(directory.series, end - since_s, end + _REREAD_S)
    if as_json:
        _write(out, msgspec.json.encode({"kind": "curves", "job": directory.job, "until": end, **curves}).decode())
        return 0
    console = Console(file=out, highlight=False)
    if not any(curves.values()):
        console.print(f"{directory.job}: nothing is kept of the {duration(since_s)} before it ended")
    for metric, points in curves.items():
        if points:
            console.print(_curve(metric, points, console.width))
    return 0


def _curve(metric: str, points: Iterable[tuple[float, float]], columns: int) -> Text:
    values = [value for _, value in points]
    return Text.assemble((f"{metric} ".rjust(14), "dim"), (sparkline(values, columns - 36), "cyan"), f" {values[0]:.4g} to {values[-1]:.4g}")


def _since_s(text: str) -> float:
    if not text:
        return _DEFAULT_SINCE_S
    try:
        return duration_s(text)
    except BadNumber as error:
        raise UserError(f"--since: {error}.") from error


def _write(out: TextIO, line: str) -> None:
    out.write(f"{line}\n")
    out.flush()
