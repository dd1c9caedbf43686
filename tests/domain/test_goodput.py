"""The ledger: every second in exactly one bucket, whatever happened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.goodput import Bucket, Ledger

BUCKETS = st.sampled_from(Bucket)
SECONDS = st.floats(min_value=0.0, max_value=1e4)
ENTER = st.tuples(st.just("enter"), BUCKETS, SECONDS, SECONDS)  # Bucket, how much later, how far it reaches back.
LEARNED = st.tuples(st.just("learned"))
MOVE = st.tuples(st.just("move"), BUCKETS, BUCKETS, SECONDS)


def _lived(history: list[tuple[object, ...]]) -> tuple[Ledger, float]:
    ledger, now = Ledger(), 1000.0
    ledger.enter(Bucket.START, now)
    for what, *rest in history:
        if what == "enter":
            bucket, later, back = rest
            now += later
            ledger.run_to(now)
            ledger.enter(bucket, now - back)
        elif what == "learned":
            ledger.learned()
        else:
            out_of, into, seconds = rest
            ledger.move(seconds, out_of=out_of, into=into)
    return ledger, now


@given(st.lists(st.one_of(ENTER, MOVE, LEARNED), max_size=40))
def test_buckets_add_up_to_wall_time_on_any_history(history: list[tuple[object, ...]]) -> None:
    ledger, now = _lived(history)
    assert ledger.wall_s == pytest.approx(now - 1000.0, abs=1e-6)
    assert sum(ledger.totals().values()) == pytest.approx(ledger.wall_s, abs=1e-5)
    assert all(seconds >= -1e-6 for seconds in ledger.totals().values())
    assert ledger.goodput is None or 0.0 <= ledger.goodput <= 1.0 + 1e-9


@given(st.lists(st.one_of(ENTER, MOVE, LEARNED), max_size=40))
def test_spans_meet_and_neighbours_differ(history: list[tuple[object, ...]]) -> None:
    ledger, _ = _lived(history)
    for before, after in zip(ledger.spans, ledger.spans[1:], strict=False):
        assert before.until == after.since
        assert before.bucket is not after.bucket


def test_a_fault_noticed_late_takes_its_seconds_from_the_open_span_only() -> None:
    ledger = Ledger()
    ledger.enter(Bucket.START, 0.0)
    ledger.enter(Bucket.PRODUCTIVE, 10.0)
    ledger.run_to(50.0)
    ledger.enter(Bucket.DETECT, 5.0)
    assert ledger.totals() == {Bucket.START: 10.0, Bucket.DETECT: 40.0}


def test_a_span_some_seconds_of_which_were_moved_keeps_as_many_when_it_is_cut_short() -> None:
    ledger = Ledger()
    ledger.enter(Bucket.PRODUCTIVE, 0.0)
    ledger.run_to(50.0)
    assert ledger.move(20.0, out_of=Bucket.PRODUCTIVE, into=Bucket.SAVE) == 20.0
    ledger.enter(Bucket.DETECT, 10.0)
    assert ledger.totals() == {Bucket.SAVE: 20.0, Bucket.DETECT: 30.0}


def test_no_more_is_moved_than_there_is() -> None:
    ledger = Ledger()
    ledger.enter(Bucket.PRODUCTIVE, 0.0)
    ledger.run_to(5.0)
    assert ledger.move(20.0, out_of=Bucket.PRODUCTIVE, into=Bucket.SAVE) == 5.0
    assert ledger.move(1.0, out_of=Bucket.RESTORE, into=Bucket.SAVE) == 0.0
    assert ledger.totals() == {Bucket.SAVE: 5.0}


def test_time_when_nobody_ran_the_job_does_not_lower_its_goodput() -> None:
    ledger = Ledger()
    ledger.enter(Bucket.PRODUCTIVE, 0.0)
    ledger.enter(Bucket.DOWN, 10.0)
    ledger.enter(Bucket.PRODUCTIVE, 1000.0)
    ledger.run_to(1010.0)
    assert ledger.goodput == 1.0


def test_a_smaller_gangs_seconds_count_by_its_share() -> None:
    ledger = Ledger()
    ledger.enter(Bucket.PRODUCTIVE, 0.0)
    ledger.enter(Bucket.RENDEZVOUS, 60.0)
    ledger.enter(Bucket.PRODUCTIVE, 70.0, 0.75)
    ledger.run_to(100.0)
    ledger.enter(Bucket.RECOMPUTE, 110.0)
    assert ledger.totals() == {Bucket.PRODUCTIVE: 60.0 + 0.75 * 40.0, Bucket.RENDEZVOUS: 10.0, Bucket.SMALLER: 10.0}
    assert ledger.goodput == pytest.approx(90.0 / 110.0)
    assert (ledger.smaller_s(0.0, 110.0), ledger.smaller_s(90.0, 94.0)) == (10.0, 1.0)


def test_of_time_in_which_no_step_was_told_no_goodput_is_known() -> None:
    ledger = Ledger()
    ledger.enter(Bucket.START, 0.0)
    assert ledger.goodput is None
    ledger.enter(Bucket.UNKNOWN, 4.0)
    ledger.run_to(104.0)
    assert ledger.goodput is None
    assert ledger.totals() == {Bucket.START: 4.0, Bucket.UNKNOWN: 100.0}
    assert ledger.bill(0.0, 104.0) == {Bucket.START: 4.0}


def test_what_was_unknown_was_the_way_to_the_first_step_once_steps_are_told() -> None:
    ledger = Ledger()
    for bucket, at in ((Bucket.START, 0.0), (Bucket.UNKNOWN, 4.0), (Bucket.STOP, 9.0), (Bucket.RENDEZVOUS, 10.0), (Bucket.UNKNOWN, 11.0)):
        ledger.enter(bucket, at)
    ledger.run_to(20.0)
    ledger.learned()
    ledger.enter(Bucket.PRODUCTIVE, 20.0)
    ledger.run_to(40.0)
    assert ledger.totals() == {Bucket.START: 9.0, Bucket.PRODUCTIVE: 20.0, Bucket.STOP: 1.0, Bucket.RENDEZVOUS: 10.0}
    assert ledger.goodput == 0.5


def test_what_was_unknown_of_an_earlier_run_stays_unknown() -> None:
    ledger = Ledger()
    for bucket, at in ((Bucket.START, 0.0), (Bucket.UNKNOWN, 4.0), (Bucket.DOWN, 10.0), (Bucket.START, 30.0), (Bucket.UNKNOWN, 31.0)):
        ledger.enter(bucket, at)
    ledger.run_to(35.0)
    ledger.learned()
    ledger.enter(Bucket.PRODUCTIVE, 35.0)
    assert ledger.totals() == {Bucket.START: 9.0, Bucket.UNKNOWN: 6.0, Bucket.DOWN: 20.0}
    assert ledger.goodput is None
    assert (ledger.run_since, ledger.run_s) == (30.0, 15.0)


def test_a_save_told_in_the_middle_of_a_hang_does_not_make_the_hang_productive() -> None:
    """A rank that has not moved since second 20 is found at second 30; how long the saves before took was told at second 29."""
    ledger = Ledger()
    ledger.enter(Bucket.PRODUCTIVE, 0.0)
    ledger.run_to(29.0)
    assert ledger.move(2.0, out_of=Bucket.PRODUCTIVE, into=Bucket.SAVE) == 2.0
    ledger.run_to(30.0)
    ledger.enter(Bucket.DETECT, 20.0)
    assert ledger.totals() == {Bucket.PRODUCTIVE: 18.0, Bucket.SAVE: 2.0, Bucket.DETECT: 10.0}
    ledger.enter(Bucket.STOP, 1.0)
    assert ledger.totals()[Bucket.SAVE] == 2.0
