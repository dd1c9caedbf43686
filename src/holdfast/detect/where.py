"""Where the time goes: the parts of a step over a whole run, and what was spent beside the steps, in words.

One of them is named when it is large enough to be worth a thought; when the time went into computing, it says so: then nothing is slow, and the estimate was
too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

PARTS = ("data", "compute", "communication", "optimizer", "save")
_WORDS = {"data": "waiting for data", "communication": "waiting for other ranks", "save": "saving", "compute": "computing", "optimizer": "in the optimizer"}
_MUCH = 0.25  # Of a step, for a part that is not computing.
_LOST = 0.2  # Of all time, beside the steps.


class Where:
    """Sums over all looks: a few numbers, however long the run."""

    def __init__(self) -> None:
        self._parts = dict.fromkeys(PARTS, 0.0)

    def look(self, parts: Mapping[str, float]) -> None:
        """The seconds of each part of a step, at one look."""
        for name, seconds in parts.items():
            if name in self._parts and isfinite(seconds) and seconds >= 0:
                self._parts[name] += seconds

    def shares(self) -> dict[str, float]:
        whole = sum(self._parts.values())
        return {name: seconds / whole for name, seconds in self._parts.items()} if whole > 0 else {}

    def in_words(self, productive: float) -> str:
        """`productive` is the share of all time that went into new steps."""
        shares = self.shares()
        waits = {name: share for name, share in shares.items() if name not in ("compute", "optimizer")}
        worst = max(waits, key=lambda name: waits[name], default="")
        said = []
        if productive < 1 - _LOST:
            said.append(f"{1 - productive:.0%} of the time went into starts, faults and work done again")
        if worst and waits[worst] >= _MUCH:
            said.append(f"{waits[worst]:.0%} of a step is {_WORDS[worst]}")
        if said:
            return " and ".join(said)
        if not shares:
            return "where the time goes cannot be seen"
        return f"nothing stands out, {shares['compute'] + shares['optimizer']:.0%} of a step is computing: the time allowed is too short for this pace"

    def evidence(self) -> tuple[str, ...]:
        return tuple(f"{share:.0%} of a step is {_WORDS[name]}" for name, share in self.shares().items() if share >= 0.005)
