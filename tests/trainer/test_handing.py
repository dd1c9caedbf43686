"""Who gives what to whom in a gang that rejoins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.handing import _givers


@given(st.lists(st.tuples(st.integers(-1, 3), st.sampled_from("abc")), min_size=1, max_size=12))
def test_everybody_who_lacks_the_newest_step_gets_it_from_one_who_has_the_same_part_of_it(votes: list[tuple[int, str]]) -> None:
    newest = max(step for step, _ in votes)
    giver = _givers(votes, newest)
    held = {part for step, part in votes if step == newest}
    if giver is None:
        assert held != {part for _, part in votes}
        return
    assert held == {part for _, part in votes}
    assert giver.keys() == {rank for rank, (step, _) in enumerate(votes) if step < newest}
    for rank, holder in giver.items():
        assert votes[holder] == (newest, votes[rank][1])


def test_those_who_hold_it_share_the_work() -> None:
    assert _givers([(5, "a"), (5, "a"), (-1, "a"), (4, "a"), (-1, "a")], 5) == {2: 0, 3: 1, 4: 0}
