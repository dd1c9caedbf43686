"""Saves: when a run writes a checkpoint, where, and what is said when it cannot."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from holdfast.checkpoint.commit import Shard, mark_failed
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import newest_complete
from holdfast.checkpoint.layout import MANIFEST, directory_name, receipt_file
from holdfast.checkpoint.pieces import Pieces
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.write import save, sections_of
from holdfast.domain.gauges import FAILED_STEPS
from holdfast.trainer.every import Every
from holdfast.trainer.numbers import gpu_is_done
from holdfast.trainer.say import Say
from holdfast.trainer.snapshots import Snapshots

SETTLE_S = 20.0  # A disk that needs longer for what is in memory is hung, and the process should leave: it has 30 s by default.
_RECENT = 8  # Saves that say what a save costs.
_GPU_S = 5.0  # A GPU that waits for a rank which is gone never comes back.
_OTHERS_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """Where checkpoints go and how often at first. `every` 0 means: only when asked, at a graceful stop, and when the loop ends."""

    checkpoints: Path
    every: int
    generation: int
    rank: int
    world_size: int
    retention: Retention
    keep_shared: bool = False  # In memory, for the ranks of this node.
    job: str = ""


class Saves:
    """One rank's saves. A failed one costs a line in the log, never the run.

    With `snapshots` a save is a copy in memory, and the agent makes it durable meanwhile; `look` takes note when it has. The last one before the process leaves
    is waited for.
    """

    def __init__(
        self, plan: SavePlan | None, pieces: Pieces, say: Say, *, saved_step: int, snapshots: Snapshots | None = None, record: memoryview | None = None
    ) -> None:  # fmt: skip
        self._plan, self._pieces, self._say, self._snapshots = plan, pieces, say, snapshots
        self._every = Every(plan.every, record, generation=plan.generation) if plan else Every(0)
        self._stalls: deque[float] = deque(maxlen=_RECENT)
        self._taken = 0
        self.saved_step = self.taken_step = saved_step
        self.asked = False
        self._failing = False
        self._told_failed = -1
        self._left_step = -1  # Saved when the loop was left before its end.
        self.skipped = 0
        self.failed = 0  # Of the saves that were written here, for the gauge `SAVE_FAILED`.
        self.compared: tuple[int, ...] = ()  # Steps at which the replicas were.

    def prepare(self, step: int) -> None:
        """After the first step of a process, when the optimizer has its state: see that there is memory for snapshots."""
        plan, snapshots = self._plan, self._snapshots
        if plan is not None and snapshots is not None:
            shard = Shard(step=step, generation=plan.generation, world_size=plan.world_size, rank=plan.rank)
            snapshots.prepare(sections_of(shard, self._pieces, {}, keep_shared=plan.keep_shared))

    def due(self, step: int) -> bool:
        if self._plan is None:
            return False
        every = self._every.at(step)
        if self._every.late:
            self._give_up(self._plan, self._every.late)
        return step != self.taken_step and (self.asked or (every > 0 and step % every == 0))

    def _give_up(self, plan: SavePlan, steps: tuple[int, ...]) -> None:
        """What only some ranks have saved will never be complete. As long as nobody says so their memory waits for the others."""
        self._every.late = ()
        for step in steps:
            try:
                mark_failed(Disk(), plan.checkpoints, Shard(step=step, generation=plan.generation, world_size=plan.world_size, rank=plan.rank))
            except OSError as error:
                self._say.once("give up", f"step {step} will never be complete, and that could not be said in {plan.checkpoints}: {error}")

    @property
    def every(self) -> int:
        """Steps from one save to the next; -1 when nothing is saved."""
        return self._every.steps if self._plan is not None else -1

    def took(self, seconds: float) -> None:
        """A save held training up for so long."""
        self._taken += 1
        if self._taken == 2:
            self._stalls.clear()  # The first of a process may have had to find its memory.
        self._stalls.append(seconds)

    @property
    def stall_s(self) -> float:
        """What a save costs training, by the last few; not a number before the first."""
        return sum(self._stalls) / len(self._stalls) if self._stalls else nan

    def take_off(self) -> None:
        """Leave the optimizers as they were."""
        if self._snapshots is not None:
            self._snapshots.take_off()

    def wanted_at_end(self, step: int) -> bool:
        return self._plan is not None and step != max(self.saved_step, 0)

    def look(self) -> None:
        """Take note of what the agent has made durable, or could not."""
        if self._snapshots is None or self.taken_step == self.saved_step:
            return
        assert self._plan is not None, "nothing is taken without a plan"
        if self._snapshots.durable > self.saved_step:
            self._tell_durable(self._snapshots.durable)
        if self._snapshots.failed > max(self.saved_step, self._told_failed):
            self._told_failed = self._snapshots.failed
            unknown = "the agent could not write it, and its log (logs/node-*.log of the job) says why"
            errno = self._snapshots.errno
            self._tell_failed(self._snapshots.failed, self._plan.checkpoints, os.strerror(errno) if errno else unknown)

    def save(self, step: int, progress: Mapping[str, Any], numbers: Mapping[str, float], *, last: bool) -> None:
        """Save `step`: durable on this rank when this returns if it is the `last` one or nobody else makes it so."""
        plan = self._plan
        assert plan is not None, "save without a plan: ask due() first"
        self.asked = False
        shard = Shard(step=step, generation=plan.generation, world_size=plan.world_size, rank=plan.rank, job=plan.job, at=time(), numbers=finite(numbers))
        lost = not isfinite(numbers.get("loss", 0.0))
        retention = replace(plan.retention, hold=lost, compared=self.compared)
        try:
            if lost and not last:
                self._pass_over(plan, shard)
                return
            if self._snapshots is not None and not last:
                self._take(self._snapshots, plan, shard, progress, retention)
                return
            settled = self._snapshots is None or self._snapshots.settle(within_s=SETTLE_S)
            self.look()
            if self.saved_step == step:
                return
            save(plan.checkpoints, shard, self._pieces, progress, retention, refer=settled)
        except Exception as error:  # Whatever it was, the run is worth more than the checkpoint.
            self.failed = step * FAILED_STEPS + (error.errno or 0 if isinstance(error, OSError) else 0)
            self._tell_failed(step, plan.checkpoints, error)
            return
        self.failed, self.taken_step = 0, step
        self._tell_durable(step)

    def save_what_was_left(self, step: int, progress: Mapping[str, Any], numbers: Mapping[str, float], *, last: bool = False) -> None:
        """Save `step`, of a loop that was left before its end. The process may be about to die of an error: a copy in memory is quick, and outlives it."""
        snapshots = self._snapshots
        assert self._plan is not None, "save without a plan"
        if not gpu_is_done(within_s=_GPU_S):
            self._tell_failed(step, self._plan.checkpoints, f"the GPU did not finish its work within {_GPU_S:g} s")
            return
        self.save(step, progress, numbers, last=last or snapshots is None or not snapshots.has_room(step))
        if snapshots is not None:
            snapshots.wait_for_copy(within_s=SETTLE_S)
        self._left_step = step

    def say_lost(self, last: int, because: str) -> None:
        """Say which steps up to `last` are in no checkpoint, if any is."""
        newest = max(self.saved_step, self.taken_step if self.taken_step > self._told_failed else 0, 0)
        if last > newest:
            steps = f"steps {newest + 1} to {last} are" if last > newest + 1 else f"step {last} is"
            there = f"The newest one is of step {newest}" if newest else "There is none"
            self._say.line(f"the loop was left before its end, and {steps} in no checkpoint: {because}. {there}. To have the last step saved, leave the loop "
                           "before or after all the work of a step, or let run.steps come to its end.")  # fmt: skip

    def see_that_others_saved(self) -> None:
        """What this rank saved when its loop was left is a checkpoint if the others have left theirs after the same step. They are given a moment."""
        plan, step = self._plan, self._left_step
        if plan is None or step < 0 or plan.world_size == 1:
            return
        deadline = monotonic() + _OTHERS_S
        path = plan.checkpoints / directory_name(step, plan.generation)
        missing: list[int] = []
        while monotonic() < deadline:
            memory = self._snapshots.ranks_with(step) if self._snapshots is not None else set()
            missing = [rank for rank in range(plan.world_size) if rank not in memory and not (path / receipt_file(rank)).exists()]
            if not missing or (path / MANIFEST).exists():
                return
            sleep(0.02)
        ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        newest = newest_complete(plan.checkpoints)
        first = newest.step + 1 if newest is not None else 1
        steps = f"steps {first} to {step} are" if step > first else f"step {step} is"
        self._say.line(f"{steps} in no checkpoint yet: {ranks} had not saved step {step} when this rank ended, {_OTHERS_S:g} s after it had.")

    def _pass_over(self, plan: SavePlan, shard: Shard) -> None:
        """A state with such a loss is worth nothing, and an older one that is would be removed for it."""
        self._say.once("lost", f"step {shard.step} is not saved: its loss is not a finite number. Older checkpoints are kept.")
        if plan.world_size > 1:
            mark_failed(Disk(), plan.checkpoints, shard)

    def _take(self, snapshots: Snapshots, plan: SavePlan, shard: Shard, progress: Mapping[str, Any], retention: Retention) -> None:
        try:
            sections = sections_of(shard, self._pieces, progress, keep_shared=plan.keep_shared)
            taken = snapshots.take(shard, plan.checkpoints, retention, sections)
        except OSError as error:
            self._say.once("memory", f"there is no memory for a snapshot ({error}): from now on training waits for the disk when it saves.")
            self._snapshots = None
            self.save(shard.step, progress, shard.numbers, last=True)
            return
        if taken:
            self.taken_step = shard.step
        else:
            self.skipped += 1
            if plan.world_size > 1:
                mark_failed(Disk(), plan.checkpoints, shard)
            if self._failing:
                return  # Its cause was told: what could not be written waits in memory.
            self._say.once(
                "skipped",
                f"step {shard.step} was not saved: the disk is still busy with the two saves before it, or memory for the first is being made. Training "
                "goes on, and the next save is tried as planned; if this is said again and again, save less often or use a faster disk.",
            )

    def _tell_durable(self, step: int) -> None:
        if self._failing:
            self._say.line(f"saving works again: step {step} is durable.")
        self._failing, self.saved_step = False, step

    def describe(self) -> str:
        if self._plan is None:
            return "nothing is saved, as there is no directory for it"
        return f"step {self.saved_step} is saved" if self.saved_step >= 0 else "nothing could be saved"

    def _tell_failed(self, step: int, checkpoints: Path, error: Exception | str) -> None:
        if not self._failing:
            newest = f"the newest one of this rank is step {self.saved_step}" if self.saved_step >= 0 else "there is none yet"
            self._say.line(
                f"step {step} could not be saved in {checkpoints}: {error}. Training goes on, older checkpoints are kept ({newest}), and the newest "
                "save is tried again and again. Make room, or make the directory writable."
            )
        self._failing = True


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """What can be compared: a checkpoint whose loss is not a number is not the best by any rule."""
    return {name: value for name, value in sorted(numbers.items()) if isfinite(value)}
