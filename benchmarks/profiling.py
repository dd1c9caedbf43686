"""Profiling: what it costs to be ready for a profile, and what one costs while it is taken.

Ready: the look that a loop takes after every step, asked a million times. Taken: one process trains a small transformer on the CPU and is asked for a profile
again and again. Steps without, steps that are recorded, and how long the loop stood still to start and to end the profiler are timed apart; and how long
until the trace is written, beside the loop, and how large it is.
"""

from __future__ import annotations

import json
import timeit
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from harness.jobs import scratch_directory
from harness.measure import Report, arguments, median, say
from torch import nn

from holdfast.domain.profile import REQUEST_BYTES, STEPS, Request, answer_file, pack_request
from holdfast.trainer.place import Place
from holdfast.trainer.profiling import Profiling
from holdfast.trainer.say import Say

READY_S_MAX = 1e-6
BETWEEN = 20  # Steps from one profile to the next, without.


@dataclass(slots=True)
class Taken:
    plain: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)  # The writing.
    written: list[float] = field(default_factory=list)
    trace: list[float] = field(default_factory=list)


def main() -> None:
    chosen = arguments(__doc__ or "", profiles=(40, 8, "profiles to take"), looks=(1_000_000, 200_000, "looks for a request, in five rounds"))
    report = Report("Profiling: what it costs to be ready for it, and to be profiled")
    record = memoryview(bytearray(REQUEST_BYTES))
    with scratch_directory(keep=chosen.keep) as directory:
        profiling = Profiling(record, Place(generation=1, profiles=directory), Say(rank=0, world_size=1))
        looks = [seconds / chosen.looks for seconds in timeit.repeat(profiling.wanted, number=chosen.looks, repeat=5)]
        taken = Taken()
        for number in range(chosen.profiles):
            take(profiling, record, directory, f"profile-{number}", taken)
            say(f"profile {number + 1} of {chosen.profiles}")
    report.series("one look, with nothing asked", "ns", [1e9 * one for one in looks])
    report.series("a step", "ms", [1000 * one for one in taken.plain])
    report.series("a step that is recorded", "ms", [1000 * one for one in taken.recorded])
    report.series("the loop stands still to start", "ms", [1000 * one for one in taken.start])
    report.series("the loop stands still to end", "ms", [1000 * one for one in taken.end])
    report.series("a step while it is written", "ms", [1000 * one for one in taken.beside])
    report.series("until it is written, beside the loop", "s", taken.written)
    report.series("the trace, compressed", "kB", taken.trace)
    slower = median(taken.recorded) / median(taken.plain)
    report.note(f"a recorded step takes {slower:.2f} times as long as one that is not; {STEPS} steps are recorded for a profile")
    report.bar("one look", 1e9 * median(looks), "ns", under=1e9 * READY_S_MAX)
    report.finish(chosen)


class Training:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self._model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = torch.randn(8, 64, 128)

    def step(self) -> float:
        began = perf_counter()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return perf_counter() - began


TRAINING = Training()


def take(profiling: Profiling, record: memoryview, directory: Path, name: str, taken: Taken) -> None:
    taken.plain += [TRAINING.step() for _ in range(BETWEEN)]
    pack_request(record, Request(generation=1, steps=STEPS, limit_s=600.0, name=name))
    boundaries = [boundary(profiling, 0)]
    for number in range(1 + STEPS):
        seconds = TRAINING.step()
        taken.recorded += [seconds] if number else []
        boundaries.append(boundary(profiling, number + 1))
    taken.start.append(boundaries[0])
    taken.end.append(boundaries[-1])
    began, answer = perf_counter(), directory / name / answer_file(0)
    while not answer.exists():
        taken.beside.append(TRAINING.step())
    taken.written.append(perf_counter() - began)
    taken.trace.append(json.loads(answer.read_text())["trace_bytes"] / 1000)


def boundary(profiling: Profiling, step: int) -> float:
    began = perf_counter()
    if profiling.wanted():
        profiling.go_on(step, {"step": float(step)})
    return perf_counter() - began


if __name__ == "__main__":
    main()
