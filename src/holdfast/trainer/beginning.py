"""The beginning of a guarded run: what must survive is restored from the newest checkpoint (or the one control chose), and the `Run` is made of its parts.

Under `holdfast run` the directory comes from there, since control must find the checkpoints again; elsewhere from `checkpoints=`, and without one nothing is
saved.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import list_directories, newest_complete
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.checkpoint.pieces import Changed, check
from holdfast.checkpoint.read import Restored, recall, restore
from holdfast.checkpoint.remove import RULES, Retention, sweep_torn
from holdfast.domain.beat import FOLLOWS, GUARDED
from holdfast.errors import UserError
from holdfast.trainer.beats import Beats, open_beats
from holdfast.trainer.buckets import settle
from holdfast.trainer.curve import open_curve
from holdfast.trainer.every import open_record
from holdfast.trainer.flight import listen
from holdfast.trainer.forgotten import Forgotten
from holdfast.trainer.handing import take_over
from holdfast.trainer.holding import tell
from holdfast.trainer.parting import Kept, Parting, held_by_several, say_why_not, sharded, why_not
from holdfast.trainer.place import Place, place_here, process_group
from holdfast.trainer.profiling import Profiling, open_request
from holdfast.trainer.random_streams import Streams
from holdfast.trainer.rejoining import Rejoining, current
from holdfast.trainer.run import Run
from holdfast.trainer.saves import SavePlan, Saves
from holdfast.trainer.say import Say
from holdfast.trainer.snapshots import Snapshots
from holdfast.trainer.stop import Stop

SAVE_EVERY = 100  # Steps, as long as nobody has said or measured anything.

_SECOND_GUARD = (
    "this is the second guard of this script. After a restart the first one would be given what the second has saved, or refuse it. Give all pieces to one "
    "guard, each under a name of its own; a second loop then asks for the sum of the steps: run.steps(first + second)."
)
_guarded: set[int] = set()  # The processes in which there was one; what is forked from such a process has a number of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """What all ranks must agree on before the first step: under which generation they save, and what they restore."""

    generation: int
    restore: str


def begin(
    *, save_every: int | None, checkpoints: str | PathLike[str] | None, keep: int | Mapping[str, Any], new: Collection[str], dropped: Collection[str],
    pieces: dict[str, Any],
) -> Run:  # fmt: skip
    """What `guard` does."""
    retention, changed = _retention(save_every, keep), _changed(new, dropped, pieces)
    check(pieces)
    place = place_here()
    say = Say(rank=place.rank, world_size=place.world_size)
    beats = _open_beats(place, say)
    directory = _directory(place, checkpoints, say)
    beginning = _agree_on_beginning(place, directory, say) if directory else None
    _settle_buckets(place, pieces, say)
    rejoining = current()
    if rejoining is not None:
        rejoining.guards(sharded(pieces), say)
    elif place.plugged and place.rank == 0 and os.getpid() in _guarded:
        say.once("second guard", _SECOND_GUARD)
    _guarded.add(os.getpid())
    snapshots = Snapshots(place.snapshots, beginning.generation, place, pieces=pieces, say=say) if beginning and place.snapshots else None
    if place.rejoin:
        restored: Restored | None = _rejoin(rejoining, place, pieces, beats)
    else:
        restored = _restore(place, directory, beginning, pieces, changed, snapshots, beats, say) if directory and beginning else None
        if restored is not None and rejoining is not None and rejoining.lives_on:
            again = max(0, rejoining.parting.left_after - restored.step)
            say.line(f"this process lives on; step {restored.step} is restored, and the {again} steps that it has done since are done again.")
    stop = Stop(place) if place.plugged else None
    if stop is not None:
        stop.install()
    if place.flight is not None:
        listen(place.flight)
    saved_step = restored.step if restored and not place.rejoin else -1
    plan = _plan(place, directory, beginning, _every(place, save_every), retention, restored) if directory and beginning else None
    record = _record(place, say) if plan and (save_every is None or place.save_asked) else None
    saves = Saves(plan, pieces, say, saved_step=saved_step, snapshots=snapshots, record=record)
    if plan is not None:
        beats.save_every = plan.every
        beats.flags |= FOLLOWS if record is not None else 0
    run = Run(
        beats=beats, saves=saves, stop=stop, say=say, pieces=pieces, restored=restored, world_size=place.world_size, profiling=_profiling(place, say),
        micro_batch=place.micro_batch, loader_workers=place.loader_workers, parting=_parting(rejoining, place, pieces, beats, say),
        left_out=place.left_out, tune=place.tune, scaling=place.scaling, curve=open_curve(place), until=place.until,
        forgotten=_forgotten(pieces, say) if directory and restored is None and place.rank == 0 else None,
    )  # fmt: skip
    if place.plugged:
        _say_what_it_holds(place, pieces, beats, say)
    if rejoining is not None:
        rejoining.on_leaving(run.take_off)
    return run


def _say_what_it_holds(place: Place, pieces: dict[str, Any], beats: Beats, say: Say) -> None:
    try:
        tell(beats.gauges, pieces, place.world_size)
    except Exception as error:  # Another torch may do this otherwise; then nobody knows who holds the same, and no more.
        say.line(f"what this rank holds of the state could not be told: {error!r}")


def _forgotten(pieces: dict[str, Any], say: Say) -> Forgotten | None:
    try:
        return Forgotten(pieces, say)
    except (AttributeError, ImportError) as error:  # Another torch may do this otherwise.
        say.line(f"whether guard() lacks a piece could not be found out: {error!r}")
        return None


def _every(place: Place, given: int | None) -> int:
    """What the command line said, or else the script, or else control."""
    if given is not None and not place.save_asked:
        return given
    return SAVE_EVERY if place.save_every is None else place.save_every


def _record(place: Place, say: Say) -> memoryview | None:
    if place.interval is None:
        return None
    try:
        return open_record(place.interval)
    except (OSError, ValueError) as error:
        say.line(f"how often to save will not change: {place.interval} cannot be mapped: {error}")
        return None


def _profiling(place: Place, say: Say) -> Profiling | None:
    if place.profile is None or place.profiles is None:
        return None
    try:
        return Profiling(open_request(place.profile), place, say)
    except (OSError, ValueError) as error:
        say.line(f"this rank cannot be profiled: {place.profile} cannot be mapped: {error}")
        return None


def _retention(save_every: int | None, keep: int | Mapping[str, Any]) -> Retention:
    rules = {"last": keep} if isinstance(keep, int) else dict(keep)
    unknown = sorted(rules.keys() - RULES)
    if unknown:
        raise UserError(f"guard(keep={keep!r}): there is no rule {unknown[0]!r}; the rules are {', '.join(sorted(RULES))}.")
    try:
        sound = (save_every is None or save_every >= 0) and rules.get("last", 1) >= 1 and all(rules.get(rule, 0) >= 0 for rule in ("every", "best", "older_s"))
        sound = sound and isinstance(rules.get("metric", ""), str)
    except TypeError:
        sound = False
    if not sound:
        raise UserError(
            f"guard(save_every={save_every}, keep={keep!r}): expected save_every of 0 or more steps or None, at least 1 checkpoint to keep, "
            "no rule below 0, and the metric as a name."
        )
    return Retention(**rules)


def _changed(new: Collection[str], dropped: Collection[str], pieces: dict[str, Any]) -> Changed:
    new, dropped = ((names,) if isinstance(names, str) else tuple(names) for names in (new, dropped))
    for word, wrong, what in (("new", set(new) - pieces.keys(), "is no piece"), ("dropped", set(dropped) & pieces.keys(), "is given as a piece")):
        if wrong:
            raise UserError(f"guard({word}={sorted(wrong)!r}): {sorted(wrong)[0]} {what}; the pieces are {', '.join(sorted(pieces)) or 'none'}.")
    return Changed(new=new, dropped=dropped)


def _settle_buckets(place: Place, pieces: dict[str, Any], say: Say) -> None:
    try:
        why = settle(pieces) if place.world_size > 1 else ""
    except (AttributeError, RuntimeError, TypeError) as error:  # Another torch may do this otherwise; that costs the last bits and no more.
        why = f"the sums of gradients may differ in their last bits after a resume: DDP's buckets could not be settled: {error!r}"
    if why and place.rank == 0:
        say.line(why)


def _open_beats(place: Place, say: Say) -> Beats:
    try:
        beats = open_beats(place.beats, generation=place.generation or 0)
    except (OSError, ValueError) as error:
        say.line(f"no beats will be sent: {place.beats} cannot be mapped: {error}")
        beats = Beats(None)
    beats.flags |= GUARDED
    beats.enter("start")
    return beats


def _directory(place: Place, given: str | PathLike[str] | None, say: Say) -> Path | None:
    if place.checkpoints is not None:
        return place.checkpoints
    if given is None and place.rank == 0:
        say.line("no checkpoints will be saved: the script was not started by holdfast run, and guard() was given no checkpoints=.")
    return Path(given) if given is not None else None


def _agree_on_beginning(place: Place, directory: Path, say: Say) -> _Beginning | None:
    """What control said, or else what rank 0 finds. Ranks that looked for themselves might see different things while another one already saves."""
    if place.generation is not None and place.restore is not None:
        return _Beginning(generation=place.generation, restore=place.restore)
    group = process_group()
    if place.world_size == 1 or (group is None and place.generation is not None):
        return _look(place, directory)
    if group is None:
        say.line("no checkpoints will be saved or restored: call guard() after torch.distributed.init_process_group, by which the ranks agree on one.")
        return None
    found = [_look(place, directory)] if place.rank == 0 else [None]
    store = group.PrefixStore("holdfast/beginning", group.distributed_c10d._get_default_store())
    return _share(store, found[0], place.rank)


def _look(place: Place, directory: Path) -> _Beginning:
    newest = newest_complete(directory)
    names = (parse_directory_name(path.name) for path in list_directories(directory))
    unused = 1 + max((generation for _, generation in filter(None, names)), default=0)
    return _Beginning(generation=unused if place.generation is None else place.generation, restore=newest.name if newest else "")


def _share(store: Any, found: _Beginning | None, rank: int) -> _Beginning:
    """Rank 0 tells, the others hear. A process may call guard more than once, so each call has a key of its own."""
    call = store.add(f"calls/{rank}", 1)
    if found is not None:
        store.set(f"{call}", f"{found.generation} {found.restore}")
        return found
    generation, _, name = store.get(f"{call}").decode().partition(" ")
    return _Beginning(generation=int(generation), restore=name)


def _restore(
    place: Place, directory: Path, beginning: _Beginning, pieces: dict[str, Any], changed: Changed, snapshots: Snapshots | None, beats: Beats, say: Say
) -> Restored | None:  # fmt: skip
    if not beginning.restore:
        return None
    if parse_directory_name(beginning.restore) is None:
        raise UserError(f"HOLDFAST_RESTORE is {beginning.restore!r}: expected the name of a checkpoint's directory, such as step-00000120.g3.")
    beats.enter("restore")
    try:
        restored = _recall(beginning.restore, pieces, changed, snapshots, place, say)
        if restored is None:
            alone = place.local_world_size == 1
            restored = restore(directory / beginning.restore, pieces, rank=place.rank, world_size=place.world_size, alone=alone, changed=changed)
    except CheckpointCorrupt as corrupt:
        if not place.plugged:
            raise
        say.line(str(corrupt))
        raise SystemExit(corrupt.exit_code) from corrupt  # Control knows this code, and goes back to an older checkpoint.
    if place.rank == 0:  # Beside the training: gigabytes take a second to remove while the disk is busy, and nobody waits for it.
        threading.Thread(target=_sweep, args=(directory, beginning, restored, say), name="holdfast-sweep", daemon=True).start()
    if place.rank == 0:
        _say_what_changed(restored, pieces, say)
    beats.step = beats.restored_step = beats.saved_step = restored.step
    beats.enter("start")
    return restored


def _say_what_changed(restored: Restored, pieces: dict[str, Any], say: Say) -> None:
    new, dropped = sorted(pieces.keys() - restored.held), sorted(restored.held - pieces.keys())
    if new:
        say.line(f"new: {', '.join(new)}. The checkpoint of step {restored.step} has nothing for it, so it starts from what the script made.")
    if dropped:
        say.line(f"dropped: {', '.join(dropped)}. The checkpoint of step {restored.step} holds it, and it is in no checkpoint from now on.")


def _rejoin(rejoining: Rejoining | None, place: Place, pieces: dict[str, Any], beats: Beats) -> Restored:
    beats.enter("restore")
    restored = take_over(rejoining.kept if rejoining is not None else Kept(), pieces, place)
    if rejoining is not None:
        rejoining.kept, rejoining.handed_over = Kept(), True
    beats.step = beats.restored_step = restored.step
    beats.enter("start")
    return restored


def _parting(rejoining: Rejoining | None, place: Place, pieces: dict[str, Any], beats: Beats, say: Say) -> Parting | None:
    if rejoining is None:
        return None
    if sharded(pieces) and not held_by_several(pieces):
        rejoining.parting.watch_parts(beats)
        return rejoining.parting
    reason = why_not(pieces)
    if reason:
        say.once("rejoin", f"this rank cannot rejoin a gang, and is started again with the others: {reason}.")
        say_why_not(rejoining.directory, reason)
        return None
    rejoining.parting.watch(pieces, beats, Streams(rejoining.directory / f"randomness-{place.rank}"))
    return rejoining.parting


def _recall(name: str, pieces: dict[str, Any], changed: Changed, snapshots: Snapshots | None, place: Place, say: Say) -> Restored | None:
    """From this node's memory, if it is there."""
    found = snapshots.find(name) if snapshots is not None else None
    if snapshots is None or found is None:
        return None
    snapshots.pin(found[0])
    restored = recall(*found, pieces, world_size=place.world_size, changed=changed)
    if restored is not None and place.rank == 0:
        say.line(f"step {restored.step} is restored from memory.")
    return restored


def _sweep(directory: Path, beginning: _Beginning, restored: Restored, say: Say) -> None:
    """What is restored from memory may just be becoming durable, and what is not older than the newest complete one may be needed."""
    newest = newest_complete(directory)
    try:
        if newest is not None:
            below = restored.step if newest.name == restored.name else min(newest.step, restored.step - 1)
            sweep_torn(Disk(), directory, generation=beginning.generation, restored_step=below)
    except OSError as error:
        say.line(f"torn checkpoints in {directory} could not be removed, and stay where they are: {error}")


def _plan(place: Place, directory: Path, beginning: _Beginning, every: int, retention: Retention, restored: Restored | None) -> SavePlan:
    line = (restored.generation, restored.step) if restored else None
    return SavePlan(
        checkpoints=directory, every=every, generation=beginning.generation, rank=place.rank, world_size=place.world_size,
        retention=replace(retention, restored=line), keep_shared=place.local_rank == 0, job=place.job,
    )  # fmt: skip
