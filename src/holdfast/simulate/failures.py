"""Failure processes: when which machine of a fleet is lost, and how long it is away. Pure but for `read_failures`.

Poisson     machines do not age: any second is as bad as any other.
Weibull     shape below 1: those that were just mended fail again soon, as most machines do; above 1: they wear out.
Bursts      machines of one rack within seconds of each other: a switch, a power feed.
Lemon       one machine that fails far more often than the others.
Recorded    as it happened somewhere. In a made-up world it is squeezed, or stretched, to the time that is played, and its machines are dealt to ours in the
            order in which they first failed, over again when there are more of them. Beside a trace it keeps its own pace, and each machine stands for one of
            ours.
Outages     Poisson, with repairs and lemons. Each machine has dice of its own, from the seed: whatever is decided, the same ones fail at the same times, and
            policies can be compared. Wrong for failures that come together, repairs with a long tail, and nodes that fail only when they are used.

Of all but outages the dice are the caller's, and so is how long a machine is away. One that is lost while it is away is lost once.

A recording is a CSV, gzipped or not, with the columns `at_s` and `node` and, where it was written down, `repair_s`. That of Los Alamos is read as it is:
`started` as a date, `down_min`, and `system` and `node` for one machine. Dates are all with an offset from UTC, or all without.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import UserError
from holdfast.simulate.table import Row, Skipped, TableUnreadable, first_of, maybe, number, rows_of

Failure = tuple[float, str]  # Seconds since the beginning, and the machine.
Change = tuple[float, int, bool]  # When, which machine, and whether it fails or is back.


_WANTED = "at_s,node"


class Lost(NamedTuple):
    """A row of a recording."""

    at_s: float
    node: str
    repair_s: float | None = None  # None: nobody wrote it down.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    rows: tuple[Lost, ...] = ()  # In order of time.
    skipped: tuple[Skipped, ...] = ()


def poisson(dice: random.Random, nodes: Sequence[str], mtbf_s: float, until_s: float) -> list[Failure]:
    """`mtbf_s` is of one machine."""
    return weibull(dice, nodes, mtbf_s, until_s, shape=1.0)


def weibull(dice: random.Random, nodes: Sequence[str], mtbf_s: float, until_s: float, *, shape: float) -> list[Failure]:
    scale_s = mtbf_s / math.gamma(1.0 + 1.0 / shape)
    return sorted((at, node) for node in nodes for at, _ in _renewed(0.0, until_s, partial(dice.weibullvariate, scale_s, shape), lambda: 0.0))


def bursts(dice: random.Random, racks: Mapping[str, Sequence[str]], every_s: float, until_s: float, *, within_s: float) -> list[Failure]:
    """Every `every_s` on average, most of a rack."""
    found: list[Failure] = []
    at = dice.expovariate(1.0 / every_s)
    while at < until_s:
        rack = racks[dice.choice(sorted(racks))]
        found += [(at + dice.uniform(0.0, within_s), node) for node in rack if dice.random() < 0.8]
        at += dice.expovariate(1.0 / every_s)
    return sorted(found)


def recorded(rows: Sequence[Lost], nodes: Sequence[str], until_s: float) -> list[Failure]:
    number_of = {name: number for number, name in enumerate(dict.fromkeys(row.node for row in sorted(rows, key=_when)))}
    first, last = min(row.at_s for row in rows), max(row.at_s for row in rows)
    pace = until_s / (last - first) if last > first else 0.0
    return sorted(((row.at_s - first) * pace, nodes[number_of[row.node] % len(nodes)]) for row in rows)


def outages(
    nodes: int, *, mtbf_s: float, seed: int, first_at: float, last_at: float, repair_s: float = 4 * 3600.0, lemons: float = 0.0, lemon_factor: float = 100.0
) -> list[Change]:
    """A machine in service fails after `mtbf_s` on average, and is back after `repair_s`. A part of them, `lemons`, fails `lemon_factor` times as often, and no
    repair cures it. Nothing fails after `last_at`; repairs still end."""
    if not (0 < mtbf_s < math.inf and 0 < repair_s < math.inf and 0 <= lemons <= 1):
        said = f"an MTBF of {mtbf_s / 3600:g} h, repairs of {repair_s / 3600:g} h and a part of {lemons:g} lemons cannot be played"
        raise UserError(f"{said}; expected hours above 0, and a part between 0 and 1 such as 0.02")
    bad, changes = lemons_among(nodes, lemons, seed), list[Change]()
    for node in range(nodes):
        dice, mean_s = random.Random(f"{seed}/{node}"), mtbf_s / (lemon_factor if node in bad else 1.0)
        for at, back_at in _renewed(first_at, last_at, partial(dice.expovariate, 1 / mean_s), partial(dice.expovariate, 1 / repair_s)):
            changes += [(at, node, True), (back_at, node, False)]
    return sorted(changes)


def outages_of(rows: Sequence[Lost], names: Sequence[str], *, seed: int, first_at: float, from_s: float, repair_s: float) -> list[Change]:
    """A recording at its own pace: what happened `from_s` into it happens at `first_at`. Machines that are called as ours are stand for themselves; the others
    are dealt to the rest of ours by the seed, which also draws who is left out when there are more of them. Where no repair was recorded one takes `repair_s`
    on average."""
    if not 0 < repair_s < math.inf:
        raise UserError(f"repairs of {repair_s / 3600:g} h cannot be played; expected hours above 0")
    dice, ours = random.Random(f"recorded {seed}"), {name: number for number, name in enumerate(names)}
    theirs = sorted({row.node for row in rows} - ours.keys())
    left = sorted(ours[name] for name in ours.keys() - {row.node for row in rows})
    dealt = min(len(theirs), len(left))
    place = ours | dict(zip(dice.sample(theirs, dealt), dice.sample(left, dealt), strict=True))
    repairs = {node: random.Random(f"{seed}/{node}") for node in place.values()}
    changes, back_at = list[Change](), dict.fromkeys(place.values(), -math.inf)
    for row in rows:
        node, at = place.get(row.node), first_at + row.at_s - from_s
        if node is None or at < max(first_at, back_at[node]):
            continue
        drawn_s = repairs[node].expovariate(1 / repair_s)
        back_at[node] = at + max(1.0, drawn_s if row.repair_s is None else row.repair_s)
        changes += [(at, node, True), (back_at[node], node, False)]
    return sorted(changes)


def lemons_among(nodes: int, part: float, seed: int) -> set[int]:
    return set(random.Random(seed).sample(range(nodes), math.ceil(part * nodes)))


def read_failures(path: Path) -> Recording:
    """The rows of a recording; a broken one is left out, with its line."""
    dated: list[tuple[datetime, str, float | None]] = []
    rows: list[Lost] = []

    def take(row: Row, _: int) -> None:
        node, minutes = (row["node"] or "").strip(), maybe(row, "down_min", least=0.0)
        if not node:
            raise ValueError("node is empty")
        if "at_s" in row:
            rows.append(Lost(number(row, "at_s"), node, maybe(row, "repair_s", least=0.0)))
        else:
            at = _date(row["started"])
            if dated and (at.tzinfo is None) != (dated[0][0].tzinfo is None):
                here, there = ("no offset", "one") if at.tzinfo is None else ("an offset", "none")
                raise ValueError(f"started {at} has {here} from UTC and the rows before it have {there}; write all alike")
            dated.append((at, f"{row['system']}/{node}" if row.get("system") else node, None if minutes is None else 60 * minutes))

    skipped = rows_of(path, _WANTED, take, lambda names: "" if "node" in names and ("at_s" in names or "started" in names) else "no columns at_s and node")
    if dated:
        first = min(at for at, _, _ in dated)
        rows = [Lost((at - first).total_seconds(), node, away_s) for at, node, away_s in dated]
    if not rows:
        raise TableUnreadable(f"{path} holds no failure{first_of(skipped)}; expected rows below {_WANTED}")
    return Recording(rows=tuple(sorted(rows, key=_when)), skipped=tuple(skipped))


def _when(row: Lost) -> tuple[float, str]:
    return row.at_s, row.node


def _date(text: str | None) -> datetime:
    try:
        return datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise ValueError(f"started {(text or '')[:40]!r} is no date, expected one such as 2005-06-21 10:54") from None


def _renewed(since_s: float, until_s: float, runs_s: Callable[[], float], away_s: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """When one machine is lost, and when it is back, time and again."""
    at = since_s + runs_s()
    while at <= until_s:
        back_at = at + away_s()
        yield at, back_at
        at = back_at + runs_s()
