"""One of our own jobs: what its journal says comes first, and its logs say more about it.

    beside_of(state) -> Beside                  what to put beside the logs
    by_journal(judged, state, …) -> LogDiagnosis   the answer, as far as the journal decides it

A job that finished is healthy, unless the same cause stopped it again and again: then that is named. A job that failed has the cause the journal names, and the
logs choose among the classes that may stand behind it.

Is wrong    where the core named a cause wrongly, since the logs cannot say otherwise; where somebody ended a job through its scheduler, which looks like any
            other stop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from holdfast.diagnose.causes import Beside
from holdfast.diagnose.reading.masking import without_secrets
from holdfast.diagnose.taxonomy import HEALTHY, UNKNOWN, Permanence, Scope, class_of
from holdfast.domain.diagnosis import Cause
from holdfast.domain.incident import Incident
from holdfast.domain.job import Outcome
from holdfast.domain.log_diagnosis import LogDiagnosis, Quote
from holdfast.domain.state import State
from holdfast.domain.surroundings import differences

_AGAIN_AND_AGAIN = 3  # So often stopped by one cause, a job is not called healthy although it came to its end.
_SURE = 0.99  # The journal saw it.
_TIME_IS_OVER_CODE = 124


def beside_of(state: State) -> Beside:
    """What the journal knows of the incident that counts."""
    incident = _that_counts(state)
    changed = differences(state.worked_with, state.started_with)
    if incident is None:
        return Beside(changed=changed)
    own = [one for one in incident.exits if not one.stopped_by_us]
    return Beside(
        exit_codes=tuple((one.rank, -one.signal if one.signal else one.code or 0) for one in own), findings=incident.findings,
        seen_as=incident.diagnoses[-1].cause, named=next((one.never_passes for one in reversed(own) if one.never_passes), ""), changed=changed,
    )  # fmt: skip


def by_journal(judged: LogDiagnosis, state: State, *, job: str, runs: bool) -> LogDiagnosis:
    """`judged` is what the logs say with `beside_of` next to them; `runs`: somebody runs the job now."""
    incident, on_the_way = _that_counts(state), _on_the_way(state)
    match state.outcome:
        case Outcome.STOPPED:
            cause = "time_limit" if state.code == _TIME_IS_OVER_CODE else "user_cancelled"
            return _plain(judged, cause, f"The job was stopped as it was asked to: {state.because}.{on_the_way}", f"`holdfast resume {job}` goes on.")
        case None if not runs:
            said = f"I cannot tell: the launcher of the job is gone, and nobody wrote down why.{on_the_way}"
            return _plain(judged, UNKNOWN, said, f"`holdfast resume {job}` goes on from its newest checkpoint; `dmesg` may say who killed it.")
        case Outcome.FINISHED:
            finished = f"The job finished: {state.because}.{on_the_way}"
            return _plain(judged, HEALTHY, finished, class_of(HEALTHY).action) if incident is None else _named(judged, incident, finished)
        case None:
            runs_on = f"The job runs.{on_the_way}"
            return replace(judged, because=f"{runs_on} {judged.because}") if incident is None else _named(judged, incident, runs_on)
        case _ if incident is None:
            return replace(judged, because=f"The job ended: {without_secrets(state.because)}. {judged.because}")
    named = _named(judged, incident, class_of(judged.cause).definition)
    if state.outcome is not Outcome.PERMANENT:
        return named
    return replace(named, permanence=str(Permanence.PERMANENT), action=class_of(named.cause).advice(Permanence.PERMANENT))


def _named(judged: LogDiagnosis, incident: Incident, head: str) -> LogDiagnosis:
    """With the words of the journal."""
    told = without_secrets(incident.diagnoses[-1].because)
    quote = Quote(path=f"incident {incident.id}", line=0, text=told, says="the journal")
    return replace(judged, because=f"{head} {told[:1].upper()}{told[1:].rstrip('.')}.", evidence=(quote, *judged.evidence))


def _that_counts(state: State) -> Incident | None:
    """The incident that is to be explained: the one a job failed on or is stopped by now; of a job that came to its end, or runs, one that keeps coming."""
    diagnosed = _that_stopped(state)
    if not diagnosed:
        return None
    last = diagnosed[-1]
    if state.outcome in (Outcome.FAILED, Outcome.PERMANENT, Outcome.BROKEN) or last.is_open:
        return last
    causes = [one.diagnoses[-1].cause for one in diagnosed]
    often, times = Counter(causes).most_common(1)[0]
    return next(one for one in reversed(diagnosed) if one.diagnoses[-1].cause is often) if times >= _AGAIN_AND_AGAIN else None


def _that_stopped(state: State) -> list[Incident]:
    return [one for one in state.incidents if one.diagnoses and not one.stands]


def _on_the_way(state: State) -> str:
    """How often it was stopped before, and by what."""
    times: Counter[Cause] = Counter(one.diagnoses[-1].cause for one in _that_stopped(state))
    if not times:
        return ""
    told = ", ".join(f"{cause.replace('_', ' ')} {_times(count)}" for cause, count in times.most_common())
    return f" {'One incident' if times.total() == 1 else f'{times.total()} incidents'} stopped it on the way: {told}."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _plain(judged: LogDiagnosis, cause: str, because: str, action: str) -> LogDiagnosis:
    """What the journal decides without the logs."""
    known = class_of(cause)
    return replace(
        judged, cause=cause, permanence=str(known.permanence), scope=str(Scope.NONE), confidence=_SURE, because=because, action=action, alternatives=(),
        evidence=(), ranks=(), node="", reasoning=(*judged.reasoning, "the journal of the job decides"),
    )  # fmt: skip
