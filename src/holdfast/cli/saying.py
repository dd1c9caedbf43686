"""What a person says to a running job: `holdfast approve`, `veto`, `nodes`, `cordon`, `uncordon`, `drain`, `check` and `undo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.common import AsJson, Name, NameOrNewest, State, print_json
from holdfast.settings import state_root

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name, as `holdfast nodes` lists it.")]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever asks later.")]


def approve(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """Let the plan be carried out that waits for it (`holdfast run --policy ask`, or `advise`)."""
    _say_to(job, "approve", state, as_json=as_json)


def veto(
    job: Name,
    instead: Annotated[
        str, typer.Option(metavar="RUNG", help="Do this instead: respawn, replace, shrink, replay, skip, …", show_default="stop, ready to be resumed")
    ] = "",
    because: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever reads the story later.")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Forbid the plan that waits."""
    _say_to(job, "veto", state, instead=instead, because=because, as_json=as_json)


def nodes(job: NameOrNewest = "", state: State = None, as_json: AsJson = False) -> None:
    """List the nodes of a job: which are in the gang, which are spare, which are not used and why."""
    from holdfast.cli import operating
    from holdfast.cli.job import known_job, state_of
    from holdfast.cli.screen import Screen

    seen = state_of(known_job(state_root(state), job, newest=True))
    print_json(operating.nodes_json(seen)) if as_json else Screen().print(operating.nodes_table(seen))


def cordon(job: Name, node: NodeName, because: Why = "", state: State = None, as_json: AsJson = False) -> None:
    """Give a node no ranks of a new generation. What runs there runs on."""
    _say_to(job, "cordon", state, node=node, because=because, as_json=as_json)


def uncordon(job: Name, node: NodeName, state: State = None, as_json: AsJson = False) -> None:
    """Use a node again that was cordoned or drained."""
    _say_to(job, "uncordon", state, node=node, as_json=as_json)


def drain(job: Name, node: NodeName, because: Why = "", state: State = None, as_json: AsJson = False) -> None:
    """Cordon a node, and have the gang leave it at the next save: for a spare, or with fewer nodes."""
    _say_to(job, "drain", state, node=node, because=because, as_json=as_json)


def check(job: Name, node: NodeName, state: State = None, as_json: AsJson = False) -> None:
    """Check a node that is not in the gang, by itself and with idle nodes: returned, or retired. `holdfast nodes` says what came of it."""
    _say_to(job, "check", state, node=node, as_json=as_json)


def undo(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """Take back what was changed about training because it went wrong, from the next save on. `holdfast show` says what that is."""
    _say_to(job, "undo", state, as_json=as_json)


def _say_to(job: str, what: str, root: Path | None, *, node: str = "", instead: str = "", because: str = "", as_json: bool) -> None:
    from holdfast.cli.job import known_job
    from holdfast.cli.operating import say

    directory = known_job(state_root(root), job)
    job, says = directory.job, say(directory, what, node=node, instead=instead, because=because)
    print_json({"job": job, "says": says}) if as_json else print(f"{job}: {says}")
