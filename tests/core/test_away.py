"""Control was away: what was due meanwhile, or just when it went, counts against nobody."""

from __future__ import annotations

import pytest
from core.teller import Teller

from holdfast.core.core import AWAY_S
from holdfast.domain.event import FindingEnded, Ticked


@pytest.mark.parametrize("back_after_s", [0.0, 16.0])
def test_who_was_due_just_when_control_went_may_say_it_again(back_after_s: float) -> None:
    teller = Teller()
    for words in ("submit nodes=1", "hear n1", "up", "progress 3", "exit 0 signal signal=9"):
        teller.play(words)
    state = teller.core.state
    asked, due = dict(state.pending), min(pending.deadline for pending in state.pending.values())
    # The last that control hears comes after the deadline, and it goes before it has looked. A clock that was set back meanwhile stands still.
    teller.take(FindingEnded(at=due + 0.001, generation=1, key="none", because="it went by"))
    back_at = due + 0.001 + back_after_s
    teller.take(Ticked(at=back_at, away=True))
    assert state.pending.keys() == asked.keys()
    teller.take(Ticked(at=back_at + AWAY_S / 2))
    assert state.pending.keys() == asked.keys()
    teller.take(Ticked(at=back_at + 1000.0))
    teller.take(Ticked(at=back_at + 1000.0 + AWAY_S))
    assert not state.pending.keys() & asked.keys(), "but not for ever"
