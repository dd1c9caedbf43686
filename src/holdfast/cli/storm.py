"""The storm: real faults, done to a running job from outside, one after the other.

    FAULTS    every fault by name: what it does in words, how it is done, and what the job may answer
    Storm     strikes at stated steps, waits until the job has recovered, and keeps what came of each strike

Nothing is played: processes get signals by their number, a node loses its whole tree and its directories, and where the fault must come from the script
itself, a file asks the script for it. The storm sees the job as any viewer does and is told nothing that Holdfast's own parts are not told.

Is wrong    when something else breaks at the same moment: its incident is then taken for the answer, and the causes do not match.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from holdfast.agent import tree
from holdfast.domain.diagnosis import Cause
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import Reading, View, Watch

PATIENCE_S = 60.0  # A fault that is neither answered nor ridden through by then was not survived.
CALM_STEPS = 5  # Between a recovery and the next strike.


class Missed(HoldfastError):
    """What a fault was meant for is not there at this moment: try again a moment later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where a storm strikes: one job on one machine, as it was seen last."""

    directory: JobDirectory
    process_id: Callable[[str], int]  # Of control or of a node's agent, as it runs now.
    traps: Path  # Where the script looks for the faults that only it can have.
    chance: Random
    view: View | None = None

    def any_rank(self) -> Reading:
        ranks = self.view.ranks if self.view is not None else ()
        if not ranks:
            raise Missed("no rank is up")
        return ranks[int(self.chance.random() * len(ranks))]

    def any_node(self) -> str:
        """One that has ranks on it."""
        nodes = [node.name for node in self.view.nodes if node.role == "gang" and node.connected] if self.view is not None else []
        if not nodes:
            raise Missed("no node is connected")
        return nodes[int(self.chance.random() * len(nodes))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What a fault did, in words, and the process whose place somebody must take."""

    said: str
    process: str = ""  # "control" or a node, when the launcher is to start it again.
    process_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    does: str
    strike: Callable[[Ground], Blow]
    causes: tuple[Cause, ...]  # What an incident that follows may be diagnosed as.
    ridden_through: bool = False  # Training should not notice, so there need not be an incident.


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Missed(f"process {pid} is gone already") from None


def _kill_worker(ground: Ground) -> Blow:
    rank = ground.any_rank()
    _signal(rank.pid, signal.SIGKILL)
    return Blow(said=f"SIGKILL to rank {rank.rank}")


def _stop_worker(ground: Ground) -> Blow:
    rank = ground.any_rank()
    _signal(rank.pid, signal.SIGSTOP)
    return Blow(said=f"SIGSTOP to rank {rank.rank}")


def _break_sample(ground: Ground) -> Blow:
    rank = ground.any_rank()
    (ground.traps / f"broken-sample-{rank.rank}").touch()
    return Blow(said=f"a broken sample for rank {rank.rank}")


def _fail_start(ground: Ground) -> Blow:
    """The trap is set before the kill, for the generation that the kill brings about."""
    rank = ground.any_rank()
    (ground.traps / f"exit-at-start-{rank.rank}").touch()
    _signal(rank.pid, signal.SIGKILL)
    return Blow(said=f"SIGKILL to rank {rank.rank}, which will exit with 1 when it is started again")


def _kill_agent(ground: Ground) -> Blow:
    node = ground.any_node()
    pid = ground.process_id(node)
    _signal(pid, signal.SIGKILL)
    return Blow(said=f"SIGKILL to the agent of {node}", process=node, process_id=pid)


def _kill_control(ground: Ground) -> Blow:
    pid = ground.process_id("control")
    _signal(pid, signal.SIGKILL)
    return Blow(said="SIGKILL to control", process="control", process_id=pid)


def _lose_node(ground: Ground) -> Blow:
    node = ground.any_node()
    lose_node(ground.directory, node, ground.process_id(node))
    return Blow(said=f"{node} is lost: all its processes, its disk and its memory")


