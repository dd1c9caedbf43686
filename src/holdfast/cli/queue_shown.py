"""Queues, reasons and shares in a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.queue_source import Source
from holdfast.cli.words import duration, one_line
from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import Decisions
from holdfast.schedule.forecast import Expected
from holdfast.schedule.view import Entry, queue_of, shares_of

_BAR, _BAR_LEAST, _BESIDE = 20, 3, 72  # Cells of a bar, where there is room and where not, and of all else in a row of shares.
_ROWS = 40
_AHEAD = 5


def show_queue(source: Source, *, as_json: bool) -> None:
    cluster, decided = source.look()
    entries = queue_of(cluster)
    if as_json:
        print(json.dumps({**_where(cluster), "decided": _decided(decided), "jobs": [_record(one, cluster) for one in entries]}, indent=2))
        return
    console = Console()
    running, waiting = [one for one in entries if one.place is None], [one for one in entries if one.place is not None]
    fleet = cluster.fleet
    console.print(f"{len(running):,} run on {fleet.capacity_gpus - _free(cluster):,} of {fleet.capacity_gpus:,} GPUs, {len(waiting):,} wait")
    for line in _lines([*running[:_ROWS], *waiting[:_ROWS]], cluster.now):
        console.print(line)
    for what, those in (("run", running), ("wait", waiting)):
        if len(those) > _ROWS:
            console.print(Text(f"{len(those) - _ROWS:,} more {what}; --json has all", style="dim"))
    for line in _decided_lines(decided):
        console.print(Text(line, style="dim"))


def _lines(entries: Sequence[Entry], now: float) -> Iterator[RenderableType]:
    """A row for each job, and below one that waits its reason: a column of its own would be too narrow for a sentence."""
    rows = [["job", "user", "GPUs", "class", "since", "where, or when"]]
    for one in entries:
        name = one_line(one.id) if one.place is None else f"{one.place}. {one_line(one.id)}"
        where = _nodes(one) if one.expected is None else _when(one.expected, now)
        rows.append([name, one_line(one.account), str(one.gpus), one.priority, duration(now - one.since), where])
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row, entry in zip(rows, [None, *entries], strict=True):
        cells = [cell.rjust(width) if number in (2, 4) else cell.ljust(width) for number, (cell, width) in enumerate(zip(row, widths, strict=False))]
        yield Text("  ".join([*cells, row[5]]), style="" if entry is not None else "bold")
        if entry is not None and entry.reason is not None:
            reason = f"{entry.reason.kind}: {entry.reason.because}; cleared when {entry.reason.clears}"
            yield Padding(Text(one_line(reason), style="dim"), (0, 0, 0, 4))


def show_why(source: Source, job: str, *, as_json: bool) -> None:
    cluster, _ = source.look()
    if job not in cluster.jobs:
        raise UserError(f"no job {job} waits or runs here; {len(cluster.jobs):,} others do: `holdfast queue` lists them")
    entries = queue_of(cluster)
    one = next(entry for entry in entries if entry.id == job)
    ahead = [entry for entry in entries if one.place is not None and entry.place is not None and entry.place < one.place]
    if as_json:
        record = {**_where(cluster), **_record(one, cluster), "ahead": [{"id": entry.id, "gpus": entry.gpus, "account": entry.account} for entry in ahead]}
        print(json.dumps(record, indent=2))
        return
    console = Console()
    said = [f"{one_line(one.id)}: {one.gpus} GPUs for {one_line(one.account)}, class {one.priority}, submitted {duration(cluster.now - one.submitted_at)} ago"]
    if one.reason is None or one.expected is None:
        said.append(f"runs since {duration(cluster.now - one.since)} on {_nodes(one)}{'; may be evicted' if one.loose else ''}" if one.nodes else "waits")
    if one.reason is not None:
        said.append(f"waits because    {one.reason.because} ({one.reason.kind})")
        said += [f"in the way       {blocker}" for blocker in one.reason.blockers]
        said.append(f"cleared when     {one.reason.clears}")
        if one.reason.demoted:
            said.append(f"lower class      {one.reason.demoted}")
    if one.expected is not None:
        said.append(f"place            {one.place} of {sum(entry.place is not None for entry in entries)}, lane {one.lane}")
        said += [f"ahead of it      {one_line(entry.id)}: {entry.gpus} GPUs for {one_line(entry.account)}" for entry in ahead[:_AHEAD]]
        if len(ahead) > _AHEAD:
            said.append(f"ahead of it      {len(ahead) - _AHEAD:,} more, {sum(entry.gpus for entry in ahead[_AHEAD:]):,} GPUs")
        said.append(f"expected start   {_when(one.expected, cluster.now)}")
    for line in said:
        console.print(Text(one_line(line) if "  " not in line else line), soft_wrap=True)


def show_shares(source: Source, *, jobs: bool, as_json: bool) -> None:
    cluster, _ = source.look()
    rows = shares_of(cluster, jobs=jobs)
    if as_json:
        print(json.dumps({**_where(cluster), "accounts": [_finite(dataclasses.asdict(row)) for row in rows]}, indent=2))
        return
    console = Console()
    table = Table(box=None, title=f"shares of {cluster.fleet.capacity_gpus:,} GPUs; use in GPU-hours, halved every {duration(cluster.policy.half_life_s)}")
    for heading in ("account", "weight", "entitled", "", "used", "of all", "runs", "", "waits", "quota", "limit"):
        table.add_column(heading, justify="left" if heading in ("account", "") else "right", no_wrap=True)
    capacity, plain = max(1, cluster.fleet.capacity_gpus), "utf" not in console.encoding.lower()
    names = max(len(row.name) + 2 * row.depth for row in rows)
    cells = max(_BAR_LEAST, min(_BAR, (console.width - names - _BESIDE) // 2))
    for row in rows:
        limit = "" if row.limit_gpus is None else str(row.limit_gpus)
        table.add_row(
            Text("  " * row.depth + one_line(row.name), style="dim" if row.is_job else ""), f"{row.weight:g}", f"{100 * row.entitled_share:.1f} %",
            _bar(row.entitled_share, "green", cells, plain=plain), "" if row.is_job else f"{row.used_gpu_h:,.0f}",
            "" if row.is_job else f"{100 * row.used_share:.1f} %",
            f"{row.running_gpus:,}", _bar(row.running_gpus / capacity, "blue", cells, plain=plain), f"{row.waiting_gpus:,}", str(row.quota_gpus or ""), limit,
        )  # fmt: skip
    console.print(table)


def _bar(share: float, colour: str, cells: int, *, plain: bool) -> Text:
    full = min(cells, round(share * cells))
    return Text.assemble((("#" if plain else "█") * full, colour), (("." if plain else "·") * (cells - full), "dim"))


def _nodes(one: Entry) -> str:
    named = ", ".join(f"{name} ({gpus})" for name, gpus in one.nodes[:3])
    return f"{named} and {len(one.nodes) - 3} more" if len(one.nodes) > 3 else named


def _when(expected: Expected, now: float) -> str:
    def said(at: float) -> str:
        return "beyond 14d" if math.isinf(at) else "now" if at <= now else duration(at - now)

    begins = "in " if now < expected.likely < math.inf else ""
    return f"{begins}{said(expected.likely)} ({said(expected.earliest)} to {said(expected.latest)})"


def _free(cluster: Cluster) -> int:
    fleet = cluster.fleet
    return sum(free for free, health in zip(fleet.free, fleet.health, strict=True) if health.value != "out")


def _where(cluster: Cluster) -> dict[str, Any]:
    return {"now_s": cluster.now, "gpus": cluster.fleet.capacity_gpus, "gpus_free": _free(cluster), "nodes": len(cluster.fleet.nodes)}


def _record(one: Entry, cluster: Cluster) -> dict[str, Any]:
    record = dataclasses.asdict(one)
    record["nodes"] = dict(one.nodes)
    record["state"] = "waits" if one.place is not None or one.reason is not None else "runs"
    if one.expected is not None:
        record["expected"] = {f"{name}_s": at if math.isfinite(at) else None for name, at in dataclasses.asdict(one.expected).items()}
    return record


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()}


def _decided(decided: Decisions) -> dict[str, Any]:
    starts = [{"job": one.job, "because": one.because} for one in decided.starts]
    return {"starts": starts, "evictions": [{"job": one.job, "for": one.for_job} for one in decided.evictions]}


def _decided_lines(decided: Decisions) -> list[str]:
    starts = [f"starts now: {one_line(one.job)}, because {one.because}" for one in decided.starts[:_AHEAD]]
    more = [f"and {len(decided.starts) - _AHEAD:,} more start now"] if len(decided.starts) > _AHEAD else []
    return starts + more + [f"evicted now: {one_line(one.job)}, for {one_line(one.for_job)}" for one in decided.evictions[:_AHEAD]]
