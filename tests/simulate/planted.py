"""Planted bugs: mistakes put into the real core, or into the control, the agent and the training of a made-up world where those keep the contract of the real
ones. Each must be found. `found_at` says at which seed, and by which promise.

A bug is one attribute of one thing, and what it is replaced by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from holdfast.core import Core, leaving, membership, rejoining, replicas
from holdfast.domain.diagnosis import Cause
from holdfast.domain.effect import StartGang
from holdfast.domain.event import EffectDone, EffectFailed, FindingMade, NodeHeard, StopAsked, WorkerExited
from holdfast.domain.job import JobPhase
from holdfast.domain.state import Gang, NodeState, State
from holdfast.recover import ladder
from holdfast.simulate.control import MemoryJournal, VirtualControl
from holdfast.simulate.node import VirtualNode
from holdfast.simulate.training import Attempt, Training
from holdfast.simulate.world import run
from holdfast.wire.codec import decode_event
from holdfast.wire.messages import Ack, Told
from holdfast.wire.outbox import Inbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    name: str
    on: Any
    attribute: str
    made: Callable[[Any], Any]  # From what is there to what is there instead.
    seed: int  # Here it is found: so the quick tests need not search.


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    with patch.object(bug.on, bug.attribute, bug.made(getattr(bug.on, bug.attribute))):
        yield


def found_at(bug: Bug, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these seeds at which a promise is not kept, and which; None if all are."""
    with planted(bug):
        for seed in seeds:
            try:
                run(seed)
            except TypeError:
                raise  # What was planted does not fit in there any more.
            except Exception as broken:
                return seed, f"{type(broken).__name__}: {broken}".partition("\n")[0]
    return None


def _stale_exit(real: Any) -> Any:
    def exited(core: Core, event: WorkerExited) -> None:
        real(core, replace(event, generation=core.state.generation))

    return exited


def _stale_finding(real: Any) -> Any:
    def made(core: Core, event: FindingMade) -> None:
        real(core, replace(event, generation=core.state.generation))

    return made


def _double_start(real: Any) -> Any:
    def heard(core: Core, event: NodeHeard) -> None:
        real(core, event)
        gang = core.state.gang
        if gang is not None and gang.asked and core.state.phase is JobPhase.STARTING and event.node in gang.nodes and event.node not in gang.started:
            gang.asked = False
            core._start_if_ready()

    return heard


def _stop_forgotten_on_a_node(_: Any) -> Any:
    def stop(core: Core, gang: Gang, *, graceful: bool, because: str) -> None:
        for node in core._standing(gang)[:-1]:
            core._stop_on(node, gang.generation, graceful=graceful, because=because)

    return stop


def _old_ranks_overlooked(real: Any) -> Any:
    def heard(core: Core, event: NodeHeard) -> None:
        real(core, replace(event, running={}))

    return heard


def _finished_early(real: Any) -> Any:
    def finished(core: Core) -> None:
        gang = core.state.gang
        if gang is not None and gang.finished and core.state.phase is JobPhase.RUNNING:
            core._finish("a rank ran to its end")
        else:
            real(core)

    return finished


def _one_node_too_few(real: Any) -> Any:
    return lambda core, kept, count: real(core, kept, max(1, count - 1))


def _spare_used_twice(_: Any) -> Any:
    def choose(core: Core, kept: tuple[str, ...], count: int) -> tuple[str, ...] | None:
        ready = sorted(name for name, node in core.state.nodes.items() if node.state is NodeState.READY)
        places = [name if name in ready else None for name in kept[:count]] + [None] * (count - len(kept[:count]))
        spares = [name for name in ready if name not in places]
        return tuple(name or spares[0] for name in places) if len(ready) >= count else None

    return choose


def _not_told_what_they_were(real: Any) -> Any:
    def formed(state: State, gang: Gang) -> Gang:
        gang = real(state, gang)
        gang.moved = {}
        return gang

    return formed


