"""Forming: from a job that waits for nodes to ranks that are being started.

    nodes enough ─► generation, gang ─► its store, and the checkpoint that every rank restores ─► each node starts its ranks
"""

from __future__ import annotations

from holdfast.core import asking, membership, rejoining, replicas, slowness
from holdfast.core.base import BROKEN_CODE, Base
from holdfast.domain.effect import FindCheckpoint, StartGang, StartStore
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import JobPhase, Outcome
from holdfast.domain.plan import Rung
from holdfast.domain.scaling import Scaling, scaling
from holdfast.domain.state import Gang, NodeState
from holdfast.recover.candidates import forbidden


class Forming(Base):
    __slots__ = ()

    def _form_if_possible(self) -> None:
        """Form a gang when the job waits for one and there are nodes enough."""
        state = self.state
        if state.phase is not JobPhase.WAITING or state.spec is None or {"back_off", asking.DEADLINE} & state.deadlines.keys():
            return
        kept = state.deal or (state.gang.nodes if state.gang is not None else ())
        chosen = self._choose_nodes(kept, membership.size(state))
        if chosen is None:
            self._be_patient()
        if chosen is None or self._leave_behind(chosen):
            return
        for name in ("nodes", "patience"):
            state.deadlines.pop(name, None)
        state.generation, state.deal = state.generation + 1, ()
        self._forget("CheckNode")  # A gang comes first.
        state.gang = rejoining.formed(state, Gang(generation=state.generation, nodes=chosen))
        membership.formed(state, kept)
        state.gang.scaling = scaling(self._policy.smaller_batch, len(chosen), state.spec.nodes)
        scaled = f" (--smaller-batch {self._policy.smaller_batch}: {state.gang.scaling})" if state.gang.scaling != Scaling() else ""
        self._enter(JobPhase.STARTING, f"starting generation {state.generation} on {', '.join(chosen)}{scaled}")
        if state.ledger.open_bucket not in (Bucket.START, Bucket.REPLACE):
            state.ledger.enter(Bucket.RENDEZVOUS, state.at)
        self._ask_store(state.generation, chosen[0])
        if state.gang.restore is None:
            self._find_checkpoint()
        self._start_if_ready()

    def _choose_nodes(self, kept: tuple[str, ...], count: int) -> tuple[str, ...] | None:
        return membership.choose(self.state, kept, count)

    def _leave_behind(self, chosen: tuple[str, ...]) -> bool:
        """Stop ranks that wait where the next gang cannot take them over. Whether it must wait until that is done."""
        left = rejoining.left_behind(self.state, chosen)
        for node in left:
            assert self.state.gang is not None
            self.state.nodes[node].state = NodeState.CLEANING
            self._stop_on(node, self.state.gang.generation, graceful=False, because="its ranks waited for a gang that is formed otherwise")
        return bool(set(left) & set(chosen))

    # Waiting for nodes.

    def _wait_for_nodes(self) -> None:
        state = self.state
        if state.phase is JobPhase.WAITING and not {"back_off", asking.DEADLINE} & state.deadlines.keys():
            if state.ledger.open_bucket is not Bucket.START:
                state.ledger.enter(Bucket.WAIT, state.at)
            state.deadlines["nodes"] = state.at + self._policy.node_wait_s

    def _be_patient(self) -> None:
        """All are waited for no longer than that is worth, from when there are enough for a smaller gang."""
        state, incident = self.state, self._open_incident()
        patience_s = incident.plans[-1].patience_s if incident is not None and incident.plans else None
        if patience_s is not None and not state.smaller and replicas.whole(state, len(membership.usable(state))) >= replicas.least(state):
            state.deadlines.setdefault("patience", state.at + patience_s)

    def _out_of_patience(self) -> None:
        state = self.state
        if state.phase is JobPhase.WAITING:
            state.smaller = "no node came within the time that waiting for one is worth"
            self._form_if_possible()

    def _nodes_did_not_come(self) -> None:
        slowness.spare_nobody(self.state)
        state, spec, ready, cleaning = self.state, self._spec, len(membership.usable(self.state)), self._count(NodeState.CLEANING)
        forbids = self._forbids_smaller()
        least = len(state.gang.nodes) if forbids and state.gang is not None else replicas.least(state)
        could, later = replicas.whole(state, ready), replicas.whole(state, ready + cleaning)
        if least <= could < spec.nodes and not state.smaller:
            state.smaller = f"{ready} of {spec.nodes} nodes are usable, and no more came in time"
            self._form_if_possible()
        if state.phase is not JobPhase.WAITING:
            return
        if later == spec.nodes or could < least <= later:
            state.deadlines["nodes"] = state.at + self._policy.kill_wait_s  # A node that is being cleaned is usable in a moment, or lost.
            return
        refused = "".join(f"; the script does not run on {nodes}: {why}" for nodes, why in sorted(state.refused.items()))
        cordoned = f"; {', '.join(sorted(state.cordoned))} cordoned: `holdfast uncordon` gives them back" if state.cordoned else ""
        refused += f"; shrink: {forbids}" if forbids else ""
        needed = f"{least} to {spec.nodes}" if least < spec.nodes else str(spec.nodes)
        self._end(Outcome.BROKEN, BROKEN_CODE, f"{needed} nodes are needed, {ready} are usable, and no more came in time{refused}{cordoned}")

    def _forbids_smaller(self) -> str:
        """What the policy has against going on smaller after a fault, or nothing. A start on fewer nodes is none."""
        state, incident = self.state, self._open_incident()
        if incident is None or not incident.diagnoses or self._spec.least_nodes == self._spec.nodes:
            return ""
        return forbidden(Rung.SHRINK, incident.diagnoses[-1].cause, state.attempts, self._policy, state.at)

    def _find_checkpoint(self) -> None:
        state = self.state
        self._emit(FindCheckpoint(id=self._id(), generation=state.generation, because="every rank must restore the same one", distrusted=state.distrusted))

    # Starting.

    def _ask_store(self, generation: int, node: str) -> None:
        """Ask for the store of a generation, unless it is up or asked for already."""
        state = self.state
        if state.store is not None and (state.store.generation, state.store.node) == (generation, node):
            return
        asked = [id for id, one in state.pending.items() if one.kind == "StartStore"]
        if not any((state.pending[id].generation, state.pending[id].node) == (generation, node) for id in asked):
            self._forget("StartStore")  # One that was asked for elsewhere would answer in this one's place.
            self._emit(StartStore(id=self._id(), generation=generation, node=node, because="each generation has a store of its own"))

    def _start_if_ready(self) -> None:
        """Once the store answers and the checkpoint is known, every node starts its ranks."""
        state, gang, spec, store = self.state, self.state.gang, self.state.spec, self.state.store
        if gang is None or spec is None or store is None or (store.generation, store.node) != (gang.generation, gang.nodes[0]):
            return
        ends = any(one.kind == "StopGang" and one.generation == gang.kept_of and one.node in gang.nodes for one in state.pending.values())
        if state.phase is not JobPhase.STARTING or gang.restore is None or gang.asked or ends:
            return
        gang.asked, gang.treatment = True, state.treatment
        state.step = -1
        for node_rank, node in enumerate(gang.nodes):
            first = node_rank * spec.ranks_per_node
            ranks = tuple(range(first, first + spec.ranks_per_node))
            self._emit(
                StartGang(
                    id=self._id(), generation=gang.generation, node=node, ranks=ranks, node_rank=node_rank, sources=self._peers_with(ranks, node),
                    nodes=len(gang.nodes), world_size=state.world_size, store_host=state.nodes[gang.nodes[0]].host,
                    store_port=store.port, store_hosted=store.hosted, restarts=len(state.attempts), restore=gang.restore, env=spec.env,
                    save_every=self._save_every(), save_asked=spec.save_every is not None, fitting=state.fitting, treatment=state.treatment,
                    scaling=gang.scaling, because=rejoining.beginning(gang), rejoin=bool(gang.kept) and not gang.restore,
                    kept=tuple(rank for rank in gang.kept if rank in ranks), kept_of=gang.kept_of if gang.kept else 0, moved=gang.moved.get(node, 0),
                )
            )  # fmt: skip

    def _save_every(self) -> int | None:
        """What `--checkpoint-every` said in steps, or what was chosen last: a new generation need not find it out again."""
        asked, chosen = self._spec.save_every, self.state.interval
        if asked is not None and asked.steps is not None:
            return asked.steps
        return chosen.every if chosen is not None and chosen.automatic else None

    def _peers_with(self, ranks: tuple[int, ...], node: str) -> dict[str, str]:
        """For each of these ranks whose part is in the memory of another node than `node`: where to get it."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        held = {str(rank): gang.sources[str(rank)] for rank in ranks if gang.sources.get(str(rank), node) != node}
        return {rank: state.nodes[holder].peer for rank, holder in held.items() if holder in state.nodes}
