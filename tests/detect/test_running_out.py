"""What will be used up, when, and by whom; and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.detect.running_out import Left, RunningOut

GIB = 2.0**30


def watched(detector: RunningOut, left: list[float], *, size: float = 16 * GIB, kind: str = "memory", at: float = 0.0, who: str = "") -> RunningOut:
    for look, value in enumerate(left):
        detector.look([Left(kind=kind, name="memory of a", left=value, size=size, node="a", who=who)], at + look)
    return detector


def test_a_leak_is_told_of_with_the_time_that_is_left_and_who_it_is() -> None:
    leak = [8 * GIB - look * 20 * 2**20 for look in range(60)]
    (finding,) = watched(RunningOut(), leak, who="rank 2 has grown by 900 MiB").standing
    assert finding.kind == "memory_running_out"
    assert "about 6 min" in finding.because
    assert "rank 2 has grown" in finding.because


def test_memory_that_goes_up_and_down_is_not_running_out() -> None:
    saw = [8 * GIB - (look % 20) * 100 * 2**20 for look in range(300)]
    assert watched(RunningOut(), saw).standing == []


@pytest.mark.parametrize("seed", range(10))
def test_memory_that_only_wanders_is_not_running_out(seed: int) -> None:
    dice = np.random.default_rng(seed)
    assert watched(RunningOut(), list(8 * GIB + 50 * 2**20 * dice.standard_normal(600))).standing == []


def test_a_leak_while_most_is_free_can_wait() -> None:
    assert watched(RunningOut(), [15 * GIB - look * 20 * 2**20 for look in range(60)]).standing == []


def test_a_leak_that_stops_is_taken_back() -> None:
    detector = watched(RunningOut(), [8 * GIB - look * 20 * 2**20 for look in range(60)])
    assert detector.standing
    assert watched(detector, [8 * GIB - 60 * 20 * 2**20] * 60, at=60).standing == []


def test_what_is_no_longer_there_is_forgotten() -> None:
    detector = watched(RunningOut(), [8 * GIB - look * 20 * 2**20 for look in range(60)])
    detector.look([], 61.0)
    assert detector.standing == []


def test_a_disk_that_fills_up_is_told_of_by_its_place() -> None:
    detector = RunningOut()
    for look in range(60):
        detector.look([Left(kind="disk", name="space of /scratch on a", left=(5 - look / 60) * GIB, size=100 * GIB, node="a", of="/scratch")], look)
    (finding,) = detector.standing
    assert (finding.kind, finding.node, finding.of) == ("disk_running_out", "a", "/scratch")
