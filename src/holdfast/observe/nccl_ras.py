"""NCCL's RAS: what NCCL itself knows of the processes of a job, asked at its TCP port (NCCL_RAS_ADDR, else localhost:28028; NCCL 2.24 and newer).

Lines are sent, lines come back: the protocol's version, OK for each setting, then the status, and the end. JSON is asked for; a NCCL that does not know it
answers as text, which names no job: it is believed only where NCCL_RAS_ADDR was set for this one. Of JSON the communicators with a process of ours count.

Written from NCCL's documentation and source, and not run on NCCL.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Mapping
from itertools import zip_longest
from typing import Any, Final

DEFAULT_ADDRESS: Final = "localhost:28028"
_ASK: Final = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
_ANSWER_BYTES_MAX: Final = 16 << 20
_SHOWN: Final = 8


async def ask(address: str, *, within_s: float) -> str:
    """The whole answer; empty when nobody answers there."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError, TimeoutError):
        return await asyncio.wait_for(_ask(host.strip("[]") or "localhost", int(port)), within_s)
    return ""


async def _ask(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_ASK)
        parts, size = [], 0
        while size < _ANSWER_BYTES_MAX and (part := await reader.read(1 << 16)):
            parts.append(part)
            size += len(part)
        return b"".join(parts).decode(errors="replace")
    finally:
        writer.close()


def words(answer: str, *, processes: Collection[int], ours: bool, hung: bool) -> tuple[str, ...]:
    """What is wrong, a sentence each. `processes` are the ids of this node's ranks; `ours`: the address was set for this job. Ranks that run are asked one
    after the other, and differ in how far they are: only of a gang that is `hung` does that mean something."""
    start = answer.find("{")
    if start >= 0:
        with contextlib.suppress(ValueError):
            return _of_json(json.loads(answer[start:]), processes, hung)
    return _of_text(answer) if ours and hung else ()


def _of_json(status: Any, processes: Collection[int], hung: bool) -> tuple[str, ...]:
    found = status.get("communicators", []) if isinstance(status, Mapping) else []
    communicators = [one for one in found if isinstance(one, Mapping)]
    mine = [one for one in communicators if any(rank.get("pid") in processes for rank in (*_ranks(one, "ranks"), *_ranks(one, "missing_ranks")))]
    return tuple(sentence for one in mine for sentence in (*_missing(one), *(_behind(one) if hung else ())))


def _missing(communicator: Mapping[str, Any]) -> list[str]:
    missing = _ranks(communicator, "missing_ranks")
    if not missing:
        return []
    dead = [rank for rank in missing if _status(rank).get("considered_dead")]
    named = ", ".join(f"{rank.get('rank')} (process {rank.get('pid')} on {rank.get('host')})" for rank in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    gone = f", {len(dead)} of them taken for dead" if dead else ""
    return [f"NCCL RAS: of the {communicator.get('size')} ranks of communicator {communicator.get('hash')}, {named}{more} do not answer{gone}"]


def _behind(communicator: Mapping[str, Any]) -> list[str]:
    """Ranks that have launched fewer of a collective than the others."""
    counts = {rank.get("rank"): rank.get("collective_counts") for rank in _ranks(communicator, "ranks")}
    known = {int(rank): count for rank, count in counts.items() if isinstance(rank, int) and isinstance(count, Mapping)}
    sentences = []
    for operation in sorted({name for count in known.values() for name in count}):
        launched = {rank: count.get(operation, 0) for rank, count in known.items()}
        if not all(isinstance(count, int) for count in launched.values()):
            continue
        most = max(launched.values())
        late = sorted(rank for rank, count in launched.items() if count < most)
        if late:
            shown = ", ".join(map(str, late[:_SHOWN])) + (f" and {len(late) - _SHOWN} more" if len(late) > _SHOWN else "")
            least = min(launched[rank] for rank in late)
            where = f"communicator {communicator.get('hash')}"
            sentences.append(f"NCCL RAS: in {where}, {len(known) - len(late)} ranks have launched {operation} {most}, rank {shown} only up to {least}")
    return sentences


def _of_text(answer: str) -> tuple[str, ...]:
    """The lines under the headings of what is wrong; a heading is underlined."""
    lines = answer.splitlines()
    found: list[str] = []
    inside = False
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        if below and set(below) == {"="}:
            inside = line.strip() in ("Errors", "Warnings")
        elif inside and line.strip() and set(line) != {"="}:
            found.append(line.strip())
    return (f"NCCL RAS: {'; '.join(found[: 4 * _SHOWN])}",) if found else ()


def _ranks(communicator: Mapping[str, Any], which: str) -> list[Mapping[str, Any]]:
    ranks = communicator.get(which)
    return [rank for rank in ranks if isinstance(rank, Mapping)] if isinstance(ranks, list) else []


def _status(rank: Mapping[str, Any]) -> Mapping[str, Any]:
    status = rank.get("status")
    return status if isinstance(status, Mapping) else {}
