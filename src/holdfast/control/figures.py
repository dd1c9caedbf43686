"""Figures: the newest values of the job's series, for those who watch."""

from __future__ import annotations

from typing import Final

from holdfast.control.newest import SPEAKING_S, Newest
from holdfast.control.watching import Watching
from holdfast.domain.state import Gang
from holdfast.wire.messages import Figures

NODES_MAX: Final = 64  # More than fit on any screen.
VALUES_MAX: Final = 20_000  # About a megabyte, a quarter of what a frame holds.
_FINDINGS_MAX: Final = 100


def figures_of(watching: Watching, newest: Newest, gang: Gang | None, now: float) -> Figures:
    """Of the gang's nodes first."""
    speaking = watching.speaking(now, SPEAKING_S)
    members = set(gang.nodes) if gang is not None else set()
    nodes = sorted(speaking, key=lambda node: node not in members)
    rings = watching.rings
    of_each = max(1, len(rings) // max(1, len(nodes)))
    shown = set(nodes[: max(1, min(NODES_MAX, VALUES_MAX // of_each))])
    values = [(metric, node, of, value) for metric in rings.metrics() for node, of, value in newest.of(metric, shown, now)]
    return Figures(at=now, values=tuple(values[:VALUES_MAX]), findings=watching.standing[:_FINDINGS_MAX], nodes_left_out=len(nodes) - len(shown))
