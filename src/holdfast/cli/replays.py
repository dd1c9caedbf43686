"""`holdfast simulate --trace`: the jobs of a trace, replayed under one policy or several, from one seed or several, on every core."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from rich.text import Text

from holdfast.cli.plot import plot
from holdfast.cli.png import drawable
from holdfast.cli.screen import Screen, Table
from holdfast.cli.sharing import Sharing, read_sharing
from holdfast.cli.simulate import progress_bar, recording
from holdfast.cli.words import one_line
from holdfast.detect.rules.units import BadNumber, duration_s
from holdfast.errors import HoldfastError, UserError
from holdfast.simulate.audit import Audit, audit_of
from holdfast.simulate.cores import Watch, cores, on_cores, reached
from holdfast.simulate.failures import Change, Recording, outages, outages_of
from holdfast.simulate.figures import Figures, as_record, figures
from holdfast.simulate.policies.named import NAMES, ON_NODES, scheduler_named
from holdfast.simulate.policies.ours import Holdfast, admission, nodes_of
from holdfast.simulate.replay import Ran, Replay
from holdfast.simulate.table import Skipped, skipped_lines
from holdfast.simulate.trace import Trace, TraceJob, between, clipped, read_trace, refused, with_users

_COLUMNS = 400  # Of the plot of waits over the time of submission.
_ROWS_TOLD = 100  # Of those that were left out or refused, in JSON; all are counted.
_FAILING_ON_S = 30 * 86400.0  # After the last job came.
_REPLAYS = 10_000  # At once.
_BARS = 8  # Of the progress, and plots; for more replays there is one bar for all, and no plot.
_SHORT = 2000  # Jobs: done in a second, which is less than other processes take to start.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    trace: Path
    nodes: int
    gpus_per_node: int
    policies: tuple[str, ...]
    seeds: range = range(1)
    days: str = ""
    clip: str = ""
    accounts: Path | None = None
    restart_s: float | None = None  # None: as the policy says.
    node_mtbf_hours: float | None = None
    repair_hours: float = 4.0
    lemons: float = 0.0
    failures: Path | None = None
    failures_from: str = ""

    def checked(self) -> Asked:
        """Refuses what could not be replayed, before anything is."""
        if (replays := (self.seeds.stop - self.seeds.start) * len(self.policies)) > _REPLAYS:
            raise UserError(f"--seeds and --policy ask for {replays:,} replays; expected {_REPLAYS:,} or fewer: replay them in parts")
        for name in self.policies:
            if name not in NAMES:
                raise UserError(f"policy {name!r} is not known; expected one of {', '.join(NAMES)}")
            if name not in ON_NODES and (self.failures is not None or self.node_mtbf_hours is not None):
                raise UserError(f"policy {name} counts GPUs in one pool and has no nodes that could fail; replay failures under {' or '.join(ON_NODES)}")
        if self.accounts is not None and not any(name in ON_NODES for name in self.policies):
            raise UserError(f"--accounts {self.accounts} is for {' and '.join(ON_NODES)}, and {' and '.join(self.policies)} knows of none; leave it out")
        if self.failures is not None and self.node_mtbf_hours is not None:
            raise UserError("--failures and --node-mtbf-hours both say when nodes fail; leave out one of them")
        if self.lemons and self.node_mtbf_hours is None:
            said = f"--lemons {self.lemons:g} fail more often than other nodes"
            raise UserError(f"{said}, and here only those fail that were recorded; leave it out" if self.failures else
                            f"{said}, and those never fail; give --node-mtbf-hours, such as 6000")  # fmt: skip
        if self.failures_from and self.failures is None:
            raise UserError(f"--failures-from {self.failures_from} is a time in a recording, and there is none; give --failures FILE")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    number: int
    seed: int
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    """What came of one."""

    piece: _Piece
    figures: Figures
    ran: tuple[Ran, ...]
    refused: int
    broke: tuple[str, ...]  # Invariants, as far as they are told.


def run_replay(asked: Asked, *, as_json: bool, png: Path | None = None) -> int:
    """A trace under each policy and seed; 0 when all jobs ended and no invariant failed."""
    if png is not None:
        drawable(png)
    trace, lost, sharing = _given(asked.checked())
    large = _refused(asked, trace, sharing)
    if not as_json:
        _tell(asked, trace, large)
    pieces = [_Piece(number=number, seed=seed, policy=name) for number, (seed, name) in enumerate(product(asked.seeds, asked.policies))]
    found, stopped = _all(asked, trace, lost, sharing, pieces)
    for one in found:
        for said in one.broke:
            print(f"holdfast: {one.piece.policy}, seed {one.piece.seed}: {one_line(said)}", file=sys.stderr)
    if as_json:
        results = [{"seed": one.piece.seed, "refused": one.refused, **as_record(one.figures)} for one in found]
        record = {"trace": str(asked.trace), "jobs": len(trace.jobs), "accounts": str(asked.accounts) if asked.accounts is not None else None}
        print(json.dumps({**record, "notes": trace.notes, **_left_out(trace.skipped, large), **_lost(asked, lost), "results": results}))
    elif found:
        _show(asked, trace, found)
    if png is not None and found:
        from holdfast.cli.replays_png import draw

        names = [(one.piece.policy if len(asked.seeds) == 1 else f"{one.piece.policy}, seed {one.piece.seed}", one.ran) for one in found]
        draw(f"{asked.trace.name}: {len(trace.jobs):,} jobs on {asked.nodes} nodes of {asked.gpus_per_node} GPUs, a simulation", names, png)
    if stopped:
        print(f"holdfast: stopped after {len(found):,} of {len(pieces):,} replays", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if any(one.figures.invariant_failures or one.figures.unfinished for one in found) else 0


def seconds(text: str, option: str) -> float:
    """A time such as 30m or 7d."""
    try:
        value = duration_s(text)
    except BadNumber:
        value = math.inf
    if value == math.inf:
        raise UserError(f"{option} {text!r} is no time; expected one such as 90s, 30m, 12h or 7d")
    return value


def selected(trace: Trace, path: Path, days: str, clip: str) -> Trace:
    """The jobs of these days, no longer than this; all, where nothing is said."""
    if days:
        first, colon, last = days.partition(":")
        try:
            trace = between(trace, float(first), float(last) if colon else float(first) + 1)
        except ValueError:
            raise UserError(f"--days {days!r} is no range of days; expected one such as 50:110") from None
        if not trace.jobs:
            raise UserError(f"no job of {path} was submitted on days {days}; they are counted from submit_s 0")
    if not clip:
        return trace
    if not (most_s := seconds(clip, "--clip")):
        raise UserError(f"--clip {clip} leaves no job any time to run; expected a time above 0, such as 7d")
    return clipped(trace, most_s)


def _given(asked: Asked) -> tuple[Trace, Recording | None, Sharing]:
    trace = selected(read_trace(asked.trace), asked.trace, asked.days, asked.clip)
    sharing = read_sharing(asked.accounts, nodes_of(asked.nodes, asked.gpus_per_node)) if asked.accounts is not None else Sharing()
    if asked.restart_s is not None:
        sharing = replace(sharing, policy=replace(sharing.policy, restart_s=asked.restart_s))
    return trace, recording(asked.failures) if asked.failures is not None else None, sharing


def _refused(asked: Asked, trace: Trace, sharing: Sharing) -> list[Skipped]:
    """Who can never start, under one of the policies at least."""
    found: dict[str, Skipped] = {}
    for name in asked.policies:
        large = _never(asked, with_users(trace, asked.seeds.start), sharing, name)
        if len(large) == len(trace.jobs):
            raise UserError(
                f"no job of {asked.trace} fits on {asked.nodes} nodes of {asked.gpus_per_node} GPUs; the first, line {next(iter(large.values())).line}: "
                f"{next(iter(large.values())).because}; give more --nodes or --gpus-per-node{', or other --accounts' if asked.accounts is not None else ''}"
            )
        found = large | found
    return sorted(found.values(), key=lambda one: one.line)


def _never(asked: Asked, trace: Trace, sharing: Sharing, policy: str) -> dict[str, Skipped]:
    """Who can never start under this policy. Only ours knows of accounts."""
    nodes = nodes_of(asked.nodes, asked.gpus_per_node)
    why = admission(nodes, sharing.accounts, sharing.policy) if asked.accounts is not None and policy in ON_NODES else None
    return refused(trace, asked.nodes, asked.gpus_per_node, elastic=policy in ON_NODES, why=why)


def _tell(asked: Asked, trace: Trace, large: Sequence[Skipped]) -> None:
    for line in (*trace.notes, *skipped_lines([*trace.skipped, *large])):
        print(f"holdfast: {asked.trace}: {one_line(line)}", file=sys.stderr)


def _left_out(skipped: Sequence[Skipped], large: Sequence[Skipped]) -> dict[str, object]:
    record: dict[str, object] = {}
    for name, rows in (("skipped", skipped), ("refused", large)):
        record |= {name: [{"line": one.line, "because": one.because} for one in rows[:_ROWS_TOLD]], f"{name}_count": len(rows)}
    return record


def _lost(asked: Asked, lost: Recording | None) -> dict[str, object]:
    if lost is None:
        return {}
    record = {"file": str(asked.failures), "rows": len(lost.rows), "machines": len({row.node for row in lost.rows}), "last_at_s": lost.rows[-1].at_s}
    return {"failures": record | {"skipped": [{"line": one.line, "because": one.because} for one in lost.skipped[:_ROWS_TOLD]]}}


def _all(
    asked: Asked, trace: Trace, lost: Recording | None, sharing: Sharing, pieces: Sequence[_Piece]
) -> tuple[list[_Replayed], bool]:
    """All of them, as far as a person let them come."""
    found: list[_Replayed] = []
    with progress_bar() as progress:
        tasks = [progress.add_task(f"{piece.policy}, seed {piece.seed}", total=len(trace.jobs)) for piece in pieces] if len(pieces) <= _BARS else []
        together = None if tasks else progress.add_task("jobs", total=len(trace.jobs) * len(pieces))

        def look(far: Sequence[int]) -> None:
            for task, ended in zip(tasks, far, strict=False):
                progress.update(task, completed=ended)
            if together is not None:
                progress.update(together, completed=sum(far))

        long = len(trace.jobs) * len(pieces) > _SHORT
        watch = Watch(pieces=len(pieces), look=look) if long and not progress.disable else None
        try:
            for one in on_cores(partial(_replayed, asked, trace, lost, sharing), pieces, min(cores(), len(pieces)) if long else 1, watch):
                found.append(one)
        except KeyboardInterrupt:
            return sorted(found, key=lambda one: one.piece.number), True
    return sorted(found, key=lambda one: one.piece.number), False


def _replayed(asked: Asked, trace: Trace, lost: Recording | None, sharing: Sharing, piece: _Piece) -> _Replayed:
    nodes, used = nodes_of(asked.nodes, asked.gpus_per_node), with_users(trace, piece.seed)
    large = _never(asked, used, sharing, piece.policy)
    jobs = [job for job in used.jobs if job.id not in large]
    scheduler = scheduler_named(piece.policy, nodes, sharing.policy, accounts=sharing.accounts)
    audit: Audit | None = None
    if isinstance(scheduler, Holdfast):
        sharing.begin(scheduler.cluster, jobs[0].submit_s)
        audit = audit_of(scheduler)
    began = time.process_time()
    replay = Replay(
        jobs, scheduler, restart_s=sharing.policy.restart_s, watchers=[audit] if audit else [], progress=partial(reached, piece.number),
        outages=_outages(asked, lost, jobs, [node.name for node in nodes], piece.seed),
    ).run()  # fmt: skip
    took_s = time.process_time() - began
    reached(piece.number, len(trace.jobs))
    if len(replay.stuck) == len(jobs):
        raise HoldfastError(f"{piece.policy}, seed {piece.seed}: no job of {asked.trace} ever ends; the first that waits for ever is {replay.stuck[0]}")
    broke = audit.auditor.failures if audit else []
    found = figures(
        replay, policy=piece.policy, gpus=asked.nodes * asked.gpus_per_node, took_s=took_s, share=audit.share() if audit else (None, 0), failures=len(broke)
    )
    return _Replayed(piece=piece, figures=found, ran=tuple(replay.ran.values()), refused=len(large), broke=tuple(map(str, broke[:5])))


def _outages(asked: Asked, lost: Recording | None, jobs: Sequence[TraceJob], names: Sequence[str], seed: int) -> list[Change] | None:
    first_at, repair_s = jobs[0].submit_s, asked.repair_hours * 3600
    if lost is not None:
        from_s = seconds(asked.failures_from, "--failures-from") if asked.failures_from else 0.0
        return outages_of(lost.rows, names, seed=seed, first_at=first_at, from_s=from_s, repair_s=repair_s)
    if asked.node_mtbf_hours is None:
        return None
    return outages(
        asked.nodes, mtbf_s=asked.node_mtbf_hours * 3600, seed=seed, first_at=first_at, last_at=jobs[-1].submit_s + _FAILING_ON_S, repair_s=repair_s,
        lemons=asked.lemons,
    )  # fmt: skip


def _show(asked: Asked, trace: Trace, found: Sequence[_Replayed]) -> None:
    console = Screen(highlight=False, markup=False)
    cluster = f"{asked.nodes:,} nodes of {asked.gpus_per_node} GPUs"
    console.print(f"{len(trace.jobs):,} jobs on {cluster}; times in seconds. A wait is all time that was not a job's own work.")
    several = len(asked.seeds) > 1
    most = max(1, (console.width - 30) // 16)  # Side by side.
    for first in range(0, len(found), most):
        console.print(_table(found[first : first + most], several))
    for policy, knows in {one.piece.policy: one.figures.knows for one in found}.items():
        console.print(Text(f"{policy} knew {knows}", style="dim"))
    if asked.accounts is not None:
        console.print(Text(f"shared as {one_line(str(asked.accounts))} says, which only {' and '.join(ON_NODES)} know", style="dim"))
    if not all(job.user for job in trace.jobs):
        console.print(Text("the trace has no users: they were made up, 20 in each group, by Zipf's law, from the seed", style="dim"))
    for policy, count in {one.piece.policy: one.refused for one in found if one.refused}.items():
        console.print(Text(f"{policy}: {count:,} jobs were refused, which could never start", style="yellow"))
    for one in found if len(found) <= _BARS else ():
        console.print(Text(f"{_name(one, several)}: average wait in seconds, by time of submission", style="bold"))
        for line in plot(_waits(one.ran), (), width=max(20, min(console.width, 120)), plain="utf" not in console.encoding.lower()):
            console.print(line, no_wrap=True, overflow="crop")


def _name(one: _Replayed, several: bool) -> str:
    return f"{one.piece.policy}, seed {one.piece.seed}" if several else one.piece.policy


def _table(found: Sequence[_Replayed], several: bool) -> Table:
    """A column for each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for one in found:
        table.add_column(_name(one, several), justify="right")
    rows = [_figures(one.figures) for one in found]
    for label in dict.fromkeys(label for row in rows for label in row):
        table.add_row(Text(label, style="dim"), *(row.get(label, "–") for row in rows))
    return table


