"""What a person says to a running job: approve, veto, cordon, drain, uncordon, check; and `holdfast nodes`, which shows what came of it.

Control answers once it is written down: what was said survives a control that dies, and can be taken back.
"""

from __future__ import annotations

import asyncio
import getpass
import time
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from holdfast.cli.job import is_held, not_running
from holdfast.cli.screen import Table
from holdfast.cli.words import duration, one_line, ranges
from holdfast.core.membership import why_not_used
from holdfast.domain.state import NodeCheck, State
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import Agreed, OperatorSays, Refused

_WITHIN_S: Final = 15.0


def say(directory: JobDirectory, what: str, *, node: str = "", instead: str = "", because: str = "") -> str:
    """What control says will come of it."""
    if not is_held(directory):
        raise UserError(not_running(directory))
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
         "cordoned": name in state.cordoned, "draining": name in state.draining, "goes_at": _goes_at(state, name), "why": why_not_used(state, name),
         "check": _check_json(state.checks[name]) if name in state.checks else None}
        for name in sorted(state.nodes)
    ]  # fmt: skip


def nodes_table(state: State) -> RenderableType:
    if not state.nodes:
        return Text("No node was heard yet.")
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(word, style="dim") for word in ("node", "state", "is", "ranks", "why")))
    for name in sorted(state.nodes):
        word = str(state.nodes[name].state).replace("_", " ")
        table.add_row(one_line(name), word, _role(state, name), ranges(_ranks(state, name)), Text(one_line(_why(state, name))))
    return table


def _check_json(check: NodeCheck) -> dict[str, Any]:
    pairs = [{"pair": [a, b], "passed": passed} for a, b, passed in check.results]
    return {"verdict": check.verdict, "said": check.said, "because": check.because, "pairs": pairs, "at": check.at or None}


def _goes_at(state: State, name: str) -> float | None:
    return state.notices[name].goes_at if name in state.notices and name in state.cordoned else None


def _why(state: State, name: str) -> str:
    goes_at = _goes_at(state, name)
    left_s = (goes_at or 0.0) - time.time()
    when = "" if goes_at is None else f"goes in {duration(left_s)}" if left_s > 0 else "its time is over"
    check, why = state.checks.get(name), why_not_used(state, name)
    checked = "" if check is None else f"checked: {check.verdict}: {check.said}" if check.verdict else f"to be checked: {check.because}"
    checked = "" if check is not None and check.verdict and check.said in why else checked  # It is cordoned for just that.
    return "; ".join(filter(None, (why, when, checked)))


def _role(state: State, name: str) -> str:
    if state.gang is not None and name in state.gang.nodes:
        return "gang"
    return "out of service" if why_not_used(state, name) and name not in state.avoided else "spare"


def _ranks(state: State, name: str) -> tuple[int, ...]:
    if state.gang is None or state.spec is None or name not in state.gang.nodes:
        return ()
    first = state.gang.nodes.index(name) * state.spec.ranks_per_node
    return tuple(range(first, first + state.spec.ranks_per_node))
