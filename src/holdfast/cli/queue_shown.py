"""Queues, reasons and shares in a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.queue_source import Source
from holdfast.cli.screen import Screen, Table
from holdfast.cli.words import count, duration, one_line
from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import Decisions
from holdfast.schedule.forecast import Expected
from holdfast.schedule.view import Entry, ShareRow, queue_of, shares_of

_BAR, _BAR_LEAST = 20, 3  # Cells of a bar of shares: with fewer it says nothing, and is left out.
_ROWS = 40
_AHEAD = 5


def show_queue(source: Source, *, as_json: bool) -> None:
    cluster, decided = source.look()
    entries = queue_of(cluster)
    if as_json:
        print(json.dumps({**_where(cluster), "decided": _decided(decided, cluster), "jobs": [_record(one) for one in entries]}, indent=2))
        return
    console = Screen()
    running, waiting = [one for one in entries if one.place is None], [one for one in entries if one.place is not None]
    fleet = cluster.fleet
    console.print(f"{len(running):,} run on {fleet.capacity_gpus - _free(cluster):,} of {fleet.capacity_gpus:,} GPUs, {len(waiting):,} wait")
    for line in _lines([*running[:_ROWS], *waiting[:_ROWS]], cluster.now):
        console.print(line)
    for what, those in (("run", running), ("wait", waiting)):
        if len(those) > _ROWS:
            console.print(Text(f"{len(those) - _ROWS:,} more {what}; --json has all", style="dim"))
    for line in _decided_lines(decided, cluster):
        console.print(Text(one_line(line), style="dim"))


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
        where = _where(cluster)  # Apart from the job, which has GPUs and nodes of its own.
        before = [{"id": entry.id, "gpus": entry.gpus, "account": entry.account} for entry in ahead]
        record = {"now_s": where.pop("now_s"), "cluster": where, **_record(one), "ahead": before}
        print(json.dumps(record, indent=2))
        return
    console = Screen()
    said = [f"{one_line(one.id)}: {one.gpus} GPUs for {one_line(one.account)}, class {one.priority}, submitted {duration(cluster.now - one.submitted_at)} ago"]
    if one.reason is None or one.expected is None:
        said.append(f"runs since {duration(cluster.now - one.since)} on {_nodes(one)}{'; may be evicted' if one.loose else ''}" if one.nodes else "waits")
    if one.reason is not None:
        said.append(f"waits because    {one_line(one.reason.because)} ({one.reason.kind})")
        said += [f"in the way       {one_line(blocker)}" for blocker in one.reason.blockers]
        said.append(f"cleared when     {one_line(one.reason.clears)}")
        if one.reason.demoted:
            said.append(f"lower class      {one_line(one.reason.demoted)}")
    if one.expected is not None:
        said.append(f"place            {one.place} of {sum(entry.place is not None for entry in entries)}, lane {one.lane}")
        said += [f"ahead of it      {one_line(entry.id)}: {entry.gpus} GPUs for {one_line(entry.account)}" for entry in ahead[:_AHEAD]]
        if len(ahead) > _AHEAD:
            said.append(f"ahead of it      {len(ahead) - _AHEAD:,} more, {sum(entry.gpus for entry in ahead[_AHEAD:]):,} GPUs")
        said.append(f"expected start   {_when(one.expected, cluster.now)}")
    for line in said:
        console.print(Text(line), soft_wrap=True)


def show_shares(source: Source, *, jobs: bool, as_json: bool) -> None:
    cluster, _ = source.look()
    rows, capacity = shares_of(cluster, jobs=jobs), cluster.fleet.capacity_gpus
    if as_json:
        print(json.dumps({**_where(cluster), "accounts": [dataclasses.asdict(row) for row in rows]}, indent=2))
        return
    console = Screen()
    columns = {heading: cells for heading, cells in _columns(rows).items() if any(cells)}
    widths = {heading: max(map(cell_len, (heading, *cells))) for heading, cells in columns.items()}
    bar = min(_BAR, (console.width - sum(widths.values()) - len(widths)) // 2 - 1)  # Cells of one, of which there are two.
    bars = {"entitled": ("green", [row.entitled_share for row in rows]), "runs": ("blue", [row.running_gpus / max(1, capacity) for row in rows])}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    drawn: list[list[Text]] = []
    for heading, cells in columns.items():
        first = heading == "account"
        table.add_column(heading, justify="left" if first else "right", no_wrap=True, min_width=None if first else widths[heading])
        drawn.append([Text(cell, style="" if row.kind == "account" else "dim") for row, cell in zip(rows, cells, strict=True)])
        if heading in bars and bar >= _BAR_LEAST:
            table.add_column(no_wrap=True)
            colour, shares = bars[heading]
            drawn.append([_bar(share, colour, bar, plain="utf" not in console.encoding.lower()) for share in shares])
    for line in zip(*drawn, strict=True):
        table.add_row(*line)
    console.print(f"shares of {count(capacity, 'GPU')}; use in GPU-hours, halved every {duration(cluster.policy.half_life_s)}", highlight=False)
    console.print(table)


def _columns(rows: Sequence[ShareRow]) -> dict[str, list[str]]:
    return {
        "account": ["  " * row.depth + one_line(row.name) for row in rows],
        "weight": [f"{row.weight:g}" for row in rows],
        "entitled": [f"{100 * row.entitled_share:.1f} %" for row in rows],
        "used": [f"{row.used_gpu_h:,.{int(0 < row.used_gpu_h < 10)}f}" for row in rows],
        "of all": [f"{100 * row.used_share:.1f} %" for row in rows],
        "runs": [f"{row.running_gpus:,}" for row in rows],
        "waits": [f"{row.waiting_gpus:,}" for row in rows],
        "quota": [str(row.quota_gpus or "") for row in rows],
        "limit": ["" if row.limit_gpus is None else str(row.limit_gpus) for row in rows],
    }


def _bar(share: float, colour: str, cells: int, *, plain: bool) -> Text:
    full = min(cells, round(share * cells))
    return Text.assemble((("#" if plain else "█") * full, colour), (("." if plain else "·") * (cells - full), "dim"))


def _nodes(one: Entry) -> str:
    named = ", ".join(f"{one_line(name)} ({gpus})" for name, gpus in one.nodes[:3])
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


def _record(one: Entry) -> dict[str, Any]:
    record = dataclasses.asdict(one)
    record["nodes"] = dict(one.nodes)
    record["state"] = "waits" if one.place is not None or one.reason is not None else "runs"
    if one.expected is not None:
        record["expected"] = {f"{name}_s": _finite(at) for name, at in dataclasses.asdict(one.expected).items()}
    return record


def _decided(decided: Decisions, cluster: Cluster) -> dict[str, Any]:
    """All that was decided. A mend says where the job goes on; nowhere where it waits again."""
    mends = [
        {"job": one.job, "how": one.how, "lost": _names(one.lost, cluster), "nodes": _names(one.placement, cluster), "gpus": one.gpus, "because": one.because}
        for one in decided.mends
    ]
    return {
        "starts": [{"job": one.job, "because": one.because} for one in decided.starts],
        "evictions": [{"job": one.job, "for": one.for_job} for one in decided.evictions], "mends": mends,
        "resizes": [{"job": one.job, "gpus": one.gpus} for one in decided.resizes],
        "reservations": [{"job": one.job, "nodes": _names(one.nodes, cluster), "at_s": _finite(one.at)} for one in decided.reservations],
        "drained": _names(decided.drained, cluster),
    }  # fmt: skip


def _decided_lines(decided: Decisions, cluster: Cluster) -> Iterator[str]:
    def listed(nodes: Sequence[int | tuple[int, int]]) -> str:
        return ", ".join(_names(nodes[:_AHEAD], cluster)) + (" and others" if len(nodes) > _AHEAD else "")

    for lines in (
        [f"lost its nodes: {one.job}, {one.how}{f' on {listed(one.placement)}' if one.placement else ''}, because {one.because}" for one in decided.mends],
        [f"starts now: {one.job}, because {one.because}" for one in decided.starts],
        [f"evicted now: {one.job}, for {one.for_job}" for one in decided.evictions],
        [f"resized now: {one.job}, to {count(one.gpus, 'GPU')}" for one in decided.resizes],
        [f"kept for {one.job}: {listed(one.nodes)}" for one in decided.reservations],
        [f"empty now, to be repaired: {name}" for name in _names(decided.drained, cluster)],
    ):
        yield from lines[:_AHEAD]
        if len(lines) > _AHEAD:
            yield f"and {len(lines) - _AHEAD:,} more of those"


def _names(nodes: Sequence[int | tuple[int, int]], cluster: Cluster) -> list[str]:
    return [cluster.fleet.nodes[node[0] if isinstance(node, tuple) else node].name for node in nodes]


def _finite(at: float) -> float | None:
    """For JSON, which knows no infinity."""
    return at if math.isfinite(at) else None
