"""Ways to leave a loop before its end: the last finished step is saved, or a sentence names what is in no checkpoint. A resume goes on right there."""

from __future__ import annotations

import atexit
import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer.gang import Gang

from holdfast.checkpoint.found import newest_complete

LEAVES = Path(__file__).resolve().parents[2] / "benchmarks" / "scripts" / "leaves.py"
LEFT_AFTER = 37


def as_a_script(where: str, way: str) -> None:
    """Run it as `python leaves.py` would be, to the end of the interpreter."""
    import torch

    torch._dynamo.config  # noqa: B018  # What a fork server has loaded must not be loaded again by an optimizer.
    sys.argv = [str(LEAVES), where, way]
    try:
        runpy.run_path(str(LEAVES), run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit):
            sys.last_value = error
        raise
    finally:
        atexit._run_exitfuncs()  # A process of multiprocessing does not call them.


class Trained:
    """A directory in which `leaves.py` was started once or more."""

    def __init__(self, directory: Path, way: str, *, ranks: int) -> None:
        self._directory, self._way, self._ranks = directory, way, ranks
        self._generation = 0
        directory.mkdir()
        self.said = ""

    def start(self) -> int:
        """Restored from what is newest; the newest complete checkpoint's step afterwards."""
        self._generation += 1
        checkpoints = self._directory / "checkpoints"
        newest = newest_complete(checkpoints) if checkpoints.is_dir() else None
        env = {"HOLDFAST_CHECKPOINTS": str(checkpoints), "HOLDFAST_GENERATION": f"{self._generation}", "HOLDFAST_RESTORE": newest.name if newest else ""}
        arguments: dict[str, Any] = {"where": str(self._directory), "way": self._way}
        with Gang(self._directory / f"{self._generation}", as_a_script, ranks=self._ranks, env=env, **arguments) as gang:
            gang.wait()
            self.said = "".join(gang.log(rank) for rank in range(self._ranks))
        newest = newest_complete(checkpoints)
        return newest.step if newest is not None else 0

    def to_the_end_at_once(self) -> list[str]:
        for rank in range(self._ranks):
            (self._directory / f"left-{rank}").touch()
        self.start()
        return self.end()

    def end(self) -> list[str]:
        return [(self._directory / f"end-{rank}").read_text() for rank in range(self._ranks)]

    def lost(self) -> tuple[int, int] | None:
        """The steps that are in no checkpoint, as the sentence says."""
        found = re.search(r"steps? (\d+)(?: to (\d+))? (?:is|are) in no checkpoint", self.said)
        return (int(found[1]), int(found[2] or found[1])) if found else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], list[str]]:
    """How a way ends that trains the same and is not left."""
    return functools.cache(lambda way, ranks: Trained(tmp_path_factory.mktemp("whole") / "whole", way, ranks=ranks).to_the_end_at_once())


def is_saved(directory: Path, way: str, end: list[str], *, ranks: int = 1) -> None:
    left = Trained(directory / "left", way, ranks=ranks)
    assert left.start() == LEFT_AFTER, left.said
    assert left.lost() is None, left.said
    left.start()
    assert left.end() == end, left.said


def mostly_slow(*ways: str, at_once: int) -> list[Any]:
    return [pytest.param(way, marks=() if number < at_once else pytest.mark.slow) for number, way in enumerate(ways)]


@pytest.mark.parametrize(
    "way",
    mostly_slow(
        "break_top", "break_bottom", "next_kept", "uncaught_top", "return_top", "raise_top", "exit_bottom", "interrupt_bottom", "next_evaluates", "deleted",
        "islice", "zip_top", "bar", "bar_kept", "thread", "quick", at_once=4,
    ),
)  # fmt: skip
def test_the_last_finished_step_of_a_loop_that_is_left_is_saved(tmp_path: Path, whole: Callable[[str, int], list[str]], way: str) -> None:
    is_saved(tmp_path, way, whole("break_top", 1))


@pytest.mark.parametrize(
    "way", mostly_slow("break_top@loader", "two_optimizers", "scaler", "forward_no_norm", "group_end", "break_bottom@sampler", at_once=2)
)  # fmt: skip
def test_so_it_is_with_data_that_is_drawn_and_several_optimizers(tmp_path: Path, whole: Callable[[str, int], list[str]], way: str) -> None:
    if way == "forward_no_norm":  # It is left within the 37th step.
        left = Trained(tmp_path / "left", way, ranks=1)
        assert left.start() == LEFT_AFTER - 1, left.said
        left.start()
        assert left.end() == whole(way, 1)
        return
    is_saved(tmp_path, way, whole(way, 1))


@pytest.mark.parametrize("way", mostly_slow("next_group_gone", "break_top", "break_bottom", at_once=1))
def test_so_it_is_on_two_ranks_also_when_the_process_group_is_gone(tmp_path: Path, whole: Callable[[str, int], list[str]], way: str) -> None:
    is_saved(tmp_path, way, whole("break_top", 2), ranks=2)


@pytest.mark.parametrize(
    ("way", "last"),
    [("break_middle", 37), pytest.param("raise_middle", 37, marks=pytest.mark.slow), pytest.param("break_before_average", 37, marks=pytest.mark.slow),
     pytest.param("raise_forward", 37, marks=pytest.mark.slow), pytest.param("group_middle", 37, marks=pytest.mark.slow), ("next_moved", 37)],
)  # fmt: skip
def test_a_loop_that_is_left_in_the_middle_of_a_step_saves_nothing_and_says_what_is_lost(tmp_path: Path, way: str, last: int) -> None:
    left = Trained(tmp_path / "left", way, ranks=1)
    assert left.start() == 30, left.said
    assert left.lost() == (31, last), left.said


def test_ranks_that_leave_after_different_steps_say_that_theirs_is_no_checkpoint(tmp_path: Path) -> None:
    left = Trained(tmp_path / "left", "uneven", ranks=2)
    assert left.start() == 30, left.said
    assert "steps 31 to 37 are in no checkpoint yet: rank 1 had not saved step 37 when this rank ended" in left.said
    assert "steps 31 to 38 are in no checkpoint yet: rank 0 had not saved step 38 when this rank ended" in left.said
