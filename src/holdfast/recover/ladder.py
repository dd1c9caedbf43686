"""The ladder: which rung to stand on, and why.

Permanent causes go straight to the last rung: nobody is helped by 44 identical restarts. The others are tried within a budget that progress refills.
Wrong when a fault is cured by something outside (a disk that is emptied, a data base that comes back) just after the budget is spent: the report
says so, and `holdfast resume` goes on from the newest checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import Policy
from holdfast.domain.learned import Learned
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Attempt
from holdfast.recover.worth import other_node

# What the program does to itself: it will do it again at the same place.
_OWN_DOING = (Cause.EXCEPTION, Cause.EXIT_CODE, Cause.CRASH, Cause.OUT_OF_MEMORY)
_FROM_OUTSIDE = (Cause.KILLED, Cause.HANG, Cause.NODE_LOST, Cause.UNKILLABLE)
# What the checkpoint is blamed for: the next attempt restores another one.
_DISTRUSTED_FOR = {
    Cause.CHECKPOINT_CORRUPT: "does not verify",
    Cause.POISONED_CHECKPOINT: "gave a loss that is not finite at once, and is not restored again",
}
_ALIKE_TIMES = 10  # Where progress is only guessed at, this many budgets of the same fault over and over are enough.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What there is to recover with. The spares stand in the order in which they are taken."""

    gang: tuple[str, ...]
    spares: tuple[str, ...]
    lost: tuple[str, ...]
    checkpoint: str = ""  # The one the gang that failed was restored from.
    blamed: str = ""  # The one node on which the culprits ran, where there is one.
    avoided: tuple[str, ...] = ()  # Taken only when there are no others.


def decide(diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, learned: Learned | None = None) -> Plan:
    """Choose the rung for `diagnosis`, given what was tried before, what is left, and what earlier jobs have taught."""
    plan = _decide(diagnosis, history, fleet, policy, learned)
    return plan if learned is None else replace(plan, learned=learned.version)


def _decide(diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, learned: Learned | None) -> Plan:
    if diagnosis.permanent:
        return Plan(rung=Rung.STOP, permanent=True, because=f"{diagnosis.cause} is permanent: {diagnosis.because}")
    elsewhere = _elsewhere(diagnosis, history, fleet, learned)
    same = "" if elsewhere else _same_again(diagnosis, history, policy)
    spent = same or _spent(diagnosis, history, policy)
    if spent:
        return Plan(rung=Rung.STOP, permanent=bool(same), because=spent, alternatives=("respawn: it was tried and did not help",))
    wait_s = _back_off_s(diagnosis, history, policy)
    distrust = fleet.checkpoint if diagnosis.cause in _DISTRUSTED_FOR else ""
    drop = tuple(sorted(node for node in fleet.gang if node in fleet.lost))  # A node that was lost and is back keeps its place.
    if drop:
        return _replace(drop, fleet, wait_s, distrust)
    if elsewhere:
        said = f"{fleet.spares[0]} takes the place of {fleet.blamed}, which is up: {elsewhere}"
        spare, alternatives = fleet.spares[:1], (f"respawn on {fleet.blamed}: it is expected to cost more",)
        return Plan(rung=Rung.REPLACE, because=said, drop=(fleet.blamed,), take=spare, wait_s=wait_s, distrust=distrust, alternatives=alternatives)
    after = f" after {wait_s:.0f} s, since {_in_a_row(history)} faults came without progress" if wait_s else ""
    said = f"{diagnosis.cause} may pass: all ranks start again from their warm parents{after}"
    if distrust:
        said = f"checkpoint {distrust} {_DISTRUSTED_FOR[diagnosis.cause]}: all ranks start again from the one before it"
    return Plan(rung=Rung.RESPAWN, because=said, wait_s=wait_s, distrust=distrust, alternatives=("replace: the node itself shows no fault",))


def _elsewhere(diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, learned: Learned | None) -> str:
    """Why the node that is to blame is left for a spare though it is up, or nothing."""
    if fleet.blamed not in fleet.gang or fleet.blamed in (*fleet.lost, *fleet.avoided) or diagnosis.cause in _DISTRUSTED_FOR:
        return ""
    if not fleet.spares or fleet.spares[0] in fleet.avoided:
        return ""
    return other_node(diagnosis, learned, again=_in_a_row(history) > 0)


