"""What many commands take, and how they answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from holdfast.cli.live import Live

State = Annotated[Path | None, typer.Option("--state", help="Where jobs are kept.", show_default="$HOLDFAST_STATE, or holdfast in the XDG state directory")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
SharedAs = Annotated[
    Path | None, typer.Option("--accounts", metavar="FILE", help="With a trace: accounts and policy as in this cluster file.", show_default="all equal")
]
NODES_MAX = 100_000  # Of a cluster that is simulated, or looked at in a file,
NODE_GPUS_MAX = 4_096  # and GPUs, or cores, of one of them: rooms are kept by how many are free.
Name = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `holdfast ps` lists it.")]


def live_view(*, as_json: bool) -> Live:
    from holdfast.cli.live import Live, mode_for

    return Live(sys.stdout.buffer, sys.stderr, mode=mode_for(sys.stdout.buffer, as_json=as_json))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
