"""One story or two: what belongs together, and what it is named after."""

from __future__ import annotations

from holdfast.diagnose.together import EXPLAINS, WITHIN_S, belongs, leading
from holdfast.domain.finding import Finding


def found(kind: str, *, node: str = "", ranks: tuple[int, ...] = (), since: float = 100.0) -> Finding:
    return Finding(kind=kind, because=kind, node=node, ranks=ranks, since=since)


def test_a_cause_noticed_after_what_it_does_is_what_the_story_is_named_after() -> None:
    slow, throttled = found("slow_rank", node="a", ranks=(2,)), found("throttled", node="a", since=101.0)
    assert belongs(throttled, [slow])
    assert leading([slow, throttled]) is throttled


def test_the_same_kind_on_twelve_ranks_is_one_story() -> None:
    assert belongs(found("slow_rank", ranks=(11,)), [found("slow_rank", ranks=(3,))])


def test_the_same_kind_an_hour_later_elsewhere_is_another_story() -> None:
    assert not belongs(found("slow_rank", node="b", ranks=(11,), since=3700.0), [found("slow_rank", node="a", ranks=(3,))])


def test_the_same_kind_in_the_same_place_is_the_same_story_as_long_as_it_is_open() -> None:
    assert belongs(found("disk_running_out", node="a", since=3700.0), [found("disk_running_out", node="a")])


def test_a_cause_on_another_node_explains_nothing_here() -> None:
    assert not belongs(found("slow_rank", node="b", ranks=(2,)), [found("throttled", node="a")])


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
