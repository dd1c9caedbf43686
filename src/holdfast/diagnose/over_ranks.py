"""Over ranks: which of the errors of many ranks came first, and who is to blame when only echoes are left.

Clocks of nodes differ by up to minutes. What all ranks log at the same time (the line of the same step) tells by how much, and times are compared only after
that. The order within one rank's own log needs no clock: what a rank says after it has lost its peers is a consequence.

Is wrong    when nobody logs steps and clocks differ: then only the order within a rank counts, and of equal roots the lowest rank is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from holdfast.diagnose.readings import Reading
from holdfast.diagnose.taxonomy import Role
from holdfast.domain.log_event import LogDigest, LogEvent, LogForm

Writer = int | str  # A rank, or the file of somebody who does not say his rank.

_AFTER_ECHO = 0.4  # What is left of an error that its rank had after it lost its peers.
_AFTER_ECHO_UNTOLD = 0.85  # The same where nobody says which rank wrote what.
_LATER = 0.85  # Of an error that another rank had later than the first.
_STARTED_ANYWAY = 0.1  # Of what keeps ranks from finding each other, where a collective of theirs timed out later in the same file: they had found each other.
_KEEPS_FROM_STARTING = ("port_in_use", "rendezvous_timeout")
_IN_A_GROUP = re.compile(r"WorkNCCL|SeqNum=|last enqueued", re.IGNORECASE)
_AT_ONCE_S = 0.5
_SEQUENCE = re.compile(r"SeqNum=(\d+)|last enqueued(?: NCCL)? work: ?(\d+)|sequence number[: ]+(\d+)", re.IGNORECASE)
_OWN_RANK = re.compile(r"\[(?:[^\]]* )?Rank (\d+)\]")
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: ?(-?\d+)", re.IGNORECASE)
_FIRST_FAILED = re.compile(r"(?:root cause \(first observed failure\)|first observed failure:)", re.IGNORECASE)
_RANK_LINE = re.compile(r"\brank\s*:?\s*(\d+)")
_CODE_LINE = re.compile(r"\bexit ?code\s*:?\s*(-?\d+)")
_FROM_OUTSIDE = (-9, -11, -7, -4, 137, 139, 135)  # Nobody ends himself like this because he lost his peers.
_COUNTS = 0.3
_MISSING = re.compile(
    r"[Rr]anks?\s+(\d+(?:, ?\d+)*)\s+(?:failed to pass monitoredBarrier|ha(?:s|ve) not (?:joined|reached|called))|missing ranks?:? \[?(\d+(?:, ?\d+)*)"
)
_OF_ANOTHER = re.compile(r"signal from|from another rank|on another rank", re.IGNORECASE)  # Not a complaint of one's own.
_FEW = 0.5  # A culprit is one of few.


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    ranks: tuple[int, ...] = ()
    node: str = ""
    because: str = ""


def writer_of(one: LogEvent) -> Writer:
    """Launchers and kernels write about ranks, and are none."""
    return one.rank if one.rank is not None and one.form not in (LogForm.SCHEDULER, LogForm.KERNEL) else one.path


def rank_of(one: LogEvent) -> int | None:
    """A launcher's line that names only the rank within its node says nothing of the rank in the job."""
    if one.form is LogForm.KERNEL or (one.form is LogForm.SCHEDULER and "local_rank" in one.message):
        return None
    return one.rank


def clock_offsets_s(digest: LogDigest) -> dict[Writer, float]:
    """How far each writer's clock is ahead of the middle one, where the same step was told of by several."""
    told: dict[int, dict[Writer, float]] = {}
    for one in digest.progress:
        if one.step is not None and one.at_s is not None:
            told.setdefault(one.step, {}).setdefault(one.rank if one.rank is not None else one.path, one.at_s)
    off: dict[Writer, list[float]] = {}
    for by_writer in told.values():
        if len(by_writer) >= 2:
            middle = median(by_writer.values())
            for writer, at_s in by_writer.items():
                off.setdefault(writer, []).append(at_s - middle)
    return {writer: median(values) for writer, values in off.items()}


def in_their_own_files(digest: LogDigest) -> LogDigest:
    """Progress that stands in another file is not progress after an error: files have no order."""
    if len(digest.paths) <= 1:
        return digest
    progress: dict[str, list[tuple[int, int | None]]] = {}
    for one in digest.progress:
        progress.setdefault(one.path, []).append((one.line, one.rank))

    def after(event: LogEvent) -> int:
        own = sum(line > event.last_line and (rank == event.rank or rank is None) for line, rank in progress.get(event.path, ()))
        return min(event.progress_after, own)

    return replace(digest, events=tuple(replace(one, progress_after=after(one)) if one.progress_after else one for one in digest.events))


