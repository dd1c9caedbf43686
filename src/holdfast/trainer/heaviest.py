"""The heaviest operators of a trace: how long each took in itself, without the operators it called.

Reads the trace as it was written, event by event, because torch's own table of operators takes twenty times as long to make, all of it under the GIL, and the
training beside it would feel that. What ran on a GPU is counted by its kernels, where there are any; else the operators on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from holdfast.domain.profile import Operator

OPERATORS: Final = 12
_ON_CPU: Final = ("cpu_op", "user_annotation")
_ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")


def events_of(text: str) -> Iterator[dict[str, Any]]:
    """The events of a trace, one at a time: whoever waits for the GIL gets it between two."""
    decoder, at = json.JSONDecoder(), text.find("{", text.find('"traceEvents"') + 1)
    while at >= 0:
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        if isinstance(event, dict):
            yield event
        at = text.find("{", at)


def heaviest(events: Iterable[dict[str, Any]], *, steps: int) -> tuple[tuple[Operator, ...], str]:
    """The heaviest first, with seconds and calls a step; and where they ran."""
    on_cpu: dict[Any, list[tuple[float, float, str]]] = {}
    kernels: dict[str, list[float]] = {}
    for event in events:
        category, name = event.get("cat"), str(event.get("name", ""))
        if event.get("ph") != "X" or name.startswith("ProfilerStep"):
            continue
        begins, lasts = float(event.get("ts", 0.0)), float(event.get("dur", 0.0))
        if category in _ON_GPU:
            kernels.setdefault(name, []).append(lasts)
        elif category in _ON_CPU:
            on_cpu.setdefault((event.get("pid"), event.get("tid")), []).append((begins, lasts, name))
    spent = kernels or _in_themselves(on_cpu.values())
    most = sorted(spent.items(), key=lambda item: (-sum(item[1]), item[0]))[:OPERATORS]
    found = tuple(Operator(name=name, seconds=sum(times) / 1e6 / max(1, steps), calls=len(times) / max(1, steps)) for name, times in most)
    return found, "cuda" if kernels else "cpu"


def _in_themselves(threads: Iterable[list[tuple[float, float, str]]]) -> dict[str, list[float]]:
    """Microseconds of each call less those of the calls within it, by name."""
    spent: dict[str, list[float]] = {}
    for calls in threads:
        own = [lasts for _, lasts, _ in calls]
        above: list[int] = []
        for place in sorted(range(len(calls)), key=lambda place: (calls[place][0], -calls[place][1])):
            begins, lasts, _ = calls[place]
            while above and calls[above[-1]][0] + calls[above[-1]][1] <= begins:
                above.pop()
            if above:
                own[above[-1]] -= lasts
            above.append(place)
        for seconds, (_, _, name) in zip(own, calls, strict=True):
            spent.setdefault(name, []).append(max(0.0, seconds))
    return spent
