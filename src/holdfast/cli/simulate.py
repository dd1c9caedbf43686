"""`holdfast simulate`: a trace of jobs replayed under any policy, or, without a trace, the core run through made-up faults."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from holdfast.cli.plot import plot
from holdfast.cli.png import drawable
from holdfast.errors import UserError
from holdfast.schedule.policy import Policy
from holdfast.simulate.audit import Audit, audit_of
from holdfast.simulate.cores import cores
from holdfast.simulate.failures import Change, Failure, outages, read_failures
from holdfast.simulate.figures import Figures, Spread, as_record, figures
from holdfast.simulate.policies.named import NAMES, scheduler_named
from holdfast.simulate.policies.ours import Holdfast, nodes_of
from holdfast.simulate.replay import Replay
from holdfast.simulate.sites import SITES
from holdfast.simulate.survey import Played, Survey, play, survey
from holdfast.simulate.trace import Trace, TraceJob, between, clipped, read_trace, skipped_lines, with_users

_COLUMNS = 400  # Of the plot of waits over the time of submission.
_HEADINGS = (
    "policy", "seed", "completion", "wait", "median", "p99", "longest", "8+ GPUs p99", "used", "evicted a job", "GPU-h lost", "share error", "failures", "took",
)  # fmt: skip
_FAILING_ON_S = 30 * 86400.0  # After the last job came.
_OF_REPLAYS = ("gpus_per_node", "policy", "days", "clip", "restart_s", "node_mtbf_hours", "repair_hours", "lemons", "png")
_OF_WORLDS = ("story", "failures")
_FEW = 10  # Seeds of which each hash is shown.
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    trace: Path
    nodes: int
    gpus_per_node: int
    policies: tuple[str, ...]
    seeds: range = range(1)
    days: str = ""
    clip: str = ""
    restart_s: float = 300.0
    node_mtbf_hours: float | None = None
    repair_hours: float = 4.0
    lemons: float = 0.0


def fitting(given: Iterable[str], *, replay: bool) -> None:
    """Refuses what a person says for nothing: of a trace where there is none, of made-up faults where there is one."""
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if name in _OF_REPLAYS and not replay:
            raise UserError(f"{option} is for the replay of a trace, and none is given; add --trace FILE, or leave out {option}")
        if name in _OF_WORLDS and replay:
            raise UserError(f"{option} is for made-up faults, and here a trace is replayed; leave out {option}, or --trace")


def seeds_of(text: str, start: int | None, *, usual: int) -> range:
    """`--seeds`: so many from `--start` on, or from one to another, both among them."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    if not all(part.isdecimal() and part.isascii() for part in ((first, last) if dash else (first or str(usual),))):
        raise UserError(f"--seeds {text!r} is neither how many seeds nor a range of them; expected a number such as 1000, or 200-299")
    if not dash:
        count = int(first or usual)
        if not count:
            raise UserError("--seeds 0 would play nothing; give how many, such as 1000, or a range such as 200-299")
        return range(start or 0, (start or 0) + count)
    if start is not None:
        raise UserError(f"--seeds {text} says where to begin, and so does --start {start}; leave out --start")
    if int(last) < int(first):
        raise UserError(f"--seeds {text} ends before it begins; did you mean {last}-{first}?")
    return range(int(first), int(last) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    """What is asked for of made-up faults."""

    seeds: range
    nodes: int | None = None  # None: as each seed says.
    failures: Path | None = None
    story: bool = False

    def again(self, seed: str) -> str:
        """The command that plays one seed again, and tells all of it."""
        more = [f"--nodes {self.nodes}"] if self.nodes is not None else []
        more += [f"--failures {shlex.quote(str(self.failures))}"] if self.failures is not None else []
        return " ".join(["holdfast simulate --seeds", f"{seed}-{seed}", *more, "--story"])


def run_survey(asked: Worlds, *, as_json: bool) -> int:
    """Made-up faults, from seeds; 0 when every world kept its promises."""
    failures = read_failures(asked.failures) if asked.failures is not None else ()
    if asked.story:
        return _told(asked, failures)
    broken = 0
    with _progress() as progress:
        task = progress.add_task("worlds", total=len(asked.seeds))

        def each(one: Played) -> None:
            nonlocal broken
            broken += one.report is None
            progress.update(task, advance=1, description=f"worlds, [red]{broken:,} broke a promise[/]" if broken else "worlds")

        found = survey(asked.seeds, processes=cores(), failures=failures, nodes=asked.nodes, each=each)
    if as_json:
        again = {seed: asked.again(seed) for seed in found.failed}
        print(json.dumps({"from": asked.seeds.start, "nodes": asked.nodes, **asdict(found), "again": again}))
    else:
        _show_survey(asked, found)
    if found.stopped:
        print(f"holdfast: stopped after {found.seeds:,} of {len(asked.seeds):,} seeds", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if found.failed else 0


def _told(asked: Worlds, failures: Sequence[Failure]) -> int:
    """All that happens, seed by seed."""
    broken = 0
    for seed in asked.seeds:
        lines: list[str] = []
        one = play(seed, failures=failures, nodes=asked.nodes, lines=lines)
        print(*lines, sep="\n")
        broken += one.report is None
        went = f": {one.report.outcome}, {one.report.events:,} events, hash {one.report.hash}" if one.report else f" broke a promise: {one.broke}"
        print(f"seed {seed}{went}")
    return 1 if broken else 0


def _show_survey(asked: Worlds, found: Survey) -> None:
    console = Console(highlight=False, markup=False)
    console.print(
        f"{found.seeds:,} seeds in {found.wall_s:.1f} s: {found.events:,} events, {found.median_events:,.0f} in the median seed, "
        f"{found.events_per_s:,} events/s, {found.virtual_hours_per_s:,.1f} virtual hours a second, {found.seeds_per_minute:,} seeds a minute"
    )
    console.print("outcomes: " + (", ".join(f"{count:,} {outcome}" for outcome, count in found.outcomes.items()) or "none"))
    sites = Table.grid(padding=(0, 2))
    sites.add_column(justify="right")
    sites.add_column(no_wrap=True)
    sites.add_column()
    for site, hits in found.sites.items():
        sites.add_row(f"{hits:,}", site, Text(SITES[site], style="dim"))
    console.print("fault sites, and how often something went wrong there:", sites)
    console.print(f"never hit: {', '.join(found.never_hit)}" if found.never_hit else "every fault site was hit")
    for seed, hash in found.hashes.items() if len(found.hashes) <= _FEW else ():
        console.print(f"seed {seed}: hash of its event log {hash}")
    console.print(f"hash of all event logs {found.hash}; that of each is in --json")
    for seed, because in found.failed.items():
        console.print(Text(f"seed {seed} broke a promise: {because}", style="red"))
        console.print(f"  play it again: {asked.again(seed)}", soft_wrap=True)
    console.print(f"{len(found.failed):,} seeds broke a promise" if found.failed else "no seed broke a promise")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True,
        disable=not sys.stderr.isatty(),
    )  # fmt: skip


def run_replay(asked: Asked, *, as_json: bool, png: Path | None = None) -> int:
    """A trace under each policy and seed; 0 when all jobs ended and no invariant failed."""
    if png is not None:
        drawable(png)
    trace = _trace(asked)
    if not as_json:
        for line in skipped_lines(trace.skipped):
            print(f"holdfast: {asked.trace}: {line}", file=sys.stderr)
    found = []
    with _progress() as progress:
        for seed in asked.seeds:
            for name in asked.policies:
                found.append((seed, *_replayed(asked, with_users(trace, seed), name, seed, progress)))
    if as_json:
        skipped = [{"line": one.line, "because": one.because} for one in trace.skipped]
        results = [{"seed": seed, "refused": refused, **as_record(figure)} for seed, figure, _, refused in found]
        print(json.dumps({"trace": str(asked.trace), "jobs": len(trace.jobs), "skipped": skipped, "results": results}))
    else:
        _show(trace, found)
    if png is not None:
        from holdfast.cli.replays_png import draw

        names = [(one.policy if len(asked.seeds) == 1 else f"{one.policy}, seed {seed}", replay) for seed, one, replay, _ in found]
        draw(f"{asked.trace.name}: {len(trace.jobs):,} jobs on {asked.nodes} nodes of {asked.gpus_per_node} GPUs, a simulation", names, png)
    return 1 if any(figure.invariant_failures or figure.unfinished for _, figure, _, _ in found) else 0


def seconds(text: str, option: str) -> float:
    """A time such as 30m or 7d."""
    try:
        return float(text[:-1]) * _UNITS_S[text[-1:]]
    except (ValueError, KeyError):
        raise UserError(f"{option} {text!r} is no time; expected one such as 90s, 30m, 12h or 7d") from None


def _trace(asked: Asked) -> Trace:
    for name in asked.policies:
        if name not in NAMES:
            raise UserError(f"policy {name!r} is not known; expected one of {', '.join(NAMES)}")
    return selected(read_trace(asked.trace), asked.trace, asked.days, asked.clip)


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
    return clipped(trace, seconds(clip, "--clip")) if clip else trace


def _replayed(asked: Asked, trace: Trace, name: str, seed: int, progress: Progress) -> tuple[Figures, Replay, int]:
    capacity = asked.nodes * asked.gpus_per_node
    jobs = [job for job in trace.jobs if job.gpus <= capacity]  # What could never fit is refused, and counted.
    if not jobs:
        raise UserError(f"no job of {asked.trace} fits on {capacity} GPUs; give more --nodes or --gpus-per-node")
    scheduler = scheduler_named(name, nodes_of(asked.nodes, asked.gpus_per_node), Policy(restart_s=asked.restart_s))
    audit: Audit | None = audit_of(scheduler) if isinstance(scheduler, Holdfast) else None
    task = progress.add_task(name, total=len(jobs))
    began = time.process_time()
    replay = Replay(
        jobs, scheduler, restart_s=asked.restart_s, watchers=[audit] if audit else [], progress=lambda ended: progress.update(task, completed=ended),
        outages=_outages(asked, jobs, seed),
    ).run()  # fmt: skip
    took_s = time.process_time() - began
    progress.update(task, completed=len(jobs))
    failures = audit.auditor.failures if audit else []
    for said in failures[:5]:
        print(f"holdfast: {name}: {said}", file=sys.stderr)
    share = audit.share() if audit else (None, 0)
    return figures(replay, policy=name, gpus=capacity, took_s=took_s, share=share, failures=len(failures)), replay, len(trace.jobs) - len(jobs)


def _outages(asked: Asked, jobs: Sequence[TraceJob], seed: int) -> list[Change] | None:
    if asked.node_mtbf_hours is None:
        if asked.lemons:
            raise UserError(f"--lemons {asked.lemons:g} fail more often than other nodes, and those never fail; give --node-mtbf-hours, such as 6000")
        return None
    return outages(
        asked.nodes, mtbf_s=asked.node_mtbf_hours * 3600, seed=seed, first_at=jobs[0].submit_s, last_at=jobs[-1].submit_s + _FAILING_ON_S,
        repair_s=asked.repair_hours * 3600, lemons=asked.lemons,
    )  # fmt: skip


def _show(trace: Trace, found: Sequence[tuple[int, Figures, Replay, int]]) -> None:
    console = Console()
    table = Table(title=f"{len(trace.jobs):,} jobs; times in seconds; a wait is all time that was not a job's own work")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for seed, one, _, _ in found:
        large: Spread | None = one.large_wait_s
        table.add_row(
            one.policy, str(seed), f"{one.completion_s.average:,.0f}", f"{one.wait_s.average:,.0f}", f"{one.wait_s.median:,.0f}", f"{one.wait_s.p99:,.0f}",
            f"{one.wait_s.longest:,.0f}", f"{large.p99:,.0f}" if large else "–", f"{one.utilisation:.0%}", f"{one.evictions_a_job:.2f}",
            f"{one.lost_gpu_h:,.0f}",
            f"{one.share_error:.1%} of {one.share_windows}" if one.share_error is not None else "no window", str(one.invariant_failures), f"{one.took_s:.0f} s",
        )  # fmt: skip
    console.print(table)
    for policy, knows in {one.policy: one.knows for _, one, _, _ in found}.items():
        console.print(Text(f"{policy} knew {knows}", style="dim"))
    if not all(job.user for job in trace.jobs):
        console.print(Text("the trace has no users: they were made up, 20 in each group, by Zipf's law, from the seed", style="dim"))
    refused = max(refused for _, _, _, refused in found)
    if refused:
        console.print(Text(f"{refused:,} jobs ask for more GPUs than the cluster has and were refused", style="yellow"))
    for seed, one, _, _ in found:
        if one.node_failures:
            console.print(
                f"{one.policy}, seed {seed}: {one.node_failures:,} node failures; jobs went on elsewhere {one.gang_replacements:,} times, with fewer GPUs "
                f"{one.gang_shrinks:,}, after a wait {one.gang_requeues:,}; {one.failure_lost_gpu_h:,.0f} GPU-h lost, {one.suspect_gpu_h:,.0f} run on suspects"
            )
    for _, one, replay, _ in found:
        console.print(Text(f"{one.policy}: average wait by time of submission", style="bold"))
        for line in plot(_waits(replay), (), width=max(20, min(console.width, 120)), plain="utf" not in console.encoding.lower()):
            console.print(line, no_wrap=True, overflow="crop")


def _waits(replay: Replay) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ended = [one for one in replay.ran.values() if one.end == one.end]
    at = np.array([one.job.submit_s for one in ended])
    wait = np.array([one.end - one.job.submit_s - one.job.duration_s for one in ended])
    column = np.minimum(_COLUMNS - 1, ((at - at.min()) / max(float(np.ptp(at)), 1.0) * _COLUMNS).astype(int))
    count = np.bincount(column, minlength=_COLUMNS)
    with np.errstate(invalid="ignore"):
        return np.bincount(column, weights=wait, minlength=_COLUMNS) / np.where(count, count, np.nan)
