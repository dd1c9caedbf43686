"""What a person says to a running job: approve, veto, cordon, drain, uncordon; and `holdfast nodes`, which shows what came of it.

Control answers once it is written down: what was said survives a control that dies, and can be taken back.
"""

from __future__ import annotations

import asyncio
import getpass
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.job import is_held
from holdfast.cli.words import one_line, ranges
from holdfast.domain.state import State
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.membership import why_not_used
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import Agreed, OperatorSays, Refused

_WITHIN_S: Final = 15.0


def say(directory: JobDirectory, what: str, *, node: str = "", instead: str = "", because: str = "") -> str:
    """What control says will come of it."""
    if not is_held(directory):
        raise UserError(f"job {directory.job!r} is not running; `holdfast show {directory.job}` says how it ended")
    message = OperatorSays(what=what, node=node, instead=instead, because=because, who=_me())
    try:
        answer = asyncio.run(asyncio.wait_for(_ask(directory, message), _WITHIN_S))
    except (OSError, TimeoutError, BadFrame) as error:
        raise HoldfastError(f"job {directory.job!r} runs but its control does not answer ({error}); it may be restarting: try again") from error
    if isinstance(answer, Refused):
        raise UserError(f"job {directory.job!r}: {answer.because}")
    return answer.says


async def _ask(directory: JobDirectory, message: OperatorSays) -> Agreed | Refused:
    channel = await connect(directory.control_socket)
    try:
        channel.send(message)
        async for answer in channel:
            if isinstance(answer, Agreed | Refused):
                return answer
    finally:
        await channel.closed()
    raise OSError("control is gone")


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# What is shown.


def nodes_json(state: State) -> list[dict[str, Any]]:
    return [
        {"node": name, "host": state.nodes[name].host, "state": str(state.nodes[name].state), "role": _role(state, name), "ranks": list(_ranks(state, name)),
         "cordoned": name in state.cordoned, "draining": name in state.draining, "why": why_not_used(state, name)}
        for name in sorted(state.nodes)
    ]  # fmt: skip


def nodes_table(state: State) -> RenderableType:
    if not state.nodes:
        return Text("No node was heard yet.")
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(word, style="dim") for word in ("node", "state", "is", "ranks", "why")))
    for name in sorted(state.nodes):
        word = str(state.nodes[name].state).replace("_", " ")
        table.add_row(one_line(name), word, _role(state, name), ranges(_ranks(state, name)), Text(one_line(why_not_used(state, name))))
    return table


def _role(state: State, name: str) -> str:
    if state.gang is not None and name in state.gang.nodes:
        return "gang"
    return "out of service" if why_not_used(state, name) and name not in state.avoided else "spare"


def _ranks(state: State, name: str) -> tuple[int, ...]:
    if state.gang is None or state.spec is None or name not in state.gang.nodes:
        return ()
    first = state.gang.nodes.index(name) * state.spec.ranks_per_node
    return tuple(range(first, first + state.spec.ranks_per_node))