def _id_used_again(_: Any) -> Any:
    def next_id(core: Core) -> str:
        core.state.effects += 1
        return f"e{core.state.effects % 100}"

    return next_id


def _last_event_forgotten(_: Any) -> Any:
    def load(journal: MemoryJournal) -> Core:
        core = Core()
        for kind, body in journal._events[:-1]:
            core.step(decode_event(kind, body))
        return core

    return load


def _deadlines_forgotten(real: Any) -> Any:
    def load(journal: MemoryJournal) -> Core:
        core: Core = real(journal)
        core.state.deadlines = {}
        return core

    return load


def _nan_ignored(real: Any) -> Any:
    return lambda core, event: None if event.finding.kind == "poisoned_checkpoint" else real(core, event)


def _hang_ignored(real: Any) -> Any:
    return lambda core, event: None if event.finding.kind in ("silent_rank", "stopped_rank") else real(core, event)


def _corrupt_trusted(real: dict[Cause, str]) -> Any:
    return {cause: why for cause, why in real.items() if cause is not Cause.CHECKPOINT_CORRUPT}


def _restore_differs(real: Any) -> Any:
    def emit(core: Core, effect: Any) -> None:
        real(core, replace(effect, restore="") if isinstance(effect, StartGang) and effect.node_rank else effect)

    return emit


def _starts_from_scratch(real: Any) -> Any:
    return lambda core, gang, found: real(core, gang, replace(found, checkpoint="", checkpoint_step=-1) if core.state.attempts else found)


def _acknowledged_before_written(_: Any) -> Any:
    def told(control: VirtualControl, node: VirtualNode, agent: Any, link: Any, message: Told) -> None:
        if control.is_up and link.life == control.life:
            link.to_agent(lambda message: node.hear(agent, message), Ack(seq=message.seq))
            if control.inbox.is_new(agent.instance, message.seq):
                control.accept(replace(decode_event(message.kind, message.body), at=control.now()))
                control.world.judge.told(agent.instance, message.seq, control.life)

    return told


def _acknowledgement_lost(_: Any) -> Any:
    def told(control: VirtualControl, node: VirtualNode, agent: Any, link: Any, message: Told) -> None:
        if control.is_up and link.life == control.life and control.inbox.is_new(agent.instance, message.seq):
            control.accept(replace(decode_event(message.kind, message.body), at=control.now()))
            control.world.judge.told(agent.instance, message.seq, control.life)

    return told


def _performed_before_written(_: Any) -> Any:
    def accept(control: VirtualControl, event: Any) -> None:
        world = control.world
        world.judge.before(control.core.state, event)
        effects = control.core.step(event)
        for effect in effects:
            control._perform(effect)
        control.writes += 1
        world.faults.at_write(control.writes, before=True)
        control.journal.append(event, effects, control.core.state)
        world.judge.written(control.core.state, event, effects)
        world.faults.at_write(control.writes, before=False)
        control._leave_the_lost()
        control._arm()

    return accept


def _begun_forgotten(real: Any) -> Any:
    def start(node: VirtualNode) -> None:
        if node.is_up and node.agent is None:
            node.disk.begun.clear()
            node.disk.answers.clear()
        real(node)

    return start


def _position_off_by_one(real: Any) -> Any:
    def begun(training: Training, generation: int, restore: str, store_port: int, kept_of: int) -> Attempt:
        attempt: Attempt = real(training, generation, restore, store_port, kept_of)
        attempt.position += bool(restore)
        return attempt

    return begun


def _position_saved_too_early(real: Any) -> Any:
    def save(training: Training, attempt: Attempt) -> None:
        attempt.position -= 1
        real(training, attempt)
        attempt.position += 1

    return save


def _never_usable_again(_: Any) -> Any:
    def stopped(core: Core, node: str) -> None:
        core._stopped_if_done()
        core._form_if_possible()

    return stopped


