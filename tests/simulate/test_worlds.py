"""The core in made-up worlds. A failure line names its seed: `holdfast simulate --start SEED --seeds 1 --story` shows all of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from simulate.kept import KEPT

from holdfast.cli.simulate import run_survey
from holdfast.control.journal import Journal
from holdfast.core import Core
from holdfast.detect.poisoned import Poisoned
from holdfast.domain.job import Outcome
from holdfast.simulate.judge import Broken
from holdfast.simulate.sites import SITES
from holdfast.simulate.survey import Survey, survey
from holdfast.simulate.world import Report, run

SHORT = 0.05  # A scale: stories of some fifty events, of which every moment can be tried.


def _run(seed: int, **options: object) -> Report:
    try:
        return run(seed, **options)  # type: ignore[arg-type]
    except Exception as error:
        raise AssertionError(f"seed {seed} {options or ''} failed: {error}") from error


@pytest.fixture(scope="module")
def worlds() -> Survey:
    return survey(range(60))


def test_worlds_keep_every_promise(worlds: Survey) -> None:
    assert not worlds.failed, worlds.failed


def test_hundreds_of_short_stories_keep_every_promise() -> None:
    for seed in range(250):
        _run(seed, scale=SHORT)


def test_something_went_wrong_at_nearly_every_site_and_the_median_story_is_long(worlds: Survey) -> None:
    """All of a thousand seeds are asked for more: see the slow tests."""
    assert set(worlds.sites) == set(SITES)
    assert set(worlds.never_hit) <= {"checkpoint.part_lost", "node.gone", "worker.unkillable", "job.stop_asked_now"}, "these are rare"
    assert worlds.median_events >= 900


def test_worlds_of_many_nodes_keep_every_promise(seed: int) -> None:
    for number in (0, seed):
        _run(number, nodes=32)


def test_worlds_of_this_day_keep_every_promise(seed: int) -> None:
    for number in range(seed * 1000, seed * 1000 + 200):
        _run(number, scale=1.0 if number % 10 == 0 else SHORT)


@pytest.mark.parametrize(("seed", "options", "what"), KEPT)
def test_a_seed_that_found_a_mistake_once_finds_none_again(seed: int, options: dict[str, object], what: str) -> None:
    _run(seed, **options)


def test_the_hash_of_an_event_log_is_the_same_in_another_process_where_sets_have_another_order() -> None:
    """Sets of strings come in an order that depends on PYTHONHASHSEED: nothing that happens may."""
    code = "from holdfast.simulate.world import run; print(*(run(seed).hash for seed in range(4)))"
    said = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": number}, check=True, capture_output=True, text=True).stdout
        for number in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(set(said[0].split())) == 4
    assert said[0].split() == [run(seed).hash for seed in range(4)]


def test_the_same_seed_is_the_same_story() -> None:
    for seed in (1, 2, 3, 40, 77):
        first: list[str] = []
        second: list[str] = []
        assert run(seed, lines=first) == run(seed, lines=second)
        assert first == second


def test_a_world_without_faults_finishes_in_its_first_generation() -> None:
    for seed in range(20):
        report = run(seed, severity=0.0)
        assert (report.outcome, report.generations) == (Outcome.FINISHED, 1)


@pytest.mark.parametrize("seed", [3, 11, 25])
def test_control_may_die_at_every_write(seed: int) -> None:
    """Before and after each of the first writes of a story; what the seed brings besides happens too."""
    for number in range(1, run(seed, scale=SHORT).events + 1):
        _run(seed, scale=SHORT, crash_before_write=number)
        _run(seed, scale=SHORT, crash_after_write=number)


def test_the_real_journal_keeps_the_same_promises(tmp_path: Path) -> None:
    for seed in range(5):
        report = run(seed, scale=0.3, journal=lambda seed=seed: Journal(tmp_path / f"{seed}.db"))  # type: ignore[misc]
        assert report == run(seed, scale=0.3)


@pytest.mark.parametrize("severity", [0.0, 1.0])
def test_poisoned_checkpoints_are_left_behind_within_bounds(severity: float) -> None:
    """One, two or all of them turn to NaN: the promises at the end of each world say how it may end."""
    for count in (1, 2, 100):
        for seed in range(60):
            _run(seed, poisoned=count, severity=severity, scale=SHORT)


def test_a_quiet_world_with_one_poisoned_checkpoint_finishes_from_an_older_one_or_says_that_there_is_none() -> None:
    reports = [run(seed, poisoned=1, severity=0.0, scale=SHORT) for seed in range(80)]
    assert {report.outcome for report in reports} == {Outcome.FINISHED, Outcome.PERMANENT}
    assert max(report.generations for report in reports if report.outcome == Outcome.FINISHED) == 3, "killed, NaN, and once more"
    assert max(report.generations for report in reports) <= 5, "the same again when it is resumed"


def test_the_story_of_a_seed_is_the_same_up_to_the_moment_its_checkpoints_turn_to_nan() -> None:
    calm: list[str] = []
    struck: list[str] = []
    run(5, poisoned=0, lines=calm, scale=0.3)
    report = run(5, poisoned=1, lines=struck, scale=0.3)
    assert any("hold NaN" in what for what in report.faults)
    turned = next(number for number, line in enumerate(struck) if "hold NaN" in line)
    assert turned > 10
    assert calm[:turned] == struck[:turned]


def test_a_job_that_runs_on_with_nan_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poisoned, "look", lambda *_, **__: None)
    with pytest.raises(Broken, match="finished on NaN"):
        [run(seed, poisoned=1, severity=0.0, scale=SHORT) for seed in range(20)]


def test_a_broken_promise_is_an_assertion_that_names_it() -> None:
    assert issubclass(Broken, AssertionError)


def test_the_command_says_how_it_went_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_survey(5, 7, story=False, as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["seeds"], said["failed"], sum(said["outcomes"].values())) == (5, {}, 5)
    assert set(said["sites"]) == set(SITES)
    assert run_survey(2, 0, story=True, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "JobSubmitted" in shown
    assert "never hit: " in shown


def test_the_command_names_the_seeds_that_failed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "_stop_on", lambda *_, **__: None)
    assert run_survey(3, 0, story=False, as_json=False) == 1
    assert "failed seeds: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_worlds_keep_every_promise() -> None:
    """Every fault site is hit a hundred times within the first thousand, and the median story has a thousand events."""
    for start in range(0, 10_000, 1000):
        found = survey(range(start, start + 1000))
        assert not found.failed, found.failed
        assert min(found.sites.values()) >= 100, found.sites
        assert found.median_events >= 1000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_seeds_have_the_same_hash_twice() -> None:
    first, second = survey(range(1000)), survey(range(1000))
    assert first.hashes == second.hashes
    assert len(first.hashes) == 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_thousand_short_stories_keep_every_promise() -> None:
    for seed in range(1_000_000, 1_020_000):
        _run(seed, scale=SHORT)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_worlds_from_todays_seed_for_as_long_as_there_is_time(seed: int, soak_seconds: float) -> None:
    dice, until = random.Random(seed), time.monotonic() + min(soak_seconds, 120.0)
    with tempfile.TemporaryDirectory(prefix="hf-") as directory:
        count = 0
        while time.monotonic() < until:
            number = dice.randrange(2**40)
            real = {"journal": lambda number=number: Journal(Path(directory) / f"{number}.db")} if count % 20 == 0 else {}
            _run(number, scale=1.0 if count % 10 == 0 else SHORT, **real)
            count += 1
