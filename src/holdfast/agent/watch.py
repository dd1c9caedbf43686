"""Watching the workers of a node from outside: beats from shared memory, state and CPU time from /proc.

Beats are read several times a second and cost a copy of 168 bytes each. /proc is read about once a second. Nobody is accused here: what is seen of a rank
that does not move goes to control, which sees the whole gang.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.agent import collectives, tree
from holdfast.agent.signs import SignsOfRank
from holdfast.detect.growth import Growth, Leak
from holdfast.detect.phases import Phases
from holdfast.domain.beat import BEAT_BYTES, BEAT_FILE_BYTES, FOLLOWS, GUARDED, REJOINS, RESTORED, SHARDED, TABLE_AT, WAITS, WAS_FINITE, WHOLE, Beat, read_beat
from holdfast.domain.event import MeshSeen
from holdfast.domain.finding import Finding
from holdfast.domain.gauges import GPU_MEMORY, GPU_PEAK, GPU_SIZE, GROUP_TIMEOUT, HOLDS, MESH, MICRO_BATCH, RESIZES, Gauge, read_gauges
from holdfast.domain.interval import INTERVAL_BYTES, Told, pack_interval
from holdfast.domain.profile import REQUEST_BYTES, Request, pack_request, read_request
from holdfast.domain.signs import Signs
from holdfast.observe.memory import left_for
from holdfast.wire.messages import Reading

LEARNED_EVERY_S = 10.0
_LOOK_AROUND_EVERY_S = 5.0
_SOON_S = 60.0  # A save and a start take less, and what leaks slowly is used as long as it may be;
_ALMOST = 0.03  # but so little is left for what comes and goes.
_AHEAD = 4.0  # What has grown by 200 MB so far says nothing about the next 18 GB: pools and caches fill, and stop.
_NOT_REPORTED = struct.pack("<d", Beat().loss)  # What a beat holds until a number was reported: a NaN too.


@dataclass(slots=True)
class _Worker:
    rank: int
    generation: int
    pid: int
    memory: mmap.mmap
    added_at: float
    beat: Beat | None = None
    cpu_s: float = 0.0
    cpu_share: float = 0.0
    memory_bytes: int = 0
    probed_at: float = 0.0
    signs: SignsOfRank = field(default_factory=SignsOfRank)
    learned_from: Beat | None = None  # The last beat whose phase was looked at.
    told_mesh: bool = False
    host: Growth = field(default_factory=Growth)
    gpu: Growth = field(default_factory=Growth)
    peak: Growth = field(default_factory=Growth)  # The most it ever had of the GPU, which is within a step.
    paced: tuple[float, int] | None = None  # When it was first seen in its loop, and at which step.
    told: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Left:
    """How a rank that waits has left its gang: after which step, and which it holds whole; -1: none."""

    after: int
    whole: int


@dataclass(frozen=True, slots=True)
class Leaks:
    """How the memory of a rank has grown with its steps, in words; empty: it has not."""

    host: str = ""
    gpu: str = ""


class Watch:
    """The ranks of one node. `sample_stack` is asked only about ranks that do not move."""

    def __init__(
        self, directory: Path, sample_stack: Callable[[int, int, int], str], phases: Mapping[str, Sequence[float]] | None = None,
        left_for: Callable[[int], tuple[float, float]] = left_for, pending: Callable[[Path], frozenset[tuple[str, int]]] = collectives.pending,
    ) -> None:  # fmt: skip
        self._directory, self._left_for, self._pending = directory, left_for, pending
        self._sample_stack = sample_stack
        self._workers: dict[int, _Worker] = {}
        self._phases = Phases()
        self._learned = directory / "learned.json"
        self._learned_at = time.monotonic()
        self._trees: dict[int, list[int]] = {}  # Of each worker: its process, and those below it.
        self._looked_around_at = 0.0
        try:
            known = json.loads(self._learned.read_bytes())  # From an agent that died: what is usual need not be learned again.
        except (OSError, ValueError):
            known = phases or {}  # From the job's last run.
        self._phases.learn(known)

    def beat_path(self, generation: int, rank: int) -> Path:
        """Where the worker beats. Made, and emptied, before the worker starts."""
        return self._made("beat", generation, rank, BEAT_FILE_BYTES)

    def interval_path(self) -> Path:
        """Where all workers of the node find how often to save."""
        path = self._directory / "interval"
        if not path.exists():
            path.write_bytes(bytes(INTERVAL_BYTES))
            path.chmod(0o600)
        return path

    def tell_interval(self, told: Told) -> None:
        with self.interval_path().open("r+b") as file, mmap.mmap(file.fileno(), INTERVAL_BYTES) as memory, memoryview(memory) as record:
            pack_interval(record, told)

    def profile_path(self, generation: int, rank: int) -> Path:
        """Where the worker looks whether it is to be profiled."""
        return self._made("profile", generation, rank, REQUEST_BYTES)

    def _made(self, kind: str, generation: int, rank: int, size_bytes: int) -> Path:
        path = self._named(kind, generation, rank)
        if not path.exists():
            path.write_bytes(bytes(size_bytes))
            path.chmod(0o600)
        return path

    def _named(self, kind: str, generation: int, rank: int) -> Path:
        return self._directory / f"{kind}-{generation}-{rank}"

    def ask_for_profile(self, rank: int, request: Request) -> None:
        """Once: asked again for the same, by a control that was restarted, it stays the one request."""
        path = self.profile_path(request.generation, rank)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), REQUEST_BYTES) as memory, memoryview(memory) as record:
            if read_request(record) != request:
                pack_request(record, request)

    def add(self, rank: int, generation: int, pid: int) -> None:
        with self.beat_path(generation, rank).open("rb") as file:
            memory = mmap.mmap(file.fileno(), BEAT_FILE_BYTES, prot=mmap.PROT_READ)
        self._workers[rank] = _Worker(rank, generation, pid, memory, time.monotonic())

    def remove(self, rank: int, generation: int) -> Beat | None:
        """Stop watching a rank; its last beat stays readable after its death."""
        worker = self._workers.get(rank)
        if worker is None or worker.generation != generation:
            return None
        del self._workers[rank]
        last = read_beat(worker.memory[:BEAT_BYTES]) or worker.beat
        worker.memory.close()
        flight = self._named("flight", generation, rank)
        records = (self._named(kind, generation, rank) for kind in ("beat", "profile"))
        own = (self._directory / f"{kind}-{worker.pid}" for kind in ("rejoin", "place", "cannot"))
        for path in (*records, *own, flight, flight.with_suffix(".json"), flight.with_suffix(".tmp")):
            path.unlink(missing_ok=True)
        return last

    def table(self, rank: int, generation: int) -> dict[str, float]:
        """What a rank says besides its beats, or said last."""
        worker = self._workers.get(rank)
        if worker is None or worker.generation != generation:
            return {}
        return _table(worker)

    def renew(self, was: int, rank: int, generation: int) -> None:
        """The process of the rank that `was` goes on as this one in another generation; the pipe for its flight recorder is the one it has."""
        worker = self._workers.pop(was)
        before = worker.generation
        self.add(rank, generation, worker.pid)
        anew = self._workers[rank]
        anew.host, anew.gpu, anew.peak = worker.host, worker.gpu, worker.peak  # Who lives on keeps what has leaked.
        if before != generation:
            worker.memory.close()
            for kind in ("beat", "profile"):
                self._named(kind, before, was).unlink(missing_ok=True)
            flight, now = self._named("flight", before, was), self._named("flight", generation, rank)
            if flight.exists():
                for old, new in ((flight, now), (flight.with_suffix(".json"), now.with_suffix(".json"))):
                    new.unlink(missing_ok=True)
                    new.symlink_to(old.resolve())

    def waiting(self, generation: int) -> dict[int, Left]:
        """Ranks that have left the loop and wait for their new place."""
        beats = {rank: read_beat(worker.memory[:BEAT_BYTES]) for rank, worker in self._workers.items() if worker.generation == generation}
        return {
            rank: Left(after=beat.step, whole=beat.step if beat.flags & WHOLE else -1)
            for rank, beat in sorted(beats.items()) if beat is not None and beat.flags & WAITS
        }  # fmt: skip

    def ranks(self, generation: int | None = None) -> dict[int, int]:
        """Rank to process id."""
        return {rank: worker.pid for rank, worker in sorted(self._workers.items()) if generation in (None, worker.generation)}

    def generations(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for rank, worker in sorted(self._workers.items()):
            found[str(worker.generation)] = (*found.get(str(worker.generation), ()), rank)
        return found

    def all_guarded(self, generation: int) -> bool:
        """Whether every rank has our trainer inside, so that a kill at any moment loses nothing."""
        of_it = [worker for worker in self._workers.values() if worker.generation == generation]
        return all(worker.beat is not None and worker.beat.flags & GUARDED for worker in of_it)

    def is_guarded(self, rank: int) -> bool:
        beat = self._workers[rank].beat if rank in self._workers else None
        return beat is not None and bool(beat.flags & GUARDED)

    def any_starting(self) -> bool:
        """Whether somebody is not yet in its loop; of workers without our trainer nobody knows."""
        return any(worker.beat is None or not worker.beat.flags & RESTORED for worker in self._workers.values())

    def read(self) -> tuple[Reading, ...]:
        now_ns = time.monotonic_ns()
        found = tuple(_reading(worker, now_ns, self._signs_of) for _, worker in sorted(self._workers.items()))
        for worker in self._workers.values():
            self._look_at_growth(worker)
        return found

    def _look_at_growth(self, worker: _Worker) -> None:
        beat = worker.beat
        if beat is not None and beat.flags & RESTORED and beat.step > beat.step_started + 1 and beat.phase == "step":  # In the first step all finds its place.
            held = [tree.own_bytes(pid) for pid in self._trees.get(worker.pid) or [worker.pid]]
            if held[0]:  # Of one that is being taken down all is gone at once, which is no end of its growth.
                worker.host.look(beat.step, sum(held))
            table = _table(worker)
            for name, growth in ((GPU_MEMORY, worker.gpu), (GPU_PEAK, worker.peak)):
                if table.get(name, 0.0) > 0:
                    growth.look(beat.step, int(table[name]))

    def leaks(self, rank: int, generation: int) -> Leaks:
        """Of a rank that has ended. Memory of the host is filled by all ranks of a node, and whom the kernel kills need not be the one that leaks."""
        worker = self._workers.get(rank)
        if worker is None or worker.generation != generation:
            return Leaks()
        others = [(other.rank, leak) for other in self._workers.values() if other is not worker and (leak := other.host.leak()) is not None]
        beside = max(others, key=lambda one: one[1].now - one[1].before, default=None)
        own, gpu = worker.host.leak(), worker.gpu.leak()
        host = f"{own}" if own is not None else f"rank {beside[0]}'s {beside[1]}" if beside is not None else ""
        return Leaks(host=host, gpu=f"{gpu}" if gpu is not None else "")

    def tables(self) -> dict[int, list[Gauge]]:
        """What the workers say besides their beats."""
        return {rank: read_gauges(worker.memory[TABLE_AT:]) for rank, worker in sorted(self._workers.items())}

    def mesh(self, node: str) -> MeshSeen | None:
        """What the ranks hold, once: when all of them are in their loops and have said it."""
        workers = [worker for _, worker in sorted(self._workers.items())]
        if not any(not worker.told_mesh and worker.beat is not None and worker.beat.flags & RESTORED for worker in workers):
            return None
        tables = {worker.rank: read_gauges(worker.memory[TABLE_AT:]) for worker in workers}
        holds = {str(rank): int(gauge.value) for rank, table in tables.items() for gauge in table if gauge.name == HOLDS and math.isfinite(gauge.value)}
        if len(holds) < len(workers) or len({worker.generation for worker in workers}) > 1:
            return None
        for worker in workers:
            worker.told_mesh = True
        found = [(gauge.name.removeprefix(MESH).partition("_"), gauge) for gauge in tables[workers[0].rank] if gauge.name.startswith(MESH)]
        dimensions = [(name, int(gauge.value), gauge.unit == RESIZES) for (_, _, name), gauge in sorted(found, key=lambda one: int(one[0][0]))]
        return MeshSeen(at=0.0, node=node, generation=workers[0].generation, holds=holds, dimensions=tuple(dimensions))

    def probe(self) -> tuple[tuple[int, Finding], ...]:
        """Look at every process; what is found, with the generation it belongs to."""
        now = time.monotonic()
        self._look_around(now, at_once=any(worker.signs.quiet_s >= _LOOK_AROUND_EVERY_S for worker in self._workers.values()))
        for worker in self._workers.values():
            self._learn(worker)
            processes = [process for pid in self._trees[worker.pid] if (process := tree.read(pid)) is not None]
            _probe(worker, processes, now)
            self._look_for_signs(worker, processes, now)
        if now - self._learned_at >= LEARNED_EVERY_S:
            self._learned_at = now
            self._learned.write_text(json.dumps(self._phases.learned()))
        return tuple((self._workers[finding.ranks[0]].generation, _on_the_calendar(finding, now)) for finding in self._filling(now))

    def _learn(self, worker: _Worker) -> None:
        """Notes how long the phases took that ended since the last look."""
        beat, before = worker.beat, worker.learned_from
        worker.learned_from = beat
        if beat is None or beat.flags & WAITS:
            return  # How long it waits in a broken gang is no measure of what is usual.
        steps = beat.step - (before.step if before is not None else beat.step_started)
        if before is None and steps > 0 and beat.phase == "step":
            # All it did so far, its start included: too long for a step, and a limit all the same, should it never take another.
            self._phases.note("step", (beat.at_ns / 1e9 - worker.added_at) / steps, times=steps, rough=True)
            # Its start was over before anybody looked, and took no longer than this.
            if not self._phases.seen("start"):
                self._phases.note("start", beat.phase_since_ns / 1e9 - worker.added_at)
        elif before is not None and beat.phase != before.phase:
            self._phases.note(before.phase, (beat.phase_since_ns - before.phase_since_ns) / 1e9)
        elif before is not None and steps > 0:
            warms_up = before.step == beat.step_started
            self._phases.note(before.phase, (beat.at_ns - before.at_ns) / 1e9 / steps, times=steps, rough=warms_up)

    def _look_for_signs(self, worker: _Worker, processes: Sequence[tree.Process], now: float) -> None:
        beat = worker.beat

        def sample() -> str:
            return self._sample_stack(worker.generation, worker.rank, worker.pid)

        def pending() -> frozenset[tuple[str, int]]:
            return self._pending(self._named("flight", worker.generation, worker.rank)) if _table(worker).get(GPU_SIZE, 0.0) > 0 else frozenset()

        if beat is None:  # It does not beat, so it is not known whether it moves. That it is stopped is seen all the same.
            worker.signs.look(time.monotonic_ns(), processes, sample, now)
        else:
            ask_after_s = 0.0 if self._phases.quick else self._phases.late_after_s(beat.phase)
            worker.signs.look(beat.at_ns, processes, sample, now, ask_after_s=ask_after_s, pending=pending)

    def _signs_of(self, worker: _Worker) -> Signs | None:
        beat = worker.beat
        if not worker.signs.quiet or (beat is not None and beat.flags & WAITS):
            return None
        phase, table = beat.phase if beat is not None else "", _table(worker)
        return worker.signs.signs(
            usual_s=self._phases.usual_s(phase), quick=self._phases.quick and phase == "step", on_gpu=table.get(GPU_SIZE, 0.0) > 0,
            group_timeout_s=table.get(GROUP_TIMEOUT),
        )

    def _filling(self, now: float) -> list[Finding]:
        """Memory that grows and will soon be used up, told once of each."""
        leaks = {rank: leak for rank, worker in self._workers.items() if (leak := worker.host.leak()) is not None}
        together = sum(leak.rate * _pace(self._workers[rank], now) for rank, leak in leaks.items())  # They fill one node.
        found = []
        for rank, worker in sorted(self._workers.items()):
            pace, table = _pace(worker, now), _table(worker)
            gpu, peak = worker.gpu.leak(), worker.peak.leak()
            on_gpu = table.get(GPU_SIZE, 0.0) - table.get(GPU_PEAK, 0.0)
            if rank in leaks:
                left, size = self._left_for(worker.pid)
                found.append((worker, "memory_leak", "", leaks[rank], left, size, together))
            if gpu is not None:
                found.append((worker, "memory_leak", "gpu", gpu, on_gpu, table.get(GPU_SIZE, 0.0), gpu.rate * pace))
            elif peak is not None:
                found.append((worker, "memory_peak", "gpu", peak, on_gpu, table.get(GPU_SIZE, 0.0), peak.rate * pace))
        return [finding for one in found if (finding := _soon_full(*one, now)) is not None]

    def _look_around(self, now: float, *, at_once: bool) -> None:
        """Find the processes below the workers. That means to read every process of the machine, so it is done now and then; and while a rank does not move,
        whose only sign of life may be a process it has just started, at every look."""
        if at_once or now - self._looked_around_at >= _LOOK_AROUND_EVERY_S or self._trees.keys() != {worker.pid for worker in self._workers.values()}:
            self._looked_around_at = now
            found = tree.trees(worker.pid for worker in self._workers.values())
            self._trees = {root: [process.pid for process in processes] for root, processes in found.items()}


def _table(worker: _Worker) -> dict[str, float]:
    return {gauge.name: gauge.value for gauge in read_gauges(worker.memory[TABLE_AT:]) if math.isfinite(gauge.value)}


def _pace(worker: _Worker, now: float) -> float:
    """Steps in a second, since it was first seen in its loop."""
    if worker.beat is None or not worker.beat.flags & RESTORED:
        return 0.0
    if worker.paced is None:
        worker.paced = (now, worker.beat.step)
    return (worker.beat.step - worker.paced[1]) / max(1e-3, now - worker.paced[0])


def _soon_full(worker: _Worker, kind: str, of: str, grew: Leak, left: float, size: float, rate: float, now: float) -> Finding | None:
    left_s = left / rate if rate > 0 else math.inf
    seen = grew.now - grew.before
    if f"{kind}{of}" in worker.told or left > _AHEAD * seen or (left_s > _SOON_S and left > _ALMOST * size):
        return None
    worker.told.add(f"{kind}{of}")
    what = "the GPU's memory" if of else "memory"
    said = f"rank {worker.rank}'s {grew}: {left / 1e6:.0f} of {size / 1e6:.0f} MB of {what} are left, which it fills in about {left_s:.0f} s"
    micro_batch = int(_table(worker).get(MICRO_BATCH, 0))
    return Finding(kind=kind, of=of, ranks=(worker.rank,), since=now, because=said, grew=str(grew), micro_batch=micro_batch)


def _probe(worker: _Worker, processes: list[tree.Process], now: float) -> None:
    cpu_s = sum(process.cpu_s for process in processes)
    if worker.probed_at:
        worker.cpu_share = max(0.0, cpu_s - worker.cpu_s) / max(1e-6, now - worker.probed_at)
    worker.cpu_s, worker.probed_at = cpu_s, now
    worker.memory_bytes = processes[0].memory_bytes if processes else 0


def _reading(worker: _Worker, now_ns: int, signs_of: Callable[[_Worker], Signs | None]) -> Reading:
    worker.beat = read_beat(worker.memory[:BEAT_BYTES]) or worker.beat  # A torn record is passed over: the next look is soon.
    beat = worker.beat
    signs = signs_of(worker)
    if beat is None:
        return Reading(
            rank=worker.rank, generation=worker.generation, pid=worker.pid, cpu_share=worker.cpu_share, memory_bytes=worker.memory_bytes, signs=signs
        )
    return Reading(
        rank=worker.rank, generation=worker.generation, pid=worker.pid, step=beat.step, steps_total=beat.steps_total, step_started=beat.step_started,
        phase=beat.phase, phase_s=(now_ns - beat.phase_since_ns) / 1e9, silent_s=(now_ns - beat.at_ns) / 1e9, loss=_finite(beat.loss),
        grad_norm=_finite(beat.grad_norm), not_finite=_not_finite(beat), samples=beat.samples, data_wait_s=beat.data_wait_s, save_s=beat.save_s,
        saved_step=beat.saved_step, guarded=bool(beat.flags & GUARDED), restored=bool(beat.flags & RESTORED), cpu_share=worker.cpu_share,
        memory_bytes=worker.memory_bytes, save_every=beat.save_every, stall_s=_finite(beat.stall_s), follows=bool(beat.flags & FOLLOWS),
        rejoins=bool(beat.flags & REJOINS), sharded=bool(beat.flags & SHARDED), was_finite=bool(beat.flags & WAS_FINITE),
        signs=signs,
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _not_finite(beat: Beat) -> tuple[str, ...]:
    """The numbers that were reported and are not finite. A NaN is told from none by its bits."""
    numbers = {"loss": beat.loss, "grad_norm": beat.grad_norm}
    return tuple(name for name, value in numbers.items() if not math.isfinite(value) and struct.pack("<d", value) != _NOT_REPORTED)


def _on_the_calendar(finding: Finding, now: float) -> Finding:
    """Detectors here live on the node's monotonic clock; events carry seconds since the epoch."""
    return replace(finding, since=time.time() - (now - finding.since))
