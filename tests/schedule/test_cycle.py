"""What the cycle decides: the cases that must come out, and what must never happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.clusters import ask, cluster_of, decide_checked, running

from holdfast.schedule.check import Auditor
from holdfast.schedule.cycle import decide
from holdfast.schedule.explain import why
from holdfast.schedule.job import JobRefused
from holdfast.schedule.place import Health
from holdfast.schedule.policy import DAY_S, HIGH, HOUR_S, LOW, Policy
from holdfast.schedule.tree import Account
from holdfast.schedule.view import shares_of

_OPEN_HIGH = Policy(classes={**Policy().classes, "high": type(HIGH)(name="high", rank=1, factor=2.0)})


def test_high_medium_and_low_start_in_that_order_and_in_order_of_submission_within() -> None:
    cluster = cluster_of(1, 1, policy=_OPEN_HIGH)
    for id, priority in (("A", "high"), ("B", "low"), ("C", "high"), ("D", "medium")):
        ask(cluster, id, 1, 0.0, user=f"g/{id}", priority=priority)
    order = []
    for now in range(4):
        (start,) = decide(cluster, float(now)).starts
        order.append(start.job)
        cluster.end(start.job, now + 0.5)
    assert order == ["A", "C", "D", "B"]


def test_a_low_job_is_evicted_for_a_high_one_which_gets_its_resources_and_it_comes_back() -> None:
    cluster = cluster_of(1, 4, policy=_OPEN_HIGH)
    ask(cluster, "B", 4, 0.0, user="g/b", priority="low")
    assert running(cluster) == set()
    assert [start.job for start in decide(cluster, 0.0).starts] == ["B"]
    ask(cluster, "C", 4, 1.0, user="g/c", priority="low")
    ask(cluster, "D", 4, 1.0, user="g/d", priority="low")
    ask(cluster, "A", 4, HOUR_S, user="g/a", priority="high")
    decisions = decide(cluster, HOUR_S)
    assert [(eviction.job, eviction.for_job) for eviction in decisions.evictions] == [("B", "A")]
    assert [(start.job, start.placement) for start in decisions.starts] == [("A", ((0, 4),))]
    cluster.end("A", 2 * HOUR_S)
    for now in (2 * HOUR_S, 4 * HOUR_S, 6 * HOUR_S):
        decide(cluster, now)
        for job in running(cluster):
            cluster.end(job, now + HOUR_S)
    assert not cluster.jobs, "B came back and ended too"


def test_nobody_is_evicted_before_the_minimum_run_except_for_administrators() -> None:
    cluster = cluster_of(1, 4, Account(name="admins", administers=True), policy=_OPEN_HIGH)
    ask(cluster, "B", 4, 0.0, priority="low")
    decide(cluster, 0.0)
    ask(cluster, "A", 4, 60.0, priority="high")
    assert not decide(cluster, 60.0).evictions
    ask(cluster, "mend", 2, 61.0, user="admins/root", priority="admin")
    decisions = decide(cluster, 61.0)
    assert [eviction.job for eviction in decisions.evictions] == ["B"]
    assert "mend" in running(cluster)


def test_only_who_was_named_for_it_may_submit_work_that_goes_before_all_others_and_who_is_refused_leaves_no_trace() -> None:
    cluster = cluster_of(1, 4)
    with pytest.raises(JobRefused, match=r"class admin, which goes before all groups: nobody was named for it .* ask for one of low, medium, high, or have it"):
        ask(cluster, "mine first", 1, 0.0, user="new/somebody", priority="admin")
    assert [row.name for row in shares_of(cluster)] == ["all"], "it joined no group"
    cluster = cluster_of(1, 4, Account(name="ops", administers=True), Account(name="research"), Account(name="night", parent=("research",), administers=True))
    for user in ("ops/eva", "research/night"):
        ask(cluster, f"mend for {user}", 1, 0.0, user=user, priority="admin")
    for user in ("research/tom", "ops2/eva"):
        with pytest.raises(JobRefused, match=f"ops, research/night may submit it, and {user} is not below"):
            ask(cluster, "mine first", 1, 0.0, user=user, priority="admin")
    cluster.appoint(("research", "tom"))
    ask(cluster, "mine first", 1, 0.0, user="research/tom", priority="admin")
    assert len(decide(cluster, 0.0).starts) == 3


def test_above_the_ceiling_of_its_class_a_job_is_demoted_with_a_reason_and_high_costs_double() -> None:
    cluster = cluster_of(10, 4)
    for number in range(3):
        ask(cluster, f"h{number}", 4, 0.0, priority="high")
    decide(cluster, 0.0)
    kinds = sorted((job.priority.name, job.reason[:10]) for job in cluster.jobs.values())
    assert kinds == [("high", ""), ("medium", "user g/u r"), ("medium", "user g/u r")]
    used = cluster.usage.used(cluster.tree.number(("g", "u")), HOUR_S)
    assert used == pytest.approx((4 * 2 + 8) * HOUR_S, rel=0.01)


_LOWEST = Policy(classes={**Policy().classes, "low": type(HIGH)(name="low", rank=-1, user_ceiling=0.25, group_ceiling=0.5)})


def test_above_the_ceiling_of_the_lowest_class_a_job_waits_says_why_and_starts_when_there_is_room_while_others_pass_it() -> None:
    cluster = cluster_of(2, 4, policy=_LOWEST)
    auditor = Auditor(cluster)
    for id, user in (("a1", "g/a"), ("a2", "g/a"), ("a3", "g/a"), ("b1", "g/b"), ("b2", "g/b")):
        ask(cluster, id, 1, 0.0, user=user, priority="low")
    decide_checked(cluster, auditor, 0.0)
    assert running(cluster) == {"a1", "a2", "b1", "b2"}
    ask(cluster, "c1", 1, 0.0, user="g/c", priority="low")
    ask(cluster, "medium", 1, 0.0, user="g/a")
    decide_checked(cluster, auditor, 0.0)
    assert running(cluster) == {"a1", "a2", "b1", "b2", "medium"}
    for id, whose in (("a3", "user g/a runs 2 GPUs in class low"), ("c1", "group g runs 4 GPUs in class low")):
        reason = why(cluster, id)
        assert reason is not None
        assert reason.kind == "ceiling"
        assert reason.because.startswith(whose)
    cluster.end("b1", HOUR_S)
    auditor.ended("b1")
    decide_checked(cluster, auditor, HOUR_S)
    assert running(cluster) == {"a1", "a2", "b2", "c1", "medium"}, "a is at his own ceiling still"
    cluster.end("a3", HOUR_S)
    cluster.end("a1", HOUR_S)
    assert set(cluster.jobs) == {"a2", "b2", "c1", "medium"}


def test_any_number_of_jobs_may_stand_above_a_ceiling_while_a_guarantee_is_filled() -> None:
    cluster = cluster_of(10, 4, Account(name="g", quota_gpus=40))
    for number in range(1500):
        ask(cluster, f"h{number}", 1, 0.0, priority="high")
    assert len(decide(cluster, 0.0).starts) == 40
    assert {job.priority.name for job in cluster.running} == {"high", "medium"}


def test_who_waits_at_his_ceiling_becomes_due_meanwhile_as_anybody() -> None:
    cluster = cluster_of(1, 4, policy=_LOWEST)
    auditor = Auditor(cluster)
    for id in ("first", "second"):
        ask(cluster, id, 1, 0.0, priority="low", preemptible=False)
    decide_checked(cluster, auditor, 0.0)
    cluster.end("first", 2 * DAY_S)
    auditor.ended("first")
    decide_checked(cluster, auditor, 2 * DAY_S)
    assert cluster.jobs["second"].firm, "its turn had come"


def test_a_job_that_holds_a_reservation_starts_in_its_class_only_below_its_ceiling() -> None:
    high = type(HIGH)(name="high", rank=1, user_ceiling=0.5)
    cluster = cluster_of(2, 4, policy=Policy(classes={**Policy().classes, "high": high}))
    auditor = Auditor(cluster)
    for node in range(2):
        ask(cluster, f"firm-{node}", 4, 0.0, user="h/x", preemptible=False, estimate_s=2 * DAY_S)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "whole", 4, 1.0, user="g/a", priority="high")
    decide_checked(cluster, auditor, 2 * DAY_S)
    assert cluster.jobs["whole"] in cluster.reservations
    (kept,) = cluster.reservations[cluster.jobs["whole"]].nodes
    other = next(job.request.id for job in cluster.running if job.placement[0][0] != kept)
    ask(cluster, "small", 1, 2 * DAY_S, user="g/a", priority="high")
    for id in (other, f"firm-{1 - int(other[-1])}"):
        cluster.end(id, 2 * DAY_S + 1.0)
        auditor.ended(id)
        decide_checked(cluster, auditor, 2 * DAY_S + 1.0)
    assert running(cluster) == {"small", "whole"}
    assert sorted(job.priority.name for job in cluster.running) == ["high", "medium"]


@pytest.mark.parametrize("bound", ["limit", "ceiling"])
def test_nodes_are_not_held_for_one_who_waits_for_others_of_its_account_to_end(bound: str) -> None:
    low = replace(LOW, user_ceiling=0.67)
    cluster = cluster_of(3, 4, Account(name="g", limit_gpus=8 if bound == "limit" else None), policy=Policy(classes={**Policy().classes, "low": low}))
    auditor, user = Auditor(cluster), {"user": "g/u", "priority": "low"}
    for number in range(2):
        ask(cluster, f"runs {number}", 4, 0.0, user="h/x", preemptible=False)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "gang", 8, 1.0, **user)
    decide_checked(cluster, auditor, 1.0)
    assert cluster.jobs["gang"] in cluster.reservations
    ask(cluster, "small", 1, 2.0, preemptible=False, **user)
    for id in ("runs 0", "runs 1"):
        cluster.end(id, HOUR_S)
        auditor.ended(id)
    decide_checked(cluster, auditor, HOUR_S)
    assert running(cluster) == {"small"}, "it is tried first, and the gang would be too much beside it"
    for number in range(2):
        ask(cluster, f"other {number}", 4, HOUR_S, user="h/y", preemptible=False)
    decide_checked(cluster, auditor, DAY_S)
    assert running(cluster) == {"small", "other 0", "other 1"}
    for id in ("small", "other 0", "other 1"):
        cluster.end(id, 2 * DAY_S)
        auditor.ended(id)
    decide_checked(cluster, auditor, 2 * DAY_S)
    assert running(cluster) == {"gang"}


def test_a_ceiling_is_of_what_is_in_service_and_nodes_that_are_lost_are_nobodys_fault() -> None:
    cluster = cluster_of(10, 4)
    auditor = Auditor(cluster)
    ask(cluster, "first", 4, 0.0, priority="high")
    decide_checked(cluster, auditor, 0.0)
    (node, _), *_ = cluster.jobs["first"].placement
    for other in [one for one in range(10) if one != node][:5]:
        cluster.node_failed(other, 1.0)
    decide_checked(cluster, auditor, 1.0)
    ask(cluster, "second", 1, 2.0, priority="high")
    decide_checked(cluster, auditor, 2.0)
    assert [cluster.jobs[id].priority.name for id in ("first", "second")] == ["high", "medium"]


def test_a_gang_starts_whole_on_whole_nodes_of_one_domain_or_not_at_all() -> None:
    cluster = cluster_of(4, 8)
    ask(cluster, "small", 1, 0.0)
    decide(cluster, 0.0)
    ask(cluster, "gang", 16, 1.0)
    (start,) = decide(cluster, 1.0).starts
    assert start.placement == ((2, 8), (3, 8)), "the domain that the small job did not touch"
    ask(cluster, "too large now", 16, 2.0)
    assert not decide(cluster, 2.0).starts


def test_with_a_partition_no_rank_starts_and_nothing_is_charged_until_it_heals() -> None:
    cluster = cluster_of(3, 1, gangs_report=True)
    ask(cluster, "gang", 3, 0.0)
    assert [start.job for start in decide(cluster, 0.0).starts] == ["gang"]
    assert not cluster.ready("gang", 0, {1}, 1.0)
    assert not cluster.ready("gang", 1, {0}, 2.0)
    assert not cluster.ready("gang", 2, {2}, 3.0)
    reason = why(cluster, "gang")
    assert reason is not None
    assert reason.kind == "members"
    assert "do not reach each other" in reason.because
    assert cluster.usage.charged(cluster.tree.number(("g", "u")), 100.0) == 0.0
    for rank in range(3):
        released = cluster.ready("gang", rank, {0, 1, 2}, 100.0)
    assert released
    assert why(cluster, "gang") is None
    assert cluster.usage.charged(cluster.tree.number(("g", "u")), 101.0) > 0.0


def test_a_gang_that_never_meets_gives_its_place_back_and_backs_off() -> None:
    cluster = cluster_of(2, 1, gangs_report=True)
    ask(cluster, "gang", 2, 0.0)
    decide(cluster, 0.0)
    ask(cluster, "other", 1, 1.0)
    assert not decide(cluster, 1.0).starts
    assert [start.job for start in decide(cluster, 601.0).starts] == ["other"], "a start that fails does not block others"
    reason = why(cluster, "gang")
    assert reason is not None
    assert reason.kind == "start failed"
    assert cluster.usage.charged(cluster.tree.number(("g", "u")), 601.0) == 0.0, "nothing ran"


def test_a_group_gets_its_guarantee_back_from_who_borrowed_it_and_nobody_falls_below_his() -> None:
    cluster = cluster_of(2, 4, Account(name="a", quota_gpus=4), Account(name="b", quota_gpus=4))
    auditor = Auditor(cluster)
    for number in range(8):
        ask(cluster, f"b{number}", 1, 0.0, user="b/x")
    decide_checked(cluster, auditor, 0.0)
    for number in range(6):
        ask(cluster, f"a{number}", 1, 3 * HOUR_S, user="a/y")
    decide_checked(cluster, auditor, 3 * HOUR_S)
    assert cluster.gpus[cluster.tree.number(("a",))] == cluster.gpus[cluster.tree.number(("b",))] == 4


def test_when_nodes_are_lost_guarantees_shrink_alike_and_the_one_who_lost_his_gets_his_part_back() -> None:
    cluster = cluster_of(4, 2, Account(name="a", quota_gpus=4), Account(name="b", quota_gpus=4))
    auditor = Auditor(cluster)
    for group in "ab":
        for number in range(4):
            ask(cluster, f"{group}{number}", 1, 0.0, user=f"{group}/x", checkpoint_every_s=60.0)
    decide_checked(cluster, auditor, 0.0)
    where = {job.placement[0][0] for job in cluster.running if job.request.id.startswith("b")}
    for node in sorted(where)[:2]:
        cluster.node_failed(node, 3 * HOUR_S)
    for hour in range(3, 8):
        decide_checked(cluster, auditor, hour * HOUR_S)
        assert [cluster.gpus[cluster.tree.number((group,))] for group in "ab"] == [2, 2]
    for node in range(4):
        cluster.node_failed(node, 8 * HOUR_S)
    decide_checked(cluster, auditor, 8 * HOUR_S)
    assert not cluster.running, "nothing is in service, and the cycle goes on"
    for node in range(4):
        cluster.node_back(node, 9 * HOUR_S)
    decide_checked(cluster, auditor, 20 * HOUR_S)
    assert [cluster.gpus[cluster.tree.number((group,))] for group in "ab"] == [4, 4]


def test_a_guarantee_below_a_limit_is_no_way_around_it() -> None:
    accounts = [Account(name="a", quota_gpus=4, limit_gpus=4), Account(name="x", parent=("a",), quota_gpus=2), Account(name="y", parent=("a",))]
    cluster = cluster_of(2, 4, *accounts)
    auditor = Auditor(cluster)
    ask(cluster, "borrows", 4, 0.0, user="a/y/u", preemptible=False)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "guaranteed", 2, 1.0, user="a/x/u")
    decide_checked(cluster, auditor, 1.0)
    assert running(cluster) == {"borrows"}


def test_of_a_group_little_above_its_guarantee_no_more_is_evicted_than_it_borrowed() -> None:
    cluster = cluster_of(1, 8, Account(name="a", quota_gpus=3), Account(name="b", quota_gpus=3), Account(name="c", quota_gpus=2))
    auditor = Auditor(cluster)
    for group in "ab":
        for number in range(4):
            ask(cluster, f"{group}{number}", 1, 0.0, user=f"{group}/x", checkpoint_every_s=60.0)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "c", 2, 3 * HOUR_S, user="c/x")
    decisions = decide_checked(cluster, auditor, 3 * HOUR_S)
    assert sorted(one.job[0] for one in decisions.evictions) == ["a", "b"]
    assert [cluster.gpus[cluster.tree.number((group,))] for group in "abc"] == [3, 3, 2]


def test_small_firm_jobs_are_moved_together_for_a_larger_one_whose_turn_has_come_and_start_again_at_once() -> None:
    cluster = cluster_of(2, 4, policy=Policy(patience_s=0.0))
    auditor = Auditor(cluster)
    for number in range(8):
        ask(cluster, f"one-{number}", 1, 0.0)
    decide_checked(cluster, auditor, 0.0)
    for node in (0, 1):
        for job in list(cluster.fleet.on[node])[:2]:
            cluster.end(job.request.id, 1.0)
            auditor.ended(job.request.id)
    decide_checked(cluster, auditor, 1.0)
    ask(cluster, "four", 4, HOUR_S)
    decisions = decide_checked(cluster, auditor, HOUR_S)
    assert len(decisions.evictions) == 2
    assert "four" in running(cluster)
    assert len(running(cluster)) == 5, "who was moved runs on the other node"


@pytest.mark.parametrize(("whole_at_h", "first"), [(3, "whole"), (5, "part")])
def test_of_those_that_are_due_a_gang_of_whole_nodes_counts_as_a_fifth_older(whole_at_h: int, first: str) -> None:
    cluster = cluster_of(1, 2, policy=Policy(patience_s=10 * HOUR_S))
    ask(cluster, "runs", 2, 0.0, preemptible=False)
    decide(cluster, 0.0)
    ask(cluster, "part", 1, 1.0)
    ask(cluster, "whole", 2, whole_at_h * HOUR_S)
    cluster.end("runs", 20 * HOUR_S)
    assert [start.job for start in decide(cluster, 20 * HOUR_S).starts] == [first]


def test_what_a_job_has_run_before_its_turn_is_no_wait_and_who_could_not_be_fitted_in_meanwhile_goes_before_it() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "ran", 1, 0.0)
    ask(cluster, "pinned", 1, 0.0, preemptible=False)
    decide(cluster, 0.0)
    ask(cluster, "waits", 1, HOUR_S)
    decide(cluster, 3 * HOUR_S)
    assert running(cluster) == {"pinned", "waits"}, "the newcomer is tried, and the one that was tried goes"
    assert cluster.jobs["ran"].stands_at == pytest.approx(3 * HOUR_S)


@pytest.mark.parametrize(("days", "gpus"), [(0.5, 4), (1, 4), (2, 2), (4, 1)])
def test_the_longer_the_longest_wait_the_less_is_tried(days: float, gpus: int) -> None:
    cluster = cluster_of(10, 2, policy=Policy(trial_share=0.2, patience_s=DAY_S))
    for number in range(10):
        ask(cluster, f"stays-{number}", 2, 0.0, preemptible=False)
    decide(cluster, 0.0)
    ask(cluster, "waits", 2, 0.0)
    decide(cluster, days * DAY_S)
    assert cluster.trials_most() == pytest.approx(gpus)


def test_a_trial_costs_the_same_whatever_the_size_of_the_job_but_no_less_than_the_minimum_run() -> None:
    cluster = cluster_of(2, 8)
    ask(cluster, "one", 1, 0.0)
    ask(cluster, "two", 2, 0.0)
    ask(cluster, "node", 8, 0.0)
    decide(cluster, 0.0)
    assert {id: job.loose_at / HOUR_S for id, job in cluster.jobs.items()} == {"one": 2.0, "two": 1.0, "node": 0.5}


def test_limits_hold_and_say_so() -> None:
    cluster = cluster_of(2, 4, Account(name="a", limit_gpus=2))
    auditor = Auditor(cluster)
    for number in range(3):
        ask(cluster, f"a{number}", 1, 0.0, user="a/x")
    decide_checked(cluster, auditor, 0.0)
    reason = why(cluster, "a2")
    assert len(cluster.running) == 2
    assert reason is not None
    assert reason.kind == "limit"
    assert "limited to 2" in reason.because
    with pytest.raises(JobRefused, match="limited to 2"):
        ask(cluster, "never", 3, 1.0, user="a/x")
    with pytest.raises(JobRefused, match="the cluster has 8"):
        ask(cluster, "huge", 9, 1.0)
    with pytest.raises(JobRefused, match="here already"):
        ask(cluster, "a0", 1, 1.0)


def test_an_elastic_job_starts_at_its_minimum_grows_and_gives_way_before_anybody_is_evicted() -> None:
    cluster = cluster_of(1, 8)
    auditor = Auditor(cluster)
    ask(cluster, "elastic", 2, 0.0, gpus_max=8)
    decide_checked(cluster, auditor, 0.0)
    decide_checked(cluster, auditor, HOUR_S)
    assert cluster.jobs["elastic"].gpus_now == 8
    ask(cluster, "other", 3, HOUR_S + 1, user="g/v")
    decisions = decide_checked(cluster, auditor, HOUR_S + 1)
    assert not decisions.evictions
    assert running(cluster) == {"elastic", "other"}
    assert cluster.jobs["elastic"].gpus_now == 5


def test_a_suspect_node_gets_only_small_preemptible_work_and_one_that_is_out_gets_none() -> None:
    cluster = cluster_of(2, 4)
    cluster.judge(0, Health.SUSPECT, 0.0)
    cluster.judge(1, Health.OUT, 0.0)
    ask(cluster, "large", 4, 0.0)
    ask(cluster, "precious", 1, 0.0, preemptible=False)
    ask(cluster, "small", 1, 0.0)
    assert [(start.job, start.placement) for start in decide(cluster, 0.0).starts] == [("small", ((0, 1),))]
    reason = why(cluster, "large")
    assert reason is not None
    assert reason.kind == "health"
    assert cluster.judge(0, Health.OUT, 10.0) == ("small",)


def test_clocks_that_go_back_do_not_stop_the_cycle() -> None:
    cluster = cluster_of(1, 1)
    ask(cluster, "a", 1, 100.0)
    decide(cluster, 100.0)
    ask(cluster, "b", 1, 50.0)
    decide(cluster, 10.0)
    cluster.end("a", 0.0)
    assert [start.job for start in decide(cluster, 5.0).starts] == ["b"]


def test_a_victim_that_comes_back_at_once_changes_nothing() -> None:
    cluster = cluster_of(1, 2)
    ask(cluster, "long", 1, 0.0, user="g/a")
    ask(cluster, "long too", 1, 0.0, user="g/a")
    decide(cluster, 0.0)
    ask(cluster, "new", 1, 3 * HOUR_S, user="g/b")
    assert len(decide(cluster, 3 * HOUR_S).evictions) == 1
    for minute in range(1, 25):
        again = decide(cluster, 3 * HOUR_S + 60.0 * minute)
        assert not again.evictions
        assert not again.starts


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.sampled_from([1, 1, 1, 2, 4, 8, 16]), st.sampled_from(["low", "medium", "high", "admin"])),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(0), st.just("")),
        st.tuples(st.just("wait"), st.sampled_from([60, 1800, 7200, 20000, 90000]), st.just(0), st.just("")),
        st.tuples(st.just("fail"), st.integers(0, 50), st.just(0), st.just("")),
    ),
    max_size=70,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(_STEPS, st.booleans(), st.sampled_from([Policy(), _LOWEST]))
def test_whatever_happens_every_invariant_holds_and_everybody_starts_in_the_end(
    steps: list[tuple[str, int, int, str]], limited: bool, policy: Policy
) -> None:
    accounts = [Account(name="g0", quota_gpus=8), Account(name="g1", limit_gpus=16)] if limited else []
    cluster = cluster_of(4, 8, *accounts, policy=policy)
    for group in ("g0", "g1", "g2"):
        cluster.appoint((group,))
    auditor, now = Auditor(cluster), 0.0
    decide_checked(cluster, auditor, now)
    for number, (what, value, gpus, priority) in enumerate(steps):
        if what == "ask" and policy is _LOWEST and priority == "low" and gpus > 8:
            with pytest.raises(JobRefused, match="class low has a ceiling of 8, with no lower class"):
                ask(cluster, f"j{number}", gpus, now, user=f"g{value % 3}/u{value}", priority=priority)
        elif what == "ask":
            ask(cluster, f"j{number}", gpus, now, user=f"g{value % 3}/u{value}", priority=priority, preemptible=value != 4)
        elif what == "wait":
            now += value
        elif cluster.running:
            id = sorted(running(cluster))[value % len(cluster.running)]
            cluster.end(id, now) if what == "end" else cluster.fail(id, now)
            auditor.ended(id)
        decide_checked(cluster, auditor, now)
    for _ in range(400):  # Arrivals have stopped and jobs end: everybody has his turn.
        if not cluster.jobs:
            break
        now = min(now + 3 * HOUR_S, max(now + 1.0, cluster.next_at())) if not cluster.running else now + HOUR_S
        for id in sorted(running(cluster)):
            cluster.end(id, now)
            auditor.ended(id)
        decide_checked(cluster, auditor, now)
    assert not cluster.jobs


def test_who_is_about_to_save_is_not_evicted_before_he_has() -> None:
    cluster = cluster_of(1, 1)
    auditor, loose_at = Auditor(cluster), Policy().trial_s
    ask(cluster, "old", 1, 0.0)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "new", 1, loose_at + 1500.0)  # The old one has been tried, and 25 minutes of its half an hour from save to save are over.
    assert not decide_checked(cluster, auditor, loose_at + 1500.0).evictions
    assert cluster.next_at() <= loose_at + 1800.0, "it is looked at again although nothing else happens"
    now = cluster.next_at()
    while not (decisions := decide_checked(cluster, auditor, now)).evictions:
        now = cluster.next_at()
    assert loose_at + 1800.0 <= now <= loose_at + 2100.0
    assert [one.job for one in decisions.evictions] == ["old"]


def test_who_never_saves_is_not_waited_for() -> None:
    cluster = cluster_of(1, 1)
    auditor, loose_at = Auditor(cluster), Policy().trial_s
    ask(cluster, "old", 1, 0.0, checkpoint_every_s=None)
    decide_checked(cluster, auditor, 0.0)
    ask(cluster, "new", 1, loose_at + 1500.0)
    assert [one.job for one in decide_checked(cluster, auditor, loose_at + 1500.0).evictions] == ["old"]
