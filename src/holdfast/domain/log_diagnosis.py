"""What logs and whatever stands beside them say about an end: a class of the taxonomy with its probability, and the lines that speak for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A line somebody can look up."""

    path: str
    line: int  # Counted from 1; 0 where it is not from a file.
    text: str
    says: str = ""  # What it speaks for: the class, or what is noteworthy about it.
    rank: int | None = None
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDiagnosis:
    cause: str  # The name of a class of the taxonomy, `healthy` or `unknown`.
    permanence: str  # transient, permanent or unclear.
    scope: str
    confidence: float  # Of the cause, from 0 to 1, calibrated.
    because: str  # One sentence.
    action: str
    alternatives: tuple[tuple[str, float], ...] = ()  # What else it could be, most likely first.
    evidence: tuple[Quote, ...] = ()
    ranks: tuple[int, ...] = ()  # Who to look at; empty where nobody in particular is to blame.
    node: str = ""
    fingerprint: str = ""  # The same for the same failure elsewhere.
    reasoning: tuple[str, ...] = ()  # How it was come to, a sentence each.
    step: int | None = None  # The last step that was told of; where numbers are no longer finite, the first of those.
