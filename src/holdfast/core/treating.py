"""Treating: training that went wrong while everything runs. Which findings the gang is stopped for, and what comes of a remedy. The core asks here; works on
the core's state, which has one owner still. What is tried is for `recover/treating.py`.

    found ─► the gang is stopped ─► a plan ─► restored from before it, with something otherwise ─► beyond the place, and nothing found ─► the trial has passed
                                       ▲                                                        └─► the same again: the next remedy
                                       └──────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.core import checks, standing, verifying
from holdfast.domain.diagnosis import Diagnosis
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.job import MayChange
from holdfast.domain.plan import Plan, Remedy, Rung
from holdfast.domain.state import Attempt, State, Trial
from holdfast.domain.treatment import Treatment
from holdfast.recover.treating import place_of

DEADLINE: Final = "trial"
ALWAYS: Final = ("not_finite", "replicas_disagree")
ON_REQUEST: Final = ("loss_jump",)  # It may be meant: only where the user gave leave for something that may help.
_BEYOND: Final = 3  # Steps, as many as it takes to be found.
_ANEW_S: Final = 600.0  # A gang that began from nothing so lately begins from nothing again, where none of its checkpoints is from before it went wrong.


def breaks(state: State, finding: Finding) -> bool:
    """Whether the gang is stopped for it."""
    spec = state.spec
    assert spec is not None
    if finding.kind not in (*ALWAYS, *ON_REQUEST):
        return finding.breaks
    if finding.kind == "not_finite" and finding.sound < 0 and state.trial is None:
        return False  # Some scripts say NaN where they have no loss. One that never was finite has not gone wrong.
    leave = finding.kind in ALWAYS or spec.policy.may_change != MayChange() or spec.policy.skip_batches is not None
    return leave and finding.step >= 0 and Rung.ROLL_BACK.name.lower() not in spec.policy.never


def is_of_trial(state: State, finding: Finding) -> bool:
    """Whether what is found of a restored checkpoint is what the trial is about: who had it first is found in a moment, and says more."""
    gang, trial = state.gang, state.trial
    return finding.kind == "poisoned_checkpoint" and gang is not None and trial is not None and gang.restore_step + 2 * _BEYOND >= trial.step


def attempt(state: State, made: Attempt, diagnosis: Diagnosis, plan: Plan) -> Attempt:
    """With what was tried, and where."""
    if plan.rung is not Rung.ROLL_BACK:
        return made
    return replace(made, rung=plan.rung, remedy=plan.remedy, place=place_of(diagnosis, state.treatment), ranks=diagnosis.ranks, node=plan.suspect)


def begin(state: State, plan: Plan, diagnosis: Diagnosis, incident: int) -> None:
    """The plan is carried out."""
    gang, place = state.gang, place_of(diagnosis, state.treatment)
    assert gang is not None
    state.treatment = plan.treatment or state.treatment
    state.at_most, state.deal = plan.at_most, plan.deal
    anew = not gang.restore and state.at - gang.started_at <= _ANEW_S
    step = state.treatment.step_of(place.last + 1)
    state.trial = Trial(incident=incident, remedy=plan.remedy, step=step + _BEYOND, suspect=plan.suspect, distrusted=state.distrusted, anew=anew)
    if plan.retire:
        state.cordoned.setdefault(plan.retire, f"it computes wrongly: {plan.because}; {diagnosis.because}")
        _accuse(state, incident, plan.retire, plan.because)


def watch(state: State) -> None:
    """The gang has gone on: once it is beyond the place, the rest is a matter of time."""
    trial, spec = state.trial, state.spec
    assert spec is not None
    if trial is not None and state.step >= trial.step:
        state.deadlines.setdefault(DEADLINE, state.at + spec.policy.trial_s)


def passed(state: State) -> None:
    """Nothing was found: the remedy has helped. A replay that was right elsewhere accuses the node."""
    trial, state.trial = state.trial, None
    if trial is None or state.step < trial.step:  # A job may end before it comes to the place.
        return
    said = f"{trial.remedy} helped: training went beyond the place, and nothing was found"
    if trial.remedy == Remedy.REPLAY and not trial.suspect:
        said = "the same steps were right when they were done again: neither the data nor the script was to blame, and who was is not known"
    elif trial.remedy == Remedy.REPLAY:
        said = f"the same steps were right when another node computed the ranks of {trial.suspect}, which is suspect"
        _accuse(state, trial.incident, trial.suspect, said)
        state.avoided = tuple(dict.fromkeys((*state.avoided, trial.suspect)))
        if trial.suspect not in state.checks:  # Else it was left for a spare, and is being checked already.
            checks.suspect(state, trial.suspect, said)
        standing.found(state, Finding(kind="suspect_node", node=trial.suspect, since=state.at, severity=Severity.WARNING, because=said))
    verifying.prove(state, state.incidents[trial.incident - 1], said)


def _accuse(state: State, number: int, node: str, because: str) -> None:
    """The incident is put down to the node, which its reputation counts."""
    incident = state.incidents[number - 1]
    last = replace(incident.diagnoses[-1], node=node, because=f"{incident.diagnoses[-1].because}; {because}")
    state.keep(replace(incident, diagnoses=(*incident.diagnoses[:-1], last)))


def undone(state: State) -> Treatment:
    """What is left when training is to be as the script says again. Data that was passed over is behind: only what lies ahead can be used after all."""
    draw = state.treatment.draw_of(max(0, state.step))
    return Treatment(left_out=tuple(window for window in state.treatment.left_out if window.first < draw))

