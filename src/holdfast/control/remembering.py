"""Remembering: what happens in this job is written into the history of all jobs, beside everything else.

The loop notes what has changed; a thread writes it, a few times a minute. Where the history cannot be written that is said once, and the job runs on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.control.past import Past, PastUnusable
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobSpec
from holdfast.domain.past import PastIncident, PastRun, PastService
from holdfast.domain.state import NodeState, State
from holdfast.learn.needs import PHASES, TIMES
from holdfast.learn.remembering import past_of
from holdfast.wire.messages import Reading

WRITE_EVERY_S: Final = 5.0
COUNT_EVERY_S: Final = 60.0
DAY_S: Final = 86400.0
_TRIES: Final = 3
_NOT_LEARNED: Final = ("", "start", "step", "finish")  # The first step may compile; the others are not waited for.


class Remembering:
    def __init__(self, path: Path, job: str, say: Callable[[str], None], runs: Callable[[], Sequence[tuple[float, JobSpec]]]) -> None:
        """`runs`: when each run of the job began, and how it was to be run; asked for once, when this one has begun."""
        self._past, self._job, self._say, self._tell_runs = Past(path), job, say, runs
        self._runs: Sequence[tuple[float, JobSpec]] = ()
        self._thread: threading.Thread | None = None
        self._failed = ""
        self._said = False
        self._seen: dict[int, Incident] = {}
        self._changed: dict[int, PastIncident] = {}
        self._began_at: float | None = None
        self._looked_at = 0.0
        self._counted_at = 0.0
        self._written_at = 0.0
        self._service: dict[tuple[str, int], float] = {}
        self._in_phase: dict[int, tuple[str, float]] = {}
        self._phases: dict[str, list[float]] = {}
        self._peak_bytes = 0

    def look(self, state: State, ranks: Mapping[int, Reading], connected: Collection[str], now: float) -> None:
        """A few times a second; cheap while nothing has changed."""
        if self._began_at is None:
            self._began_at = self._looked_at = self._counted_at = now
        self._note_incidents(state)
        self._note_service(state, connected, now)
        for reading in ranks.values():
            self._note_rank(reading)
        if self._failed and not self._said:
            self._said = True
            self._say(f"{self._failed}. The job does not need it")
        if now - self._written_at >= WRITE_EVERY_S and (self._changed or now - self._counted_at >= COUNT_EVERY_S):
            self._write(state, now)

    def finish(self, state: State, now: float, *, within_s: float) -> None:
        """The last words; waited for a moment and no longer."""
        self._note_incidents(state)
        if self._thread is not None:
            self._thread.join(within_s)
        self._write(state, now, prune=True)
        if self._thread is not None:
            self._thread.join(within_s)

    def _note_incidents(self, state: State) -> None:
        self._runs = self._runs or self._tell_runs()
        for incident in state.incidents[-200:]:  # Older ones do not change any more.
            if self._seen.get(incident.id) is not incident:
                self._seen[incident.id] = incident
                self._changed[incident.id] = past_of(self._job, incident, self._runs)

    def _note_service(self, state: State, connected: Collection[str], now: float) -> None:
        for name, node in state.nodes.items():
            if node.state is NodeState.READY and name in connected:
                key = (name, int(now // DAY_S))
                self._service[key] = self._service.get(key, 0.0) + max(0.0, now - self._looked_at)
        self._looked_at = max(now, self._looked_at)

    def _note_rank(self, reading: Reading) -> None:
        self._peak_bytes = max(self._peak_bytes, reading.memory_bytes)
        phase, lasted_s = self._in_phase.get(reading.rank, ("", 0.0))
        if phase == reading.phase and reading.phase_s >= lasted_s:
            self._in_phase[reading.rank] = (phase, reading.phase_s)
            return
        if phase not in _NOT_LEARNED and lasted_s > 0.0 and (phase in self._phases or len(self._phases) < PHASES):
            self._phases[phase] = sorted([*self._phases.get(phase, ()), lasted_s])[-TIMES:]
        self._in_phase[reading.rank] = (reading.phase, reading.phase_s)

    def _write(self, state: State, now: float, *, prune: bool = False) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        changed, self._changed = self._changed, {}
        self._written_at = self._counted_at = now
        run = f"{state.spec.run if state.spec is not None else ''}@{self._began_at or now:.0f}"  # A control that was restarted counts anew.
        learns = state.spec is not None and not state.spec.chaos  # Of what was done on purpose only the story is kept.
        service = [PastService(node=node, run=run, day=day, seconds=seconds) for (node, day), seconds in self._service.items()] if learns else []
        runs = [self._run(state, run, now)] if learns else []

        def write() -> None:
            for tried in range(_TRIES):
                try:
                    self._past.keep(incidents=tuple(changed.values()), service=service, runs=runs)
                    if prune:
                        self._past.prune(now)
                except PastUnusable as error:
                    if error.moved or tried == _TRIES - 1:
                        self._failed = str(error)
                    time.sleep(0.05 * (tried + 1))
                else:
                    break
            if prune:
                self._past.close()

        # A daemon: at the end nobody waits for a disk that does not answer.
        self._thread = threading.Thread(target=write, name="past", daemon=True)
        self._thread.start()

    def _run(self, state: State, run: str, now: float) -> PastRun:
        assert state.spec is not None
        ended = state.outcome is not None
        return PastRun(
            job=self._job, run=run, command=Path(state.spec.argv[0]).name if state.spec.argv else "", shape=state.spec.shape,
            started_at=self._began_at or now, ended_at=now if ended else None, outcome=state.outcome or "", goodput=state.ledger.goodput,
            peak_bytes=self._peak_bytes, phases=tuple((phase, tuple(times)) for phase, times in sorted(self._phases.items())),
        )  # fmt: skip
