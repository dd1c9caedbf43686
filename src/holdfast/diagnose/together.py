"""What belongs together: whether one finding explains another, so that both tell one story.

Findings come in the order they were noticed, which is not the order of cause: a slow rank is noticed before the throttled GPU under it, a full disk after the
save that failed on it. So the question is asked both ways, and the story is named after the finding that nothing else in it explains.

Is wrong    when two faults of kinds that often go together happen by chance at once on the same node: they are told as one story, and both are named in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.finding import SAVES, Finding, Severity

# What is a slowness: whatever slows a job down may be behind it.
SLOW = frozenset({"slow_rank", "slow_job", "slow_communication", "data_stall", "slow_save", "over_time", "over_time_soon", "hopelessly_slow"})
_LATE = ("over_time", "over_time_soon", "hopelessly_slow")  # What comes of being slow for long.

# What explains what.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "throttled": ("slow_rank", "slow_job", *_LATE),
    "held_back": ("slow_rank", "slow_job", *_LATE),
    "busy_host": ("slow_rank", "slow_job", "data_stall", *_LATE),
    "lossy_network": ("slow_communication", "slow_job", "slow_rank", "silent_node", "worker_exited", *_LATE),
    "slow_peer": ("slow_communication", "slow_job", "slow_rank", *_LATE),
    "slow_disk": ("data_stall", "slow_save", "saves_skipped", "slow_job", "slow_rank", "silent_rank", "pause", "late_data", *_LATE),
    "failing_disk": ("data_stall", "slow_save", "saves_skipped", "worker_exited", "silent_rank", "pause", "late_data"),
    "disk_running_out": ("failing_disk", "saves_skipped", "worker_exited"),
    # A save that failed says what is wrong with the disk in the system's own words, which is more than a threshold can tell.
    "save_failed": ("save_will_fail", "saves_skipped", "slow_save", "checkpoint_stale", "disk_running_out", "failing_disk"),
    "save_will_fail": ("disk_running_out", "checkpoint_stale"),
    "upload_failed": ("checkpoint_stale",),
    "memory_running_out": ("worker_exited", "slow_rank", "slow_job", "swapping"),
    "memory_leak": ("memory_running_out", "worker_exited", "slow_rank", "slow_job", "swapping"),
    "memory_peak": ("memory_running_out", "worker_exited", "slow_rank", "slow_job"),
    "swapping": ("slow_rank", "slow_job", *_LATE),
    "data_stall": ("silent_rank", "slow_job", "slow_rank", *_LATE),
    "slow_rank": ("slow_job", "slow_communication", "data_stall", *_LATE),
    "slow_communication": ("slow_job", *_LATE),
    "slow_save": ("slow_job", *_LATE),
    "slow_job": _LATE,
    "hopelessly_slow": ("over_time", "over_time_soon"),
    "over_time": ("over_time_soon",),
    "poisoned_checkpoint": ("not_finite", "gradient_explosion", "loss_jump", "replicas_disagree"),
    "not_finite": ("gradient_explosion", "loss_jump", "replicas_disagree"),
    "gradient_explosion": ("loss_jump",),
    "replicas_disagree": ("loss_jump", "not_finite"),
    "stopped_rank": ("silent_rank", "pause", "slow_job", "slow_rank"),
    "silent_rank": ("pause", "late_data"),
    "pause": ("slow_job", "slow_rank", *_LATE),
    "late_data": ("data_stall", "slow_job", "slow_rank", *_LATE),
    "log_flood": ("disk_running_out", "slow_rank", "slow_job"),
    "gpu_fault": ("worker_exited", "silent_rank", "slow_rank", "not_finite", "replicas_disagree"),
}
# A number that did something new, and the stories it is a part of. It is a sign, never the cause.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "loss": ("loss_jump", "gradient_explosion", "replicas_disagree"),
    "gradient_norm": ("gradient_explosion", "gradient_vanishing", "loss_jump"),
    "parameter_norm": ("gradient_explosion", "loss_jump", "replicas_disagree"),
    "update_norm": ("gradient_explosion", "gradient_vanishing", "loss_jump"),
    "validation_loss": ("gap", "loss_jump"),
    "accuracy_ratio": ("gap", "loss_jump"),
    "step_seconds": tuple(sorted(SLOW)),
    "step_data_seconds": ("data_stall", "slow_job", *_LATE),
    "step_communication_seconds": ("slow_communication", "slow_job", "slow_rank", *_LATE),
    "samples_per_second": tuple(sorted(SLOW)),
    "tokens_per_second": tuple(sorted(SLOW)),
}
# How an effect is called in the sentence that gives its cause.
_SHORT = {
    "slow_rank": "rank {rank} is slow", "slow_job": "the job is slow", "slow_communication": "ranks wait for each other",
    "data_stall": "training waits for data", "slow_save": "saves are slow", "over_time": "the job is over its time",
    "over_time_soon": "the job will be over its time", "hopelessly_slow": "the job is hopelessly slow",
}  # fmt: skip
_ENOUGH = 0.3  # Of what the effect adds to a step.
_OF_A_NODE = ("memory_running_out", "swapping", "disk_running_out")  # Who took most of it is not who runs into its end.
_OF_ALL = ("saves_skipped", "slow_save", "save_failed", "save_will_fail")  # A save is one of all ranks: what holds up one of them is felt by the others.
WITHIN_S = 120.0  # A cause and what it does are seen within this time of each other: windows of a minute, and a look or two.


def belongs(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether `finding` and what an incident holds already are one story."""
    return any(_same(finding, other) or _explains(finding, other) or _explains(other, finding) for other in others)


