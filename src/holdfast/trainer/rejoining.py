"""rejoin: a function that may be called again in the same process, when the gang around it has changed.

    @holdfast.rejoin
    def train():
        dist.init_process_group()
        model = DistributedDataParallel(net)
        run = holdfast.guard(model=model, optimizer=optimizer)
        for step in run.steps(1000):
            ...

When another rank is lost, this one leaves the loop by an exception that passes through it, waits for its new place, and the function is called anew: it makes
the process group and wraps the model again, and `guard` puts back the newest step that any rank holds whole; of a sharded model nobody holds one, and it puts
back the newest checkpoint. What is made outside of the function stays as it is. Where nobody can rejoin (no agent, one rank) the function is simply called.

Is wrong    when the function does something outside of `guard` that must happen only once: it happens once more. One that fails before `guard` when it is
            called again, or does not shard its model anew, is not called again any more: all ranks start again, then and from then on.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.trainer import loaders
from holdfast.trainer.handing import NOBODY_CODE
from holdfast.trainer.parting import Kept, Parted, Parting, say_why_not
from holdfast.trainer.place import place_here, process_group
from holdfast.trainer.say import Say

_HELD_S: Final = 10.0  # So long a rank that has lost a peer waits to be told by the agent; then it fails as it would have.
_PLACE_S: Final = 120.0  # And so long one that has parted waits for its place: then everybody has forgotten it.
LEFT_OVER_CODE: Final = 78
_CANNOT: Final = "cannot-rejoin"  # A file beside the snapshots, that says why.
_LOST_PEER: Final = re.compile(r"gloo|nccl|connection (reset|closed) by peer|socket closed|broken pipe", re.IGNORECASE)
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_current: Rejoining | None = None


def rejoin(train: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Let `train` be called again in this process after another rank was lost, instead of starting all ranks anew."""

    @functools.wraps(train)
    def rejoining(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        one = _begin()
        if one is None:
            return train(*args, **kwargs)
        try:
            while True:
                with contextlib.ExitStack() as leaving:
                    try:
                        with one.attempt():
                            return one.parting.call(functools.partial(train, *args, **kwargs))
                    except BaseException as error:
                        if not one.parts(error):
                            one.look_why_it_failed(error)
                            raise
                        leaving.enter_context(loaders.let_go())
                        loaders.end_torn(error)
                    # Out here the error is gone, and with it the frames that held the old gang's model.
                    one.leave()
                one.wait_for_place()
        finally:
            one.end()

    return rejoining


def current() -> Rejoining | None:
    """What is under way in this thread, if a function that rejoins called us."""
    return _current if _current is not None and _current.thread == threading.get_ident() else None


def _begin() -> Rejoining | None:
    global _current
    place = place_here()
    why_not = (
        "it was called within another one" if _current is not None
        else "it was not called in the main thread" if threading.current_thread() is not threading.main_thread()
        else "the process group was made before it was called, and must be made within it" if process_group() is not None
        else _found_out(place.snapshots) if place.snapshots is not None
        else ""
    )  # fmt: skip
    if why_not and place.plugged:
        Say(rank=place.rank, world_size=place.world_size).line(f"this rank cannot rejoin a gang, and is started again with the others: {why_not}.")
        if place.snapshots is not None:
            say_why_not(place.snapshots, why_not)
    if why_not or not place.plugged or place.snapshots is None or place.world_size == 1:
        return None
    _current = Rejoining(place.snapshots)
    return _current


class Rejoining:
    """A function that rejoins, from its first call to its end."""

    def __init__(self, directory: Path) -> None:
        self.thread, self.directory = threading.get_ident(), directory
        self.parting = Parting(directory)
        self.kept = Kept()
        self.handed_over = True  # Everybody has the weights that count.
        self._calls, self._guarded = 0, False  # `guard` was called since the function was.
        self._drawn_at_first: dict[str, Any] = {}  # Where the random numbers were when the function was called first.
        self._parts: dict[int, weakref.ref[Any]] = {}  # Sharded parameters that `guard` was given last.
        self._left: Callable[[], None] = lambda: None
        self.parting.listen()

    @property
    def lives_on(self) -> bool:
        """Whether the function was called before, in this process."""
        return self._calls > 1

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        import torch

        place = place_here()
        self._calls, self._guarded = self._calls + 1, False
        self.parting.begin(place.generation or 0)
        self.handed_over = not place.rejoin
        if not self.lives_on:
            self._drawn_at_first = capture_randomness()
        elif not place.rejoin:
            self.kept = Kept()  # All go back to a checkpoint, whatever this rank held.
            self._draw_as_at_first()
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
        try:
            with self._not_overwritten():
                yield
        except BaseException:
            # An exception may have come in the middle of a `with`, whose end was then never reached.
            torch.set_grad_enabled(modes[0])
            torch.set_autocast_enabled("cpu", modes[1])
            torch.set_autocast_enabled("cuda", modes[2])
            torch.clear_autocast_cache()
            raise

    def _draw_as_at_first(self) -> None:
        """The ranks that are forked draw in this function what this one did when it was called first. A model of which each rank makes its own part, and data
        that are split by chance, would otherwise be another one here than there.
        """
        import torch

        apply_randomness(self._drawn_at_first)
        if torch.cuda.is_initialized() and "cuda" not in self._drawn_at_first:
            torch.cuda.manual_seed_all(torch.initial_seed())  # As the GPU was when it was first used.

    @contextlib.contextmanager
    def _not_overwritten(self) -> Iterator[None]:
        """DistributedDataParallel begins by giving everybody rank 0's weights; in a gang that rejoins rank 0 may be the one that has none yet."""
        parallel: Any = importlib.import_module("torch.nn.parallel.distributed")
        plain = parallel._sync_module_states
        parallel._sync_module_states = lambda *args, **kwargs: plain(*args, **kwargs) if self.handed_over else None
        try:
            yield
        finally:
            parallel._sync_module_states = plain

    def on_leaving(self, do: Callable[[], None]) -> None:
        """What takes off the hooks of the run that is under way."""
        self._left = do

    def guards(self, parts: Sequence[Any], say: Say) -> None:
        """`guard` was called, with these sharded parameters. Raises SystemExit when they were sharded for a gang that is gone."""
        self._guarded = True
        stale = [part for part in parts if id(part) in self._parts and self._parts[id(part)]() is part]
        self._parts = {id(part): weakref.ref(part) for part in parts}
        if stale:
            self._start_all_again("its model was sharded for the process group of a gang that is gone, and was not made anew when it was called again", say)

    def look_why_it_failed(self, error: BaseException) -> None:
        """A function that raises before `guard` when it is called again, and did not the first time, cannot be called again."""
        if self.lives_on and not self._guarded and isinstance(error, Exception) and not _lost_a_peer(error):
            place, frame = place_here(), traceback.extract_tb(error.__traceback__)[-1]
            # Not the whole of it: whoever looks in the log for what ends a process would find it, and it will not happen again.
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]} ({Path(frame.filename).name}:{frame.lineno})"
            self._start_all_again(f"when it was called again it failed before guard(), with {said}", Say(rank=place.rank, world_size=place.world_size))

    def _start_all_again(self, why: str, say: Say) -> None:
        """Now and whenever a rank is lost: those who start here from now on find why."""
        (self.directory / _CANNOT).write_text(why)
        say.line(f"this function cannot be called again, and all ranks start again: {why}. Make within it what belongs to a process group: mesh, fully_shard.")
        raise SystemExit(NOBODY_CODE)

    def parts(self, error: BaseException) -> bool:
        """Whether the function is to be called again: it was told to leave, or has lost a peer and is told so in a moment."""
        wanted = self.parting.wanted
        told = isinstance(error, Parted) or (isinstance(error, Exception) and (wanted.is_set() or (_lost_a_peer(error) and wanted.wait(_HELD_S))))
        if told:
            self.kept = replace(self.parting.keep(), world_size=place_here().world_size)
            if self.parting.torn:
                self._say_what_it_was_in(error)
            self._left()
            self._left = lambda: None
        return told

    def _say_what_it_was_in(self, error: BaseException) -> None:
        place = place_here()
        within = next(frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent != Path(__file__).parent)
        Say(rank=place.rank, world_size=place.world_size).line(
            f"the gang broke between the optimizer's step and the end of the iteration ({Path(within.filename).name}:{within.lineno}): nobody knows whether "
            "that step is whole, and this rank has none to give. What waits for others, such as an evaluation, belongs at the beginning of an iteration."
        )

    def leave(self) -> None:
        """Nothing of the old gang is left when it says that it waits: a destructor may wait for a thread of the group, and only until then somebody has a
        deadline for this process.
        """
        self.parting.shut()
        last = _backends()
        _leave_group()
        if self._parts:
            _forget_meshes()
        gc.collect()  # A model in DistributedDataParallel is part of a cycle, and holds on to the group and its threads.
        del last

    def wait_for_place(self) -> None:
        self.parting.say_that_it_waits(self.kept.step)
        if not self.parting.wait(_PLACE_S):
            sys.exit(LEFT_OVER_CODE)
        os.environ.update(json.loads((self.directory / f"place-{os.getpid()}").read_text()))

    def end(self) -> None:
        global _current
        self.parting.close()
        _current = None


