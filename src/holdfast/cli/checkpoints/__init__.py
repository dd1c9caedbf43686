"""`holdfast checkpoint`: what lies in a directory of checkpoints, whether it is sound, what may go, and how it gets there and away.

All but export, import and the values of diff need no torch: what a checkpoint holds is in its notes, which are JSON.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from holdfast.cli.checkpoints.diff import diff
from holdfast.cli.checkpoints.exchange import export, import_, upload
from holdfast.cli.checkpoints.listing import list_
from holdfast.cli.checkpoints.place import scratch
from holdfast.cli.checkpoints.prune import prune_
from holdfast.cli.checkpoints.show import show
from holdfast.cli.checkpoints.verify import verify
from holdfast.errors import HoldfastError

_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_,
    "show": show,
    "verify": verify,
    "prune": prune_,
    "diff": diff,
    "export": export,
    "import": import_,
    "upload": upload,
}


def _told(body: Callable[..., None]) -> Callable[..., None]:
    """The disk may fail in any of them: that is said in a sentence. A pipe that nobody reads any more is not the disk."""

    @functools.wraps(body)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            with scratch():
                body(*args, **kwargs)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise HoldfastError(f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}.") from error

    return told


app = typer.Typer()
for _name, _body in _COMMANDS.items():
    app.command(_name)(_told(_body))
