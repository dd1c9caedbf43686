"""Jobs that wait for jobs: who needs what has not ended is not considered, says so, and holds nothing; circles and wrong names are refused."""

from __future__ import annotations

import gc
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.clusters import ask, cluster_of, decide_checked, running

from holdfast.schedule.check import Auditor
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import decide
from holdfast.schedule.explain import why
from holdfast.schedule.forecast import forecast
from holdfast.schedule.job import Job, JobRefused
from holdfast.schedule.policy import DAY_S, HOUR_S


def _reason(cluster: Cluster, id: str) -> tuple[str, str, tuple[str, ...]]:
    reason = why(cluster, id)
    assert reason is not None
    assert reason.kind == "needs"
    return reason.because, reason.clears, reason.blockers


def test_who_needs_another_holds_nothing_until_it_has_ended_well_and_then_stands_in_line_as_if_it_had_just_come() -> None:
    cluster = cluster_of(1, 2)
    auditor = Auditor(cluster)
    ask(cluster, "makes", 1, 0.0)
    ask(cluster, "reads", 1, 0.0, needs=("makes",))
    decide_checked(cluster, auditor, 0.0)
    assert running(cluster) == {"makes"}
    assert _reason(cluster, "reads") == ("it needs makes, which has not ended", "makes has ended well, or made what it needs", ("makes runs",))
    assert cluster.next_at() < math.inf
    decide_checked(cluster, auditor, 3 * DAY_S)
    assert running(cluster) == {"makes"}, "it does not become due meanwhile"
    cluster.end("makes", 3 * DAY_S)
    auditor.ended("makes")
    assert cluster.jobs["reads"].stands_at == 3 * DAY_S
    decide_checked(cluster, auditor, 3 * DAY_S)
    assert running(cluster) == {"reads"}
    ask(cluster, "reads too", 1, 3 * DAY_S, needs=("makes",))
    decide_checked(cluster, auditor, 3 * DAY_S)
    assert "reads too" in running(cluster), "what ended well before is remembered"


def test_a_service_that_has_made_what_it_is_needed_for_may_go_on() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "service", 1, 0.0)
    ask(cluster, "reads", 1, 0.0, needs=("service",))
    auditor = Auditor(cluster)
    decide_checked(cluster, auditor, 0.0)
    cluster.made("service", 10.0)
    decide_checked(cluster, auditor, 10.0)
    assert running(cluster) == {"service", "reads"}


def test_who_needed_a_service_and_was_withdrawn_is_forgotten() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "service", 1, 0.0)
    for number in range(20):
        ask(cluster, f"leaves {number}", 1, 0.0, needs=("service",))
        cluster.withdraw(f"leaves {number}", 0.0)
    assert not any(type(one) is Job and one.request.id.startswith("leaves") for one in gc.get_objects())  # Some of torch's warn when asked what they are.


def test_what_was_withdrawn_has_not_ended_well_and_one_of_its_name_takes_its_place() -> None:
    cluster = cluster_of(1, 2)
    auditor = Auditor(cluster)
    ask(cluster, "a", 1, 0.0)
    ask(cluster, "b", 1, 0.0)
    ask(cluster, "c", 1, 0.0, needs=("a", "b"))
    cluster.withdraw("a", 1.0)
    assert _reason(cluster, "c") == (
        "it needs a, b, which have not ended", "a is submitted again, and a, b have ended well, or made what it needs", ("a was withdrawn", "b waits"),
    )  # fmt: skip
    cluster.end("b", 2.0)
    ask(cluster, "a", 1, 3.0)
    decide_checked(cluster, auditor, 3.0)
    assert running(cluster) == {"a"}
    cluster.end("a", HOUR_S)
    auditor.ended("a")
    decide_checked(cluster, auditor, HOUR_S)
    assert running(cluster) == {"c"}


def test_one_that_waits_for_another_can_be_withdrawn_and_comes_back_for_nobody() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "a", 1, 0.0)
    ask(cluster, "b", 1, 0.0, needs=("a",))
    cluster.withdraw("b", 1.0)
    cluster.end("a", 2.0)
    assert not cluster.jobs
    assert cluster.next_at() == math.inf


def test_when_it_will_start_is_expected_after_the_end_of_what_it_needs() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "a", 1, 0.0, estimate_s=8 * HOUR_S)
    decide(cluster, 0.0)
    ask(cluster, "b", 1, 1.0, needs=("a",))
    assert forecast(cluster)["b"].likely == 4 * HOUR_S, "half of the limit, as of any job"


def test_wrong_names_and_circles_are_refused_in_a_sentence() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "a", 1, 0.0)
    with pytest.raises(JobRefused, match="job b needs c, which neither waits nor runs here, nor has ended well of late; submit that first"):
        ask(cluster, "b", 1, 0.0, needs=("a", "c"))
    with pytest.raises(JobRefused, match="in a circle: b needs b; leave one of these needs out"):
        ask(cluster, "b", 1, 0.0, needs=("b",))
    ask(cluster, "b", 1, 0.0, needs=("a",))
    ask(cluster, "c", 1, 0.0, needs=("b",))
    cluster.withdraw("a", 1.0)
    with pytest.raises(JobRefused, match="in a circle: a needs c needs b needs a"):
        ask(cluster, "a", 1, 1.0, needs=("c",))
    assert set(cluster.jobs) == {"b", "c"}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 30), max_size=3), st.sampled_from([1, 2, 4]), st.sampled_from(["", "end", "withdraw", "made", "fail"])), max_size=30
    )
)
def test_whoever_needs_whom_everybody_has_his_turn_in_the_end(asked: list[tuple[list[int], int, str]]) -> None:
    cluster = cluster_of(2, 4)
    auditor, now = Auditor(cluster), 0.0
    for number, (needs, gpus, then) in enumerate(asked):
        known = tuple(f"j{need}" for need in dict.fromkeys(needs) if f"j{need}" in cluster.jobs)
        ask(cluster, f"j{number}", gpus, now, user=f"g/u{number % 3}", needs=known)
        decide_checked(cluster, auditor, now)
        now += 600.0
        if then and cluster.running:
            id = sorted(running(cluster))[number % len(cluster.running)]
            getattr(cluster, then)(id, now)
            if then != "made":
                auditor.ended(id)
            if then == "withdraw":
                ask(cluster, id, 1, now)
    for _ in range(200):
        for id in sorted(running(cluster)):
            cluster.end(id, now)
            auditor.ended(id)
        now += HOUR_S
        decide_checked(cluster, auditor, now)
    assert not cluster.jobs