def _stop_forgotten_in_an_incident(real: Any) -> Any:
    def asked(core: Core, event: StopAsked) -> None:
        if core._open_incident() is None:
            real(core, event)

    return asked


def _unkillable_used_again(real: Any) -> Any:
    def failed(core: Core, event: EffectFailed) -> None:
        if event.unkillable and event.effect in core.state.pending:
            core._effect_done(EffectDone(at=event.at, effect=event.effect, generation=event.generation, node=event.node))
        else:
            real(core, event)

    return failed


def _clock_stands_still(_: Any) -> Any:
    def set_clock(control: VirtualControl) -> None:
        control._offset_s = control.clock_ahead_s

    return set_clock


def _anybody_answers(_: Any) -> Any:
    return lambda core, event: core.state.pending.pop(event.effect, None)


def _grows_at_once(real: Any) -> Any:
    def why_move(state: State) -> str:
        changes, state.changes = state.changes, []
        try:
            because: str = real(state)
            return because
        finally:
            state.changes = changes

    return why_move


def _too_small(real: Any) -> Any:
    return lambda state: max(1, min(len(membership.usable(state)), state.spec.nodes)) if state.smaller else real(state)


def _ranks_not_dense(real: Any) -> Any:
    def emit(core: Core, effect: Any) -> None:
        spec, gang = core.state.spec, core.state.gang
        if isinstance(effect, StartGang) and spec is not None and gang is not None and len(gang.nodes) < spec.nodes and effect.node_rank == len(gang.nodes) - 1:
            effect = replace(effect, ranks=tuple(rank + spec.ranks_per_node for rank in effect.ranks))
        real(core, effect)

    return emit


def _cordoned_used(_: Any) -> Any:
    return lambda state: membership.in_order(state, {name for name, node in state.nodes.items() if node.state is NodeState.READY})


