"""`holdfast queue`, `why` and `shares`, on a cluster file and on a moment of a trace; and what they say of files that make no sense."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.yaml"


def _asked(*words: str) -> dict[str, object]:
    said = CliRunner().invoke(app, [*words, "--json"])
    assert said.exit_code == 0, said.output + str(said.exception)
    found = json.loads(said.stdout)
    assert isinstance(found, dict)
    return found


def _said(*words: str) -> str:
    said = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output + str(said.exception)
    return said.output


def test_the_example_can_be_asked_everything() -> None:
    queue = _asked("queue", "--cluster", str(EXAMPLE))
    jobs = {job["id"]: job for job in queue["jobs"]}  # type: ignore[attr-defined]
    assert {id for id, job in jobs.items() if job["state"] == "waits"} == {"gang", "sweep-1"}
    assert all((job["reason"] is not None) == (job["state"] == "waits") for job in jobs.values())
    assert jobs["gang"]["expected"]["earliest_s"] <= jobs["gang"]["expected"]["likely_s"] <= jobs["gang"]["expected"]["latest_s"]
    assert "limit: language/cem runs 10 GPUs" in _said("queue", "--cluster", str(EXAMPLE)).replace("\n", " ")
    gang = _said("why", "gang", "--cluster", str(EXAMPLE))
    for part in ("waits because", "in the way       detector", "cleared when", "place", "ahead of it      sweep-1", "expected start"):
        assert part in gang
    assert "runs since" in _said("why", "detector", "--cluster", str(EXAMPLE))
    shares = {row["name"]: row for row in _asked("shares", "--cluster", str(EXAMPLE))["accounts"]}  # type: ignore[attr-defined]
    assert shares["ann"]["used_gpu_h"] == pytest.approx(40 + 8 * 14340 / 3600, rel=0.02)
    assert sum(shares[name]["entitled_gpus"] for name in ("vision", "language")) == pytest.approx(28)
    assert "█" in _said("shares", "--cluster", str(EXAMPLE))


def test_json_is_read_as_yaml_is(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"nodes": [{"name": "a", "gpus": 2}], "jobs": [{"id": f"j{n}", "user": f"u{n}", "gpus": 1} for n in range(4)]}))
    queue = _asked("queue", "--cluster", str(path))
    assert [job["state"] for job in queue["jobs"]] == ["runs", "runs", "waits", "waits"]  # type: ignore[attr-defined]
    shares = {row["name"]: row["entitled_share"] for row in _asked("shares", "--cluster", str(path))["accounts"]}  # type: ignore[attr-defined]
    assert [shares[f"u{n}"] for n in range(4)] == [0.25] * 4


def _shares(tmp_path: Path, gpus: int, *jobs: tuple[str, str, int]) -> dict[str, float]:
    """In percent, of a cluster of one node in which each job wants so many GPUs; processes by the name of their job."""
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"nodes": [{"name": "a", "gpus": gpus}], "jobs": [{"id": id, "user": user, "gpus": wants} for id, user, wants in jobs]}))
    rows = _asked("shares", "--jobs", "--cluster", str(path))["accounts"]
    assert isinstance(rows, list)
    named, job = {}, ""
    for row in rows:
        job = row["name"] if row["kind"] == "job" else job
        named[f"{job}, {row['name']}" if row["kind"] == "process" else row["name"]] = 100 * row["entitled_share"]
    return named


def test_four_equal_users_get_a_quarter_each_a_fifth_makes_it_a_fifth_and_two_jobs_halve_what_their_user_gets(tmp_path: Path) -> None:
    four = [(f"job of {user}", user, 40) for user in "abcd"]
    shares = _shares(tmp_path, 40, *four)
    assert [shares[user] for user in "abcd"] == pytest.approx([25.0] * 4)
    assert shares["job of a, each of 40"] == pytest.approx(25 / 40)
    shares = _shares(tmp_path, 40, *four, ("job of e", "e", 40))
    assert [shares[user] for user in "abcde"] == pytest.approx([20.0] * 5)
    shares = _shares(tmp_path, 40, *four, ("second of a", "a", 40))
    assert [shares[name] for name in ("a", "job of a", "second of a", "b")] == pytest.approx([25.0, 12.5, 12.5, 25.0])


def test_three_groups_of_3_2_and_4_users_share_by_group_first(tmp_path: Path) -> None:
    users = [f"{group}/{group}{user}" for group, count in (("x", 3), ("y", 2), ("z", 4)) for user in range(count)]
    shares = _shares(tmp_path, 36, *((f"job of {user}", user, 36) for user in users))
    assert [shares[name] for name in ("x0", "x2", "y0", "y1", "z0", "z3")] == pytest.approx([100 / 9] * 2 + [100 / 6] * 2 + [100 / 12] * 2)


def test_the_rule_goes_down_to_processes_and_a_job_gets_no_more_than_it_could_use(tmp_path: Path) -> None:
    shares = _shares(tmp_path, 8, ("wide", "a", 4), ("one", "b", 1), ("gang", "b", 8))
    assert [shares[name] for name in ("a", "wide", "wide, each of 4")] == pytest.approx([50.0, 50.0, 12.5])
    assert [shares[name] for name in ("b", "one", "gang", "gang, each of 8")] == pytest.approx([50.0, 12.5, 37.5, 37.5 / 8])
    assert "one, each of 1" not in shares, "a single process is the job"


def test_what_each_job_has_used_is_shown_and_adds_up_to_what_its_user_has(tmp_path: Path) -> None:
    rows = _asked("shares", "--jobs", *_trace(tmp_path), "--at", "3h")["accounts"]
    assert isinstance(rows, list)
    user = next(number for number, row in enumerate(rows) if row["name"] == "u0" and row["used_gpu_h"] > 1)
    below = []
    for row in rows[user + 1 :]:
        if row["depth"] <= rows[user]["depth"]:
            break
        below.append(row)
    assert sum(row["used_gpu_h"] for row in below if row["kind"] == "job") == pytest.approx(rows[user]["used_gpu_h"])
    assert all(row["kind"] == "process" and row["count"] * row["used_gpu_h"] == pytest.approx(job["used_gpu_h"])
               for job, row in pairwise(below) if row["kind"] != "job")  # fmt: skip
    assert sum(row["used_share"] for row in rows if row["depth"] == 1) == pytest.approx(1.0)
    assert "each of 4" in _said("shares", "--jobs", *_trace(tmp_path), "--at", "3h")


def test_the_table_of_shares_loses_its_bars_before_it_loses_a_number() -> None:
    for width in ("70", "80", "120"):
        said = CliRunner().invoke(app, ["shares", "--jobs", "--cluster", str(EXAMPLE)], env={"COLUMNS": width}).output
        assert "…" not in said
        assert ("█" in said) == (width != "70")


def test_a_job_that_needs_one_below_it_in_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a, gpus: 8}]\njobs:\n- {id: reads, user: u, gpus: 1, needs: [makes]}\n- {id: makes, user: u, gpus: 1}\n")
    assert "waits because    it needs makes, which has not ended (needs)" in _said("why", "reads", "--cluster", str(path))


def test_administrators_are_named_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a, gpus: 8}]\naccounts: [{name: ops, administers: true}]\njobs:\n- {id: mend, user: ops/eva, gpus: 1, priority: admin}\n")
    assert "class admin" in _said("why", "mend", "--cluster", str(path))


def test_two_groups_may_each_have_a_user_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    accounts = "[{name: v}, {name: w}, {name: ann, in: v, weight: 3}, {name: bob, in: v}, {name: ann, in: w, limit_gpus: 2}]"
    jobs = "".join(f"- {{id: {number}, user: {user}, gpus: 8}}\n" for number, user in enumerate(("v/ann", "bob")))
    path.write_text(f"nodes: [{{name: a, gpus: 8}}]\naccounts: {accounts}\njobs:\n{jobs}- {{id: small, user: w/ann, gpus: 2}}\n")
    rows = _asked("shares", "--cluster", str(path))["accounts"]
    assert isinstance(rows, list)
    assert [(row["name"], row["entitled_gpus"]) for row in rows] == [("all", 8), ("v", 6), ("ann", 4.5), ("bob", 1.5), ("w", 2), ("ann", 2)]


def test_the_policy_of_a_site_is_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    jobs = "jobs:\n" + "".join(f"- {{id: j{number}, user: u, gpus: 2, priority: high}}\n" for number in range(4))
    path.write_text(f"nodes: [{{name: a, gpus: 8}}]\n{jobs}policy:\n  half_life_s: 86400\n  classes: {{high: {{user_ceiling: 0.5, group_ceiling: 0.5}}}}\n")
    found = _asked("queue", "--cluster", str(path))["jobs"]
    assert isinstance(found, list)
    assert [job["priority"] for job in found] == ["high", "high", "medium", "medium"]
    assert "halved every 1d 00h" in _said("shares", "--cluster", str(path))


def test_who_was_moved_off_a_node_that_is_out_resized_or_has_nodes_kept_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    nodes = "[{name: a, gpus: 4, health: out}, {name: b, gpus: 4}, {name: c, gpus: 4}]"
    jobs = "- {id: moved, user: u, gpus: 4, running_on: {a: 4}}\n- {id: grown, user: v, gpus: 1, max_gpus: 2, running_on: {c: 1}}\n"
    path.write_text(f"now_s: 7200\nnodes: {nodes}\njobs:\n{jobs}")
    decided = _asked("queue", "--cluster", str(path))["decided"]
    assert isinstance(decided, dict)
    (mended,) = decided["mends"]
    assert (mended["job"], mended["how"], mended["lost"], mended["nodes"]) == ("moved", "replaced", ["a"], ["b"])
    assert decided["resizes"] == [{"job": "grown", "gpus": 2}]
    said = _said("queue", "--cluster", str(path))
    assert "lost its nodes: moved, replaced on b, because a failed and free nodes take the place" in said
    assert "resized now: grown, to 2 GPUs" in said
    gang = "- {id: gang, user: u, gpus: 8}\n- {id: more, user: v, gpus: 4, running_on: {b: 4}, firm: true}\n"
    small = "- {id: small, user: v, gpus: 1, running_on: {c: 1}, preemptible: false}\n"
    path.write_text(f"now_s: 172800\nnodes: {nodes.replace(', health: out', '')}\njobs:\n{gang}{small}")
    decided = _asked("queue", "--cluster", str(path))["decided"]
    assert isinstance(decided, dict)
    (kept,) = decided["reservations"]
    assert (kept["job"], len(kept["nodes"])) == ("gang", 2)
    assert "kept for gang: a, " in _said("queue", "--cluster", str(path))


def test_what_a_job_has_does_not_hide_what_the_cluster_has(tmp_path: Path) -> None:
    found = _asked("why", "tokenizer", "--cluster", str(EXAMPLE))
    assert (found["gpus"], found["nodes"]) == (4, {"node-1": 4})
    assert found["cluster"] == {"gpus": 28, "gpus_free": _asked("queue", "--cluster", str(EXAMPLE))["gpus_free"], "nodes": 4}


def test_a_cluster_of_which_nothing_is_in_service_shares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a, gpus: 8, health: out}]\njobs: [{id: j, user: u, gpus: 1}]\n")
    assert "shares of 0 GPUs" in _said("shares", "--cluster", str(path))
    path.write_text("nodes: [{name: a, gpus: 1}]\n")
    assert "shares of 1 GPU;" in _said("shares", "--cluster", str(path))


def test_nothing_that_a_terminal_would_obey_comes_from_the_ids_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"\x1b[31mred-{number},0,36000,8,\n" for number in range(2))
    path.write_text(f"job_id,submit_s,duration_s,gpus,needs\n\x1b]0;title\x07,1,60,99,\nb,3,60,1,\x1b[2J\n{rows}")
    of_trace = ["--trace", str(path), "--nodes", "1"]
    for words in (["queue", *of_trace], ["why", "\x1b[31mred-1", *of_trace], ["why", "\x1b[31mnobody", *of_trace], ["simulate", *of_trace]):
        done = subprocess.run([sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert any(part in said for part in ("red-", "no job nobody", "line 2 is left out"))
        assert "\x1b" not in said
        assert "\x07" not in said


def _trace(tmp_path: Path) -> list[str]:
    path = tmp_path / "trace.csv"
    rows = "".join(f"j{n},{n * 60},36000,{(1, 4, 8)[n % 3]},g{n % 2},u{n % 3}\n" for n in range(60))
    path.write_text(f"job_id,submit_s,duration_s,gpus,group,user\n{rows}huge,0,60,999,g0,u0\nbroken,,,\n")
    return ["--trace", str(path), "--nodes", "2", "--gpus-per-node", "4"]


def test_a_moment_of_a_trace_can_be_asked_the_same(tmp_path: Path) -> None:
    at = [*_trace(tmp_path), "--at", "1800"]
    queue = _asked("queue", *at)
    assert queue["now_s"] == 1800.0
    jobs = queue["jobs"]
    assert isinstance(jobs, list)
    assert len(jobs) == 31, "those submitted by then; one that could never fit was refused, and a broken row left out"
    waits = [job for job in jobs if job["state"] == "waits"]
    assert all(job["reason"]["kind"] and job["reason"]["clears"] and job["place"] for job in waits)
    last = waits[-1]
    found = _asked("why", last["id"], *at)
    assert len(found["ahead"]) == last["place"] - 1  # type: ignore[arg-type]
    assert "shares of 8 GPUs" in _said("shares", *at, "--jobs")
    assert _asked("queue", *_trace(tmp_path), "--at", "30m") == queue


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--at", "soon"], "is no time"),
        (["--at", "inf"], "is no time"), (["--at", "nan"], "is no time"), (["--clip", "0s"], "no job any time"),
        (["--at", "-5"], "before the first job"), (["--policy", "fifo"], "cannot explain itself"),
        (["--days", "3:4"], "no job of"), (["--cluster", "x.yaml"], "whose queue"),
    ],
)  # fmt: skip
def test_a_moment_that_cannot_be_is_refused(tmp_path: Path, more: list[str], says: str) -> None:
    refused = CliRunner().invoke(app, ["queue", *_trace(tmp_path), *more])
    assert refused.exit_code != 0
    assert says in str(refused.exception)


@pytest.mark.parametrize("option", [["--at", "3d"], ["--days", "1:2"], ["--clip", "7d"]])
def test_a_cluster_file_has_no_other_moment_than_its_own(option: list[str]) -> None:
    refused = CliRunner().invoke(app, ["queue", "--cluster", str(EXAMPLE), *option])
    assert f"{' '.join(option)} is for a trace" in str(refused.exception)


def test_a_job_that_is_not_there_is_told_of() -> None:
    refused = CliRunner().invoke(app, ["why", "nobody", "--cluster", str(EXAMPLE)])
    assert "no job nobody waits or runs here; 6 others do" in str(refused.exception)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("nodes: []\n", 1, "no nodes are given"),
        ("nodes:\n- {name: a, gpus: 0}\n", 2, "gpus is 0; expected a whole number of 1 or more"),
        ("nodes:\n- {name: a, gpus: many}\n", 2, "gpus is 'many'; expected a number"),
        ("nodes:\n- {name: a, gpus: 1000000000}\n", 2, "gpus is 1000000000; expected a whole number from 1 to 4,096"),
        ("nodes:\n- {name: a, gpus: 8, count: 1000000000}\n", 2, "count is 1000000000; expected a whole number from 1 to 100,000"),
        ("nodes:\n- {name: a, gpus: 8, count: 60000}\n- {name: b, gpus: 8, count: 60000}\n", 3, "120,000 nodes; expected 100,000 or fewer"),
        ("nodes:\n- {name: a, gpu: 8}\n", 2, "unknown key 'gpu'; did you mean 'gpus'?"),
        ("nodes:\n- {name: a, gpus: 8}\n- {name: a, gpus: 8}\n", 1, "two nodes are called 'a'"),
        ("nodes:\n- {name: a, gpus: 8, health: poorly}\n", 2, "health is 'poorly'; expected good or suspect or draining or out"),
        ("nodes: &n [{name: a, gpus: 8}]\njobs: *n\n", 2, "an alias"),
        ("nodes:\n- {name: a, gpus: 8\n", 3, "not YAML"),
        ("NODES\naccounts:\n- {name: x, in: y}\n- {name: y, in: x}\n", 2, "account x is its own ancestor: x -> y -> x"),
        ("NODES\naccounts:\n- {name: x, in: nobody}\n", 2, "nobody, which is not declared"),
        ("NODES\naccounts:\n- {name: x, weight: 0}\n", 3, "weight 0; expected a number above 0"),
        ("NODES\naccounts:\n- {name: x, weight: -1}\n", 3, "weight -1; expected a number above 0"),
        ("NODES\naccounts:\n- {name: v}\n- {name: v/w}\n", 4, "has a / in its name, which stands between a group and who is in it; write name: w, in: v"),
        ("NODES\naccounts:\n- {name: v}\n- {name: w, in: v}\n- {name: w, in: v}\n", 5, "account 'w' is declared twice in v"),
        ("NODES\naccounts:\n- {name: v}\n- {name: w, in: v}\n- {name: x}\n- {name: w, in: x}\njobs:\n- {id: j, user: w, gpus: 1}\n", 8, "path: v/w or x/w"),
        ("NODES\naccounts:\n- {name: x, weight: 1e308}\n", 3, "weight is '1e308'; expected a number of 1,000,000,000,000,000 or less"),
        ("NODES\naccounts:\n- {name: x, used_gpu_hours: 1e308}\n", 3, "used_gpu_hours is '1e308'"),
        ("NODES\nnow_s: inf\n", 2, "now_s is 'inf'"),
        ("NODES\npolicy:\n  patience: 5\n", 3, "the policy has the unknown key 'patience'; did you mean 'patience_s'?"),
        ("NODES\npolicy:\n  trial_s: 60\n  half_life_s: 0\n", 4, "half_life_s is 0; expected seconds, 1 or more"),
        ("NODES\npolicy:\n  evictions_a_day: 1.5\n", 3, "evictions_a_day is 1.5; expected a whole number"),
        ("NODES\npolicy:\n  reserved_share: 2\n", 3, "reserved_share is 2; expected a part from 0 to 1"),
        ("NODES\npolicy:\n  classes: {hihg: {factor: 2}}\n", 3, "classes has the unknown key 'hihg'; did you mean 'high'?"),
        ("NODES\npolicy:\n  classes:\n    high: {ceiling: 1}\n", 4, "class high has the unknown key 'ceiling'; did you mean"),
        ("NODES\npolicy:\n  classes:\n    high: {user_ceiling: 2}\n", 4, "user_ceiling is 2; expected a part from 0 to 1"),
        ("NODES\naccounts:\n- {name: x, quota_gpus: 99}\n", 2, "add up to 99 GPUs and the cluster has 8"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 9}\n", 3, "asks for 9 GPUs and the cluster has 8"),
        ("NODES\naccounts:\n- {name: x, limit_gpus: 2}\njobs:\n- {id: j, user: x/u, gpus: 4}\n", 5, "x is limited to 2"),
        ("NODES\njobs:\n- {user: u, gpus: 1}\n", 3, "id is missing; expected a name"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 1, priority: urgent}\n", 3, "priority 'urgent'; expected one of low"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 1}\n- {id: j, user: u, gpus: 1}\n", 4, "is here already"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 2, running_on: {b: 2}}\n", 3, "node 'b', which is not declared"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 2, running_on: {a: 1}}\n", 3, "adds up to 1 GPUs and gpus is 2"),
        ("NODES\njobs:\n- {id: i, user: u, gpus: 8, running_on: {a: 8}}\n- {id: j, user: u, gpus: 2, running_on: {a: 2}}\n", 4, "which has 0 free then"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 1, submitted_s: 9, running_on: {a: 1}, running_since_s: 3}\n", 3, "a clock cannot go back"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 1, needs: [i]}\n", 3, "job j needs i, which neither waits nor runs here"),
        ("NODES\njobs:\n- {id: i, user: u, gpus: 1, needs: [j]}\n- {id: j, user: u, gpus: 1, needs: [i]}\n", 3, "in a circle: i needs j needs i"),
        ("NODES\njobs:\n- {id: i, user: u, gpus: 1}\n- {id: j, user: u, gpus: 1, needs: [i], running_on: {a: 1}}\n", 4, "leave needs out: it had its turn"),
        ("NODES\njobs:\n- {id: j, user: u, gpus: 1, needs: i}\n", 3, "needs is text; expected a list"),
        ("NODES\naccounts:\n- {name: o, administers: true}\njobs:\n- {id: j, user: u, gpus: 1, priority: admin}\n", 5, "o may submit it, and u is not below"),
        ("NODES\nnow_s: 5\njobs:\n- {id: j, user: u, gpus: 1, submitted_s: 9}\n", 2, "clocks do not go back"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_line_field_and_what_was_expected(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text.replace("NODES", "nodes: [{name: a, gpus: 8}]"))
    refused = CliRunner().invoke(app, ["queue", "--cluster", str(path)])
    assert refused.exit_code != 0
    assert f"cluster.yaml:{line}: " in str(refused.exception)
    assert says in str(refused.exception)


@pytest.mark.parametrize("command", ["queue", "shares", "simulate"])
@pytest.mark.parametrize(("option", "most"), [("--nodes", "100000"), ("--gpus-per-node", "4096")])
def test_a_cluster_that_no_machine_could_hold_is_refused_at_once(tmp_path: Path, command: str, option: str, most: str) -> None:
    refused = CliRunner().invoke(app, [command, *_trace(tmp_path), option, "2000000000"], env={"COLUMNS": "200"})
    assert refused.exit_code != 0
    assert f"2000000000 is not in the range 1<=x<={most}" in refused.output


def test_more_replays_than_anybody_waits_for_are_refused_at_once(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["simulate", *_trace(tmp_path), "--seeds", "0-999999999"])
    assert "1,000,000,000 replays; expected 10,000 or fewer" in str(refused.exception)


def test_many_nodes_of_which_two_have_one_name_are_refused_soon(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a, gpus: 1, count: 60000}, {name: b, gpus: 1}, {name: b, gpus: 1}]\n")
    began = time.monotonic()
    refused = CliRunner().invoke(app, ["queue", "--cluster", str(path)])
    assert "two nodes are called 'b'" in str(refused.exception)
    assert time.monotonic() - began < 20, "each was looked for among all"


def test_a_file_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["shares", "--cluster", str(tmp_path / "none.yaml")])
    assert "cannot be read" in str(refused.exception)
