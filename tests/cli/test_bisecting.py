"""`holdfast bisect`: what is refused, and how the answer is shown. The runs themselves are in tests/end_to_end/test_gone_wrong.py."""

from __future__ import annotations

import io
import json
from math import nan
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.bisecting import Report, as_json, checked, draw, shown
from holdfast.diagnose.bisection import compare
from holdfast.errors import UserError

SAME = {step: 1.0 / step for step in range(1, 9)}
CURVES = {"unchanged 1": SAME, "unchanged 2": SAME, "lr=*2": dict.fromkeys(SAME, 2.0), "clip=9": SAME, "lr=*99": {**SAME, 7: nan, 8: nan}}


def report() -> Report:
    found = compare([SAME, SAME], {name: curve for name, curve in CURVES.items() if "=" in name})
    return Report(job="j", checkpoint="step-00000010.g1", step=10, steps=8, curves=CURVES, found=found)


def test_the_answer_as_a_table_as_json_and_as_a_picture(tmp_path: Path) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(shown(report()))
    said = console.export_text()
    assert "lr=*99 mattered most: the loss is not finite from step 7 on" in said
    assert [line.split()[0] for line in said.splitlines()[3:8]] == ["unchanged", "unchanged", "lr=*99", "lr=*2", "clip=9"]
    told = json.loads(json.dumps(as_json(report()), allow_nan=False))
    assert [(one["change"], one["matters"]) for one in told["effects"]] == [("lr=*99", True), ("lr=*2", True), ("clip=9", False)]
    assert told["curves"]["lr=*99"]["7"] is None
    pytest.importorskip("matplotlib")
    draw(report(), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("changes", "says"), [
    (["lr"], "'lr' is no change"), (["lr=1,clip=2"], "expected one NAME=VALUE"), (["lr=1", "lr=1"], "given twice"), ([], "nothing is to be changed"),
])  # fmt: skip
def test_what_is_no_change_is_refused(changes: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        checked(changes)
