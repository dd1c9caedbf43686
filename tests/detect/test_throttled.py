"""What holds a slow rank down: named with its numbers, and never asked when nothing is slow."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.detect.series import Rings
from holdfast.detect.throttled import Throttled
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.signal import Signal

NODES = ["node-0"] * 4 + ["node-1"] * 4
SLOW_RANK = Finding(kind="slow_rank", node="node-1", ranks=(6,), because="rank 6 is slow", severity=Severity.WARNING)
SLOW_JOB = Finding(kind="slow_job", because="steps are slow", severity=Severity.WARNING)

Of = tuple[str, str, str]  # Metric, node, and what of it.
HEALTHY = {
    "gpu_sm_clock_hertz": 1.98e9, "gpu_sm_clock_max_hertz": 1.98e9, "gpu_utilisation_ratio": 0.97, "gpu_throttled_thermal": 0.0, "gpu_throttled_hardware": 0.0,
    "gpu_throttled_power": 1.0,
}  # fmt: skip


def looked(changed: Mapping[Of, float] | None = None, *, slow: Finding | None = SLOW_RANK, seconds: int = 40, gpus: int = 4, detector: Throttled | None = None,
           at: int = 1000) -> list[Finding]:  # fmt: skip
    """A while of two nodes with GPUs, on which all is well but for what is `changed`; what is said at its end. Counters grow by what is given, each second."""
    rings, found = Rings(), detector or Throttled()
    usual: dict[Of, float] = {(metric, node, str(gpu)): value for metric, value in HEALTHY.items() for node in ("node-0", "node-1") for gpu in range(gpus)}
    for node in ("node-0", "node-1"):
        usual |= {("host_segments_total", node, ""): 4000.0, ("host_retransmits_total", node, ""): 1.0, ("host_cpu_pressure_ratio", node, ""): 0.02}
        usual |= {("disk_write_seconds", node, "/data"): 0.01, ("host_swapped_pages_total", node, ""): 0.0}
        usual |= {("cgroup_throttled_seconds_total", node, str(rank)): 0.0 for rank, place in enumerate(NODES) if place == node}
    usual |= changed or {}
    for second in range(at, at + seconds):
        for node in ("node-0", "node-1"):
            said = [
                Signal(metric, value * (second if metric.endswith("_total") else 1), of) for (metric, place, of), value in usual.items() if place == node
            ]
            rings.take(node, said, at=float(second), now=float(second))
    found.look([slow] if slow is not None else [], rings, NODES, float(at + seconds))
    return found.standing


def test_a_gpu_that_heat_slows_down_is_named_with_its_clock_and_the_rank_it_is_used_by() -> None:
    (finding,) = looked({("gpu_throttled_thermal", "node-1", "2"): 1.0, ("gpu_sm_clock_hertz", "node-1", "2"): 1.2e9})
    assert (finding.kind, finding.node, finding.of, finding.ranks, finding.severity) == ("throttled", "node-1", "2", (6,), Severity.INFO)
    assert finding.because == "GPU 2 of node-1 is slowed by heat: 1,200 MHz instead of 1,980"


def test_the_same_is_not_told_while_nothing_is_slow() -> None:
    assert looked({("gpu_throttled_thermal", "node-1", "2"): 1.0}, slow=None) == []


def test_what_is_throttled_on_another_node_than_the_slow_rank_is_not_told() -> None:
    assert looked({("gpu_throttled_thermal", "node-0", "2"): 1.0}) == []


def test_of_a_slow_job_every_node_is_asked() -> None:
    assert [finding.node for finding in looked({("gpu_throttled_hardware", "node-0", "1"): 1.0}, slow=SLOW_JOB)] == ["node-0"]


def test_which_rank_uses_a_gpu_is_not_told_where_that_is_a_guess() -> None:
    (finding,) = looked({("gpu_throttled_thermal", "node-1", "2"): 1.0}, gpus=3)
    assert finding.ranks == ()


def test_a_power_limit_that_all_gpus_are_at_is_nobodys_fault() -> None:
    assert looked() == []


def test_a_gpu_whose_power_limit_makes_it_slower_than_the_others_is_told() -> None:
    (finding,) = looked({("gpu_sm_clock_hertz", "node-1", "0"): 1.4e9})
    assert finding.because == "GPU 0 of node-1 is held down by its power limit: 1,400 MHz instead of 1,980"


def test_a_low_clock_alone_is_told_and_that_of_an_idle_gpu_is_not() -> None:
    no_power = {("gpu_throttled_power", "node-1", "0"): 0.0}
    (finding,) = looked({("gpu_sm_clock_hertz", "node-1", "0"): 0.9e9, **no_power})
    assert "slower than the others: 900 MHz instead of 1,980" in finding.because
    assert looked({("gpu_sm_clock_hertz", "node-1", "0"): 0.9e9, ("gpu_utilisation_ratio", "node-1", "0"): 0.0, **no_power}) == []


@pytest.mark.parametrize(
    ("changed", "kind", "ranks", "says"),
    [
        ({("cgroup_throttled_seconds_total", "node-1", "6"): 0.4}, "held_back", (6,), "the CPU quota of rank 6 on node-1 holds it back for 40% of the time"),
        ({("disk_write_seconds", "node-1", "/data"): 2.5}, "slow_disk", (), "a small write to /data on node-1 takes 2.5 s"),
        ({("host_retransmits_total", "node-1", ""): 200.0}, "lossy_network", (), "node-1 sends 5.0% of its TCP segments again"),
        ({("host_swapped_pages_total", "node-1", ""): 5000.0}, "swapping", (), "node-1 swaps 5,000 pages a second"),
        ({("host_cpu_pressure_ratio", "node-1", ""): 0.9}, "busy_host", (), "on node-1 tasks wait for a core for 90% of the time"),
    ],
)  # fmt: skip
def test_quotas_disks_networks_swap_and_cores_are_told_with_their_numbers(changed: Mapping[Of, float], kind: str, ranks: tuple[int, ...], says: str) -> None:
    (finding,) = looked(changed)
    assert (finding.kind, finding.node, finding.ranks) == (kind, "node-1", ranks)
    assert says in finding.because


def test_what_is_the_same_on_all_nodes_does_not_explain_one_slow_rank_and_does_explain_a_slow_job() -> None:
    everywhere = {("host_swapped_pages_total", node, ""): 5000.0 for node in ("node-0", "node-1")}
    assert looked(everywhere) == []
    assert [finding.kind for finding in looked(everywhere, slow=SLOW_JOB)] == ["swapping", "swapping"]


def test_a_job_that_uses_all_cores_everywhere_is_not_told_that_it_does() -> None:
    assert looked({("host_cpu_pressure_ratio", node, ""): 0.9 for node in ("node-0", "node-1")}, slow=SLOW_JOB) == []


def test_when_every_gpu_is_hot_a_few_say_it() -> None:
    hot = {("gpu_throttled_thermal", node, str(gpu)): 1.0 for node in ("node-0", "node-1") for gpu in range(4)}
    assert len(looked(hot, slow=SLOW_JOB)) == 4


def test_readings_that_are_no_numbers_are_harmless() -> None:
    odd = {(metric, "node-1", "0"): value for metric in HEALTHY for value in (float("nan"),)} | {("disk_write_seconds", "node-1", "/data"): float("inf")}
    assert looked(odd) == []


def test_it_ends_with_what_it_explains() -> None:
    detector, rings = Throttled(), Rings()
    assert looked({("gpu_throttled_thermal", "node-1", "2"): 1.0}, detector=detector)
    detector.look([], rings, NODES, 2000.0)
    assert detector.standing == []
