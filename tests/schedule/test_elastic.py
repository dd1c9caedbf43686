"""Jobs that grow and shrink: what they have beyond their minimum is lent, and goes to who has a better claim on it."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from schedule.clusters import ask, cluster_of, decide_checked, running

from holdfast.schedule.check import Auditor
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.policy import DAY_S, HOUR_S, Policy, PriorityClass
from holdfast.schedule.tree import Account


def _grown(nodes: int, gpus: int, *accounts: Account, policy: Policy | None = None, **asked: object) -> tuple[Cluster, Auditor]:
    """A cluster that one elastic job of g/a has filled, at one hour."""
    cluster = cluster_of(nodes, gpus, *accounts, policy=policy)
    auditor = Auditor(cluster)
    ask(cluster, "elastic", 1, 0.0, user="g/a", gpus_max=nodes * gpus, **asked)
    decide_checked(cluster, auditor, 0.0)
    decide_checked(cluster, auditor, HOUR_S)
    return cluster, auditor


def test_a_gang_of_several_nodes_gets_them_from_extras_at_once_and_nobody_is_evicted() -> None:
    cluster, auditor = _grown(4, 4)
    assert cluster.jobs["elastic"].gpus_now == 16
    ask(cluster, "gang", 10, HOUR_S, user="g/b")
    decisions = decide_checked(cluster, auditor, HOUR_S)
    assert not decisions.evictions
    assert {"gang", "elastic"} == running(cluster)
    assert cluster.jobs["elastic"].gpus_now == 6, "it gives what the gang needs, and no more"


def test_who_was_tried_already_and_is_below_his_part_gets_it_from_extras_and_who_has_his_part_does_not() -> None:
    cluster, auditor = _grown(1, 8)
    for number in range(8):
        ask(cluster, f"b{number}", 1, HOUR_S, user="g/b", checkpoint_every_s=60.0)
        cluster.jobs[f"b{number}"].attained_s = DAY_S  # Tried long ago.
        cluster.waiting.remove(cluster.jobs[f"b{number}"])
        cluster._queue(cluster.jobs[f"b{number}"], HOUR_S)
    decisions = decide_checked(cluster, auditor, HOUR_S)
    assert len(decisions.starts) == 4, "each of the two is entitled to half"
    assert not decisions.evictions
    assert cluster.jobs["elastic"].gpus_now == 4
    for hour in range(2, 12):
        decide_checked(cluster, auditor, hour * HOUR_S)
        assert cluster.jobs["elastic"].gpus_now == 4, "it neither takes back what the other is entitled to nor gives more"


def test_two_elastic_jobs_of_equal_users_come_to_equal_parts_and_stay_there() -> None:
    cluster, auditor = _grown(2, 4)
    ask(cluster, "other", 1, HOUR_S, user="g/b", gpus_max=8)
    for step in range(1, 8):
        decide_checked(cluster, auditor, HOUR_S * step)
    sizes = [cluster.jobs[id].gpus_now for id in ("elastic", "other")]
    assert sizes == [4, 4]
    assert not decide_checked(cluster, auditor, 9 * HOUR_S).resizes


def test_of_those_that_may_grow_the_one_with_the_better_claim_does() -> None:
    cluster = cluster_of(1, 6, Account(name="heavy", weight=1.0), Account(name="light", weight=3.0))
    auditor = Auditor(cluster)
    ask(cluster, "first", 1, 0.0, user="heavy/a", gpus_max=6)
    ask(cluster, "second", 1, 0.0, user="light/b", gpus_max=6)
    decide_checked(cluster, auditor, 0.0)
    decide_checked(cluster, auditor, HOUR_S)
    assert [cluster.jobs[id].gpus_now for id in ("first", "second")] == [1, 5]


def test_extras_go_before_anybody_is_evicted_also_for_who_is_due() -> None:
    cluster, auditor = _grown(2, 4)
    ask(cluster, "loose", 2, HOUR_S, user="g/c", checkpoint_every_s=60.0)
    decide_checked(cluster, auditor, HOUR_S)
    decide_checked(cluster, auditor, 4 * HOUR_S)
    assert cluster.jobs["loose"].loose
    ask(cluster, "due", 3, 4 * HOUR_S, user="g/d")
    cluster.jobs["due"].waited_s = 2 * DAY_S
    cluster.waiting.remove(cluster.jobs["due"])
    cluster._queue(cluster.jobs["due"], 4 * HOUR_S)
    decisions = decide_checked(cluster, auditor, 4 * HOUR_S)
    assert not decisions.evictions
    assert running(cluster) == {"elastic", "loose", "due"}


def test_extras_that_stand_on_a_guarantee_stay() -> None:
    cluster, auditor = _grown(1, 8, Account(name="g", quota_gpus=6))
    for number in range(4):
        ask(cluster, f"b{number}", 1, HOUR_S, user=f"h/{number}")
    decide_checked(cluster, auditor, HOUR_S)
    assert cluster.jobs["elastic"].gpus_now == 6
    assert len(running(cluster)) == 3


def test_a_job_grows_up_to_the_ceiling_of_its_class_and_the_limits_above_it() -> None:
    classes = {**Policy().classes, "medium": PriorityClass(name="medium", rank=0, user_ceiling=0.5, group_ceiling=0.75)}
    cluster, _ = _grown(4, 4, policy=Policy(classes=classes))
    assert cluster.jobs["elastic"].gpus_now == 8
    limited, _ = _grown(4, 4, Account(name="g", limit_gpus=5))
    assert limited.jobs["elastic"].gpus_now == 5


def test_where_a_limit_or_ceiling_is_reached_extras_go_for_a_job_that_waits() -> None:
    cluster, auditor = _grown(4, 4, Account(name="g", limit_gpus=8))
    ask(cluster, "more", 2, HOUR_S, user="g/b")
    decide_checked(cluster, auditor, HOUR_S)
    assert (cluster.jobs["elastic"].gpus_now, cluster.jobs["more"].gpus_now) == (6, 2)
    cluster, auditor = _grown(4, 5, priority="high")
    assert cluster.jobs["elastic"].gpus_now == 2, "a tenth of the cluster"
    for id in ("fits", "does not"):
        ask(cluster, id, 1, HOUR_S, user="g/a", priority="high")
        decide_checked(cluster, auditor, HOUR_S)
    assert [(cluster.jobs[id].gpus_now, cluster.jobs[id].priority.name) for id in cluster.jobs] == [(1, "high"), (1, "high"), (1, "medium")]


_ASKED = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from([1, 1, 2, 4, 8]), st.sampled_from([0, 0, 6, 12, 16]), st.sampled_from([0, 600, 1800, 7200, 30000]), st.booleans()
    ),
    max_size=40,
)  # fmt: skip


_MOVED_TOGETHER = [  # Two jobs of one account are moved for the gang of eight: each alone could go, and both break its guarantee.
    (0, 1, 0, 0, False), (1, 1, 0, 0, False), (0, 1, 0, 0, False), (1, 1, 0, 0, False), (0, 2, 6, 0, True), (1, 4, 0, 7200, False), (0, 4, 0, 0, False),
    (1, 8, 0, 0, True), (0, 1, 0, 1800, False), (1, 1, 0, 0, True),
]  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(_ASKED, st.booleans())
@example(_MOVED_TOGETHER, True)
def test_whatever_is_asked_nobody_below_his_part_waits_beside_extras_above_anothers(asked: list[tuple[int, int, int, int, bool]], limited: bool) -> None:
    accounts = [Account(name="g0", quota_gpus=4), Account(name="g1", limit_gpus=12)] if limited else []
    cluster = cluster_of(4, 4, *accounts)
    auditor, now = Auditor(cluster), 0.0
    for number, (user, gpus, most, pause, ends) in enumerate(asked):
        now += pause
        if limited and user % 2 and gpus > 12:
            continue
        ask(cluster, f"j{number}", gpus, now, user=f"g{user % 2}/u{user}", gpus_max=max(most, gpus) if most else 0, checkpoint_every_s=60.0)
        if ends and cluster.running:
            id = sorted(running(cluster))[number % len(cluster.running)]
            cluster.end(id, now)
            auditor.ended(id)
        decide_checked(cluster, auditor, now)
        if not limited:
            _nobody_entitled_waits(cluster)
    for _ in range(200):
        if not cluster.jobs:
            break
        now = now + HOUR_S if cluster.running else min(now + 3 * HOUR_S, max(now + 1.0, cluster.next_at()))
        for id in sorted(running(cluster)):
            cluster.end(id, now)
            auditor.ended(id)
        decide_checked(cluster, auditor, now)
    assert not cluster.jobs


def _nobody_entitled_waits(cluster: Cluster) -> None:
    fleet, entitled = cluster.fleet, cluster.entitled()
    for job in cluster.jobs.values():
        if job.running or job.gpus > fleet.gpus_max:
            continue
        for node, extras in enumerate(fleet.extras_on):
            if not fleet.is_open(node):
                continue
            room = fleet.free[node]
            for owner, there in extras.items():
                mine, others = next(((a, b) for a, b in zip(job.line, owner.line, strict=False) if a != b), (-1, -1))
                if mine == -1 or (cluster.gpus[mine] < entitled[mine] - 1e-6 and cluster.gpus[others] > entitled[others] + 1e-6):
                    room += there
            assert room < job.gpus, f"{job} waits beside {room} GPUs of {fleet.nodes[node].name} that are free or extras"
