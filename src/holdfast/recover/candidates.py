"""Candidates: every rung of the ladder as a value, with what it is expected to cost, the chance that it is in vain, and whether it is possible at all.

    cost_s = stop + rendezvous + restore + work done again (`costs.py`) + wait        risk = 1 - chance that it helps (`worth.py`)

Sees        the diagnosis, what was tried, the fleet, the policy, what earlier jobs taught.
Says        figures. Which of them is chosen, and when none may be, is for the ladder.
Is wrong    when the mean is not what comes: restarts of one job differ by the state they restore, and nodes that never come back are in no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import Policy
from holdfast.domain.learned import Learned
from holdfast.domain.plan import Candidate, Rung
from holdfast.domain.state import Attempt
from holdfast.recover.costs import Costs, NodeWait
from holdfast.recover.shrink import Smaller, in_words, shrinking_costs_s, waiting_costs_s
from holdfast.recover.worth import BELIEVED, chance, other_node

PERSON_S: Final = 2340.0  # Until somebody has read the report and acted: 39 minutes are published (OLMo).
# What another node may cure. A kill or a lack of memory follows the job; a lost node is no remedy's failure; a checkpoint is bad everywhere.
_OF_THE_NODE: Final = (Cause.EXCEPTION, Cause.CRASH, Cause.EXIT_CODE, Cause.HANG, Cause.VANISHED, Cause.NETWORK)
_CANNOT_REJOIN: Final = "survivors do not take ranks in while they run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What there is to recover with. The spares stand in the order in which they are taken."""

    gang: tuple[str, ...]
    spares: tuple[str, ...]
    lost: tuple[str, ...]  # Also those that a person has cordoned.
    checkpoint: str = ""  # The one the gang that failed was restored from.
    checkpoint_step: int = -1
    none_before: int = -1  # No checkpoint is from this step or before.
    blamed: str = ""  # The one node on which the culprits ran, where there is one.
    avoided: tuple[str, ...] = ()  # Taken only when there are no others.
    asked: int = 0  # Nodes of the whole gang; 0: as many as it has.
    least: int = 0  # Nodes a gang may be formed on at least; 0: the whole one.
    block: int = 1  # Nodes that go on together or not at all: those of a replica.
    refused: dict[int, str] | None = None  # Numbers of nodes on which the script did not run, and what it said.
    costs: Costs = field(default_factory=Costs)
    node_wait: NodeWait = field(default_factory=NodeWait)
    can_rejoin: str = _CANNOT_REJOIN  # Empty: the survivors are there and wait. Else why they cannot be joined.
    goes_back: bool = False  # They hold nothing whole: all go back to a checkpoint, which only a gang of the same size does.

    @property
    def drop(self) -> tuple[str, ...]:
        """A node that was lost and is back keeps its place."""
        return tuple(sorted(node for node in self.gang if node in self.lost))

    @property
    def whole(self) -> int:
        return self.asked or len(self.gang)

    @property
    def usable(self) -> int:
        """Nodes the next gang could be formed on now."""
        return min(self.whole, len(self.gang) - len(self.drop) + len(self.spares)) // self.block * self.block

    @property
    def too_few(self) -> bool:
        """Fewer are left than a smaller gang may have."""
        return self.usable < self.least < self.whole

    @property
    def too_small(self) -> str:
        """What the script said to the size that its gang has, where it does not run on so few; else nothing."""
        return (self.refused or {}).get(len(self.gang), "") if len(self.gang) < self.whole else ""

    @property
    def rejoin_s(self) -> float:
        """It is a restart of fewer, and without work done again where they hold what was done."""
        costs = self.costs
        seconds = min(BELIEVED["rejoin"][1], costs.restart_s) if costs.rejoin_s is None else costs.rejoin_s
        return seconds + self.again_s

    @property
    def again_s(self) -> float:
        """Work that survivors would do again."""
        return self.costs.again_s if self.goes_back else 0.0

    @property
    def smaller(self) -> Smaller:
        """As much is kept as there are nodes; to grow back nothing is done again, since the gang saves before it stops, or its ranks keep what they have."""
        costs, rejoins = self.costs, not self.can_rejoin and not self.goes_back
        shrink_s, grow_s = (self.rejoin_s, self.rejoin_s) if rejoins else (costs.all_s, costs.restart_s)
        return Smaller(kept=max(self.usable, self.least, 1) / self.whole, shrink_s=shrink_s, grow_s=grow_s, restart_s=costs.all_s)


