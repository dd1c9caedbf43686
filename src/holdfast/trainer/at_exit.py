"""At exit: a loop whose iterator was kept (`next(it)`, a progress bar in a variable) is left when the process ends. This is the last moment to save."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from holdfast.trainer.run import Run

_runs: WeakSet[Run] = WeakSet()


def add(run: Run) -> None:
    """This run has a loop under way."""
    if not _runs:
        atexit.unregister(_leave)
        atexit.register(_leave)  # The last to be registered is the first to be called: torch still works.
    _runs.add(run)


def _leave() -> None:
    """With an error that nobody caught nothing is waited for: what failed is to be started again at once."""
    for run in tuple(_runs):
        run.leave()
        if getattr(sys, "last_value", None) is None:
            run.see_that_others_saved()
