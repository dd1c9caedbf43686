"""When who waits will start, and the queue and shares as people see them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.clusters import ask, cluster_of, running

from holdfast.schedule.cycle import decide
from holdfast.schedule.explain import why
from holdfast.schedule.forecast import forecast
from holdfast.schedule.place import Health
from holdfast.schedule.policy import DAY_S, HOUR_S
from holdfast.schedule.tree import Account
from holdfast.schedule.view import queue_of, shares_of


def test_with_limits_of_users_the_start_is_expected_between_short_and_long_runs_and_the_cluster_is_left_as_it_was() -> None:
    cluster = cluster_of(1, 4)
    ask(cluster, "runs", 4, 0.0, estimate_s=8 * HOUR_S, preemptible=False)
    decide(cluster, 0.0)
    ask(cluster, "waits", 4, 60.0)
    decide(cluster, 60.0)
    expected = forecast(cluster)["waits"]
    assert (expected.earliest, expected.likely) == (1 * HOUR_S, 4 * HOUR_S)
    assert 8 * HOUR_S <= expected.latest <= 12 * HOUR_S
    assert set(cluster.running) == {cluster.jobs["runs"]}
    assert cluster.now == 60.0


def test_what_a_users_jobs_took_before_is_what_is_expected() -> None:
    cluster, now = cluster_of(1, 1), 0.0
    for number in range(10):
        ask(cluster, f"before-{number}", 1, now)
        decide(cluster, now)
        now += 600.0
        cluster.end(f"before-{number}", now)
    ask(cluster, "runs", 1, now)
    decide(cluster, now)
    ask(cluster, "waits", 1, now + 1.0)
    decide(cluster, now + 1.0)
    assert forecast(cluster)["waits"].likely == pytest.approx(now + 600.0)


def test_who_cannot_start_on_healthy_nodes_is_expected_never() -> None:
    cluster = cluster_of(2, 4)
    cluster.node_failed(0, 0.0)
    ask(cluster, "large", 8, 1.0)
    decide(cluster, 1.0)
    assert forecast(cluster)["large"].likely == math.inf
    reason = why(cluster, "large")
    assert reason is not None
    assert reason.kind == "health"
    assert reason.blockers == ("n0 is out: it is out of service",)


def test_free_gpus_that_are_held_for_others_are_named_as_such() -> None:
    cluster = cluster_of(2, 4)
    ask(cluster, "firm", 4, 0.0, preemptible=False)
    decide(cluster, 0.0)
    ask(cluster, "gang", 8, 1.0)
    decide(cluster, 1.0)
    ask(cluster, "precious", 4, 2.0, preemptible=False)
    decide(cluster, 2.0)
    reason = why(cluster, "precious")
    assert reason is not None
    assert (reason.kind, reason.blockers) == ("held", ("n1 (4 free) is held for gang",))


def test_a_name_that_was_used_again_within_a_day_is_two_newcomers_of_the_next() -> None:
    cluster = cluster_of(1, 4)
    ask(cluster, "nightly", 4, 1.0)
    decide(cluster, 1.0)
    cluster.end("nightly", HOUR_S)
    for id in ("nightly", "next", "last"):
        ask(cluster, id, 4, HOUR_S, estimate_s=4 * DAY_S)
    decide(cluster, 2 * HOUR_S)
    expected = forecast(cluster)
    assert cluster.now < expected["next"].likely < expected["last"].likely


def test_who_has_nodes_kept_for_it_is_counted_among_those_that_come_first() -> None:
    cluster = cluster_of(2, 4)
    ask(cluster, "firm", 4, 0.0, preemptible=False)
    decide(cluster, 0.0)
    ask(cluster, "gang", 8, 1.0)
    ask(cluster, "fills", 4, 1.0)
    ask(cluster, "waits", 4, 2.0)
    decide(cluster, 2.0)
    assert running(cluster) == {"firm", "fills"}
    reason = why(cluster, "waits")
    assert reason is not None
    assert reason.kind == "share"
    assert "and one job comes first" in reason.because


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 4, 8, 12]), st.booleans()), min_size=1, max_size=25), st.sampled_from(list(Health)))
def test_every_job_that_waits_has_one_reason_what_clears_it_a_place_and_a_range(asked: list[tuple[int, int, bool]], health: Health) -> None:
    cluster = cluster_of(3, 4, Account(name="g1", limit_gpus=12))
    cluster.judge(2, health, 0.0)
    for number, (user, gpus, preemptible) in enumerate(asked):
        ask(cluster, f"j{number}", gpus, 60.0 * number, user=f"g{user % 2}/u{user}", preemptible=preemptible)
        decide(cluster, 60.0 * number)
    entries = queue_of(cluster)
    assert {one.id for one in entries} == set(cluster.jobs)
    waiting = [one for one in entries if not cluster.jobs[one.id].running]
    assert [one.place for one in waiting] == list(range(1, len(waiting) + 1))
    for one in waiting:
        assert one.reason is not None
        assert one.reason.because
        assert one.reason.clears
        assert one.expected is not None
        assert cluster.now <= one.expected.earliest <= one.expected.likely <= one.expected.latest


def test_the_textbook_shares_can_be_seen() -> None:
    cluster = cluster_of(25, 4)
    for user in "abcd":
        ask(cluster, f"{user}-1", 100, 0.0, user=user)
    four = {row.name: row.entitled_share for row in shares_of(cluster)}
    assert [four[user] for user in "abcd"] == pytest.approx([0.25] * 4)
    ask(cluster, "a-2", 100, 0.0, user="a")
    with_jobs = {row.name: row.entitled_share for row in shares_of(cluster, jobs=True)}
    assert with_jobs["a"] == pytest.approx(0.25)
    assert (with_jobs["a-1"], with_jobs["a-2"]) == pytest.approx((0.125, 0.125))
    ask(cluster, "e-1", 100, 0.0, user="e")
    assert {row.name: row.entitled_share for row in shares_of(cluster)}["e"] == pytest.approx(0.2)


def test_three_groups_of_three_two_and_four_users_can_be_seen() -> None:
    cluster = cluster_of(25, 4)
    for group, users in (("x", 3), ("y", 2), ("z", 4)):
        for user in range(users):
            ask(cluster, f"{group}{user}", 100, 0.0, user=f"{group}/{group}{user}")
    seen = {row.name: row.entitled_share for row in shares_of(cluster)}
    assert (seen["x0"], seen["y1"], seen["z3"]) == pytest.approx((1 / 9, 1 / 6, 1 / 12))
