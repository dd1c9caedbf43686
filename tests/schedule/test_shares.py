"""The textbook cases come out exactly, and water-filling keeps what it promises."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.schedule.policy import Policy, PriorityClass
from holdfast.schedule.shares import entitled, poured
from holdfast.schedule.tree import Account, Tree, TreeRefused, in_tree
from holdfast.schedule.usage import Usage


def _equal(*groups: int) -> tuple[Tree, dict[str, float]]:
    tree = Tree((), capacity_gpus=100)
    wants = {tree.number((f"g{group}", f"u{user}")): 1000.0 for group, users in enumerate(groups) for user in range(users)}
    return tree, {tree.name(number): part for number, part in entitled(tree, wants, 100.0).items()}


def test_four_equal_users_get_a_quarter_each_and_a_fifth_makes_it_a_fifth() -> None:
    assert [_equal(4)[1][f"g0/u{user}"] for user in range(4)] == [25.0] * 4
    assert [_equal(5)[1][f"g0/u{user}"] for user in range(5)] == pytest.approx([20.0] * 5, abs=1e-12)


def test_three_groups_of_3_2_and_4_users_share_by_group_first() -> None:
    parts = _equal(3, 2, 4)[1]
    assert parts["g0/u0"] == pytest.approx(100 / 9, abs=1e-9)
    assert parts["g1/u0"] == pytest.approx(100 / 6, abs=1e-9)
    assert parts["g2/u0"] == pytest.approx(100 / 12, abs=1e-9)


def test_a_user_with_two_equal_jobs_gets_no_more_and_they_halve_it() -> None:
    tree = Tree((), capacity_gpus=100)
    paths = [("g", "a", "job 1"), ("g", "a", "job 2"), ("g", "b", "job"), ("g", "c", "job"), ("g", "d", "job")]
    parts = entitled(tree, {tree.number(path): 1000.0 for path in paths}, 100.0)
    assert [parts[tree.number(path)] for path in paths] == pytest.approx([12.5, 12.5, 25.0, 25.0, 25.0])
    assert parts[tree.number(("g", "a"))] == pytest.approx(25.0)
    process = Tree((), capacity_gpus=100)
    deep = {process.number(("g", "a", "job", f"process {number}")): 1000.0 for number in range(4)} | {process.number(("g", "b", "job", "process")): 1000.0}
    assert sorted(part for number, part in entitled(process, deep, 100.0).items() if number in deep) == pytest.approx([12.5] * 4 + [50.0])


def test_what_one_does_not_want_goes_to_the_others_by_weight_and_guarantees_come_first() -> None:
    assert poured(100, [1, 1, 2], [10, 1000, 1000]) == pytest.approx([10, 30, 60])
    assert poured(100, [1, 1], [1000, 1000], [80, 0]) == pytest.approx([90, 10])
    tree = Tree([Account(name="a", quota_gpus=60), Account(name="b", limit_gpus=10)], capacity_gpus=100)
    parts = entitled(tree, {tree.number(("a", "x")): 20.0, tree.number(("b", "y")): 500.0, tree.number(("c", "z")): 500.0})
    assert [parts[tree.number((name,))] for name in "abc"] == pytest.approx([20, 10, 70])


def test_quotas_add_up_to_what_is_in_service_each_less_in_proportion_and_come_back() -> None:
    below = [Account(name=name, parent=("a",), quota_gpus=4) for name in "xy"]
    accounts = [Account(name="a", quota_gpus=9), Account(name="b", quota_gpus=6), *below]
    tree = Tree(accounts, capacity_gpus=16)
    for capacity, expected in ((16, [9, 6, 4, 4]), (15, [9, 6, 4, 4]), (8, [5, 3, 3, 2]), (1, [1, 0, 1, 0]), (0, [0, 0, 0, 0]), (16, [9, 6, 4, 4])):
        tree.guarantee(capacity)
        assert [tree.quotas[tree.number(path)] for path in (("a",), ("b",), ("a", "x"), ("a", "y"))] == expected
        parts = entitled(tree, dict.fromkeys(range(1, 5), 100.0), float(capacity))
        assert parts[tree.number(("a",))] + parts[tree.number(("b",))] == pytest.approx(capacity)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 200)), min_size=1, max_size=12), st.floats(0, 500))
def test_water_filling_gives_all_that_is_wanted_or_all_there_is_and_envies_nobody(siblings: list[tuple[float, float]], amount: float) -> None:
    weights, wants = [one[0] for one in siblings], [one[1] for one in siblings]
    parts = poured(amount, weights, wants)
    assert math.isclose(sum(parts), min(amount, sum(wants)), rel_tol=1e-6, abs_tol=1e-6)
    for mine, want, weight in zip(parts, wants, weights, strict=True):
        assert mine <= want + 1e-9
        if mine < want - 1e-6:
            assert all(other / heavy <= mine / weight + 1e-6 for other, heavy in zip(parts, weights, strict=True))


def test_use_is_halved_in_a_half_life_and_an_entry_is_charged_at_once_and_refunded() -> None:
    usage = Usage(half_life_s=1000.0, entry_s=100.0)
    usage.grow(1)
    usage.change([0], 8.0, 0.0)
    assert usage.charged(0, 0.0) == 800.0
    usage.change([0], -8.0, 10.0)
    assert usage.charged(0, 10.0) == pytest.approx(80.0, rel=0.01)
    assert usage.charged(0, 1010.0) == pytest.approx(usage.charged(0, 10.0) / 2)
    assert usage.used(0, 5.0) == usage.used(0, 10.0), "time does not go back"


def _tree(*rows: tuple[str, str | None, float]) -> Tree:
    """Of names, those of their groups, and weights."""
    return Tree(in_tree((Account(name=name, weight=weight), group) for name, group, weight in rows), capacity_gpus=8)


def test_one_name_may_be_in_two_groups_and_a_group_is_named_by_its_path_where_its_name_is_not_enough() -> None:
    rows = [("u", "y/t", 2.0), ("x", None, 1.0), ("y", None, 1.0), ("t", "x", 1.0), ("t", "y", 1.0), ("u", "x/t", 3.0), ("v", "u2", 1.0), ("u2", "x", 1.0)]
    tree = _tree(*rows)
    assert [tree.weights[tree.number(path.split("/"))] for path in ("x/t/u", "y/t/u", "x/u2/v")] == [3.0, 2.0, 1.0]
    assert len(tree.accounts) == 1 + len(rows), "none of them was made up"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Policy(half_life_s=0), "half_life_s is 0; expected seconds, 1 or more"),
        (lambda: Policy(minimum_run_s=math.nan), "minimum_run_s is nan; expected seconds, 0 or more"),
        (lambda: Policy(trial_share=1.5), "trial_share is 1.5; expected a part from 0 to 1"),
        (lambda: Policy(suspect_score=math.nan), "suspect_score is nan; expected a number, 0 or more"),
        (lambda: PriorityClass(name="a", rank=0, estimate_s=0), "estimate_s is 0; expected seconds, 1 or more"),
        (lambda: PriorityClass(name="a", rank=0, factor=math.inf), "factor is inf"),
    ],
)
def test_a_rule_that_cannot_be_reckoned_with_is_refused_in_a_sentence(make: Callable[[], object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Tree([Account(name="a", weight=0)], capacity_gpus=8), "weight 0"),
        (lambda: Tree([Account(name="a", weight=-1)], capacity_gpus=8), "weight -1"),
        (lambda: Tree([Account(name="a", weight=math.nan)], capacity_gpus=8), "weight nan"),
        (lambda: Tree([Account(name="a", quota_gpus=9)], capacity_gpus=8), "add up to 9 GPUs and the cluster has 8"),
        (lambda: Tree([Account(name="a", quota_gpus=4), Account(name="b", parent=("a",), quota_gpus=5)], capacity_gpus=8), "itself is guaranteed 4"),
        (lambda: Tree([Account(name="a", quota_gpus=4, limit_gpus=2)], capacity_gpus=8), "above the limit"),
        (lambda: Tree([Account(name="a", parent=("nobody",))], capacity_gpus=8), "not declared"),
        (lambda: _tree(("a", "b", 1.0), ("b", "a", 1.0)), "its own ancestor: a -> b -> a"),
        (lambda: _tree(("a", "a", 1.0)), "its own ancestor"),
        (lambda: _tree(("c", "a", 1.0), ("a", "b", 1.0), ("b", "a", 1.0)), "its own ancestor: a -> b -> a"),
        (lambda: _tree(("a", None, 1.0), ("b", "a", 1.0), ("b", "a", 2.0)), "a/b is declared twice"),
        (lambda: _tree(("x", None, 1.0), ("t", "x", 1.0), ("y", "x", 1.0), ("t", "y", 1.0), ("u", "t", 1.0)), "2 accounts are called"),
        (lambda: _tree(("u", "x/t", 1.0), ("x", None, 1.0)), "u belongs to x/t, which is not declared"),
        (lambda: _tree(*((f"a{n}", f"a{n - 1}" if n else None, 1.0) for n in range(1500))), "a100 is 101 levels deep"),
        (lambda: Tree(capacity_gpus=8).number([f"a{n}" for n in range(1500)]), "a1499 is 1,500 levels deep"),
    ],
)
def test_a_tree_that_cannot_share_is_refused_in_a_sentence(make: object, says: str) -> None:
    with pytest.raises(TreeRefused, match=says):
        make()  # type: ignore[operator]