def first_alone(digest: LogDigest, readings: Sequence[Reading]) -> LogDigest:
    """The digest without echoes and clean-up, where somebody says a cause. Else as it is."""
    roots = {_place(one.event) for one in readings if one.role is Role.ROOT and one.weight >= 1.0}
    echoes = {_place(one.event) for one in readings if one.role in (Role.ECHO, Role.CLEAN_UP) and _place(one.event) not in roots}
    kept = tuple(one for one in digest.events if _place(one) not in echoes)
    if not echoes or not roots:
        return digest
    paths = {one.path for one in digest.events if _place(one) in roots}
    ranks = {one.rank for one in digest.events if _place(one) in roots}
    tail = tuple(line for line in digest.tail if line.path in paths and line.rank in ranks)
    return replace(digest, events=kept, tail=tail)


def _place(event: LogEvent) -> tuple[str, int]:
    return (event.path, event.first_line)


def order(readings: Sequence[Reading], digest: LogDigest) -> list[float]:
    """For each reading, what its place in the story leaves of it: 1 for what came first."""
    offsets = clock_offsets_s(digest)
    echoed: dict[Writer, int] = {}  # The first line at which a writer had lost its peers.
    for one in readings:
        if one.role is Role.ECHO and one.counts > _COUNTS and one.event.form is not LogForm.SCHEDULER:
            writer = writer_of(one.event)
            echoed[writer] = min(echoed.get(writer, one.event.first_line), one.event.first_line)
    grouped: dict[str, int] = {}  # The last line of a file at which ranks were in a collective together.
    for one in readings:
        if one.cause == "nccl_timeout" and one.counts > _COUNTS and _IN_A_GROUP.search(one.event.message):
            grouped[one.event.path] = max(grouped.get(one.event.path, 0), one.event.first_line)
    roots = [one for one in readings if one.role is Role.ROOT and one.weight >= 1.0 and not _after_echo(one, echoed)]
    times = [at_s for one in roots if (at_s := corrected_s(one.event, offsets)) is not None]
    first_s = min(times, default=None)
    left: list[float] = []
    for one in readings:
        share = 1.0
        if one.role is Role.ROOT and _after_echo(one, echoed):
            share *= _AFTER_ECHO if one.event.rank is not None else _AFTER_ECHO_UNTOLD
        if one.cause in _KEEPS_FROM_STARTING and one.event.last_line < grouped.get(one.event.path, 0):
            share *= _STARTED_ANYWAY
        at_s = corrected_s(one.event, offsets)
        if one.role is Role.ROOT and first_s is not None and at_s is not None and at_s > first_s + _AT_ONCE_S:
            share *= _LATER
        left.append(share)
    return left


def _after_echo(one: Reading, echoed: Mapping[Writer, int]) -> bool:
    return one.event.first_line > echoed.get(writer_of(one.event), one.event.first_line)


def corrected_s(event: LogEvent, offsets: Mapping[Writer, float]) -> float | None:
    return None if event.at_s is None else event.at_s - offsets.get(writer_of(event), 0.0)


def culprit(cause: str, readings: Sequence[Reading], digest: LogDigest) -> Culprit:
    """Who to look at, for this cause."""
    offsets = clock_offsets_s(digest)
    roots = [one for one in readings if one.role is Role.ROOT and one.counts > _COUNTS and one.weight >= 1.0]
    of_cause = [one for one in roots if one.cause == cause]
    chosen = of_cause or roots
    first = min(chosen, key=lambda one: _when(one.event, offsets), default=None)
    ranks = sorted({rank for one in chosen if (rank := rank_of(one.event)) is not None})
    if first is not None and ranks:
        return _first_root(chosen, ranks, digest, offsets)
    named = _named_by_launchers(digest)
    node = first.event.node if first is not None else ""
    told = [one for one in named if one.code in _FROM_OUTSIDE or len(named) == 1]
    beside = [one for one in told if first is not None and _beside(one, first.event)] or told
    if first is not None and beside:
        return Culprit(ranks=(beside[0].rank,), node=node, because=f"a launcher saw rank {beside[0].rank} fail first, with {beside[0].code}")
    if first is not None and not any(one.role is Role.ECHO and one.counts > _COUNTS for one in readings):
        return Culprit(node=node)
    silent = _silent(readings, digest)
    if silent.ranks or not told:
        return Culprit(ranks=silent.ranks, node=node or silent.node, because=silent.because)
    return Culprit(ranks=(told[0].rank,), node=node, because=f"a launcher saw rank {told[0].rank} fail first, with {told[0].code}")


def _first_root(roots: Sequence[Reading], ranks: Sequence[int], digest: LogDigest, offsets: Mapping[Writer, float]) -> Culprit:
    if len(ranks) > 1 and len(ranks) > _FEW * len(digest.ranks):
        return Culprit(ranks=tuple(ranks), because=f"{len(ranks)} of {len(digest.ranks)} ranks say the same: nobody in particular")
    first = min((one for one in roots if rank_of(one.event) is not None), key=lambda one: _when(one.event, offsets))
    rank = rank_of(first.event)
    assert rank is not None
    return Culprit(ranks=(rank,), node=first.event.node, because=f"rank {rank} says it first" if len(ranks) > 1 else f"only rank {rank} says it")


