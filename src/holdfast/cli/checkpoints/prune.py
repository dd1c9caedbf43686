"""`holdfast checkpoint prune`: remove what no rule wants."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from holdfast.checkpoint.found import CheckpointFound, list_complete
from holdfast.checkpoint.remove import Retention, kept
from holdfast.cli.checkpoints.drawing import numbers_text, print_json, size_text
from holdfast.cli.checkpoints.place import InStore, Where, choose, place_of
from holdfast.cli.common import AsJson, State, number
from holdfast.cli.words import count
from holdfast.errors import UserError


def prune_(
    where: Where,
    last: Annotated[int, typer.Option(min=1, help="Keep the newest so many; two are kept in any case.")],
    every: Annotated[int, typer.Option(min=0, help="Keep those of steps divisible by this.", show_default="none")] = 0,
    best: Annotated[int, typer.Option(min=0, help="Keep so many with the lowest value of the metric.", show_default="none")] = 0,
    metric: Annotated[str, typer.Option(help="What is best is judged by this; a leading minus asks for the highest.")] = "loss",
    older_s: Annotated[float, number(min=0.0, help="Keep one that is older than so many seconds.", show_default="none")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    in_store: InStore = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Remove the checkpoints that no rule wants."""
    place, now = place_of(where, state, in_store=in_store), time.time()
    place.not_running("prune")
    newest = choose(place, "newest")
    line = list_complete(place.path)
    if best and not any(metric.removeprefix("-") in (one.manifest.numbers or {}) for one in line):
        known = sorted({name for one in line for name in one.manifest.numbers or {}})
        raise UserError(f"no checkpoint in {place.said} carries the number {metric.removeprefix('-')!r}; they carry {', '.join(known) or 'none'}.")
    # All that is there counts as one line: whoever prunes by hand sees all of it in the list.
    retention = Retention(last=last, every=every, best=best, metric=metric, older_s=older_s, restored=newest.age_key)
    wanted = kept(line, retention, now=now)
    doomed = [one for one in line if one.name not in wanted]
    freed = _freed(line, wanted)
    if not as_json:
        _say_doomed(doomed, len(wanted), freed)
    removed = not dry_run and bool(doomed) and (yes or _confirmed(len(doomed)))
    if removed:
        with place.held():
            place.prune(retention, generation=newest.generation, now=now)
    if as_json:
        names = {"doomed": [one.name for one in doomed], "kept": [one.name for one in line if one.name in wanted]}
        print_json({**names, "freed_bytes": freed, "removed": removed})
    elif doomed:
        print(f"{'removed' if removed else 'nothing was removed:'} {count(len(doomed), 'checkpoint')}{'' if removed else ' would go'}")


def _freed(line: Iterable[CheckpointFound], wanted: set[str]) -> int:
    """Bytes that nobody refers to once only the wanted ones are left."""
    chunks = {chunk.path: chunk.size_bytes for one in line if one.name not in wanted for chunk in one.manifest.chunks}
    needed = {chunk.path for one in line if one.name in wanted for chunk in one.manifest.chunks}
    return sum(size for path, size in chunks.items() if path not in needed)


def _say_doomed(doomed: Sequence[CheckpointFound], stay: int, freed: int) -> None:
    if not doomed:
        print(f"nothing to remove: all {stay} are wanted by a rule")
        return
    for one in doomed:
        print(", ".join(filter(None, [f"goes: {one.name}", size_text(one.manifest.size_bytes), numbers_text(one.manifest.numbers or {}, ", ")])))
    print(f"{count(len(doomed), 'checkpoint')} of {len(doomed) + stay}; that frees {size_text(freed)}")


def _confirmed(number: int) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return typer.confirm(f"Remove {count(number, 'checkpoint')}?", err=True)
