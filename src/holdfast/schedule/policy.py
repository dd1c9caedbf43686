"""The rules a site may change, with one default for all traces. See docs/scheduling.md for what each does to waits and evictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from holdfast.errors import UserError

HOUR_S, DAY_S = 3600.0, 86400.0
_LEAST = {"half_life_s": 1.0, "health_half_life_s": 1.0, "node_mtbf_s": 1.0, "resize_every_s": 1.0, "estimate_s": 1.0, "crash_loop": 1}
_PARTS = ("trial_share", "trial_share_least", "saved_share", "reserved_share", "estimate_quantile", "user_ceiling", "group_ceiling")


def _check(rules: Policy | PriorityClass) -> None:
    """Numbers that can be reckoned with: times are finite, and parts no more than all. A score may be infinite, and never reached."""
    for one in fields(rules):
        value = getattr(rules, one.name)
        if not isinstance(value, int | float) or one.name == "rank":
            continue
        least, most = _LEAST.get(one.name, 0), 1.0 if one.name in _PARTS else math.inf
        if not least <= value <= most or (math.isinf(value) and not one.name.endswith("_score")):
            bounds = "a part from 0 to 1" if one.name in _PARTS else f"{'seconds' if one.name.endswith('_s') else 'a number'}, {least:g} or more"
            raise UserError(f"{one.name} is {value:g}; expected {bounds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """A kind of urgency and its price. Classes order jobs inside a group; one that `crosses` goes before other groups, and only administrators grant it."""

    name: str
    rank: int
    factor: float = 1.0  # A second of it costs so many seconds of share.
    user_ceiling: float = 1.0  # At most this part of the cluster at once; a job above it is demoted, with a reason.
    group_ceiling: float = 1.0
    crosses: bool = False
    estimate_s: float = 12 * HOUR_S  # How long a job of this class runs, when nothing better is known.

    def __post_init__(self) -> None:
        _check(self)


LOW = PriorityClass(name="low", rank=-1, factor=0.5)
MEDIUM = PriorityClass(name="medium", rank=0)
HIGH = PriorityClass(name="high", rank=1, factor=2.0, user_ceiling=0.1, group_ceiling=0.25)
ADMIN = PriorityClass(name="admin", rank=2, crosses=True)
CLASSES = {one.name: one for one in (LOW, MEDIUM, HIGH, ADMIN)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    half_life_s: float = 7 * DAY_S
    entry_s: float = HOUR_S
    trial_s: float = 2 * HOUR_S  # Of one GPU: a job that fits on one node is tried for so much before it has to wait its turn. Most end within it.
    trial_share: float = 0.085  # Of the cluster, when somebody becomes due; less the longer the longest wait is, so that nobody is passed for long.
    trial_share_least: float = 0.03  # In a queue without end, where the longest wait is of weeks.
    patience_s: float = 24 * HOUR_S  # After waiting so long in all, a job is due.
    whole_ahead: float = 1.22  # Among those that are due, a gang of whole nodes counts as so many times older, and by its patience at most.
    minimum_run_s: float = HOUR_S / 2
    evictions_a_day: int = 4
    restart_s: float = 300.0
    saved_share: float = 2 / 3  # Of the time between two saves: who is past it is not evicted for ordinary work, since his next save is worth waiting for.
    evicted_before_s: float = 600.0  # Added to the cost of a victim for each time it was evicted.
    reserved_share: float = 0.02  # Of the nodes, at most, for those that are due and do not fit.
    spoiled_s: float = 900.0  # What it costs to put a firm job on a GPU that would else be part of a whole node.
    reservation_kept_s: float = HOUR_S  # Then it is looked for anew.
    filled_s: float = 6 * HOUR_S  # So long preemptible work may start on reserved nodes whatever is expected; then only what will not be in the way.
    release_s: float = 600.0  # A gang whose members do not find each other in this time gives its place back.
    back_off_s: float = 60.0  # Doubled with each failed start.
    resize_every_s: float = HOUR_S / 2
    estimate_quantile: float = 0.8
    small_gpus: int = 1  # The most that a suspect node is trusted with, and only preemptible.
    back_off_max_s: float = 6 * HOUR_S
    crash_s: float = HOUR_S / 2  # A job that fails sooner after its start fails quickly;
    crash_loop: int = 3  # so often in a row, it is in a crash loop: it loses its place, and nobody is evicted for it.
    suspect_score: float = 2.5  # A node that fails so many times as often as others gets only small preemptible work;
    drain_score: float = 6.0  # one that fails so often is emptied and repaired.
    drain_s: float = HOUR_S  # Who can be evicted leaves a sick node after this; who cannot, at its end.
    probation_s: float = 6 * HOUR_S  # Suspect for so long after each repair.
    health_half_life_s: float = 14 * DAY_S
    health_prior: float = 1.0  # How many failures of a node weigh as much as what is known of all others.
    node_mtbf_s: float = 6000 * HOUR_S  # Of a fleet of which nothing is known yet: 1.2 to 1.4 failures a node and year (docs/scheduling.md).
    classes: dict[str, PriorityClass] = field(default_factory=lambda: dict(CLASSES))

    def __post_init__(self) -> None:
        _check(self)
