"""Saves: when a run writes a checkpoint, where, and what is said when it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.pieces import Pieces
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.write import save
from holdfast.trainer.say import Say


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """Where checkpoints go and how often. `every` 0 means: only when asked, at a graceful stop, and when the loop ends."""

    checkpoints: Path
    every: int
    generation: int
    rank: int
    world_size: int
    retention: Retention


class Saves:
    """One rank's saves. A failed one costs a line in the log, never the run."""

    def __init__(self, plan: SavePlan | None, pieces: Pieces, say: Say, *, saved_step: int) -> None:
        self._plan, self._pieces, self._say = plan, pieces, say
        self.saved_step = saved_step
        self.asked = False
        self._failing = False

    def due(self, step: int) -> bool:
        if self._plan is None or step == self.saved_step:
            return False
        return self.asked or (self._plan.every > 0 and step % self._plan.every == 0)

    def wanted_at_end(self, step: int) -> bool:
        return self._plan is not None and step != max(self.saved_step, 0)

    def save(self, step: int, progress: Mapping[str, Any]) -> bool:
        """Make `step` durable on this rank; False when that failed, which is said when it begins and when it ends."""
        plan = self._plan
        assert plan is not None, "save without a plan: ask due() first"
        self.asked = False
        shard = Shard(step=step, generation=plan.generation, world_size=plan.world_size, rank=plan.rank)
        try:
            save(plan.checkpoints, shard, self._pieces, progress, plan.retention)
        except Exception as error:  # Whatever it was, the run is worth more than the checkpoint.
            self._tell_failed(step, plan.checkpoints, error)
            return False
        if self._failing:
            self._say.line(f"saving works again: step {step} is durable.")
        self._failing, self.saved_step = False, step
        return True

    def describe(self) -> str:
        if self._plan is None:
            return "nothing is saved, as there is no directory for it"
        return f"step {self.saved_step} is saved" if self.saved_step >= 0 else "nothing could be saved"

    def _tell_failed(self, step: int, checkpoints: Path, error: Exception) -> None:
        if not self._failing:
            newest = f"the newest one of this rank is step {self.saved_step}" if self.saved_step >= 0 else "there is none yet"
            self._say.line(
                f"step {step} could not be saved in {checkpoints}: {error}. Training goes on, older checkpoints are kept ({newest}), and the next save "
                "is tried as planned. Make room, or make the directory writable."
            )
        self._failing = True
