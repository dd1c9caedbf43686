"""Restoring: the checkpoint that every rank of a new gang restores was found, or none was.

    found ─► too new, or no older than what gave a loss that is not finite: passed over, and the next one is looked for │ else the gang starts with it
    none ─► the job begins │ an older one was the remedy: it is decided anew without it │ all that was trained would be thrown away: the end
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.base import PERMANENT_CODE
from holdfast.core.deciding import Deciding
from holdfast.domain.diagnosis import TRAINING, Cause
from holdfast.domain.event import EffectDone
from holdfast.domain.incident import IncidentPhase
from holdfast.domain.job import Outcome
from holdfast.domain.plan import Plan, Remedy, Rung
from holdfast.domain.state import Gang


class Restoring(Deciding):
    __slots__ = ()

    def _checkpoint_found(self, gang: Gang, found: EffectDone) -> None:
        """After a poisoned checkpoint only an older one will do: what is no older was saved by the gang that restored it, and holds the same NaN."""
        state = self.state
        last = state.attempts[-1] if state.attempts else None
        if found.checkpoint and last is not None and last.cause == Cause.POISONED_CHECKPOINT and found.checkpoint_step >= last.step:
            state.distrusted = (*state.distrusted, found.checkpoint)
            incident = self._open_incident()
            if incident is not None:
                self._keep(incident.tell(state.at, f"{found.checkpoint} is passed over: it is no older than what gave a loss that is not finite"))
            self._find_checkpoint()
        elif found.checkpoint and 0 <= state.at_most < found.checkpoint_step:
            state.distrusted = (*state.distrusted, found.checkpoint)  # It was saved when training had gone wrong already, or as it went.
            self._find_checkpoint()
        elif not found.checkpoint and state.trial is not None and state.trial.remedy == Remedy.OLDER and self._is_too_late_to_begin_anew():
            self._decide_without_older()
        elif not found.checkpoint and (state.poisoned or self._is_too_late_to_begin_anew()):
            self._nothing_to_go_back_to()
        else:
            state.at_most, state.saved_step = -1, max(state.saved_step, found.checkpoint_step)
            gang.restore, gang.restore_step, gang.sources = found.checkpoint, found.checkpoint_step, found.sources
            if not found.checkpoint:
                state.none_before = -1  # What is saved from here on may be from before that step.
                self._end_kept(gang)
            self._start_if_ready()

    def _end_kept(self, gang: Gang) -> None:
        """They were kept to go back to a checkpoint, and none is left: what they hold is not what a start from nothing begins with."""
        for node in self._standing(gang):
            if any(rank in gang.kept for rank in self._ranks_on(gang, node)):
                self._stop_on(node, gang.kept_of, graceful=False, because="no checkpoint is left for those who lived on to go back to")
        gang.kept, gang.moved = (), {}

    def _is_too_late_to_begin_anew(self) -> bool:
        state = self.state
        return state.at_most >= 0 and state.saved_step >= 0 and (state.trial is None or not state.trial.anew)

    def _decide_without_older(self) -> None:
        """What was to be restored is not there, and nothing was done yet. Now it is known, and the next remedy is weighed."""
        state, incident, trial = self.state, self._open_incident(), self.state.trial
        assert incident is not None and trial is not None
        state.none_before, state.distrusted = max(state.none_before, state.at_most), trial.distrusted
        state.trial, state.at_most = None, -1
        state.attempts.remove(next(one for one in reversed(state.attempts) if one.remedy == Remedy.OLDER))
        diagnosis = next(one for one in reversed(incident.diagnoses) if one.cause in TRAINING)
        incident = incident.move(IncidentPhase.STOPPING, at=state.at, because=f"no checkpoint from step {state.none_before} or before is there")
        plan = self._decide(diagnosis)
        self._note_attempt(diagnosis, plan)
        self._keep(replace(incident, plans=(*incident.plans, plan)))
        self._act(plan, diagnosis)

    def _nothing_to_go_back_to(self) -> None:
        """Starting from scratch would throw away all that was trained, most likely to come to the same place again."""
        names, step, incident = ", ".join(self.state.poisoned), self.state.at_most, self._open_incident()
        why = f"{names} gave a loss that is not finite as soon as restored" if names else f"none is from step {step} or before, when training was still right"
        because = (
            f"no checkpoint is left to go back to: {why}. The data or the code at that step is a likelier "
            "cause than a checkpoint, and nothing is started from scratch: mend it and resume, or run it under another name"
        )
        if incident is not None and incident.plans:
            self._keep(replace(incident, plans=(*incident.plans, Plan(rung=Rung.STOP, permanent=True, because=because))))
        self._end(Outcome.PERMANENT, PERMANENT_CODE, because)
