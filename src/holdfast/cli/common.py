"""What many commands take, and how they answer."""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.live import Live

State = Annotated[Path | None, typer.Option("--state", help="Where jobs are kept.", show_default="$HOLDFAST_STATE, or holdfast in the XDG state directory")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
SharedAs = Annotated[
    Path | None, typer.Option("--accounts", metavar="FILE", help="With a trace: accounts and policy as in this cluster file.", show_default="all equal")
]
NODES_MAX = 100_000  # Of a cluster that is simulated, or looked at in a file,
NODE_GPUS_MAX = 4_096  # and GPUs, or cores, of one of them: rooms are kept by how many are free.
_NAME = "The job's name, as `holdfast ps` lists it, or the beginning of it."
Name = Annotated[str, typer.Argument(metavar="JOB", help=_NAME)]
NameOrNewest = Annotated[str, typer.Argument(metavar="[JOB]", help=_NAME, show_default="the newest")]  # For what only looks.


def number(*names: str, **said: Any) -> Any:
    """An option that takes a number."""
    return typer.Option(*names, callback=_finite, **said)


def _finite(option: typer.CallbackParam, value: float | None) -> float | None:
    """NaN and infinity pass whatever least and most an option has, and what is kept of them in a file is null."""
    if value is not None and not isfinite(value):
        raise UserError(f"{option.opts[0]} is a number, such as 1.5, not {value}")
    return value


def live_view(*, as_json: bool) -> Live:
    from holdfast.cli.live import Live, mode_for

    return Live(sys.stdout.buffer, sys.stderr, mode=mode_for(sys.stdout.buffer, as_json=as_json))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
