"""A check: one answer about a machine, with what was seen and what to do. A place: what is looked at, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"  # Training will run, and may be slow, or fail later.
    BAD = "bad"  # Do not train on it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    verdict: Verdict
    said: str  # What was seen, in one sentence.
    do: str = ""  # What to do about it.
    culprit: str = ""  # What is at fault, as exactly as is known: "core 3", "GPU 1", a directory, a node.
    node: str = ""
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Serialised for the processes that look."""

    state: str  # Where jobs are kept.
    checkpoints: str
    node: str = ""
    host: str = "127.0.0.1"
    ranks: int = 1
    nodes: int = 1
    holds: str = ""  # What the job has in shared memory already begins with this.
    remote: str = ""  # Where it keeps checkpoints a second time.
    ports: tuple[int, ...] = ()  # That it will listen at.
    full: bool = False  # More of everything, up to a minute in all.


def amount(size_bytes: float) -> str:
    unit, name = next((unit, name) for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if size_bytes >= unit or unit == 2**10)
    return f"{size_bytes / unit:.1f} {name}" if name == "GiB" else f"{size_bytes / unit:.0f} {name}"


listeners: list[Callable[[str], None]] = []


def looking(at: str) -> None:
    """Say what is touched next. If nothing more is heard, that is what hangs."""
    for hear in listeners:
        hear(at)


def ok(name: str, said: str, **figures: float) -> Check:
    return Check(name=name, verdict=Verdict.OK, said=said, figures=figures)


def warn(name: str, said: str, do: str, *, culprit: str = "", **figures: float) -> Check:
    return Check(name=name, verdict=Verdict.WARN, said=said, do=do, culprit=culprit, figures=figures)


def bad(name: str, said: str, do: str, *, culprit: str = "", **figures: float) -> Check:
    return Check(name=name, verdict=Verdict.BAD, said=said, do=do, culprit=culprit, figures=figures)
