"""CSV files of others, gzipped or not: whole rows are taken, broken ones are left out, with their line and the reason.

A row is one line: a quote that is not closed, or a byte that is no UTF-8, costs the row it stands in, and no other.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from holdfast.errors import UserError

Row = dict[str, str | None]
_GZIP = b"\x1f\x8b"
_MOST = 1e15  # Of any number, either way: sums of them are still numbers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    line: int
    because: str


class TableUnreadable(UserError):
    """A file that is no table of what was expected."""


def rows_of(path: Path, wanted: str, take: Callable[[Row, int], None], missing: Callable[[Sequence[str]], str]) -> list[Skipped]:
    """Give each row, with its line, to `take`, which raises ValueError where it makes no sense. `missing` says what the first line lacks, or nothing."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode("utf-8-sig", "surrogateescape")
    except (OSError, EOFError, zlib.error) as error:
        raise TableUnreadable(f"{path} cannot be read: {error}; expected CSV, gzipped or not, beginning with {wanted}") from error
    lines = io.StringIO(text.replace("\0", ""), newline=None)
    first = next(lines, "")
    try:
        names = [name.strip() for name in _fields(first)]
    except ValueError as error:
        raise TableUnreadable(f"{path} is no CSV: in its first line {error}; expected lines as below {wanted}") from error
    if twice := [name for name, times in Counter(names).items() if name and times > 1]:
        raise TableUnreadable(f"{path} has two columns {twice[0][:40]!r}, and nothing says which is meant; leave one out, or rename it")
    if lacks := missing(names):
        raise TableUnreadable(f"{path} has {lacks}: its first line is {','.join(names)[:80]!r}; name them in it, as in {wanted}")
    skipped: list[Skipped] = []
    for number, line in enumerate(lines, 2):
        try:
            fields = _fields(line)
            if len(fields) > len(names):
                raise ValueError("it has more fields than the first line")
            if fields:
                take(dict(zip_longest(names, fields)), number)
        except ValueError as error:
            skipped.append(Skipped(line=number, because=str(error)))
    return skipped


def _fields(line: str) -> list[str]:
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"byte 0x{ord(line[error.start]) - 0xDC00:02x} is no UTF-8") from error
    reader = csv.reader((line, ""), skipinitialspace=True)
    try:
        fields = next(reader)
    except csv.Error as error:
        raise ValueError(str(error)) from error
    if reader.line_num > 1:  # It read on, for the end of what a quote began.
        raise ValueError("a quote is opened and not closed on its line")
    return fields


def first_of(skipped: Sequence[Skipped]) -> str:
    """Why nothing was left of a table."""
    return f"; the first row that was left out, line {skipped[0].line}: {skipped[0].because}" if skipped else ""


def number(row: Row, name: str, *, least: float = -_MOST) -> float:
    value = maybe(row, name, least=least)
    if value is None:
        raise ValueError(f"{name} is empty, expected a number")
    return value


def maybe(row: Row, name: str, *, least: float = -_MOST) -> float | None:
    """None where there is nothing."""
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text if text.isascii() and "_" not in text else "")  # Python takes 1_0 for ten; no trace means that.
    except ValueError:
        raise ValueError(f"{name} {text[:40]!r} is not a number") from None
    if not least <= value <= _MOST:
        bound = f" of {_MOST:g} or less" if value > _MOST else f" of {least:g} or more" if least > -_MOST else ""
        raise ValueError(f"{name} is {text[:40]}, expected a number{bound}")
    return value


def skipped_lines(skipped: Sequence[Skipped], most: int = 5) -> Iterator[str]:
    """What to tell of rows that were left out."""
    for one in skipped[:most]:
        yield f"line {one.line} is left out: {one.because}"
    if len(skipped) > most:
        yield f"and {len(skipped) - most:,} more lines"
