"""Wishes: what people say to a running job (profile it, approve a plan, drain a node), as events of the core.

What the core would refuse is told at once; all else once it is written down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core import asking
from holdfast.core.profiling import refused, taking
from holdfast.domain.event import CheckAsked, Event, NodeCordoned, NodeUncordoned, PlanApproved, PlanVetoed, ProfileAsked, TreatmentUndone
from holdfast.domain.state import State
from holdfast.wire.frames import Channel
from holdfast.wire.messages import Agreed, Asked, AskProfile, OperatorSays, Refused


class Accept(Protocol):
    """`then` is called once the event is on disk."""

    def __call__(self, event: Event, then: Callable[[], None]) -> None: ...


def ask_profile(message: AskProfile, channel: Channel, state: State, accept: Accept, now: float) -> None:
    known = next((one for one in state.profiles if one.wish == message.id), None)
    if known is not None:
        channel.send(Asked(number=known.number))
        return
    event = ProfileAsked(at=now, id=message.id, because="asked by `holdfast profile`", ranks=message.ranks, all=message.all, steps=message.steps)
    because = refused(state, event)
    if because:
        channel.send(Refused(because=because))
        return

    def begun() -> None:
        profile = taking(state)
        channel.send(Asked(number=profile.number) if profile is not None else Refused(because="the job has just stopped; ask again when it trains"))

    accept(event, begun)


def operator_says(message: OperatorSays, channel: Channel, state: State, accept: Accept, now: float) -> None:
    said = _said(message, now)
    why_not = asking.refused(state, said)
    if why_not:
        channel.send(Refused(because=why_not))
    else:
        accept(said, lambda: channel.send(Agreed(says=asking.agreed(state, said))))


def _said(message: OperatorSays, now: float) -> asking.Said:
    who = message.who
    match message.what:
        case "approve":
            return PlanApproved(at=now, who=who)
        case "veto":
            return PlanVetoed(at=now, who=who, instead=message.instead, because=message.because)
        case "check":
            return CheckAsked(at=now, node=message.node, who=who)
        case "undo":
            return TreatmentUndone(at=now, who=who)
        case "uncordon":
            return NodeUncordoned(at=now, node=message.node, who=who)
        case _:
            because = message.because or f"{message.what}ed by {who or 'somebody'}"
            return NodeCordoned(at=now, node=message.node, because=because, drain=message.what == "drain", who=who)