def _found_out(directory: Path) -> str:
    """What one who lived on in this job, on this node, has found to be in the way."""
    try:
        return (directory / _CANNOT).read_text()
    except FileNotFoundError:
        return ""


def _lost_a_peer(error: Exception) -> bool:
    import torch.distributed as distributed

    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)) is not None)


def _backends() -> list[object]:
    """What runs the group's threads, to be let go of last, and by Python: then their end is waited for without the interpreter's lock. The reducer of a model
    in DistributedDataParallel would hold it while it waits, and both the threads and the one that shuts the sockets may need it: all would stand still.
    """
    group = process_group()
    if group is None:
        return []
    return [one._get_backend(device) for one in group.distributed_c10d._world.pg_map for device in one._device_types]


def _leave_group() -> None:
    """The sockets are shut: nobody is waited for. What goes wrong in it does not matter any more."""
    group = process_group()
    if group is not None:
        try:
            group.destroy_process_group()
        except Exception as error:
            print(f"holdfast: the old process group could not be left in good order: {error!r}", file=sys.stderr, flush=True)


def _forget_meshes() -> None:
    """What torch keeps of sharded tensors for as long as a process lives: which mesh a result had, and with it the old groups and their threads; and that the
    ranks have agreed on random numbers, which they do with a collective in which one that is new would be alone.
    """
    chance, moves, native = map(importlib.import_module, ("torch.distributed.tensor._random", "torch.distributed.tensor._redistribute", "torch._C"))
    chance.__dict__["_rng_tracker"] = None
    for one in gc.get_objects():  # Some of them belong to a class, or to an object.
        if type(one) is functools._lru_cache_wrapper and (one.__module__ or "").startswith("torch.distributed."):
            one.cache_clear()
    for clear in (getattr(moves, "clear_redistribute_planner_cache", None), getattr(native, "_clear_DTensor_sharding_propagator_cache", None)):
        if clear is not None:  # Another torch may not have it.
            clear()
