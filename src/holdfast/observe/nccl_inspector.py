"""NCCL's inspector: how long each collective took, as its plugin writes it to files in NCCL_INSPECTOR_DUMP_DIR (NCCL 2.28 and newer).

An object for each collective: `header` (communicator, rank), `metadata` (process), `coll_perf` (name, number, size, microseconds, bandwidth). Only the end of
each file is read: they grow as long as a job runs. Written from NCCL's documentation, and not run on NCCL.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

_TAIL_BYTES: Final = 256 << 10
_FILES_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """One collective of one rank."""

    communicator: str
    rank: int
    process: int
    operation: str
    sequence: int
    size_bytes: int
    seconds: float
    bus_gb_per_s: float


def read(directory: Path, processes: Collection[int]) -> list[Performed]:
    """The last ones of these processes. What cannot be read is left out."""
    found: list[Performed] = []
    try:
        files = sorted((path for path in directory.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[:_FILES_MAX]:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                found += [one for one in parse(file.read().decode(errors="replace")) if one.process in processes]
    except OSError:
        return found
    return found


def parse(text: str) -> list[Performed]:
    """Objects, on a line each or over many; the first may be cut off, and what is not of this form is passed over."""
    decoder, found, at = json.JSONDecoder(), [], text.find('{"header"') if '{"header"' in text else text.find("{")
    while 0 <= at < len(text):
        try:
            row, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            one = _performed(row)
            found += [one] if one is not None else []
        at = text.find("{", end)
    return found


def _performed(row: Any) -> Performed | None:
    try:
        performed = row["coll_perf"]
        return Performed(
            communicator=str(row["header"]["id"]), rank=int(row["header"]["rank"]), process=int(row["metadata"]["pid"]), operation=str(performed["coll"]),
            sequence=int(performed["coll_sn"]), size_bytes=int(performed["coll_msg_size_bytes"]), seconds=float(performed["coll_exec_time_us"]) / 1e6,
            bus_gb_per_s=float(performed.get("coll_busbw_gbs", 0.0)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


def words(performed: Iterable[Performed]) -> tuple[str, ...]:
    """For each rank the collective it spends the most time in."""
    by_rank: dict[tuple[int, str, int], list[Performed]] = {}
    for one in performed:
        by_rank.setdefault((one.rank, one.operation, one.size_bytes), []).append(one)
    most: dict[int, list[Performed]] = {}
    for (rank, _, _), ones in sorted(by_rank.items()):
        if sum(one.seconds for one in ones) > sum(one.seconds for one in most.get(rank, [])):
            most[rank] = ones
    return tuple(_sentence(rank, ones) for rank, ones in most.items())


def _sentence(rank: int, ones: list[Performed]) -> str:
    last = max(ones, key=lambda one: one.sequence)
    took, bandwidth = median(one.seconds for one in ones), median(one.bus_gb_per_s for one in ones)
    what = f"{last.operation} of {last.size_bytes / 2**20:.3g} MiB"
    return f"NCCL inspector: rank {rank} takes {1000 * took:.3g} ms for {what}, {bandwidth:.3g} GB/s on the bus ({len(ones)} of them, up to {last.sequence})"
