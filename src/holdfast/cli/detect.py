"""`holdfast detect`: what is unusual in a series of numbers, from a file.

A file is CSV, gzipped or not, with the columns `timestamp` (as `2014-04-01 00:00:00`, in UTC unless it says otherwise, or seconds since 1970) and `value`;
others are ignored. An empty value, NaN or infinity is a reading that is missing. People get a plot and a sentence for each finding, programs a line of JSON a
file. One bad file does not keep the others from being read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from holdfast.cli.plot import plot
from holdfast.cli.words import count, one_line
from holdfast.detect.unusual import Found, Unusual
from holdfast.errors import UserError

Floats = NDArray[np.float64]

_COLUMNS = ("timestamp", "value")
_GZIP = b"\x1f\x8b"
_SHOWN = 40  # Characters of what was seen, in a message.
_LISTED = 12  # Findings told in full.
_AT_ONCE_ROWS = 4096


class SeriesUnreadable(UserError):
    """A file that is no series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    path: str
    at: Floats  # Seconds since 1970; NaN where there was none.
    values: Floats  # NaN where there was none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    series: Series
    scores: Floats
    found: tuple[Found, ...]


def run_detect(paths: Sequence[str], *, as_json: bool, out: TextIO, err: TextIO) -> int:
    """Read, judge and show every file. Gives the exit code: that of an error when a file could not be read."""
    code = 0
    console = Console(file=out, highlight=False)
    for path in _with_progress(paths, err):
        try:
            detected = detect(read_series(path))
        except SeriesUnreadable as error:
            print(f"holdfast: {error}", file=err, flush=True)
            code = error.exit_code
            continue
        if as_json:
            print(json.dumps(as_record(detected)), file=out, flush=True)
        else:
            show(detected, console)
    return code


def detect(series: Series) -> Detected:
    detector = Unusual(1)
    scores, found = [], []
    for start in range(0, len(series.values), _AT_ONCE_ROWS):
        rows = slice(start, start + _AT_ONCE_ROWS)
        judged = detector.look_at_rows(series.at[rows], series.values[rows, None])
        scores.append(judged.scores[:, 0])
        found += [Found(row=one.row + start, series=0, finding=one.finding) for one in judged.found]
    return Detected(series=series, scores=np.concatenate(scores), found=tuple(found))


def as_record(detected: Detected) -> dict[str, Any]:
    """What `--json` prints of a file."""
    findings = [
        {"row": one.row, "at": one.finding.since, "kind": one.finding.kind, "because": one.finding.because, "evidence": list(one.finding.evidence)}
        for one in detected.found
    ]
    return {"path": detected.series.path, "scores": [round(score, 6) for score in detected.scores.tolist()], "findings": findings}


def show(detected: Detected, console: Console) -> None:
    series, found = detected.series, detected.found
    rows = [one.row for one in found]
    console.print(Text(one_line(series.path), style="bold"))
    for line in plot(series.values, rows, width=max(20, min(console.width, 160)), plain="utf" not in console.encoding.lower()):
        console.print(line, no_wrap=True, overflow="crop")
    said = [count(len(series.values), "row"), count(len(found), "finding") if found else "nothing unusual"]
    missing = int(np.isnan(series.values).sum())
    console.print(Text(", ".join([*said, *([f"{missing:,} without a value"] if missing else [])]), style="dim"))
    for number, one in enumerate(found[:_LISTED], start=1):
        when = _when(one.finding.since) if math.isfinite(series.at[one.row]) else "at an unknown time"
        console.print(Text.assemble((f"{number:3d}  ", "bold yellow"), f"row {one.row:,}, {when}: {one.finding.because}"), soft_wrap=True)
    if len(found) > _LISTED:
        console.print(Text(f"     and {len(found) - _LISTED:,} more, which --json lists", style="dim"))
    console.print()


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # A time so far off that no calendar has it.
        return f"at {at:g} s"


