"""What each account is entitled to now: weighted water-filling, the same rule at every level, down to jobs and processes.

Guaranteed quotas are met first. What is left is poured over siblings by weight; who wants less than his part takes what he wants, and the rest is poured again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.schedule.tree import ROOT, Tree

_DROP = 1e-12  # Of the amount: less is rounding.


def poured(amount: float, weights: Sequence[float], wants: Sequence[float], guarantees: Sequence[float] | None = None) -> list[float]:
    """Max-min fair parts of `amount`: nobody gets more than he wants, and nobody could get more without one who has less per weight getting less."""
    parts = [min(want, guarantee) for want, guarantee in zip(wants, guarantees, strict=True)] if guarantees is not None else [0.0] * len(weights)
    left = amount - sum(parts)
    # The level at which a sibling is full, lowest first: each is met once, so this takes n log n.
    unmet = (number for number in range(len(weights)) if wants[number] > parts[number])
    thirsty = sorted(unmet, key=lambda one: ((wants[one] - parts[one]) / weights[one], one))
    weight = sum(weights[number] for number in thirsty)
    for number in thirsty:
        if left <= amount * _DROP:
            break
        part = min(wants[number] - parts[number], left * weights[number] / weight)
        parts[number] += part
        left -= part
        weight -= weights[number]
    return parts


def entitled(tree: Tree, wants: Mapping[int, float], amount: float | None = None) -> dict[int, float]:
    """GPUs each account is entitled to, for what the leaves want (running and waiting). Limits hold at every level."""
    wanted = [0.0] * len(tree.accounts)
    for number in range(len(tree.accounts) - 1, -1, -1):  # Children come after their parents, so each is complete when it is added.
        wanted[number] += wants.get(number, 0.0)
        limit = tree.limits[number]
        if limit is not None:
            wanted[number] = min(wanted[number], float(limit))
        if number != ROOT:
            wanted[tree.parents[number]] += wanted[number]
    parts = {ROOT: min(float(tree.capacity_gpus) if amount is None else amount, wanted[ROOT])}
    for number, children in enumerate(tree.children):
        if children:
            of = poured(
                parts[number], [tree.weights[child] for child in children], [wanted[child] for child in children],
                [float(tree.quotas[child]) for child in children],
            )  # fmt: skip
            parts.update(zip(children, of, strict=True))
    return parts