def _when(event: LogEvent, offsets: Mapping[Writer, float]) -> tuple[float, int, int]:
    at_s = corrected_s(event, offsets)
    return (at_s if at_s is not None else float("inf"), event.rank if event.rank is not None else 1 << 30, event.first_line)


def _silent(readings: Sequence[Reading], digest: LogDigest) -> Culprit:
    """Only echoes: the one who is behind, or who says nothing while all others complain."""
    told = [int(rank) for one in readings for line in one.event.text for found in _MISSING.finditer(line) for rank in re.split(r", ?", found[1] or found[2])]
    if told:
        ranks = tuple(sorted(set(told)))
        return Culprit(ranks=ranks, because=f"others say that rank {_listed(ranks)} did not come")
    enqueued = _sequences(digest)
    if len(enqueued) > 1 and len(set(enqueued.values())) > 1:
        least = min(enqueued.values())
        late = tuple(sorted(rank for rank, number in enqueued.items() if number == least))
        if len(late) <= _FEW * len(enqueued):
            return Culprit(ranks=late, because=f"rank {_listed(late)} is behind: at collective {least} where others are at {max(enqueued.values())}")
    own = [one.event for one in readings if one.counts > _COUNTS and isinstance(writer_of(one.event), int) and not _OF_ANOTHER.search(one.event.message)]
    complaining = {event.rank for event in own if event.rank is not None}
    known = {*digest.ranks, *complaining, *(rank for rank, _ in digest.exit_codes if rank is not None)}
    known = set(range(max((rank for rank in known if rank is not None), default=-1) + 1)) if len(known) > 1 else known
    quiet = sorted(rank for rank in known if rank is not None and rank not in complaining)
    if quiet and complaining and len(quiet) <= _FEW * len(known):
        heard = {line.rank for line in digest.tail} | {one.rank for one in digest.progress}
        present = [rank for rank in quiet if rank in heard]  # A log without a complaint says more than a log that is not there.
        named = {one.rank for one in _named_by_launchers(digest)} & set(quiet)
        chosen = sorted(named) if len(named) == 1 else _longest(present, digest) if present else quiet
        return Culprit(ranks=tuple(chosen), because=f"rank {_listed(chosen)} says nothing while {len(complaining)} others lost their peers")
    return Culprit()


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _sequences(digest: LogDigest) -> dict[int, int]:
    """The newest collective that each rank has entered, as its watchdog says; else the one it waits for."""
    waits: dict[int, int] = {}
    entered: dict[int, int] = {}
    told = [(one.rank, line) for one in digest.events if one.form is not LogForm.SCHEDULER for line in one.text] + [(one.rank, one.text) for one in digest.tail]
    for rank, line in told:
        inside = _OWN_RANK.search(line)
        of = int(inside[1]) if inside else rank
        if of is None:
            continue
        if (found := _ENQUEUED.search(line)) is not None:
            entered[of] = int(found[1])
        elif (found := _SEQUENCE.search(line)) is not None:
            waits[of] = int(next(one for one in found.groups() if one is not None))
    return waits | entered


def _longest(ranks: Sequence[int], digest: LogDigest) -> list[int]:
    """Those whose logs go furthest: ranks make their steps together, so a log that ends before the others was cut, and its silence says nothing."""
    steps = {one.rank: one.step for one in digest.progress if one.step is not None}
    most = max((step for rank in ranks if (step := steps.get(rank)) is not None), default=None)
    return [rank for rank in ranks if steps.get(rank) == most] or list(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """The rank that a launcher saw fail first."""

    rank: int
    code: int
    path: str
    node: str


def _named_by_launchers(digest: LogDigest) -> list[_Named]:
    """torchrun writes down which rank of its node it saw fail first, and with which code. Those that something from outside ended stand first."""
    found: dict[int, _Named] = {}
    for event in digest.events:
        text = "\n".join((event.message, *event.text))
        if not _FIRST_FAILED.search(text):
            continue
        after = text[_FIRST_FAILED.search(text).end() :]  # type: ignore[union-attr]
        rank, code = _RANK_LINE.search(after), _CODE_LINE.search(after)
        if rank is not None:
            found.setdefault(int(rank[1]), _Named(rank=int(rank[1]), code=int(code[1]) if code else 1, path=event.path, node=event.node))
    return sorted(found.values(), key=lambda one: (one.code not in _FROM_OUTSIDE, one.rank))


def _beside(named: _Named, event: LogEvent) -> bool:
    """Whether the launcher stands on the node that the event is about: by its name, or in the same directory."""
    if named.node and event.node:
        return named.node == event.node
    return named.path.rpartition("/")[0] == event.path.rpartition("/")[0]