def weigh(diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, policy: Policy, learned: Learned | None, *, wait_s: float, at: float,
          again: bool) -> tuple[Candidate, ...]:  # fmt: skip
    """All rungs, lowest first."""

    def priced(candidate: Candidate) -> Candidate:
        """With the chance that it helps, and what the policy says to it."""
        # Going on without a node helps as much as having another: between the two only what they cost decides.
        known = chance(Rung.REPLACE if candidate.rung is Rung.SHRINK else candidate.rung, diagnosis, history, learned, again=again)
        forbids = forbidden(candidate.rung, diagnosis.cause, history, policy, at) if candidate.possible else ""
        if forbids:
            return replace(candidate, possible=False, because=forbids)
        if not candidate.possible:
            return candidate
        # What this job has measured counts first, then what earlier ones have.
        measured, own_s = (costs.rejoins, fleet.rejoin_s) if candidate.rung is Rung.REJOIN else (costs.measured, costs.all_s)
        cost_s = candidate.cost_s + (known.cost_s - own_s if known.tries and not measured else 0.0)
        because = candidate.because if candidate.rung is Rung.SHRINK else f"{candidate.because}; {known}"
        return replace(candidate, cost_s=max(0.0, cost_s), risk=1.0 - known.chance, because=because)

    costs = fleet.costs
    return (
        priced(_rejoin(fleet)),
        priced(_respawn(fleet, costs.all_s + wait_s)),
        priced(_replace(diagnosis, history, fleet, learned, costs.all_s + wait_s, again=again)),
        priced(_shrink(fleet, wait_s)),
        Candidate(rung=Rung.STOP, cost_s=PERSON_S, because="a person reads the report and acts"),
    )


def came_back(diagnosis: Diagnosis, history: Sequence[Attempt], blamed: str) -> frozenset[int]:
    """Rungs after which the same fault was there again at once, on the same node: the next rung up is tried before them."""
    if diagnosis.cause not in _OF_THE_NODE or not diagnosis.fingerprint:
        return frozenset()
    return frozenset(one.rung for one in history if one.came_back and (one.fingerprint, one.node) == (diagnosis.fingerprint, blamed))


def elsewhere(diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, learned: Learned | None, *, again: bool) -> str:
    """Why the node that is to blame is left for a spare though it is up, or nothing."""
    if fleet.blamed not in fleet.gang or fleet.blamed in (*fleet.lost, *fleet.avoided) or diagnosis.cause not in _OF_THE_NODE:
        return ""
    if not fleet.spares or fleet.spares[0] in fleet.avoided:
        return ""
    if Rung.RESPAWN in came_back(diagnosis, history, fleet.blamed):
        return f"the same fault was there again right after a respawn on {fleet.blamed}"
    return other_node(diagnosis, learned, again=again)


def _rejoin(fleet: Fleet) -> Candidate:
    why_not = _where_it_was(fleet) or fleet.can_rejoin
    what = "keep their processes, and all go back to the newest checkpoint" if fleet.goes_back else "keep their state and take the lost ranks in again"
    seen = f"the mean of {fleet.costs.rejoins} in this job" if fleet.costs.rejoins else "believed, since none of this job was seen yet"
    said = why_not or f"survivors {what}; a rejoin: {seen}"
    # One that fails is followed by a restart of all, which does the same work again and no more.
    failed_s = fleet.costs.restart_s if fleet.goes_back else fleet.costs.all_s
    return Candidate(rung=Rung.REJOIN, possible=not why_not, cost_s=fleet.rejoin_s, again_s=fleet.again_s, failed_s=failed_s, because=said)


def _respawn(fleet: Fleet, cost_s: float) -> Candidate:
    why_not = _where_it_was(fleet)
    if why_not:
        return Candidate(rung=Rung.RESPAWN, possible=False, because=why_not)
    said = f"all ranks start again where they were; a restart: {fleet.costs.rests_on}"
    return Candidate(rung=Rung.RESPAWN, cost_s=cost_s, again_s=fleet.costs.again_s, because=said)


