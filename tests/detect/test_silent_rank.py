"""Silent rank, pause, late data: a gang that cannot go on is found in time, and one that may go on by itself is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.detect.silent_rank import EARLY_S, IDLE_LIMIT_S, ON_GPU_S, WORK_LIMIT_S, HangLimits, judge
from holdfast.detect.standstill import Doing, Sight
from holdfast.domain.finding import Finding
from holdfast.domain.signs import BEGUN, COLLECTIVE, DATA, ELSEWHERE, Signs

ALL_REDUCE = "train.py:<module>:20"
EVALUATE = "train.py:<module>:31 > train.py:evaluate"


def sight(rank: int, *, phase: str = "step", step: int = 250, heard: bool = True, alone: bool = False, **signs: Any) -> Sight:
    told = Signs(**{"quiet_s": 9.0, "usual_s": 20.0, "quick": True, "process_state": "S", "sampled_s": 1.0, "stack_s": 6.0, **signs})
    return Sight(rank=rank, node="n1", phase=phase, step=step, signs=told, heard=heard, alone=alone)


def waits(rank: int, quiet_s: float = 9.0, **more: Any) -> Sight:
    idle = {"main_idle_s": quiet_s - 1.5, "own_idle_s": quiet_s, "children_idle_s": quiet_s, "io_idle_s": quiet_s - 1.5}
    return sight(rank, **{"quiet_s": quiet_s, "inside": COLLECTIVE, "place": ALL_REDUCE, "where": "train.py:20", **idle, **more})


def works(rank: int, quiet_s: float = 40.0, **more: Any) -> Sight:
    busy = {"own_idle_s": 0.0, "children_idle_s": quiet_s, "io_idle_s": quiet_s}
    return sight(rank, **{"quiet_s": quiet_s, "inside": ELSEWHERE, "place": EVALUATE, "where": "`evaluate`, train.py:12", **busy, **more})


def idle(rank: int, quiet_s: float = 40.0, **more: Any) -> Sight:
    return works(rank, quiet_s, **{"own_idle_s": quiet_s, "doing": "sleeps", **more})


def moves(rank: int, *, phase: str = "step") -> Sight:
    return Sight(rank=rank, node="n1", phase=phase, step=251, signs=None)


def stopped(rank: int, stopped_s: float = 3.2, **more: Any) -> Sight:
    return sight(rank, **{"quiet_s": stopped_s, "process_state": "T", "stopped_s": stopped_s, "sampled_s": None, "stack_s": None, **more})


def judged(*sights: Sight, **limits: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.kind, finding.ranks) for finding in judge(sights, HangLimits(**limits))]


def one(*sights: Sight, **limits: Any) -> Finding:
    (finding,) = judge(sights, HangLimits(**limits))
    return finding


def waits_on_gpu(rank: int, quiet_s: float = 9.0, **more: Any) -> Sight:
    """`loss.item()`: the main thread runs all the while, and the GPU is in a collective."""
    return works(rank, quiet_s, **{"on_gpu": True, "main_idle_s": 0.0, "pending_s": quiet_s - 3.0, "place": ALL_REDUCE, "where": "train.py:20", **more})


# Everybody waits.


def test_a_gang_of_quick_steps_in_which_all_wait_in_collectives_is_hung_after_eight_seconds() -> None:
    assert judged(waits(0, EARLY_S), waits(1, EARLY_S)) == [("silent_rank", (0, 1))]
    assert judged(waits(0, EARLY_S - 0.5), waits(1, EARLY_S + 2)) == [], "all of them have waited for so long, or it is too early"


def test_slow_steps_have_their_own_time() -> None:
    slow = {"quick": False, "usual_s": 90.0}
    assert judged(waits(0, 60.0, **slow), waits(1, 60.0, **slow)) == []
    assert judged(waits(0, 91.0, **slow), waits(1, 91.0, **slow)) == [("silent_rank", (0, 1))]


@pytest.mark.parametrize(
    "doubt",
    [
        {"stack_s": 1.0}, {"stack_s": None, "sampled_s": None}, {"sampled_s": 7.0}, {"children_idle_s": 0.5}, {"io_idle_s": 1.0}, {"main_idle_s": 0.5},
        {"inside": ""},
        {"inside": ELSEWHERE}, {"inside": DATA},
    ],
    ids=str,
)  # fmt: skip
def test_one_doubtful_sign_of_one_rank_is_enough_not_to_act(doubt: dict[str, Any]) -> None:
    assert judged(waits(0), waits(1, **doubt)) == []


def test_a_node_that_was_not_heard_lately_may_be_at_work() -> None:
    assert judged(waits(0), replace(waits(1), heard=False)) == []
    assert judged(waits(0, 50.0), replace(moves(1), heard=False)) == []


def test_waiting_in_a_collective_never_counts_as_work_whatever_processor_time_it_takes() -> None:
    assert judged(waits(0, own_idle_s=0.0), waits(1, own_idle_s=0.0)) == [("silent_rank", (0, 1))]
    spins = {"own_idle_s": 0.0, "main_idle_s": 0.0, "on_gpu": True}
    assert judged(waits(0, **spins), waits(1, **spins)) == [("silent_rank", (0, 1))], "so it looks where a GPU is waited for"


def test_a_rank_that_goes_from_one_collective_to_the_next_gets_further_though_its_stack_looks_the_same() -> None:
    assert judged(waits(0, main_idle_s=0.0), waits(1)) == []
    assert judged(waits(0, 40.0, main_idle_s=0.0, main_busy_s=38.0), waits(1, 40.0)) == [("pause", (0,))]


def test_a_backward_pass_waits_when_its_main_thread_does_not_run_and_computes_when_it_does() -> None:
    assert waits(0, inside=BEGUN).doing is Doing.WAITS
    assert waits(0, inside=BEGUN, main_idle_s=0.0).doing is Doing.WORKS
    assert waits(0, alone=True).doing is Doing.IDLE, "of a gang of one nobody else can be waited for"


def test_a_gang_that_waits_on_its_gpus_is_told_as_a_pause_and_acted_on_after_two_minutes() -> None:
    gang = [waits_on_gpu(rank, 21.0) for rank in range(2)]
    assert judged(*gang) == [("pause", (0,)), ("pause", (1,))]
    assert "it waits for its GPU, which is in a collective" in one(gang[0], waits(1, 15.0)).evidence[0]
    assert judged(waits_on_gpu(0, ON_GPU_S), waits(1, ON_GPU_S)) == [("silent_rank", (0, 1))]
    assert judged(waits_on_gpu(0, ON_GPU_S), waits(1, ON_GPU_S), by_phase={"": 0.0}) == [("pause", (0,))], "--hang-limit off"


@pytest.mark.parametrize(
    "doubt", [{"pending_s": None}, {"pending_s": 1.0}, {"on_gpu": False}, {"inside": DATA}, {"main_idle_s": 9.0}], ids=str
)  # fmt: skip
def test_a_rank_that_computes_or_sleeps_beside_a_collective_on_its_gpu_excuses_those_who_wait(doubt: dict[str, Any]) -> None:
    assert judged(waits_on_gpu(0, ON_GPU_S + 60.0, **doubt), waits_on_gpu(1, ON_GPU_S + 60.0))[0][0] in ("pause", "late_data")


def test_a_place_where_a_gang_once_waited_for_its_gpus_is_given_ten_times_as_long() -> None:
    gang = [waits_on_gpu(rank, 600.0) for rank in range(2)]
    assert judged(*gang, longest_s={ALL_REDUCE: 90.0}) == [("pause", (0,)), ("pause", (1,))]
    assert judged(*gang, longest_s={ALL_REDUCE: 30.0}) == [("silent_rank", (0, 1))]


def test_who_is_behind_or_elsewhere_is_named() -> None:
    assert judged(waits(0), waits(1, step=249), waits(2)) == [("silent_rank", (1,))]
    assert judged(waits(0), waits(1), waits(2, place="train.py:<module>:44")) == [("silent_rank", (2,))]
    assert judged(waits(0), waits(1, place="train.py:<module>:44")) == [("silent_rank", (0, 1))], "of two nobody can say who is wrong"


def test_the_finding_says_where_and_how_long() -> None:
    finding = one(waits(0, 12.0), waits(1, 12.0, step=249))
    assert finding.because == "every rank waits in a collective and nothing is at work: rank 1 has not moved for 12 s in train.py:20"
    assert (finding.place, finding.lasted_s, finding.step) == (ALL_REDUCE, 12.0, 249)


# Somebody does not run at all.


def test_a_stopped_rank_that_the_others_need_is_found_after_three_seconds() -> None:
    assert judged(waits(0, 3.2, sampled_s=0.5, stack_s=0.0), stopped(1)) == [("stopped_rank", (1,))]
    assert judged(stopped(0, alone=True)) == [("stopped_rank", (0,))]
    assert judged(stopped(0, 2.0), waits(1, 2.0)) == []


def test_a_stopped_rank_beside_one_that_works_is_in_no_hurry() -> None:
    assert judged(works(0, 5.0), stopped(1, 5.0)) == []
    assert judged(works(0, 21.0), stopped(1, 21.0)) == [("stopped_rank", (1,))]


def test_a_debugger_has_stopped_nobody() -> None:
    assert judged(waits(0, 5.0), stopped(1, 5.0, process_state="t")) == []


def test_of_a_script_that_does_not_beat_it_is_told_that_it_is_stopped_and_nothing_else() -> None:
    assert judged(moves(0, phase=""), sight(1, phase="", step=-1, quiet_s=7200.0)) == []
    finding = one(moves(0, phase=""), stopped(1, phase="", step=-1))
    assert finding.kind == "stopped_rank"
    assert "beat" not in finding.because


# Somebody may go on.


def test_a_rank_that_was_just_let_go_by_the_others_has_not_paused() -> None:
    released = waits(1, 40.0, main_idle_s=0.0, main_busy_s=1.0)
    assert judged(moves(0), released) == []
    assert judged(works(0), released) == [("pause", (0,))]
    assert judged(moves(0), waits(1, 40.0, main_idle_s=0.0, main_busy_s=20.0)) == [("pause", (1,))], "from one collective to the next, for long"


def test_a_rank_that_works_excuses_those_who_wait_for_it() -> None:
    assert judged(works(0, 19.0), waits(1, 19.0)) == []
    finding = one(works(0, 40.0), waits(1, 40.0))
    assert (finding.kind, finding.ranks) == ("pause", (0,))
    assert finding.because.startswith("rank 0 has been in `evaluate`, train.py:12 for 40 s; the others wait for it")
    assert 'with run.phase("eval"):' in finding.because
    assert any("taken for a hang after 30 min" in line for line in finding.evidence)


@pytest.mark.parametrize("sign", [{"own_idle_s": 0.0}, {"children_idle_s": 0.0}, {"io_idle_s": 0.0}], ids=str)
def test_computing_children_and_input_and_output_are_work(sign: dict[str, Any]) -> None:
    assert idle(0, **sign).doing is Doing.WORKS
    assert judged(idle(0, IDLE_LIMIT_S + 1, **sign), waits(1, IDLE_LIMIT_S + 1)) == [("pause", (0,))]


def test_who_does_nothing_outside_a_collective_is_acted_on_after_ten_minutes_and_who_works_after_thirty() -> None:
    assert judged(idle(0, IDLE_LIMIT_S - 1), waits(1, IDLE_LIMIT_S)) == [("pause", (0,))]
    assert judged(idle(0, IDLE_LIMIT_S), waits(1, IDLE_LIMIT_S)) == [("silent_rank", (0,))]
    assert judged(works(0, WORK_LIMIT_S - 1), waits(1, WORK_LIMIT_S)) == [("pause", (0,))]
    assert judged(works(0, WORK_LIMIT_S), waits(1, WORK_LIMIT_S)) == [("silent_rank", (0,))]
    assert judged(works(0, WORK_LIMIT_S, alone=True)) == [("pause", (0,))], "nobody waits for it"


def test_one_that_works_excuses_one_that_may_wait_for_it_outside_a_collective() -> None:
    assert [kind for kind, _ in judged(idle(0, 700.0), works(1, 700.0))] == ["pause", "pause"]


def test_a_rank_that_does_nothing_while_others_step_on_has_its_own_limit() -> None:
    assert judged(idle(0, 700.0), moves(1)) == [("silent_rank", (0,))]
    assert judged(waits(0, 700.0), moves(1)) == [], "it waits for one that moves"


def test_late_data_is_no_fault_of_the_rank() -> None:
    finding = one(idle(0, inside=DATA, doing="waits for a socket", where="`__iter__`, data.py:9"), waits(1, 40.0))
    assert (finding.kind, finding.because) == ("late_data", "rank 0 has waited for data for 40 s in `__iter__`, data.py:9; the others wait for it")


def test_the_limit_grows_with_the_pauses_that_ended_at_the_place_and_they_are_not_told_again() -> None:
    known = {EVALUATE: 300.0}
    assert judged(works(0, 400.0), waits(1, 400.0), longest_s=known) == [], "it was as long before"
    assert judged(works(0, 460.0), waits(1, 460.0), longest_s=known) == [("pause", (0,))]
    assert judged(works(0, 2999.0), waits(1, 2999.0), longest_s=known) == [("pause", (0,))]
    assert judged(works(0, 3000.0), waits(1, 3000.0), longest_s=known) == [("silent_rank", (0,))]
    deeper = {"place": f"{EVALUATE}:12 > model.py:forward"}
    assert judged(works(0, 400.0, **deeper), waits(1, 400.0), longest_s=known) == [], "the place is known by its outer calls"
    assert judged(works(0, 400.0, place="train.py:other:1"), waits(1, 400.0), longest_s=known) == [("pause", (0,))]


def test_a_place_where_a_rank_was_taken_for_hung_has_ten_times_as_long_the_next_time() -> None:
    assert judged(idle(0, 5999.0), waits(1, 5999.0), struck_s={EVALUATE: 600.0}) == [("pause", (0,))]
    assert judged(idle(0, 6000.0), waits(1, 6000.0), struck_s={EVALUATE: 600.0}) == [("silent_rank", (0,))]


def test_a_process_group_that_was_given_longer_is_waited_for_as_long() -> None:
    assert judged(works(0, 7199.0, group_timeout_s=7200.0), waits(1, 7199.0)) == [("pause", (0,))]
    assert judged(works(0, WORK_LIMIT_S, group_timeout_s=600.0), waits(1, WORK_LIMIT_S)) == [("silent_rank", (0,))]
    told = one(works(0, group_timeout_s=600.0), waits(1, 40.0)).evidence
    assert any("torch itself ends the collective of those who wait after 10 min" in line for line in told)


def test_a_person_sets_the_limit_by_phase_or_for_all_but_the_start_or_switches_it_off() -> None:
    asked = {"by_phase": {"": 30.0, "eval": 3600.0}}
    assert judged(works(0, 30.0), waits(1, 30.0), **asked) == [("silent_rank", (0,))]
    assert judged(works(0, 3500.0, phase="eval"), waits(1, 3500.0, quick=False, usual_s=5000.0), **asked) == [("pause", (0,))]
    assert judged(works(0, 500.0, phase="start"), waits(1, 500.0), **asked) == [("pause", (0,))], "a first step compiles"
    off = {"by_phase": {"": 0.0}}
    assert judged(works(0, 99999.0), waits(1, 99999.0), **off) == [("pause", (0,))]
    assert judged(waits(0, 99.0), waits(1, 99.0), **off) == []
    assert judged(waits(0, 6.0), waits(1, 6.0), by_phase={"": 5.0}) == [("silent_rank", (0, 1))], "sooner than by itself, where a person says so"


def test_behind_the_loop_a_script_does_what_it_likes_unless_others_wait_for_it() -> None:
    assert judged(works(0, 99999.0, phase="finish"), moves(1)) == []
    assert judged(works(0, 99999.0, phase="finish", alone=True)) == []
    assert judged(idle(0, IDLE_LIMIT_S, phase="finish"), waits(1, IDLE_LIMIT_S)) == [("silent_rank", (0,))]


def test_a_rank_whose_stack_cannot_be_seen_is_told_of_and_given_the_longer_limit() -> None:
    unseen = {"inside": "", "place": "", "where": "", "sampled_s": None}
    assert one(idle(0, **unseen), waits(1, 40.0)).because.startswith("rank 0 has been in phase 'step' for 40 s; the others wait for it")
    assert judged(idle(0, WORK_LIMIT_S - 1, **unseen), waits(1, WORK_LIMIT_S)) == [("pause", (0,))]
