"""Inside the script: an order is a file in the directory where it listens, `do-RANK` or `do-all`, as JSON: what, for how long, from which step on.

What all ranks do begins at one step, since replicas that began one after the other would disagree: a little ahead, so that all have read it by then.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

from holdfast.chaos.ground import Ground
from holdfast.chaos.processes import kill_worker
from holdfast.chaos.undo import Remove

AHEAD_STEPS = 8
ALL = "all"


def order(ground: Ground, who: str, how: str, **more: float) -> None:
    path = ground.orders / f"do-{who}"
    ground.undoing.add(Remove(path=str(path)))
    if who == ALL:
        more["from_step"] = ground.scene.step() + AHEAD_STEPS
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"id": secrets.token_hex(8), "how": how, **more}))
    new.replace(path)


def inside(how: str, **more: float) -> Callable[[Ground, int], None]:
    return lambda ground, rank: order(ground, str(rank), how, **more)


def everywhere(how: str, **more: float) -> Callable[[Ground, int], None]:
    return lambda ground, rank: order(ground, ALL, how, **more)


def fail_next_start(ground: Ground, rank: int) -> None:
    """Asked for before the kill, for the process that comes after it."""
    order(ground, str(rank), "exit_at_start", at_start=True)
    kill_worker(ground, rank)


def carried(orders: Path) -> frozenset[str]:
    """What the script says it can do when asked; nothing when it does not listen."""
    found = [set(path.read_text().split()) for path in orders.glob("listens-*")] if orders.is_dir() else []
    return frozenset(set.intersection(*found)) if found else frozenset()
