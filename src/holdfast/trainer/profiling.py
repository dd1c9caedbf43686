"""Profiling on demand: at a step boundary a worker sees that a profile of a few steps is wanted, takes it, and writes it down beside the loop.

    asked ─► one step that warms the profiler up ─► the steps wanted ─► a thread writes trace and answer

Sees        a record in shared memory that the agent writes (see domain/profile.py). To look costs one read from mapped memory a step.
Says        a trace that TensorBoard and Perfetto open, and an answer for the agent: seconds of each part of a step, and the heaviest operators.
Is wrong    about how long a step takes by what the profiler itself costs; on all profiled ranks alike, so that they can be compared.
Costs       nothing until it is asked. torch.profiler is imported then. A profile is ended when its time is over, and what cannot be written is lost.

Nothing of it reaches the loop: whatever fails, the profile is lost and the answer says why. A script that starts a profiler of its own during these
few steps would be refused by torch: one that is running is seen, and then none is taken.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import mmap
import os
import shutil
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from holdfast.domain.profile import REQUEST_BYTES, Operator, RankProfile, Request, answer_file, read_request, sequence
from holdfast.trainer.heaviest import events_of, heaviest
from holdfast.trainer.place import Place
from holdfast.trainer.say import Say

TRACE_BYTES_MAX: Final = 256 << 20  # Before it is compressed: so much is in memory for a moment, to be counted.
_FREE_BYTES_MIN: Final = 1 << 30  # Checkpoints need the disk more than a trace does.
_WRITTEN_WITHIN_S: Final = 10.0  # At the end of a run; in the middle of it there is no hurry.


class Profiling:
    """One process's side. `wanted` is asked at every step, `go_on` when it says so."""

    __slots__ = ("_place", "_record", "_request", "_say", "_seq", "_taking", "_writer")

    def __init__(self, record: memoryview, place: Place, say: Say) -> None:
        self._record, self._place, self._say = record, place, say
        self._seq = sequence(record)  # What was asked of an earlier process of this rank is not asked of us.
        self._request: Request | None = None  # The one that is being answered.
        self._taking: _Taking | None = None
        self._writer: threading.Thread | None = None

    def wanted(self) -> bool:
        """Whether there is something to do at this boundary."""
        return self._taking is not None or sequence(self._record) != self._seq

    @property
    def recording(self) -> bool:
        """Whether the next boundary is but one of several within a profile."""
        return self._taking is not None and not self._taking.is_last

    def go_on(self, step: int, totals: dict[str, float]) -> None:
        """`totals` are the seconds in each part of a step since the process began. Never raises."""
        taking = self._taking
        try:
            if taking is None:
                self._begin(step)
            elif taking.step(totals):
                self._finish(taking)
        except Exception as error:  # A profile is not worth a run.
            self._lose(f"the profiler failed: {error!r}")

    def close(self) -> None:
        """The loop is left: write down what there is, if it is a whole step, and wait a little for it."""
        taking = self._taking
        try:
            if taking is not None and taking.steps:
                self._finish(taking)
            elif taking is not None:
                self._lose("the loop ended before a step was profiled")
            if self._writer is not None:
                self._writer.join(_WRITTEN_WITHIN_S)
        except Exception as error:
            self._lose(f"the profiler failed: {error!r}")

    def _begin(self, step: int) -> None:
        request = read_request(self._record)
        if request is None or (self._writer is not None and self._writer.is_alive()):
            return  # It is being written, or the last profile still is: the next step finds it.
        self._seq = sequence(self._record)
        if request.generation != self._place.generation:
            return
        self._request, torch = request, sys.modules.get("torch")
        if torch is None:
            self._lose("the script has not imported torch, whose profiler this is")
        elif torch.autograd._profiler_enabled():
            self._lose("the script runs a profiler of its own")
        else:
            self._taking = _Taking(request, step, torch)

    def _finish(self, taking: _Taking) -> None:
        self._taking = None
        taking.stop()
        self._writer = threading.Thread(target=self._write, args=(taking,), name="holdfast-profile", daemon=True)
        self._writer.start()

    def _write(self, taking: _Taking) -> None:
        try:
            written = _write_trace(taking, self._directory(taking.request), self._place.rank)
            self._answer(taking.request, asdict(taking.summary(self._place, written)))
        except Exception as error:
            self._lose(f"the profile could not be written: {error}")

    def _lose(self, because: str) -> None:
        taking, self._taking = self._taking, None
        with contextlib.suppress(Exception):
            if taking is not None:
                taking.stop()
        self._say.line(f"no profile was taken: {because}.")
        with contextlib.suppress(OSError):
            if self._request is not None:
                self._answer(self._request, {"because": because})

    def _answer(self, request: Request, answer: dict[str, Any]) -> None:
        path = self._directory(request) / answer_file(self._place.rank)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(answer, indent=1))
        os.replace(unfinished, path)

    def _directory(self, request: Request) -> Path:
        assert self._place.profiles is not None
        directory = self._place.profiles / request.name
        directory.mkdir(parents=True, exist_ok=True)
        return directory


