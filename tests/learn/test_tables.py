"""What is learned from incidents: remedies, recurrence, corrections, and what a job is started with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learn.given import INCIDENTS, NOW, incident

from holdfast.domain.past import Correction, PastIncident, PastRemedy, PastRun, PastService
from holdfast.learn.corrections import material, overrides
from holdfast.learn.decay import DAY_S
from holdfast.learn.lessons import Lessons
from holdfast.learn.recurrence import seen_before
from holdfast.learn.remedies import ROWS, remedies

HELPED = PastRemedy(rung="respawn", worked=True, cost_s=10.0)
FAILED = PastRemedy(rung="respawn", worked=False, cost_s=50.0)


@given(INCIDENTS)
def test_counts_are_never_negative_and_costs_lie_among_those_that_were_paid(past: list[PastIncident]) -> None:
    for row in remedies(past, NOW):
        assert row.worked >= 0.0
        assert row.failed >= 0.0
        assert row.worked + row.failed > 0.0
        assert 0.0 <= row.worked_s <= 1e4 * (1 + 1e-9)


@given(INCIDENTS, INCIDENTS, st.randoms(use_true_random=False))
def test_two_histories_read_together_are_both_lists_joined_in_any_order(first: list[PastIncident], second: list[PastIncident], dice: object) -> None:
    joined = [*first, *second]
    other = [*second, *first]
    dice.shuffle(other)  # type: ignore[attr-defined]
    # Where two incidents have the same time and name, their sums may differ in the last bit.
    for one, twin in zip(remedies(joined, NOW), remedies(other, NOW), strict=True):
        assert (one.cause, one.fingerprint, one.rung, one.again) == (twin.cause, twin.fingerprint, twin.rung, twin.again)
        assert one.worked == pytest.approx(twin.worked)
        assert one.worked_s == pytest.approx(twin.worked_s)


def test_the_table_is_bounded_and_keeps_what_has_most_behind_it() -> None:
    past = [incident(number, cause="hang", fingerprint=f"f{number}", remedies=(HELPED,)) for number in range(500)]
    rows = remedies(past, NOW)
    assert len(rows) == ROWS
    assert any(row.fingerprint == "" and row.worked == pytest.approx(500.0) for row in rows)


def test_a_first_try_is_counted_apart_from_one_after_a_failure() -> None:
    rows = remedies([incident(cause="hang", remedies=(FAILED, HELPED))], NOW)
    assert {(row.again, row.worked, row.failed) for row in rows if not row.fingerprint} == {(False, 0.0, 1.0), (True, 1.0, 0.0)}


def test_what_was_seen_before_is_told_in_a_sentence() -> None:
    tuesday = 5 * DAY_S  # The sixth of January 1970 was one.
    past = [incident(number, job=f"j{number % 2}", at=tuesday + number * 3600, remedies=(HELPED if number else FAILED,)) for number in range(3)]
    seen = seen_before(incident(9, at=tuesday + 3 * DAY_S, job="j0"), past)
    assert seen is not None
    assert seen.says == "this is the fourth time since Tuesday, in 2 jobs; a respawn helped 2 times of 3"


def test_the_first_of_its_kind_was_not_seen_before() -> None:
    assert seen_before(incident(), [incident()]) is None
    assert seen_before(incident(fingerprint=""), [incident(2, at=0.0, fingerprint="")]) is None


def test_the_newest_correction_that_is_not_revoked_holds() -> None:
    said = [
        Correction(number=1, fingerprint="f", cause="disk_full", at=1.0, text=("no space",)),
        Correction(number=2, fingerprint="f", cause="storage_io", at=2.0),
        Correction(number=3, fingerprint="f", cause="hang", at=3.0, revoked_at=4.0),
        Correction(number=4, fingerprint="g", cause="hang", at=3.0, revoked_at=4.0),
    ]
    assert overrides(said) == {"f": "storage_io"}
    assert material(said) == [], "what has no text teaches nothing"
    assert material(said[:1]) == [{"text": "no space", "cause": "disk_full", "fingerprint": "f", "source": "correction of "}]


def test_a_correction_changes_what_a_node_is_blamed_for() -> None:
    past = [incident(number, cause="exception", node="n1", at=NOW - number * DAY_S) for number in range(1, 6)]
    service = [PastService(node=f"n{node}", run="r", day=day, seconds=DAY_S) for node in range(50) for day in range(90, 100)]
    assert not Lessons(past, service, (), (), NOW).nodes.lemons
    said = [Correction(number=1, fingerprint="f", cause="hang", at=NOW)]
    assert [one.node for one in Lessons(past, service, (), said, NOW).nodes.lemons] == ["n1"]


def test_what_was_done_on_purpose_teaches_nothing_and_is_not_told_as_seen_before() -> None:
    past = [incident(number, cause="hang", node="n1", at=NOW - number * DAY_S, remedies=(FAILED,), chaos=True) for number in range(1, 6)]
    service = [PastService(node=f"n{node}", run="r", day=day, seconds=DAY_S) for node in range(50) for day in range(90, 100)]
    struck, untouched = (Lessons(kept, service, (), (), NOW) for kept in (past, []))
    assert struck.learned("job") == untouched.learned("job")
    assert struck.nodes == untouched.nodes
    assert seen_before(incident(9), past) is None


def test_the_version_is_the_same_as_long_as_the_tables_are() -> None:
    past = [incident(cause="hang", remedies=(HELPED,))]
    first, again = (Lessons(list(past), (), (), (), NOW).learned("job") for _ in range(2))
    assert first == again
    assert Lessons([*past, incident(2, cause="hang", remedies=(FAILED,))], (), (), (), NOW).learned("job").version != first.version


def test_phases_are_carried_over_within_a_job_only() -> None:
    ran = PastRun(job="job", run="r", command="train.py", started_at=1.0, phases=(("eval", (3.0, 1.0)),))
    lessons = Lessons((), (), (ran,), (), NOW)
    assert lessons.learned("job").phases == (("eval", (1.0, 3.0)),)
    assert lessons.learned("other").phases == ()
