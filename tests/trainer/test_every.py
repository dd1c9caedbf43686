"""How often a rank saves: what the script says, what the command line says, and what control changes while it runs."""

from __future__ import annotations

import signal
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer.gang import Gang

import holdfast
from holdfast.agent.watch import Watch
from holdfast.checkpoint.layout import MANIFEST, failed_file, parse_directory_name
from holdfast.checkpoint.remove import Retention
from holdfast.domain.beat import BEAT_FILE_BYTES, FOLLOWS, read_beat
from holdfast.domain.interval import INTERVAL_BYTES, Told, pack_interval, read_interval
from holdfast.errors import UserError
from holdfast.trainer.every import Every, open_record
from holdfast.trainer.saves import SavePlan, Saves
from holdfast.trainer.say import Say


@pytest.fixture
def record() -> memoryview:
    return memoryview(bytearray(INTERVAL_BYTES))


def tell(record: memoryview, *, from_step: int, every: int, generation: int = 1) -> None:
    pack_interval(record, Told(generation=generation, from_step=from_step, every=every))


def saved(every: Every, steps: range) -> list[int]:
    return [step for step in steps if step % every.at(step) == 0]


def test_a_change_counts_from_its_step_on_whenever_a_rank_hears_of_it(record: memoryview) -> None:
    early, late = Every(5, record, generation=1), Every(5, record, generation=1)
    assert saved(early, range(1, 11)) == [5, 10]
    tell(record, from_step=31, every=7)
    assert saved(early, range(11, 50)) == [15, 20, 25, 30, 35, 42, 49]
    assert saved(late, range(1, 50)) == [5, 10, 15, 20, 25, 30, 35, 42, 49]
    assert early.late == late.late == ()
    tell(record, from_step=60, every=3)
    assert saved(early, range(50, 64)) == saved(late, range(50, 64)) == [56, 60, 63]


def test_what_is_told_to_another_generation_is_for_others(record: memoryview) -> None:
    tell(record, from_step=1, every=2, generation=1)
    every = Every(5, record, generation=2)
    assert saved(every, range(1, 12)) == [5, 10]
    tell(record, from_step=12, every=4, generation=2)
    assert saved(every, range(12, 18)) == [12, 16]


def test_a_rank_that_hears_too_late_knows_which_steps_only_some_have_saved(record: memoryview) -> None:
    every = Every(5, record, generation=1)
    assert saved(every, range(1, 20)) == [5, 10, 15]
    tell(record, from_step=12, every=6)
    assert every.at(20) == 6
    assert every.late == (12, 15, 18)


def test_the_same_told_again_changes_nothing(record: memoryview) -> None:
    """As it is when an agent has lost control and found it again."""
    every = Every(5, record, generation=1)
    tell(record, from_step=8, every=3)
    assert saved(every, range(1, 20)) == [5, 9, 12, 15, 18]
    tell(record, from_step=8, every=3)
    assert saved(every, range(20, 26)) == [21, 24]
    assert every.late == ()


def test_a_record_that_is_being_written_is_read_at_the_next_step(record: memoryview) -> None:
    every = Every(5, record, generation=1)
    tell(record, from_step=1, every=2)
    whole = bytes(record)
    record[0] += 1
    assert read_interval(record) is None
    assert every.at(1) == 5
    record[:] = whole
    assert every.at(2) == 2


def test_to_look_costs_less_than_a_microsecond(tmp_path: Path) -> None:
    path = tmp_path / "interval"
    path.write_bytes(bytes(INTERVAL_BYTES))
    every = Every(5, open_record(path), generation=1)
    assert min(timeit.repeat(lambda: every.at(3), timer=time.process_time, number=2000, repeat=100)) / 2000 < 1e-6


def test_what_only_some_ranks_saved_is_given_up_so_that_nobody_waits_for_the_rest(tmp_path: Path, record: memoryview) -> None:
    plan = SavePlan(checkpoints=tmp_path, every=5, generation=1, rank=1, world_size=2, retention=Retention())
    saves = Saves(plan, {}, Say(rank=1, world_size=2), saved_step=-1, record=record)
    assert [step for step in range(1, 13) if saves.due(step)] == [5, 10]
    tell(record, from_step=9, every=4)
    assert not saves.due(13)
    assert {path.name: [entry.name for entry in path.iterdir()] for path in sorted(tmp_path.iterdir())} == {
        "step-00000010.g1": [failed_file(1)],
        "step-00000012.g1": [failed_file(1)],
    }
    assert saves.due(16)


