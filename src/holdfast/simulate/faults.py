"""Faults: what goes wrong in a run, and when. All of it follows from the seed.

`Faults.plan` makes the schedule; `strikes` is asked at the places where a small chance of failure lies, and says no once the storm is over. So every run has
an end that can be required of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.domain.event import FindingEnded, FindingMade, ProfileAsked, StopAsked
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding
from holdfast.simulate.control import Crashed

if TYPE_CHECKING:
    from holdfast.simulate.node import VirtualNode
    from holdfast.simulate.training import Worker
    from holdfast.simulate.world import World


@dataclass(slots=True)
class Faults:
    world: World
    dice: random.Random
    until: float  # After this, nothing goes wrong any more.
    severity: float  # Scales the small chances; 0 for a quiet run.
    crash_before_write: int = 0  # Control dies before, or after, it has written down the event with this number.
    crash_after_write: int = 0
    done: list[str] = field(default_factory=list)

    def plan(self, count: int, storm_s: float) -> None:
        kinds: tuple[tuple[Callable[[], None], int], ...] = (
            (self.worker_dies, 6), (self.rank_hangs, 3), (self.node_lost, 3), (self.parent_dies, 1), (self.agent_dies, 3), (self.connection_breaks, 4),
            (self.node_cut_off, 2), (self.control_dies, 4), (self.checkpoint_corrupt, 1),
        )  # fmt: skip
        for fault in self.dice.choices([fault for fault, _ in kinds], weights=[weight for _, weight in kinds], k=count):
            self.world.clock.after(self.dice.uniform(0.0, storm_s), fault)

    def strikes(self, chance: float) -> bool:
        struck = self.world.clock.now < self.until and self.dice.random() < chance * self.severity
        if struck:
            self.done.append("chance")
        return struck

    def at_write(self, number: int, *, before: bool) -> None:
        """Die here, if the schedule or the dice say so."""
        planned = number == (self.crash_before_write if before else self.crash_after_write)
        if planned or self.strikes(0.004):
            raise Crashed

    # Each of these is one fault.

    def worker_dies(self) -> None:
        worker = self._any_worker()
        if worker is None:
            return
        kind, known = self.dice.choice(_DEATHS)
        self._did(f"worker {worker.rank} dies: {kind}")
        step = self.world.training.attempts[worker.generation].step if self.world.training.guarded else -1
        # Each of these is a fault of its own. A fault that repeats is what `failing_step` is for.
        fingerprint = f"fault-{len(self.done)}"
        because = f"rank {worker.rank} died: {kind}"
        exit = Exit(rank=worker.rank, pid=1, kind=kind, because=because, fingerprint=fingerprint, step=step, at_ns=self.world.now_ns(), **known)  # type: ignore[arg-type]
        worker.node.leave(worker, exit)

    def rank_hangs(self) -> None:
        worker = self._any_worker()
        if worker is not None and not worker.hung:
            self._did(f"rank {worker.rank} hangs")
            self.world.training.hang(worker, self.dice.choice(("silent_rank", "stopped_rank")))

    def node_lost(self) -> None:
        node = self._any_node()
        self._did(f"{node.name} is lost")
        node.lose()
        if self.dice.random() < 0.8:
            self.world.clock.after(self.dice.choice((1.0, 20.0, 70.0)) * self.dice.random(), node.come_back)

    def parent_dies(self) -> None:
        node = self._any_node()
        self._did(f"the warm parent of {node.name} dies")
        node.lose_parent()

    def agent_dies(self) -> None:
        node = self._any_node()
        self._did(f"the agent of {node.name} dies")
        node.kill_agent()

    def connection_breaks(self) -> None:
        node = self._any_node()
        if node.agent is not None and node.agent.link is not None:
            self._did(f"the connection of {node.name} breaks")
            self.world.control.lost(node.name, node.agent.link)

    def node_cut_off(self) -> None:
        node = self._any_node()
        if node.agent is not None and node.agent.link is not None:
            self._did(f"{node.name} is cut off")
            node.reachable = False
            self.world.control.frozen(node.name, node.agent.link)
            self.world.clock.after(self.dice.choice((5.0, 40.0)) * self.dice.random(), lambda: setattr(node, "reachable", True))

    def control_dies(self) -> None:
        self._did("control dies")
        raise Crashed

    def checkpoint_corrupt(self) -> None:
        newest = self.world.training.newest(())
        if newest is not None:
            self._did(f"checkpoint {newest.name} turns bad")
            self.world.training.corrupt.add(newest.name)

    def checkpoints_poisoned(self, count: int) -> None:
        """The newest ones hold NaN, and a rank dies: so the next generation restores one of them."""
        training = self.world.training
        newest = sorted(training.saved, key=lambda one: one.step)[-count:]
        if newest:
            self._did(f"checkpoints {', '.join(one.name for one in newest)} hold NaN")
            training.poisoned |= {one.name for one in newest}
            self.worker_dies()

    def stop_asked(self, now: bool) -> None:
        control = self.world.control
        if not control.is_up:
            self.world.clock.after(1.0, lambda: self.stop_asked(now))
        elif not control.ended:
            self._did("stop is asked" + (", now" if now else ""))
            control.accept(StopAsked(at=self.world.clock.now, because="a person asked", code=130, now=now))

    def rank_slow(self, rank: int, *, over: bool = False) -> None:
        """Control's own look finds it, and later that it is over."""
        control, now = self.world.control, self.world.clock.now
        if control.is_up and not control.ended:
            finding = Finding(kind="slow_rank", ranks=(rank,), since=now, because=f"rank {rank} is slow")
            generation = control.core.state.generation
            self.world.note("slow", rank, over)
            ended = FindingEnded(at=now, generation=generation, key=finding.key, because="no longer so")
            control.accept(ended if over else FindingMade(at=now, generation=generation, finding=finding))

    def profile_asked(self) -> None:
        control = self.world.control
        if control.is_up and not control.ended:
            control.accept(ProfileAsked(at=self.world.clock.now, because="a person asked"))

    def _did(self, what: str) -> None:
        self.done.append(what)
        self.world.note("fault", what)

    def _any_node(self) -> VirtualNode:
        return self.world.nodes[self.dice.choice(sorted(self.world.nodes))]

    def _any_worker(self) -> Worker | None:
        alive = [worker for _, node in sorted(self.world.nodes.items()) for _, worker in sorted(node.workers.items()) if worker.rank not in node.unkillable]
        return self.dice.choice(alive) if alive else None


_DEATHS: tuple[tuple[ExitKind, dict[str, str | int]], ...] = (
    (ExitKind.SIGNAL, {"signal": 9}),
    (ExitKind.SIGNAL, {"signal": 11}),
    (ExitKind.OUT_OF_MEMORY, {"signal": 9}),
    (ExitKind.EXCEPTION, {"code": 1, "exception": "OSError", "message": "no space left on device"}),
    (ExitKind.CODE, {"code": 3}),
)
