"""Goodput: which share of the time is new work, and in which bucket of the ledger each other second is.

        ├──── work τ ────┤ save δ ├──── work ────✗ detect · diagnose · stop · wait · replace · rendezvous · restore ├──── work again ────…

Failures strike at a constant rate Λ, at any moment, also during a recovery, which then begins again with what the new failure asks for. With kinds i of share
pᵢ, lengths Lᵢ of their recoveries, and copies that are ℓᵢ behind when kind i strikes (ℓᵢ at most τ + δ):

        φ = Σ pᵢ e^(-Λ Lᵢ)                          share of the time that is not recovery
        q = Σ pᵢ (1 - e^(-Λ ℓᵢ))                    chance that a failure finds its copy unfinished
        productive = φ (1 - q) Λτ / (e^(Λ(τ+δ)) - 1)     save = φ (e^(Λδ) - 1) / (e^(Λ(τ+δ)) - 1)     recompute = φ - productive - save
        phase k    = Σ pᵢ (e^(-Λ cᵢ,ₖ₋₁) - e^(-Λ cᵢ,ₖ))       cᵢ,ₖ: when phase k of a recovery from kind i ends

These are exact for this model, and add up to 1. A NaN is a failure whose detection takes long: what was done meanwhile is lost as well.

A kind may leave a gang that is smaller for Sᵢ after its recovery, at the share kᵢ of its speed, and stops once more for Gᵢ to be whole again:

        smaller = Σ pᵢ (1 - kᵢ) (e^(-Λ Lᵢ) - e^(-Λ (Lᵢ + Sᵢ)))        grow = Σ pᵢ (e^(-Λ (Lᵢ + Sᵢ)) - e^(-Λ (Lᵢ + Sᵢ + Gᵢ)))

And it may be answered by those who live on, with what they have: then no more than the step under way is lost, sᵢ/2 in the mean, there and when it grows; but
where a failure strikes during such a recovery, all go back to a save. That part is right to the first order in Λ.

Is wrong    when a copy is behind by more than an interval (then right to the first order only), when spares run out (`spares.py`, and the played fleet), when
            failures come in bursts, and when the job is so short that its beginning counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.goodput import Bucket
from holdfast.recover.interval import share_lost

# What a recovery is made of, in the order in which it happens.
RECOVERY = (Bucket.DETECT, Bucket.DIAGNOSE, Bucket.STOP, Bucket.WAIT, Bucket.REPLACE, Bucket.RENDEZVOUS, Bucket.RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of failure, and what it takes to go on after it."""

    name: str
    share: float  # Of all failures.
    detect_s: float = 0.0
    diagnose_s: float = 0.0
    stop_s: float = 0.0
    replace_s: float = 0.0
    rendezvous_s: float = 0.0  # Start, group build and the first step, as in the ledger.
    restore_s: float = 0.0
    behind_s: float = 0.0  # How far the newest state that survives this kind lags behind the newest save.
    needs_node: bool = False
    live_s: float | None = None  # Those who live on go on with what they have: a step is the most that is lost. None: all go back to a save.
    smaller_s: float = 0.0  # So long the gang is smaller after the recovery,
    kept: float = 1.0  # with this share of its speed,
    grow_s: float = 0.0  # and so long it stops to be whole again.

    @property
    def phases_s(self) -> tuple[float, ...]:
        return self.detect_s, self.diagnose_s, self.stop_s, 0.0, self.replace_s, self.rendezvous_s, self.restore_s

    @property
    def recovery_s(self) -> float:
        return sum(self.phases_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    per_s: float
    interval_s: float
    stall_s: float
    faults: tuple[Fault, ...]

    def __post_init__(self) -> None:
        assert self.interval_s > 0.0 and self.per_s >= 0.0 and math.isclose(sum(fault.share for fault in self.faults), 1.0, abs_tol=1e-9)


def parts(running: Running) -> dict[Bucket, float]:
    """Share of the time by bucket; they add up to 1."""
    per_s, faults = running.per_s, running.faults
    found = {Bucket.PRODUCTIVE: goodput(running)}
    training = _training_share(per_s, faults)
    found[Bucket.SAVE] = training * _saves_share(running)
    found[Bucket.SMALLER] = _lacking(running)
    found[Bucket.RECOMPUTE] = max(0.0, training - found[Bucket.PRODUCTIVE] - found[Bucket.SAVE] - found[Bucket.SMALLER])
    for index, bucket in enumerate(RECOVERY):
        found[bucket] = sum(fault.share * _between(per_s, sum(fault.phases_s[:index]), fault.phases_s[index]) for fault in faults)
    found[Bucket.RENDEZVOUS] += _growing(per_s, faults)
    return found


def goodput(running: Running) -> float:
    """Productive over wall."""
    per_s, back = running.per_s, going_back(running.per_s, running.faults)
    unfinished = sum(fault.share * -math.expm1(-per_s * fault.behind_s) for fault in running.faults if fault.live_s is None)
    saved = (1.0 - unfinished) * (1.0 - share_lost(running.interval_s, running.stall_s, per_s * back))
    broken_off_s = sum(fault.share * (fault.live_s or 0.0) / 2.0 * (1.0 + (fault.grow_s > 0.0)) for fault in running.faults)
    return (_training_share(per_s, running.faults) - _lacking(running)) * saved - per_s * broken_off_s


def going_back(per_s: float, faults: Sequence[Fault]) -> float:
    """The share of failures after which all go back to a save: those of a kind that does, and those that strike while survivors recover."""
    live = sum(fault.share for fault in faults if fault.live_s is not None)
    recovering = sum(fault.share * -math.expm1(-per_s * fault.recovery_s) for fault in faults if fault.live_s is not None)
    return 1.0 - live * (1.0 - recovering)


def first_order(running: Running) -> float:
    """The same to the first order in the rate, as it is published: what one failure costs, over the time between two."""
    recovery_s = sum(fault.share * (fault.recovery_s + fault.grow_s + (1.0 - fault.kept) * fault.smaller_s) for fault in running.faults)
    back_s = sum(fault.share * (fault.behind_s + _round_s(running) / 2.0 if fault.live_s is None else fault.live_s / 2.0) for fault in running.faults)
    mean_loss_s = recovery_s + back_s
    return running.interval_s / _round_s(running) * (1.0 - running.per_s * mean_loss_s)


def loss_per_failure_s(share: float, per_s: float) -> float:
    """What each failure costs at this goodput: unlike goodput it may be compared between fleets of any size."""
    return (1.0 - share) / per_s


def _lacking(running: Running) -> float:
    per_s = running.per_s
    return sum(fault.share * (1.0 - fault.kept) * _between(per_s, fault.recovery_s, fault.smaller_s) for fault in running.faults)


def _growing(per_s: float, faults: Sequence[Fault]) -> float:
    return sum(fault.share * _between(per_s, fault.recovery_s + fault.smaller_s, fault.grow_s) for fault in faults)


def _round_s(running: Running) -> float:
    return running.interval_s + running.stall_s


def _saves_share(running: Running) -> float:
    """(e^(Λδ) - 1) / (e^(Λ(τ+δ)) - 1), written so that nothing overflows."""
    per_s, round_s = running.per_s, _round_s(running)
    if not per_s:
        return running.stall_s / round_s
    return math.exp(-per_s * running.interval_s) * math.expm1(-per_s * running.stall_s) / math.expm1(-per_s * round_s)


def _training_share(per_s: float, faults: Sequence[Fault]) -> float:
    return sum(fault.share * math.exp(-per_s * fault.recovery_s) for fault in faults) - _growing(per_s, faults)


def _between(per_s: float, since_s: float, lasts_s: float) -> float:
    return math.exp(-per_s * since_s) * -math.expm1(-per_s * lasts_s)
