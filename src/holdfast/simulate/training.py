"""The job's own life: ranks that meet, restore, step, save and finish, or break.

One `Attempt` a generation. Its ranks move in step, as a real gang does: when one is gone the others fail with a lost connection, or wait for ever.
Checkpoints outlive everything; they are what a new generation starts from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.domain.exit import Exit, ExitKind

if TYPE_CHECKING:
    from holdfast.simulate.node import VirtualNode
    from holdfast.simulate.world import World


@dataclass(slots=True, kw_only=True)
class Worker:
    """One rank's process on one node."""

    rank: int
    generation: int
    effect: str
    node: VirtualNode
    hung: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    name: str
    step: int


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The ranks of one generation, together."""

    generation: int
    restore: str
    step_started: int
    store_port: int
    step: int
    ranks: dict[int, Worker] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    restored: bool = False
    broken: bool = False
    save_s: float = 0.0
    saved_step: int = -1
    not_finite: bool = False  # It restored NaN: so is every loss, and all that it saves.
    looks: set[tuple[int, int]] = field(default_factory=set)  # Control's life and the step, whenever control saw it after a step.


@dataclass(slots=True)
class Training:
    world: World
    steps_total: int
    step_s: float
    save_every: int
    guarded: bool  # Has our lines: it beats, and a stop is answered with its own code.
    failing_step: int = -1  # A step that fails each time it is tried.
    attempts: dict[int, Attempt] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)
    corrupt: set[str] = field(default_factory=set)
    poisoned: set[str] = field(default_factory=set)  # Checkpoints that hold NaN.
    completed: bool = False  # All ranks of one generation ran to the end.

    def newest(self, distrusted: tuple[str, ...]) -> Saved | None:
        found = [one for one in self.saved if one.name not in distrusted]
        return max(found, key=lambda one: one.step, default=None)

    def joined(self, worker: Worker, restore: str, store_port: int) -> None:
        """A rank is up. When all are, they meet at the store."""
        world = self.world
        attempt = self.attempts.get(worker.generation)
        if attempt is None:
            step = next((one.step for one in self.saved if one.name == restore), 0)
            attempt = Attempt(
                generation=worker.generation, restore=restore, step_started=step, store_port=store_port, step=step, not_finite=restore in self.poisoned
            )  # fmt: skip
            self.attempts[worker.generation] = attempt
        assert attempt.restore == restore, f"generation {worker.generation} restores {attempt.restore!r} on one node and {restore!r} on another"
        assert attempt.store_port == store_port, f"generation {worker.generation} meets at two stores"
        attempt.ranks[worker.rank] = worker
        if attempt.broken:
            self._lose_touch(attempt, worker)
        elif len(attempt.ranks) == world.spec.world_size:
            world.clock.after(world.dice.uniform(0.05, 1.0), lambda: self._met(attempt))

    def left(self, worker: Worker, kind: ExitKind) -> None:
        """A rank is gone: if it did not finish, the others lose touch."""
        attempt = self.attempts[worker.generation]
        if kind is ExitKind.FINISHED:
            attempt.finished.add(worker.rank)
            self.completed = self.completed or (len(attempt.finished) == self.world.spec.world_size and attempt.step >= self.steps_total)
        elif not attempt.broken:
            attempt.broken = True
            for other in list(attempt.ranks.values()):
                self._lose_touch(attempt, other)

    def hang(self, worker: Worker, kind: str) -> None:
        """A rank gets nowhere, and all others wait for it. Only its own node can tell."""
        self.attempts[worker.generation].broken = True
        worker.hung = True
        self.world.clock.after(self.world.dice.uniform(3.0, 30.0), lambda: worker.node.found_silent(worker, kind))

    def _lose_touch(self, attempt: Attempt, worker: Worker) -> None:
        dice = self.world.dice
        if dice.random() < 0.8:
            self.world.clock.after(dice.uniform(0.001, 1.0), lambda: self._echo(attempt, worker))
        else:
            self.hang(worker, "silent_rank")

    def _echo(self, attempt: Attempt, worker: Worker) -> None:
        if not worker.hung:
            message = "Connection closed by peer [127.0.0.1]:29500"
            self._exit(worker, attempt, ExitKind.EXCEPTION, code=1, exception="RuntimeError", message=message, fingerprint="lost-peer")

    def _met(self, attempt: Attempt) -> None:
        world = self.world
        if attempt.broken:
            return
        if not world.has_store(attempt.generation, attempt.store_port):
            attempt.broken = True
            for worker in list(attempt.ranks.values()):
                self._lose_touch(attempt, worker)
        elif attempt.restore in self.corrupt and self.guarded:
            rank = world.dice.choice(sorted(attempt.ranks))
            self._exit(attempt.ranks[rank], attempt, ExitKind.CODE, code=76)
        else:
            attempt.restored = True
            world.clock.after(0.0, lambda: world.control.readings(attempt))
            world.clock.after(self.step_s, lambda: self._step(attempt))

    def _step(self, attempt: Attempt) -> None:
        world = self.world
        if attempt.broken:
            return
        if attempt.step + 1 == self.failing_step:
            rank = self.failing_step % world.spec.world_size
            self._exit(attempt.ranks[rank], attempt, ExitKind.EXCEPTION, code=1, exception="ValueError", message="bad sample", fingerprint="failing")
            return
        attempt.step += 1
        if attempt.step % self.save_every == 0:
            self._save(attempt)
        world.clock.after(0.0, lambda: world.control.readings(attempt))
        if attempt.step < self.steps_total:
            world.clock.after(self.step_s, lambda: self._step(attempt))
            return
        for worker in list(attempt.ranks.values()):
            world.clock.after(world.dice.uniform(0.0, 0.5), lambda worker=worker: self._exit(worker, attempt, ExitKind.FINISHED, code=0))  # type: ignore[misc]

    def _save(self, attempt: Attempt) -> None:
        attempt.saved_step = attempt.step
        attempt.save_s += 0.1 * self.step_s
        name = f"step-{attempt.step}-{attempt.generation}"
        self.saved.append(Saved(name=name, step=attempt.step))
        if attempt.not_finite:
            self.poisoned.add(name)

    def _exit(self, worker: Worker, attempt: Attempt, kind: ExitKind, **known: str | int) -> None:
        step = attempt.step if self.guarded else -1
        because = f"rank {worker.rank} left: {kind}"
        worker.node.leave(worker, Exit(rank=worker.rank, pid=1, kind=kind, because=because, step=step, at_ns=self.world.now_ns(), **known))  # type: ignore[arg-type]
