"""Silent rank: hangs are found in time, and legal pauses are not called hangs. One world of fake looks, a look a second as the agent has it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from holdfast.detect.silent_rank import Limits, Look, SilentRank
from holdfast.domain.finding import Finding


@dataclass
class Machine:
    """Some ranks and the detector that looks at them once a second."""

    ranks: int = 1
    now: float = 1000.0
    detector: SilentRank = field(default_factory=SilentRank)
    found: list[tuple[float, Finding]] = field(default_factory=list)
    step: dict[int, int] = field(default_factory=dict)
    phase: dict[int, tuple[str, float]] = field(default_factory=dict)
    beat: dict[int, float] = field(default_factory=dict)
    cpu: dict[int, float] = field(default_factory=dict)
    state: dict[int, str] = field(default_factory=dict)
    cpu_share: dict[int, float] = field(default_factory=dict)
    stack: dict[int, Iterator[str]] = field(default_factory=dict)
    pid: int = 1
    generation: int = 1
    left: bool = False
    _next_look: float = 1000.0

    def __post_init__(self) -> None:
        for rank in range(self.ranks):
            self.step[rank], self.cpu[rank], self.cpu_share[rank], self.state[rank] = 0, 0.0, 0.9, "S"
            self.enter("step", rank)

    def enter(self, phase: str, *ranks: int) -> None:
        for rank in ranks or range(self.ranks):
            self.phase[rank], self.beat[rank] = (phase, self.now), self.now

    def stepped(self, seconds: float) -> None:
        """Every rank takes one step of this length."""
        self.go(seconds)
        for rank in range(self.ranks):
            self.step[rank] += 1
            self.enter("step", rank)

    def go(self, seconds: float) -> None:
        """Time passes; the detector looks."""
        until = self.now + seconds
        while self._next_look <= until:
            self._pass(self._next_look)
            suspects = self.detector.suspects()
            looks = {rank: self._look(rank, rank in suspects) for rank in range(self.ranks)}
            self.found += [(self.now, finding) for finding in self.detector.look(looks, self.now)]
            self._next_look += 1.0
        self._pass(until)

    def _pass(self, at: float) -> None:
        for rank in range(self.ranks):
            self.cpu[rank] += self.cpu_share[rank] * (at - self.now)
        self.now = at

    def _look(self, rank: int, suspected: bool) -> Look:
        phase, since = self.phase[rank]
        stack = next(self.stack[rank]) if suspected and rank in self.stack else ""
        return Look(
            pid=self.pid, generation=self.generation, left=self.left, step=self.step[rank], phase=phase, phase_since=since, beat_at=self.beat[rank],
            process_state=self.state[rank], cpu_s=self.cpu[rank], stack=stack,
        )  # fmt: skip

    def idle(self, *ranks: int) -> None:
        for rank in ranks or range(self.ranks):
            self.cpu_share[rank] = 0.0


def _same() -> Iterator[str]:
    while True:
        yield "train.py:spin:12"


def _moving() -> Iterator[str]:
    line = 0
    while True:
        line += 1
        yield f"train.py:work:{line}"


def _trained(ranks: int = 1, steps: int = 200, seconds: float = 0.1) -> Machine:
    machine = Machine(ranks=ranks)
    for _ in range(steps):
        machine.stepped(seconds)
    assert not machine.found
    return machine


@pytest.mark.parametrize("seconds", [0.01, 0.1, 1.0, 8.0, 20.0, 60.0])
def test_a_sleeping_hang_is_found_within_the_promised_time(seconds: float) -> None:
    machine = _trained(steps=max(120, int(10 / seconds)), seconds=seconds)
    machine.idle()
    machine.go(max(30.0, 3 * seconds))
    assert [finding.kind for _, finding in machine.found] == ["silent_rank"]


def test_a_stopped_process_is_found_within_four_seconds_whatever_its_phase() -> None:
    for phase in ("step", "eval", "start"):
        machine = _trained()
        machine.enter(phase)
        machine.go(0.5)
        machine.state[0] = "T"
        machine.idle()
        machine.go(4.1)
        assert [finding.kind for _, finding in machine.found] == ["stopped_rank"], phase


def test_of_a_script_that_does_not_beat_it_is_told_that_it_is_stopped_and_nothing_else() -> None:
    machine = Machine()
    machine.phase[0], machine.beat[0], machine.step[0] = ("", 0.0), 0.0, -1
    machine.idle()
    machine.go(7200.0)
    assert not machine.found, "two idle hours may be the script's own"
    machine.state[0] = "T"
    machine.go(4.1)
    ((at, finding),) = machine.found
    assert finding.kind == "stopped_rank"
    assert at - 4.1 <= finding.since <= at
    assert "beat" not in finding.because


def test_who_is_seen_before_it_beats_is_judged_by_what_it_did_until_then() -> None:
    """An agent that was started again looks at a process before it has read its beat."""
    detector = SilentRank()
    detector.look({0: Look(pid=1, step=-1, phase="", phase_since=0.0, beat_at=0.0, process_state="S", cpu_s=1.0)}, 100.0)
    beaten = Look(pid=1, step=200, phase="step", phase_since=100.0, beat_at=100.0, process_state="S", cpu_s=1.0, steps=200, started_at=80.0)
    detector.look({0: beaten}, 101.0)
    assert detector.limit_s("step") == Limits().floor_s


def test_a_hang_is_told_once_a_minute_and_anew_after_progress() -> None:
    machine = _trained()
    machine.idle()
    machine.go(60.0)
    assert len(machine.found) == 1
    machine.go(40.0)
    assert len(machine.found) == 2
    for _ in range(5):
        machine.stepped(0.1)
    machine.go(100.0)
    assert len(machine.found) == 3


@pytest.mark.parametrize("seen_leaving", [True, False])
def test_who_waited_in_a_broken_gang_and_lives_on_has_learned_nothing_of_it(seen_leaving: bool) -> None:
    """It keeps its process: what it waited for a rank that hung would else pass for a step, and the next hang take three times as long to be found."""
    machine = _trained()
    for _ in range(3):
        told = len(machine.found)
        machine.idle()
        machine.go(30.0)
        assert [finding.kind for _, finding in machine.found[told:]] == ["silent_rank"]
        machine.left = seen_leaving
        machine.enter("rejoin")
        machine.go(1.0 if seen_leaving else 0.0)
        machine.generation, machine.left, machine.cpu_share[0] = machine.generation + 1, False, 0.9
        for seconds in (1.5, *[0.1] * 20):
            machine.stepped(seconds)


def test_what_was_learned_can_be_handed_to_the_detector_that_comes_after() -> None:
    before = _trained()
    after = Machine(ranks=1)
    after.detector.learn(before.detector.learned())
    assert after.detector.limit_s("step") == before.detector.limit_s("step")
    assert after.detector.limit_s("never seen") == Limits().first_s


def test_a_busy_loop_with_a_stack_that_does_not_move_is_a_hang() -> None:
    machine = _trained()
    machine.stack[0] = _same()
    machine.go(30.0)
    assert [finding.kind for _, finding in machine.found] == ["silent_rank"]
    assert "stack" in machine.found[0][1].because


def test_a_busy_process_whose_stack_moves_is_alive() -> None:
    machine = _trained()
    machine.stack[0] = _moving()
    machine.go(300.0)
    assert not machine.found


def test_busy_data_loader_workers_are_life() -> None:
    """The worker itself sleeps and its stack cannot be read; the CPU time of its children counts."""
    machine = _trained()
    machine.cpu_share[0] = 0.5
    machine.go(300.0)
    assert not machine.found


def test_a_slow_first_step_is_no_hang() -> None:
    machine = Machine()
    machine.idle()
    machine.go(600.0)
    assert not machine.found


def test_evaluation_and_saving_have_limits_of_their_own() -> None:
    machine = _trained()
    for _ in range(6):
        for phase, seconds in (("eval", 90.0), ("save", 40.0)):
            machine.enter(phase)
            machine.cpu_share[0] = 0.0
            machine.go(seconds)
            machine.enter("step")
            machine.cpu_share[0] = 0.9
            for _ in range(20):
                machine.stepped(0.1)
    assert not machine.found
    machine.enter("eval")
    machine.idle()
    machine.go(3 * 91.0)  # The longest one seen, to the look.
    assert [finding.kind for _, finding in machine.found] == ["silent_rank"]


def test_ranks_that_wait_while_one_evaluates_alone_are_not_hung() -> None:
    machine = _trained(ranks=4)
    machine.enter("eval", 0)
    machine.idle(1, 2, 3)
    machine.go(120.0)
    assert not machine.found


def test_ranks_that_wait_for_one_that_sleeps_in_its_evaluation_are_hung() -> None:
    machine = _trained(ranks=2)
    machine.enter("eval", 0)
    machine.idle()
    machine.go(30.0)
    assert [finding.ranks for _, finding in machine.found] == [(1,)]


def test_a_gang_that_hangs_together_is_found_and_the_detector_names_each() -> None:
    machine = _trained(ranks=3)
    machine.idle()
    machine.go(30.0)
    assert sorted(finding.ranks[0] for _, finding in machine.found) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_step_times_with_heavy_tails_raise_no_alarm(seed: int) -> None:
    """Some steps take thirty times the usual, on a machine whose other core is busy: the process works, or waits for less than its limit."""
    dice, machine = random.Random(seed), _trained(ranks=2)
    for rank in range(2):
        machine.stack[rank] = _moving()
    for _ in range(400):
        seconds = 0.1 * dice.lognormvariate(0.0, 1.2)
        machine.cpu_share[1] = 0.0 if seconds < 5.0 else 0.3
        machine.stepped(min(seconds, 60.0))
    assert not machine.found


def test_the_gap_between_two_processes_of_a_rank_is_not_taken_for_a_step() -> None:
    # The new process is there before the next look, so the rank is never seen to be gone.
    machine = _trained()
    before = machine.detector.limit_s("step")
    machine.idle()
    machine.go(20.0)
    machine.pid, machine.cpu_share[0] = 2, 0.9
    machine.enter("start")
    for _ in range(20):
        machine.stepped(0.1)
    assert machine.detector.limit_s("step") == before


def test_a_hang_after_the_first_steps_is_found_although_no_step_was_seen_to_end() -> None:
    detector, found = SilentRank(), []
    for second in range(30):
        look = Look(
            pid=1, step=10, phase="step", phase_since=1000.0, beat_at=1000.0, process_state="S", cpu_s=5.0, steps=10, started_at=994.0
        )
        found += detector.look({0: look}, 1000.5 + second)
    assert [finding.kind for finding in found] == ["silent_rank"]


def test_a_start_that_hangs_is_found_although_the_one_before_was_too_short_to_be_seen() -> None:
    detector = SilentRank()
    began = Look(pid=1, generation=1, step=10, phase="step", phase_since=1001.0, beat_at=1003.0, process_state="S", cpu_s=5.0, steps=10, started_at=1000.0)
    assert not detector.look({0: began}, 1003.0)
    waits = Look(pid=1, generation=2, step=10, phase="start", phase_since=1010.0, beat_at=1010.0, process_state="S", cpu_s=5.0, started_at=1000.0)
    found = [(now, one) for now in range(1010, 1200) for one in detector.look({0: waits}, float(now))]
    assert found
    at, first = found[0]
    assert 1070 <= at <= 1080, "a minute, for a phase that was hardly ever seen"
    assert "in phase 'start'" in first.because


def test_a_rank_that_is_started_anew_is_judged_anew() -> None:
    machine = _trained()
    machine.idle()
    machine.go(30.0)
    assert len(machine.found) == 1
    machine.detector.look({}, machine.now)
    machine.step[0] = 0
    machine.enter("start")
    machine.go(100.0)
    assert len(machine.found) == 1
