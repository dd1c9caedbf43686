"""`/metrics`: every series by its right name and labels, bounded, and gone when it is no longer said."""

from __future__ import annotations

import math
import re

import pytest
from end_to_end.prometheus import check_metrics
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.metrics import AgentMetrics
from holdfast.control.metrics import KINDS_MAX, ControlMetrics
from holdfast.control.newest import Newest
from holdfast.control.watching import Watching
from holdfast.detect.rules import prometheus as exported_rules
from holdfast.detect.rules.rule import LABELS
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase
from holdfast.domain.metric import METRICS, Scope
from holdfast.domain.signal import Signal
from holdfast.domain.state import State
from holdfast.wire.exposition import JOB_LABEL, Family, escaped, exposition, family_of, number, wants_openmetrics
from holdfast.wire.messages import Signals
from holdfast.wire.page import OWN_MAX, SERIES_MAX

EVERY_METRIC = {name: "" if metric.scope in (Scope.JOB, Scope.NODE) else "0" for name, metric in METRICS.items()}


class Seen:
    """A control that hears agents, and what it answers."""

    def __init__(self) -> None:
        self.watching, self.said = Watching(()), list[str]()
        self.metrics = ControlMetrics("resnet", self.watching, Newest(self.watching.rings), self.said.append)
        self.state = State(phase=JobPhase.RUNNING)

    def hear(self, at: float, *signals: Signal, node: str = "a") -> None:
        columns = tuple((signal.metric, signal.of) for signal in signals)
        self.watching.take(Signals(node=node, columns=columns, values=tuple(signal.value for signal in signals)), at)

    def lines(self, at: float, *, openmetrics: bool = False) -> list[str]:
        return "".join(self.metrics.text(self.state, at, openmetrics)).splitlines()

    def samples(self, at: float) -> dict[str, str]:
        return dict(line.rsplit(" ", 1) for line in self.lines(at) if not line.startswith("#"))


def test_every_metric_of_the_catalogue_is_named_and_labelled_as_exported_rules_name_it() -> None:
    seen = Seen()
    seen.hear(100.0, *(Signal(metric, 1.5, of) for metric, of in EVERY_METRIC.items() if METRICS[metric].scope is not Scope.JOB))
    seen.watching.look(seen.state, [Signal(metric, 2.0) for metric in METRICS if METRICS[metric].scope is Scope.JOB], 100.5)
    found = seen.samples(101.0)
    for name, metric in METRICS.items():
        labels = {exported_rules.JOB_LABEL: "resnet"}
        if metric.scope is not Scope.JOB:
            labels["node"] = "a"
        if metric.scope in LABELS:
            labels[LABELS[metric.scope]] = "0"
        said = ",".join(f'{label}="{value}"' for label, value in labels.items())
        assert found[f"holdfast_{name}{{{said}}}"] == ("2" if metric.scope is Scope.JOB else "1.5")
    checked = check_metrics("\n".join(seen.lines(101.0)) + "\n")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_job_has_the_label_that_rules_use() -> None:
    assert JOB_LABEL == exported_rules.JOB_LABEL


def test_a_node_that_is_gone_or_silent_has_no_series() -> None:
    seen = Seen()
    for node in ("a", "b"):
        seen.hear(100.0, Signal("host_load", 1.0), node=node)
    seen.watching.gone("a")
    assert [name for name in seen.samples(101.0) if "load" in name] == ['holdfast_host_load{holdfast_job="resnet",node="b"}']
    assert not [name for name in seen.samples(120.0) if "load" in name]


def test_what_a_rank_says_only_after_a_step_stays_for_a_minute_and_no_longer() -> None:
    seen = Seen()
    seen.hear(100.0, Signal("loss", 2.0, "0"), Signal("step", 1.0, "0"))
    for second in range(101, 170):
        seen.hear(float(second), Signal("step", 1.0, "0"))
        assert any("loss" in name for name in seen.samples(float(second))) == (second < 160)


def test_a_loss_that_is_nan_is_shown_as_nan() -> None:
    seen = Seen()
    seen.hear(100.0, Signal("loss", math.nan, "0"))
    assert seen.samples(100.5)['holdfast_loss{holdfast_job="resnet",node="a",rank="0"}'] == "NaN"


def test_too_many_names_and_series_are_left_out_counted_and_said_once() -> None:
    seen = Seen()
    own = [Signal(f"user_n{number}", 1.0, "0") for number in range(OWN_MAX + 7)]
    disks = [Signal("disk_free_bytes", 1.0, f"/{number}") for number in range(SERIES_MAX + 5)]
    for second in (100.0, 101.0):
        seen.hear(second, *own, *disks, Signal("user_Not well-formed", 1.0, "0"), Signal("no_such_metric", 1.0))
        found = seen.samples(second + 0.5)
        assert sum(name.startswith("holdfast_user_n") for name in found) == OWN_MAX
        assert sum(name.startswith("holdfast_disk_free_bytes") for name in found) == SERIES_MAX
        assert found['holdfast_series_left_out{holdfast_job="resnet"}'] == str(7 + 5 + 2)
        assert not [name for name in found if "formed" in name or "no_such" in name]
    assert len(seen.said) == 1
    assert "14 series" in seen.said[0]


