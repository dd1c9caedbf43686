"""An answer: what became of one try to deliver, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    DELIVERED = "delivered"
    LATER = "later"  # It may work in a while.
    REFUSED = "refused"  # Sending the same again cannot help.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    verdict: Verdict
    said: str  # For people; without secrets.
    after_s: float | None = None  # The sink said itself when to come again.
