"""The bottleneck: named from what ranks do themselves, in words with numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.bottleneck import compare
from holdfast.domain.profile import OWN_PARTS, PARTS, Operator, RankProfile

seconds = st.floats(0.0, 10.0)


def rank(number: int, *operators: tuple[str, float], **parts_ms: float) -> RankProfile:
    parts = {part: ms / 1000 for part, ms in parts_ms.items()}
    heavy = tuple(Operator(name=name, seconds=ms / 1000, calls=1) for name, ms in operators)
    return RankProfile(rank=number, generation=1, first_step=2, steps=5, step_s=sum(parts.values()), parts=parts, operators=heavy)


@st.composite
def profiles(draw: st.DrawFn) -> list[RankProfile]:
    return [rank(number, **{part: 1000 * draw(seconds) for part in PARTS}) for number in range(draw(st.integers(1, 5)))]


def test_a_slow_rank_is_compared_with_the_healthy_one_part_by_part_and_operator_by_operator() -> None:
    slow = rank(3, ("aten::mm", 30.0), ("aten::copy_", 5.0), compute=41.0, data=1.0, communication=2.0)
    healthy = rank(1, ("aten::mm", 3.0), ("aten::copy_", 5.0), compute=12.0, data=1.0, communication=31.0)
    compared = compare([healthy, slow], slow=[3])
    assert compared.bottleneck == "compute"
    assert compared.says == (
        "rank 3 spends 41 ms a step in compute where rank 1 spends 12 ms: 3.4 times; "
        "the largest difference is aten::mm (30 ms a step, 3 ms on rank 1); bottleneck: compute",
    )


def test_a_loader_or_a_save_that_takes_long_on_one_rank_is_named() -> None:
    assert compare([rank(0, compute=10.0, data=90.0), rank(1, compute=10.0, communication=90.0)], slow=[0]).bottleneck == "data"
    assert compare([rank(0, compute=10.0, save=90.0), rank(1, compute=10.0, save=1.0, communication=89.0)], slow=[0]).bottleneck == "save"


def test_where_nobody_stands_out_the_largest_part_is_named_and_waiting_counts_as_little_as_anybody_waits() -> None:
    alike = [rank(0, compute=20.0, communication=60.0), rank(1, compute=20.5, communication=59.0)]
    assert compare(alike, slow=[0]).bottleneck == "communication"
    assert compare(alike, slow=[0]).says[0].startswith("no rank stands out")
    assert compare([rank(0, compute=20.0, communication=2.0), rank(1, compute=20.5, communication=59.0)], slow=[0]).bottleneck == "compute"


def test_one_rank_alone_says_where_its_time_goes_and_what_it_cannot_know() -> None:
    assert "one rank alone cannot tell" in compare([rank(0, compute=2.0, communication=50.0)], slow=[0]).says[0]
    assert compare([], slow=[0]).says == ()


@given(profiles(), st.sets(st.integers(0, 5)))
def test_the_words_end_with_a_part_there_is_and_a_rank_that_waits_is_never_called_slow_for_it(ranks: list[RankProfile], slow: set[int]) -> None:
    compared = compare(ranks, slow=sorted(slow))
    assert compared.bottleneck in PARTS
    assert all("bottleneck: " in one for one in compared.says)
    own = {one.rank: sum(one.parts[part] for part in OWN_PARTS) for one in ranks}
    for one in compared.says:
        if one.startswith("rank ") and " where rank " in one:
            mine, other = int(one.split()[1]), int(one.split(" where rank ")[1].split()[0])
            assert own[mine] >= own[other]
