"""Over time: the job, an epoch, or the way to a target takes longer than was allowed; or will.

Sees        how long the job has been run, what share of it is done, the epoch, the number it has a target for, and where the time goes, once a second.
Says        `over_time` when a limit is passed; `over_time_soon` when at the pace of the last quarter the job, or at its own pace the epoch, will need
            `margin` times what is allowed, for `looks` looks in a row. Both say how long it will need and what takes the time: data, other ranks, saves,
            faults, or nothing in particular, when too little was allowed. What will be so is taken back when it would fit again, an epoch that was too long
            when one was not.
Is silent   without limits. About what will be so: in the first minute, and where nobody says how much there is to do. A job that is down is not run: that
            time does not count.
Is wrong    about what will be so when the pace is about to change (a long evaluation at the end, a curriculum), and after a long pause early in the run.
Misses      that a target will not be reached: that is said when its time is over. A plateau may say it before.
Costs       a few comparisons a look; at most 128 points of the run are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, isfinite, nan

from holdfast.detect.ending import Ending
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.job import MET_LOOKS, Limits

_EPOCH_SEEN = 0.1  # Of an epoch must be done before its length is told.
_EPOCH_LOOKS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where the job is at one look. NaN where it is not known."""

    elapsed_s: float
    progress: float = nan
    epoch: float = nan
    target: float = nan
    where: str = ""  # What takes the time, in words,
    evidence: tuple[str, ...] = ()  # and in numbers.


@dataclass(slots=True)
class OverTime:
    """One job, over all its generations."""

    limits: Limits
    margin: float = 1.1
    looks: int = 30
    _ending: Ending = field(default_factory=Ending)
    _late: int = 0  # Looks in a row at which the job was going to be late; below 0: in time.
    _epoch: float = nan
    _epoch_since_s: float = nan
    _epoch_from: float = 0.0  # Where in the epoch it was first seen: after a restart of control, in the middle.
    _met: int = 0
    _reached: bool = False
    _standing: dict[str, Finding] = field(default_factory=dict)

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return list(self._standing.values())

    @property
    def needs_s(self) -> float | None:
        """How long the job will have been run when it is done."""
        return self._ending.needs_s()

    def look(self, spent: Spent, now: float) -> None:
        self._ending.look(spent.elapsed_s, spent.progress)
        if self.limits.job_s is not None:
            self._look_at_job(self.limits.job_s, spent, now)
        if self.limits.epoch_s is not None and isfinite(spent.epoch):
            self._look_at_epoch(self.limits.epoch_s, spent, now)
        if self.limits.target is not None and self.limits.target_s is not None:
            self._met = self._met + 1 if isfinite(spent.target) and self.limits.target.is_met_by(spent.target) else 0
            self._reached = self._reached or self._met >= MET_LOOKS
            self._look_at_target(self.limits.target_s, spent, now)

    def _look_at_job(self, allowed_s: float, spent: Spent, now: float) -> None:
        needs_s = self._ending.needs_s()
        if spent.elapsed_s > allowed_s:
            self._standing.pop("soon", None)
            end = f", and at this pace it needs {_time(needs_s)}" if needs_s is not None else ""
            self._say("job", "over_time", f"the job was allowed {_time(allowed_s)} and has been run for {_time(spent.elapsed_s)}{end}", spent, now)
        elif needs_s is not None:
            self._late = self._late + 1 if needs_s > self.margin * allowed_s else 0 if needs_s > allowed_s else -1
            if self._late >= self.looks:
                self._say("soon", "over_time_soon", f"at this pace it needs {_time(needs_s)}, {_time(allowed_s)} are allowed", spent, now, of="job")
            elif self._late < 0:
                self._standing.pop("soon", None)

    def _look_at_epoch(self, allowed_s: float, spent: Spent, now: float) -> None:
        number = floor(spent.epoch)
        if number != self._epoch:
            whole = self._epoch_from < 0.01
            if whole and spent.elapsed_s - self._epoch_since_s <= allowed_s:
                self._standing.pop("epoch", None)
                self._standing.pop("epoch soon", None)
            self._epoch, self._epoch_since_s, self._epoch_from = number, spent.elapsed_s, spent.epoch - number
        took_s, done = spent.elapsed_s - self._epoch_since_s, spent.epoch - number - self._epoch_from
        if took_s > allowed_s:
            self._standing.pop("epoch soon", None)
            self._say("epoch", "over_time", f"epoch {number} was allowed {_time(allowed_s)} and has taken {_time(took_s)}", spent, now)
        elif done >= _EPOCH_SEEN and took_s >= _EPOCH_LOOKS and took_s / done > self.margin * allowed_s and "epoch" not in self._standing:
            text = f"at this pace epoch {number} takes {_time(took_s / done)}, {_time(allowed_s)} are allowed"
            self._say("epoch soon", "over_time_soon", text, spent, now, of="epoch")

    def _look_at_target(self, allowed_s: float, spent: Spent, now: float) -> None:
        if self._reached:
            self._standing.pop("target", None)
        elif spent.elapsed_s > allowed_s:
            at = f"it is at {spent.target:.4g}" if isfinite(spent.target) else "it was never reported"
            text = f"{self.limits.target} was to be reached within {_time(allowed_s)}, and {at} after {_time(spent.elapsed_s)}"
            self._say("target", "over_time", text, spent, now)

    def _say(self, name: str, kind: str, text: str, spent: Spent, now: float, *, of: str = "") -> None:
        """Once: what stands is not said again with newer numbers."""
        if name not in self._standing:
            because = f"{text}; {spent.where}" if spent.where else text
            self._standing[name] = Finding(kind=kind, of=of or name, since=now, severity=Severity.WARNING, because=because, evidence=spent.evidence)


def _time(seconds: float) -> str:
    """As a person would say it: 12 h, 90 min, 40 s."""
    for unit_s, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s or (unit == "h" and seconds >= unit_s and seconds % 3600 == 0):
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"
