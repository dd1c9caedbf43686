"""Failure processes: when which machine of a fleet is lost, and how long it is away. Pure but for `read_failures`.

Poisson     machines do not age: any second is as bad as any other.
Weibull     shape below 1: those that were just mended fail again soon, as most machines do; above 1: they wear out.
Bursts      machines of one rack within seconds of each other: a switch, a power feed.
Lemon       one machine that fails far more often than the others.
Recorded    as it happened somewhere: a CSV with the columns `at_s` and `node`. It is squeezed, or stretched, to the time that is played, and its machines
            are dealt to ours in the order in which they first failed, over again when there are more of them.
Outages     Poisson, with repairs and lemons. Each machine has dice of its own, from the seed: whatever is decided, the same ones fail at the same times, and
            policies can be compared. Wrong for failures that come together, repairs with a long tail, and nodes that fail only when they are used.

Of all but the last the dice are the caller's, and so is how long a machine is away: one that is lost while it is away is lost once.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast.errors import UserError

Failure = tuple[float, str]  # Seconds since the beginning, and the machine.
Change = tuple[float, int, bool]  # When, which machine, and whether it fails or is back.


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


def recorded(rows: Sequence[Failure], nodes: Sequence[str], until_s: float) -> list[Failure]:
    names = list(dict.fromkeys(name for _, name in sorted(rows)))
    first, last = min(at for at, _ in rows), max(at for at, _ in rows)
    pace = until_s / (last - first) if last > first else 0.0
    return sorted(((at - first) * pace, nodes[names.index(name) % len(nodes)]) for at, name in rows)


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


def lemons_among(nodes: int, part: float, seed: int) -> set[int]:
    return set(random.Random(seed).sample(range(nodes), math.ceil(part * nodes)))


def read_failures(path: Path) -> tuple[Failure, ...]:
    """The rows of a recording; a broken one is refused with its line."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if not {"at_s", "node"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} has the columns {', '.join(reader.fieldnames or ()) or 'none'}; expected at_s and node")
            rows = tuple((_seconds(row["at_s"], path, reader.line_num), row["node"] or "") for row in reader)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the failures in {path} cannot be read: {error}") from error
    if not rows:
        raise UserError(f"{path} holds no failure; expected rows of at_s,node")
    return rows


def _seconds(text: str | None, path: Path, line: int) -> float:
    try:
        at = float(text or "")
    except ValueError:
        at = math.nan
    if not math.isfinite(at):
        raise UserError(f"line {line} of {path}: at_s is {text!r}; expected seconds, as a number")
    return at


def _renewed(since_s: float, until_s: float, runs_s: Callable[[], float], away_s: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """When one machine is lost, and when it is back, time and again."""
    at = since_s + runs_s()
    while at <= until_s:
        back_at = at + away_s()
        yield at, back_at
        at = back_at + runs_s()
