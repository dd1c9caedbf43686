"""The heaviest operators of a trace, counted from its events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.heaviest import OPERATORS, events_of, heaviest


def event(name: str, begins: float, lasts: float, *, category: str = "cpu_op", thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": begins, "dur": lasts, "args": {"External id": 1}}


def test_an_operator_counts_without_those_it_called_and_a_step_is_no_operator() -> None:
    events = [
        event("ProfilerStep#3", 0, 100, category="user_annotation"), event("aten::linear", 0, 50), event("aten::addmm", 10, 30), event("aten::copy_", 12, 5),
        event("aten::addmm", 60, 20), event("aten::mm", 15, 8, thread=2),
    ]  # fmt: skip
    found, where = heaviest(events, steps=2)
    assert where == "cpu"
    assert {one.name: round(one.seconds * 2e6) for one in found} == {"aten::linear": 20, "aten::addmm": 45, "aten::copy_": 5, "aten::mm": 8}
    assert found[0].name == "aten::addmm"
    assert found[0].calls == 1.0


def test_where_a_gpu_worked_its_kernels_count() -> None:
    found, where = heaviest([event("aten::mm", 0, 50), event("sgemm", 5, 40, category="kernel", thread=9)], steps=1)
    assert ([one.name for one in found], where) == (["sgemm"], "cuda")


def test_the_events_come_one_at_a_time_from_the_text_of_a_trace_and_a_torn_one_gives_those_that_are_whole() -> None:
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [event("a", 0, 1), event("b{", 1, 1)], "traceName": "x"}, indent=1)
    assert [one["name"] for one in events_of(text)] == ["a", "b{"]
    assert [one["name"] for one in events_of(text[: text.index('"b{"')])] == ["a"]
    assert list(events_of("")) == []


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmnopq"), st.integers(0, 100), st.integers(0, 50), st.integers(1, 2))))
def test_no_more_time_is_counted_than_passed_and_never_less_than_none(calls: list[tuple[str, int, int, int]]) -> None:
    found, _ = heaviest([event(name, begins, lasts, thread=thread) for name, begins, lasts, thread in calls], steps=1)
    assert len(found) <= OPERATORS
    assert all(one.seconds >= 0 for one in found)
    assert sum(one.seconds for one in found) * 1e6 <= sum(lasts for _, _, lasts, _ in calls) + 1e-6
