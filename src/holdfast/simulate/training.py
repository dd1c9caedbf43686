"""The job's own life: ranks that meet, restore, step, save and finish, or break.

One `Attempt` a generation. Its ranks move in step, as a real gang does: when one is gone the others fail with a lost connection, or wait for ever.
Checkpoints outlive everything; they are what a new generation starts from. One is whole when every node has written its part, which takes each its time.

What is learned is a number that depends on every batch and on their order, as weights do. So a batch that was left out, or used twice, shows in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.mesh import NAMES

if TYPE_CHECKING:
    from holdfast.simulate.node import VirtualNode
    from holdfast.simulate.world import World

HELD_S = 10.0  # So long a rank that rejoins holds back that it has lost a peer.
_DIGITS = (1 << 61) - 1
CORRUPT_CODE = 76  # What a worker leaves with when what it restores is damaged, or not there.


def learned(weights: int, batch: int) -> int:
    """The weights after one more batch."""
    return (weights * 1_000_003 + batch + 1) % _DIGITS


@dataclass(slots=True, kw_only=True)
class Worker:
    """One rank's process on one node."""

    rank: int
    generation: int
    effect: str
    node: VirtualNode
    hung: bool = False
    waits: int | None = None  # It has left a broken gang, with this step whole, and waits for its place; -1: with none.


