"""Watching from outside: beats are read while a worker runs, is stopped, and after it is dead."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from end_to_end.jobs import environment, eventually

from holdfast.agent.watch import LEARNED_EVERY_S, Watch, _pace
from holdfast.detect.phases import FIRST_S, FLOOR_S, KNOWN_AFTER
from holdfast.domain.beat import BEAT_FILE_BYTES, RESTORED
from holdfast.domain.gauges import GPU_MEMORY, GPU_PEAK, GPU_SIZE, HOLDS, MESH, MICRO_BATCH, RESIZES
from holdfast.trainer.beats import open_beats
from holdfast.wire.messages import Reading

pytestmark = pytest.mark.unprivileged
BEATING = """
import sys, time
from pathlib import Path
from holdfast.domain.beat import GUARDED, RESTORED
from holdfast.trainer.beats import open_beats
beats = open_beats(Path(sys.argv[1]), generation=1)
beats.flags |= GUARDED | RESTORED
while True:
    beats.step += 1
    beats.enter("step")
    time.sleep(0.01)
"""


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path, lambda generation, rank, pid: "")


@pytest.fixture
def worker(watch: Watch) -> Iterator[subprocess.Popen[bytes]]:
    path = watch.beat_path(1, 0)
    with subprocess.Popen([sys.executable, "-c", BEATING, str(path)], env=environment()) as process:
        watch.add(0, 1, process.pid)
        yield process
        process.kill()


def step_of(watch: Watch) -> int:
    (reading,) = watch.read()
    return reading.step


def reported(watch: Watch, **numbers: float) -> Reading:
    """What is read of a worker that beats with these numbers."""
    path = watch.beat_path(1, 0)
    watch.add(0, 1, os.getpid())
    beats = open_beats(path, generation=1)
    for name, value in numbers.items():
        setattr(beats, name, value)
    beats.enter("step")
    (reading,) = watch.read()
    return reading


def test_numbers_that_were_reported_and_are_not_finite_are_told_from_those_that_never_were(watch: Watch) -> None:
    infinite = math.inf
    assert reported(watch).not_finite == ()
    assert reported(watch, loss=1.5, grad_norm=2.5).not_finite == ()
    computed = math.copysign(infinite - infinite, -1.0)  # With the sign that arithmetic gives it; some compilers fold constants to the other one.
    assert reported(watch, loss=computed, grad_norm=2.5).not_finite == ("loss",)
    assert reported(watch, loss=1.5, grad_norm=infinite).not_finite == ("grad_norm",)
    both = reported(watch, loss=-infinite, grad_norm=computed)
    assert (both.not_finite, both.loss, both.grad_norm) == (("loss", "grad_norm"), None, None)


def test_the_record_is_made_empty_and_for_its_owner_alone(watch: Watch) -> None:
    path = watch.beat_path(1, 0)
    assert path.read_bytes() == bytes(BEAT_FILE_BYTES)
    assert path.stat().st_mode & 0o077 == 0


def test_beats_are_read_from_another_process_also_while_it_is_stopped_and_after_its_death(watch: Watch, worker: subprocess.Popen[bytes]) -> None:
    eventually(lambda: step_of(watch) >= 5, what="five beats")
    assert watch.all_guarded(1)
    assert watch.generations() == {"1": (0,)}
    os.kill(worker.pid, signal.SIGSTOP)
    eventually(lambda: (Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]) == "T", what="a stopped worker")
    stood_at = step_of(watch)
    assert stood_at >= 5
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10.0)
    last = watch.remove(0, 1)
    assert last is not None
    assert last.step == stood_at
    assert watch.remove(0, 1) is None


def test_of_a_worker_that_moves_there_are_no_signs_and_of_a_stopped_one_its_state(watch: Watch, worker: subprocess.Popen[bytes]) -> None:
    eventually(lambda: step_of(watch) >= 5, what="five beats")

    def look() -> Reading:
        watch.probe()
        (reading,) = watch.read()
        return reading

    assert look().signs is None
    os.kill(worker.pid, signal.SIGSTOP)
    eventually(lambda: (signs := look().signs) is not None and signs.process_state == "T" and signs.stopped_s >= 3.0, what="a worker stopped for 3 s")
    os.kill(worker.pid, signal.SIGCONT)
    eventually(lambda: look().signs is None, what="a worker that moves again")


def test_how_long_steps_take_is_learned_and_handed_to_the_agent_that_comes_after(tmp_path: Path, watch: Watch, worker: subprocess.Popen[bytes]) -> None:
    def usual_s(watch: Watch) -> float:
        watch.read()
        watch.probe()
        return watch._phases.usual_s("step")

    assert usual_s(watch) == FIRST_S
    eventually(lambda: usual_s(watch) == FLOOR_S and len(watch._phases.learned().get("step", ())) >= KNOWN_AFTER, what="steps that are known")
    watch._learned_at = -LEARNED_EVERY_S
    watch.probe()
    assert Watch(tmp_path, lambda generation, rank, pid: "")._phases.usual_s("step") == FLOOR_S


def test_an_old_generation_is_not_removed_in_place_of_the_new_one(watch: Watch, worker: subprocess.Popen[bytes]) -> None:
    assert watch.remove(0, 0) is None
    assert watch.ranks(1) == {0: worker.pid}
    assert watch.ranks(0) == {}


def test_what_ranks_hold_is_told_once_when_all_have_said_it(tmp_path: Path) -> None:
    watch, said = Watch(tmp_path, lambda generation, rank, pid: ""), {}
    for rank in (2, 3):
        said[rank] = open_beats(watch.beat_path(1, rank), generation=1)
        said[rank].flags |= RESTORED
        said[rank].beat()
        watch.add(rank, 1, os.getpid())
    for place, name, unit in ((0, "dp", RESIZES), (1, "tp", "")):
        said[2].gauges.set(f"{MESH}{place}_{name}", 2, unit)
    said[2].gauges.set(HOLDS, 7)
    watch.read()
    assert watch.mesh("n1") is None, "one of the two has not said it yet"
    said[3].gauges.set(HOLDS, 9)
    seen = watch.mesh("n1")
    assert seen is not None
    assert (seen.node, seen.generation, seen.holds, seen.dimensions) == ("n1", 1, {"2": 7, "3": 9}, (("dp", 2, True), ("tp", 2, False)))
    assert watch.mesh("n1") is None, "and is not told again"


LEAKING = """
import sys, time
from pathlib import Path
from holdfast.domain.beat import GUARDED, RESTORED
from holdfast.domain.gauges import GPU_MEMORY
from holdfast.trainer.beats import open_beats
beats = open_beats(Path(sys.argv[1]), generation=1)
beats.flags |= GUARDED | RESTORED
host, gpu, held = float(sys.argv[2]), float(sys.argv[3]), []
for line in sys.stdin:
    held.append(b"x" * int(host))
    beats.gauges.set(GPU_MEMORY, 1e9 + gpu * beats.step)
    beats.step += 1
    beats.enter("step")
    print(flush=True)
