"""The odd stack: when a gang hangs, ranks wait in a collective for the one that is somewhere else.

Takes stacks as text, as faulthandler or py-spy print them. Who waits is known by its innermost frames: a collective, or a backward pass, which waits for the
collectives in it. Where nobody can be told by that, the ranks that are not where most ranks are stand out.
Wrong when a rank hangs inside a backward pass of its own: it looks as if it waited; then nobody is named, or those who are elsewhere are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_FAULTHANDLER_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_PY_SPY_FRAME = re.compile(r"^\s+(?P<function>\S+) \((?P<file>[^:()]+):(?P<line>\d+)\)")
_COLLECTIVE = re.compile(r"/torch/distributed/|/torch/autograd/.*:_engine_run_backward:|:(synchronize|wait|barrier):")
_INNERMOST = 3
_MAIN_THREAD = re.compile(r'^(Current thread|Thread .*"MainThread")')
_OTHER_THREAD = re.compile(r"^(Thread |Current thread)")


def odd_ranks(stacks: Mapping[str, str]) -> tuple[int, ...]:
    """The ranks that are not where most ranks are; empty when there is no such majority, or nobody stands out."""
    places = {int(rank): place_of(text) for rank, text in stacks.items()}
    busy = tuple(sorted(rank for rank, place in places.items() if not _waits(place)))
    if busy and len(busy) < len(places):
        return busy
    known = Counter(place for place in places.values() if place)
    if not known:
        return ()
    common, count = known.most_common(1)[0]
    odd = tuple(sorted(rank for rank, place in places.items() if place != common))
    return odd if odd and count > len(odd) else ()


def _waits(place: tuple[str, ...]) -> bool:
    return any(_COLLECTIVE.search(frame) for frame in place[:_INNERMOST])


def place_of(text: str) -> tuple[str, ...]:
    """The frames of the main thread, innermost first; empty when there is no Python stack."""
    frames: list[str] = []
    inside = False
    for line in text.splitlines():
        if _MAIN_THREAD.match(line):
            inside = True
        elif _OTHER_THREAD.match(line):
            inside = False
        elif inside and (found := _FAULTHANDLER_FRAME.match(line) or _PY_SPY_FRAME.match(line)):
            frames.append(f"{found['file']}:{found['function']}:{found['line']}")
    return tuple(frames)