def tells_of(finding: Finding, other: Finding) -> bool:
    """Whether what is only worth knowing says something about `other`: its cause, or another sign of it."""
    return _explains(finding, other) or (finding.kind == "unusual_value" and _explains(other, finding))


def in_words(findings: Sequence[Finding]) -> str:
    """The story in one sentence: what is so, and because of what."""
    first = leading(findings)
    reason = next((one for one in findings if one.severity is Severity.INFO and one.kind != first.kind and _explains(one, first)), None)
    effect = next((one for one in findings if one.kind in _SHORT and one.kind != first.kind and _explains(first, one)), None)
    cause, effect = (reason, first) if reason is not None and first.kind in _SHORT else (first, effect)
    return f"{_SHORT[effect.kind].format(rank=', '.join(map(str, effect.ranks)))} because {cause.because}" if effect is not None else cause.because


def leading(findings: Sequence[Finding]) -> Finding:
    """The finding a story is named after: the first that none of the others explains, and of several that say what they add to a step the one that adds most.
    What is only worth knowing gives a reason, not a name; but that the job is slow says so little that its reason is the better name.
    """
    loud = [one for one in findings if one.severity is not Severity.INFO] or findings
    unexplained = [one for one in loud if not any(_explains(other, one) and _weighs(other, one) for other in loud if other is not one)] or loud[:1]
    first = max(unexplained, key=lambda one: one.adds_s) if all(one.adds_s for one in unexplained) else unexplained[0]
    if first.kind == "slow_job":
        first = next((one for one in findings if one.severity is Severity.INFO and _explains(one, first)), first)
    # Nodes that share a machine see its memory go alike; the one with the rank that takes it can say more.
    return first if first.ranks else next((one for one in loud if one.kind == first.kind and one.ranks), first)


def _weighs(cause: Finding, effect: Finding) -> bool:
    """A rank that takes 10 ms longer is not why a step takes 150 ms longer, although it belongs to the story."""
    return not (cause.adds_s and effect.adds_s) or cause.adds_s >= _ENOUGH * effect.adds_s


def _same(one: Finding, other: Finding) -> bool:
    """The same kind of thing at the same time, on whomever: twelve slow ranks are one incident. In the same place it may come back later."""
    at_once = abs(one.since - other.since) <= WITHIN_S
    return one.kind == other.kind and (at_once or (one.node, one.of) == (other.node, other.of))


def _explains(cause: Finding, effect: Finding) -> bool:
    if effect.kind == "unusual_value":
        return cause.kind in _NUMBERS.get(effect.of, ()) and abs(effect.since - cause.since) <= WITHIN_S
    if cause.kind == "flapping":
        return cause.of == f"{effect.kind} {effect.of}".strip() and (cause.node, cause.ranks) == (effect.node, effect.ranks)
    if effect.kind == "hung_probe":  # It is named after what it looks at, and whatever is wrong with that is why.
        return bool(cause.of) and effect.of.endswith(cause.of) and _touch(cause, effect) and abs(effect.since - cause.since) <= WITHIN_S
    lasts = cause.kind in SAVES and (cause.node, cause.of) == (effect.node, effect.of)  # A disk may be full for hours before the first save.
    touches = effect.kind in _OF_ALL or (_on_one_node(cause, effect) if cause.kind in _OF_A_NODE else _touch(cause, effect))
    return effect.kind in EXPLAINS.get(cause.kind, ()) and touches and (lasts or effect.since - cause.since >= -WITHIN_S)


def _on_one_node(one: Finding, other: Finding) -> bool:
    return one.node == other.node if one.node and other.node else _touch(one, other)


def _touch(one: Finding, other: Finding) -> bool:
    """Whether they are about the same place. What is about the whole job touches everything."""
    if (not one.node and not one.ranks) or (not other.node and not other.ranks):
        return True
    if one.ranks and other.ranks:
        return bool(set(one.ranks) & set(other.ranks))
    return not (one.node and other.node) or one.node == other.node
