"""`holdfast watch`: all numbers of a moment in a table, in a line and as JSON; and the curves of what was."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from end_to_end.jobs import Job, command, eventually
from rich.cells import cell_len
from rich.console import Console

from holdfast.cli.look import Look, look_from, look_json, look_line
from holdfast.cli.spark import PARTS, sparkline, split_bar
from holdfast.cli.watch import Lines
from holdfast.cli.watch_table import watch_table
from holdfast.control.figures import NODES_MAX, VALUES_MAX, figures_of
from holdfast.control.newest import Newest
from holdfast.control.watching import Watching
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.state import Gang
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.wire.frames import FRAME_BYTES_MAX, connect
from holdfast.wire.messages import Figures, NodeView, Reading, Signals, View, Watch

Value = tuple[str, str, str, float]


def given(ranks: int = 4, *, findings: tuple[Finding, ...] = (), gpus: bool = False) -> Look:
    per_node = max(1, ranks // 2)
    values: list[Value] = []
    for rank in range(ranks):
        node, of = f"node-{rank // per_node}", str(rank)
        split = {"data": 0.01, "compute": 0.06 + 0.02 * (rank == 1), "communication": 0.02, "optimizer": 0.01, "save": 0.0}
        values += [(f"step_{part}_seconds", node, of, seconds) for part, seconds in split.items()]
        numbers = {"step": 420.0, "step_seconds": 0.1, "loss": 2.31, "gradient_norm": 0.52, "worker_cpu_ratio": 0.99, "worker_memory_bytes": 3.2e9}
        values += [(metric, node, of, value) for metric, value in {**numbers, "user_reward": 7.5}.items()]
    for number in range(2):
        node = f"node-{number}"
        host = {"host_cpu_ratio": 0.97, "host_load": 1.25, "host_memory_available_bytes": 2e9, "host_memory_bytes": 64e9, "host_cpu_pressure_ratio": 0.1}
        values += [(metric, node, "", value) for metric, value in host.items()]
        values += [("disk_free_bytes", node, "/tmp", 5e9), ("disk_size_bytes", node, "/tmp", 100e9)]
        values += [(metric, node, "0", value) for metric, value in FakeNvml(1).values[0].items() if gpus]
    view = View(
        job="demo", at=1000.0, phase="running", because="", generation=2, world_size=ranks, step=420, steps_total=1000, steps_per_s=9.5, loss=2.31,
        goodput=0.93, wall_s=82.0, nodes=tuple(NodeView(name=f"node-{number}", state="ready", role="gang", connected=True) for number in range(2)),
        ranks=tuple(Reading(rank=rank, generation=2, pid=2_345_670 + rank, step=420) for rank in range(ranks)),
    )  # fmt: skip
    look = look_from(view, Figures(at=1000.0, values=tuple(values), findings=findings))
    return replace(look, curves={"loss": [5.0, 4.0, 3.0, 2.5, 2.31], "step_seconds": [0.1, 0.2, 0.1]})


def drawn(look: Look, columns: int, rows: int = 50) -> str:
    out = StringIO()
    Console(file=out, width=columns, highlight=False, force_terminal=False).print(watch_table(look, columns=columns, rows=rows))
    return out.getvalue()


SLOW = Finding(kind="slow_rank", because="rank 1 computes 1.33 times as long as the others", node="node-0", ranks=(1,), severity=Severity.WARNING)
FULL = Finding(kind="rule:DiskFull", because="node-1: /tmp has 0.4 % of its space left: saves fail", node="node-1", of="/tmp", severity=Severity.CRITICAL)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("gpus", [False, True])
def test_a_look_fits_into_the_terminal_and_says_everything(columns: int, gpus: bool) -> None:
    text = drawn(given(findings=(SLOW, FULL), gpus=gpus), columns)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= columns, text
    assert "running, generation 2" in lines[0]
    assert "step 420 of 1,000" in lines[1]
    assert "loss █▆▃▁▁ 2.31" in text
    assert "a step ▁█▁ 100 ms" in text
    ranks = [line for line in lines if "100 ms" in line and line.lstrip()[0].isdigit()]
    assert len(ranks) == 4
    assert "2.98 GiB" in ranks[0]
    assert [line.split()[:2] for line in ranks] == [[str(rank), str(2_345_670 + rank)] for rank in range(4)], text
    assert "░" in ranks[0]
    assert "█" in ranks[0]
    assert ("reward" in text) == (columns == 120)
    assert any("node-1" in line and "97 %" in line and "1.86 GiB of 59.6 GiB" in line and "5 %" in line for line in lines), text
    assert ("480 of 700 W" in text) == gpus
    assert text.index("DiskFull (node-1)") < text.index("slow rank (rank 1, node-0)"), "the worst first"


def test_nothing_known_yet_is_no_error() -> None:
    view = View(job="demo", at=0.0, phase="waiting", because="for nodes", generation=0, world_size=2)
    look = look_from(view, Figures(at=0.0, values=()))
    assert "Nothing stands out." in drawn(look, 80)
    assert look_line(look).endswith("waiting · nothing found")
    assert look_json(look)["step"] is None


def test_of_many_ranks_those_with_most_compute_are_shown_and_the_rest_counted() -> None:
    text = drawn(given(64, findings=(SLOW, FULL), gpus=True), 80, rows=40)
    assert len(text.splitlines()) <= 40
    ranks = [line.split()[0] for line in text.splitlines() if "100 ms" in line and line.lstrip()[0].isdigit()]
    assert "1" in ranks, "rank 1 computes longest"
    assert f"and {64 - len(ranks)} more ranks, with less compute a step" in text


def test_a_long_name_of_a_node_leaves_room_for_the_numbers() -> None:
    look = given()
    look = replace(look, rank_nodes=dict.fromkeys(range(4), "a-very-long-name-of-a-node-in-a-large-cluster-0123"))
    assert "…ter-0123  420  100 ms" in " ".join(drawn(look, 80).split()).replace(" 420 ", "  420  ")


def test_json_is_one_object_without_anything_that_is_not_json() -> None:
    look = given(findings=(SLOW,), gpus=True)
    look = replace(look, ranks={**look.ranks, 0: {**look.ranks[0], "loss": math.nan}})
    said = json.loads(json.dumps(look_json(look), allow_nan=False))
    assert [row["rank"] for row in said["ranks"]] == [0, 1, 2, 3]
    assert said["ranks"][0]["loss"] is None
    assert said["ranks"][1]["step_compute_seconds"] == 0.08
    assert said["gpus"][0]["gpu_power_watts"] == 480
    assert said["disks"][0] == {"node": "node-0", "disk": "/tmp", "disk_free_bytes": 5e9, "disk_size_bytes": 100e9}
    assert said["findings"][0]["because"] == SLOW.because


def test_a_line_says_where_the_time_goes() -> None:
    line = look_line(given(findings=(SLOW,)))
    assert line.startswith("1m 22s running · step 420 of 1,000 · loss 2.31 · 100 ms a step (data 10 %, compute 65 %,")
    assert line.endswith("1 found")


def test_over_a_pipe_findings_are_told_when_they_come_and_when_they_go() -> None:
    lines = Lines()
    told = [list(lines.of(given(findings=findings))) for findings in ((), (SLOW,), (SLOW, FULL), ())]
    assert [len(some) for some in told] == [1, 2, 2, 3]
    assert told[1][0] == "found: warning: slow rank (rank 1, node-0): rank 1 computes 1.33 times as long as the others"
    assert [line.partition(":")[0] for line in told[3][:2]] == ["over", "over"]


def test_a_sparkline_has_gaps_where_nothing_was_and_never_more_cells_than_there_is_room() -> None:
    assert sparkline([1.0, math.nan, 8.0], 10) == "▁ █"
    assert sparkline([2.0, 2.0], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert len(sparkline([float(value) for value in range(1000)], 20)) == 20


def test_a_split_fills_its_cells_exactly() -> None:
    for cells in (7, 12, 30):
        assert len(split_bar(dict.fromkeys(PARTS, 0.1), cells)) == cells
    assert split_bar({}, 5).plain == "–    "


def test_figures_of_a_fleet_fit_into_a_frame_and_say_what_they_leave_out() -> None:
    watching = Watching(())
    columns = tuple((f"user_number_{metric}", str(rank)) for rank in range(64) for metric in range(20))
    for node in range(100):
        watching.take(Signals(node=f"node-{node}", columns=columns, values=(1.0,) * len(columns)), 10.0)
    figures = figures_of(watching, Newest(watching.rings), Gang(generation=1, nodes=("node-99",)), 10.0)
    assert len(figures.values) <= VALUES_MAX
    assert len(figures.values) * 50 < FRAME_BYTES_MAX
    shown = {node for _, node, _, _ in figures.values}
    assert "node-99" in shown, "the gang's nodes first"
    assert figures.nodes_left_out == 100 - len(shown) >= 100 - NODES_MAX


def test_a_running_job_is_watched_in_each_way_and_its_curves_outlive_it(state: Path) -> None:
    with Job(state, options=("--nproc", 2), arguments=("--steps", 100000)) as job:
        job.wait_for_step(5)
        once = command("watch", "--once", HOLDFAST_STATE=str(state), COLUMNS="80")
        assert once.returncode == 0, once.stderr
        assert "running, generation 1" in once.stdout
        assert "node-0" in once.stdout
        look = json.loads(command("watch", "job", "--once", "--json", HOLDFAST_STATE=str(state)).stdout)
        assert [row["rank"] for row in look["ranks"]] == [0, 1]
        assert look["nodes"][0]["host_memory_bytes"] > 0
        assert asyncio.run(figures_come_only_to_those_who_ask(job)) == (0, 2)
        eventually(job.directory.series.exists, what="the history")
        job.process.send_signal(signal.SIGINT)
        job.wait()
    ended = command("watch", "job", HOLDFAST_STATE=str(state))
    assert ended.returncode == 2
    assert "holdfast watch job --since 1h" in ended.stderr
    past = command("watch", "job", "--since", "1h", "--json", HOLDFAST_STATE=str(state))
    assert json.loads(past.stdout).keys() == {"kind", "job", "until", "loss", "step_seconds"}
    assert command("watch", "job", "--since", "soon", HOLDFAST_STATE=str(state)).returncode == 2
    assert command("watch", HOLDFAST_STATE=str(state)).returncode == 2


async def figures_come_only_to_those_who_ask(job: Job) -> tuple[int, int]:
    """How many came to a plain viewer, and to one that asked, in the time of a few views."""
    counts = []
    for figures in (False, True):
        channel = await connect(job.directory.control_socket)
        channel.send(Watch(figures=figures))
        seen = views = 0
        async for message in channel:
            seen += isinstance(message, Figures)
            views += isinstance(message, View)
            if seen == 2 or views == 25:
                break
        counts.append(seen)
        await channel.closed()
    return counts[0], counts[1]
