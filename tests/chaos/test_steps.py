"""Step logs: when every rank steps again after one was struck, whichever launcher brought it back, and whether the others were kept or started anew."""

from __future__ import annotations

from pathlib import Path

from holdfast.chaos.steps import StepLogs


def write(directory: Path, rank: int, *lines: tuple[int, float, int]) -> None:
    with (directory / f"steps-{rank}").open("a") as file:
        file.writelines(f"{step} {at} {pid}\n" for step, at, pid in lines)


def test_all_are_back_when_the_struck_rank_is_another_process_and_every_rank_has_stepped_with_it(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path, 2)
    write(tmp_path, 0, (1, 1.0, 10), (2, 2.0, 10))
    write(tmp_path, 1, (1, 1.0, 11))
    assert logs.all_again(1, 1.5, 11) is None  # What the survivor finished alone says nothing.
    write(tmp_path, 1, (1, 5.0, 21))
    assert logs.all_again(1, 1.5, 11) is None
    write(tmp_path, 0, (1, 5.02, 20))
    assert logs.all_again(1, 1.5, 11) == 5.02


def test_a_survivor_that_kept_its_process_counts_when_it_steps_with_the_new_one(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path, 2)
    write(tmp_path, 0, (1, 1.0, 10), (2, 4.0, 10))
    write(tmp_path, 1, (1, 1.0, 11), (2, 4.01, 21))
    assert logs.all_again(1, 1.5, 11) == 4.01


def test_a_rank_that_never_came_back_as_another_process_is_not_back(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path, 1)
    write(tmp_path, 0, (1, 1.0, 10), (2, 9.0, 10))
    assert logs.all_again(0, 1.5, 10) is None


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path, 1, "beats")
    (tmp_path / "beats-0").write_text("1 1.0 10\n2 2.")
    assert logs.newest_step() == 1
    (tmp_path / "beats-0").write_text("1 1.0 10\n2 2.0 10\n")
    assert logs.newest_step() == 2