@dataclass(slots=True, kw_only=True)
class Saved:
    name: str
    step: int
    position: int  # The next batch.
    weights: int
    missing: set[str]  # Nodes whose part is not written yet.
    whole: bool = False


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The ranks of one generation, together."""

    generation: int
    restore: str
    step_started: int
    store_port: int
    step: int
    position: int
    weights: int
    world_size: int = 1
    ranks: dict[int, Worker] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    restored: bool = False
    broken: bool = False
    save_s: float = 0.0
    saved_step: int = -1
    saved_at: int = -1  # The last step of which a save was begun.
    kept_of: int = 0  # The generation whose survivors it began with.
    not_finite: bool = False  # It restored NaN: so is every loss, and all that it saves.
    looks: set[tuple[int, int]] = field(default_factory=set)  # Control's life and the step, whenever control saw it after a step.


@dataclass(slots=True)
class Training:
    world: World
    steps_total: int
    step_s: float
    save_every: int
    guarded: bool  # Has our lines: it beats, and a stop is answered with its own code.
    rejoins: bool = False  # Its ranks can leave a broken gang and join the next one.
    sharded: bool = False  # And hold nothing then that they could give: each has a part that no other has.
    split: str = ""  # How its ranks are laid out where each node holds one of two parts of the state; empty: each rank holds all of it.
    failing_step: int = -1  # A step that fails each time it is tried.
    attempts: dict[int, Attempt] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    poisoned: set[str] = field(default_factory=set)  # Checkpoints that hold NaN.
    completed: Attempt | None = None  # The one of which all ranks ran to the end.
    best: int = 0  # The furthest step that any gang finished.

    def newest(self, distrusted: tuple[str, ...]) -> Saved | None:
        found = [one for one in self.saved.values() if one.whole and one.name not in distrusted]
        return max(found, key=lambda one: one.step, default=None)

    def part(self, rank: int, world_size: int) -> int:
        """Which of the two parts a rank of such a gang holds."""
        place, places = rank // self.world.spec.ranks_per_node, world_size // self.world.spec.ranks_per_node
        return place % 2 if self.split.startswith("dp") or places % 2 else place // (places // 2)

    def _tell_mesh(self, attempt: Attempt) -> None:
        """Each rank knows what it holds: its part, and of that the share of its own on its node."""
        each = self.world.spec.ranks_per_node
        sizes = [(name, int(size)) for name, size in (one.split("=") for one in self.split.split(","))]
        sizes = [(name, attempt.world_size // (2 * each) if name == "dp" else size) for name, size in sizes]
        dimensions = tuple((name, size, NAMES[name][1]) for name, size in sizes)
        for node in {worker.node.name: worker.node for worker in attempt.ranks.values()}.values():
            ranks = [worker.rank for worker in attempt.ranks.values() if worker.node is node]
            node.tell_mesh(attempt.generation, {str(rank): self.part(rank, attempt.world_size) * each + rank % each for rank in ranks}, dimensions)

    def joined(self, worker: Worker, restore: str, store_port: int, world_size: int, kept_of: int = 0) -> None:
        """A rank is up. When all are, they meet at the store."""
        world = self.world
        attempt = self.attempts.get(worker.generation)
        if attempt is None:
            attempt = self.attempts[worker.generation] = self._begun(worker.generation, restore, store_port, kept_of)
            attempt.world_size = world_size
        assert attempt.restore == restore, f"generation {worker.generation} restores {attempt.restore!r} on one node and {restore!r} on another"
        assert attempt.world_size == world_size, f"generation {worker.generation} has {attempt.world_size} ranks on one node and {world_size} on another"
        assert attempt.store_port == store_port, f"generation {worker.generation} meets at two stores"
        attempt.ranks[worker.rank] = worker
        if world.faults.strikes("worker.dies_starting", 0.001):
            fingerprint = f"start-{worker.generation}-{worker.rank}"
            world.clock.after(0.01, lambda: self._exit(worker, attempt, ExitKind.SIGNAL, signal=9, fingerprint=fingerprint))
        if attempt.broken:
            self._lose_touch(attempt, worker)
        elif len(attempt.ranks) == attempt.world_size:
            world.clock.after(world.dice.uniform(0.05, 1.0), lambda: self._met(attempt))

    def left(self, worker: Worker, kind: ExitKind) -> None:
        """A rank is gone: if it did not finish, the others lose touch."""
        attempt = self.attempts[worker.generation]
        if kind is ExitKind.FINISHED:
            attempt.finished.add(worker.rank)
            if len(attempt.finished) == attempt.world_size and attempt.step >= self.steps_total:
                self.completed = attempt
        elif not attempt.broken:
            attempt.broken = True
            for other in list(attempt.ranks.values()):
                self._lose_touch(attempt, other)

    def hang(self, worker: Worker, kind: str) -> None:
        """A rank gets nowhere, and all others wait for it. Only its own node can tell."""
        self.attempts[worker.generation].broken = True
        worker.hung = True
        self.world.clock.after(self.world.dice.uniform(3.0, 30.0), lambda: worker.node.found_silent(worker, kind))

    def _begun(self, generation: int, restore: str, store_port: int, kept_of: int) -> Attempt:
        if kept_of:
            one = self.attempts[kept_of]  # What its survivors hold.
            return Attempt(
                generation=generation, restore="", step_started=one.step, store_port=store_port, step=one.step, position=one.position, weights=one.weights,
                not_finite=one.not_finite, kept_of=kept_of,
            )  # fmt: skip
        if not restore:
            return Attempt(generation=generation, restore="", step_started=0, store_port=store_port, step=0, position=0, weights=0)
        saved = self.saved[restore]
        return Attempt(
            generation=generation, restore=restore, step_started=saved.step, store_port=store_port, step=saved.step, position=saved.position,
            weights=saved.weights, not_finite=restore in self.poisoned,
        )  # fmt: skip

    def _lose_touch(self, attempt: Attempt, worker: Worker) -> None:
        dice = self.world.dice
        if dice.random() < 0.9:
            held_s = HELD_S if self.rejoins else 0.0  # It waits to be told to part.
            self.world.clock.after(held_s + dice.uniform(0.001, 1.0), lambda: self._echo(attempt, worker))
        else:
            self.hang(worker, "silent_rank")

    def _echo(self, attempt: Attempt, worker: Worker) -> None:
        if not worker.hung and worker.waits is None:
            message = "Connection closed by peer [127.0.0.1]:29500"
            self._exit(worker, attempt, ExitKind.EXCEPTION, code=1, exception="RuntimeError", message=message, fingerprint="lost-peer")

    def _met(self, attempt: Attempt) -> None:
        world = self.world
        if attempt.broken:
            return
        if attempt.restore and world.faults.strikes("checkpoint.lost_when_restored", 0.01):
            self.corrupt.add(attempt.restore)
        if not world.has_store(attempt.generation, attempt.store_port):
            attempt.broken = True
            for worker in list(attempt.ranks.values()):
                self._lose_touch(attempt, worker)
        elif attempt.restore in self.corrupt and self.guarded:
            rank = world.dice.choice(sorted(attempt.ranks))
            world.judge.corrupt(attempt.restore)
            self._exit(attempt.ranks[rank], attempt, ExitKind.CODE, code=CORRUPT_CODE)
        else:
            world.judge.restored(attempt)
            attempt.restored = True
            if self.split and self.guarded:
                self._tell_mesh(attempt)
            world.clock.after(0.0, lambda: world.control.readings(attempt))
            self._go_on(attempt)

    def _go_on(self, attempt: Attempt) -> None:
        """With the next step, or to the end: what was restored may be what the last step saved."""
        clock = self.world.clock
        if attempt.step < self.steps_total:
            # The global batch is the same on fewer ranks: a step takes as much longer.
            clock.after(self.step_s * self.world.spec.world_size / attempt.world_size, lambda: self._step(attempt))
            return
        for worker in list(attempt.ranks.values()):
            clock.after(self.world.dice.uniform(0.0, 0.5), lambda worker=worker: self._exit(worker, attempt, ExitKind.FINISHED, code=0))  # type: ignore[misc]

    def _step(self, attempt: Attempt) -> None:
        world = self.world
        if attempt.broken:
            return
        if attempt.step + 1 == self.failing_step:
            rank = self.failing_step % attempt.world_size
            world.hit("job.fails_at_a_step")
            self._exit(attempt.ranks[rank], attempt, ExitKind.EXCEPTION, code=1, exception="ValueError", message="bad sample", fingerprint="failing")
            return
        attempt.weights = learned(attempt.weights, attempt.position)
        attempt.position += 1
        attempt.step += 1
        self.best = max(self.best, attempt.step)
        if attempt.step % self.save_every == 0:
            self._save(attempt)
        world.clock.after(0.0, lambda: world.control.readings(attempt))
        self._go_on(attempt)

    # Saving.

    def save_at_stop(self, generation: int) -> None:
        """Ranks that are told to leave save together first, once."""
        attempt = self.attempts.get(generation)
        if attempt is not None and self.guarded and attempt.restored and not attempt.broken and attempt.step > max(attempt.saved_at, attempt.step_started):
            self._save(attempt)

    def _save(self, attempt: Attempt) -> None:
        """What is to be saved is copied at once; each node writes its part when its disk lets it."""
        attempt.save_s += 0.1 * self.step_s
        attempt.saved_at = attempt.step
        nodes = {worker.node.name: worker.node for worker in attempt.ranks.values()}
        name = f"step-{attempt.step}-{attempt.generation}"
        one = self.saved[name] = Saved(name=name, step=attempt.step, position=attempt.position, weights=attempt.weights, missing=set(nodes))
        if attempt.not_finite:
            self.poisoned.add(name)
        for node in nodes.values():
            takes_s = self.world.dice.uniform(0.01, 0.8) * self.step_s + node.disk_slow_s
            self.world.clock.after(takes_s, lambda node=node, disk=node.disk: self._part_written(attempt, one, node, lost=disk is not node.disk))  # type: ignore[misc]

    def _part_written(self, attempt: Attempt, one: Saved, node: VirtualNode, *, lost: bool) -> None:
        if lost:
            self.world.hit("checkpoint.part_lost")
            return
        one.missing.discard(node.name)
        if not one.whole and self._is_whole(one):
            one.whole = True
            attempt.saved_step = max(attempt.saved_step, one.step)
            if attempt.broken:
                self.world.hit("checkpoint.late")

    def _is_whole(self, one: Saved) -> bool:
        return not one.missing

    def _exit(self, worker: Worker, attempt: Attempt, kind: ExitKind, **known: str | int) -> None:
        step = attempt.step if self.guarded else -1
        because = f"rank {worker.rank} left: {kind}"
        worker.node.leave(worker, Exit(rank=worker.rank, pid=1, kind=kind, because=because, step=step, at_ns=worker.node.now_ns(), **known))  # type: ignore[arg-type]
