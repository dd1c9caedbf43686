"""A profile on demand, as a worker takes it: nothing until it is asked, a trace and an answer when it is, and never a word into the loop."""

from __future__ import annotations

import gzip
import json
import re
import resource
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer.gang import PATIENCE_S, Gang

import holdfast
from holdfast.agent.watch import Watch
from holdfast.domain.profile import REQUEST_BYTES, Request, answer_file, pack_request, read_request
from holdfast.trainer.place import Place
from holdfast.trainer.profiling import Profiling
from holdfast.trainer.say import Say


def train(told: Path) -> None:
    """Until it is told to stop; a file `own` there makes it run a profiler of its own, a file `small` makes its disk refuse all but small files."""
    import torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=0)
    own: Any = None
    for _ in run.steps(1_000_000):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (told / "small").exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        if (told / "own").exists() != (own is not None):
            own = (own.__exit__(None, None, None) or None) if own is not None else torch.autograd.profiler.profile().__enter__()
        if (told / "stop").exists():
            break
        time.sleep(0.002)


class Worker:
    """One rank that trains, and the agent's side of it."""

    def __init__(self, directory: Path, gang: Gang) -> None:
        self.profiles, self.gang, self._watch = directory / "profiles", gang, Watch(directory, lambda *_: "")
        self._count = 0

    def ask(self, *, steps: int = 3, limit_s: float = 60.0) -> dict[str, Any]:
        self._count += 1
        name = f"profile-{self._count}"
        self._watch.ask_for_profile(0, Request(generation=1, steps=steps, limit_s=limit_s, name=name))
        path, deadline = self.profiles / name / answer_file(0), time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < deadline, self.gang.log()
            time.sleep(0.01)
        return {**json.loads(path.read_text()), "directory": path.parent}

    def goes_on(self) -> None:
        beat = self.gang.beat(0)
        assert beat is not None
        self.gang.wait_for_step(beat.step + 20)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    record = Watch(tmp_path, lambda *_: "").profile_path(1, 0)
    env = {"HOLDFAST_PROFILE": str(record), "HOLDFAST_PROFILES": str(tmp_path / "profiles"), "HOLDFAST_GENERATION": "1"}
    with Gang(tmp_path, train, env=env, told=tmp_path) as gang:
        gang.wait_for_step(10)
        yield Worker(tmp_path, gang)
        (tmp_path / "stop").touch()
        assert gang.wait() == [0], gang.log()


def test_a_profile_is_a_trace_of_the_steps_asked_for_and_a_summary_and_may_be_asked_for_again(worker: Worker) -> None:
    for steps in (3, 1):
        answer = worker.ask(steps=steps)
        assert (answer["rank"], answer["steps"], answer["generation"], answer["note"]) == (0, steps, 1, "")
        assert answer["step_s"] > 0
        assert abs(sum(answer["parts"].values()) - answer["step_s"]) < 1e-9
        assert "aten::addmm" in {operator["name"] for operator in answer["operators"]}
        assert re.fullmatch(r"rank-0\.\d{13}\.pt\.trace\.json\.gz", answer["trace"])
        trace = json.loads(gzip.decompress((answer["directory"] / answer["trace"]).read_bytes()))
        seen = {event["name"] for event in trace["traceEvents"] if str(event.get("name", "")).startswith("ProfilerStep")}
        assert seen == {f"ProfilerStep#{answer['first_step'] + number}" for number in range(steps)}, "the step that warms up is not in it"
        assert not list(answer["directory"].glob(".*")), "nothing half-written is left"
    worker.goes_on()


def test_whatever_is_wrong_with_a_profile_costs_the_profile_and_never_the_run(worker: Worker) -> None:
    # Its time is over before it began.
    assert "no step was finished" in worker.ask(limit_s=0.0)["because"]
    # The time is over in the middle of it: what there is, is kept.
    answer = worker.ask(steps=100_000, limit_s=1.0)
    assert 1 <= answer["steps"] < 100_000
    assert f"{answer['steps']} of 100000 steps" in answer["note"]
    # A profiler is running already.
    (worker.gang.directory / "own").touch()
    beat = worker.gang.beat(0)
    assert beat is not None
    worker.gang.wait_for_step(beat.step + 3)
    assert "a profiler of its own" in worker.ask()["because"]
    (worker.gang.directory / "own").unlink()
    worker.goes_on()
    # The disk takes small files only: the trace is left out, the summary is there.
    (worker.gang.directory / "small").touch()
    worker.goes_on()
    answer = worker.ask(steps=5)
    assert answer["steps"] == 5
    assert answer["trace"] == ""
    assert answer["note"].startswith("the trace was left out")
    assert [path.name for path in answer["directory"].iterdir()] == ["rank-0.json"]
    worker.goes_on()


def test_a_place_where_nothing_can_be_written_loses_the_profile(worker: Worker) -> None:
    worker.profiles.write_text("not a directory")
    watch = Watch(worker.gang.directory, lambda *_: "")
    watch.ask_for_profile(0, Request(generation=1, steps=2, limit_s=60.0, name="nowhere"))
    deadline = time.monotonic() + PATIENCE_S
    while "no profile was taken" not in worker.gang.log():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.goes_on()


def test_an_agent_that_asks_twice_for_the_same_gets_one_profile(tmp_path: Path) -> None:
    watch = Watch(tmp_path, lambda *_: "")
    request = Request(generation=1, steps=2, limit_s=60.0, name="once")
    watch.ask_for_profile(0, request)
    before = watch.profile_path(1, 0).read_bytes()
    watch.ask_for_profile(0, request)
    assert watch.profile_path(1, 0).read_bytes() == before
    assert read_request(memoryview(before)) == request


def test_what_was_asked_of_an_earlier_process_or_another_generation_is_not_asked_of_this_one(tmp_path: Path) -> None:
    record = memoryview(bytearray(REQUEST_BYTES))
    pack_request(record, Request(generation=1, steps=2, limit_s=60.0, name="before"))
    profiling = Profiling(record, Place(generation=2, profiles=tmp_path), Say(rank=0, world_size=1))
    assert not profiling.wanted()
    pack_request(record, Request(generation=1, steps=2, limit_s=60.0, name="of another"))
    assert profiling.wanted()
    profiling.go_on(5, {})
    assert not profiling.wanted()
    assert not list(tmp_path.iterdir())


def test_to_look_whether_a_profile_is_wanted_costs_a_step_nothing() -> None:
    profiling = Profiling(memoryview(bytearray(REQUEST_BYTES)), Place(generation=1), Say(rank=0, world_size=1))
    best_s = min(timeit.repeat(profiling.wanted, number=10_000, repeat=5)) / 10_000
    assert best_s < 5e-6, f"{best_s * 1e9:.0f} ns a step; it takes some 300 on a slow machine"