"""


def test_how_fast_a_rank_steps_is_counted_from_when_it_is_in_its_loop(tmp_path: Path) -> None:
    """A restore may take minutes, in which it does no step and nothing leaks."""
    watch = Watch(tmp_path, lambda generation, rank, pid: "")
    beats = open_beats(watch.beat_path(1, 0), generation=1)
    watch.add(0, 1, os.getpid())
    worker = watch._workers[0]

    def at(now: float, step: int) -> float:
        beats.step = step
        beats.beat()
        watch.read()
        return _pace(worker, now)

    assert at(100.0, 0) == 0.0
    beats.flags |= RESTORED
    assert at(200.0, 40) == 0.0
    assert at(201.0, 50) == 10.0


def test_memory_that_will_soon_be_full_is_told_once_and_what_leaks_slowly_is_not(tmp_path: Path) -> None:
    left = [10e9]
    watch = Watch(tmp_path, lambda generation, rank, pid: "", left_for=lambda pid: (left[0], 20e9))
    beats = open_beats(watch.beat_path(1, 0), generation=1)
    watch.add(0, 1, os.getpid())
    beats.flags |= RESTORED
    beats.gauges.set(GPU_SIZE, 80e9)
    beats.gauges.set(MICRO_BATCH, 16)
    told: list[tuple[str, str]] = []

    def steps(first: int, count: int, *, gpu: float = 0.0, peak: float = 0.0) -> None:
        for step in range(first, first + count):
            beats.gauges.set(GPU_MEMORY, 10e9 + gpu * step)
            beats.gauges.set(GPU_PEAK, 20e9 + max(gpu, peak) * step)
            beats.step = step
            beats.enter("step")
            watch.read()
            told.extend((finding.kind, finding.of) for _, finding in watch.probe())

    steps(2, 40, gpu=1e3)
    assert told == [], "too slow to be seen at all"
    steps(42, 60, gpu=5e8)
    assert told == [("memory_leak", "gpu")], "once"
    watch.remove(0, 1)
    beats = open_beats(watch.beat_path(2, 0), generation=2)
    watch.add(0, 2, os.getpid())
    beats.flags |= RESTORED
    beats.gauges.set(GPU_SIZE, 80e9)
    beats.gauges.set(MICRO_BATCH, 16)
    steps(2, 60, peak=5e8)
    assert told[1:] == [("memory_peak", "gpu")], "what is held between steps does not grow"
    watch.remove(0, 1)
    beats = open_beats(watch.beat_path(3, 0), generation=3)
    watch.add(0, 3, os.getpid())
    beats.flags |= RESTORED
    beats.gauges.set(GPU_SIZE, 80e9)
    steps(2, 60, gpu=1e8)
    assert told[2:] == [], "a few gigabytes, however quickly they came, say nothing about the next fifty"


@pytest.mark.parametrize(("host", "gpu"), [(4e6, 0.0), (0.0, 4e7), (0.0, 0.0)])
def test_what_grows_with_the_steps_is_told_of_host_and_gpu_apart(watch: Watch, host: float, gpu: float) -> None:
    path = watch.beat_path(1, 0)
    arguments = [sys.executable, "-c", LEAKING, str(path), str(host), str(gpu)]
    with subprocess.Popen(arguments, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch.add(0, 1, process.pid)
        for _ in range(40):
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            watch.read()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        process.kill()
        process.wait()
        watch.read()  # What is gone of one that was killed is no end of its growth.
        leaks = watch.leaks(0, 1)
        assert watch.leaks(0, 2).host == "", "of another generation"
        watch.add(1, 1, os.getpid())
        assert watch.leaks(1, 1).host == (f"rank 0's {leaks.host}" if host else ""), "the kernel may kill another one"
    assert leaks.host.startswith("memory grew by 4") if host else not leaks.host
    assert leaks.gpu.startswith("memory grew by 40 MB a step over ") if gpu else not leaks.gpu
