"""The rules that come with Holdfast: good, tested one by one, told alike by promtool, and listed in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from detect.rules_given import Told, promtool

from holdfast.control.rulebook import rules_in_force
from holdfast.detect.rules.cases import Case, read_cases, run_case
from holdfast.detect.rules.prometheus import exported, promtool_tests
from holdfast.detect.rules.reading import read_rules
from holdfast.domain.metric import METRICS, Kind, Metric, Scope
from holdfast.domain.signal import Signal

FOUND = rules_in_force()
RULES = {rule.name: rule for rule in FOUND.rules}
TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def cases_of_the_pack() -> list[Case]:
    cases: list[Case] = []
    for path in TESTS:
        some, problems = read_cases(path.read_text(), path.name, RULES)
        assert not problems, "\n".join(map(str, problems))
        cases += some
    return cases


CASES = cases_of_the_pack()


def test_the_pack_has_no_problems_and_at_least_thirty_rules() -> None:
    assert not FOUND.problems, "\n".join(map(str, FOUND.problems))
    assert len(RULES) >= 30
    assert {rule.file for rule in RULES.values()} == {"control.yaml", "gpu.yaml", "host.yaml", "training.yaml"}


def test_every_rule_of_the_pack_has_a_test_in_which_it_is_silent_and_one_in_which_it_fires() -> None:
    silent = {case.rule for case in CASES if any(not subjects for subjects in case.firing.values())}
    fires = {case.rule for case in CASES if any(case.firing.values())}
    assert silent == fires == set(RULES)


def test_every_rule_of_the_pack_gives_the_reason_for_its_threshold() -> None:
    assert not [rule.name for rule in RULES.values() if len(rule.why.split()) < 8]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.name}")
def test_the_pack_does_what_its_tests_say(case: Case) -> None:
    assert not run_case(case, RULES[case.rule]).failures


def test_promtool_accepts_the_exported_pack(tmp_path: Path) -> None:
    made = exported(RULES.values())
    assert not made.left_out
    (tmp_path / "pack.yaml").write_text(made.text)
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", "pack.yaml", directory=tmp_path)


def test_promtool_sees_the_same_alerts_at_the_same_times(tmp_path: Path) -> None:
    # A file for each rule and pace: promtool evaluates all rules of a file at each step of each test, which for the whole pack takes more than a minute.
    files = []
    for name, rule in RULES.items():
        (tmp_path / f"{name}.yaml").write_text(exported([rule]).text)
        for every_s in sorted({case.every_s for case in CASES if case.rule == name}):
            files.append(f"{name}.test-{every_s:g}.yaml")
            some = [case for case in CASES if case.rule == name and case.every_s == every_s]
            (tmp_path / files[-1]).write_text(promtool_tests(some, [rule], f"{name}.yaml"))
    said = promtool("test", "rules", *files, directory=tmp_path)
    assert said.count("SUCCESS") == len(files)


def healthy(metric: Metric, second: int) -> float:
    """A reading of a machine on which nothing is wrong."""
    fixed = {
        "step_data_seconds": 0.05, "step_seconds": 1.0, "step_compute_seconds": 0.8, "gpus": 8.0, "gpu_utilisation_ratio": 0.97,
        "gpu_temperature_celsius": 71.0, "gpu_memory_temperature_celsius": 82.0, "gpu_sm_clock_hertz": 1.7e9, "gpu_sm_clock_max_hertz": 1.98e9,
        "gpu_pcie_width": 16.0, "gpu_pcie_width_max": 16.0,
        "disk_free_bytes": 6e11, "disk_size_bytes": 1e12, "disk_inodes_free_ratio": 0.9, "host_memory_available_bytes": 4e11, "host_memory_bytes": 1e12,
        "worker_memory_bytes": 3e10, "cgroup_memory_limit_bytes": 6e10, "job_goodput_ratio": 0.96, "job_generation": 1.0, "network_up": 1.0,
        "host_segments_total": 4000.0 * second, "worker_log_bytes_total": 500.0 * second, "agent_memory_bytes": 6e7, "checkpoint_age_seconds": second % 300,
        "checkpoint_interval_seconds": 300.0, "disk_save_needs_bytes": 4e11,
        "gpu_ecc_corrected_total": 3.0 + second // 1800, "silent_seconds": 0.4,
    }  # fmt: skip
    if metric.name in fixed:
        return float(fixed[metric.name])
    if metric.kind is Kind.COUNTER:
        return 1.0
    return 0.02 if metric.unit in ("ratio", "s") else 0.0


def test_a_healthy_job_of_three_hours_with_gaps_and_a_restart_of_every_agent_is_told_of_by_no_rule() -> None:
    told = Told(*RULES.values())
    by_scope: dict[Scope, list[Metric]] = {scope: [metric for metric in METRICS.values() if metric.scope is scope] for scope in Scope}
    of = {Scope.NODE: [""], Scope.RANK: ["0", "1"], Scope.GPU: ["0", "1"], Scope.DISK: ["/data", "/dev/shm"], Scope.INTERFACE: ["eth0"], Scope.PEER: ["x"]}
    for second in range(0, 3 * 3600, 30):
        signals = {"": [Signal(metric=metric.name, value=healthy(metric, second)) for metric in by_scope[Scope.JOB]]}
        for number, node in enumerate("ab"):
            if second % 600 < 60 and number:
                continue  # A minute without a word now and then.
            life = second - 5400 if second >= 5400 else second  # Counters begin again.
            signals[node] = [
                Signal(metric=one.name, value=healthy(one, life), of=each) for scope, names in of.items() for each in names for one in by_scope[scope]
            ]
        looked = told.at(second, signals)
        assert not looked.started, f"after {second} s: {looked.started}"


def test_the_examples_of_the_documentation_are_good() -> None:
    rules, tests = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    read = read_rules(rules, "rules.md")
    assert not read.problems
    by_name = {rule.name: rule for rule in read.rules}
    cases, problems = read_cases(tests, "rules.md", by_name)
    assert not problems
    assert not [failure for case in cases for failure in run_case(case, by_name[case.rule]).failures]


def test_the_documentation_lists_the_pack_as_it_is() -> None:
    listed = re.findall(r"^\| `([A-Z]\w+)` \| (\w+) \| (\w+) \| (.*?) \|$", PAGE.read_text(), flags=re.MULTILINE)
    expected = [(rule.name, rule.severity.value, rule.subject.value, rule.why) for rule in sorted(RULES.values(), key=lambda one: (one.file, one.line))]
    assert listed == expected
