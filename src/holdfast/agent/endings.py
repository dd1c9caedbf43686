"""Endings: how each worker ended, from what the warm parent, the kernel and the worker itself have said."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.agent import tree
from holdfast.agent.exits import Evidence, MemoryKills, classify, read_kernel_log, read_memory_kills, read_memory_kills_again
from holdfast.agent.isolation.isolate import Isolation, member_of
from holdfast.agent.missing import may_come
from holdfast.agent.parent import Row
from holdfast.agent.watch import Leaks
from holdfast.diagnose.gpu_memory import is_about_gpu
from holdfast.domain.beat import Beat
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.gauges import LOADER_WORKERS, MICRO_BATCH
from holdfast.domain.node import NodeSpec
from holdfast.observe.gpu_holders import gpu_holders


class Endings:
    def __init__(self, spec: NodeSpec, isolation: Isolation) -> None:
        self._spec, self._isolation = spec, isolation
        self._kills: dict[int, MemoryKills] = {}  # By rank, those that were counted before it ended.

    def begun(self, rank: int, member: str) -> None:
        """A worker begins, in this control group: kills counted from here on may be its own."""
        self._kills[rank] = read_memory_kills(self._isolation.counted(member))

    def renamed(self, was: int, rank: int) -> None:
        """A worker goes on as another rank."""
        if was in self._kills:
            self._kills[rank] = self._kills.pop(was)

    def ended(self, row: Row, beat: Beat, table: Mapping[str, float], leaks: Leaks) -> Exit:
        before = self._kills.pop(row["rank"], None)
        if before is None:  # It ended while no agent was here to see it.
            before = read_memory_kills(self._isolation.counted(member_of(row["born"], row["born_rank"])))
        after = read_memory_kills_again(before)
        somebody_was_killed = after != before or after.machine is None  # Else the kernel's log, which is long, has nothing about it.
        exit = classify(
            Evidence(
                rank=row["rank"], pid=row["pid"], code=row["code"], signal=row["signal"], core=row["core"], at_ns=row["at_ns"], tail=row["tail"],
                error=row["error"], step=beat.step, phase=beat.phase, stopped_by_us=row["stopping"], data_limit=self._isolation.data_limit,
                micro_batch=int(table.get(MICRO_BATCH, 0)), loader_workers=int(table.get(LOADER_WORKERS, 0)), kills_before=before, kills_after=after,
                kernel_log=read_kernel_log(row["pid"], row["started_ns"]) if somebody_was_killed else "",
            )
        )  # fmt: skip
        on_gpu = exit.kind is ExitKind.EXCEPTION and exit.exception.endswith("OutOfMemoryError")
        if on_gpu or exit.kind is ExitKind.OUT_OF_MEMORY:
            exit = replace(exit, leak=leaks.gpu if on_gpu else leaks.host)
        exit = replace(exit, never_passes=self._never_passes(exit))
        if not is_about_gpu(exit.message):
            return exit
        gpus, holders = gpu_holders(set(tree.marked(self._spec.job.job)).__contains__)
        return replace(exit, gpus=gpus, holders=holders)

    def _never_passes(self, exit: Exit) -> str:
        """The class of an end before the first step that no other try would pass."""
        if exit.stopped_by_us or exit.step > 0 or exit.kind not in (ExitKind.EXCEPTION, ExitKind.CODE):
            return ""
        from holdfast.diagnose.never_passes import never_passes  # Most agents never need it, and an agent is to be up soon.

        refusal = never_passes(exit)
        if refusal is None or (refusal.cause == "file_not_found" and not refusal.path):
            return ""
        if refusal.path and may_come(os.path.join(self._spec.job.cwd, refusal.path)):
            return ""
        return refusal.cause

    def vanished(self, rank: int, beat: Beat | None) -> Exit:
        return Exit(
            rank=rank, pid=0, kind=ExitKind.VANISHED, because=f"rank {rank} is gone: its parent process on {self._spec.node} died, and its workers with it",
            at_ns=time.monotonic_ns(), step=beat.step if beat else -1, phase=beat.phase if beat else "",
        )  # fmt: skip

    def written(self, generation: int) -> list[Row]:
        """Exits of a generation as the warm parent wrote them down."""
        rows: list[Row] = []
        with contextlib.suppress(FileNotFoundError), (Path(self._spec.state) / "exits.jsonl").open() as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):
                    row = json.loads(line)
                    if row["generation"] == generation and row["role"] == "worker":
                        rows.append(row)
        return rows
