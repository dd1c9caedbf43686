"""When a line was written: the common forms of a time at the start of a line, as seconds since the epoch.

Times with a zone are right wherever they were written. Those without are taken as if they were UTC, and those without a year as if in the year that the same
file named last: they can be compared inside one file, and not with another machine's. Kernel seconds count from the start of the machine, and are kept as
they are.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_MONTHS: Final = {name: number for number, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)}
_YEAR_UNTOLD: Final = 2000  # A leap year: 29 February must exist.

_CLOCK: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,:](?P<fraction>\d{1,9}))?"
_ZONE: Final = r"\s?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)?"
_DAY_MONTH: Final = r"(?P<monthname>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2})"
_FORMS: Final = tuple(
    re.compile(form)
    for form in (
        rf"[\[(<]?(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_CLOCK}{_ZONE}[\])>]?",
        rf"\[?(?P<level>[IWEFD])(?P<month>\d{{1,2}})(?P<day>\d\d) {_CLOCK}",  # glog; torch opens a bracket before it, and may leave out a zero.
        rf"\[?(?P<level>[IWEFD])(?P<year>20\d\d)(?P<month>\d\d)(?P<day>\d\d) {_CLOCK}",
        rf"{_DAY_MONTH} (?:(?P<year>\d{{4}}) )?{_CLOCK}",  # syslog, journalctl
        rf"[\[(]?[A-Z][a-z]{{2}} {_DAY_MONTH} {_CLOCK} (?:[A-Z]{{3,4}} )?(?P<year>\d{{4}})[\])]?",  # asctime, dmesg -T
        rf"[\[(]?(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>(?:20)?\d\d) {_CLOCK}[\])]?",
        rf"[\[(]?(?P<day>\d\d)/(?P<monthname>[A-Z][a-z]{{2}})/(?P<year>\d{{4}})[: ]{_CLOCK}{_ZONE}[\])]?",
        r"\[ {0,6}(?P<uptime>\d{1,9}\.\d{3,6})\]",  # dmesg
        rf"[\[(]?{_CLOCK}[\])]?(?=\s)",
    )
)  # fmt: skip
_MAY_START: Final = frozenset("0123456789[(<IWEFDJFMASONTSW")


class Clock:
    """One file's times: remembers the year that lines without one belong to."""

    def __init__(self) -> None:
        self._year = _YEAR_UNTOLD
        self._form = _FORMS[0]  # The one that fitted last: a file rarely has two.

    def read(self, text: str) -> tuple[float | None, int, str]:
        """The time a line starts with, where the line goes on after it, and the level that a form like glog's carries in it."""
        if not text or text[0] not in _MAY_START:
            return None, 0, ""
        for form in (self._form, *_FORMS):
            found = form.match(text)
            if found is not None:
                parts = found.groupdict()
                at_s = self._seconds(parts)
                if at_s is not None:
                    self._form = form
                    return at_s, found.end(), parts.get("level") or ""
        return None, 0, ""

    def _seconds(self, part: dict[str, str | None]) -> float | None:
        if part.get("uptime"):
            return float(part["uptime"] or 0)
        year = int(part.get("year") or 0)
        if year:
            year += 2000 if year < 100 else 0
            self._year = year
        month = int(part.get("month") or 0) or _MONTHS.get((part.get("monthname") or "").lower(), 0)
        if "day" not in part:
            day_s: float | None = 0.0  # A time of day, and no day.
        else:
            day_s = _day_s(year or self._year, month, int(part["day"] or 0))
        hour, minute, second = int(part["hour"] or 0), int(part["minute"] or 0), int(part["second"] or 0)
        if day_s is None or hour > 24 or minute > 59 or second > 60:
            return None
        fraction = part.get("fraction")
        return day_s + 3600 * hour + 60 * minute + second + (float(f"0.{fraction}") if fraction else 0.0) - _zone_s(part.get("zone"))


def number_as_time(value: object) -> float | None:
    """A number of a structured log: seconds, or thousandths, millionths or billionths of them, told by its size."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e8 < value < 4e18:
        return None
    for unit in (1, 1e3, 1e6, 1e9):
        if value / unit < 4e9:
            return value / unit
    return None


@lru_cache(maxsize=512)
def _day_s(year: int, month: int, day: int) -> float | None:
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _zone_s(zone: str | None) -> float:
    if not zone or zone[0] not in "+-":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (3600 * int(digits[:2]) + 60 * int(digits[2:])) * (1 if zone[0] == "+" else -1)
