"""Beats: readable from outside at any moment, torn ones seen as torn, and cheap."""

from __future__ import annotations

import os
import signal
import time
import timeit
from pathlib import Path

import pytest
from trainer.gang import Gang

import holdfast
from holdfast.domain.beat import BEAT_BYTES, BEAT_FILE_BYTES, GUARDED, Beat, pack_beat, read_beat
from holdfast.errors import UserError
from holdfast.trainer.beats import open_beats
from holdfast.trainer.place import place_here


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "beats"
    path.write_bytes(bytes(BEAT_FILE_BYTES))
    return path


def test_a_beat_is_read_as_it_was_written(record: Path) -> None:
    beats = open_beats(record, generation=4)
    assert read_beat(record.read_bytes()) is None
    beats.step, beats.loss, beats.grad_norm, beats.samples = 7, 0.5, 1.5, 96
    beats.enter("eval")
    beat = read_beat(record.read_bytes())
    assert beat is not None
    assert (beat.generation, beat.step, beat.phase, beat.loss, beat.grad_norm, beat.samples, beat.saved_step) == (4, 7, "eval", 0.5, 1.5, 96, -1)
    assert beat.phase_since_ns <= beat.at_ns <= time.monotonic_ns()


def test_a_reader_never_takes_a_half_written_record_for_a_whole_one(record: Path) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        beats = open_beats(record)
        while True:
            beats.step += 1
            beats.samples = beats.saved_step = beats.restored_step = beats.steps_total = beats.step
            beats.beat()
    try:
        seen: set[int] = set()
        deadline_s = time.monotonic() + 20.0
        while len(seen) <= 100 and time.monotonic() < deadline_s:
            beat = read_beat(record.read_bytes())
            if beat is not None:
                assert beat.step == beat.samples == beat.saved_step == beat.restored_step == beat.steps_total
                seen.add(beat.step)
        assert len(seen) > 100
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_phases_nest_and_go_back_to_the_one_before(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BEATS", str(record))

    def phase() -> str:
        beat = read_beat(record.read_bytes())
        assert beat is not None
        return beat.phase

    before = signal.getsignal(signal.SIGTERM)
    try:
        run = holdfast.guard(state={})
        phases = []
        for _ in run.steps(2):
            phases.append(phase())
            with run.phase("eval"), run.phase("a phase with a very long name"):
                phases.append(phase())
        phases.append(phase())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert phases == ["start", "a phase with a very long", "step", "a phase with a very long", "finish"]


def test_a_worker_without_its_record_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOLDFAST_BEATS", str(tmp_path / "gone"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert list(holdfast.guard(state={}).steps(2)) == [0, 1]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "no beats will be sent" in capfd.readouterr().err


def stopped_by_the_kernel() -> None:
    run = holdfast.guard(state={})
    for _ in run.steps(1_000_000):
        time.sleep(0.001)


def test_a_stopped_worker_can_still_be_read(tmp_path: Path) -> None:
    with Gang(tmp_path, stopped_by_the_kernel) as gang:
        gang.wait_for_step(3)
        gang.signal(0, signal.SIGSTOP)
        beat = gang.beat(0)
        assert beat is not None
        assert beat.flags & GUARDED
        assert beat.phase == "step"


def test_a_beat_costs_less_than_two_microseconds(record: Path) -> None:
    beats = open_beats(record)
    assert min(timeit.repeat(beats.beat, timer=time.process_time, number=2000, repeat=100)) / 2000 < 2e-6
    pack_beat(memoryview(bytearray(BEAT_BYTES)), 1, Beat())


def test_an_environment_that_makes_no_sense_is_named() -> None:
    with pytest.raises(UserError, match="RANK is 'first': expected a whole number"):
        place_here({"RANK": "first"})
