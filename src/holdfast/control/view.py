"""A view: the state of a job and the newest readings, folded into what a person looks at."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.control.memory import Memory
from holdfast.control.observer import Observer
from holdfast.core.membership import out_of_service
from holdfast.diagnose.together import in_words, leading
from holdfast.domain.event import IntervalChosen
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase
from holdfast.domain.profile import Profile
from holdfast.domain.signal import Signal
from holdfast.domain.state import State
from holdfast.wire.messages import IncidentView, NodeView, ProfileView, SavingView, Staged, View

_INCIDENTS_SHOWN = 50


def view_of(state: State, observer: Observer, memory: Memory, connected: Collection[str], now: float) -> View:
    ranks = tuple(reading for _, reading in sorted(observer.ranks.items()))
    held = memory.newest()
    gang = state.gang.nodes if state.gang is not None else ()
    ledger = state.ledger if state.outcome is not None else state.ledger.up_to(now)
    saved = min((rank.saved_step for rank in ranks), default=-1) if len(ranks) == state.world_size else -1
    return View(
        job=state.spec.job if state.spec else "", at=now, phase=state.phase, because=state.because, generation=state.generation,
        world_size=state.world_size, outcome=state.outcome or "", code=state.code,
        step=min((rank.step for rank in ranks), default=state.step), steps_total=max((rank.steps_total for rank in ranks), default=0),
        steps_per_s=observer.steps_per_s, loss=next((rank.loss for rank in ranks if rank.loss is not None), None), saved_step=max(state.saved_step, saved),
        held_step=held.step if held is not None else -1, saving=_saving(state.interval) if state.interval is not None else None,
        goodput=ledger.goodput, wall_s=ledger.wall_s, buckets={bucket.value: seconds for bucket, seconds in ledger.totals().items()},
        nodes=tuple(
            NodeView(
                name=name, state=node.state, role="gang" if name in gang else "spare", connected=name in connected,
                service=out_of_service(state, name) or _staging(observer.staged.get(name)),
            )
            for name, node in sorted(state.nodes.items())
        ),
        ranks=ranks, incidents=tuple(_incident(incident, now) for incident in state.incidents[-_INCIDENTS_SHOWN:]),
        profile=_profile(state.profiles[-1]) if state.profiles else None,
    )  # fmt: skip


def job_signals(view: View, state: State, *, saved_at: float, cycle_s: float) -> list[Signal]:
    """The same as signals of the job as a whole. `saved_at` is when the newest checkpoint became durable, or the first step was seen."""
    found = [
        Signal("job_generation", view.generation), Signal("checkpoint_step", view.saved_step),
        Signal("job_incidents_open", sum(incident.is_open for incident in state.incidents)), Signal("job_restarts_total", max(0, view.generation - 1)),
        Signal("findings_total", sum(len(incident.findings) for incident in state.incidents)),
    ]  # fmt: skip
    found.append(Signal("control_cycle_seconds", cycle_s))
    if view.goodput is not None:
        found.append(Signal("job_goodput_ratio", view.goodput))
    if saved_at and view.phase == JobPhase.RUNNING:
        found.append(Signal("checkpoint_age_seconds", view.at - saved_at))
        if state.interval is not None:
            found.append(Signal("checkpoint_interval_seconds", state.interval.interval_s))
    if view.steps_total > 0 and view.step >= 0:
        found.append(Signal("job_progress_ratio", view.step / view.steps_total))
        if view.steps_per_s:
            found.append(Signal("job_eta_seconds", max(0, view.steps_total - view.step) / view.steps_per_s))
    return found


def _staging(staged: Staged | None) -> str:
    if staged is None or (not staged.error and staged.done_bytes >= staged.total_bytes):
        return ""
    return "cannot stage" if staged.error else f"staging, {staged.done_bytes / staged.total_bytes:.0%}"


def _saving(chosen: IntervalChosen) -> SavingView:
    return SavingView(
        every=chosen.every, interval_s=chosen.interval_s, from_step=chosen.from_step, automatic=chosen.automatic, because=chosen.because,
        overhead=chosen.overhead,
    )  # fmt: skip


def _profile(profile: Profile) -> ProfileView:
    come = {one.rank for one in profile.ranks} | {int(rank) for rank in profile.missing}
    waits_for = tuple(sorted({*profile.slow, *profile.beside} - come)) if profile.ended_at is None else ()
    return ProfileView(number=profile.number, slow=profile.slow, beside=profile.beside, waits_for=waits_for, ended=profile.ended_at is not None)


def _incident(incident: Incident, now: float) -> IncidentView:
    diagnosis = incident.diagnoses[-1] if incident.diagnoses else None
    first = leading(incident.findings)
    return IncidentView(
        id=incident.id, at=incident.opened_at, phase=incident.phase, cause=diagnosis.cause if diagnosis else first.kind if incident.stands else "",
        because=diagnosis.because if diagnosis else in_words(incident.findings), stands=incident.stands,
        rung=incident.plans[-1].name if incident.plans else "", seconds=(incident.closed_at or now) - incident.began_at,
    )  # fmt: skip