def _where_it_was(fleet: Fleet) -> str:
    """Why the gang cannot go on with the nodes it has; empty when it can."""
    if fleet.drop:
        return "not possible without the node"
    return f"the script does not run on {len(fleet.gang)} nodes: {fleet.too_small}" if fleet.too_small else ""


def _replace(diagnosis: Diagnosis, history: Sequence[Attempt], fleet: Fleet, learned: Learned | None, cost_s: float, *, again: bool) -> Candidate:
    missing = fleet.whole - fleet.usable if fleet.too_small else len(fleet.drop) - len(fleet.spares)
    if (fleet.drop or fleet.too_small) and missing <= 0:
        return Candidate(rung=Rung.REPLACE, cost_s=cost_s, again_s=fleet.costs.again_s, because=f"spares are there; a restart: {fleet.costs.rests_on}")
    if missing > 0:
        wait = fleet.node_wait
        said = f"{missing} {'nodes are' if missing > 1 else 'node is'} waited for, {wait.seconds:.0f} s: {wait.rests_on}; a restart: {fleet.costs.rests_on}"
        return Candidate(rung=Rung.REPLACE, cost_s=waiting_costs_s(wait.seconds, fleet.smaller), again_s=fleet.costs.again_s, because=said)
    why = elsewhere(diagnosis, history, fleet, learned, again=again)
    again_s = fleet.costs.again_s if why else 0.0
    return Candidate(rung=Rung.REPLACE, possible=bool(why), cost_s=cost_s if why else 0.0, again_s=again_s, because=why or "the node itself shows no fault")


def _shrink(fleet: Fleet, wait_s: float) -> Candidate:
    why_not = _cannot_shrink(fleet)
    if why_not:
        return Candidate(rung=Rung.SHRINK, possible=False, because=why_not)
    why_not = fleet.can_rejoin or ("no rank that lives on holds a step whole" if fleet.goes_back else "")
    how = f"all ranks start again from a checkpoint, since {why_not}" if why_not else "survivors keep their processes and their state"
    wait, unit = fleet.node_wait, f"replicas of {fleet.block} nodes" if fleet.block > 1 else "nodes"
    go_on = f"{fleet.usable // fleet.block} of {fleet.whole // fleet.block} {unit} go on"
    said = f"{go_on}, {how}: {in_words(wait.seconds, fleet.smaller)}; a node: {wait.rests_on}"
    again_s = fleet.costs.again_s if why_not else 0.0
    return Candidate(rung=Rung.SHRINK, cost_s=shrinking_costs_s(fleet.node_wait.seconds, fleet.smaller) + wait_s, again_s=again_s, because=said)


def _cannot_shrink(fleet: Fleet) -> str:
    least, refused = fleet.least or fleet.whole, fleet.refused or {}
    if fleet.usable >= fleet.whole:
        return "nodes enough are there"
    if least >= fleet.whole:
        return "the gang has one size; --nnodes MIN:MAX gives it leave"
    if fleet.usable < least and fleet.block > 1:
        return f"{fleet.usable // fleet.block} replicas of {fleet.block} nodes are left whole, and {least // fleet.block} are the least"
    if fleet.usable < least:
        return f"{fleet.usable} nodes are left, and {least} are the least"
    if fleet.usable in refused:
        return f"the script does not run on {fleet.usable} nodes: {refused[fleet.usable]}"
    return ""


def forbidden(rung: Rung, cause: str, history: Sequence[Attempt], policy: Policy, at: float) -> str:
    """What the policy has against a rung, or nothing."""
    name = rung.name.lower()
    if name in policy.never:
        return "the policy forbids it (--never)"
    for budget in policy.budgets:
        if budget.rung in ("", name) and budget.cause in ("", cause):
            used = sum(
                1 for one in history
                if one.at > at - budget.within_s and (not budget.rung or one.rung == rung) and (not budget.cause or one.cause == budget.cause)
            )  # fmt: skip
            if used >= budget.count:
                of = " ".join(filter(None, (budget.rung, f"against {budget.cause}" if budget.cause else "")))
                return f"its budget is used up: {used} {of or 'plans'} in the last {budget.within_s:.0f} s"
    return ""
