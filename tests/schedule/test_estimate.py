"""How long a job may take, and what is done with that: nodes held for one are used by those who will be gone in time."""

from __future__ import annotations

import pytest
from schedule.clusters import ask, cluster_of, decide_checked, running

from holdfast.schedule.check import Auditor
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import decide
from holdfast.schedule.policy import DAY_S, HOUR_S, Policy


def _end(cluster: Cluster, id: str, now: float) -> float:
    return cluster.estimates.end_at(cluster.jobs[id], now)


@pytest.mark.parametrize(("ran_h", "end_h"), [(0, 2), (1, 2), (1.99, 2), (2, 4), (3, 4), (4, 8), (7, 8), (8, 16), (20, 32)])
def test_an_estimate_that_is_overrun_is_doubled_until_it_is_not(ran_h: float, end_h: float) -> None:
    cluster = cluster_of(1, 1)
    ask(cluster, "long", 1, 0.0, estimate_s=2 * HOUR_S)
    decide(cluster, 0.0)
    assert _end(cluster, "long", ran_h * HOUR_S) == end_h * HOUR_S


def test_what_was_doubled_stays_so_for_that_run_and_what_ran_before_an_eviction_counts() -> None:
    cluster = cluster_of(1, 1)
    ask(cluster, "long", 1, 0.0, estimate_s=2 * HOUR_S)
    decide(cluster, 0.0)
    assert _end(cluster, "long", 5 * HOUR_S) == 8 * HOUR_S
    assert _end(cluster, "long", 6 * HOUR_S) == 8 * HOUR_S, "not 4 h and doubled again"
    cluster.evict(cluster.jobs["long"], 6 * HOUR_S)
    decide(cluster, 6 * HOUR_S)
    assert running(cluster) == {"long"}
    assert _end(cluster, "long", 6 * HOUR_S) == 8 * HOUR_S, "two hours more"


def test_without_a_limit_it_is_what_its_users_jobs_of_that_size_took_and_before_those_its_class() -> None:
    cluster, now = cluster_of(1, 2), 0.0
    ask(cluster, "first", 1, now)
    assert cluster.estimates.whole_s(cluster.jobs["first"]) == cluster.jobs["first"].priority.estimate_s
    cluster.withdraw("first", now)
    for minutes in range(10, 20):
        ask(cluster, f"took {minutes}", 1, now)
        decide(cluster, now)
        now += 60.0 * minutes
        cluster.end(f"took {minutes}", now)
    for id, user, gpus in (("same", "g/u", 1), ("other size", "g/u", 2), ("other user", "g/v", 1)):
        ask(cluster, id, gpus, now, user=user)
    assert cluster.estimates.whole_s(cluster.jobs["same"]) == 60.0 * 18, "four of five were done by then"
    assert [cluster.estimates.whole_s(cluster.jobs[id]) for id in ("other size", "other user")] == [12 * HOUR_S] * 2
    ask(cluster, "withdrawn", 1, now)
    decide(cluster, now)
    cluster.withdraw("withdrawn", now + DAY_S)
    assert cluster.estimates.whole_s(cluster.jobs["same"]) == 60.0 * 18, "what was withdrawn took no time of its own"


def _held(firm_left_s: float) -> tuple[Cluster, Auditor, float]:
    """Two nodes; one is free, the other has a firm job for so much longer, and both are held for a gang whose turn has come."""
    cluster = cluster_of(2, 4, policy=Policy(patience_s=HOUR_S))
    auditor, now = Auditor(cluster), 2 * HOUR_S
    ask(cluster, "firm", 4, 0.0, preemptible=False, estimate_s=now + firm_left_s)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "gang", 8, 0.0)
    decide_checked(cluster, auditor, now)
    kept = cluster.reservations[cluster.jobs["gang"]]
    assert (sorted(kept.nodes), kept.at) == ([0, 1], now + firm_left_s)
    assert cluster.fleet.free_gpus == 4
    return cluster, auditor, now


@pytest.mark.parametrize(
    ("asked", "starts"),
    [
        ({}, True),  # It can be evicted when the gang can start.
        ({"preemptible": False, "estimate_s": 3 * HOUR_S}, True),
        ({"preemptible": False, "estimate_s": 4 * HOUR_S}, True),
        ({"preemptible": False, "estimate_s": 5 * HOUR_S}, False),
        ({"preemptible": False}, False),  # Its class says twelve hours.
    ],
)
def test_on_nodes_that_are_held_whoever_will_be_gone_in_time_may_run(asked: dict[str, object], starts: bool) -> None:
    cluster, auditor, now = _held(4 * HOUR_S)
    ask(cluster, "fills", 2, now, user="h/v", **asked)
    decide_checked(cluster, auditor, now)
    assert ("fills" in running(cluster)) is starts
    assert cluster.reservations[cluster.jobs["gang"]].at == now + 4 * HOUR_S, "nobody has put it off"


@pytest.mark.parametrize(("kept_s", "starts"), [(Policy().filled_s - 1.0, True), (Policy().filled_s, False)])
def test_small_ones_fill_held_nodes_whatever_is_expected_for_a_while_and_then_only_where_they_are_not_in_the_way(kept_s: float, starts: bool) -> None:
    cluster, auditor, now = _held(Policy().filled_s + Policy().minimum_run_s - 10.0)
    ask(cluster, "fills", 2, now + kept_s, user="h/v")
    decide_checked(cluster, auditor, now + kept_s)
    assert cluster.reservations[cluster.jobs["gang"]].since == now
    assert ("fills" in running(cluster)) is starts


def test_who_fills_nodes_that_are_held_goes_when_the_one_they_are_held_for_can_start() -> None:
    cluster, auditor, now = _held(4 * HOUR_S)
    ask(cluster, "fills", 2, now, user="h/v", checkpoint_every_s=60.0)
    decide_checked(cluster, auditor, now)
    cluster.end("firm", now + 3 * HOUR_S)
    auditor.ended("firm")
    decisions = decide_checked(cluster, auditor, now + 3 * HOUR_S)
    assert [(one.job, one.for_job) for one in decisions.evictions] == [("fills", "gang")]
    assert "gang" in running(cluster)


def test_a_job_past_its_estimate_puts_a_reservation_off_by_doubling_and_fillers_are_let_in_again() -> None:
    cluster, auditor, now = _held(HOUR_S)  # Three hours were promised.
    later = now + HOUR_S + 1.0
    for step in range(1, 5):
        decide_checked(cluster, auditor, now + step * HOUR_S / 4 + 1.0)
    decide_checked(cluster, auditor, later + Policy().reservation_kept_s)
    assert cluster.reservations[cluster.jobs["gang"]].at == pytest.approx(6 * HOUR_S), "twice three"
    ask(cluster, "fills", 2, later + Policy().reservation_kept_s, user="h/v", preemptible=False, estimate_s=HOUR_S / 2)
    decide_checked(cluster, auditor, later + Policy().reservation_kept_s)
    assert running(cluster) == {"firm", "fills"}
