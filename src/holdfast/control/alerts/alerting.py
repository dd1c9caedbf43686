"""Alerts: what control holds of all this. It shows what it knows, now and then; the rest happens in threads of our own.

    control ── see ─► [incidents that changed] ─► router thread ─► outbox (synced) ─► a sender thread each sink ─► the world
            ◄─ notes ─────────────────────────────────┴──────────────────────────────────┘

Nothing here waits for a disk or a network in control's own thread. What control shows is what its journal holds, so whatever was not written down here when it
died is shown again when it is back.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.control.alerts.delivery import Sender
from holdfast.control.alerts.outbox import Outbox, OutboxUnusable
from holdfast.control.alerts.reading import Configuration
from holdfast.control.alerts.routing import Memory, Router
from holdfast.control.alerts.telling import BAD_ENDS, Seen, alerts_of
from holdfast.crashpoints import crash_point
from holdfast.detect.rules.rule import Rule
from holdfast.domain.alert import Alert, AlertStatus
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import Outcome
from holdfast.domain.state import State

_LOOK_EVERY_S = 0.25  # While something fires or waits.
_BROKEN_S = 5.0  # Between two tries to write to an outbox that cannot be written.


class Alerts:
    def __init__(self, path: Path, job: str, configuration: Configuration, rules: Iterable[Rule], *, incidents: Sequence[Incident]) -> None:
        """`incidents`: those the job has had. They are history where there was no outbox before, unless they are open."""
        self._job, self._rules = job, {rule.kind: rule for rule in rules}
        self._outbox = Outbox(path)
        self._saved = self._outbox.memory() or msgspec.json.encode(Memory(instance=secrets.token_hex(6), known=len(incidents)))
        self._router = Router(job, configuration.routes, self._remembered())
        if self._router.memory.known > len(incidents):
            self._begin_anew(len(incidents))
        self._saved = msgspec.json.encode(self._router.memory)
        self._outbox.commit(self._saved, [], time.time())  # From here on it is known what is history, whatever happens next.
        self._senders = [
            Sender(sink, self._outbox, note=self._note, give_up_after_s=configuration.give_up_after_s) for sink in configuration.sinks.values()
        ]  # fmt: skip
        self._next = min(self._router.memory.known, len(incidents))
        firing = {alert.incident for alert in self._router.memory.alerts.values() if alert.fires}
        self._followed = {one.id for one in incidents[: self._next] if one.is_open or one.id in firing}
        self._shown: dict[int, Incident] = {}  # As they were last shown, of those followed.
        self._ended: Outcome | None = None
        self._first = True
        self._lock = threading.Lock()
        self._unwritten: dict[int, Incident] = {}
        self._seen = Seen(at=0.0, incidents=())
        self._notes: list[str] = []
        self._wake, self._stop, self._settled = threading.Event(), threading.Event(), threading.Event()
        self._hurrying = self._broken = False

    def _begin_anew(self, incidents: int) -> None:
        """The journal is another one: what fired by the old one is over, and incidents of the same number are others."""
        memory, now = self._router.memory, time.time()
        self._router.take([replace(alert, status=AlertStatus.RESOLVED, ends_at=now) for alert in memory.alerts.values() if alert.fires])
        memory.instance, memory.known = secrets.token_hex(6), incidents

    def start(self) -> None:
        threading.Thread(target=self._work, name="holdfast-alerts", daemon=True).start()
        for sender in self._senders:
            sender.start()

    def see(self, state: State, now: float) -> None:
        """Called whenever events were journalled. Costs a look at what is open; incidents are frozen, so they may be handed to another thread as they are."""
        found = [*(state.incidents[number - 1] for number in sorted(self._followed)), *state.incidents[self._next :]]
        changed = {incident.id: incident for incident in found if self._shown.get(incident.id) is not incident}
        ends = self._first or state.outcome is not self._ended  # Or begins again: it changes how what it ended on stands.
        self._next, self._ended, self._first = len(state.incidents), state.outcome, False
        if not changed and not ends:
            return
        badly = state.outcome in BAD_ENDS
        followed = [one for one in found if one.is_open or (badly and one.phase is IncidentPhase.GAVE_UP)]
        untold = badly and not any(one.phase is IncidentPhase.GAVE_UP for one in followed)
        self._followed, self._shown = {one.id for one in followed}, {one.id: one for one in followed}
        with self._lock:
            self._unwritten.update({incident.id: incident for incident in (found if ends else changed.values())})
            self._seen = Seen(at=now, incidents=(), outcome=state.outcome, because=state.because, end_untold=untold)
        self._wake.set()

    def notes(self) -> list[str]:
        """What a person should hear, each once."""
        with self._lock:
            said, self._notes = self._notes, []
        return said

    def hurry(self) -> None:
        """The job has ended: nothing waits for company any more."""
        self._hurrying = True
        self._wake.set()
        for sender in self._senders:
            sender.hurry()

    async def finish(self, *, within_s: float) -> None:
        """Wait until all has been sent, or was tried and failed; say what remains."""
        failed_before = {sender.sink.name: sender.tries_failed for sender in self._senders}
        self.hurry()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            if self._settled.is_set() and not await asyncio.to_thread(self._in_hope, failed_before):
                break
        for sender in self._senders:
            sender.stop()
        self._stop.set()
        self._wake.set()
        left = await asyncio.to_thread(self._outbox.waiting)
        if left:
            what = f"{len(left)} notification{'s' if len(left) > 1 else ''} for {', '.join(sorted({one.notification.sink for one in left}))}"
            self._note(f"{what} could not be delivered yet; `holdfast alerts send {self._job}` or the next run sends what is left")

    def _in_hope(self, failed_before: dict[str, int]) -> bool:
        """Whether something waits for a sink that has not failed since the end began."""
        waited_for = {one.notification.sink for one in self._outbox.waiting()}
        return any(sender.sink.name in waited_for and sender.tries_failed == failed_before[sender.sink.name] for sender in self._senders)

    # The router's thread.

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self._look(time.time())
            except Exception as error:  # The edge of a thread: nobody would notice that it is gone.
                self._trouble(f"alerts failed with a {type(error).__name__} that nobody expected: {error}")
                wait_s = _BROKEN_S
            self._wake.wait(wait_s)
            self._wake.clear()

    def _look(self, now: float) -> float | None:
        """Route what changed, and write it down. Seconds until the next look; None when there is nothing to look at."""
        hurrying = self._hurrying
        with self._lock:
            unwritten, seen = dict(self._unwritten), self._seen
        if seen.at:
            self._router.take(self._alerts(replace(seen, incidents=tuple(unwritten.values()))))
        try:
            notifications = self._router.look(now, self._outbox.silences(now), hurry=hurrying)
            memory = msgspec.json.encode(self._router.memory)
            if memory != self._saved or notifications:
                for dropped in self._outbox.commit(memory, notifications, now):
                    self._note(f"an alert for {dropped.sink} is given up: {dropped.said}")
                crash_point("alerts-queued")
        except OutboxUnusable as error:
            self._trouble(str(error))
            return _BROKEN_S
        self._saved, self._broken = memory, False
        with self._lock:
            for number, incident in unwritten.items():
                if self._unwritten.get(number) is incident:
                    del self._unwritten[number]
        for sink in {one.sink for one in notifications}:
            next(sender for sender in self._senders if sender.sink.name == sink).wake()
        if hurrying and not self._unwritten:
            self._settled.set()
        return _LOOK_EVERY_S if self._router.memory.alerts or self._router.memory.groups else None

    def _trouble(self, said: str) -> None:
        if not self._broken:
            self._note(f"{said}. Training goes on, and it is tried again")
        self._broken = True
        self._router.memory = self._remembered()  # What was not written down was not decided.
        self._settled.set()

    def _alerts(self, seen: Seen) -> list[Alert]:
        memory = self._router.memory
        made = alerts_of(seen, self._job, memory.instance, self._rules)
        end, known = made[-1], memory.alerts.get(made[-1].fingerprint)
        if known is None:
            return made if end.fires else made[:-1]
        return [*made[:-1], replace(end, starts_at=known.starts_at)]

    def _remembered(self) -> Memory:
        try:
            return msgspec.json.decode(self._saved, type=Memory)
        except msgspec.MsgspecError as error:
            raise OutboxUnusable(f"the outbox of alerts {self._outbox.path} cannot be understood ({error}): move it away, and a new one is made") from error

    def _note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)
