"""Searching: which checkpoint the next gang goes on from. The newest that is whole: in the memory of the nodes, on the disk, or in the remote store.

Memory counts for a gang of the same size alone: in another one nobody has the same part. So what memory has and the disk has not yet is made durable first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from holdfast.checkpoint.found import CheckpointFound, list_complete
from holdfast.checkpoint.layout import directory_name
from holdfast.control.fetching import NOTHING, Fetching, Key
from holdfast.control.memory import Memory
from holdfast.domain.effect import CONTROL, FindCheckpoint
from holdfast.domain.event import EffectDone
from holdfast.domain.state import NodeState, State
from holdfast.launch.layout import JobDirectory
from holdfast.recover.copies import Common

_HELD_WITHIN_S: Final = 2.0
_DURABLE_WITHIN_S: Final = 10.0  # For what is in memory to be on the disk, where the next gang has another size.


class Searching:
    """`make_durable` asks the agents for it; `note` takes what a person should read."""

    def __init__(self, directory: JobDirectory, memory: Memory, *, make_durable: Callable[[Common], None], note: Callable[[str], None]) -> None:
        self._checkpoints, self._memory, self._make_durable, self._note = directory.checkpoints, memory, make_durable, note
        self._fetching: Fetching | None = None

    @property
    def progress(self) -> str:
        """What goes on now and takes long; empty: nothing does."""
        return self._fetching.progress if self._fetching is not None else ""

    def stop(self) -> None:
        if self._fetching is not None:
            self._fetching.stop()

    async def find(self, effect: FindCheckpoint, state: State) -> EffectDone:
        """Raises OSError and NothingToGoOnFrom."""
        await self._until_all_have_said_what_they_hold(state)
        await self._until_the_disk_has_it(effect, state)
        key, found = self._newest_here(effect, state)
        if state.spec is not None and state.spec.remote:
            self._fetching = self._fetching or Fetching(state.spec.remote, self._checkpoints, note=self._note)
            await self._fetching.bring_newer(key, saved_step=state.saved_step, distrusted=effect.distrusted)
            _, found = self._newest_here(effect, state)
        return found

    async def _until_all_have_said_what_they_hold(self, state: State) -> None:
        """A control that has just been started knows nothing of their memory yet."""
        deadline = time.monotonic() + _HELD_WITHIN_S
        while time.monotonic() < deadline:
            ready = {name for name, node in state.nodes.items() if node.state is NodeState.READY}
            if ready <= self._memory.held.keys():
                return
            await asyncio.sleep(0.01)

    async def _until_the_disk_has_it(self, effect: FindCheckpoint, state: State) -> None:
        """Also the parts of nodes that are gone are made durable, by whoever holds a copy."""
        deadline, asked = time.monotonic() + _DURABLE_WITHIN_S, False
        while time.monotonic() < deadline:
            held = self._memory.newest(effect.distrusted)
            if held is None or held.world_size == state.world_size:
                return
            complete = self._complete(effect)
            if complete and complete[0].age_key >= (held.generation, held.step):
                return
            if not asked:
                asked = True
                self._make_durable(held)
            await asyncio.sleep(0.02)
        self._note("the newest step is in memory only, for a gang of another size, and could not be made durable in time: an older one is restored")

    def _newest_here(self, effect: FindCheckpoint, state: State) -> tuple[Key, EffectDone]:
        complete = self._complete(effect)
        name, step, key = (complete[0].name, complete[0].step, complete[0].age_key) if complete else ("", -1, NOTHING)
        held, sources = self._memory.newest(effect.distrusted), {}
        fits = held is not None and held.world_size == state.world_size
        if held is not None and state.spec is not None and state.gang is not None and fits and (held.generation, held.step) >= key:
            name, step, key = directory_name(held.step, held.generation), held.step, (held.generation, held.step)
            sources = self._memory.sources(held, state.gang.nodes, state.spec)
        return key, EffectDone(
            at=0.0, effect=effect.id, generation=effect.generation, node=CONTROL, checkpoint=name, checkpoint_step=step, sources=sources
        )  # fmt: skip

    def _complete(self, effect: FindCheckpoint) -> list[CheckpointFound]:
        return [found for found in list_complete(self._checkpoints) if found.name not in effect.distrusted]
