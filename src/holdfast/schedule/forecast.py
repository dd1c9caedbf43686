"""When who waits will start: the scheduler itself, run forward over a copy of the cluster, three times: with jobs that are short for their kind and nobody
new; as usual, with newcomers as on the day before; and long, with the same newcomers. The three starts are what is expected and its range, to which some slack
is added at its end.

Is wrong    about newcomers of another kind; about failures and repairs; and about who has no kind: for those it guesses.
            docs/scheduling.md says how often the range held on a trace.
Costs       a copy and a replay of the queue for each: a second or so for a thousand jobs that wait.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import decide
from holdfast.schedule.job import Job, JobRequest

SHARES = (0.25, 0.6, 0.9)  # Of jobs of a kind that are done by then. Most jobs are short and a few very long, so the middle lies high.
_SLACK = 1.5  # The latest is so much further away than the slowest of the three runs: found on eight days of a trace, checked on eight others.
_GOLDEN = 0.618033988749895  # Its multiples are spread evenly between whole numbers: newcomers short and long, without dice.
_DAY_S = 86400.0
_EVENTS_MAX = 30_000
_AHEAD_S = 14 * _DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Seconds on the cluster's clock. Infinity: not within two weeks."""

    earliest: float
    likely: float
    latest: float


def forecast(cluster: Cluster, ids: Collection[str] | None = None) -> dict[str, Expected]:
    """Of these jobs, or all that wait. The cluster stays as it is."""
    wanted = set(ids) if ids is not None else {id for id, job in cluster.jobs.items() if not job.running}
    runs = [_starts(cluster, wanted, share, newcomers=share > SHARES[0]) for share in SHARES] if wanted else []
    found = {}
    for id in sorted(wanted):
        earliest, likely, latest = sorted(run.get(id, math.inf) for run in runs)
        found[id] = Expected(earliest=earliest, likely=likely, latest=cluster.now + _SLACK * (latest - cluster.now))
    return found


def _starts(cluster: Cluster, wanted: Collection[str], share: float, *, newcomers: bool) -> dict[str, float]:
    ahead, known, begin = cluster.supposed(), cluster.estimates, cluster.now
    ends: list[tuple[float, int, float, Job]] = []  # When, number, start that it is the end of, job.
    starts: dict[str, float] = {}

    def foresee(job: Job, now: float) -> None:
        ran_s = job.attained_s + max(0.0, now - job.since)
        own_share = share if job.number <= last else job.number * _GOLDEN % 1.0
        heapq.heappush(ends, (now + max(1.0, known.whole_at(job, own_share, ran_s) - ran_s), job.number, job.since, job))

    last = max(job.number for job in cluster.jobs.values())
    arrivals = _as_yesterday(cluster) if newcomers else iter(())
    arrival = next(arrivals, None)
    for job in ahead.running:
        foresee(job, begin)
    for _ in range(_EVENTS_MAX):
        for start in decide(ahead, ahead.now).starts:
            if start.job in wanted:
                starts.setdefault(start.job, ahead.now)
            foresee(ahead.jobs[start.job], ahead.now)
        while ends and not _holds(ends[0]):
            heapq.heappop(ends)
        at = min(ends[0][0] if ends else math.inf, arrival[0] if arrival else math.inf, max(ahead.now, ahead.next_at()))
        if len(starts) == len(wanted) or at > begin + _AHEAD_S:
            break
        ahead.at(at)
        while ends and ends[0][0] <= at:
            one = heapq.heappop(ends)
            if _holds(one):
                ahead.end(one[3].request.id, at)
        while arrival and arrival[0] <= at:
            ahead.submit(arrival[1], at)
            arrival = next(arrivals, None)
    return starts


def _as_yesterday(cluster: Cluster) -> Iterator[tuple[float, JobRequest]]:
    """What was asked for in the last day, asked for again every day."""
    now = cluster.now
    recent = [(at, request) for at, request in cluster.estimates.arrivals if now - _DAY_S < at < now]
    if not recent:
        return
    for day in range(1, round(_AHEAD_S / _DAY_S)):
        for number, (at, request) in enumerate(recent):  # Not by its name, which may have been used again.
            yield at + day * _DAY_S, replace(request, id=f"newcomer {number}, {day} days later", needs=())


def _holds(end: tuple[float, int, float, Job]) -> bool:
    """Whether the job still runs, and was not evicted meanwhile."""
    return end[3].running and end[3].since == end[2]
