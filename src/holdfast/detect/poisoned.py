"""Poisoned checkpoint: one that was restored without an error and gives a loss that is not finite (NaN, infinite) at once.

Sees        for each rank of a gang that restored something: its step, the step it began with, whether the newest loss it reported is finite, and
            whether any was.
Says        `poisoned_checkpoint`, once a generation, with the checkpoint, its step and the ranks. The first loss a rank reports, within `steps` steps of
            the restore, must not be finite, and it must still not be at a later step.
Is silent   about gradients: a loss scaler lets them overflow and skips the step, which is normal, and the loss is finite then. One bad loss that a finite
            one follows accuses nobody. Whoever started fresh restored nothing; whoever was finite first and is not later has another trouble.
Is wrong    when the first batch after the restore is what breaks: the checkpoint is good, and going back costs the way to it once. When a script reports
            now and then only, and the one loss it reported first was a passing one: the number stands until the next, as if it were said again.
Misses      a script that reports no loss, or its first one later than `steps`; one that raises on NaN itself, which is an exception; one whose control was
            away in those steps; and NaN weights that the loss does not show.
Costs       one pass over the ranks per look, for the first steps of a generation.

Three steps: the first one, one more because a number from a GPU is read a step late, and one more because looks and steps do not fall together. Steps that
are shorter than the time between two looks pass by the dozen: so what is seen within `soon_s` of a moment when the rank had finished none counts as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.domain.finding import Finding

_NAMED = 4  # Ranks that are named in the evidence; the others show the same.


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One rank at one moment."""

    step: int
    step_started: int
    finite: bool | None  # Whether the newest loss is; None: none was reported yet.
    was_finite: bool = False  # One that it reported since it began was: dozens may come between two looks.


@dataclass(slots=True)
class _Rank:
    idle_at: float  # When it was known to have finished no step.
    bad_step: int = -1  # The step it was first seen with a loss that is not finite,
    bad_at: float = 0.0  # and when.
    cleared: bool = False  # Its first loss was finite, or came too late to speak of the checkpoint.


@dataclass(slots=True)
class Poisoned:
    """Looks at the ranks of one generation; another one needs another."""

    steps: int = 3
    soon_s: float = 2.0
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _told: bool = False

    def look(self, looks: Mapping[int, Look], checkpoint: str, step: int, *, up_at: float, now: float) -> Finding | None:
        """`checkpoint` is what the gang restored, empty for nothing, and `step` its step; `up_at` is when its ranks were started."""
        if self._told or not checkpoint:
            return None
        bad = tuple(rank for rank in sorted(looks) if self._is_bad(self._ranks.setdefault(rank, _Rank(idle_at=up_at)), looks[rank], now))
        if not bad:
            return None
        self._told = True
        who = f"rank {bad[0]}" if len(bad) == 1 else f"{len(bad)} of {len(looks)} ranks"
        first = self._ranks[bad[0]]
        return Finding(
            kind="poisoned_checkpoint", ranks=bad, checkpoint=checkpoint, step=step, since=min(self._ranks[rank].bad_at for rank in bad),
            because=f"the loss of {who} is not finite at step {first.bad_step} and after it, right after {checkpoint} was restored at step {step}",
            evidence=tuple(f"rank {rank}: not finite at steps {self._ranks[rank].bad_step} and {looks[rank].step}" for rank in bad[:_NAMED]),
        )  # fmt: skip

    def _is_bad(self, rank: _Rank, look: Look, now: float) -> bool:
        """Whether its first loss was not finite, and still is not at a later step."""
        done = look.step - look.step_started
        rank.cleared = rank.cleared or look.was_finite
        if rank.cleared:
            return False
        if done <= 0:
            rank.idle_at = now
            return False
        if rank.bad_step >= 0:
            rank.cleared = look.finite is True
            return look.finite is False and look.step > rank.bad_step
        early = done <= self.steps or now - rank.idle_at <= self.soon_s
        if look.finite is False and early:
            rank.bad_step, rank.bad_at = look.step, now
        else:
            rank.cleared = look.finite is not None or not early
        return False
