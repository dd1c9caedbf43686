"""What can go wrong with a checkpoint, told apart by what helps.

    CheckpointCorrupt      this one cannot be trusted; an older one may do      a worker under Holdfast leaves with code 76
    CheckpointMismatch     the script and the checkpoint do not fit together    no other checkpoint helps; raised into the script
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.checkpoint.layout import Chunk


class CheckpointCorrupt(HoldfastError):
    """What lies on the disk is not what was written: control may go back to the next older checkpoint."""

    exit_code: ClassVar[int] = 76

    def __init__(self, message: str, chunk: Chunk | None = None) -> None:
        super().__init__(message)
        self.chunk = chunk  # The one that is damaged, where it is one.


class CheckpointMismatch(HoldfastError):
    """The checkpoint is sound, but was written by a run of another shape."""
