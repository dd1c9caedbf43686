"""Numbers as people write them: 30s, 5m, 1h, 4GiB, 90 %, 85 °C; and back."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

_NUMBER: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Z%°µ]*)(/s)?")
_DURATION: Final = re.compile(r"(?:(?:\d+\.?\d*|\.\d+)(?:ms|s|m|h|d))+")
_DURATION_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {
    "B": 1.0,
    **{f"{letter}B": 1000.0**power for power, letter in enumerate("kMGTP", 1)},
    **{f"{letter}iB": 1024.0**power for power, letter in enumerate("KMGTP", 1)},
}
_SUFFIXES: Final[dict[str, tuple[str, float]]] = {
    **{suffix: ("s", factor) for suffix, factor in _SECONDS.items()},
    **{suffix: ("bytes", factor) for suffix, factor in _BYTES.items()},
    "%": ("ratio", 0.01), "°C": ("celsius", 1.0), "C": ("celsius", 1.0), "W": ("watts", 1.0), "kW": ("watts", 1000.0),
    "Hz": ("hertz", 1.0), "MHz": ("hertz", 1e6), "GHz": ("hertz", 1e9),
}  # fmt: skip
_CALLED: Final = {"s": "a duration such as 30s, 5m or 1h", "bytes": "a size such as 4GiB", "ratio": "a share such as 90 % or 0.9",
                  "celsius": "a temperature such as 85 °C", "watts": "a power such as 300 W", "hertz": "a frequency such as 1.2 GHz"}  # fmt: skip


class BadNumber(ValueError):
    """What was written is no number of the unit that is expected; the message says both."""


def duration_s(text: str) -> float:
    """30s, 5m, 1h30m."""
    packed = text.replace(" ", "")
    if not _DURATION.fullmatch(packed):
        raise BadNumber(f"{text!r} is not {_CALLED['s']}")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(packed))


def quantity(text: str, unit: str) -> float:
    """A number in `unit`, with or without a suffix that says so; `unit` "bytes/s" takes 4MiB/s or 4MiB."""
    base, per_second = unit.removesuffix("/s"), unit.endswith("/s")
    if base == "s" and not per_second and _DURATION.fullmatch(text.strip().replace(" ", "")):
        return duration_s(text)
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise BadNumber(f"{text!r} is not {expected(unit)}")
    number, suffix, slash = float(found[1]), found[2], bool(found[3])
    if not isfinite(number):
        raise BadNumber(f"{text!r} is too large")
    if slash and not per_second:
        raise BadNumber(f"{text!r} is per second, and the value is not; expected {expected(unit)}")
    if not suffix:
        return number
    if suffix not in _SUFFIXES:
        raise BadNumber(f"{text!r} has the unknown unit {suffix!r}; expected {expected(unit)}")
    of, factor = _SUFFIXES[suffix]
    if of != base and not (of == "ratio" and base == ""):
        raise BadNumber(f"{text!r} is {_CALLED[of].split(' such')[0]}, and the value is in {unit or 'plain numbers'}; expected {expected(unit)}")
    return float(f"{number * factor:.12g}")  # 95 % is 0.95 and not 0.9500000000000001.


def expected(unit: str) -> str:
    base = unit.removesuffix("/s")
    return _CALLED.get(base, "a plain number") + (" a second" if unit.endswith("/s") else "")


def written(value: float, unit: str) -> str:
    """For people: 93.1 %, 3.9 GiB, 2m 05s, 91 °C."""
    base, per = (unit.removesuffix("/s"), " a second" if unit.endswith("/s") else "")
    if value != value:
        return "no number"
    match base:
        case "ratio":
            return f"{100 * value:.4g} %{per}"
        case "bytes":
            return _size(value) + per
        case "s" if not per:
            return _duration(value)
        case "s":
            return f"{value:.3g} s{per}"
        case "celsius":
            return f"{value:.4g} °C{per}"
        case "watts":
            return f"{value:.4g} W{per}"
        case "hertz":
            return f"{value / 1e6:.4g} MHz{per}"
        case _:
            return f"{value:,.0f}{per}" if abs(value) >= 10_000 else f"{value:.4g}{per}"


def short_duration(seconds: float) -> str:
    """As it is written in a rule, and as Prometheus takes it: 90s, 5m, 1h, 2d."""
    if seconds != round(seconds):
        return f"{round(seconds * 1000)}ms"
    whole = round(seconds)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= unit and whole % unit == 0:
            return f"{whole // unit}{name}"
    return f"{whole}s"


def _size(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.5:
            return f"{value:.3g} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1024
    return f"{value:.3g} PiB"


def _duration(seconds: float) -> str:
    if abs(seconds) < 59.5:
        return f"{seconds:.3g} s"
    whole, sign = round(abs(seconds)), "-" if seconds < 0 else ""
    for unit, name, next_unit, next_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            return f"{sign}{whole // unit}{name} {whole % unit // next_unit:02d}{next_name}"
    return f"{seconds:.3g} s"
