"""Faults: what goes wrong in a run, and when. All of it follows from the seed.

`Faults.plan` makes the schedule; `strikes` and `pick` are asked at the places where a small chance of failure lies, and say no once the storm is over. So
every run has an end that can be required of it. Each place has a name: see `sites`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core import asking
from holdfast.domain.effect import CONTROL
from holdfast.domain.event import CheckAsked, FindingEnded, FindingMade, NodeCordoned, NodeUncordoned, ProfileAsked, StopAsked
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding
from holdfast.simulate.control import Crashed
from holdfast.simulate.failures import Lost, bursts, poisson, recorded, weibull
from holdfast.simulate.reliability.repair import Percentiles

if TYPE_CHECKING:
    from holdfast.simulate.node import VirtualNode
    from holdfast.simulate.training import Worker
    from holdfast.simulate.world import World

REPAIR_S = Percentiles(points=((0.0, 0.2), (0.5, 10.0), (0.9, 60.0), (0.99, 240.0), (1.0, 600.0)))  # A restart mostly, now and then a person with a part.


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
            (self.worker_dies, 12), (self.rank_hangs, 5), (self.parent_dies, 2), (self.store_dies, 1), (self.agent_dies, 4), (self.connection_breaks, 4),
            (self.node_cut_off, 3), (self.rack_cut_off, 1), (self.control_dies, 4), (self.control_pauses, 3), (self.checkpoint_corrupt, 1),
            (self.checkpoint_lost, 1), (self.disk_slow, 3), (self.network_slow, 2), (self.clock_wrong, 2), (self.agent_lies, 8), (self.profile_asked, 1),
            (self.rank_slow, 2),
        )  # fmt: skip
        for fault in self.dice.choices([fault for fault, _ in kinds], weights=[weight for _, weight in kinds], k=count):
            self.world.clock.after(self.dice.uniform(0.0, storm_s), fault)

    def plan_lost_nodes(self, storm_s: float, recording: Sequence[Lost]) -> None:
        """Which machines are lost when: as recorded, or by a process that the seed chooses."""
        world, dice = self.world, self.dice
        nodes, each_s = sorted(world.nodes), storm_s * len(world.nodes) / dice.choice((1, 3, 6))
        if recording:
            lost, site = recorded(recording, nodes, storm_s), "node.lost"
        else:
            lost, site = dice.choice(
                (
                    lambda: (poisson(dice, nodes, each_s, storm_s), "node.lost"),
                    lambda: (weibull(dice, nodes, each_s, storm_s, shape=dice.choice((0.6, 3.0))), "node.lost"),
                    lambda: (bursts(dice, world.racks, storm_s / 2, storm_s, within_s=5.0), "rack.lost"),
                    lambda: (poisson(dice, [dice.choice(nodes)], storm_s / 5, storm_s), "node.lemon"),
                )
            )()
        for at_s, name in lost:
            world.clock.after(at_s, lambda name=name: self.node_lost(name, site))  # type: ignore[misc]

    def strikes(self, site: str, chance: float) -> bool:
        struck = self.world.clock.now < self.until and self.dice.random() < chance * self.severity
        if struck:
            self.world.hit(site)
        return struck

    def pick(self, chances: Sequence[tuple[str, float]]) -> str:
        """At most one of several sites, with one throw; empty for none."""
        if self.world.clock.now < self.until:
            left = self.dice.random()
            for site, chance in chances:
                left -= chance * self.severity
                if left < 0.0:
                    self.world.hit(site)
                    return site
        return ""

    def at_write(self, number: int, *, before: bool) -> None:
        """Die here, if the schedule or the dice say so."""
        site = "control.dies.before_write" if before else "control.dies.after_write"
        planned = number == (self.crash_before_write if before else self.crash_after_write)
        if planned or self.strikes(site, 0.001):
            raise Crashed

    def clock_at_start(self) -> None:
        """Control comes back on a machine whose clock was set meanwhile."""
        for site, chance, by_s in (("control.clock_back", 0.04, -1.0), ("control.clock_ahead", 0.04, 1.0)):
            if self.strikes(site, chance):
                self.world.control.clock_ahead_s += by_s * self.dice.choice((2.0, 60.0, 3600.0, 100_000.0)) * self.dice.random()

    # Each of these is one fault.

    def worker_dies(self) -> None:
        worker = self._any_worker()
        if worker is None:
            return
        site, kind, known = self.dice.choice(_DEATHS)
        self._did(site, f"worker {worker.rank} dies: {kind}")
        step = self.world.training.attempts[worker.generation].step if self.world.training.guarded else -1
        # Each of these is a fault of its own. A fault that repeats is what `failing_step` is for.
        fingerprint = f"fault-{len(self.done)}"
        because = f"rank {worker.rank} died: {kind}"
        exit = Exit(rank=worker.rank, pid=1, kind=kind, because=because, fingerprint=fingerprint, step=step, at_ns=worker.node.now_ns(), **known)  # type: ignore[arg-type]
        worker.node.leave(worker, exit)

    def rank_hangs(self) -> None:
        worker = self._any_worker()
        if worker is not None and not worker.hung:
            site, kind = self.dice.choice((("worker.hangs", "silent_rank"), ("worker.stopped", "stopped_rank")))
            self._did(site, f"rank {worker.rank} hangs")
            self.world.training.hang(worker, kind)

    def node_lost(self, name: str, site: str) -> None:
        world, node = self.world, self.world.nodes[name]
        if not node.is_up:
            return
        self._did(site, f"{name} is lost")
        node.lose()
        if world.gone < world.spec.spares and self.dice.random() < 0.1:
            world.gone += 1
            world.hit("node.gone")
        else:
            world.clock.after(REPAIR_S.draw(self.dice), node.come_back)

    def parent_dies(self) -> None:
        node = self._any_node()
        self._did("parent.dies", f"the warm parent of {node.name} dies")
        node.lose_parent()

    def store_dies(self) -> None:
        having = [node for _, node in sorted(self.world.nodes.items()) if node.stores]
        if having:
            node = self.dice.choice(having)
            self._did("store.dies", f"a store on {node.name} dies")
            del node.stores[max(node.stores)]

    def agent_dies(self) -> None:
        node = self._any_node()
        if node.agent is not None:
            self._did("agent.dies", f"the agent of {node.name} dies")
            node.kill_agent()

    def agent_lies(self) -> None:
        node, core = self._any_node(), self.world.control.core
        generation, rank = core.state.generation, self.dice.randrange(core.state.world_size)
        asked = [(id, one.generation) for id, one in sorted(core.state.pending.items()) if one.node not in (node.name, CONTROL)]
        lies: list[tuple[str, Callable[[], bool]]] = [
            ("agent.lies.answers_again", lambda: node.answer_again(rank)),
            ("agent.lies.exit_again", lambda: node.tell_old(generation - 1, rank, exit=True)),
            ("agent.lies.old_finding", lambda: node.tell_old(generation - 1, rank, exit=False)),
        ]
        if asked:
            lies.append(("agent.lies.for_another", lambda: node.answer_for_another(*self.dice.choice(asked))))
        site, lie = lies[-1] if asked else self.dice.choice(lies)
        if lie():
            self._did(site, f"the agent of {node.name} says what is not so")

    def connection_breaks(self) -> None:
        node = self._any_node()
        if node.agent is not None and node.agent.link is not None:
            self._did("link.breaks", f"the connection of {node.name} breaks")
            self.world.control.lost(node.name, node.agent.link)

    def node_cut_off(self) -> None:
        self._cut_off("node.cut_off", [self._any_node()])

    def rack_cut_off(self) -> None:
        rack = self.dice.choice(sorted(self.world.racks))
        self._cut_off("rack.cut_off", [self.world.nodes[name] for name in self.world.racks[rack]])

    def _cut_off(self, site: str, nodes: Sequence[VirtualNode]) -> None:
        for_s = self.dice.choice((5.0, 40.0)) * self.dice.random()
        for node in nodes:
            if node.agent is not None and node.agent.link is not None:
                self._did(site, f"{node.name} is cut off")
                node.reachable = False
                self.world.control.frozen(node.name, node.agent.link)
                self.world.clock.after(for_s, lambda node=node: setattr(node, "reachable", True))  # type: ignore[misc]

    def disk_slow(self) -> None:
        node = self._any_node()
        self._did("disk.slow", f"the disk of {node.name} is slow")
        node.disk_slow_s = self.dice.uniform(0.5, 8.0)
        self.world.clock.after(self.dice.uniform(5.0, 60.0), lambda: setattr(node, "disk_slow_s", 0.0))

    def network_slow(self) -> None:
        node = self._any_node()
        self._did("network.slow", f"the network of {node.name} is slow")
        node.network_slow_s = self.dice.uniform(0.5, 3.0)
        self.world.clock.after(self.dice.uniform(5.0, 60.0), lambda: setattr(node, "network_slow_s", 0.0))

    def clock_wrong(self) -> None:
        node = self._any_node()
        self._did("node.clock_wrong", f"the clock of {node.name} is set wrong")
        node.clock_ahead_s = self.dice.choice((-1.0, 1.0)) * self.dice.choice((1.0, 3600.0)) * self.dice.random()

    def control_dies(self) -> None:
        if self.world.control.is_up:
            self._did("control.dies", "control dies")
            raise Crashed

    def control_pauses(self) -> None:
        if self.world.control.is_up:
            self._did("control.pauses", "control stands still")
            until = self.world.clock.now + self.dice.choice((1.0, 5.0, 20.0)) * self.dice.random()
            self.world.control.paused_until = max(self.world.control.paused_until, until)

    def checkpoint_corrupt(self) -> None:
        newest = self.world.training.newest(())
        if newest is not None:
            self._did("checkpoint.corrupt", f"checkpoint {newest.name} turns bad")
            self.world.training.corrupt.add(newest.name)

    def checkpoint_lost(self) -> None:
        """It is found no more, and whoever was told to restore it finds nothing there."""
        newest = self.world.training.newest(())
        if newest is not None:
            self._did("checkpoint.lost", f"checkpoint {newest.name} is gone")
            newest.whole = False
            self.world.training.corrupt.add(newest.name)

    def checkpoints_poisoned(self, count: int) -> None:
        """The newest ones hold NaN, and a rank dies: so the next generation restores one of them."""
        training = self.world.training
        newest = sorted((one for one in training.saved.values() if one.whole), key=lambda one: one.step)[-count:]
        if newest:
            self._did("checkpoint.poisoned", f"checkpoints {', '.join(one.name for one in newest)} hold NaN")
            training.poisoned |= {one.name for one in newest}
            self.worker_dies()

    def stop_asked(self, *, now: bool) -> None:
        control = self.world.control
        if not control.is_up:
            self.world.clock.after(1.0, lambda: self.stop_asked(now=now))
        elif not control.ended:
            self._did("job.stop_asked_now" if now else "job.stop_asked", "stop is asked" + (", now" if now else ""))
            control.accept(StopAsked(at=control.now(), because="a person asked", code=130, now=now))

    def rank_slow(self) -> None:
        """Control's own look finds it, and later that it is over; a few last so long that leaving the node is worth it."""
        control = self.world.control
        state = control.core.state
        rank = self.dice.randrange(state.world_size)
        if control.is_up and not control.ended:
            self._did("worker.slow", f"rank {rank} is slow")
            node = state.gang.nodes[rank // self.world.spec.ranks_per_node] if state.gang is not None else ""
            finding = Finding(kind="slow_rank", node=node, ranks=(rank,), since=control.now(), share=0.9, because=f"rank {rank} is slow")
            lasts_s = self.dice.uniform(0.0, 60.0)
            self.world.clock.after(lasts_s if lasts_s < 40.0 else 10.0 * (lasts_s - 30.0), lambda: self._slow_no_more(finding))
            control.accept(FindingMade(at=control.now(), generation=control.core.state.generation, finding=finding))

    def _slow_no_more(self, finding: Finding) -> None:
        control = self.world.control
        if control.is_up and not control.ended:
            ended = FindingEnded(at=control.now(), generation=control.core.state.generation, key=finding.key, because="no longer so")
            control.accept(ended)

    def cordoned(self, name: str, *, drain: bool) -> None:
        """A person takes a node out of service, and gives it back before the storm is over."""
        control = self.world.control
        if control.is_up and not control.ended:
            self._did("node.drained" if drain else "node.cordoned", f"{name} is {'drained' if drain else 'cordoned'}")
            control.accept(NodeCordoned(at=control.now(), node=name, because="it is to be repaired", drain=drain))

    def uncordoned(self, name: str) -> None:
        control = self.world.control
        if not control.is_up:
            self.world.clock.after(1.0, lambda: self.uncordoned(name))
        elif not control.ended:
            control.accept(NodeUncordoned(at=control.now(), node=name))

    def check_asked(self, mended_s: float) -> None:
        """A person wants to know whether a node that stands idle is well; if it is not, the node is mended and given back."""
        control = self.world.control
        asked = [CheckAsked(at=control.now(), node=name, who="a person") for name in sorted(self.world.nodes)]
        taken = [one for one in asked if not asking.refused(control.core.state, one)]
        if control.is_up and not control.ended and taken:
            chosen = self.dice.choice(taken)
            self._did("check.asked", f"a check of {chosen.node} is asked for")
            self.world.clock.after(mended_s, lambda: self.uncordoned(chosen.node))
            control.accept(chosen)

    def noticed(self, name: str, within_s: float, *, withdrawn: bool) -> None:
        """Somebody says that a node will go; it does, or that is taken back. As its agent would, by itself when the time has long passed."""
        control, clock = self.world.control, self.world.clock
        if not control.is_up or control.ended:
            return
        self._did("node.notice_withdrawn" if withdrawn else "node.noticed", f"{name} is said to go in {within_s:.0f} s")
        judged = self.world.judge.noticed(name)
        control.accept(NodeCordoned(at=control.now(), node=name, because="it is to go", drain=True, goes_at=control.now() + within_s))
        if not withdrawn:
            clock.after(within_s, judged)
            clock.after(within_s, lambda: self.node_lost(name, "node.lost"))
        clock.after(within_s * 0.5 if withdrawn else within_s + 150.0, lambda: self._notice_over(name))

    def _notice_over(self, name: str) -> None:
        control = self.world.control
        if not control.is_up:
            self.world.clock.after(1.0, lambda: self._notice_over(name))
        elif not control.ended:
            control.accept(NodeUncordoned(at=control.now(), node=name, withdrawn=True))

    def profile_asked(self) -> None:
        control = self.world.control
        if control.is_up and not control.ended:
            self._did("profile.asked", "a profile is asked for")
            control.accept(ProfileAsked(at=control.now(), because="a person asked"))

    def _did(self, site: str, what: str) -> None:
        self.world.hit(site)
        self.done.append(what)
        self.world.note("fault", what)

    def _any_node(self) -> VirtualNode:
        return self.world.nodes[self.dice.choice(sorted(self.world.nodes))]

    def _any_worker(self) -> Worker | None:
        alive = [worker for _, node in sorted(self.world.nodes.items()) for _, worker in sorted(node.workers.items()) if worker.rank not in node.unkillable]
        return self.dice.choice(alive) if alive else None


_DEATHS: tuple[tuple[str, ExitKind, dict[str, str | int]], ...] = (
    ("worker.killed", ExitKind.SIGNAL, {"signal": 9}),
    ("worker.crashes", ExitKind.SIGNAL, {"signal": 11}),
    ("worker.out_of_memory", ExitKind.OUT_OF_MEMORY, {"signal": 9}),
    ("worker.raises", ExitKind.EXCEPTION, {"code": 1, "exception": "OSError", "message": "no space left on device"}),
    ("worker.exits", ExitKind.CODE, {"code": 3}),
)
