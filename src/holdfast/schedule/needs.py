"""Jobs that wait for jobs. One that `needs` others is not considered, holds nothing and does not grow old before each of them has ended well, or has made what
it is needed for and goes on. What it needs is known when it is submitted, so nobody waits for a wrong name, and a circle is found before it is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from holdfast.schedule.job import JobRefused, JobRequest

Find = Callable[[str], JobRequest | None]  # A job that waits or runs, by its name.


def check_needs(request: JobRequest, find: Find, done: Collection[str] = ()) -> None:
    """Refuse a job that needs one that is neither here nor `done`."""
    for need in request.needs:
        if need != request.id and find(need) is None and need not in done:
            said = f"job {request.id} needs {need}, which neither waits nor runs here, nor has ended well of late"
            raise JobRefused(f"{said}; submit that first, correct the name, or leave it out if it has ended")


def check_circle(request: JobRequest, find: Find) -> None:
    """Refuse a job that needs one that cannot end before it: itself, or one that needs it in turn."""
    circle = _circle(request, find)
    if circle:
        raise JobRefused(f"jobs would wait for each other in a circle: {' needs '.join(circle)}; leave one of these needs out")


def needed_first(requests: Sequence[JobRequest]) -> list[str]:
    """The names of jobs that have been checked, each after those it needs and else in order."""
    by_id = {request.id: request for request in requests}
    order: dict[str, None] = {}
    for request in requests:
        chain = [request]
        while chain:
            missing = [by_id[need] for need in chain[-1].needs if need not in order]
            if missing:
                chain.append(missing[0])
            else:
                order[chain.pop().id] = None
    return list(order)


def _circle(request: JobRequest, find: Find) -> list[str]:
    """The way from a job through what it needs back to itself; empty where there is none."""
    ways = [[request.id, need] for need in request.needs]
    seen = set[str]()
    while ways:
        way = ways.pop()
        if way[-1] == request.id:
            return way
        if way[-1] not in seen:
            seen.add(way[-1])
            needed = find(way[-1])
            ways += [[*way, need] for need in (needed.needs if needed is not None else ())]
    return []
