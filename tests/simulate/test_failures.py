"""Failure processes: what they are by their own definition, and recordings that are refused when they are none."""

from __future__ import annotations

import gzip
import itertools
import random
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.errors import UserError
from holdfast.simulate.failures import Lost, bursts, lemons_among, outages, outages_of, poisson, read_failures, recorded, weibull
from holdfast.simulate.reliability.repair import Percentiles
from holdfast.simulate.world import run

NODES = [f"n{number}" for number in range(50)]


@pytest.mark.parametrize("shape", [0.6, 1.0, 3.0])
def test_machines_fail_as_often_as_their_mtbf_says_whatever_the_shape(shape: float) -> None:
    """A renewal process comes to its rate in the long run; 5 % is several standard errors here."""
    failures = weibull(random.Random(1), NODES, 100.0, 100_000.0, shape=shape)
    assert len(failures) == pytest.approx(50 * 1000, rel=0.05)
    assert failures == sorted(failures)


def test_poisson_is_as_irregular_as_it_should_be() -> None:
    failures = poisson(random.Random(2), ["n0"], 10.0, 100_000.0)
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(failures)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.1)


def test_a_burst_takes_one_rack_within_seconds() -> None:
    racks = {"r0": NODES[:4], "r1": NODES[4:8]}
    failures = bursts(random.Random(3), racks, 1000.0, 20_000.0, within_s=5.0)
    assert len(failures) > 20
    for at, node in failures:
        together = {name for when, name in failures if abs(when - at) <= 5.0}
        assert any(together <= set(rack) for rack in racks.values()) or len(together) > 4, node


def test_repair_times_keep_to_their_percentiles() -> None:
    repair = Percentiles(points=((0.0, 1.0), (0.5, 10.0), (0.9, 100.0), (1.0, 1000.0)))
    drawn = sorted(repair.draw(random.Random(seed)) for seed in range(2000))
    assert drawn[1000] == pytest.approx(10.0, rel=0.2)
    assert drawn[1800] == pytest.approx(100.0, rel=0.3)
    assert drawn[0] >= 1.0
    assert drawn[-1] <= 1000.0