def _with_progress(paths: Sequence[str], err: TextIO) -> Iterator[str]:
    """Says on a terminal which of many files is being read."""
    shown = len(paths) > 1 and err.isatty()
    for number, path in enumerate(paths, start=1):
        if shown:
            print(f"\r\x1b[K{number} of {len(paths)}: {one_line(path)[:60]}", end="", file=err, flush=True)
        try:
            yield path
        finally:
            if shown:
                print("\r\x1b[K", end="", file=err, flush=True)


# Reading.


def read_series(path: str) -> Series:
    """The series in a file, `-` being the standard input."""
    name = "the standard input" if path == "-" else path
    text = _text(name, _bytes(path), named_gzip=path.endswith(".gz"))
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(lines, None)
        if header is None:
            raise SeriesUnreadable(f"{name} is empty; expected a line `timestamp,value` and rows below it")
        columns = _columns(name, header)
        at, values = _rows(name, columns, lines)
    except csv.Error as error:
        raise SeriesUnreadable(f"{name} is no CSV, row {lines.line_num - 1}: {error}; expected lines such as `2014-04-01 00:00:00,21.5`") from error
    if not values:
        raise SeriesUnreadable(f"{name} has a header and no rows; expected lines such as `2014-04-01 00:00:00,21.5` below it")
    return Series(path=path, at=np.array(at), values=np.array(values))


def _bytes(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SeriesUnreadable(f"{path} cannot be read: {error.strerror or error}; expected a CSV file, or - for the standard input") from error


def _text(name: str, content: bytes, *, named_gzip: bool) -> str:
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise SeriesUnreadable(f"{name} is gzip and damaged: {error}; make it again, or decompress what is left of it with `gzip -dc`") from error
    elif named_gzip and content:
        raise SeriesUnreadable(f"{name} is named .gz and is not gzip: it begins with {content[:8]!r}; rename it, or compress it with `gzip`")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SeriesUnreadable(
            f"{name} is not text: byte {error.start} is {content[error.start]:#04x}; expected CSV in UTF-8, gzipped or not, beginning with `timestamp,value`"
        ) from error
    if "\0" in text:
        raise SeriesUnreadable(f"{name} is not text: it has zero bytes, the first at {text.index(chr(0))}; expected CSV in UTF-8, gzipped or not")
    return text


def _columns(name: str, header: Sequence[str]) -> tuple[int, int]:
    names = [one.strip().lower() for one in header]
    missing = [one for one in _COLUMNS if one not in names]
    if missing:
        raise SeriesUnreadable(
            f"{name} has no column {' and no column '.join(missing)}: its first line is {_short(','.join(header))}; name them in it, as in `timestamp,value`"
        )
    return names.index(_COLUMNS[0]), names.index(_COLUMNS[1])


def _rows(name: str, columns: tuple[int, int], lines: Iterable[Sequence[str]]) -> tuple[list[float], list[float]]:
    """Times and values. Rows are counted from 1, below the header; empty lines are none."""
    at: list[float] = []
    values: list[float] = []
    for line in lines:
        if not line:
            continue
        row = len(values) + 1
        if len(line) <= max(columns):
            raise SeriesUnreadable(f"{name}, row {row}, is cut short: {_short(','.join(line))}; expected a timestamp and a value, so complete or remove it")
        at.append(_time(name, row, line[columns[0]].strip()))
        values.append(_value(name, row, line[columns[1]].strip()))
    return at, values


def _time(name: str, row: int, text: str) -> float:
    if not text:
        return math.nan
    try:
        return float(text)  # First, for some numbers would also pass as dates.
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise SeriesUnreadable(f"{name}, row {row}: {_short(text)} is no time; expected one such as 2014-04-01 00:00:00, or seconds since 1970") from None


def _value(name: str, row: int, text: str) -> float:
    if not text:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise SeriesUnreadable(f"{name}, row {row}: {_short(text)} is not a number; expected one, or nothing at all where it is missing") from None
    return value if math.isfinite(value) else math.nan


def _short(text: str) -> str:
    text = one_line(text)
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