BUGS = (
    Bug(name="an exit of an older generation is taken for one of this", on=Core, attribute="_worker_exited", made=_stale_exit, seed=0),
    Bug(name="a finding about an older generation stops this one", on=Core, attribute="_finding_made", made=_stale_finding, seed=0),
    Bug(name="a node that comes back while it starts is started twice", on=Core, attribute="_node_heard", made=_double_start, seed=0),
    Bug(name="the last node of a gang is not told to stop", on=Core, attribute="_stop_standing", made=_stop_forgotten_on_a_node, seed=0),
    Bug(name="old ranks on a node that comes back are overlooked", on=Core, attribute="_node_heard", made=_old_ranks_overlooked, seed=0),
    Bug(name="a node is used before its old ranks are stopped", on=Core, attribute="_stops_of", made=lambda _: lambda core, node: [], seed=7),
    Bug(name="finished when the first rank is", on=Core, attribute="_finished_if_all_left", made=_finished_early, seed=0),
    Bug(name="a gang is started with one node too few", on=Core, attribute="_choose_nodes", made=_one_node_too_few, seed=1),
    Bug(name="one spare takes two places", on=Core, attribute="_choose_nodes", made=_spare_used_twice, seed=0),
    Bug(name="what was given up is still waited for", on=Core, attribute="_forget", made=lambda _: lambda core, *kinds: None, seed=0),
    Bug(name="restarts are not counted against their budget", on=ladder, attribute="_spent", made=lambda _: lambda *_: "", seed=6),
    Bug(name="an effect gets an id that was used before", on=Core, attribute="_id", made=_id_used_again, seed=0),
    Bug(name="the journal is read but for its last event", on=MemoryJournal, attribute="load", made=_last_event_forgotten, seed=0),
    Bug(name="deadlines are lost when control comes back", on=MemoryJournal, attribute="load", made=_deadlines_forgotten, seed=7),
    Bug(name="what was not answered is not asked again", on=MemoryJournal, attribute="effects", made=lambda _: lambda journal, ids: (), seed=17),
    Bug(name="a poisoned checkpoint is gone on with", on=Core, attribute="_finding_made", made=_nan_ignored, seed=3),
    Bug(name="a corrupt checkpoint is trusted", on=ladder, attribute="_DISTRUSTED_FOR", made=_corrupt_trusted, seed=0),
    Bug(name="only the first node is told what to restore", on=Core, attribute="_emit", made=_restore_differs, seed=0),
    Bug(name="after a fault training starts from scratch", on=Core, attribute="_checkpoint_found", made=_starts_from_scratch, seed=0),
    Bug(name="a message that comes twice is taken twice", on=Inbox, attribute="is_new", made=lambda _: lambda inbox, instance, seq: True, seed=0),
    Bug(name="a message is acknowledged before it is written down", on=VirtualControl, attribute="told", made=_acknowledged_before_written, seed=0),
    Bug(name="no message is acknowledged", on=VirtualControl, attribute="told", made=_acknowledgement_lost, seed=0),
    Bug(name="an effect is performed before it is written down", on=VirtualControl, attribute="accept", made=_performed_before_written, seed=25),
    Bug(name="an agent that comes back has forgotten what it began", on=VirtualNode, attribute="start_agent", made=_begun_forgotten, seed=0),
    Bug(name="a checkpoint counts as whole with its first part", on=Training, attribute="_is_whole", made=lambda _: lambda training, one: True, seed=0),
    Bug(name="after a restore a batch is left out", on=Training, attribute="_begun", made=_position_off_by_one, seed=0),
    Bug(name="what is saved is the position before the batch", on=Training, attribute="_save", made=_position_saved_too_early, seed=0),
    Bug(name="a hang is never acted on", on=Core, attribute="_finding_made", made=_hang_ignored, seed=0),
    Bug(name="a node that was cleaned is never used again", on=Core, attribute="_stopped_on", made=_never_usable_again, seed=120),
    Bug(name="a stop that is asked for in an incident is forgotten", on=Core, attribute="_stop_asked", made=_stop_forgotten_in_an_incident, seed=19),
    Bug(name="a node with a process that cannot be killed is used again", on=Core, attribute="_effect_failed", made=_unkillable_used_again, seed=9),
    Bug(name="a clock that was set back stands still", on=VirtualControl, attribute="_set_clock", made=_clock_stands_still, seed=7),
    Bug(name="anybody's answer counts", on=Core, attribute="_answered", made=_anybody_answers, seed=8),
    Bug(name="the time control was away counts against others", on=Core, attribute="_excuse_absence", made=lambda _: lambda core, event: None, seed=12),
    Bug(name="a gang is stopped for more nodes as soon as they are there", on=membership, attribute="why_move", made=_grows_at_once, seed=32),
    Bug(name="a gang is smaller than it may be", on=membership, attribute="size", made=_too_small, seed=446),
    Bug(name="ranks keep their numbers in a smaller gang", on=Core, attribute="_emit", made=_ranks_not_dense, seed=3),
    Bug(name="survivors of a larger gang are looked for where they are now", on=rejoining, attribute="formed", made=_not_told_what_they_were, seed=85),
    Bug(name="survivors wait where the next gang is not formed", on=rejoining, attribute="left_behind", made=lambda _: lambda state, chosen: [], seed=16),
    Bug(name="a node that is cordoned is used", on=membership, attribute="usable", made=_cordoned_used, seed=1),
    Bug(name="a node is not left before it goes", on=leaving, attribute="begin", made=lambda _: lambda state, node: None, seed=215),
    Bug(name="a gang is made of nodes, whatever a replica is", on=replicas, attribute="block", made=lambda _: lambda state: 1, seed=34),
    Bug(name="survivors give what none of them holds whole", on=rejoining, attribute="goes_back", made=lambda _: lambda state: False, seed=8),
    Bug(name="survivors go on with a part of the state", on=replicas, attribute="missing", made=lambda _: lambda state, there: "", seed=20),
    Bug(name="a wait for nodes has no end", on=Core, attribute="_wait_for_nodes", made=lambda _: lambda core: None, seed=0),
)
