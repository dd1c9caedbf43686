"""What must hold of every detector that takes one look after the other."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from math import inf, nan
from typing import Any

from hypothesis import strategies as st

ODD = st.sampled_from([nan, inf, -inf, 0.0, -1.0, 1e300, -1e300, 1e-300])
NUMBERS = st.one_of(st.floats(-10.0, 10.0), ODD)
TIMES = st.one_of(st.floats(0.0, 1e6), st.sampled_from([nan, inf, -1.0, 4e9]))


def size(detector: Any) -> int:
    """What it remembers, in bytes."""
    return len(pickle.dumps(detector))


def grows(make: Callable[[], Any], look: Callable[[Any, int], None], looks: int) -> float:
    """How many times as much a detector holds after four times as many looks."""
    few, many = make(), make()
    for number in range(looks):
        look(few, number)
    for number in range(4 * looks):
        look(many, number)
    return size(many) / size(few)