def test_each_outage_is_repaired_before_the_next_and_none_begins_after_the_last_time() -> None:
    changes = outages(4, mtbf_s=180_000.0, seed=3, first_at=0.0, last_at=86_400.0, lemons=0.25)
    assert changes == sorted(changes)
    assert max(at for at, _, fails in changes if fails) <= 86_400.0 < max(at for at, _, _ in changes)
    for node in range(4):
        story = [fails for _, number, fails in changes if number == node]
        assert story == [True, False] * (len(story) // 2)
    counts = {node: sum(fails for _, number, fails in changes if number == node) for node in range(4)}
    assert {max(counts, key=counts.__getitem__)} == lemons_among(4, 0.25, 3), "who fails most is the lemon"


def test_a_machine_that_fails_more_often_changes_nothing_about_the_others() -> None:
    """Else two policies could not be compared, nor two fleets."""
    plain, with_lemon = (outages(4, mtbf_s=90_000.0, seed=3, first_at=0.0, last_at=900_000.0, lemons=part) for part in (0.0, 0.25))
    assert len(with_lemon) > 2 * len(plain), "its repairs take as long as those of others"
    (lemon,) = lemons_among(4, 0.25, 3)
    assert [one for one in plain if one[1] != lemon] == [one for one in with_lemon if one[1] != lemon] != []


def test_a_recording_is_squeezed_to_the_time_that_is_played_and_dealt_to_the_nodes_there_are() -> None:
    assert recorded([Lost(100.0, "b"), Lost(300.0, "a"), Lost(200.0, "c")], ["n0", "n1"], 50.0) == [(0.0, "n0"), (25.0, "n1"), (50.0, "n0")]
    assert recorded([Lost(7.0, "b")], ["n0"], 50.0) == [(0.0, "n0")]


def test_a_recording_is_played_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    path.write_text("at_s,node\n" + "".join(f"{hour * 3600},rack{hour % 3}-{hour % 5}\n" for hour in range(12)))
    report = run(1, failures=read_failures(path).rows, scale=0.2)
    assert sum("is lost" in what for what in report.faults) >= 3
    said = CliRunner().invoke(app, ["simulate", "--seeds", "1", "--failures", str(path)])
    assert said.exit_code == 0, said.output
    refused = {"a,b\n1,2\n": "no columns at_s and node", "at_s,node\nsoon,n1\n": "line 2", "at_s,node\nnan,n1\n": "line 2", "at_s,node\n": "no failure"}
    for content, says in refused.items():
        path.write_text(content)
        with pytest.raises(UserError, match=says):
            read_failures(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_failures(tmp_path / "none.csv")


# Beside a trace.


def test_beside_a_trace_a_recording_keeps_its_pace_and_its_repairs_and_machines_of_the_same_name_stand_for_themselves() -> None:
    rows = [Lost(10.0, "node-2", 50.0), Lost(20.0, "node-0", 0.0), Lost(30.0, "node-2", 5.0), Lost(100.0, "node-2", 1.0)]
    changes = outages_of(rows, ["node-0", "node-1", "node-2"], seed=0, first_at=1000.0, from_s=0.0, repair_s=60.0)
    assert changes == [(1010.0, 2, True), (1020.0, 0, True), (1021.0, 0, False), (1060.0, 2, False), (1100.0, 2, True), (1101.0, 2, False)]
    assert outages_of(rows, ["node-0", "node-1", "node-2"], seed=0, first_at=0.0, from_s=95.0, repair_s=60.0) == [(5.0, 2, True), (6.0, 2, False)]


def test_machines_of_other_names_are_dealt_by_the_seed_and_so_are_repairs_that_nobody_wrote_down() -> None:
    names, rows = [f"node-{number}" for number in range(20)], [Lost(float(at), f"m{at % 50}") for at in range(0, 100_000, 7)]

    def played(seed: int) -> list[tuple[float, int, bool]]:
        return outages_of(rows, names, seed=seed, first_at=0.0, from_s=0.0, repair_s=600.0)

    assert played(1) == played(1) != played(2)
    assert {node for _, node, _ in played(1)} == set(range(20)), "fifty machines, and each of ours is one of them"
    for node in range(20):
        story = [fails for _, number, fails in played(1) if number == node]
        assert story == [True, False] * (len(story) // 2)
    few = outages_of([Lost(1.0, "a"), Lost(2.0, "b")], names, seed=3, first_at=0.0, from_s=0.0, repair_s=600.0)
    assert len({node for _, node, _ in few}) == 2
    with pytest.raises(UserError, match="hours above 0"):
        outages_of(rows, names, seed=1, first_at=0.0, from_s=0.0, repair_s=0.0)


def test_dates_with_and_without_an_offset_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "lost.csv"
    path.write_text("node,started\na,2005-06-21 10:00+02:00\nb,2005-06-21 11:00\nc,2005-06-21 09:00Z\n")
    found = read_failures(path)
    assert [(row.node, row.at_s) for row in found.rows] == [("a", 0.0), ("c", 3600.0)]
    (left_out,) = found.skipped
    assert left_out.line == 3
    assert "has no offset from UTC and the rows before it have one" in left_out.because


def test_a_recording_with_dates_is_read_gzipped_or_not_and_rows_without_a_machine_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lost.csv.gz"
    rows = ["2,0.0,2005-06-21 10:54,2005-06-21 11:00,6", "2,,2005-06-21 10:55,,1", "3,0.0,2005-06-21 10:53,,", "3,1.0,then,,1"]
    path.write_bytes(gzip.compress("\n".join(["system,node,started,fixed,down_min", *rows]).encode()))
    recording = read_failures(path)
    assert recording.rows == (Lost(0.0, "3/0.0", None), Lost(60.0, "2/0.0", 360.0))
    assert [(one.line, one.because.split()[0]) for one in recording.skipped] == [(3, "node"), (5, "started")]
