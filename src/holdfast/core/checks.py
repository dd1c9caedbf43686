"""Checks of nodes, as functions over the state: who is due, with whom it is tried, and what comes of it. `checking.py` has it done."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.core import membership
from holdfast.diagnose.pairing import Pair, first_round, judge, second_round
from holdfast.domain.state import NodeCheck, NodeState, State

_RETIRED: Final = "retired: "
_PARTNERS_MAX: Final = 3  # With one it is seen that a pair fails, with two who of it is to blame; with three also when one of these is bad.


def suspect(state: State, node: str, because: str) -> None:
    """A gang has left the node for another."""
    state.checks[node] = NodeCheck(because=because)


def due(state: State) -> str:
    """A node that waits to be checked, when a gang works elsewhere."""
    gang = state.gang
    if gang is None or not gang.ready:
        return ""
    waiting = (name for name, check in sorted(state.checks.items()) if not check.verdict)
    return next((name for name in waiting if is_idle(state, name)), "")


def under_way(state: State) -> str:
    """The node whose check waits for an answer."""
    return next((name for name, check in state.checks.items() if check.begun), "")


def is_idle(state: State, name: str) -> bool:
    known = state.nodes.get(name)
    return known is not None and known.state is NodeState.READY and (state.gang is None or name not in state.gang.nodes)


def partners(state: State, node: str) -> tuple[str, ...]:
    """Idle nodes that nothing is held against."""
    idle = [name for name in membership.usable(state) if name != node and is_idle(state, name) and name not in state.avoided]
    return tuple(name for name in idle if not (name in state.checks and not state.checks[name].verdict))[:_PARTNERS_MAX]


def next_pair(node: str, check: NodeCheck) -> Pair | tuple[()]:
    """Who listens and who calls next; empty when all is known that two rounds can tell."""
    nodes, results = (node, *check.partners), _results(check)
    if not check.partners or node in judge(nodes, results).good:
        return ()
    first = first_round(nodes)
    left = [pair for pair in first if pair not in results] or [pair for pair in second_round(nodes, _of(first, check)) if pair not in results]
    return left[0] if left else ()


def verdict(node: str, check: NodeCheck) -> tuple[str, str]:
    """What both rounds say, and why."""
    if not check.partners:
        return "unclear", f"{check.said}; no other node was idle to check its links with"
    nodes = (node, *check.partners)
    judged = judge(nodes, _results(check))
    if node in judged.good:
        link = next((f"; the link between {a} and {b} is bad" for a, b in judged.links if node in (a, b)), "")
        return "returned", f"{check.said}; its link to {_passed_with(node, check)} is well{link}"
    why = next((one for one in judged.because if one.startswith(f"{node} ")), "")
    return ("retired" if node in judged.bad else "unclear"), f"{why}: {check.said}"


def conclude(state: State, node: str, verdict: str, said: str) -> None:
    """A person's cordon is lifted by nobody else; that of an earlier check is, by a better one."""
    before = state.checks[node]
    if verdict == "retired":
        state.cordoned.setdefault(node, f"{_RETIRED}{said}")
    elif verdict == "returned" and state.cordoned.get(node, "").startswith(_RETIRED):
        del state.cordoned[node]
        state.avoided = tuple(dict.fromkeys((*state.avoided, node)))  # On probation. Whoever a gang has left is so already.
    state.checks[node] = replace(before, verdict=verdict, said=said, at=state.at, begun=False, pair=(), port=0)


def _results(check: NodeCheck) -> dict[Pair, bool]:
    return {(a, b): passed for a, b, passed in check.results}


def _of(pairs: tuple[Pair, ...], check: NodeCheck) -> dict[Pair, bool]:
    return {pair: passed for pair, passed in _results(check).items() if pair in pairs}


def _passed_with(node: str, check: NodeCheck) -> str:
    return ", ".join(b if a == node else a for a, b, passed in check.results if passed and node in (a, b))
