"""Leaving: nodes of which it is known that they will go, and when, or that are too hot. The core asks here, as it asks `membership`; works on the core's state.

    a notice ─► cordoned at once ─► `notice_lead_s` before it goes: drained, and the gang moves without waiting for a save, as it saves when it is stopped
                                └─► as late as a stop with a save allows: nobody is there in its place ─► the job is stopped, ready to be resumed

A notice that is withdrawn, or whose node has gone and come back, lifts what it did, and nothing that a person did.
"""

from __future__ import annotations

from holdfast.core import membership, replicas
from holdfast.domain.event import NodeCordoned
from holdfast.domain.finding import Finding
from holdfast.domain.job import Mode
from holdfast.domain.notice import Notice
from holdfast.domain.state import State

LEAVE, LAST = "leave ", "last call for "  # Deadlines, with the node's name behind.


def noticed(state: State, event: NodeCordoned) -> None:
    """Told again, by an agent that was restarted, it changes nothing: a person may have given the node back meanwhile."""
    assert state.spec is not None and event.goes_at is not None
    node, before = event.node, state.notices.get(event.node)
    notice = Notice(because=event.because, goes_at=event.goes_at)
    if notice.is_like(before):
        return
    if node not in state.cordoned or (before is not None and state.cordoned[node] == before.because):
        state.cordoned[node] = event.because
    state.notices[node] = notice
    state.deadlines.pop(LAST + node, None)
    if state.spec.policy.mode is not Mode.ADVISE:
        state.deadlines[LEAVE + node] = max(state.at, event.goes_at - state.spec.policy.notice_lead_s)


def begin(state: State, node: str) -> None:
    """Its time has come: the gang is to leave it."""
    assert state.spec is not None
    if state.gang is not None and node in state.gang.nodes and node in state.cordoned:
        state.draining = tuple(dict.fromkeys((*state.draining, node)))
        policy = state.spec.policy
        state.deadlines[LAST + node] = max(state.at, state.notices[node].goes_at - policy.stop_grace_s - 2 * policy.kill_wait_s)


def cool_down(state: State, finding: Finding) -> None:
    """A node is too hot, and nothing more can be done about it there: its work is moved at the next save, if a spare is there that nothing is held against."""
    assert state.spec is not None
    gang, node = state.gang, finding.node
    spares = [name for name in membership.usable(state) if gang is not None and name not in gang.nodes and name not in state.avoided]
    if gang is not None and node in gang.nodes and node not in state.cordoned and spares and state.spec.policy.mode is not Mode.ADVISE:
        state.cordoned[node] = f"too hot: {finding.because}"
        state.draining = (*state.draining, node)


def is_hurried(state: State) -> bool:
    """Whether the running gang is to leave a node that will go, or will run out of memory: it does not wait for a save."""
    return bool(state.renewing) or any(name in state.notices for name in state.draining)


def has_place(state: State) -> bool:
    """Whether a gang can be formed without the nodes that are to be left."""
    assert state.spec is not None
    count = replicas.whole(state, len(membership.usable(state)))
    return count >= replicas.least(state) and str(count) not in state.refused


def grace_s(state: State) -> float:
    """How long ranks may take to save and leave: less than usual, when a node of theirs is gone before."""
    assert state.spec is not None
    policy = state.spec.policy
    left_s = [state.notices[name].goes_at - state.at - policy.kill_wait_s for name in state.draining if name in state.notices]
    return max(policy.abort_grace_s, min([policy.stop_grace_s, *left_s]))


def is_fixed(deadline: str) -> bool:
    """Whether it is a time of the world outside: it does not wait for a control that is away."""
    return deadline.startswith((LEAVE, LAST))


def lift(state: State, node: str) -> None:
    """The notice is over."""
    notice = state.notices.pop(node)
    if state.cordoned.get(node) == notice.because:
        give_back(state, node)
    forget(state, node)


def give_back(state: State, node: str) -> None:
    del state.cordoned[node]
    state.draining = tuple(name for name in state.draining if name != node)
    forget(state, node)


def give_back_unless_it_goes(state: State, node: str) -> None:
    """What it was cordoned for is over. A notice that came meanwhile found it cordoned already, and cordons it from now on."""
    if node not in state.notices:
        give_back(state, node)
        return
    state.cordoned[node] = state.notices[node].because
    if LEAVE + node in state.deadlines:  # Else its time has come, and the gang leaves it for that.
        state.draining = tuple(name for name in state.draining if name != node)


def forget(state: State, node: str) -> None:
    for prefix in (LEAVE, LAST):
        state.deadlines.pop(prefix + node, None)


def came_back(state: State, node: str) -> None:
    """A node that had gone is there again; what it knows of going again it tells anew."""
    if node in state.notices and state.nodes[node].lost_at and state.at >= state.notices[node].goes_at:
        lift(state, node)


def lift_all(state: State) -> None:
    """The job is run again, on nodes that tell anew."""
    for node in list(state.notices):
        lift(state, node)