def _figures(one: Figures) -> dict[str, str]:
    large = one.large_wait_s
    shown = {
        "completion, average": f"{one.completion_s.average:,.0f}", "completion, median": f"{one.completion_s.median:,.0f}",
        "wait, average": f"{one.wait_s.average:,.0f}", "wait, median": f"{one.wait_s.median:,.0f}", "wait, p99": f"{one.wait_s.p99:,.0f}",
        "wait, longest": f"{one.wait_s.longest:,.0f}",
        "to the first start, longest": f"{one.first_wait_s.longest:,.0f}", "wait of 8+ GPUs, p99": f"{large.p99:,.0f}" if large else "none",
        "GPUs used": f"{one.utilisation:.1%}", "preemptions": f"{one.preemptions:,}", "GPU-hours lost": f"{one.lost_gpu_h:,.0f}",
        "share error": f"{one.share_error:.1%} in {one.share_windows:,}" if one.share_error is not None else "no window",
        "invariants failed": f"{one.invariant_failures:,}",
    }  # fmt: skip
    if one.unfinished:
        shown["never ended"] = f"{one.unfinished:,}"
    if one.node_failures:
        shown |= {
            "node failures": f"{one.node_failures:,}", "gangs: went on elsewhere": f"{one.gang_replacements:,}", "with fewer GPUs": f"{one.gang_shrinks:,}",
            "after a wait": f"{one.gang_requeues:,}", "GPU-hours lost to failures": f"{one.failure_lost_gpu_h:,.0f}",
            "GPU-hours on suspects": f"{one.suspect_gpu_h:,.0f}",
        }  # fmt: skip
    return shown | {"took": f"{one.took_s:.1f} s"}


def _waits(ran: Iterable[Ran]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ended = [one for one in ran if one.end == one.end]
    at = np.array([one.job.submit_s for one in ended])
    wait = np.array([one.end - one.job.submit_s - one.job.duration_s for one in ended])
    column = np.minimum(_COLUMNS - 1, ((at - at.min()) / max(float(np.ptp(at)), 1.0) * _COLUMNS).astype(int))
    count = np.bincount(column, minlength=_COLUMNS)
    with np.errstate(invalid="ignore"):
        return np.bincount(column, weights=wait, minlength=_COLUMNS) / np.where(count, count, np.nan)
