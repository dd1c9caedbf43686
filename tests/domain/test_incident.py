"""An incident's life is a table; a move that is not in it raises with the whole story."""

from __future__ import annotations

import pytest

from holdfast.domain.incident import NEXT, IllegalMove, Incident, IncidentPhase


def _incident() -> Incident:
    return Incident(id=7, generation=1, opened_at=5.0, began_at=4.0).tell(5.0, "noticed: rank 1 left")


@pytest.mark.parametrize("phase", IncidentPhase)
def test_every_phase_can_be_left_or_is_an_end(phase: IncidentPhase) -> None:
    assert NEXT[phase] or phase in (IncidentPhase.RESOLVED, IncidentPhase.GAVE_UP)


def test_an_illegal_move_tells_the_story_so_far() -> None:
    with pytest.raises(IllegalMove, match=r"incident 7 cannot go noticed -> acting(.|\n)*rank 1 left"):
        _incident().move(IncidentPhase.ACTING, at=6.0, because="it looked well")


def test_an_incident_is_closed_when_nothing_can_follow() -> None:
    stopped = _incident().move(IncidentPhase.STOPPING, at=6.0, because="stop")
    assert stopped.is_open
    ended = stopped.move(IncidentPhase.GAVE_UP, at=9.0, because="no nodes")
    assert not ended.is_open
    assert ended.closed_at == 9.0
