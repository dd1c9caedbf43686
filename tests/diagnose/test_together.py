"""One story or two: what belongs together, and what it is named after."""

from __future__ import annotations

from dataclasses import replace

from holdfast.diagnose.together import EXPLAINS, WITHIN_S, belongs, in_words, leading, tells_of
from holdfast.domain.finding import Finding, Severity


def found(kind: str, *, node: str = "", ranks: tuple[int, ...] = (), since: float = 100.0) -> Finding:
    return Finding(kind=kind, because=kind, node=node, ranks=ranks, since=since)


def test_a_cause_noticed_after_what_it_does_is_what_the_story_is_named_after() -> None:
    slow, throttled = found("slow_rank", node="a", ranks=(2,)), found("throttled", node="a", since=101.0)
    assert belongs(throttled, [slow])
    assert leading([slow, throttled]) is throttled


def test_a_rank_that_is_a_little_slow_does_not_give_its_name_to_a_step_that_is_much_slower() -> None:
    waiting, little = replace(found("slow_communication"), adds_s=0.15), replace(found("slow_rank", ranks=(2,)), adds_s=0.01)
    assert belongs(little, [waiting])
    assert leading([waiting, little]) is waiting
    assert leading([little, waiting]) is waiting, "whichever was noticed first"
    much = replace(little, adds_s=0.12)
    assert leading([waiting, much]) is much


def test_of_the_same_kind_the_one_that_names_a_rank_leads() -> None:
    anybody, somebody = found("memory_running_out", node="a"), found("memory_running_out", node="b", ranks=(3,))
    assert leading([anybody, somebody]) is somebody


def test_a_rank_that_runs_out_of_memory_belongs_to_the_story_of_its_node_whoever_took_most_of_it() -> None:
    going, gone = found("memory_running_out", node="a", ranks=(0,)), found("worker_exited", node="a", ranks=(1,), since=103.0)
    assert belongs(gone, [going])
    assert leading([going, gone]) is going
    assert not belongs(replace(gone, node="b"), [going])


def test_the_same_kind_on_twelve_ranks_is_one_story() -> None:
    assert belongs(found("slow_rank", ranks=(11,)), [found("slow_rank", ranks=(3,))])


def test_the_same_kind_an_hour_later_elsewhere_is_another_story() -> None:
    assert not belongs(found("slow_rank", node="b", ranks=(11,), since=3700.0), [found("slow_rank", node="a", ranks=(3,))])


def test_the_same_kind_in_the_same_place_is_the_same_story_as_long_as_it_is_open() -> None:
    assert belongs(found("disk_running_out", node="a", since=3700.0), [found("disk_running_out", node="a")])


def test_a_cause_on_another_node_explains_nothing_here() -> None:
    assert not belongs(found("slow_rank", node="b", ranks=(2,)), [found("throttled", node="a")])


def test_a_slow_disk_on_one_node_is_why_saves_are_skipped_on_another() -> None:
    skipped, disk = found("saves_skipped", node="a", ranks=(0,)), found("slow_disk", node="b", since=101.0)
    assert belongs(skipped, [disk])
    assert leading([skipped, disk]) is disk


def test_what_is_about_the_whole_job_touches_every_node() -> None:
    assert belongs(found("slow_job"), [found("slow_disk", node="a")])


def test_what_came_long_before_its_cause_is_not_explained_by_it() -> None:
    assert not belongs(found("slow_rank", ranks=(1,), since=100.0), [found("throttled", since=100.0 + WITHIN_S + 1.0)])


def test_findings_that_explain_each_other_in_a_circle_still_have_a_name() -> None:
    both = [found("not_finite"), found("replicas_disagree")]
    assert leading(both) is both[0]


def test_everything_that_is_explained_and_explains_has_a_name_in_the_table_of_kinds() -> None:
    every = set(EXPLAINS) | {kind for kinds in EXPLAINS.values() for kind in kinds}
    assert all(kind == kind.lower() and " " not in kind for kind in every)


def test_a_story_says_in_one_sentence_what_is_so_and_because_of_what() -> None:
    slow, throttled = found("slow_rank", node="a", ranks=(2,)), found("throttled", node="a", ranks=(2,))
    assert in_words([slow, throttled]) == "rank 2 is slow because throttled"
    assert in_words([slow]) == "slow_rank"


def test_what_is_only_worth_knowing_gives_a_reason_and_no_name() -> None:
    slow, throttled = found("slow_rank", node="a", ranks=(2,)), replace(found("throttled", node="a"), severity=Severity.INFO)
    assert leading([throttled, slow]) is slow
    assert in_words([throttled, slow]) == "rank 2 is slow because throttled"


def test_that_the_job_is_slow_says_so_little_that_what_is_only_worth_knowing_gives_the_name() -> None:
    slow, lossy = found("slow_job"), replace(found("lossy_network", node="a"), severity=Severity.INFO)
    assert leading([slow, lossy]) is lossy
    assert in_words([slow, lossy]) == "the job is slow because lossy_network"


def test_a_probe_that_hangs_at_a_slow_disk_belongs_to_the_story_of_the_disk_and_one_that_looks_at_something_else_does_not() -> None:
    slow = replace(found("slow_disk", node="a"), of="/checkpoints")
    hangs = replace(found("hung_probe", node="a"), of="disk write /checkpoints")
    assert belongs(hangs, [slow])
    assert leading([hangs, slow]) is slow
    assert not belongs(replace(hangs, of="gpu 0"), [slow])


def test_a_job_that_is_over_its_time_because_a_rank_is_slow_is_one_story_named_after_the_rank() -> None:
    both = [found("over_time"), found("slow_rank", node="a", ranks=(2,), since=20.0)]
    assert belongs(both[1], both[:1])
    assert leading(both) is both[1]
    assert in_words(both) == "the job is over its time because slow_rank"


def test_what_flaps_is_part_of_the_story_of_what_it_is_and_names_it() -> None:
    slow = replace(found("slow_disk", node="a"), of="/data")
    flaps = replace(found("flapping", node="a", since=4000.0), of="slow_disk /data")
    assert belongs(flaps, [slow])
    assert leading([slow, flaps]) is flaps
    assert not belongs(replace(flaps, node="b"), [slow])


def test_a_number_that_did_something_new_is_a_sign_and_never_the_cause() -> None:
    jump, number = found("loss_jump"), replace(found("unusual_value", since=110.0), of="gradient_norm")
    assert tells_of(number, jump)
    assert leading([number, jump]) is jump
    assert not tells_of(replace(number, of="user_entropy"), jump)
    assert not tells_of(replace(number, since=100.0 + WITHIN_S + 1.0), jump)
