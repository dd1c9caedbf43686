"""The newest checkpoint of a job, as it lies on the disk, and which steps are in none: what is gone on from, and what would be done again."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.found import newest_complete
from holdfast.domain.state import State
from holdfast.launch.layout import JobDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    step: int  # Of the newest complete checkpoint; -1: there is none.
    reached: int  # The last step that was finished.
    ended: bool  # A job that runs will save the rest.

    @property
    def unsaved(self) -> tuple[int, int] | None:
        """The first and the last step that are in no checkpoint."""
        return (max(self.step, 0) + 1, self.reached) if self.ended and self.reached > max(self.step, 0) else None

    def __str__(self) -> str:
        newest = f"the newest checkpoint is step {self.step:,}" if self.step >= 0 else "nothing is saved"
        if self.unsaved is None:
            return newest
        first, last = self.unsaved
        return f"{newest}; {f'steps {first:,} to {last:,} are' if last > first else f'step {last:,} is'} in no checkpoint"

    def as_json(self) -> dict[str, object]:
        return {"checkpoint_step": self.step if self.step >= 0 else None, "steps_in_no_checkpoint": list(self.unsaved) if self.unsaved else None}


def newest_of(directory: JobDirectory, state: State) -> Newest | None:
    """None where nothing says how far the script is: it does not save through us either."""
    found = newest_complete(directory.checkpoints)
    reached = state.step if state.step >= 0 else state.step_best
    if found is None and reached < 0:
        return None
    return Newest(step=found.step if found is not None else -1, reached=reached, ended=state.outcome is not None)


def saved_until(directory: JobDirectory) -> str:
    """For a job whose end nobody wrote down."""
    found = newest_complete(directory.checkpoints)
    return f"the newest checkpoint is step {found.step:,}, and what came after it is in no checkpoint" if found is not None else "nothing is saved"
