"""What belongs together: whether one finding explains another, so that both tell one story.

Findings come in the order they were noticed, which is not the order of cause: a slow rank is noticed before the throttled GPU under it, a full disk after the
save that failed on it. So the question is asked both ways, and the story is named after the finding that nothing else in it explains.

Is wrong    when two faults of kinds that often go together happen by chance at once on the same node: they are told as one story, and both are named in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.finding import Finding

# What explains what.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "throttled": ("slow_rank", "slow_job"),
    "held_back": ("slow_rank", "slow_job"),
    "busy_host": ("slow_rank", "slow_job", "data_stall"),
    "lossy_network": ("slow_communication", "slow_job", "slow_rank", "silent_node", "worker_exited"),
    "slow_peer": ("slow_communication", "slow_job", "slow_rank"),
    "slow_disk": ("data_stall", "slow_save", "slow_job", "slow_rank", "silent_rank"),
    "failing_disk": ("data_stall", "slow_save", "worker_exited", "silent_rank"),
    "disk_running_out": ("failing_disk", "worker_exited"),
    "memory_running_out": ("worker_exited", "slow_rank", "slow_job", "swapping"),
    "swapping": ("slow_rank", "slow_job"),
    "data_stall": ("silent_rank", "slow_job", "slow_rank"),
    "slow_rank": ("slow_job", "slow_communication", "data_stall"),
    "slow_communication": ("slow_job",),
    "slow_save": ("slow_job",),
    "poisoned_checkpoint": ("not_finite", "gradient_explosion", "loss_jump", "replicas_disagree"),
    "not_finite": ("gradient_explosion", "loss_jump", "replicas_disagree"),
    "gradient_explosion": ("loss_jump",),
    "replicas_disagree": ("loss_jump", "not_finite"),
    "stopped_rank": ("silent_rank", "slow_job", "slow_rank"),
    "log_flood": ("disk_running_out", "slow_rank", "slow_job"),
    "gpu_fault": ("worker_exited", "silent_rank", "slow_rank", "not_finite", "replicas_disagree"),
}
WITHIN_S = 120.0  # A cause and what it does are seen within this time of each other: windows of a minute, and a look or two.


def belongs(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether `finding` and what an incident holds already are one story."""
    return any(_same(finding, other) or _explains(finding, other) or _explains(other, finding) for other in others)


def leading(findings: Sequence[Finding]) -> Finding:
    """The finding a story is named after: the first that none of the others explains."""
    return next((one for one in findings if not any(_explains(other, one) for other in findings if other is not one)), findings[0])


def _same(one: Finding, other: Finding) -> bool:
    """The same kind of thing at the same time, on whomever: twelve slow ranks are one incident. In the same place it may come back later."""
    at_once = abs(one.since - other.since) <= WITHIN_S
    return one.kind == other.kind and (at_once or (one.node, one.of) == (other.node, other.of))


def _explains(cause: Finding, effect: Finding) -> bool:
    return effect.kind in EXPLAINS.get(cause.kind, ()) and _touch(cause, effect) and effect.since - cause.since >= -WITHIN_S


def _touch(one: Finding, other: Finding) -> bool:
    """Whether they are about the same place. What is about the whole job touches everything."""
    if (not one.node and not one.ranks) or (not other.node and not other.ranks):
        return True
    if one.ranks and other.ranks:
        return bool(set(one.ranks) & set(other.ranks))
    return not (one.node and other.node) or one.node == other.node