def lose_node(directory: JobDirectory, node: str, agent: int) -> None:
    """Take a local node away as a power cut would. Its description goes first, because a node without one is not started again."""
    directory.node_spec(node).unlink()
    left = tree.end_tree([agent], grace_s=0.0) + tree.end_marked(directory.job, directory.node_shared_memory(node).name)
    if left:
        raise HoldfastError(f"{node} cannot be lost: its processes {left} survived SIGKILL")
    for path in (directory.node_state(node), directory.node_scratch(node), directory.node_shared_memory(node)):
        shutil.rmtree(path)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="worker_killed", does="a worker gets SIGKILL", strike=_kill_worker, causes=(Cause.KILLED,)),
        Fault(name="worker_stopped", does="a worker gets SIGSTOP, and its peers wait for it", strike=_stop_worker, causes=(Cause.HANG,)),
        Fault(name="exception", does="a sample of one rank is broken, and its script raises", strike=_break_sample, causes=(Cause.EXCEPTION,)),
        Fault(name="exit_at_start", does="a worker is killed, and its successor exits with 1", strike=_fail_start, causes=(Cause.EXIT_CODE,)),
        Fault(name="node_lost", does="a node loses its processes, its disk and its memory", strike=_lose_node, causes=(Cause.NODE_LOST,)),
        # An agent that needs longer to come back than a silent node is given is a lost node, and is to be treated as one.
        Fault(name="agent_killed", does="an agent gets SIGKILL", strike=_kill_agent, causes=(Cause.NODE_LOST,), ridden_through=True),
        Fault(name="control_killed", does="control gets SIGKILL", strike=_kill_control, causes=(), ridden_through=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault, and the step from which on it may come."""

    fault: Fault
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A strike that was made, and what came of it."""

    fault: Fault
    blow: Blow
    step: int
    at: float
    generation: int
    workers: frozenset[int]  # Their processes, before.
    incidents_before: int
    answered_at: float | None = None
    incidents: tuple[int, ...] = ()  # Those that followed; none when it was ridden through.


@dataclass(slots=True, kw_only=True)
class Storm:
    """Looks at every view of the job, and either strikes, or waits for the job to recover from the last strike."""

    ground: Ground
    strikes: Sequence[Strike]
    say: Callable[[str], None]
    struck: list[Struck] = field(default_factory=list)
    _waiting: bool = False  # For the job to recover from the last one struck.
    _calm_from: int = 0

    async def run(self) -> None:
        """Until the job has ended."""
        async for view in views(self.ground.directory):
            if not view.outcome:
                self.look(view)

    def look(self, view: View) -> None:
        if self._waiting:
            self._wait(self.struck[-1], view)
        elif len(self.struck) < len(self.strikes) and _is_well(view):
            strike = self.strikes[len(self.struck)]
            if view.step >= max(strike.step, self._calm_from):
                self._strike(strike.fault, view)

    def _strike(self, fault: Fault, view: View) -> None:
        try:
            blow = fault.strike(replace(self.ground, view=view))
        except Missed:
            return
        self._waiting = True
        self.struck.append(
            Struck(fault=fault, blow=blow, step=view.step, at=view.at, generation=view.generation, workers=_workers(view), incidents_before=_newest(view))
        )
        self.say(f"storm: {blow.said}")

    def _wait(self, struck: Struck, view: View) -> None:
        followed = tuple(incident.id for incident in view.incidents if incident.id > struck.incidents_before and not incident.stands)
        answered = _is_well(view) and (bool(followed) or self._is_ridden_through(struck, view))
        if not answered and view.at - struck.at < PATIENCE_S:
            return
        self._waiting, self._calm_from = False, view.step + CALM_STEPS
        self.struck[-1] = replace(struck, answered_at=view.at if answered else None, incidents=followed)
        if answered and not followed:
            self.say(f"storm: {struck.blow.process} is back after {view.at - struck.at:.1f} s, and no worker noticed")
        elif not answered:
            self.say(f"storm: not survived within {PATIENCE_S:.0f} s: {struck.blow.said}")

    def _is_ridden_through(self, struck: Struck, view: View) -> bool:
        """The same workers go on, and whoever was killed is there again."""
        if not struck.fault.ridden_through or view.step <= struck.step or view.generation != struck.generation or _workers(view) != struck.workers:
            return False
        return self.ground.process_id(struck.blow.process) != struck.blow.process_id and all(node.connected for node in view.nodes if node.role == "gang")


def _is_well(view: View) -> bool:
    """Every rank is there and has finished a step, and no story is open."""
    stepped = len(view.ranks) == view.world_size and all(rank.step > rank.step_started for rank in view.ranks)
    return view.phase == "running" and stepped and all(incident.stands or incident.phase in ("resolved", "gave_up") for incident in view.incidents)


def _workers(view: View) -> frozenset[int]:
    return frozenset(rank.pid for rank in view.ranks)


def _newest(view: View) -> int:
    return max((incident.id for incident in view.incidents), default=0)


async def views(directory: JobDirectory) -> AsyncIterator[View]:
    """What control shows, until the job has ended; a control that was killed is waited for."""
    while True:
        try:
            channel = await connect(directory.control_socket)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        channel.send(Watch(output=False))
        try:
            async for message in channel:
                if isinstance(message, View):
                    yield message
                    if message.outcome:
                        return
        except BadFrame:
            continue
        finally:
            await channel.closed()


def left_behind(directory: JobDirectory, nodes: Collection[str]) -> list[str]:
    """What a job that has ended should not have left: processes, shared memory, sockets, directories of nodes."""
    marks = [directory.node_shared_memory(node) for node in nodes]
    found = [f"process {pid}" for mark in marks for pid in tree.marked(directory.job, mark.name)]
    paths = [*marks, directory.nodes, directory.control_socket]
    return found + [str(path) for path in paths if path.exists()]
