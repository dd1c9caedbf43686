"""The ladder: which rung to stand on, and why.

Permanent causes go straight to the last rung: nobody is helped by 44 identical restarts. The others are tried within a budget that progress refills.
Wrong when a fault is cured by something outside (a disk that is emptied, a data base that comes back) just after the budget is spent: the report
says so, and `holdfast resume` goes on from the newest checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import Policy
from holdfast.domain.learned import Learned
from holdfast.domain.plan import Candidate, Plan, Rung
from holdfast.domain.state import Attempt
from holdfast.recover.candidates import Fleet, came_back, elsewhere, forbidden, weigh
from holdfast.recover.memory import Adjustment
from holdfast.recover.shrink import worth_shrinking_from_s

__all__ = ["Fleet", "decide"]

# What the program does to itself: it will do it again at the same place.
_OWN_DOING = (Cause.EXCEPTION, Cause.EXIT_CODE, Cause.CRASH, Cause.OUT_OF_MEMORY)
_FROM_OUTSIDE = (Cause.KILLED, Cause.HANG, Cause.NODE_LOST, Cause.UNKILLABLE)
# What the checkpoint is blamed for: the next attempt restores another one.
_DISTRUSTED_FOR = {
    Cause.CHECKPOINT_CORRUPT: "does not verify",
    Cause.POISONED_CHECKPOINT: "gave a loss that is not finite at once, and is not restored again",
}
_JITTER = 0.25
_VAIN_TIMES = 4  # A remedy that has not helped so often against a hang in one place will not.
_ALIKE_TIMES = 10  # Where progress is only guessed at, this many budgets of the same fault over and over are enough.


def decide(
    diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, learned: Learned | None = None, *, at: float = 0.0, job: str = "",
    adjustment: Adjustment | None = None, only: str = "",
) -> Plan:  # fmt: skip
    """Choose the rung for `diagnosis`, given what was tried before, what is left, and what earlier jobs have taught.

    With an `adjustment` the next try is not like the last one, and so does not count as the same again. `only`: the rung a person has chosen among those that
    were possible, who knows what was tried before.
    """
    wait_s = 0.0 if adjustment is not None else _back_off_s(diagnosis, history, policy, job)
    again = _in_a_row(history) > 0
    candidates = weigh(diagnosis, history, fleet, policy, learned, wait_s=wait_s, at=at, again=again)
    plan = None if only else _ended(diagnosis, history, fleet, policy, learned, adjustment, again=again)
    plan = plan or _adjusted(_chosen(candidates, diagnosis, history, fleet, learned, wait_s, again=again, only=only), adjustment)
    if plan.rung is Rung.REPLACE and fleet.too_few and not forbidden(Rung.SHRINK, diagnosis.cause, history, policy, at):
        plan = _until_enough(plan, fleet)
    return replace(plan, candidates=candidates, learned=learned.version if learned is not None else "")


def _adjusted(plan: Plan, adjustment: Adjustment | None) -> Plan:
    """With what is to be otherwise the next time. Whoever stays in his process does not hear of it, so all start again."""
    if adjustment is None or plan.rung is Rung.STOP:
        return plan
    if plan.rung in (Rung.REJOIN, Rung.RESPAWN):
        return replace(plan, rung=Rung.RESPAWN, because=adjustment.because, fitting=adjustment.fitting)
    return replace(plan, because=f"{plan.because}; {adjustment.because}", fitting=adjustment.fitting)


def _ended(
    diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, learned: Learned | None, adjustment: Adjustment | None, *, again: bool
) -> Plan | None:
    """Nothing of what could be done would help, or may be done any more."""
    if fleet.too_small:
        return None  # The script is sound; the size is not for it.
    if diagnosis.permanent:
        return Plan(rung=Rung.STOP, permanent=True, because=f"{diagnosis.cause} is permanent: {diagnosis.because}")
    if adjustment is not None and adjustment.fitting is None:
        return Plan(rung=Rung.STOP, permanent=True, because=f"{adjustment.because}; {diagnosis.because}")
    # What earlier jobs have seen another node cure is tried there; what only came back here, in the same place, is the program's own doing.
    cured = adjustment is not None or bool(elsewhere(diagnosis, (), fleet, learned, again=again))
    same = "" if cured else _same_again(diagnosis, history, policy)
    spent = same or _never_helped(diagnosis, history) or _spent(diagnosis, history, policy)
    return Plan(rung=Rung.STOP, permanent=bool(same), because=spent) if spent else None


def _chosen(
    candidates: Sequence[Candidate], diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, learned: Learned | None, wait_s: float, *, again: bool,
    only: str,
) -> Plan:  # fmt: skip
    """The least expected cost among what is possible; what has just failed against the same comes after what has not."""
    possible = [one for one in candidates if one.possible and one.rung is not Rung.STOP and only in ("", one.name)]
    failed = came_back(diagnosis, history, fleet.blamed)
    best = min([one for one in possible if one.rung not in failed] or possible, key=lambda one: (one.expected_s, one.rung), default=None)
    distrust = fleet.checkpoint if diagnosis.cause in _DISTRUSTED_FOR else ""
    match best.rung if best is not None else Rung.STOP:
        case Rung.REPLACE if fleet.drop or fleet.too_small:
            return _replace(candidates, fleet, wait_s, distrust)
        case Rung.REPLACE:
            why = elsewhere(diagnosis, history, fleet, learned, again=again)
            said = f"{fleet.spares[0]} takes the place of {fleet.blamed}, which is up: {why}"
            return Plan(rung=Rung.REPLACE, because=said, drop=(fleet.blamed,), take=fleet.spares[:1], wait_s=wait_s, distrust=distrust)
        case Rung.SHRINK:
            assert best is not None
            return Plan(rung=Rung.SHRINK, because=f"{_names(fleet.drop)} is gone: {best.because}", drop=fleet.drop, wait_s=wait_s, distrust=distrust)
        case Rung.RESPAWN | Rung.REJOIN as rung:
            return Plan(rung=rung, because=_again(rung, diagnosis, history, fleet, wait_s, distrust), wait_s=wait_s, distrust=distrust)
        case _:
            why_not = "; ".join(f"{one.rung.name.lower()}: {one.because}" for one in candidates if one.rung is not Rung.STOP)
            return Plan(rung=Rung.STOP, because=f"no remedy against {diagnosis.cause} is left: {why_not}")


def _again(rung: Rung, diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, wait_s: float, distrust: str) -> str:
    if distrust:
        return f"checkpoint {distrust} {_DISTRUSTED_FOR[diagnosis.cause]}: all ranks start again from the one before it"
    if rung is Rung.REJOIN and fleet.goes_back:
        return f"{diagnosis.cause} may pass: the survivors keep their processes, and all go back to the newest checkpoint"
    if rung is Rung.REJOIN:
        return f"{diagnosis.cause} may pass: the survivors go on and take the lost ranks in again"
    after = f" after {wait_s:.0f} s, since {_in_a_row(history)} faults came without progress" if wait_s else ""
    return f"{diagnosis.cause} may pass: all ranks start again from their warm parents{after}"


def _replace(candidates: Sequence[Candidate], fleet: Fleet, wait_s: float, distrust: str) -> Plan:
    drop = fleet.drop
    take, patience_s = fleet.spares[: len(drop)], None
    if fleet.too_small:
        said = f"the script does not run on {len(fleet.gang)} nodes, and is not tried there again: waiting for {fleet.whole}; it said: {fleet.too_small}"
    elif len(take) == len(drop):
        said = f"{', '.join(take)} takes the place of {_names(drop)}"
    else:
        said = f"{_names(drop)} is gone and {len(take)} of {len(drop)} spares are there: waiting for nodes"
        if any(one.rung is Rung.SHRINK and one.possible for one in candidates):
            patience_s = worth_shrinking_from_s(fleet.smaller)
            said += f" {patience_s:.1f} s, beyond which going on smaller costs less"
    if distrust:
        said += f"; checkpoint {distrust} is not restored again"
    return Plan(rung=Rung.REPLACE, because=said, drop=drop, take=take, wait_s=wait_s, distrust=distrust, patience_s=patience_s)


def _until_enough(plan: Plan, fleet: Fleet) -> Plan:
    """It cannot be smaller yet; when it can, the same rule holds as for one that could at once."""
    patience_s = worth_shrinking_from_s(fleet.smaller)
    because = f"{plan.because} until {fleet.least} are there, and then for all of them {patience_s:.1f} s, beyond which going on smaller costs less"
    return replace(plan, patience_s=patience_s, because=because)


def _names(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes)


def _back_off_s(diagnosis: Diagnosis, history: Sequence[Attempt], policy: Policy, job: str) -> float:
    """What fails by itself is tried again ever later. What comes from outside does not come less often for our waiting, and a checkpoint gets no better.

    Many jobs that fail by one cause, such as a store that is down, do not come back as one: each waits up to a quarter less, by its name.
    """
    in_a_row = _in_a_row(history)
    if diagnosis.cause in (*_FROM_OUTSIDE, Cause.POISONED_CHECKPOINT) or in_a_row < policy.backoff_after:
        return 0.0
    early = crc32(f"{job}/{in_a_row}".encode()) / 2**32 * _JITTER if job else 0.0
    return min(policy.backoff_max_s, 2.0 ** (in_a_row - policy.backoff_after)) * (1.0 - early)


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
    own = diagnosis.cause in (*_OWN_DOING, Cause.POISONED_CHECKPOINT) or bool(diagnosis.place)  # The last: a hang that has its place in the script.
    if not own or diagnosis.memory == "held":  # Memory that another holds is not its own doing.
        return ""
    # A script that does not beat says no step, and one that broke before it had restored anything says 0, however far the job is. Whether it is the same
    # place can then be told only as long as it gets nowhere.
    before = history if diagnosis.step > 0 else history[len(history) - _in_a_row(history) :]
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


def _never_helped(diagnosis: Diagnosis, history: Sequence[Attempt]) -> str:
    """Why a hang in the same place is not answered once more: nothing has helped there so far."""
    tried = [attempt for attempt in history if diagnosis.place and attempt.fingerprint == diagnosis.fingerprint]
    if len(tried) < _VAIN_TIMES or any(attempt.progressed and not attempt.came_back for attempt in tried):
        return ""
    return f"the same hang came {len(tried) + 1} times, and a remedy helped 0 of {len(tried)} times: {diagnosis.because}"


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
