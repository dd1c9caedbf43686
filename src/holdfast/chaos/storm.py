"""The storm: strikes, done to a running job from outside, one after the other.

    Storm     strikes at stated steps, waits until the job has recovered, and keeps what came of each strike
    LiveScene the job as control shows it

The storm sees the job as any viewer does and is told nothing that Holdfast's own parts are not told.

Is wrong    when something else breaks at the same moment: its incident is then taken for the answer, and the causes do not match.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.agent import tree
from holdfast.chaos.clock import clock_of
from holdfast.chaos.fault import Aim, Fault
from holdfast.chaos.ground import Ground, Missed
from holdfast.chaos.undo import UNDO, Undoing
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.processes import CONTROL, process_of
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import Reading, View, Watch

PATIENCE_S = 60.0  # A fault that is not answered so long after it should have been noticed was not survived.
CLOSING_S = 180.0  # What stood beside a running gang must stay away for a while before its story is closed.
CALM_STEPS = 5  # Between a recovery and the next strike.
WARM_S = 85.0  # Of a generation: the detectors that learn what is usual need 75 looks.


@dataclass(slots=True, kw_only=True)
class LiveScene:
    directory: JobDirectory
    view: View | None = None

    def pid(self, rank: int) -> int:
        return self._reading(rank).pid

    def node(self, rank: int) -> str:
        """A worker carries its node's mark in its environment."""
        prefix = f"{tree.NODE_MARK}={self.directory.shared_memory_prefix}".encode()
        try:
            environment = Path(f"/proc/{self.pid(rank)}/environ").read_bytes().split(b"\0")
        except OSError:
            raise Missed(f"rank {rank} is gone already") from None
        found = next((one.removeprefix(prefix).decode() for one in environment if one.startswith(prefix)), "")
        if not found:
            raise HoldfastError(f"the node of rank {rank} is not known: its process carries no {tree.NODE_MARK}")
        return found

    def step(self) -> int:
        return self.view.step if self.view is not None else -1

    def _reading(self, rank: int) -> Reading:
        found = next((one for one in self.view.ranks if one.rank == rank), None) if self.view is not None else None
        if found is None:
            raise Missed(f"rank {rank} is not up")
        return found


