"""The core in made-up worlds. A failure line names its seed: `holdfast simulate --seeds SEED-SEED --story` shows all of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from end_to_end.jobs import eventually
from simulate.kept import KEPT
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.simulate import Worlds, run_survey
from holdfast.control.journal import Journal
from holdfast.core import Core
from holdfast.detect.poisoned import Poisoned
from holdfast.domain.job import Outcome
from holdfast.simulate.cores import cores
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
    assert run_survey(Worlds(seeds=range(7, 12)), as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["seeds"], said["failed"], sum(said["outcomes"].values())) == (5, {}, 5)
    assert set(said["sites"]) == set(SITES)
    assert said["hashes"] == {str(seed): run(seed).hash for seed in range(7, 12)}
    assert run_survey(Worlds(seeds=range(2), story=True), as_json=False) == 0
    assert "JobSubmitted" in capsys.readouterr().out
    assert run_survey(Worlds(seeds=range(2)), as_json=False) == 0
    shown = capsys.readouterr().out
    assert "never hit: " in shown
    assert run(1).hash in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_the_command_plays_worlds_of_any_size_on_all_cores_with_the_same_hashes() -> None:
    said = CliRunner().invoke(app, ["simulate", "--seeds", "3-7", "--nodes", "20", "--json"])
    assert said.exit_code == 0, said.output
    record = json.loads(said.stdout)
    assert (record["seeds"], record["nodes"], record["processes"]) == (5, 20, min(2, cores()))
    alone = survey(range(3, 8), nodes=20)
    assert (record["hashes"], record["sites"], record["hash"]) == (alone.hashes, alone.sites, alone.hash)
    assert alone.processes == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seeds", "0"], "would play nothing"),
        (["--seeds", "many"], "neither how many seeds nor a range"),
        (["--seeds", "-5"], "neither how many seeds nor a range"),
        (["--seeds", "1-2-3"], "neither how many seeds nor a range"),
        (["--seeds", "9" * 20], "a number of 20 digits; expected 15 or fewer"),
        (["--seeds", "0-" + "9" * 5000], "a number of 5000 digits"),
        (["--seeds", "9-3"], "did you mean 3-9?"),
        (["--seeds", "3-9", "--start", "2"], "leave out --start"),
        (["--nodes", "0"], "0 is not in the range"),
        (["--nodes", "some"], "not a valid int"),
        (["--days", "1:2"], "--days is for the replay of a trace"),
        (["--policy", "fifo"], "--policy is for the replay of a trace"),
        (["--trace", "x.csv", "--story"], "--story is for made-up faults"),
        (["--seeds", "1", "--story", "--json"], "leave out one of the two"),
    ],
)
def test_the_command_refuses_what_makes_no_sense_in_a_sentence(options: list[str], says: str) -> None:
    refused = CliRunner().invoke(app, ["simulate", *options])
    assert refused.exit_code != 0
    assert says in str(refused.exception) + refused.output


def test_the_command_tells_of_a_broken_promise_with_its_seed_and_how_to_play_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Core, "_stop_on", lambda *_, **__: None)
    assert run_survey(Worlds(seeds=range(3)), as_json=False) == 1
    shown = capsys.readouterr().out
    seed = next(line.split()[1] for line in shown.splitlines() if "broke a promise: " in line)
    assert f"play it again: holdfast simulate --seeds {seed}-{seed} --story\n" in shown
    recording = tmp_path / "lost of mine.csv"
    recording.write_text("at_s,node\n1,a\n2,b\n")
    assert run_survey(Worlds(seeds=range(3), nodes=4, failures=recording), as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["failed"].keys() == said["again"].keys() != set()
    again = shlex.split(next(iter(said["again"].values())))
    told = CliRunner().invoke(app, again[1:])
    assert told.exit_code == 1
    assert "broke a promise" in told.output
    assert "JobSubmitted" in told.output


def test_whatever_the_core_raises_is_a_broken_promise_of_that_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "step", lambda *_: {}["none"])
    found = survey(range(2))
    assert set(found.failed) == {"0", "1"}
    assert "KeyError" in found.failed["0"]


def test_ctrl_c_ends_all_processes_and_what_was_played_is_told(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "simulate", "--seeds", "100000", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: max(_cpu_s_of_session(process.pid)) > 2.0, what="work")  # Of which some was importing.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert "holdfast: stopped after " in err
    assert "Traceback" not in err
    assert json.loads(out)["stopped"]
    eventually(lambda: not _cpu_s_of_session(process.pid), what="the end of its processes")


def _cpu_s_of_session(leader: int) -> list[float]:
    """Of each of its processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It ended meanwhile.
            state, _, _, session, *rest = path.read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                found.append(int(rest[7]) / os.sysconf("SC_CLK_TCK"))
    return found


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_worlds_keep_every_promise() -> None:
    """Every fault site is hit a hundred times within the first thousand, and the median story has a thousand events."""
    for start in range(0, 10_000, 1000):
        found = survey(range(start, start + 1000), processes=cores())
        assert not found.failed, found.failed
        assert min(found.sites.values()) >= 100, found.sites
        assert found.median_events >= 1000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_seeds_have_the_same_hash_twice() -> None:
    first, second = (survey(range(1000), processes=cores()) for _ in range(2))
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
