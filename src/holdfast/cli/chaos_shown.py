"""What `holdfast chaos` shows: which faults are possible, what came of those that were done, and the scorecard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.chaos.scorecard import WEIGHTS, Scorecard, Tried
from holdfast.cli.screen import Table
from holdfast.cli.words import count, duration

if TYPE_CHECKING:
    from holdfast.cli.chaos import Told


def possible_shown(reasons: Mapping[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for key, reason in reasons.items():
        table.add_row(Text("–", style="dim") if reason else Text("✓", style="green"), key, Text(reason, style="dim"))
    return table


def report_shown(told: Sequence[Told], missed: Sequence[str], cut_short: str, refused: Mapping[str, str], card: Scorecard | None) -> RenderableType:
    table = Table(box=None, padding=(0, 2))
    for name, justify in (("", "left"), ("step", "right"), ("done", "left"), ("noticed", "right"), ("called", "left"), ("remedy", "left"),
                          ("back", "right"), ("lost", "right"), ("steps", "right")):  # fmt: skip
        table.add_column(name, justify=justify)
    for one in told:
        mark = ("–", "yellow") if one.recovered is None else ("✓", "green") if one.recovered and one.right else ("✗", "bold red")
        table.add_row(
            Text(*mark), f"{one.step:,}", Text(one.said), _time(one.noticed_s), Text(one.called),
            one.remedy, _time(one.back_s), _time(sum(one.lost_s.values())), "–" if one.steps_lost is None else str(one.steps_lost),
        )  # fmt: skip
    lines: list[RenderableType] = [table]
    if missed:
        undone = ", ".join(f"{times} × {key}" if times > 1 else key for key, times in Counter(missed).items())
        lines.append(Text(f"not done, since {cut_short}: {undone}", style="yellow"))
    lines += [Text(f"not done, since it is not possible here: {key}: {because}", style="yellow") for key, because in refused.items()]
    known = [one for one in told if one.recovered is not None]
    lines += [Text(f"what came of it is not known, since {cut_short}: {one.fault}", style="yellow") for one in told if one.recovered is None]
    survived = sum(bool(one.recovered) for one in known)
    lines.append(f"{survived} of {count(len(known), 'fault')} survived, {sum(one.right for one in known)} called by the right name.")
    return Group(*lines, *(card_lines(card) if card is not None else []))


def foreign_shown(launcher: str, tried: Sequence[Tried], card: Scorecard) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for one in tried:
        table.add_row(Text("✓", style="green") if one.recovered else Text("✗", style="bold red"), one.fault, _time(one.lost_s))
    told = f"{sum(one.recovered for one in tried)} of {count(len(tried), 'fault')} survived under {launcher}, which says nothing of what it found."
    return Group(table, told, *card_lines(card))


def card_lines(card: Scorecard) -> list[RenderableType]:
    """Every part, its weight, and the sum."""
    table = Table.grid(padding=(0, 2))
    for name, part in card.parts.items():
        table.add_row(name, f"{part:.2f}", Text(f"weighs {WEIGHTS[name]:.2f}", style="dim"))
    table.add_row(Text("score", style="bold"), Text(f"{100 * card.score:.0f} of 100", style="bold"))
    return [table]


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)
