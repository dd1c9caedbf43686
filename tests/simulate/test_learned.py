"""Worlds in which jobs start with tables that speak for leaving nodes: every promise holds there too, and nodes that are up really are left."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import holdfast.core.deciding
import holdfast.simulate.world
from holdfast.domain.diagnosis import Cause
from holdfast.domain.job import JobSpec
from holdfast.domain.learned import Learned, Remedy
from holdfast.domain.plan import Plan
from holdfast.recover.ladder import decide
from holdfast.simulate.survey import survey

STUBBORN = tuple(Remedy(cause=str(cause), rung="respawn", again=again, failed=5.0, failed_s=300.0) for cause in Cause for again in (False, True))


def test_no_promise_is_broken_where_nodes_are_left_for_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Plan] = []

    def decided(*arguments: Any, **named: Any) -> Plan:
        made.append(decide(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(holdfast.simulate.world, "JobSpec", partial(JobSpec, learned=Learned(version="v", remedies=STUBBORN, suspects=("node-0",))))
    monkeypatch.setattr(holdfast.core.deciding, "decide", decided)
    assert survey(range(8)).failed == {}
    assert sum("which is up" in plan.because for plan in made) > 5
    assert all(plan.learned == "v" for plan in made)