class _Taking:
    """One profile, from its first step to its last."""

    def __init__(self, request: Request, step: int, torch: Any) -> None:
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        self.request, self.steps, self.first_step = request, 0, step + 2
        self._before: dict[str, float] | None = None
        self._after: dict[str, float] = {}
        self._device = "cuda" if torch.cuda.is_initialized() else "cpu"
        warming = step + 1
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device == "cuda" else [])],
            schedule=lambda number: ProfilerAction.WARMUP if number in (0, warming) else ProfilerAction.RECORD,
        )
        self._profiler.step_num = warming  # So that a step has the same number in the trace as everywhere else.
        self._profiler.start()
        self._until = perf_counter() + request.limit_s

    @property
    def is_last(self) -> bool:
        """Whether the next boundary ends it, as far as can be known."""
        return self.steps + 1 >= self.request.steps and self._before is not None

    def step(self, totals: dict[str, float]) -> bool:
        """A boundary; True when that was the last one."""
        if self._before is None:
            self._before = dict(totals)
        else:
            self.steps, self._after = self.steps + 1, dict(totals)
        if self.steps >= self.request.steps or perf_counter() > self._until:
            return True
        self._profiler.step()
        return False

    def stop(self) -> None:
        self._profiler.stop()

    def export(self, path: Path) -> None:
        self._profiler.export_chrome_trace(str(path))

    def summary(self, place: Place, written: _Written) -> RankProfile:
        assert place.generation is not None
        if self.steps == 0:
            raise TimeoutError(f"no step was finished in the {self.request.limit_s:.0f} s it had")
        before, note = self._before or {}, written.note
        spent = {name: max(0.0, seconds - before.get(name, 0.0)) / self.steps for name, seconds in self._after.items()}
        step_s = spent.pop("step", 0.0)
        if self.steps < self.request.steps:
            note = f"{self.steps} of {self.request.steps} steps were profiled in its time{f'; {note}' if note else ''}"
        return RankProfile(
            rank=place.rank, generation=place.generation, first_step=self.first_step, steps=self.steps, step_s=step_s,
            parts={**spent, "compute": max(0.0, step_s - sum(spent.values()))}, operators=written.operators, device=written.device, trace=written.name,
            trace_bytes=written.size_bytes, note=note,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    name: str = ""
    size_bytes: int = 0
    operators: tuple[Operator, ...] = ()
    device: str = "cpu"
    note: str = ""


def _write_trace(taking: _Taking, directory: Path, rank: int) -> _Written:
    """The trace, and what is heaviest in it; or why there is none. The disk belongs to the checkpoints first."""
    free = shutil.disk_usage(directory).free
    if free < _FREE_BYTES_MIN:
        return _left_out(f"{directory} has {free >> 20} MiB free, and below {_FREE_BYTES_MIN >> 20} MiB that is for checkpoints")
    plain = directory / f".rank-{rank}.trace"
    packed = directory / f".rank-{rank}.trace.gz"
    name = f"rank-{rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"  # As TensorBoard's plugin wants it: worker, milliseconds.
    try:
        taking.export(plain)
        size = plain.stat().st_size
        if size > TRACE_BYTES_MAX:
            return _left_out(f"it has {size >> 20} MiB, and {TRACE_BYTES_MAX >> 20} MiB are the limit; ask for fewer steps")
        if not _is_whole(plain):
            return _left_out("it could not be written whole")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        operators, device = heaviest(events_of(plain.read_text(errors="replace")), steps=taking.steps)
        os.replace(packed, directory / name)
        return _Written(name=name, size_bytes=(directory / name).stat().st_size, operators=operators, device=device)
    except OSError as error:
        return _left_out(str(error))
    finally:
        for path in directory.glob(f"{plain.name}*"):  # The exporter has names of its own for what is not whole yet.
            path.unlink(missing_ok=True)


def _left_out(because: str) -> _Written:
    return _Written(note=f"the trace was left out: {because}")


def _is_whole(path: Path) -> bool:
    """The exporter says nothing of a disk that fills up meanwhile."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")


def open_request(path: Path) -> memoryview:
    """Raises OSError or ValueError when that is not a file of the right size."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), REQUEST_BYTES, prot=mmap.PROT_READ))
