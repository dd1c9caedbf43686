"""Heard: the newest row of every node, and the numbers of all ranks as one table.

Where a value stands in a node's row is found out when the node says its names, which is seldom. After that a look at all ranks is one gather for each node,
not one for each number: 2,048 ranks with 40 numbers each take a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np
from numpy.typing import NDArray

from holdfast.control.numbers import SERIES_MAX, WATCHED
from holdfast.domain.event import Event, FindingMade, NodeCordoned
from holdfast.domain.finding import Finding
from holdfast.domain.metric import USER_PREFIX
from holdfast.domain.signal import Signal
from holdfast.wire.messages import Signals

FRESH_S = 3.0  # What an agent said longer ago than this says nothing about now.
PARTS = ("data", "compute", "optimizer", "save")
_OF_RANKS = dict.fromkeys(
    (
        "step", "step_seconds", "step_communication_seconds", *(f"step_{part}_seconds" for part in PARTS), "loss", "gradient_norm", "learning_rate", "epoch",
        "not_finite_since_step", "finite_until_step", "parameter_digest", "parameter_digest_step", "worker_memory_bytes", *WATCHED,
    )
)  # fmt: skip
_OF_NODES = frozenset({"host_memory_bytes", "host_memory_available_bytes", "disk_free_bytes", "disk_size_bytes"})

Row = NDArray[np.float64]  # One number for each rank; NaN where there is none.


@dataclass(slots=True)
class _Node:
    """The newest row of a node. `ranks` and `places` say where in it the numbers of its ranks stand: for each row of the table and each rank."""

    columns: tuple[tuple[str, str], ...]
    ranks: NDArray[np.intp]
    places: NDArray[np.intp]
    own: tuple[tuple[tuple[str, str], int], ...]
    values: Row = field(default_factory=lambda: np.empty(0))
    at: float = 0.0
    ahead_s: float = 0.0
    findings: tuple[Finding, ...] = ()
    ended: dict[str, str] = field(default_factory=dict)


def by_our_clock(event: Event, ahead_s: float, now: float) -> Event:
    """Since when something is so, and when its node will go, an agent says by its own wall clock, which may be an hour off; `ahead_s` is by how much."""
    if isinstance(event, FindingMade):
        return replace(event, finding=replace(event.finding, since=min(now, event.finding.since - ahead_s)))
    if isinstance(event, NodeCordoned) and event.goes_at is not None:
        return replace(event, goes_at=event.goes_at - ahead_s)
    return event


class Heard:
    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._rows = {metric: place for place, metric in enumerate(_OF_RANKS)}

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def take(self, message: Signals, now: float) -> list[Signal] | None:
        """What was said, as signals. None: we were restarted, and have not been told yet what the values are of."""
        node = self._nodes.get(message.node)
        if message.columns is not None:
            node = self._nodes[message.node] = self._placed(message.columns)
        if node is None or len(node.columns) != len(message.values):
            return None
        node.values = np.array((*message.values, nan), dtype=np.float64)  # The last is for numbers that are not there. None becomes NaN.
        node.at, node.findings, node.ended = now, message.findings, message.ended
        node.ahead_s = message.wall_s - now if message.wall_s else 0.0
        return [Signal(metric, value, of) for (metric, of), value in zip(node.columns, message.values, strict=True) if value is not None]

    def gone(self, node: str) -> None:
        self._nodes.pop(node, None)

    def speaking(self, now: float, within_s: float) -> list[str]:
        """The nodes that were heard of late."""
        return sorted(name for name, node in self._nodes.items() if now - node.at <= within_s)

    def ahead_s(self, node: str) -> float:
        """How far the node's wall clock is ahead of control's calendar, as it was last said."""
        known = self._nodes.get(node)
        return known.ahead_s if known is not None else 0.0

    def findings(self) -> list[Finding]:
        """What is wrong with the measuring, and with saving."""
        return [finding for node in self._nodes.values() for finding in node.findings]

    def ended(self, key: str) -> str:
        """How a finding of a node came to its end, where the node says more than that it has."""
        return next((node.ended[key] for node in self._nodes.values() if key in node.ended), "")

    def of_ranks(self, nodes: Sequence[str], ranks: int, now: float, *, after: float) -> dict[str, Row]:
        """For each metric, the newest number of each rank that was said by its node after `after` and of late. `nodes` are those of the gang, in order: a node
        that had other ranks before still says that it knows nothing of them."""
        table, each = np.full((len(self._rows), ranks), nan), ranks // max(1, len(nodes))
        for place, name in enumerate(nodes):
            node = self._nodes.get(name)
            if node is not None and now - node.at <= FRESH_S and node.at > after:
                here = (node.ranks >= place * each) & (node.ranks < (place + 1) * each)
                table[: len(node.places), node.ranks[here]] = node.values[node.places[:, here]]
        return dict(zip(self._rows, table, strict=True))

    def of_node(self, name: str, now: float, *, after: float) -> Mapping[tuple[str, str], float]:
        """The node's own numbers that may run out."""
        node = self._nodes.get(name)
        if node is None or now - node.at > FRESH_S or node.at <= after:
            return {}
        return {column: float(node.values[place]) for column, place in node.own}

    def _placed(self, columns: tuple[tuple[str, str], ...]) -> _Node:
        numbered = [(place, metric, int(of)) for place, (metric, of) in enumerate(columns) if of.isdecimal() and self._is_kept(metric)]
        ranks = np.array(sorted({rank for _, _, rank in numbered}), dtype=np.intp)
        order = {int(rank): number for number, rank in enumerate(ranks)}
        places = np.full((len(self._rows), len(ranks)), -1, dtype=np.intp)
        for place, metric, rank in numbered:
            places[self._rows[metric], order[rank]] = place
        own = tuple((column, place) for place, column in enumerate(columns) if column[0] in _OF_NODES)
        return _Node(columns=columns, ranks=ranks, places=places, own=own)

    def _is_kept(self, metric: str) -> bool:
        """Whether it has a row in the table. What scripts report gets one when it is first heard of, as long as there are places."""
        if metric.startswith(USER_PREFIX) and metric not in self._rows and len(self._rows) < len(_OF_RANKS) + SERIES_MAX:
            self._rows[metric] = len(self._rows)
        return metric in self._rows
