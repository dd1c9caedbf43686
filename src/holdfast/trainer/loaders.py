"""Torch's data loaders, when a loop is left that waited for one: the storage may hold up their workers for as long as it likes, and nobody waits for them.

An iterator whose workers live through epochs may have been left in the middle of a message from them: it is ended, and its loader makes another one.

Is wrong    about a worker that the kernel cannot end (state D): it stays until its storage answers, and no longer holds anything that is used.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

_END_S: Final = 0.02  # All have been told when the first is waited for; torch itself waits 5 s for each.


@contextlib.contextmanager
def let_go() -> Iterator[None]:
    """Within, workers of an iterator that is let go of are given a moment and then ended."""
    settings: Any = sys.modules.get("torch.utils.data._utils")
    patience = getattr(settings, "MP_STATUS_CHECK_INTERVAL", None)
    if patience is None:  # No loader was ever made, or another torch does this otherwise.
        yield
        return
    settings.MP_STATUS_CHECK_INTERVAL = _END_S
    try:
        yield
    finally:
        settings.MP_STATUS_CHECK_INTERVAL = patience


def end_torn(error: BaseException) -> None:
    """End the iterators with persistent workers that the error came through. To be called within `let_go`."""
    torn: list[Any] = []
    frame = error.__traceback__
    while frame is not None:
        # Of no frame that lives on: to look at its variables makes a copy of them, and among them may be the error, with everything that it came through.
        own = frame.tb_frame.f_code.co_filename.endswith("dataloader.py")
        one: Any = frame.tb_frame.f_locals.get("self") if own else None
        if getattr(one, "_persistent_workers", False) and hasattr(one, "_shutdown_workers") and one not in torn:
            torn.append(one)
        frame = frame.tb_next
    for one in torn:
        one._shutdown_workers()
    if torn:
        kind: Any = sys.modules["torch.utils.data"].DataLoader
        for loader in gc.get_objects():
            if issubclass(type(loader), kind) and loader._iterator in torn:
                loader._iterator = None