# guard.


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As under an agent; where the beats are."""
    for name, size in (("beats", BEAT_FILE_BYTES), ("interval", INTERVAL_BYTES)):
        (tmp_path / name).write_bytes(bytes(size))
        monkeypatch.setenv(f"HOLDFAST_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("HOLDFAST_GENERATION", "1")
    monkeypatch.setenv("HOLDFAST_RESTORE", "")
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path / "beats"
    signal.signal(signal.SIGTERM, before)


def says(beats: Path, **given: int) -> tuple[int, bool]:
    """How often it saves, and whether it hears control on that."""
    for _ in holdfast.guard(state={}, **given).steps(1):
        pass
    beat = read_beat(beats.read_bytes())
    assert beat is not None
    return beat.save_every, bool(beat.flags & FOLLOWS)


def test_a_script_that_says_nothing_leaves_it_to_control(plugged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert says(plugged) == (100, True)
    monkeypatch.setenv("HOLDFAST_SAVE_EVERY", "458")
    assert says(plugged) == (458, True)


def test_a_number_in_the_script_counts_unless_the_command_line_says_otherwise(plugged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SAVE_EVERY", "458")
    assert says(plugged, save_every=7) == (7, False)
    assert says(plugged, save_every=0) == (0, False)
    monkeypatch.setenv("HOLDFAST_SAVE_ASKED", "1")
    assert says(plugged, save_every=7) == (458, True)
    monkeypatch.setenv("HOLDFAST_SAVE_EVERY", "0")
    assert says(plugged, save_every=7) == (0, True)
    monkeypatch.setenv("HOLDFAST_SAVE_EVERY", "")
    assert says(plugged, save_every=7) == (100, True)


def test_a_worker_that_finds_no_record_goes_on_with_what_it_has(plugged: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOLDFAST_INTERVAL", str(plugged.with_name("gone")))
    assert says(plugged) == (100, False)
    assert "how often to save will not change" in capfd.readouterr().err


def test_without_holdfast_around_it_a_script_saves_every_hundred_steps(tmp_path: Path) -> None:
    for _ in holdfast.guard(state={}, checkpoints=tmp_path).steps(250):
        pass
    assert steps_in(tmp_path) == {100: True, 200: True, 250: True}


def test_an_interval_that_is_no_number_of_steps_is_refused() -> None:
    for bad in (-1, "often"):
        with pytest.raises(UserError, match=f"save_every={bad}.*expected save_every of 0 or more steps or None"):
            holdfast.guard(save_every=bad)  # type: ignore[arg-type]


def test_what_a_save_costs_is_told_without_the_first_and_the_last(plugged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = holdfast.guard(state={}, save_every=10)
    monkeypatch.setattr(run._saves, "took", lambda seconds, took=run._saves.took: took(9.0 if run.step == 10 else 1.0))
    stalls = []
    for _ in run.steps(35):
        beat = read_beat(plugged.read_bytes())
        assert beat is not None
        stalls.append(beat.stall_s)
    assert stalls[9] != stalls[9], "not measured before the first"
    assert (stalls[10], stalls[20], stalls[34]) == (9.0, 1.0, 1.0)


def pace(steps: int, step_s: float) -> None:
    run = holdfast.guard(state={}, keep=1000)
    for _ in run.steps(steps):
        time.sleep(step_s)


def steps_in(checkpoints: Path) -> dict[int, bool]:
    """Steps that were saved, and whether by all ranks."""
    found = {parse_directory_name(path.name): (path / MANIFEST).exists() for path in checkpoints.iterdir()}
    return {name[0]: whole for name, whole in sorted(found.items()) if name is not None}


def test_real_ranks_change_at_the_same_step(tmp_path: Path) -> None:
    watch = Watch(tmp_path, lambda generation, rank, pid: "")
    assert watch.interval_path().stat().st_mode & 0o077 == 0
    env = {"HOLDFAST_CHECKPOINTS": str(tmp_path / "checkpoints"), "HOLDFAST_GENERATION": "1", "HOLDFAST_RESTORE": ""}
    env |= {"HOLDFAST_INTERVAL": str(watch.interval_path())}
    with Gang(tmp_path / "gang", pace, ranks=2, env=env | {"HOLDFAST_SAVE_EVERY": "20"}, steps=150, step_s=0.01) as gang:
        gang.wait_for_step(30)
        watch.tell_interval(Told(generation=1, from_step=90, every=7))
        assert gang.wait() == [0, 0], gang.log()
    assert steps_in(tmp_path / "checkpoints") == dict.fromkeys([20, 40, 60, 80, 91, 98, 105, 112, 119, 126, 133, 140, 147, 150], True)
