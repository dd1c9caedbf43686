"""rejoin: a function that may be called again in the same process, when the gang around it has changed.

    @holdfast.rejoin
    def train():
        dist.init_process_group()
        model = DistributedDataParallel(net)
        run = holdfast.guard(model=model, optimizer=optimizer)
        for step in run.steps(1000):
            ...

When another rank is lost, this one leaves the loop by an exception that passes through it, waits for its new place, and the function is called anew: it makes
the process group and wraps the model again, and `guard` puts back the newest step that any rank holds whole. What is made outside of the function stays as it
is. Where nobody can be rejoined (no agent, one rank, a sharded model) the function is simply called.

Is wrong    when the function does something outside of `guard` that must happen only once: it happens once more.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.trainer.parting import Kept, Parted, Parting
from holdfast.trainer.place import place_here, process_group
from holdfast.trainer.say import Say

_HELD_S: Final = 10.0  # So long a rank that has lost a peer waits to be told by the agent; then it fails as it would have.
_PLACE_S: Final = 120.0  # And so long one that has parted waits for its place: then everybody has forgotten it.
LEFT_OVER_CODE: Final = 78
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
                try:
                    with one.attempt():
                        return one.parting.call(functools.partial(train, *args, **kwargs))
                except BaseException as error:
                    if not one.parts(error):
                        raise
                # Out here the error is gone, and with it the frames that held the old gang's model.
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
        else ""
    )  # fmt: skip
    if why_not and place.plugged:
        Say(rank=place.rank, world_size=place.world_size).line(f"this rank cannot rejoin a gang, and is started again with the others: {why_not}.")
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
        self._left: Callable[[], None] = lambda: None
        self.parting.listen()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        import torch

        place = place_here()
        self.parting.begin(place.generation or 0)
        self.handed_over = not place.rejoin
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

    @contextmanager
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

    def parts(self, error: BaseException) -> bool:
        """Whether the function is to be called again: it was told to leave, or has lost a peer and is told so in a moment."""
        wanted = self.parting.wanted
        told = isinstance(error, Parted) or (isinstance(error, Exception) and (wanted.is_set() or (_lost_a_peer(error) and wanted.wait(_HELD_S))))
        if told:
            self.kept = replace(self.parting.keep(), world_size=place_here().world_size)
            self._left()
            self._left = lambda: None
        return told

    def wait_for_place(self) -> None:
        """Nothing of the old gang is left when it says that it waits: a destructor may wait for a thread of the group, and only until then somebody has a
        deadline for this process.
        """
        self.parting.shut()
        last = _backends()
        _leave_group()
        gc.collect()  # A model in DistributedDataParallel is part of a cycle, and holds on to the group and its threads.
        del last
        self.parting.say_that_it_waits(self.kept.step)
        if not self.parting.wait(_PLACE_S):
            sys.exit(LEFT_OVER_CODE)
        os.environ.update(json.loads((self.directory / f"place-{os.getpid()}").read_text()))

    def end(self) -> None:
        global _current
        self.parting.close()
        _current = None


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
