"""Delivery: one thread a sink takes what is due from the outbox, sends it, and writes down what came of it.

A sink that is slow, hangs or is gone holds up its own thread and nothing else: neither control, nor routing, nor the other sinks. It is tried again after
1, 2, 4, … seconds up to five minutes, with jitter, or when it says so itself. What it refuses for good is given up; so is what could not be delivered for
too long.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.outbox import Outbox, OutboxUnusable, Waiting
from holdfast.control.alerts.sinks import Sink
from holdfast.crashpoints import crash_point

PAUSE_S = 1.0
PAUSE_S_MAX = 300.0
AFTER_S_MAX = 3600.0  # However long a sink asks us to stay away.
_IDLE_S = 60.0  # A clock that is set may hide what is due; it is looked for again after this.


def pause_s(failures: int, share: float) -> float:
    """After so many failures in a row; `share` is from 0 to 1, by chance, so that many jobs do not come back at once."""
    return float(min(PAUSE_S_MAX, PAUSE_S * 2 ** min(failures - 1, 20)) * (0.5 + 0.5 * share))


class Sender:
    def __init__(self, sink: Sink, outbox: Outbox, *, note: Callable[[str], None], give_up_after_s: float) -> None:
        self.sink = sink
        self._outbox, self._note, self._give_up_after_s = outbox, note, give_up_after_s
        self._failures = 0  # In a row.
        self._not_before = 0.0  # By the monotonic clock.
        self._refused = False  # Its refusal was told of.
        self._hurrying = False
        self.tries_failed = 0
        self._wake, self._stop = threading.Event(), threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, name=f"holdfast-alerts-{self.sink.name}", daemon=True).start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def hurry(self) -> None:
        """The job has ended: what waits gets one try now, however the last one went."""
        self._hurrying, self._not_before = True, 0.0
        self._wake.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self._send_next()
            except OutboxUnusable as error:
                self._failed(str(error))
                wait_s = pause_s(self._failures, random.random())
            except Exception as error:  # The edge of a thread: nobody would notice that it is gone. Its words may hold a secret.
                self._failed(f"a {type(error).__name__} that nobody expected")
                wait_s = PAUSE_S_MAX
            if wait_s > 0:
                self._wake.wait(wait_s)
            self._wake.clear()

    def _send_next(self) -> float:
        """Seconds until there may be more to do."""
        now, name = time.time(), self.sink.name
        for dropped in self._outbox.drop_older(name, now - self._give_up_after_s, now):
            self._note(f"an alert for {name} is given up, it could not be delivered for too long: {dropped.said}")
        if (pause := self._not_before - time.monotonic()) > 0:
            return min(pause, _IDLE_S)
        one = self._outbox.take(name, now, longest_s=0.0 if self._hurrying else AFTER_S_MAX)
        if one is None:
            due = self._outbox.next_due(name)
            return _IDLE_S if due is None else min(max(0.05, due - now), _IDLE_S)
        answer = self._try(one, now)
        crash_point("alerts-delivered")
        self._record(one, answer)
        return 0.0

    def _try(self, one: Waiting, now: float) -> Answer:
        try:
            return self.sink.send(one.notification, now)
        except Exception as error:  # The edge of a thread: whatever it was, the next try may go well. Its words may hold a secret.
            return Answer(verdict=Verdict.LATER, said=f"failed with a {type(error).__name__} that nobody expected")

    def _record(self, one: Waiting, answer: Answer) -> None:
        now = time.time()
        match answer.verdict:
            case Verdict.LATER:
                self._failed(answer.said)
                wait_s = min(answer.after_s, AFTER_S_MAX) if answer.after_s is not None else 0.0
                wait_s = max(wait_s, pause_s(self._failures, random.random()))
                self._not_before = time.monotonic() + wait_s
                self._outbox.later(one, now + max(wait_s, pause_s(one.attempts + 1, random.random())), answer.said)
                self._hurrying = False
                self.tries_failed += 1
            case Verdict.REFUSED:
                if not self._refused:
                    self._note(f"{self.sink.name} refused an alert, which is given up: {answer.said}")
                self._refused = True
                self._outbox.done(one, answer.verdict, answer.said, now)
            case Verdict.DELIVERED:
                if self._failures or self._refused:
                    self._note(f"alerts reach {self.sink.name} again")
                self._failures, self._refused = 0, False
                self._outbox.done(one, answer.verdict, answer.said, now)

    def _failed(self, said: str) -> None:
        if not self._failures:
            self._note(f"alerts do not reach {self.sink.name}: {said}. Training goes on, and it is tried again")
        self._failures += 1
