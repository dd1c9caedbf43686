"""`holdfast bisect`: what is refused, and how the answer is shown. The runs themselves are in tests/end_to_end/test_bisect.py and test_gone_wrong.py."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from math import nan
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.bisecting import Report, as_json, checked, draw, shown
from holdfast.cli.trial import Trial, spec_for
from holdfast.domain.job import Budget, JobSpec, Limits, MetricsAt, Mode, Policy, SaveEvery, Stage
from holdfast.domain.learned import Learned
from holdfast.domain.mesh import NAMES, Dimension, Mesh
from holdfast.domain.resources import Resources
from holdfast.errors import UserError

SAME = {step: 1.0 / step for step in range(1, 9)}
CURVES = {"unchanged 1": SAME, "unchanged 2": SAME, "lr=*2": dict.fromkeys(SAME, 2.0), "clip=9": SAME, "lr=*99": {**SAME, 7: nan, 8: nan}}


def report(*more: Trial) -> Report:
    trials = [Trial(name=name, change=name if "=" in name else "", curve=curve) for name, curve in CURVES.items()]
    return Report(job="j", checkpoint="step-00000010.g1", step=10, steps=8, trials=(*trials, *more))


def text(told: Report) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(shown(told))
    return console.export_text()


def test_the_answer_as_a_table_as_json_and_as_a_picture(tmp_path: Path) -> None:
    said = text(report())
    assert "lr=*99 mattered most: the loss is not finite from step 7 on" in said
    assert [line.split()[0] for line in said.splitlines()[3:8]] == ["unchanged", "unchanged", "lr=*99", "lr=*2", "clip=9"]
    told = json.loads(json.dumps(as_json(report()), allow_nan=False))
    assert [(one["change"], one["matters"]) for one in told["effects"]] == [("lr=*99", True), ("lr=*2", True), ("clip=9", False)]
    assert told["curves"]["lr=*99"]["7"] is None
    pytest.importorskip("matplotlib")
    draw(report(), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_did_not_finish_is_named_and_neither_ranked_nor_taken_for_noise() -> None:
    late = Trial(name="beta=2", change="beta=2", curve={1: 9.0, 2: 9.0}, unfinished="it was not done after 6.0 s, at step 2")
    short = Trial(name="unchanged 3", curve={1: 9.0}, unfinished="it was killed by SIGKILL, at step 1")
    told = report(late, short)
    assert told.exit_code == 1
    assert told.found == report().found
    assert "beta=2 did not come to its end: it was not done after 6.0 s, at step 2" in text(told)
    assert [one["change"] for one in as_json(told)["effects"]] == ["lr=*99", "lr=*2", "clip=9"]
    assert as_json(told)["unfinished"][1] == {"run": "unchanged 3", "because": short.unfinished}
    assert told.says.endswith("; nothing is known of beta=2")


def test_a_run_that_gave_up_since_its_loss_was_not_finite_has_said_what_it_was_for() -> None:
    gave_up = Trial(name="lr=*9", change="lr=*9", curve={1: 1.0, 2: nan}, unfinished="RuntimeError: NaN, at step 2")
    found = report(gave_up).found
    assert found is not None
    assert "lr=*9" in {one.change for one in found.effects if one.matters}


def test_with_one_unchanged_run_nothing_is_compared() -> None:
    one = Trial(name="unchanged 1", curve=SAME)
    told = Report(job="j", checkpoint="c", step=10, steps=8, trials=(one,), not_begun=("unchanged 2", "lr=1"), interrupted=True)
    assert (told.found, told.exit_code, as_json(told)["effects"]) == (None, 130, [])
    assert "nothing can be said: 1 unchanged run came to the end" in text(told)
    assert "not begun: unchanged 2, lr=1" in text(told)


EVERYTHING = JobSpec(
    job="j", run="r", argv=("train.py", "--big"), module=True, python=False, cwd="/work", nodes=2, min_nodes=1, spares=1, ranks_per_node=4,
    mesh=Mesh(dimensions=tuple(Dimension(name=name, size=2, replicates=NAMES[name][0], resizes=NAMES[name][1]) for name in ("dp", "tp"))),
    own_network=True, private=True, resources=Resources(memory_bytes=1 << 30, cpus=1.5), gpus=(4, 5, 2, 3, 0, 1), domains=2, warm=False, preimport=("numpy",),
    remote="/store/j", generations_before=3, save_every=SaveEvery(steps=9), limits=Limits(job_s=60.0, stop=True), metrics=MetricsAt(port=0),
    stage=(Stage(source="/data", target="data"),), power_cap_watts=200.0, notice_file="/run/notice", rules=("/rules",), alerts="/alerts",
    env={"HOLDFAST_CHAOS": "/orders", "OWN": "1"}, policy=Policy(mode=Mode.ASK, budgets=(Budget(count=1, within_s=9.0),), kill_wait_s=9.0),
    shape=(("batch", "32"),), learned=Learned(version="1"), chaos=True,
)  # fmt: skip


def test_a_trial_is_run_as_the_job_is_but_for_what_reaches_beyond_it() -> None:
    plain, given = JobSpec(job="", argv=()), spec_for(EVERYTHING, "run-1")
    fields = [field.name for field in dataclasses.fields(JobSpec)]
    assert [name for name in fields if getattr(EVERYTHING, name) == getattr(plain, name)] == []  # A new field is to be thought of here.
    assert {name for name in fields if getattr(given, name) != getattr(EVERYTHING, name)} == {
        "job", "run", "min_nodes", "spares", "gpus", "remote", "generations_before", "save_every", "limits", "metrics", "power_cap_watts", "notice_file",
        "rules", "alerts", "env", "policy", "learned", "chaos",
    }  # fmt: skip
    assert given.gpus == (4, 5, 2, 3)  # Those that the gang's own nodes had.
    assert given.env == {"OWN": "1"}
    assert (given.policy.mode, given.policy.max_restarts, given.policy.budgets, given.policy.kill_wait_s) == (Mode.AUTO, 0, (), 9.0)
    assert set(given.policy.never) == {"rejoin", "respawn", "replace", "shrink", "roll_back"}


@pytest.mark.parametrize(("changes", "says"), [
    (["lr"], "'lr' is no change"), (["lr=1,clip=2"], "expected one NAME=VALUE"), (["lr=1", "lr=1"], "given twice"), ([], "nothing is to be changed"),
    *(
        ([change], f"--change {re.escape(change)}: lr and weight_decay are")
        for change in ("lr=abc", "lr=*x", "lr=-5", "lr=nan", "weight_decay=-1", "clip=*2", "warmup=1.5")
    ),
])  # fmt: skip
def test_what_is_no_change_is_refused(changes: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        checked(changes)


def test_what_can_be_changed_is_taken_as_it_is() -> None:
    changes = ("lr=3e-4", "lr=*0.5", "weight_decay=0", "clip=1.0", "warmup=100", "warmup=100@40", "batch_size=-1", "name=resnet")
    assert checked(changes) == changes
