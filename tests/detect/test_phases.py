"""Phases: how long they last is learned from those that ended."""

from __future__ import annotations

from holdfast.detect.phases import FACTOR, FEW_S, FIRST_S, FLOOR_S, Phases


def learned(phase: str, seconds: float, times: int) -> Phases:
    phases = Phases()
    for _ in range(times):
        phases.note(phase, seconds)
    return phases


def test_the_less_often_a_phase_was_seen_to_end_the_more_generous_is_what_counts_as_usual() -> None:
    assert Phases().usual_s("step") == FIRST_S
    assert learned("step", 0.1, 1).usual_s("step") == FEW_S
    assert learned("step", 30.0, 1).usual_s("step") == 300.0
    assert learned("step", 0.1, 50).usual_s("step") == FLOOR_S
    assert learned("step", 30.0, 50).usual_s("step") == FACTOR * 30.0
    assert learned("step", 30.0, 50).usual_s("eval") == FIRST_S


def test_a_few_long_ones_do_not_make_all_of_them_long() -> None:
    phases = learned("step", 0.1, 500)
    for _ in range(3):
        phases.note("step", 40.0)
    assert phases.usual_s("step") == FLOOR_S
    assert phases.late_after_s("step") == 0.1


def test_a_hundred_short_steps_make_a_rank_quick_however_few_looks_they_were_seen_in() -> None:
    phases = Phases()
    phases.note("step", 0.02, times=99)
    assert not phases.quick
    phases.note("step", 0.02, times=1)
    assert phases.quick
    assert not learned("step", 2.0, 200).quick
    phases.note("step", 40.0)
    assert phases.quick, "an evaluation now and then is no step"
    for _ in range(5):
        phases.note("step", 3.0)
    assert not phases.quick


def test_the_first_steps_that_are_seen_may_have_the_start_in_them() -> None:
    phases = Phases()
    phases.note("step", 15.0, times=3, rough=True)
    assert phases.usual_s("step") == 150.0
    phases.note("step", 0.02, times=100)
    assert phases.quick
    assert phases.usual_s("step") == FLOOR_S, "how long the start took says nothing about a step"


def test_what_was_learned_is_handed_on() -> None:
    after = Phases()
    after.learn(learned("step", 30.0, 50).learned())
    assert after.usual_s("step") == FACTOR * 30.0
    assert not after.quick, "that is seen by each agent itself"
