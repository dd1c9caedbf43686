"""Failure processes: when which machine of a fleet is lost, and how long it is away. Pure but for `read_failures`; the dice are the caller's.

Poisson     machines do not age: any second is as bad as any other.
Weibull     shape below 1: those that were just mended fail again soon, as most machines do; above 1: they wear out.
Bursts      machines of one rack within seconds of each other: a switch, a power feed.
Lemon       one machine that fails far more often than the others.
Recorded    as it happened somewhere: a CSV with the columns `at_s` and `node`. It is squeezed, or stretched, to the time that is played, and its machines
            are dealt to ours in the order in which they first failed, over again when there are more of them.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UserError

Failure = tuple[float, str]  # Seconds since the beginning, and the machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """A distribution known by some of its percentiles, straight between them."""

    points: tuple[tuple[float, float], ...]  # Share of all, from 0 to 1, and the value that it stays below.

    def draw(self, dice: random.Random) -> float:
        share = dice.random()
        (below, low), (above, high) = next(pair for pair in zip(self.points, self.points[1:], strict=False) if pair[1][0] >= share)
        return low + (high - low) * (share - below) / (above - below)


def poisson(dice: random.Random, nodes: Sequence[str], mtbf_s: float, until_s: float) -> list[Failure]:
    """`mtbf_s` is of one machine."""
    return weibull(dice, nodes, mtbf_s, until_s, shape=1.0)


def weibull(dice: random.Random, nodes: Sequence[str], mtbf_s: float, until_s: float, *, shape: float) -> list[Failure]:
    scale_s = mtbf_s / math.gamma(1.0 + 1.0 / shape)
    return sorted(failure for node in nodes for failure in _renewed(dice, node, scale_s, shape, until_s))


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


def _renewed(dice: random.Random, node: str, scale_s: float, shape: float, until_s: float) -> list[Failure]:
    found: list[Failure] = []
    at = dice.weibullvariate(scale_s, shape)
    while at < until_s:
        found.append((at, node))
        at += dice.weibullvariate(scale_s, shape)
    return found