def ground_of(scene: LiveScene, orders: Path) -> Ground:
    """Where a running job is struck; what is needed to put things right lies in its directory."""
    control = process_of(scene.directory, CONTROL)
    return Ground(
        scene=scene, orders=orders, undoing=Undoing(scene.directory.path / UNDO), group=f"holdfast-chaos-{os.getpid()}",
        clock=clock_of(control) if control is not None else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault, whom it hits, and the step from which on it may come."""

    fault: Fault
    rank: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A strike that was made, and what came of it."""

    fault: Fault
    said: str
    rank: int
    node: str
    step: int
    at: float
    generation: int
    worker: int  # The process of the rank,
    workers: frozenset[int]  # and those of all, before.
    incidents_before: int
    process: str = ""  # Control or a node, when the launcher is to start it again.
    process_id: int = 0
    mended: bool = False
    answered_at: float | None = None
    incidents: tuple[int, ...] = ()  # Those that followed; none when it was ridden through.
    moved: bool = False  # The gang was just being given other nodes: whoever was struck is gone with the old one, and nobody need have noticed.


@dataclass(slots=True, kw_only=True)
class Storm:
    """Looks at every view of the job, and either strikes, or waits for the job to recover from the last strike."""

    ground: Ground
    scene: LiveScene
    strikes: Sequence[Strike]
    say: Callable[[str], None]
    struck: list[Struck] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # Faults that this machine does not let be done after all, and what it said.
    begun: int = 0  # Strikes that were made, or refused.
    _waiting: bool = False  # For the job to recover from the last one struck.
    _calm_from: int = 0
    _generation: int = 0
    _warm_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.begun == len(self.strikes) and not self._waiting

    @property
    def judged(self) -> int:
        """How many of those that were struck have been answered, or given up."""
        return len(self.struck) - self._waiting

    async def run(self, *, stop_when_over: bool = False) -> None:
        """Until the job has ended, or every strike was made and answered."""
        async for view in views(self.scene.directory):
            if not view.outcome:
                self.look(view)
            if stop_when_over and self.over:
                return

    def look(self, view: View) -> None:
        self.scene.view = view
        if view.generation != self._generation:
            self._generation, self._warm_at = view.generation, view.at + WARM_S
        if self._waiting:
            self._wait(self.struck[-1], view)
        elif self.begun < len(self.strikes) and is_well(view):
            strike = self.strikes[self.begun]
            if view.step >= max(strike.step, self._calm_from) and (not strike.fault.learned or view.at >= self._warm_at):
                self._strike(strike, view)

    def _strike(self, strike: Strike, view: View) -> None:
        fault, rank = strike.fault, strike.rank % view.world_size  # There may be fewer by now.
        try:
            node = self.ground.node(rank)
            process = {Aim.CONTROL: CONTROL, Aim.AGENT: node}.get(fault.aim, "")
            before = self.ground.process(process) if process else 0
            fault.strike(self.ground, rank)
        except Missed:
            self.mend()  # What was done until then.
            return
        except (HoldfastError, OSError, subprocess.SubprocessError) as error:  # The others are done all the same.
            self.refused[fault.key] = str(error)
            self.begun += 1
            self.say(f"storm: {fault.key} could not be done: {error}")
            self.mend()
            return
        self._waiting = True
        self.begun += 1
        said = fault.says.format(rank=rank, node=node)
        self.struck.append(
            Struck(
                fault=fault, said=said, rank=rank, node=node, step=view.step, at=view.at, generation=view.generation,
                worker=next((one.pid for one in view.ranks if one.rank == rank), 0), workers=_workers(view),
                incidents_before=_newest(view), process=process, process_id=before,
            )
        )  # fmt: skip
        self.say(f"storm: {said}")

    def _wait(self, struck: Struck, view: View) -> None:
        fault = struck.fault
        beside = fault.stands or fault.ruins  # An incident for which nothing was stopped may be its own; else it is somebody else's.
        followed = [incident for incident in view.incidents if incident.id > struck.incidents_before and (beside or not incident.stands)]
        struck = self.struck[-1] = replace(struck, incidents=tuple(incident.id for incident in followed))
        # Others may begin to stand meanwhile, and stay open for long: that the job was restarted often, or that a node is suspect.
        own = [incident for incident in followed if not incident.stands or incident.cause in fault.kinds]
        noticed = bool(own) or (bool(followed) and view.at - struck.at >= fault.within_s)
        if fault.mend_when_noticed and not struck.mended and (own or view.at - struck.at >= fault.within_s):
            struck = self.struck[-1] = replace(struck, mended=True)
            self.mend()
        closed = all(incident.phase in ("resolved", "gave_up") for incident in own or followed)
        moved = not followed and _is_moved(struck, view)
        answered = is_well(view) and closed and (noticed or moved or self._is_ridden_through(struck, view))
        if not answered and view.at - struck.at < fault.within_s + PATIENCE_S + (CLOSING_S if beside else 0.0):
            return
        self.mend()
        self._waiting, self._calm_from = False, view.step + CALM_STEPS
        if fault.learned:
            self._warm_at = view.at + WARM_S  # Of what was found and is over nothing is kept: it is learned anew what is usual.
        self.struck[-1] = replace(struck, answered_at=view.at if answered else None, moved=answered and moved)
        if answered and moved:
            self.say("storm: the gang was given other nodes meanwhile, and goes on")
        elif answered and not followed:
            self.say(f"storm: {struck.process} is back after {view.at - struck.at:.1f} s, and no worker noticed")
        elif not answered:
            self.say(f"storm: not survived within {view.at - struck.at:.0f} s: {struck.said}")

    def mend(self) -> None:
        for problem in self.ground.undoing.heal():
            self.say(f"storm: could not be put right: {problem}")

    def _is_ridden_through(self, struck: Struck, view: View) -> bool:
        """The same workers go on, and whoever was killed is there again."""
        if not struck.fault.ridden_through or view.step <= struck.step or view.generation != struck.generation or _workers(view) != struck.workers:
            return False
        try:
            back = self.ground.process(struck.process) != struck.process_id
        except Missed:
            return False
        return back and all(node.connected for node in view.nodes if node.role == "gang")


def is_well(view: View) -> bool:
    """Every rank is there and has finished a step, and no story is open."""
    stepped = len(view.ranks) == view.world_size and all(rank.step > rank.step_started for rank in view.ranks)
    return view.phase == "running" and stepped and all(incident.stands or incident.phase in ("resolved", "gave_up") for incident in view.incidents)


def _is_moved(struck: Struck, view: View) -> bool:
    """Another gang works, without the process that was struck, and nobody had to notice anything: a break would have been told of."""
    rank_hit = struck.fault.aim is Aim.RANK and not struck.fault.ruins
    return rank_hit and view.generation > struck.generation and view.step > struck.step and struck.worker not in _workers(view)


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
        channel.send(Watch())
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
