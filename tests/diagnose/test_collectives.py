"""Who has not entered a collective: told from where every rank is, and only where somebody waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.collectives import behind, sharpen
from holdfast.domain.collective import Collective
from holdfast.domain.diagnosis import Cause, Diagnosis


def at(sequence: int, *, done: bool = False, group: str = "default_pg (0)", members: tuple[int, ...] = ()) -> tuple[Collective, ...]:
    return (Collective(group=group, sequence=sequence, operation="nccl:all_reduce", done=done, members=members),)


def test_the_rank_that_has_not_come_is_named_with_the_collective_and_who_waits_in_it() -> None:
    ranks, says = behind({"0": at(7), "1": at(6, done=True), "2": at(7)})
    assert ranks == (1,)
    assert says == ("flight recorder: ranks 0, 2 wait in nccl:all_reduce 7 of default_pg (0), rank 1 has not entered it (last: 6)",)


def test_a_rank_that_says_nothing_is_told_of_and_not_accused() -> None:
    ranks, says = behind({"0": at(7, members=(0, 1)), "1": ()})
    assert ranks == ()
    assert says[0].endswith("nothing is known of rank 1")


def test_ranks_that_are_all_at_the_same_place_or_all_through_it_are_no_story() -> None:
    assert behind({"0": at(7), "1": at(7)}) == ((), ())
    assert behind({"0": at(8, done=True), "1": at(7, done=True)}) == ((), ()), "one step apart, and nobody waits"
    assert behind({}) == ((), ())


def test_groups_are_looked_at_each_for_itself() -> None:
    ranks, says = behind({"0": (*at(7), *at(3, group="tp (1)")), "1": (*at(7), *at(2, group="tp (1)", done=True))})
    assert ranks == (1,)
    assert "tp (1)" in says[0]


def test_a_guess_at_the_culprit_of_a_hang_gives_way_and_what_is_known_stays() -> None:
    guess = Diagnosis(cause=Cause.HANG, permanent=False, confidence=0.5, because="rank 0 was silent first", ranks=(0,))
    seen = {"0": at(7), "1": at(6, done=True)}
    sharpened = sharpen(guess, seen, ("NCCL RAS: so",))
    assert (sharpened.ranks, sharpened.confidence) == ((1,), 0.85)
    assert sharpened.evidence[-1] == "NCCL RAS: so"
    known = Diagnosis(cause=Cause.HANG, permanent=False, confidence=0.95, because="rank 0 is stopped", ranks=(0,))
    assert sharpen(known, seen, ()).ranks == (0,)
    assert sharpen(guess, {}, ()) == guess


@given(st.dictionaries(st.integers(0, 9).map(str), st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_only_a_rank_that_is_behind_one_that_waits_is_ever_named(places: dict[str, tuple[int, bool]]) -> None:
    ranks, says = behind({rank: at(sequence, done=done) for rank, (sequence, done) in places.items()})
    furthest = max((sequence for sequence, _ in places.values()), default=0)
    assert bool(ranks) == bool(says)
    if ranks:
        assert any(sequence == furthest and not done for sequence, done in places.values())
        assert all(places[str(rank)][0] < furthest for rank in ranks)
