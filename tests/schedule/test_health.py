"""Nodes that fail and jobs that crash: who is trusted, who is mended how, who loses his place; and what must never happen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.clusters import ask, cluster_of, decide_checked, running

from holdfast.schedule.check import Auditor
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import decide
from holdfast.schedule.explain import why
from holdfast.schedule.health import Care
from holdfast.schedule.job import Job, Lane
from holdfast.schedule.place import Health
from holdfast.schedule.policy import DAY_S, HOUR_S, Policy
from holdfast.schedule.tree import Account

# Reputation.


def test_a_node_is_as_good_as_any_until_something_is_known_of_it() -> None:
    assert Care(4, Policy()).score(2, 10 * DAY_S) == 1.0


def test_one_failure_makes_no_suspect_two_do_and_time_in_service_earns_trust_again() -> None:
    care = Care(100, Policy())
    care.failed(7, 0.0)
    assert care.score(7, 0.0) == pytest.approx(2.0)
    assert care.verdict(7, 0.0)[0] is Health.GOOD
    care.failed(7, DAY_S)
    assert care.verdict(7, DAY_S)[0] is Health.SUSPECT
    assert care.verdict(8, DAY_S)[0] is Health.GOOD
    assert care.verdict(7, 40 * DAY_S)[0] is Health.GOOD


def test_where_all_fail_often_nobody_is_a_suspect_for_failing_once_more() -> None:
    care, now = Care(10, Policy()), 0.0
    for round_ in range(30):
        now = round_ * DAY_S
        for node in range(10):
            care.failed(node, now)
    assert all(care.verdict(node, now)[0] is Health.GOOD for node in range(10))
    for _ in range(60):
        care.failed(3, now)
    assert care.verdict(3, now)[0] is Health.SUSPECT


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5 * DAY_S)), max_size=30))
def test_a_failure_never_raises_the_trust_in_a_node_and_the_score_stays_a_number(failures: list[tuple[int, float]]) -> None:
    care, now = Care(4, Policy()), 0.0
    for node, passed in failures:
        now += passed
        before = care.score(node, now)
        care.failed(node, now)
        assert care.score(node, now) >= before - 1e-9
        assert all(0.0 < care.score(one, now) < math.inf for one in range(4))


def test_after_a_repair_a_node_is_on_probation_and_then_trusted() -> None:
    cluster = cluster_of(2, 4)
    cluster.node_failed(0, 0.0)
    cluster.node_back(0, HOUR_S)
    assert cluster.fleet.health[0] is Health.SUSPECT
    assert "probation" in cluster.care.verdict(0, HOUR_S)[1]
    assert cluster.next_at() == 7 * HOUR_S
    decide(cluster, 7 * HOUR_S)
    assert cluster.fleet.health[0] is Health.GOOD


def test_the_same_failure_told_twice_counts_once() -> None:
    cluster = cluster_of(4, 4)
    ask(cluster, "a", 4, 0.0)
    decide(cluster, 0.0)
    node = cluster.jobs["a"].placement[0][0]
    assert cluster.node_failed(node, 1.0) == ("a",)
    score = cluster.care.score(node, 1.0)
    assert cluster.node_failed(node, 1.0) == ()
    cluster.fail_by_node("a", node, 1.0)
    assert cluster.care.score(node, 1.0) == score


# Gangs.


def test_a_failed_node_of_a_gang_is_replaced_by_one_of_its_own_domain_and_it_keeps_its_rights() -> None:
    cluster = cluster_of(8, 4)
    auditor = Auditor(cluster)
    ask(cluster, "gang", 12, 0.0)
    (start,) = decide_checked(cluster, auditor, 0.0).starts
    assert [node for node, _ in start.placement] == [0, 1, 2]
    ask(cluster, "elsewhere", 4, 1.0)
    decide_checked(cluster, auditor, 1.0)
    cluster.node_failed(1, 2.0)
    (mended,) = decide_checked(cluster, auditor, 2.0).mends
    assert (mended.how, mended.lost) == ("replaced", (1,))
    job = cluster.jobs["gang"]
    assert [node for node, _ in job.placement] == [0, 2, 4], "node 3 is taken, so one of another domain does"
    assert job.firm
    cluster.end("elsewhere", 3.0)
    auditor.ended("elsewhere")
    cluster.node_failed(4, 4.0)
    decide_checked(cluster, auditor, 4.0)
    assert [node for node, _ in job.placement] == [0, 2, 3], "node 3 is free again, and stands beside node 2"


def _grown() -> tuple[Cluster, Auditor, Job]:
    """An elastic gang of 6 that has grown to all 12 GPUs of three nodes."""
    cluster = cluster_of(3, 4)
    auditor = Auditor(cluster)
    ask(cluster, "elastic", 6, 0.0, gpus_max=12)
    decide_checked(cluster, auditor, 0.0)
    decide_checked(cluster, auditor, HOUR_S)
    return cluster, auditor, cluster.jobs["elastic"]


def test_without_a_free_node_an_elastic_gang_shrinks_and_keeps_its_minimum() -> None:
    cluster, auditor, job = _grown()
    assert job.gpus_now == 12
    cluster.node_failed(job.placement[0][0], 2 * HOUR_S)
    (mended,) = decide_checked(cluster, auditor, 2 * HOUR_S).mends
    assert (mended.how, mended.gpus, job.gpus_now) == ("shrunk", 8, 8)
    assert sum(gpus for _, gpus in job.placement) == 6


def test_extras_on_a_node_that_is_about_to_leave_do_not_become_its_minimum() -> None:
    cluster, auditor, job = _grown()
    for node in {node for node, _ in job.extras}:
        cluster.drain(node, 2 * HOUR_S)
    cluster.node_failed(job.placement[0][0], 2 * HOUR_S)
    (mended,) = decide_checked(cluster, auditor, 2 * HOUR_S).mends
    assert mended.how == "requeued"


def test_a_gang_that_loses_only_extras_shrinks_by_them() -> None:
    cluster = cluster_of(2, 4)
    ask(cluster, "elastic", 4, 0.0, gpus_max=8)
    decide(cluster, 0.0)
    decide(cluster, HOUR_S)
    job = cluster.jobs["elastic"]
    cluster.node_failed(job.extras[0][0], 2 * HOUR_S)
    (mended,) = decide(cluster, 2 * HOUR_S).mends
    assert (mended.how, job.gpus_now) == ("shrunk", 4)


def test_else_it_is_requeued_first_with_what_it_had_left_and_pays_for_the_lost_work() -> None:
    cluster = cluster_of(4, 4)
    auditor = Auditor(cluster)
    ask(cluster, "gang", 12, 0.0)
    ask(cluster, "other", 4, 0.0, preemptible=False)
    decide_checked(cluster, auditor, 0.0)
    for number in range(3):
        ask(cluster, f"behind-{number}", 4, 10.0, preemptible=False)
    decide_checked(cluster, auditor, 10.0)
    cluster.node_failed(cluster.jobs["gang"].placement[0][0], 2000.0)
    decisions = decide_checked(cluster, auditor, 2000.0)
    job = cluster.jobs["gang"]
    assert [mended.how for mended in decisions.mends] == ["requeued"]
    assert job.waited_s == pytest.approx(200.0), "the work since the checkpoint at 1,800 s"
    assert not decisions.starts, "nobody takes the nodes it had left"
    assert len(cluster.reservations[job].nodes) == 3
    cluster.end("other", 3000.0)
    auditor.ended("other")
    assert [start.job for start in decide_checked(cluster, auditor, 3000.0).starts] == ["gang"]
    assert job.firm


def test_loose_jobs_go_for_a_gang_that_lost_a_node() -> None:
    cluster = cluster_of(4, 4)
    auditor = Auditor(cluster)
    ask(cluster, "gang", 12, 0.0)
    for number in range(4):
        ask(cluster, f"small-{number}", 1, 0.0)
    decide_checked(cluster, auditor, 0.0)
    decide_checked(cluster, auditor, 3 * HOUR_S)
    cluster.node_failed(cluster.jobs["gang"].placement[0][0], 3 * HOUR_S)
    decisions = decide_checked(cluster, auditor, 3 * HOUR_S)
    assert "gang" in {start.job for start in decisions.starts}
    assert len(decisions.evictions) == 4


def test_when_a_node_fails_that_is_held_the_others_stay_held_and_another_is_named() -> None:
    cluster = cluster_of(5, 4)
    auditor = Auditor(cluster)
    for id in ("a", "b"):
        ask(cluster, id, 4, 0.0, preemptible=False)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "gang", 16, 1.0)
    decide_checked(cluster, auditor, 1.0)
    job = cluster.jobs["gang"]
    assert {2, 3, 4} < set(cluster.reservations[job].nodes)
    cluster.node_failed(3, 2.0)
    assert {2, 4} <= set(cluster.reservations[job].nodes)
    decide_checked(cluster, auditor, 2.0)
    assert set(cluster.reservations[job].nodes) == {0, 1, 2, 4}


def test_a_job_that_failed_because_of_a_node_goes_on_elsewhere_at_once_and_is_not_blamed() -> None:
    cluster = cluster_of(2, 4)
    ask(cluster, "a", 2, 0.0)
    decide(cluster, 0.0)
    cluster.fail_by_node("a", 0, 60.0)
    (mended,) = decide(cluster, 60.0).mends
    job = cluster.jobs["a"]
    assert (mended.how, job.placement, job.failures) == ("replaced", ((1, 2),), 0)
    ask(cluster, "b", 3, 61.0)
    decide(cluster, 61.0)
    cluster.fail_by_node("a", 1, 62.0)
    assert [one.how for one in decide(cluster, 62.0).mends] == ["restarted"], "nothing else is free, and one failure condemns no node"


def test_a_gang_that_lost_a_node_has_to_meet_again_before_it_is_charged_and_a_released_one_is_left_alone() -> None:
    cluster = cluster_of(3, 1, gangs_report=True)
    ask(cluster, "gang", 2, 0.0)
    decide(cluster, 0.0)
    for rank in (0, 1):
        cluster.ready("gang", rank, {0, 1}, 1.0)
    decide(cluster, 2 * HOUR_S)
    assert running(cluster) == {"gang"}, "the time in which members have to meet is over, and they have met"
    cluster.node_failed(0, 2 * HOUR_S)
    decide(cluster, 2 * HOUR_S)
    reason = why(cluster, "gang")
    assert reason is not None
    assert reason.kind == "members"
    used = cluster.usage.used(1, 2 * HOUR_S)
    assert cluster.usage.used(1, 2 * HOUR_S + 60) < used
    for rank in (0, 1):
        cluster.ready("gang", rank, {0, 1}, 2 * HOUR_S + 60)
    assert why(cluster, "gang") is None


# Sick nodes.


def test_a_node_on_which_jobs_fail_again_and_again_is_drained_repaired_and_on_probation() -> None:
    cluster = cluster_of(2, 4, policy=Policy(drain_score=3.0))
    auditor = Auditor(cluster)
    ask(cluster, "a", 1, 0.0)
    ask(cluster, "precious", 1, 0.0, preemptible=False)
    decide_checked(cluster, auditor, 0.0)
    for second in (1.0, 2.0, 3.0):
        cluster.node_failed(1, second)  # So that the other is the only place.
        if cluster.jobs["a"].placement[0][0] == 0 and cluster.fleet.health[0] is not Health.DRAINING:
            cluster.fail_by_node("a", 0, second)
        decide_checked(cluster, auditor, second)
    assert cluster.fleet.health[0] is Health.DRAINING
    cluster.node_back(1, 10.0)
    decide_checked(cluster, auditor, 10.0)
    ask(cluster, "new", 2, 11.0)
    assert not decide_checked(cluster, auditor, 11.0).starts
    assert cluster.jobs["a"].placement[0][0] != 0
    cluster.end("precious", HOUR_S)
    auditor.ended("precious")
    assert decide_checked(cluster, auditor, HOUR_S).drained == (0,)
    assert cluster.fleet.health[0] is Health.OUT
    cluster.node_back(0, 2 * HOUR_S)
    assert cluster.fleet.health[0] is Health.SUSPECT


def test_who_can_be_evicted_leaves_a_draining_node_after_a_while() -> None:
    cluster = cluster_of(2, 4)
    auditor = Auditor(cluster)
    ask(cluster, "a", 1, 0.0)
    decide_checked(cluster, auditor, 0.0)
    cluster.drain(0, 60.0)
    assert not decide_checked(cluster, auditor, 60.0).drained
    decisions = decide_checked(cluster, auditor, 60.0 + HOUR_S)
    assert [mended.how for mended in decisions.mends] == ["replaced"]
    assert decisions.drained == (0,)


def test_a_node_that_drains_while_on_probation_is_emptied_all_the_same() -> None:
    cluster = cluster_of(2, 4)
    auditor = Auditor(cluster)
    cluster.node_failed(0, 0.0)
    decide_checked(cluster, auditor, 0.0)
    cluster.node_back(0, 60.0)
    ask(cluster, "full", 4, 60.0, preemptible=False)
    ask(cluster, "small", 1, 60.0)
    decide_checked(cluster, auditor, 60.0)
    assert cluster.jobs["small"].placement == ((0, 1),)
    drained_at = 60.0 + cluster.policy.probation_s - HOUR_S / 2
    cluster.drain(0, drained_at)
    drained = set[int]()
    while not drained and cluster.next_at() <= drained_at + HOUR_S:
        drained |= {*decide_checked(cluster, auditor, cluster.next_at()).drained}
    assert drained == {0}


# Crash loops.


def _crash(cluster: Cluster, auditor: Auditor, id: str, now: float) -> float:
    """A job fails half a minute after its start; when its pause is over."""
    cluster.fail(id, now + 30.0)
    auditor.ended(id)
    decide_checked(cluster, auditor, now + 30.0)
    return cluster.jobs[id].banned_until


def test_a_crash_loop_backs_off_longer_and_longer_loses_its_place_and_says_so() -> None:
    cluster = cluster_of(1, 1)
    auditor, now, pauses = Auditor(cluster), 0.0, []
    ask(cluster, "loop", 1, 0.0)
    for _ in range(12):
        decide_checked(cluster, auditor, now)
        assert running(cluster) == {"loop"}
        back = _crash(cluster, auditor, "loop", now)
        pauses.append(back - now - 30.0)
        now = back
    assert pauses[:4] == [60.0, 120.0, 240.0, 480.0]
    assert pauses[-1] == Policy().back_off_max_s
    cluster.tick(now - 1.0)
    reason = why(cluster, "loop")
    assert reason is not None
    assert reason.kind == "crash loop"
    assert "12 times in a row" in reason.because
    ask(cluster, "patient", 1, now - 1.0)
    decide_checked(cluster, auditor, now - 1.0)
    assert running(cluster) == {"patient"}
    decide_checked(cluster, auditor, now + 3 * HOUR_S)
    assert running(cluster) == {"patient"}, "it has lost its place, and nobody is evicted for it"


@pytest.mark.parametrize("after_s", [0.0, 59.0, 60.0, 61.0])
def test_a_job_that_pauses_can_be_withdrawn_also_when_its_pause_is_over_and_the_cycle_has_not_looked(after_s: float) -> None:
    cluster = cluster_of(1, 1)
    auditor = Auditor(cluster)
    ask(cluster, "crashes", 1, 0.0)
    decide_checked(cluster, auditor, 0.0)
    cluster.fail("crashes", 1.0)
    auditor.ended("crashes")
    cluster.end("crashes", 1.0 + after_s)
    assert not cluster.jobs
    assert cluster.next_at() == math.inf, "nobody comes back from a pause that was withdrawn"
    ask(cluster, "next", 1, 100.0)
    decide_checked(cluster, auditor, 100.0)
    assert running(cluster) == {"next"}


def test_a_job_that_ran_well_before_it_failed_is_in_no_loop() -> None:
    cluster = cluster_of(1, 1)
    auditor, now = Auditor(cluster), 0.0
    ask(cluster, "a", 1, 0.0)
    for _ in range(5):
        decide_checked(cluster, auditor, now)
        now = _crash(cluster, auditor, "a", now + HOUR_S)
        assert cluster.jobs["a"].failures == 1
    assert cluster.jobs["a"].stands_at == 0.0


def test_two_quick_failures_cost_no_place() -> None:
    cluster = cluster_of(1, 1)
    auditor, now = Auditor(cluster), 0.0
    ask(cluster, "a", 1, 0.0)
    for _ in range(2):
        decide_checked(cluster, auditor, now)
        now = _crash(cluster, auditor, "a", now)
    cluster.tick(now)
    assert (cluster.jobs["a"].stands_at, cluster.jobs["a"].lane) == (0.0, Lane.TRIAL)


# Whatever happens.

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.sampled_from([1, 1, 2, 4, 8, 16])),
        st.tuples(st.just("ask elastic"), st.integers(0, 5), st.sampled_from([1, 4, 8, 12])),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([60, 1800, 7200, 20000, 90000]), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("blame"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("node fails"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("node is back"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("drain"), st.integers(0, 4), st.just(0)),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(_STEPS, st.booleans())
def test_whatever_fails_every_invariant_holds_and_once_failures_stop_everybody_has_his_turn(steps: list[tuple[str, int, int]], limited: bool) -> None:
    accounts = [Account(name="g0", quota_gpus=8), Account(name="g1", limit_gpus=16)] if limited else []
    cluster = cluster_of(5, 8, *accounts)
    auditor, now = Auditor(cluster), 0.0

    def look() -> None:
        for node in decide_checked(cluster, auditor, now).drained:
            assert cluster.fleet.health[node] is Health.OUT

    for number, (what, value, gpus) in enumerate(steps):
        some = sorted(running(cluster))
        chosen = some[value % len(some)] if some else ""
        if what.startswith("ask"):
            most = {"gpus_max": 2 * gpus} if what == "ask elastic" else {}
            ask(cluster, f"j{number}", gpus, now, user=f"g{value % 3}/u{value}", preemptible=value != 4, **most)
        elif what == "wait":
            now += value
        elif what == "node fails":
            cluster.node_failed(value, now)
        elif what == "node is back" and cluster.fleet.health[value] is Health.OUT:
            cluster.node_back(value, now)
        elif what == "drain":
            cluster.drain(value, now)
        elif chosen and what == "blame":
            cluster.fail_by_node(chosen, cluster.jobs[chosen].placement[-1][0], now)
        elif chosen and what in ("end", "crash"):
            cluster.end(chosen, now) if what == "end" else cluster.fail(chosen, now)
            auditor.ended(chosen)
        look()
    for _ in range(600):  # Nothing fails any more, what is broken is repaired, jobs end.
        for node, health in enumerate(cluster.fleet.health):
            if health is Health.OUT:
                cluster.node_back(node, now)
        if not cluster.jobs:
            break
        now = min(now + 6 * HOUR_S, max(now + 1.0, cluster.next_at())) if not cluster.running else now + HOUR_S
        for id in sorted(running(cluster)):
            cluster.end(id, now)
            auditor.ended(id)
        look()
    assert not cluster.jobs