def _replace(drop: tuple[str, ...], fleet: Fleet, wait_s: float, distrust: str) -> Plan:
    take = fleet.spares[: len(drop)]
    names = ", ".join(drop)
    if len(take) == len(drop):
        said = f"{', '.join(take)} takes the place of {names}"
    else:
        said = f"{names} is gone and {len(take)} of {len(drop)} spares are there: waiting for nodes"
    if distrust:
        said += f"; checkpoint {distrust} is not restored again"
    alternatives = ("respawn: not possible without the node",)
    return Plan(rung=Rung.REPLACE, because=said, drop=drop, take=take, wait_s=wait_s, distrust=distrust, alternatives=alternatives)


def _back_off_s(diagnosis: Diagnosis, history: Sequence[Attempt], policy: Policy) -> float:
    """What fails by itself is tried again ever later. What comes from outside does not come less often for our waiting, and a checkpoint gets no better."""
    in_a_row = _in_a_row(history)
    if diagnosis.cause in (*_FROM_OUTSIDE, Cause.POISONED_CHECKPOINT) or in_a_row < policy.backoff_after:
        return 0.0
    return min(policy.backoff_max_s, 2.0 ** (in_a_row - policy.backoff_after))


def _in_a_row(history: Sequence[Attempt]) -> int:
    """Faults since training last got further."""
    count = 0
    for attempt in reversed(history):
        if attempt.progressed:
            break
        count += 1
    return count


def _same_again(diagnosis: Diagnosis, history: Sequence[Attempt], policy: Policy) -> str:
    """Why this fault is the one we had before, or nothing."""
    if diagnosis.cause not in (*_OWN_DOING, Cause.POISONED_CHECKPOINT):
        return ""
    # A script that does not beat says no step. Whether it is the same place can then be told only as long as it gets nowhere.
    before = history if diagnosis.step >= 0 else history[len(history) - _in_a_row(history) :]
    again = 1 + sum(1 for attempt in before if (attempt.fingerprint, attempt.step) == (diagnosis.fingerprint, diagnosis.step))
    limit = policy.same_fault_max if diagnosis.step >= 0 else policy.same_fault_max + 1  # Without beats "the same step" is a guess.
    if again < limit:
        return ""
    if diagnosis.cause is Cause.POISONED_CHECKPOINT:
        return (
            f"training came to step {diagnosis.step} anew from an older checkpoint, and what it saved there gave a loss that is not finite at once, as before: "
            f"the data or the code there is a likelier cause than the checkpoint; {diagnosis.because}"
        )
    where = f"at step {diagnosis.step}" if diagnosis.step >= 0 else "in the same place"
    return f"the same fault came {again} times {where}: {diagnosis.because}"


def _spent(diagnosis: Diagnosis, history: Sequence[Attempt], policy: Policy) -> str:
    """Why no further attempt is made, or nothing when one may be."""
    if policy.max_restarts is not None:
        if len(history) >= policy.max_restarts:
            return f"all {policy.max_restarts} restarts are used up; the last fault was {diagnosis.cause}: {diagnosis.because}"
        return ""
    alike = sum(1 for _ in itertools.takewhile(lambda attempt: attempt.fingerprint == diagnosis.fingerprint, reversed(history)))
    if diagnosis.step < 0 and diagnosis.cause in _OWN_DOING and alike >= _ALIKE_TIMES * policy.restarts_in_a_row:
        # A script that does not beat counts as having got further when it stayed up for a while; it may have come to the same place each time.
        return f"the same fault came {alike + 1} times with no other between; the script does not beat, so no progress can be seen: {diagnosis.because}"
    row = history[len(history) - _in_a_row(history) :]
    same = sum(1 for attempt in row if attempt.cause == diagnosis.cause)
    if diagnosis.cause in (Cause.NODE_LOST, Cause.UNKILLABLE):
        # Each costs a node, and the nodes are the budget; unless one comes back only to be lost again.
        same = sum(1 for attempt in row if attempt.fingerprint == diagnosis.fingerprint)
    if same >= policy.restarts_in_a_row:
        return f"{diagnosis.cause} came {same + 1} times in a row without progress; the limit is {policy.restarts_in_a_row}: {diagnosis.because}"
    return ""
