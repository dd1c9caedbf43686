"""Flapping: the same trouble in the same place comes and goes. One finding that stands in place of many that do not.

Sees        what stands at each look; and which nodes lost their connection and came back.
Says        `flapping` when the same finding ended `times` times within `window_s` and is there again, with the node, rank or link it is about and the
            severity of what flaps. While it stands, what flaps is not told by itself. It stands until nothing of it was seen for `calm_s`.
Is silent   about what ended because the gang was stopped, and about links that go down and up: the rules count those.
Is wrong    when something is loaded in a rhythm by design (a nightly copy every few minutes): it flaps, and nothing is broken.
Misses      what comes back more slowly than `times` in `window_s`: each time is an incident of its own then, as it should be.
Costs       a pass over what stands; of each thing that ended of late, `times` numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.domain.finding import Finding, Severity


@dataclass(slots=True)
class _Came:
    """One thing that came and went."""

    finding: Finding
    ended: deque[float]
    seen_at: float = 0.0
    there: bool = False


@dataclass(slots=True)
class Flapping:
    times: int = 4
    window_s: float = 3600.0
    calm_s: float = 900.0
    _came: dict[str, _Came] = field(default_factory=dict)
    _standing: dict[str, Finding] = field(default_factory=dict)  # By the key of what flaps.

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return list(self._standing.values())

    def look(self, current: Mapping[str, Finding], now: float) -> None:
        """`current` is what stands now, by key."""
        for key, came in self._came.items():
            if came.there and key not in current:
                self._ends(came, now)
        for key, finding in current.items():
            came = self._of(key, finding)
            came.there, came.seen_at, came.finding = True, now, finding
            self._tell_if_it_flaps(key, came, now)
        self._forget(now)

    def came_back(self, node: str, now: float) -> None:
        """The node's agent had lost its connection, and is heard again."""
        lost = Finding(kind="disconnected", node=node, severity=Severity.WARNING, because=f"the agent of {node} lost its connection")
        came = self._of(lost.key, lost)
        self._ends(came, now)
        self._tell_if_it_flaps(lost.key, came, now)

    def gang_is_new(self) -> None:
        """What stood beside the gang before is over with it, and has not ended by itself."""
        for came in self._came.values():
            came.there = False

    def is_told(self, key: str) -> bool:
        """Whether what has this key is told as flapping."""
        return key in self._standing

    def _of(self, key: str, finding: Finding) -> _Came:
        return self._came.setdefault(key, _Came(finding, deque(maxlen=self.times)))

    def _ends(self, came: _Came, now: float) -> None:
        came.there, came.seen_at = False, now
        came.ended.append(now)

    def _tell_if_it_flaps(self, key: str, came: _Came, now: float) -> None:
        often = len(came.ended) == self.times and now - came.ended[0] <= self.window_s
        if often and key not in self._standing:
            first, what = came.ended[0], came.finding
            name = what.kind.removeprefix("rule:").replace("_", " ")
            self._standing[key] = Finding(
                kind="flapping", node=what.node, ranks=what.ranks, of=f"{what.kind} {what.of}".strip(), since=first, severity=what.severity,
                because=f"{name} comes and goes, {self.times} times in {(now - first) / 60:.0f} min: {what.because}",
            )  # fmt: skip

    def _forget(self, now: float) -> None:
        for key in [key for key in self._standing if not self._came[key].there and now - self._came[key].seen_at >= self.calm_s]:
            del self._standing[key]
            del self._came[key]
        old = [key for key, came in self._came.items() if not came.there and now - came.seen_at > self.window_s and key not in self._standing]
        for key in old:
            del self._came[key]