def test_incidents_are_counted_by_their_first_finding_and_open_ones_by_their_worst() -> None:
    seen = Seen()
    slow, dead = Finding(kind="slow_rank", because="", severity=Severity.WARNING), Finding(kind="worker_exited", because="")
    seen.state.incidents = [
        Incident(id=1, generation=1, opened_at=1.0, began_at=1.0, findings=(slow,), closed_at=5.0),
        Incident(id=2, generation=1, opened_at=2.0, began_at=2.0, findings=(slow, dead)),
    ]
    found = seen.samples(100.0)
    assert found['holdfast_incidents_total{holdfast_job="resnet",kind="slow_rank"}'] == "2"
    assert [found[f'holdfast_incidents_open{{holdfast_job="resnet",severity="{severity}"}}'] for severity in Severity] == ["0", "0", "1"]


def test_kinds_of_incidents_are_bounded_and_none_of_their_counters_falls() -> None:
    seen = Seen()
    before: dict[str, str] = {}
    for count in range(1, KINDS_MAX + 50, 20):
        seen.state.incidents = [
            Incident(id=id, generation=1, opened_at=1.0, began_at=1.0, findings=(Finding(kind=f"rule:R{id}", because=""),)) for id in range(count)
        ]
        found = {name: value for name, value in seen.samples(100.0).items() if name.startswith("holdfast_incidents_total")}
        assert len(found) <= KINDS_MAX
        assert all(int(found[name]) >= int(value) for name, value in before.items())
        before = found


def test_openmetrics_names_counters_without_their_suffix_each_family_once_and_ends_with_its_end() -> None:
    seen = Seen()
    seen.hear(100.0, *(Signal(metric, 1.0, of) for metric, of in EVERY_METRIC.items()))
    lines = seen.lines(100.5, openmetrics=True)
    assert lines[-1] == "# EOF"
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert "# TYPE holdfast_worker_read_bytes counter" in lines
    assert "# TYPE holdfast_build info" in lines
    assert "# TYPE holdfast_not_finite_total unknown" in lines, "a gauge has the counter's short name already"
    assert any(line.startswith("holdfast_worker_read_bytes_total{") for line in lines)


def test_an_agent_says_its_own_series_and_forgets_them_too() -> None:
    metrics = AgentMetrics("resnet", "a", print)
    metrics.take(Signals(node="a", columns=(("loss", "0"), ("host_load", "")), values=(1.25, 2.0)), 100.0)
    metrics.take(Signals(node="a", values=(None, 3.0)), 150.0)
    text = "".join(metrics.text(False))
    assert 'holdfast_loss{holdfast_job="resnet",node="a",rank="0"} 1.25\n' in text
    assert 'holdfast_host_load{holdfast_job="resnet",node="a"} 3\n' in text
    metrics.take(Signals(node="a", values=(None, 3.0)), 161.0)
    assert "holdfast_loss" not in "".join(metrics.text(False))


@given(st.text())
def test_a_label_never_leaves_its_quotes(text: str) -> None:
    said = escaped(text)
    assert "\n" not in said
    assert said.replace("\\\\", "").replace('\\"', "").count('"') == 0
    assert re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), said) == text


@given(st.floats())
def test_a_number_is_read_back_to_the_same_bits(value: float) -> None:
    said = number(value)
    assert said in ("NaN", "+Inf", "-Inf") if not math.isfinite(value) else float(said) == value


def test_a_help_that_is_more_than_a_line_stays_in_its_line() -> None:
    (text,) = exposition([Family(name="x", kind="gauge", help='a\\b "c"\nd', samples=[((), 1.0)])], openmetrics=False)
    assert text == '# HELP x a\\\\b "c"\\nd\n# TYPE x gauge\nx 1\n'


@pytest.mark.parametrize(("ranks", "pieces"), [(0, 0), (1, 1), (1999, 1), (2000, 2), (5000, 3)])
def test_a_large_family_comes_in_pieces_none_of_which_is_empty(ranks: int, pieces: int) -> None:
    # An empty chunk would end the answer.
    family = family_of(METRICS["loss"], "j", [("a", str(rank), 0.5) for rank in range(ranks)])
    found = list(exposition([family], openmetrics=False))
    assert len(found) == pieces
    assert all(found)
    assert len("".join(found).splitlines()) == (ranks + 2 if ranks else 0)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False), ("*/*", False), ("text/plain", False), ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", False),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;q=nonsense", False),
    ],
)  # fmt: skip
def test_openmetrics_is_for_those_who_ask(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is openmetrics
