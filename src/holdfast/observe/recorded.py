"""Recordings: readings written down once, on the machine that has the hardware, and played back anywhere.

    record(probes, seconds, "h200.jsonl.gz")      look for so long and write down what was seen
    Recorded("h200.jsonl.gz")                     a probe that says the same again, at the same pace

The file is gzip; every line is JSON:

    {"holdfast_recording": 1, "machine": {…}, "date": "…", "columns": [["gpu_power_watts", "0"], …]}     first
    {"columns": [["gpu_xid_total", "0"]]}                                                                series that came later, behind the others
    [12.003, 480.0, null, …]                                                                             seconds since the start, a value for each column
    {"at": 12.003, "event": {…}}                                                                         a kernel event

null is a series that was not read this time. What is not finite is written as "NaN", "Infinity" or "-Infinity", which JSON has no numbers for. A recording
that was cut off is played to its last whole line.

Sees        a recording.
Says        what the probes it was made from said.
Is wrong    about times of day: events are moved to the time of playing.
Costs       the file in memory: about 50 bytes a value.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.errors import UserError
from holdfast.observe.probe import Probe, Seen
from holdfast.observe.runner import Runner

VERSION: Final = 1
_MARK: Final = "holdfast_recording"
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RecordingUnusable(UserError):
    """The file is no recording, or one of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    at: float  # Seconds since the start.
    signals: tuple[Signal, ...] = ()
    events: tuple[KernelEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    machine: Mapping[str, Any]
    date: str
    rows: tuple[Row, ...]
    whole: bool  # False: it was cut off.

    @property
    def seconds(self) -> float:
        return self.rows[-1].at if self.rows else 0.0


# ------------------------------------------------------------------------------------------------------------ writing


class Writer:
    """One recording. Use it in `with`."""

    def __init__(self, path: Path | str, machine: Mapping[str, Any]) -> None:
        self._file: IO[str] = gzip.open(path, "wt", encoding="utf-8")  # noqa: SIM115 It is closed in `close`.
        self._machine = dict(machine)
        self._columns: dict[tuple[str, str], int] = {}
        self._begun = False

    def write(self, at: float, signals: Iterable[Signal], events: Iterable[KernelEvent] = ()) -> None:
        values = {(signal.metric, signal.of): signal.value for signal in signals}
        new = [series for series in values if series not in self._columns]
        self._columns |= {series: len(self._columns) + number for number, series in enumerate(new)}
        if not self._begun:
            self._begun = True
            self._line({_MARK: VERSION, "machine": self._machine, "date": datetime.now(UTC).isoformat(timespec="seconds"), "columns": new})
        elif new:
            self._line({"columns": new})
        if values:
            self._line([round(at, 3), *(_written(values.get(series)) for series in self._columns)])
        for event in events:
            self._line({"at": round(at, 3), "event": asdict(event)})

    def close(self) -> None:
        if not self._begun:
            self.write(0.0, ())  # A recording of nothing is one too.
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self, row: object) -> None:
        self._file.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")


def _written(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def record(probes: Iterable[Probe], seconds: float, file: Path | str, *, every_s: float = 1.0, machine: Mapping[str, Any] | None = None) -> int:
    """Run the probes for so long and write down what they see; how many rows that made."""
    rows = 0
    with Runner(probes) as runner, Writer(file, machine if machine is not None else this_machine()) as writer:
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            time.sleep(min(every_s, max(0.0, seconds - at)))
            taken = runner.take()
            writer.write(time.monotonic() - began, taken.signals, taken.events)
            rows += 1
    return rows


def this_machine() -> dict[str, Any]:
    return {"system": platform.system(), "kernel": platform.release(), "processor": platform.machine(), "cores": os.cpu_count()}


# ------------------------------------------------------------------------------------------------------------ reading


def read(path: Path | str) -> Recording:
    """The whole file. One that was cut off is read as far as it goes."""
    lines = _Lines(path)
    head = next(iter(lines), None)
    if not isinstance(head, dict) or _MARK not in head:
        raise RecordingUnusable(f"{path} is no recording: its first line should hold {_MARK!r}. Make one with holdfast.observe.recorded.record.")
    if head[_MARK] != VERSION:
        raise RecordingUnusable(f"{path} is a recording of version {head[_MARK]!r}, and version {VERSION} can be read here. Record it again.")
    columns = [(str(metric), str(of)) for metric, of in head.get("columns", ())]
    rows = []
    try:
        for line in lines:
            if isinstance(line, list):
                rows.append(Row(at=float(line[0]), signals=tuple(_signals(columns, line[1:]))))
            elif "event" in line:
                rows.append(Row(at=float(line["at"]), events=(KernelEvent(**line["event"]),)))
            else:
                columns += [(str(metric), str(of)) for metric, of in line["columns"]]
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise RecordingUnusable(f"{path}, line {lines.number}: {type(error).__name__}: {error}. Expected a row of numbers, an event or columns.") from error
    return Recording(machine=head.get("machine", {}), date=str(head.get("date", "")), rows=tuple(rows), whole=lines.whole)


class _Lines:
    """The values of the lines, as far as the file goes."""

    def __init__(self, path: Path | str) -> None:
        self.whole = True
        self.number = 0
        self._path = path
        self._lines = self._read()

    def __iter__(self) -> Iterator[Any]:
        return self._lines

    def _read(self) -> Iterator[Any]:
        try:
            with gzip.open(self._path, "rt", encoding="utf-8") as file:
                for text in file:
                    self.number += 1
                    if not text.endswith("\n"):
                        self.whole = False
                        return
                    yield json.loads(text)
        except FileNotFoundError:
            raise RecordingUnusable(f"there is no recording at {self._path}") from None
        except EOFError:
            self.whole = False
        except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise RecordingUnusable(f"{self._path}, after line {self.number}: {error}. Expected gzip with a line of JSON for each row.") from error


def _signals(columns: list[tuple[str, str]], values: list[float | str | None]) -> Iterator[Signal]:
    for (metric, of), value in zip(columns, values, strict=False):  # A row from before a column came is shorter.
        if isinstance(value, str):
            yield Signal(metric, _NOT_FINITE[value], of)
        elif value is not None:
            yield Signal(metric, float(value), of)


class Recorded:
    """Plays a recording from the first look on; after its end there is nothing to be seen."""

    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(
        self, recording: Recording | Path | str, *, name: str = "recorded", speed: float = 1.0, monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.name = name
        self._recording = recording if isinstance(recording, Recording) else read(recording)
        self._speed = speed
        self._monotonic = monotonic
        self._wall = wall
        self._began: float | None = None
        self._next = 0

    @property
    def ended(self) -> bool:
        return self._next >= len(self._recording.rows)

    def look(self) -> list[Seen]:
        """All that came since the last look: the newest value of each series, and every event."""
        now = self._monotonic()
        if self._began is None:
            self._began = now - (self._recording.rows[0].at / self._speed if self._recording.rows else 0.0)  # The first look sees the first row.
        at = (now - self._began) * self._speed + 1e-9
        signals: dict[tuple[str, str], Signal] = {}
        events: list[Seen] = []
        while not self.ended and self._recording.rows[self._next].at <= at:
            row = self._recording.rows[self._next]
            self._next += 1
            signals |= {(signal.metric, signal.of): signal for signal in row.signals}
            events += [replace(event, at=self._wall()) for event in row.events]
        return [*signals.values(), *events]
