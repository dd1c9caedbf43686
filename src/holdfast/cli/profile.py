"""`holdfast profile`: ask a running job for a profile, wait for it, and say what it says and where the traces are.

Control chooses the ranks; what is shown at the end comes from the journal, so that a control which dies meanwhile changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.job import is_held, state_of
from holdfast.cli.screen import Table
from holdfast.cli.words import one_line, ranges
from holdfast.domain.profile import PARTS, STEPS_MAX, Profile, RankProfile
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.wire.frames import BadFrame, Channel, connect
from holdfast.wire.messages import Asked, AskProfile, ProfileView, Refused, View, Watch

_ANSWER_WITHIN_S: Final = 15.0
_OPERATORS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """What `--ranks` says."""

    ranks: tuple[int, ...] = ()
    all: bool = False


def who(text: str) -> Who:
    if text in ("slow", "all"):
        return Who(all=text == "all")
    try:
        ranks = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UserError(f"--ranks is `slow`, `all`, or numbers such as 0,3, not {text!r}") from None
    if ranks[0] < 0:
        raise UserError(f"--ranks {text}: a rank is 0 or more")
    return Who(ranks=ranks)


def take_profile(directory: JobDirectory, of: Who, *, steps: int, wait_s: float, quiet: bool) -> Profile:
    if not is_held(directory):
        raise UserError(f"job {directory.job!r} is not running, and only a running job can be profiled; `holdfast show {directory.job}` says how it ended")
    if not 1 <= steps <= STEPS_MAX:
        raise UserError(f"--steps is a number from 1 to {STEPS_MAX}, not {steps}")
    number = asyncio.run(_ask(directory, AskProfile(id=secrets.token_hex(8), ranks=of.ranks, all=of.all, steps=steps), _Progress(quiet=quiet), wait_s))
    found = next((one for one in state_of(directory).profiles if one.number == number), None)
    if found is None or found.ended_at is None:
        raise HoldfastError(f"the profile of {directory.job!r} is not there after {wait_s:g} s; when it comes, `holdfast show {directory.job}` names it")
    return found


async def _ask(directory: JobDirectory, ask: AskProfile, progress: _Progress, wait_s: float) -> int:
    """The number of the profile, once it has ended or the time is over."""
    deadline, number = time.monotonic() + wait_s, None
    while is_held(directory) and time.monotonic() < deadline:
        with contextlib.suppress(OSError, BadFrame, TimeoutError):
            channel = await connect(directory.control_socket)
            try:
                if number is None:
                    number = await asyncio.wait_for(_begin(channel, ask, directory.job), _ANSWER_WITHIN_S)
                channel.send(Watch())
                await asyncio.wait_for(_until_ended(channel, number, progress), max(0.0, deadline - time.monotonic()))
                return number
            finally:
                await channel.closed()
        await asyncio.sleep(0.1)  # Control is being restarted.
    if number is None:
        raise HoldfastError(f"job {directory.job!r} runs but its control does not answer; it may be restarting: try again")
    return number


async def _begin(channel: Channel, ask: AskProfile, job: str) -> int:
    channel.send(ask)
    async for message in channel:
        match message:
            case Asked(number=number):
                return number
            case Refused(because=because):
                raise UserError(f"job {job!r} cannot be profiled: {because}")
            case _:
                pass
    raise OSError("control is gone")


async def _until_ended(channel: Channel, number: int, progress: _Progress) -> None:
    async for message in channel:
        if isinstance(message, View) and message.profile is not None:
            if message.profile.number == number:
                progress.tell(message, message.profile)
            if message.outcome or message.profile.ended or message.profile.number > number:
                return
    raise OSError("control is gone")


class _Progress:
    """Lines on standard error, when there is something new to say."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._told, self._first = quiet, "", {}  # type: tuple[bool, str, dict[int, int]]

    def tell(self, view: View, profile: ProfileView) -> None:
        if self._quiet or profile.ended or not (profile.slow or profile.beside):
            return
        steps = {reading.rank: reading.step for reading in view.ranks if reading.rank in profile.waits_for}
        self._first = {rank: self._first.get(rank, step) for rank, step in steps.items()}
        done = min((step - self._first[rank] for rank, step in steps.items()), default=0)
        line = f"profiling {_ranks(profile)}: waiting for rank{'s' if len(profile.waits_for) > 1 else ''} {ranges(profile.waits_for)}"
        line = f"{line}, {done} step{'s' if done != 1 else ''} since it was asked" if profile.waits_for else f"profiling {_ranks(profile)}: all have answered"
        if line != self._told:
            self._told = line
            print(f"holdfast: {line}", file=sys.stderr, flush=True)


def _ranks(profile: ProfileView | Profile) -> str:
    slow = f"rank{'s' if len(profile.slow) > 1 else ''} {ranges(profile.slow)}" if profile.slow else ""
    beside = f"rank{'s' if len(profile.beside) > 1 else ''} {ranges(profile.beside)}" if profile.beside else ""
    return " beside ".join(filter(None, (slow, beside)))


# What is shown.


def profile_json(directory: JobDirectory, profile: Profile) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(profile)
    return body | {"directory": str(directory.profiles / profile.name)}


def profile_shown(directory: JobDirectory, profile: Profile) -> RenderableType:
    parts: list[RenderableType] = [Text(one_line(says), style="bold") for says in profile.says]
    if profile.ranks:
        parts += [Text(""), _table(profile)]
        for one in profile.ranks:
            if one.operators:
                parts += [Text(f"\nrank {one.rank}, heaviest operators ({one.device}, in themselves)", style="dim"), _operators(one)]
    parts += [Text(f"rank {rank}: {one_line(why)}", style="yellow") for rank, why in sorted(profile.missing.items(), key=lambda pair: int(pair[0]))]
    parts += [Text(f"rank {one.rank}: {one_line(one.note)}", style="yellow") for one in profile.ranks if one.note]
    if any(one.trace for one in profile.ranks):
        where = directory.profiles / profile.name
        parts += [Text(f"\ntraces in {where}"), Text(f"open one at https://ui.perfetto.dev, or all with tensorboard --logdir {where}", style="dim")]
    return Group(*parts)


def _table(profile: Profile) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(word, style="dim") for word in ("rank", "node", "steps", "a step", *PARTS)))
    for one in profile.ranks:
        mark = " slow" if one.rank in profile.slow and profile.beside else ""
        parts = (_ms(one.parts[part]) if part in one.parts else "–" for part in PARTS)
        table.add_row(f"{one.rank}{mark}", one_line(one.node), f"{one.first_step:,}-{one.first_step + one.steps - 1:,}", _ms(one.step_s), *parts)
    return table


def _operators(one: RankProfile) -> Table:
    table = Table.grid(padding=(0, 2))
    for operator in one.operators[:_OPERATORS_SHOWN]:
        table.add_row(f"  {_ms(operator.seconds)} a step", Text(one_line(operator.name)), f"{operator.calls:.4g} calls")
    return table


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
