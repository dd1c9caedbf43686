"""A check: one answer about a machine, with what was seen and what to do. A place: what is looked at, and what is wanted of it."""

from __future__ import annotations

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
    shared_memory_bytes: int = 0  # What the job will want, if that is known.
    ports: tuple[int, ...] = ()  # That it will listen at.
    full: bool = False  # More of everything, up to a minute in all.


def ok(name: str, said: str, **figures: float) -> Check:
    return Check(name=name, verdict=Verdict.OK, said=said, figures=figures)


def warn(name: str, said: str, do: str, *, culprit: str = "", **figures: float) -> Check:
    return Check(name=name, verdict=Verdict.WARN, said=said, do=do, culprit=culprit, figures=figures)


def bad(name: str, said: str, do: str, *, culprit: str = "", **figures: float) -> Check:
    return Check(name=name, verdict=Verdict.BAD, said=said, do=do, culprit=culprit, figures=figures)
