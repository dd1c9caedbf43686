"""What `holdfast plan` shows in a terminal: a headline, then a table or a plot for each question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.plan.asked import Understood
from holdfast.cli.plot import plot
from holdfast.cli.screen import Table
from holdfast.cli.words import BUCKET_MEANS, count, duration
from holdfast.domain.goodput import Bucket
from holdfast.simulate.reliability.capacity import Needed
from holdfast.simulate.reliability.forecast import Forecast, interval_curve

_BAR_CELLS = 20
_POINTS = 400
Grown = Sequence[tuple[int, Needed | None]]


def shown(read: Understood, found: Forecast, grown: Grown, *, width: int, plain: bool) -> RenderableType:
    unsaid = [Text(f"{read.unsaid}.", style="yellow")] if read.unsaid else []
    parts: list[RenderableType] = [_headline(found), *unsaid, _section("What went in"), _inputs(read)]
    parts += [_section("Failures"), _facts(_failures(found))]
    parts += [_section("How often to save"), _rules(found), *_curve(found, width, plain=plain)]
    parts += [_section("Where the time goes"), _parts(found, plain=plain), _facts(_goodput(found))]
    parts += [_section("What the goodput hangs on"), _sensitivity(found)]
    parts += [_section("Spares"), _spares(found, plain=plain), _facts(_repair(found))]
    parts += [_section("Copies in memory"), _facts(_copies(found))]
    if grown:
        parts += [_section("Capacity"), _capacity(grown)]
    return Group(*parts)


def _headline(found: Forecast) -> Text:
    fleet = found.fleet
    limits = f" ({percent(found.goodput.low)} to {percent(found.goodput.high)})" if fleet.seen.counted else ""
    return Text(
        f"{count(fleet.gpus, 'GPU')} on {count(fleet.nodes, 'node')}: a failure every {duration(1 / found.per_s.value)}, "
        f"goodput {percent(found.goodput.value)}{limits}, a save every {duration(found.running.interval_s)}, {count(found.spares, 'spare')}",
        style="bold",
    )


def _inputs(read: Understood) -> Table:
    table = _table("", ("value", "right"), "where from")
    for figure in read.figures:
        table.add_row(figure.name, figure.value, Text(figure.source, style="dim"))
    return table


def _failures(found: Forecast) -> Iterator[tuple[str, str]]:
    window = duration(found.fleet.window_s)
    limits = f"; between {duration(1 / found.per_s.high)} and {_longest(found.per_s.low)} with 95 % confidence" if found.fleet.seen.counted else ""
    yield "one every", f"{duration(1 / found.per_s.value)}{limits}"
    mean = f"{found.failures_mean:.3g} failures on average; with a chance of 95 % there are no more than {found.failures_most:,}"
    never = f"The chance of no failure is {found.undisturbed:.2g}" if found.undisturbed >= 1e-6 else "There is at least one"
    yield f"in {window}", f"{mean}. {never}"
    yield "detected", f"each is detected with a chance of {found.fleet.seen_share:.4g}. The chance that at least one in {window} is: {found.any_seen:.4g}"
    yield "missed", f"The chance that none in {window} is missed: {found.none_missed:.4g}"


def _rules(found: Forecast) -> Table:
    table = _table("rule", ("interval", "right"), ("lost to saves and redone work", "right"))
    for one in found.rules:
        table.add_row(one.rule, duration(one.interval_s), percent(one.lost))
    steps = round(found.running.interval_s / found.fleet.times.step_s)
    table.add_row("used here", duration(found.running.interval_s), count(max(1, steps), "step"))
    return table


def _curve(found: Forecast, width: int, *, plain: bool) -> list[RenderableType]:
    """Goodput over the interval: flat around the best, steep towards both ends."""
    points = interval_curve(found, _POINTS)
    lines: list[RenderableType] = [Text("  goodput in % over the interval (logarithmic)", style="dim")]
    lines += plot(np.array([100 * share for _, share in points]), [_POINTS // 2], width=width - 2, plain=plain)
    first, last = duration(points[0][0]), duration(points[-1][0])
    chosen = duration(found.running.interval_s)
    room = max(1, (width - len(first) - len(last) - len(chosen)) // 2)
    lines.append(Text(f"{' ' * 7}{first}{' ' * (room - 7)}{chosen}{' ' * room}{last}", style="dim"))
    return lines


def _parts(found: Forecast, *, plain: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    justifies: tuple[JustifyMethod, ...] = ("left", "right", "right", "left")
    for justify in justifies:
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(style="dim")
    lost = max(share for bucket, share in found.parts.items() if bucket is not Bucket.PRODUCTIVE)
    for bucket, share in sorted(found.parts.items(), key=lambda one: -one[1]):
        if share >= 5e-7:
            bar = "" if bucket is Bucket.PRODUCTIVE else _bar(share / lost, plain=plain)
            table.add_row(str(bucket), percent(share), f"{duration(share * 86400)} a day", Text(bar, style="yellow"), BUCKET_MEANS[bucket])
    return table


def _goodput(found: Forecast) -> Iterator[tuple[str, str]]:
    yield "by formula", f"{percent(found.goodput.value)}, if a spare is always there"
    yield "each failure", f"costs {duration(found.loss_per_failure_s)}: unlike goodput, that may be compared between fleets of any size"
    if found.simulated is not None:
        lives = found.simulated
        waits = f", {percent(lives.waiting)} of the time lost to waiting for nodes" if lives.waiting else ""
        yield "simulated", f"{percent(lives.mean)} in the mean{waits}; 90 of 100 lives between {percent(lives.low)} and {percent(lives.high)}"
    elif not found.spares:
        yield "simulated", "not without any spare: the first lost node would end it"


def _sensitivity(found: Forecast) -> Table:
    table = _table("goodput if this is", ("halved", "right"), ("as it is", "right"), ("doubled", "right"), ("tenfold", "right"))
    for one in found.sensitivity:
        table.add_row(one.name, percent(one.halved), percent(found.goodput.value), percent(one.doubled), percent(one.tenfold))
    return table


def _spares(found: Forecast, *, plain: bool) -> Table:
    table = _table(("spares", "right"), ("a failure finds none", "right"), "", "")
    sure = sum(chance > 0.99 for _, chance in found.spares_table)
    for number, chance in found.spares_table[max(0, sure - 1) :]:  # Of numbers that are as good as none the last is enough.
        said = f"{found.in_repair:.3g} in repair in the mean" if number == found.spares else ""
        table.add_row(f"{number:,}", f"{chance:.2g}", Text(_bar(chance, plain=plain), style="yellow"), Text(said, style="bold"))
    return table


def _repair(found: Forecast) -> Iterator[tuple[str, str]]:
    done = ", ".join(f"{round(100 * share)} of 100 within {duration(seconds)}" for share, seconds in found.repaired)
    yield "repair", f"{duration(found.fleet.repair_s)} in the mean; {done}, if it is exponential"


def _copies(found: Forecast) -> Iterator[tuple[str, str]]:
    fleet = found.fleet
    if fleet.copies == 1:
        yield "one copy", "a lost node takes its part of the state, which is then only in storage"
    elif fleet.nodes < fleet.copies:
        yield "no room", f"{fleet.copies} copies of a state need as many nodes, and there {'is one' if fleet.nodes == 1 else f'are {fleet.nodes}'}"
    elif fleet.domain_nodes >= fleet.nodes:
        yield "at once", f"all {count(fleet.nodes, 'node')} fail together (--domain-nodes {fleet.domain_nodes}): what is only in memory is lost with them"
    else:
        if fleet.copies == 2:
            yield "one by one", f"nodes that fail on their own take both copies of a state once in {_longest(found.partners_lost_per_s)}"
        at_once = f"{count(fleet.domain_nodes, 'node')} at once"
        if found.domain_lost_spread:
            outside, wanted = fleet.nodes - fleet.domain_nodes, -(-fleet.nodes // fleet.copies)
            yield at_once, f"take a part of the state, wherever copies are: a copy of everything outside them takes {wanted} nodes, and there are {outside}"
        else:
            chances = f"{found.domain_lost_at_random:.2g} if partners are drawn at random, 0 if they are in different domains"
            yield at_once, f"take the state with a chance of {chances}, as Holdfast has them"
    if found.shrink_from_s is not None:
        far = duration(found.shrink_from_s)
        yield "shrink or wait", f"of {fleet.replicas} replicas, go on with one fewer if a node is more than {far} away; if nobody knows, wait so long, then do"


def _capacity(grown: Grown) -> Table:
    names = ("year", "GPUs", "nodes", "goodput", "state", "storage", "written", "copied, a node", "memory, a node")
    table = _table(*((name, "right") for name in names))
    for year, one in grown:
        if one is None:
            table.add_row(f"{year}", "no number of GPUs is enough: more of them fail faster than they help", *[""] * (len(names) - 2))
            continue
        table.add_row(
            f"{year}", f"{one.gpus:,}", f"{one.nodes:,}", percent(one.goodput), _size(one.state_gb), _size(one.storage_gb), f"{_size(one.storage_gb_per_s)}/s",
            f"{_size(one.copy_gb_per_s)}/s", _size(one.memory_gb),
        )  # fmt: skip
    return table


# Small hands.


def percent(share: float) -> str:
    """More digits the closer it is to all or nothing."""
    off = min(abs(share), abs(1.0 - share))
    return f"{100 * share:.{2 if off < 0.095 else 1}f} %" if off >= 5e-5 or off == 0.0 else f"{100 * share:.4f} %"


def _longest(per_s: float) -> str:
    if per_s <= 0.0:
        return "ever"
    years = 1 / per_s / (365.25 * 86400)
    return duration(1 / per_s) if years < 2 else f"{years:,.0f} years"


def _size(gb: float) -> str:
    for unit, size in (("PB", 1e6), ("TB", 1e3), ("GB", 1.0), ("MB", 1e-3)):
        if gb >= size:
            return f"{gb / size:.3g} {unit}"
    return f"{gb * 1e6:.3g} kB"


def _bar(share: float, *, plain: bool) -> str:
    halves = round(2 * _BAR_CELLS * min(1.0, share))
    return "#" * (halves // 2) if plain else "━" * (halves // 2) + "╸" * (halves % 2)


def _table(*columns: str | tuple[str, JustifyMethod]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False, header_style="dim")
    for column in columns:
        name, justify = (column, "left") if isinstance(column, str) else column
        table.add_column(name, justify=justify)
    return table


def _facts(rows: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _section(title: str) -> RenderableType:
    return Padding(Text(title, style="bold"), (1, 0, 0, 0))
