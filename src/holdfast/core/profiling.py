"""Profiles: whether one is taken, of whom, and what it says. The core asks here, as it asks `standing`; works on the core's state, which has one owner still.

    asked, or found slow ─► begin ─► ranks are chosen ─► each node takes its part ─► end: the words

One at a time. By itself one is taken for an incident that stands, once for each and not more often than the policy says: a profile costs the job a little.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from holdfast.diagnose.bottleneck import compare
from holdfast.domain.event import ProfileAsked
from holdfast.domain.finding import Finding
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase
from holdfast.domain.profile import STEPS, STEPS_MAX, Profile, RankProfile
from holdfast.domain.state import State

SLOW = frozenset({"slow_rank", "slow_job", "data_stall", "slow_communication", "slow_save"})
_KEPT = 20  # What is older lies on the disk, and in the stories of its incidents.


def refused(state: State, event: ProfileAsked) -> str:
    """Why it cannot be taken now; empty when it can."""
    spec, gang = state.spec, state.gang
    if state.outcome is not None or spec is None:
        return "the job has ended"
    if state.phase is not JobPhase.RUNNING or gang is None:
        return f"the job is {state.phase}, and only steps can be profiled; ask again when it trains"
    if state.unguarded:
        return (
            "its script does not go through holdfast.guard and run.steps, and nothing can be profiled inside of it; "
            "from outside, `py-spy record --pid` of a worker does, and stacks of all ranks are captured by themselves when one hangs"
        )
    if not gang.ready or not gang.beats:
        return "no step of it has been seen yet; ask again when it trains"
    if taking(state) is not None:
        return "a profile is being taken; ask again when it is there"
    absent = [rank for rank in event.ranks if not 0 <= rank < state.world_size]
    if absent:
        there = f"ranks 0 to {state.world_size - 1}" if state.world_size > 1 else "rank 0 alone"
        return f"there is no rank {absent[0]}; the job has {there}"
    return "" if 1 <= event.steps <= STEPS_MAX else f"{event.steps} steps cannot be profiled; 1 to {STEPS_MAX} can"


def wanted(state: State, finding: Finding) -> Incident | None:
    """The incident to take one for, now that this was found; None for none."""
    spec, gang = state.spec, state.gang
    if finding.kind not in SLOW or spec is None or spec.policy.profile_every_s is None or gang is None or not gang.beats or not gang.ready:
        return None
    of = next((one for one in reversed(state.incidents) if one.is_open and one.stands and finding in one.findings), None)
    lately = any(one.incident and state.at - one.asked_at < spec.policy.profile_every_s for one in state.profiles)
    if of is None or lately or state.phase is not JobPhase.RUNNING or taking(state) is not None or any(one.incident == of.id for one in state.profiles):
        return None
    return of


def taking(state: State) -> Profile | None:
    """The one that is being taken."""
    return state.profiles[-1] if state.profiles and state.profiles[-1].ended_at is None else None


def begin(state: State, *, why: str, because: str, steps: int = STEPS, incident: int = 0, wish: str = "") -> Profile:
    number = state.profiles[-1].number + 1 if state.profiles else 1
    when = datetime.fromtimestamp(state.at, UTC).strftime("%Y%m%d-%H%M%S")
    profile = Profile(
        number=number, name=f"{when}-{why}-{number}", generation=state.generation, asked_at=state.at, because=because, steps=steps, incident=incident,
        wish=wish,
    )  # fmt: skip
    state.profiles = [*state.profiles[1 - _KEPT :], profile]
    return profile


def chosen(state: State, slow: tuple[int, ...], beside: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Note who was chosen; for each node its ranks."""
    profile, spec, gang = taking(state), state.spec, state.gang
    assert profile is not None and spec is not None and gang is not None
    _keep(state, replace(profile, slow=slow, beside=beside))
    places: dict[str, tuple[int, ...]] = {}
    for rank in sorted({*slow, *beside}):
        if 0 <= rank < state.world_size:
            node = gang.nodes[rank // spec.ranks_per_node]
            places[node] = (*places.get(node, ()), rank)
    return places


def took(state: State, ranks: Iterable[RankProfile], missing: dict[str, str]) -> None:
    profile = taking(state)
    assert profile is not None
    _keep(state, replace(profile, ranks=tuple(sorted((*profile.ranks, *ranks), key=lambda one: one.rank)), missing={**profile.missing, **missing}))


def lost(state: State, node: str, because: str) -> None:
    """Nothing comes from this node."""
    profile, spec, gang = taking(state), state.spec, state.gang
    assert profile is not None and spec is not None and gang is not None
    there = [rank for rank in (*profile.slow, *profile.beside) if gang.nodes[rank // spec.ranks_per_node] == node]
    took(state, (), {str(rank): because for rank in there})


def end(state: State, because: str = "") -> None:
    """All have answered; or, with a reason, nobody will any more."""
    profile = taking(state)
    if profile is None:
        return
    come = {one.rank for one in profile.ranks}
    left = {str(rank): because for rank in (*profile.slow, *profile.beside) if because and rank not in come and str(rank) not in profile.missing}
    compared = compare(profile.ranks, slow=profile.slow)
    says = compared.says or (f"no profile was taken: {because or '; '.join(sorted(set(profile.missing.values()))) or 'no rank could be chosen'}",)
    profile = replace(profile, ended_at=state.at, missing={**profile.missing, **left}, bottleneck=compared.bottleneck, says=says)
    _keep(state, profile)
    if profile.incident:
        incident = state.incidents[profile.incident - 1]
        where = f" (traces in profiles/{profile.name})" if any(one.trace for one in profile.ranks) else ""
        state.keep(incident.tell(state.at, f"profiled{where}: {'; '.join(says)}" if profile.ranks else says[0]))


def _keep(state: State, profile: Profile) -> None:
    state.profiles = [*state.profiles[:-1], profile]
