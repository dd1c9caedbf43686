"""The runner: every probe in a thread of its own, so that one that hangs or fails takes nothing with it.

    runner = Runner(probes, node="node-3")
    runner.start()
    seen = runner.take()       # at any time, from any thread, without waiting: what was seen since the last call

A look that does not end in time is a finding, `hung_probe`, said once; its thread is left alone, because one that waits for a device cannot be ended, and no
second one is started in its place. When the look ends after all, so does the finding. A probe that raises is a finding, `failed_probe`, said once, and is tried
again, later each time.

Is wrong    about a whole machine that stands still: then nobody calls `take`, and nobody is told.
Costs       a thread for each probe, and 30 µs for each look. A probe that uses more than its share of a core is looked through less often.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.domain.finding import Finding, Severity
from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.probe import Probe, Seen

FAILED_RETRY_MAX_S: Final = 300.0
CPU_SHARE_MAX: Final = 0.002  # Of a core, for one probe: five that use all of it make up the 1 % that watching may cost.
_USUAL_LOOKS: Final = 8
_STRETCH_MAX: Final = 10.0  # Yet never less often than a tenth of what was asked for.
_EVENTS_MAX: Final = 1000  # Of one probe between two calls of `take`; the newest are kept.
_JOIN_S: Final = 1.0


class Ended(NamedTuple):
    """A finding is so no longer."""

    key: str  # `Finding.key`.
    because: str


class Taken(NamedTuple):
    signals: list[Signal]  # The newest reading of each probe that looked since the last call: no series twice.
    events: list[KernelEvent]
    findings: list[Finding]
    ended: list[Ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a probe has used so far."""

    looks: int
    cpu_s: float
    slowest_s: float


