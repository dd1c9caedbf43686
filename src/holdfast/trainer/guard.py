"""guard: the one call that puts a training script under Holdfast's protection.

It names what must survive, restores it and returns the `Run` that the loop goes through. What that takes is imported when it is called: who imports a training
script to look at it, and every worker of a data loader, has no use for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.trainer.run import Run


def guard(
    *, save_every: int | None = None, checkpoints: str | PathLike[str] | None = None, keep: int | Mapping[str, Any] = 3, new: Collection[str] = (),
    dropped: Collection[str] = (), **pieces: Any,
) -> Run:  # fmt: skip
    """Restore `pieces` and return the run that keeps them safe.

    Every keyword besides the five named is a piece of state. `save_every` counts optimizer steps; 0 saves only at a stop, at the end and when asked.
    Left out, Holdfast finds out how often is best, and says why; without Holdfast around it, it is 100.
    `keep` is how many of the newest checkpoints stay, two at least; or rules of which any may want one to stay: `{"last": 3, "every": 1000, "best": 2,
    "metric": "loss", "older_s": 7200}` (`"-accuracy"`: the highest).
    `new` names pieces that the checkpoint may lack: they start from what the script made. `dropped` names those that it may hold and that are forgotten.
    Raises UserError for a piece that cannot be saved, CheckpointMismatch when the checkpoint is of another shape, and CheckpointCorrupt when it is
    damaged; under `holdfast run` a damaged one ends the worker with code 76, and an older one is tried.
    """
    from holdfast.trainer.beginning import begin

    return begin(save_every=save_every, checkpoints=checkpoints, keep=keep, new=new, dropped=dropped, pieces=pieces)
