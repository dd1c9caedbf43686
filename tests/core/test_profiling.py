"""Who asks for a profile that cannot be taken is told why, in a sentence."""

from __future__ import annotations

import pytest
from core.teller import Teller

from holdfast.core.profiling import refused
from holdfast.domain.event import ProfileAsked
from holdfast.domain.profile import STEPS_MAX

_UP = ("submit nodes=1 ranks=2", "hear n1", "up")
_TRAINS = (*_UP, "restored 0", "progress 3")


@pytest.mark.parametrize(
    ("story", "asked", "says"),
    [
        (("submit nodes=1",), {}, "the job is waiting, and only steps can be profiled"),
        (_UP, {}, "no step of it has been seen yet"),
        ((*_UP, "wait 31"), {}, "does not go through holdfast.guard and run.steps"),
        (_TRAINS, {"ranks": (0, 2)}, "there is no rank 2; the job has ranks 0 to 1"),
        (_TRAINS, {"ranks": (-1,)}, "there is no rank -1"),
        (_TRAINS, {"steps": 0}, "0 steps cannot be profiled"),
        (_TRAINS, {"steps": STEPS_MAX + 1}, f"1 to {STEPS_MAX} can"),
        ((*_TRAINS, "profile"), {}, "a profile is being taken"),
        ((*_TRAINS, "exit 0 finished code=0", "exit 1 finished code=0"), {}, "the job has ended"),
        (_TRAINS, {}, ""),
    ],
)
def test_what_cannot_be_profiled_is_refused_with_the_reason(story: tuple[str, ...], asked: dict[str, object], says: str) -> None:
    teller = Teller()
    for command in story:
        teller.play(command)
    because = refused(teller.core.state, ProfileAsked(at=teller.at, because="", **asked))  # type: ignore[arg-type]
    assert says in because
    assert bool(says) == bool(because)