class Runner:
    def __init__(self, probes: Iterable[Probe], node: str = "", monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._closing = threading.Event()
        self._monotonic = monotonic
        self._lanes = [_Lane(probe, node, self._closing, monotonic, wall) for probe in probes]
        names = [lane.probe.name for lane in self._lanes]
        assert len(names) == len(set(names)), f"two probes have one name: {sorted(names)}"

    def start(self) -> None:
        for number, lane in enumerate(self._lanes):
            # Not all in the same moment: a burst would be in the way of whoever trains here.
            lane.start(delay_s=number / len(self._lanes) * min(1.0, lane.probe.every_s))

    def take(self) -> Taken:
        taken = Taken([], [], [], [])
        now = self._monotonic()
        for lane in self._lanes:
            lane.take(now, taken)
        slowest_s = max((s for lane in self._lanes if (s := lane.took_s(now)) is not None), default=None)
        if slowest_s is not None:
            taken.signals.append(Signal("probe_seconds", slowest_s))
            taken.signals.append(Signal("probe_timeouts_total", float(sum(lane.timeouts for lane in self._lanes))))
        return taken

    def costs(self) -> dict[str, Cost]:
        return {lane.probe.name: lane.cost for lane in self._lanes}

    def close(self) -> None:
        """No look begins any more. Looks that hang are left to themselves: their threads end with the process."""
        self._closing.set()
        deadline = time.monotonic() + _JOIN_S
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Runner:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Lane:
    """One probe and its thread. The lock is held for moments only, never during a look."""

    def __init__(self, probe: Probe, node: str, closing: threading.Event, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.probe = probe
        self.timeouts = 0
        self._node = node
        self._closing = closing
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._signals: list[Signal] = []
        self._events: deque[KernelEvent] = deque(maxlen=_EVENTS_MAX)
        self._findings: list[Finding] = []
        self._ended: list[Ended] = []
        self._began: float | None = None  # When the look that is under way began.
        self._last_s: float | None = None
        self._hung: Finding | None = None
        self._failed: Finding | None = None
        self._failures = 0
        self._looks, self._cpu_s, self._slowest_s = 0, 0.0, 0.0
        self._usual_cpu_s = 0.0  # Of a look, over the last few: some looks do more than others.

    def start(self, delay_s: float) -> None:
        # A daemon: the process may end while a look hangs.
        self._thread = threading.Thread(target=self._run, args=(delay_s,), name=f"probe {self.probe.name}", daemon=True)
        self._thread.start()

    def join(self, within_s: float) -> None:
        if self._thread is not None and self._began is None:
            self._thread.join(within_s)

    @property
    def cost(self) -> Cost:
        return Cost(looks=self._looks, cpu_s=self._cpu_s, slowest_s=self._slowest_s)

    # ------------------------------------------------------------------------------------------------- in its own thread

    def _run(self, pause_s: float) -> None:
        while not self._closing.wait(pause_s):
            began, cpu_s = self._monotonic(), time.thread_time()
            with self._lock:
                self._began = began
            error: Exception | None = None
            seen: Iterable[Seen] = ()
            try:
                seen = self.probe.look()
            except Exception as raised:  # The edge of the probe: whatever it is becomes a finding.
                error = raised
            cpu_s = time.thread_time() - cpu_s
            took_s = self._monotonic() - began
            with self._lock:
                self._keep(seen, error, took_s)
                self._count(took_s, cpu_s)
            pause_s = self._pause_s(took_s)

    def _keep(self, seen: Iterable[Seen], error: Exception | None, took_s: float) -> None:
        self._began = None
        if self._hung is not None:
            self._ended.append(Ended(self._hung.key, f"the probe {self.probe.name!r} answered after {took_s:.1f} s"))
            self._hung = None
        elif took_s > self.probe.timeout_s:
            self.timeouts += 1  # Late, and back before anybody asked.
        if error is not None:
            self._fail(error)
            return
        if self._failed is not None:
            self._ended.append(Ended(self._failed.key, f"the probe {self.probe.name!r} works again, after {self._failures} failures"))
            self._failed, self._failures = None, 0
        signals = []
        for one in seen:
            if isinstance(one, Signal):
                signals.append(one)
            else:
                self._events.append(one)
        self._signals = _merged(self._signals, signals)

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        if self._failed is None:
            self._failed = Finding(
                kind="failed_probe", node=self._node, of=self.probe.name, since=self._wall(), severity=Severity.WARNING,
                because=f"the probe {self.probe.name!r} failed: {type(error).__name__}: {error}; it is tried again, later each time",
            )  # fmt: skip
            self._findings.append(self._failed)

    def _count(self, took_s: float, cpu_s: float) -> None:
        if self._looks:  # The first look opens everything; the others are what it costs.
            self._usual_cpu_s += (cpu_s - self._usual_cpu_s) / _USUAL_LOOKS
        self._looks += 1
        self._cpu_s += cpu_s
        self._slowest_s = max(self._slowest_s, took_s)
        self._last_s = took_s

    def _pause_s(self, took_s: float) -> float:
        every_s = self.probe.every_s
        if self._failures:
            return float(min(FAILED_RETRY_MAX_S, every_s * 2.0 ** min(self._failures, 20)))
        return max(0.0, min(max(every_s, self._usual_cpu_s / CPU_SHARE_MAX), every_s * _STRETCH_MAX) - took_s)

    # -------------------------------------------------------------------------------------------- in whoever's thread asks

    def take(self, now: float, into: Taken) -> None:
        with self._lock:
            self._notice(now)
            into.signals.extend(self._signals)
            into.events.extend(self._events)
            into.findings.extend(self._findings)
            into.ended.extend(self._ended)
            self._signals, self._findings, self._ended = [], [], []
            self._events.clear()

    def took_s(self, now: float) -> float | None:
        """The look that is under way if it has taken longer than the last one."""
        with self._lock:
            under_way_s = now - self._began if self._began is not None else None
            return max((s for s in (self._last_s, under_way_s) if s is not None), default=None)

    def _notice(self, now: float) -> None:
        if self._began is None or self._hung is not None or now - self._began <= self.probe.timeout_s:
            return
        self.timeouts += 1
        waits = f" It waits for {self.probe.doing}." if self.probe.doing else ""
        self._hung = Finding(
            kind="hung_probe", node=self._node, of=self.probe.name, since=self._wall() - (now - self._began), severity=Severity.WARNING,
            because=f"the probe {self.probe.name!r} has not answered for {now - self._began:.1f} s; its limit is {self.probe.timeout_s:g} s.{waits}",
        )  # fmt: skip
        self._findings.append(self._hung)


def _merged(before: list[Signal], now: list[Signal]) -> list[Signal]:
    """Of readings that nobody took yet only the newest of each series is kept; a slow series that was not read this time stays."""
    if not before:
        return now
    return list({(signal.metric, signal.of): signal for signal in (*before, *now)}.values())
