"""Treating: training has gone wrong (a loss that is not finite, a jump, replicas that disagree) while everything runs. Which remedy is tried, and why.

    replay    the same steps again, from a checkpoint before them. Data order and random numbers are exact, so what comes again is the data's or the script's
              doing, and what does not come again was the machine's. Where one node had it first, its ranks are computed by another one.
    skip      the data of the steps that went wrong is left out, within a budget: first of those steps alone, then of ever more around them
    change    half the learning rate, gradients clipped, another warm-up: within the limits the user set, and not at all without them
    older     a checkpoint before the one that was restored: it may have been on its way there already
    stop      when none of them is possible, or all have failed at the place

A replay costs a restart and changes nothing, so it comes first, unless the whole job drifted off: that comes again. The other figures say in which order the
rest is tried; each failure at the same place makes the same remedy less likely to help.

Sees        the diagnosis with the last sound step, what was tried at the same place, the fleet, the policy, what is otherwise than the script says already.
Says        a plan of rung `roll_back`, or `stop`, with every remedy as a candidate.
Is wrong    when a script is not repeatable (a GPU's atomics, unseeded draws): a replay that passes then accuses a node that is sound. It is checked before
            it is given up, and a person can uncordon it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import SKIP_BATCHES, Policy
from holdfast.domain.learned import Learned
from holdfast.domain.plan import FAILED_S, Candidate, Plan, Remedy, Rung
from holdfast.domain.state import Attempt
from holdfast.domain.treatment import Treatment, Window, joined
from holdfast.recover.candidates import PERSON_S, Fleet, forbidden
from holdfast.recover.worth import remembered

HOPELESS: Final = 0.1  # What is less likely to help is not tried.
_NEAR: Final = 4  # Draws: what goes wrong so close to where it did before is the same.
# What is believed of a remedy that was not tried yet: guesses, in the order in which a person would try them.
_REPLAY: Final = {Cause.NOT_FINITE: 0.3, Cause.DIVERGED: 0.1, Cause.REPLICAS_DISAGREE: 0.4}
_ELSEWHERE: Final = {Cause.NOT_FINITE: 0.5, Cause.DIVERGED: 0.1, Cause.REPLICAS_DISAGREE: 0.7}
# What is left of a replay's chance after one that failed. Data and script do the same again; a bit that flips may do so in the same place by chance.
_AGAIN: Final = {Cause.NOT_FINITE: 0.05, Cause.DIVERGED: 0.05, Cause.REPLICAS_DISAGREE: 0.5}
_CHANGE: Final = {Cause.NOT_FINITE: 0.3, Cause.DIVERGED: 0.6}


def treat(
    diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, treatment: Treatment, learned: Learned | None = None, *, at: float = 0.0,
    only: str = "",
) -> Plan:  # fmt: skip
    """The remedy for `diagnosis`. `only`: the one a person has chosen among those that were possible."""
    case = _case(diagnosis, history, fleet, policy, treatment, learned)
    plans = [_from_what_is_there(case, *weighed) for weighed in (_replay(case), _skip(case), _change(case), _older(case))]
    forbids = forbidden(Rung.ROLL_BACK, diagnosis.cause, history, policy, at) or _used_up(diagnosis, history, policy)
    stop = Candidate(rung=Rung.STOP, cost_s=PERSON_S, because="a person reads the report and acts")
    candidates = (*(replace(one, possible=False, because=forbids) if forbids and one.possible else one for one, _ in plans), stop)
    worth = [(one, plan) for one, (_, plan) in zip(candidates, plans, strict=False) if one.possible and (one.remedy == only or 1.0 - one.risk >= HOPELESS)]
    best = min((pair for pair in worth if only in ("", pair[0].remedy)), key=lambda pair: pair[0].expected_s, default=None)
    plan = best[1] if best is not None and best[1] is not None else _stop(case, candidates)
    return replace(plan, candidates=candidates)


def place_of(diagnosis: Diagnosis, treatment: Treatment) -> Window:
    """The draws it went wrong with, as far as can be told."""
    return Window(first=treatment.draw_of(max(0, diagnosis.sound)), last=treatment.draw_of(max(0, diagnosis.step - 1, diagnosis.sound)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    diagnosis: Diagnosis
    place: Window
    here: tuple[Attempt, ...]  # What was tried at the same place.
    fleet: Fleet
    policy: Policy
    treatment: Treatment
    learned: Learned | None

    def tried(self, remedy: Remedy) -> int:
        return sum(one.remedy == remedy for one in self.here)

    def candidate(self, remedy: Remedy, believed: float, because: str, *, failed_s: float = FAILED_S) -> Candidate:
        """`believed`: of its chance, before the record of earlier jobs. What has just failed here counts more than that."""
        times = self.tried(remedy)
        chance = believed if times else remembered(remedy, self.diagnosis.cause, believed, self.learned)
        known = f"; it was tried {times} {'times' if times > 1 else 'time'} here" if times else ""
        return Candidate(
            rung=Rung.ROLL_BACK, remedy=remedy, cost_s=self.fleet.costs.all_s, again_s=self.fleet.costs.again_s, risk=1.0 - chance, failed_s=failed_s,
            because=f"{because}; a restart: {self.fleet.costs.rests_on}{known}",
        )  # fmt: skip

    def plan(self, remedy: Remedy, because: str, *, at_most: int | None = None) -> Plan:
        return Plan(rung=Rung.ROLL_BACK, remedy=remedy, because=because, at_most=self.diagnosis.sound if at_most is None else at_most)


_Weighed = tuple[Candidate, Plan | None]


def _case(
    diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, treatment: Treatment, learned: Learned | None
) -> _Case:  # fmt: skip
    place = place_of(diagnosis, treatment)
    around = next((one for one in joined((*treatment.left_out, place)) if one.first <= place.first <= one.last), place)
    flipped = diagnosis.cause is Cause.REPLICAS_DISAGREE
    near = 0 if flipped else _NEAR  # Replicas that were compared and alike in between did not go wrong in the same place, however close.
    first, last = around.first - near, around.last + near
    # What was tried against a flipped bit says nothing of bad data.
    alike = [one for one in history if one.remedy and (one.cause == Cause.REPLICAS_DISAGREE) == flipped]
    here = tuple(one for one in alike if one.place is not None and first <= one.place.last and one.place.first <= last)
    return _Case(diagnosis=diagnosis, place=place, here=here, fleet=fleet, policy=policy, treatment=treatment, learned=learned)


def _impossible(remedy: Remedy, because: str) -> _Weighed:
    return Candidate(rung=Rung.ROLL_BACK, remedy=remedy, possible=False, because=because), None


def _from_what_is_there(case: _Case, candidate: Candidate, plan: Plan | None) -> _Weighed:
    if plan is None or plan.at_most > case.fleet.none_before:
        return candidate, plan
    return _impossible(Remedy(candidate.remedy), f"no checkpoint from step {plan.at_most} or before is there")


# The remedies.


def _replay(case: _Case) -> _Weighed:
    fleet, cause, suspect = case.fleet, case.diagnosis.cause, case.fleet.blamed
    last = case.here[-1] if case.here else None
    followed = last is not None and last.remedy == Remedy.REPLAY and suspect and last.node == suspect and last.ranks != case.diagnosis.ranks
    steps = f"steps from {case.diagnosis.sound} on"
    if followed:
        return _without(case, suspect)
    chance, said, plan = _REPLAY[cause], f"{steps} are done again as they were: what comes again is of the data or the script, and what does not was not", None
    spare = next((name for name in fleet.spares if name not in fleet.avoided), "")
    others = [name for name in fleet.gang if name != suspect]
    if suspect in fleet.gang and (spare or others):
        chance = _ELSEWHERE[cause]
        other = spare or others[fleet.gang.index(suspect) % len(others)]
        swapped = {suspect: other, other: suspect}
        said = f"{steps} are done again, and {other} computes the ranks of {suspect}, which alone had it: if it does not come again, {suspect} is suspect"
        plan = replace(
            case.plan(Remedy.REPLAY, said), suspect=suspect, drop=(suspect,) if spare else (), take=(spare,) if spare else (),
            deal=() if spare else tuple(swapped.get(name, name) for name in fleet.gang),
        )  # fmt: skip
    failed_s = FAILED_S if cause is Cause.DIVERGED else fleet.costs.all_s  # Nothing is lost by it but the time.
    believed = chance * _AGAIN[cause] ** case.tried(Remedy.REPLAY)
    return case.candidate(Remedy.REPLAY, believed, said, failed_s=failed_s), plan or case.plan(Remedy.REPLAY, said)


def _without(case: _Case, node: str) -> _Weighed:
    """The fault came along with the node to other ranks."""
    fleet = case.fleet
    said = f"{node} had it again, as other ranks: the fault is the node's, and it is cordoned"
    if not fleet.spares and len(fleet.gang) - 1 < (fleet.least or fleet.whole):
        return _impossible(Remedy.REPLAY, f"{said}; no other node is there to go on with")
    plan = replace(case.plan(Remedy.REPLAY, said), suspect=node, drop=(node,), take=fleet.spares[:1], retire=node)
    return case.candidate(Remedy.REPLAY, 0.9, said), plan


def _skip(case: _Case) -> _Weighed:
    cause, policy, times = case.diagnosis.cause, case.policy, case.tried(Remedy.SKIP)
    if cause is Cause.REPLICAS_DISAGREE:
        return _impossible(Remedy.SKIP, "all replicas get the same gradients, whatever the data is")
    if cause is Cause.DIVERGED and policy.skip_batches is None:
        return _impossible(Remedy.SKIP, "a jump of the loss may have other causes than data, and --skip-batches does not give leave")
    window = case.place
    if times:
        around = next(one for one in joined((*case.treatment.left_out, window)) if one.first <= window.first <= one.last)
        window = Window(first=max(0, around.first - 2 ** (times - 1)), last=around.last + 2 ** (times - 1))
    treatment = replace(case.treatment, left_out=joined((*case.treatment.left_out, window)))
    most = SKIP_BATCHES if policy.skip_batches is None else policy.skip_batches
    if treatment.draws_left_out > most:
        steps = f"{treatment.draws_left_out} step{'s' if treatment.draws_left_out > 1 else ''}"
        return _impossible(Remedy.SKIP, f"the data of {steps} would be left out in all, and {most} may be (--skip-batches)")
    said = f"the data of {len(window)} {'steps' if len(window) > 1 else 'step'} is left out (draws {window}), the rest keeps its order"
    believed = 0.3 if cause is Cause.DIVERGED else 0.75 if case.tried(Remedy.REPLAY) else 0.4
    at_most = min(case.diagnosis.sound, case.treatment.step_of(window.first))
    return case.candidate(Remedy.SKIP, believed * 0.6**times, said), replace(case.plan(Remedy.SKIP, said, at_most=at_most), treatment=treatment)


def _change(case: _Case) -> _Weighed:
    cause, limits, now = case.diagnosis.cause, case.policy.may_change, case.treatment
    if cause is Cause.REPLICAS_DISAGREE:
        return _impossible(Remedy.CHANGE, "hyper-parameters are the same on all replicas")
    rate = max(limits.rate_min, now.rate / 2)
    changed = replace(now, rate=min(rate, now.rate), clip=limits.clip_min or now.clip)
    if changed == now and (now.warm_up or not limits.warm_up_max):
        return _impossible(Remedy.CHANGE, f"the limits of --may-change are reached ({limits})" if now.tunes else "--may-change gives no leave")
    if limits.warm_up_max:
        changed = replace(changed, warm_up=limits.warm_up_max, warm_up_from=max(0, case.diagnosis.sound))
    said = f"hyper-parameters are changed within their limits ({limits}): {replace(changed, left_out=())}"
    believed = 0.6 if case.tried(Remedy.SKIP) else _CHANGE[cause]
    return case.candidate(Remedy.CHANGE, believed * 0.7 ** case.tried(Remedy.CHANGE), said), replace(case.plan(Remedy.CHANGE, said), treatment=changed)


def _older(case: _Case) -> _Weighed:
    fleet, times = case.fleet, case.tried(Remedy.OLDER)
    if case.diagnosis.cause is Cause.REPLICAS_DISAGREE:
        return _impossible(Remedy.OLDER, "all replicas restored the same, whichever it was")
    if not case.here:
        return _impossible(Remedy.OLDER, "the newest checkpoint before it is as good as any, as far as is known")
    if not fleet.checkpoint and fleet.none_before >= 0:
        return _impossible(Remedy.OLDER, f"no checkpoint from step {fleet.none_before} or before is there")
    if not fleet.checkpoint or fleet.checkpoint_step <= 0:
        return _impossible(Remedy.OLDER, "nothing older is there: the gang had begun from nothing")
    said = f"{fleet.checkpoint} may have been on its way there already: an older one is restored"
    believed = 0.4 if case.tried(Remedy.REPLAY) and (case.tried(Remedy.SKIP) or case.tried(Remedy.CHANGE)) else 0.3
    plan = replace(case.plan(Remedy.OLDER, said, at_most=min(case.diagnosis.sound, fleet.checkpoint_step - 1)), distrust=fleet.checkpoint)
    return case.candidate(Remedy.OLDER, believed * 0.4**times, said), plan


def _stop(case: _Case, candidates: Sequence[Candidate]) -> Plan:
    tried = [f"{remedy} {n} time{'s' if n > 1 else ''}" for remedy in Remedy if (n := case.tried(remedy))]
    left = "; ".join(f"{one.name}: {one.because}" for one in candidates if not one.possible)
    done = f"was not mended by {', '.join(tried)}" if tried else "is not to be mended by what may be done"
    because = f"{case.diagnosis.because}. It {done}{f' ({left})' if left else ''}: training as it is set up is hopeless"
    return Plan(rung=Rung.STOP, permanent=True, because=because)


def _used_up(diagnosis: Diagnosis, history: Sequence[Attempt], policy: Policy) -> str:
    if policy.max_restarts is not None and len(history) >= policy.max_restarts:
        return f"all {policy.max_restarts} restarts are used up"
    row = 0
    for one in reversed(history):
        if one.progressed:
            break
        row += one.cause == diagnosis.cause
    return f"{diagnosis.cause} came {row + 1} times without progress; the limit is {policy.restarts_in_a_row}" if row >= policy.restarts_in_a_row else ""
