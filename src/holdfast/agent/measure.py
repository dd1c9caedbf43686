"""Measure: all that this node's probes and workers say, as one message a second.

    probes (threads) ─► Runner.take ─┐
    beats and gauge tables ──────────┴─► Signals, with the names only when they have changed

The runner does the looking; here is nothing that can hang.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.agent.save_faults import SaveFaults
from holdfast.agent.signals import WorkerSignals
from holdfast.agent.watch import Watch
from holdfast.domain.finding import Finding
from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.default import default_probes
from holdfast.observe.runner import Runner
from holdfast.observe.watched import Watched
from holdfast.wire.messages import Signals

EVERY_S: Final = 1.0
_KEPT_S: Final = 45.0  # What a probe said is repeated until its next look, but not for ever: the slowest looks every 30 s.


class Measure:
    def __init__(self, node: str, watch: Watch, *, disks: list[Path], log_size: Callable[[int], int], save_faults: SaveFaults) -> None:
        self._node, self._watch, self._log_size, self._save_faults = node, watch, log_size, save_faults
        self._watched = Watched()
        self._runner = Runner(default_probes(node=node, watched=self._watched, disks=[Path("/dev/shm"), Path("/tmp")], written=disks), node=node)
        self._workers = WorkerSignals()
        self._probed: dict[tuple[str, str], tuple[float, float]] = {}  # Metric and what it is of, to value and when it was seen.
        self._columns: tuple[tuple[str, str], ...] = ()
        self._standing: dict[str, Finding] = {}

    def start(self) -> None:
        self._runner.start()

    def close(self) -> None:
        self._runner.close()

    def introduce(self) -> None:
        """To a control that knows nothing of us: the next message says its names."""
        self._columns = ()

    def take(self, now: float) -> Signals:
        ranks = self._watch.ranks()
        self._follow(ranks)
        taken = self._runner.take()
        for event in taken.events:
            self._heed(event)
        for signal in taken.signals:
            self._probed[signal.metric, signal.of] = (signal.value, now)
        self._probed = {name: seen for name, seen in self._probed.items() if now - seen[1] <= _KEPT_S}
        found = [Signal(metric, value, of) for (metric, of), (value, _) in self._probed.items()]
        tables = self._watch.tables()
        found += self._workers.take(self._watch.read(), tables, now)
        saving = self._save_faults.take(tables)
        found += self._save_faults.signals()
        found += [Signal("worker_log_bytes_total", self._log_size(rank), str(rank)) for rank in ranks]
        columns = tuple((signal.metric, signal.of) for signal in found)
        new = columns != self._columns
        self._columns = columns
        for ended in taken.ended:
            self._standing.pop(ended.key, None)
        self._standing |= {finding.key: finding for finding in taken.findings}
        return Signals(
            node=self._node, values=tuple(signal.value for signal in found), columns=columns if new else None,
            findings=(*self._standing.values(), *saving), ended=dict(self._save_faults.ended), wall_s=time.time(),
        )  # fmt: skip

    def _heed(self, event: KernelEvent) -> None:
        """What the kernel or the driver said stands in our log; a GPU that is gone has no readings any more."""
        print(f"holdfast agent: {event.kind}: {event.message}", file=sys.stderr, flush=True)
        if event.kind in ("gpu_lost", "gpu_driver_gone"):
            gone = [name for name in self._probed if name[0].startswith("gpu_") and (event.kind == "gpu_driver_gone" or name[1] == event.of)]
            self._probed = {name: seen for name, seen in self._probed.items() if name not in gone}

    def _follow(self, ranks: dict[int, int]) -> None:
        """Let the probes look at the workers there are."""
        known = self._watched.workers()
        for rank in known.keys() - ranks.keys():
            self._watched.remove(rank)
            self._probed = {name: seen for name, seen in self._probed.items() if not (name[1] == str(rank) and name[0].startswith(("worker_", "cgroup_")))}
        for rank, pid in ranks.items():
            if known.get(rank) != pid:
                self._watched.add(rank, pid)
