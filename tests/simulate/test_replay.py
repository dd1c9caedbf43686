"""Traces replayed: calibrated, repeatable, without a look at what is yet to come; and jobs that wait for jobs."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.schedule.cycle import Decisions, Eviction, Resize, Start
from holdfast.schedule.explain import why
from holdfast.schedule.place import NodeRoom
from holdfast.schedule.policy import DAY_S, HOUR_S, Policy
from holdfast.schedule.tree import Account
from holdfast.schedule.view import shares_of
from holdfast.simulate.audit import audit_of
from holdfast.simulate.failures import outages
from holdfast.simulate.figures import Figures, figures
from holdfast.simulate.policies.named import NAMES, ON_NODES, scheduler_named
from holdfast.simulate.policies.ours import Holdfast, nodes_of
from holdfast.simulate.replay import Ran, Replay
from holdfast.simulate.table import TableUnreadable
from holdfast.simulate.trace import TraceJob, between, clipped, read_trace, with_users


def _made_up(seed: int, count: int, *, days: float = 3.0) -> list[TraceJob]:
    dice = random.Random(seed)
    return [
        TraceJob(
            id=f"j{number}", submit_s=dice.uniform(0, days * DAY_S), duration_s=dice.lognormvariate(8, 1.8), gpus=dice.choice([1, 1, 1, 1, 2, 4, 8, 16]),
            group=f"g{dice.randrange(3)}", user=f"u{dice.randrange(4)}",
        )
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_runs_every_job_to_its_end_and_never_more_than_there_is(name: str) -> None:
    jobs = _made_up(1, 300)
    replay = Replay(jobs, scheduler_named(name, nodes_of(4, 8))).run()
    assert not replay.stuck
    marks = sorted((at, gpus) for one in replay.ran.values() if not one.evictions for at, gpus in ((one.first_start, one.job.gpus), (one.end, -one.job.gpus)))
    used = 0
    for _, gpus in marks:
        used += gpus
        assert used <= 32
    assert all(one.end - one.job.submit_s >= one.job.duration_s - 1e-6 for one in replay.ran.values())


def test_fifo_skip_and_easy_differ_as_the_textbook_says() -> None:
    jobs = [TraceJob(id="long", submit_s=0, duration_s=100, gpus=6), TraceJob(id="wide", submit_s=1, duration_s=10, gpus=8),
            TraceJob(id="short", submit_s=2, duration_s=50, gpus=2), TraceJob(id="late", submit_s=3, duration_s=200, gpus=2)]  # fmt: skip
    ran = {name: Replay(jobs, scheduler_named(name, nodes_of(1, 8))).run().ran for name in ("fifo", "skip", "easy")}
    starts = {name: {id: one.first_start for id, one in those.items()} for name, those in ran.items()}
    assert starts["fifo"] == {"long": 0, "wide": 100, "short": 110, "late": 110}
    assert starts["skip"] == {"long": 0, "wide": 252, "short": 2, "late": 52}
    assert starts["easy"] == {"long": 0, "wide": 100, "short": 2, "late": 110}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_no_invariant_fails_in_any_replay(seed: int) -> None:
    scheduler = Holdfast(nodes_of(4, 8))
    audit = audit_of(scheduler)
    replay = Replay(_made_up(seed, 150, days=1.0), scheduler, watchers=[audit]).run()
    audit.auditor.sweep()
    assert audit.auditor.failures == []
    assert not replay.stuck


def test_a_count_that_is_wrong_in_the_middle_of_a_replay_is_found_although_no_decision_shows_it() -> None:
    scheduler = Holdfast(nodes_of(4, 8))
    audit, seen = audit_of(scheduler), 0

    class Miscounts:
        """For a while the fleet thinks that a GPU fewer may be had."""

        def submitted(self, job: TraceJob, now: float) -> None: ...

        def ended(self, id: str, now: float) -> None: ...

        def decided(self, decisions: Decisions, now: float) -> None:
            nonlocal seen
            seen += 1
            if seen in (100, 200):
                scheduler.cluster.fleet.loose[0] += -1 if seen == 100 else 1

    Replay(_made_up(5, 400), scheduler, watchers=[Miscounts(), audit]).run()
    assert any("of node-0 are loose" in said for said in audit.auditor.failures)


def test_the_same_trace_gives_the_same_decisions() -> None:
    jobs = _made_up(5, 400)
    assert len({Replay(jobs, Holdfast(nodes_of(4, 8))).run().hash for _ in range(2)}) == 1


@pytest.mark.parametrize("cut", [0.3, 0.7])
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_that_is_decided_depends_on_how_long_a_job_still_takes(cut: float, elastic: bool, fails: bool) -> None:
    """Who has not ended by then takes ten times as long, or, where it has not begun, a second: what was decided before stays as it was, and when."""
    jobs, then = _made_up(7, 300), cut * 3 * DAY_S
    if elastic:
        jobs = [dataclasses.replace(job, gpus_min=1, gpus_max=12) if number % 3 == 0 else job for number, job in enumerate(jobs)]
    failing = outages(4, mtbf_s=12 * HOUR_S, seed=3, first_at=0.0, last_at=3 * DAY_S) if fails else None

    def decided(jobs: Sequence[TraceJob]) -> tuple[list[tuple[float, Decisions]], dict[str, Ran]]:
        ran = Replay(jobs, watched := Watched(nodes_of(4, 8)), outages=failing, until=then).run().ran
        return watched.log, ran

    before, ran = decided(jobs)
    assert len(before) > 100
    assert any(decisions.evictions for _, decisions in before)
    assert any(decisions.resizes for _, decisions in before) is elastic
    assert any(decisions.mends for _, decisions in before) is fails
    longer = [job if ran[job.id].end <= then else dataclasses.replace(job, duration_s=job.duration_s * 10 + 1) for job in jobs]
    shorter = [job if ran[job.id].first_start <= then else dataclasses.replace(job, duration_s=1.0) for job in jobs]
    assert sum(one != other for one, other in zip(longer, jobs, strict=True)) > 50
    assert sum(one != other for one, other in zip(shorter, jobs, strict=True)) > 20
    assert decided(longer)[0] == decided(shorter)[0] == before


class Watched(Holdfast):
    """Keeps all that it decided, also where that was nothing: when it is woken must not depend on what it may not know either."""

    def __init__(self, nodes: list[NodeRoom]) -> None:
        super().__init__(nodes)
        self.log: list[tuple[float, Decisions]] = []

    def decide(self, now: float) -> Decisions:
        self.log.append((now, super().decide(now)))
        return self.log[-1][1]


def test_with_a_constant_backlog_of_all_every_group_and_user_gets_its_weights_part() -> None:
    policy = Policy(half_life_s=DAY_S)
    accounts = [Account(name="a", weight=3.0), Account(name="b"), Account(name="c")]
    dice = random.Random(3)
    jobs = [
        TraceJob(id=f"{group}{user}{number}", submit_s=0.0, duration_s=dice.uniform(0.5, 6) * HOUR_S, gpus=dice.choice([1, 2, 4]), group=group, user=user)
        for group, count in (("a", 700), ("b", 1400), ("c", 700)) for user in ("x", "y") for number in range(count)
    ]  # fmt: skip
    scheduler = Holdfast(nodes_of(4, 8), accounts, policy)
    audit = audit_of(scheduler)
    Replay(jobs, scheduler, watchers=[audit], until=3.5 * DAY_S).run()
    error, windows = audit.share()
    assert audit.auditor.failures == []
    assert windows >= 20
    assert error is not None
    assert error < 0.05


def test_what_a_limit_keeps_from_one_group_is_no_error_of_its_share_nor_of_theirs_who_get_it() -> None:
    accounts = [Account(name="a", weight=3.0, limit_gpus=8), Account(name="b"), Account(name="c")]
    dice = random.Random(3)
    jobs = [
        TraceJob(id=f"{group}{number}", submit_s=0.0, duration_s=dice.uniform(0.5, 6) * HOUR_S, gpus=dice.choice([1, 2, 4]), group=group, user="x")
        for group in "abc" for number in range(1200)
    ]  # fmt: skip
    scheduler = Holdfast(nodes_of(4, 8), accounts, Policy(half_life_s=DAY_S))
    audit = audit_of(scheduler)
    Replay(jobs, scheduler, watchers=[audit], until=3.5 * DAY_S).run()
    error, windows = audit.share()
    assert windows >= 10
    assert error is not None
    assert error < 0.05


def test_jobs_that_wait_for_jobs_stand_still_for_ever_without_priority_and_go_on_with_it() -> None:
    """Job 1 needs the table that job 2 makes, job 2 hangs until its database is restarted, and job 3, which would do that, comes last to a full cluster."""

    def jobs(priority: str) -> list[TraceJob]:
        return [
            TraceJob(id="job 1", submit_s=0, duration_s=600, gpus=1, group="group 1", user="user 1", hangs_until="job 2"),
            TraceJob(id="job 2", submit_s=1, duration_s=600, gpus=1, group="group 1", user="user 2", hangs_until="job 3"),
            TraceJob(id="job 3", submit_s=2, duration_s=60, gpus=1, group="group 1", user="user 3", priority=priority),
        ]

    never = Policy(trial_s=10 * DAY_S, patience_s=10 * DAY_S, evictions_a_day=0)  # Nobody is evicted for ordinary work.
    stuck = Replay(jobs("medium"), Holdfast(nodes_of(2, 1), policy=never)).run()
    assert stuck.stuck == ("job 1", "job 2", "job 3")
    freed = Replay(jobs("admin"), Holdfast(nodes_of(2, 1), policy=never)).run()
    assert not freed.stuck
    assert freed.ran["job 3"].end < freed.ran["job 2"].end < freed.ran["job 1"].end


def test_in_a_full_cluster_that_waits_for_one_table_the_administrators_job_that_came_last_ends_the_deadlock() -> None:
    """Nine users in three groups at 11.1 % each. Job 1 says what it waits for; that job 2 hangs until its database is restarted is known to nobody. Groups 2
    and 3 wait for the table too, hold their GPUs meanwhile, and did not say so."""

    def jobs(priority: str) -> list[TraceJob]:
        others = [(group, user, number) for group in ("group 2", "group 3") for user, many in (("x", 2), ("y", 1), ("z", 1)) for number in range(many)]
        return [
            TraceJob(id="job 2", submit_s=0, duration_s=600, gpus=1, group="group 1", user="user 2", hangs_until="job 3"),
            TraceJob(id="job 1", submit_s=1, duration_s=600, gpus=1, group="group 1", user="user 1", needs=("job 2",)),
            *(
                TraceJob(id=f"{group} {user} {number}", submit_s=2, duration_s=600, gpus=1, group=group, user=user, hangs_until="job 2")
                for group, user, number in others
            ),
            TraceJob(id="job 3", submit_s=10, duration_s=60, gpus=1, group="group 1", user="user 3", priority=priority),
        ]

    never = Policy(trial_s=10 * DAY_S, patience_s=10 * DAY_S, evictions_a_day=0)  # Nobody is evicted for ordinary work.
    scheduler = Holdfast(nodes_of(9, 1), policy=never)
    without = Replay(jobs("medium"), scheduler).run()
    assert set(without.stuck) == set(without.ran)
    entitled = {row.name: row.entitled_share for row in shares_of(scheduler.cluster)}
    assert [entitled[f"user {number}"] for number in (1, 2, 3)] == pytest.approx([1 / 9] * 3)
    kinds = [reason.kind for id in ("job 1", "job 3") if (reason := why(scheduler.cluster, id)) is not None]
    assert kinds == ["needs", "reservation"], "job 3 is due by now, and nobody goes for it"
    audit = audit_of(scheduler := Holdfast(nodes_of(9, 1), policy=never))
    ran = Replay(jobs("admin"), scheduler, watchers=[audit]).run()
    assert not ran.stuck
    assert ran.ran["job 3"].first_start == 10.0
    assert ran.ran["job 3"].end < ran.ran["job 2"].end == ran.ran["job 1"].first_start
    assert audit.auditor.failures == []


def test_an_eviction_costs_the_work_since_the_last_checkpoint_and_a_restart() -> None:
    long = TraceJob(id="long", submit_s=0, duration_s=4 * HOUR_S, gpus=1, user="a")
    new = TraceJob(id="new", submit_s=2.25 * HOUR_S, duration_s=60, gpus=1, user="b")
    fill = TraceJob(id="fill", submit_s=0, duration_s=4 * HOUR_S, gpus=1, user="c")
    ran = Replay([long, fill, new], Holdfast(nodes_of(1, 2)), restart_s=300).run().ran
    victims = [one for one in ran.values() if one.evictions]
    assert [one.evictions for one in victims] == [1]
    assert victims[0].lost_gpu_s == pytest.approx(0.25 * HOUR_S + 300)
    assert victims[0].end - 4 * HOUR_S == pytest.approx(0.25 * HOUR_S + 60 + 300)


def test_an_elastic_job_is_faster_with_more_and_the_figures_count_all() -> None:
    jobs = [TraceJob(id="elastic", submit_s=0, duration_s=4 * HOUR_S, gpus=4, gpus_min=2, gpus_max=8, user="a")]
    replay = Replay(jobs, Holdfast(nodes_of(1, 8))).run()
    assert replay.ran["elastic"].end < 4 * HOUR_S
    found = figures(replay, policy="holdfast", gpus=8, took_s=1.0)
    assert (found.jobs, found.unfinished, found.wait_s.longest) == (1, 0, 0.0)


class _Told:
    """A scheduler that decides what it was told to, when it was told to."""

    knows, knows_needs = "what it was told", True

    def __init__(self, decisions: dict[float, Decisions]) -> None:
        self._decisions = decisions

    def submit(self, job: TraceJob, now: float) -> None: ...
    def end(self, id: str, now: float) -> None: ...

    def decide(self, now: float) -> Decisions:
        return self._decisions.pop(now, Decisions())

    def next_at(self) -> float:
        return min(self._decisions, default=float("inf"))


def _start(job: str, gpus: int) -> Start:
    return Start(job=job, placement=((0, gpus),), gpus=gpus, firm=False, because="it was told")


def test_who_gave_extras_and_was_evicted_begins_again_without_them() -> None:
    jobs = [TraceJob(id="a", submit_s=0, duration_s=1000, gpus=1, gpus_max=4)]
    gave = Decisions(resizes=(Resize(job="a", gpus=2, extras=((0, 1),)),), evictions=(Eviction(job="a", for_job="b"),), starts=(_start("a", 1),))
    decisions = {0.0: Decisions(starts=(_start("a", 1),)), 100.0: Decisions(resizes=(Resize(job="a", gpus=4, extras=((0, 3),)),)), 200.0: gave}
    ran = Replay(jobs, _Told(decisions), restart_s=0.0, checkpoint_every_s=1.0).run().ran["a"]
    assert ran.end == 200 + 500, "100 s on one GPU and 100 s on four were saved, and the rest is done on one"


def test_a_job_that_hangs_gets_nothing_done_by_growing() -> None:
    jobs = [
        TraceJob(id="hangs", submit_s=0, duration_s=100, gpus=1, gpus_max=2, hangs_until="other"),
        TraceJob(id="other", submit_s=0, duration_s=1000, gpus=1),
    ]
    decisions = {0.0: Decisions(starts=(_start("hangs", 1), _start("other", 1))), 500.0: Decisions(resizes=(Resize(job="hangs", gpus=2, extras=((0, 1),)),))}
    assert Replay(jobs, _Told(decisions)).run().ran["hangs"].end == 1000 + 100 / 2


def test_broken_rows_are_left_out_with_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    rows = ["job_id,submit_s,duration_s,gpus,vc,priority", "a,0,60,1,x,", "b,zero,60,1,x,", "c,0,-1,1,x,", "d,0,60,1.5,x,", "a,0,60,1,x,", ",0,60,1,x,",
            "e,0,60,1,x,urgent", "f,5,60,2,y,high", "g,0,inf,1,x,", "h,0,60"]  # fmt: skip
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    trace = read_trace(path)
    assert [(job.id, job.group, job.priority) for job in trace.jobs] == [("a", "x", "medium"), ("f", "y", "high")]
    assert [one.line for one in trace.skipped] == [3, 4, 5, 6, 7, 8, 10, 11]
    assert "submit_s 'zero' is not a number" in trace.skipped[0].because
    assert [job.duration_s for job in clipped(trace, 30).jobs] == [30, 30]
    assert not between(trace, 1, 2).jobs
    assert with_users(trace, 1).jobs == with_users(trace, 1).jobs
    broken = {
        b"x,y\n1,2\n": "no column job_id", b'job_id,"submit_s\n1,2\n': "in its first line a quote",
        b"job_id,submit_s,duration_s,gpus\na,b,c,d\n": "no job in it", b"\x1f\x8bbroken": "cannot be read",
    }  # fmt: skip
    for content, says in broken.items():
        path.write_bytes(content)
        with pytest.raises(TableUnreadable, match=says):
            read_trace(path)


@pytest.mark.parametrize("broken", ['"j10,600,60,1', 'j10,600,60,1,"', f"{'x' * 200_000},600,60,1"])
def test_a_stray_quote_or_a_line_without_end_costs_one_row(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "trace.csv"
    rows = [f'"j{number}",{number * 60},60,1' for number in range(200)]
    rows[10] = broken
    path.write_text("job_id,submit_s,duration_s,gpus,user\r\n" + "\r\n".join([*rows[:50], "", *rows[50:]]) + "\r\n")
    trace = read_trace(path)
    assert [job.id for job in trace.jobs] == [f"j{number}" for number in range(200) if number != 10]
    (left_out,) = trace.skipped
    assert left_out.line == 12
    assert "quote is opened and not closed" in left_out.because or "field larger than field limit" in left_out.because


@pytest.mark.parametrize(("said", "means"), [("0.4", "high"), ("-0.3", "low"), ("7", "high"), ("0", "medium"), ("low", "low"), ("inf", ""), ("nan", "")])
def test_a_priority_is_a_class_or_a_number_above_or_below_0(said: str, means: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"job_id,submit_s,duration_s,gpus,priority\nfirst,0,1,1,medium\na,0,1,1,{said}\n")
    trace = read_trace(path)
    assert [job.priority for job in trace.jobs[1:]] == ([means] if means else [])
    assert [one.line for one in trace.skipped] == ([] if means else [3])


def test_bytes_that_are_no_utf8_and_numbers_that_only_python_knows_cost_one_row_and_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [b"j0,0,60,1,ann", "j1,0,60,1,J\u00f6rg".encode("latin-1"), b"j2,0,1_0,1,ann", "j3,0,60,\u0661,ann".encode(), "j4,0,60,1,J\u00f6rg".encode()]
    path.write_bytes(b"job_id,submit_s,duration_s,gpus,user\n" + b"\n".join(rows))
    trace = read_trace(path)
    assert [(job.id, job.user) for job in trace.jobs] == [("j0", "ann"), ("j4", "J\u00f6rg")]
    assert [(one.line, one.because) for one in trace.skipped] == [
        (3, "byte 0xf6 is no UTF-8"), (4, "duration_s '1_0' is not a number"), (5, "gpus '\u0661' is not a number")
    ]  # fmt: skip
    whole = {b"\xff\xfej\0o\0b\0": "in its first line byte 0xff is no UTF-8", b"job_id,submit_s,duration_s,gpus,gpus\na,0,1,1,2\n": "two columns 'gpus'"}
    for content, says in whole.items():
        path.write_bytes(content)
        with pytest.raises(TableUnreadable, match=says):
            read_trace(path)


def test_jobs_that_took_no_time_are_replayed_and_an_estimate_that_is_no_number_is_none_and_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,gpus,estimate_s\na,0,0,1,nan\nb,0,0,1,60\nc,9,0,1,-inf\nd,9,1e308,1,\n")
    trace = read_trace(path)
    assert [(job.id, job.estimate_s) for job in trace.jobs] == [("a", None), ("b", 60.0), ("c", None)]
    assert [one.because for one in trace.skipped] == ["duration_s is 1e308, expected a number of 1e+15 or less"]
    asked = ["simulate", "--trace", str(path), "--nodes", "1", "--gpus-per-node", "1"]
    for policy in NAMES:
        said = CliRunner().invoke(app, [*asked, "--policy", policy, "--json"])
        assert said.exit_code == 0, said.output + str(said.exception)
        found = json.loads(said.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert found["notes"] == ["2 rows have an estimate_s that is no time, the first in line 2 (nan); taken as if none were given"]
        assert (found["results"][0]["jobs"], found["results"][0]["unfinished"], found["results"][0]["jain"]) == (3, 0, 1.0)
    assert "2 rows have an estimate_s" in CliRunner().invoke(app, asked).output


def test_a_trace_may_say_which_jobs_a_job_waits_for_and_no_policy_starts_it_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "job_id,submit_s,duration_s,gpus,vc,user,estimate_s,priority,min_gpus,max_gpus,needs\n"
        "data,0,3600,1,vision,ann,7200,,,,\ntable,5,1800,1,vision,bob,,1,,,\ntrain,10,7200,8,language,cem,,,4,8,data;table\neval,10,60,1,,,,low,,,train data\n"
    )
    trace = read_trace(path)
    assert [job.needs for job in trace.jobs] == [(), (), ("data", "table"), ("train", "data")]
    assert [(job.group, job.user, job.estimate_s, job.priority, job.gpus_min, job.gpus_max) for job in trace.jobs] == [
        ("vision", "ann", 7200.0, "medium", 0, 0), ("vision", "bob", None, "high", 0, 0), ("language", "cem", None, "medium", 4, 8),
        ("all", "", None, "low", 0, 0),
    ]  # fmt: skip
    assert [job.needs for job in between(dataclasses.replace(trace, jobs=trace.jobs[1:]), 0, 1).jobs] == [(), ("table",), ("train",)]
    for name in NAMES:
        scheduler = scheduler_named(name, nodes_of(2, 8))
        audit = audit_of(scheduler) if isinstance(scheduler, Holdfast) else None
        replay = Replay(trace.jobs, scheduler, watchers=[audit] if audit else []).run()
        assert not replay.stuck
        assert audit is None or audit.auditor.failures == []
        for job in trace.jobs:
            assert all(replay.ran[job.id].first_start >= replay.ran[need].end for need in job.needs), (name, job.id)


def test_a_job_whose_needs_could_not_end_before_it_is_left_out_with_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = ["a,0,60,1,", "b,0,60,1,nobody", "c,0,60,1,b", "d,0,60,1,e", "e,0,60,1,d", "f,0,60,1,f", "g,0,60,1,a h", "h,9,60,1,", "i,0,60,1,a",
            "j,0,60,1,x", "x,0,no,1,", *(f"r{n},0,60,1,r{(n + 1) % 9}" for n in range(9)), "k,1,60,1,m", "m,1,60,1,a"]  # fmt: skip
    path.write_text("job_id,submit_s,duration_s,gpus,needs\n" + "\n".join(rows) + "\n")
    trace = read_trace(path)
    assert [job.id for job in trace.jobs] == ["a", "i", "m", "k", "h"], "at one time, those that are needed first"
    said = {one.line: one.because for one in trace.skipped}
    assert list(said) == [3, 4, 5, 6, 7, 8, 11, 12, *range(13, 22)]
    assert said[3] == "job b needs nobody, and no row that makes sense has that job_id"
    assert said[4] == "job c needs b, which is left out (line 3)"
    assert said[5] == "jobs would wait for each other in a circle: d needs e needs d"
    assert said[7] == "jobs would wait for each other in a circle: f needs f"
    assert said[8] == "job g needs h, which is submitted later (line 9); expected one that is there by then"
    assert said[11] == "job j needs x, and no row that makes sense has that job_id"
    assert said[13].endswith("r0 needs r1 needs r2 needs r3 needs r4 needs r5 and so on, 9 jobs")
    path.write_text("job_id,submit_s,duration_s,gpus,needs\na,0,60,1,b\nb,0,60,1,a\n")
    with pytest.raises(TableUnreadable, match="no job that could ever start; the first row that was left out, line 2: jobs would wait for each other"):
        read_trace(path)


def test_the_command_refuses_who_needs_a_job_that_is_larger_than_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,gpus,needs\nhuge,0,60,99,\nafter,1,60,1,huge\nthen,2,60,1,after\nelse,3,60,1,none\nfree,4,60,1,\n")
    said = CliRunner().invoke(app, ["simulate", "--trace", str(path), "--nodes", "1", "--policy", "holdfast", "--policy", "fifo", "--json"])
    assert said.exit_code == 0, said.output
    record = json.loads(said.stdout)
    refused = [(one["line"], one["because"]) for one in record["refused"]]
    assert refused[1:] == [(3, "job after needs huge, which is refused"), (4, "job then needs after, which is refused")]
    assert [one["line"] for one in record["skipped"]] == [5]
    assert [(one["jobs"], one["refused"]) for one in record["results"]] == [(1, 3)] * 2


def test_the_command_replays_a_trace_and_says_what_it_came_to(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"j{n},{n * 60},{600 + n * 10},{1 + n % 4},g{n % 2},u\n" for n in range(60))
    path.write_text(f"job_id,submit_s,duration_s,gpus,group,user\n{rows}broken,,,\n")
    asked = ["simulate", "--trace", str(path), "--nodes", "2", "--gpus-per-node", "4", "--policy", "holdfast", "--policy", "fifo"]
    said = CliRunner().invoke(app, [*asked, "--json"])
    assert said.exit_code == 0, said.output
    record = json.loads(said.stdout)
    assert [one["policy"] for one in record["results"]] == ["holdfast", "fifo"]
    assert [one["line"] for one in record["skipped"]] == [62]
    assert record["results"][0]["invariant_failures"] == 0
    assert {"average", "median", "p99", "longest"} == set(record["results"][0]["wait_s"])
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0
    assert "holdfast knew" in shown.output
    drawn = CliRunner().invoke(app, [*asked, "--png", str(tmp_path / "waits.png")])
    if importlib.util.find_spec("matplotlib") is None:
        assert "pip install 'holdfast[plots]'" in str(drawn.exception)
    else:
        assert (tmp_path / "waits.png").read_bytes().startswith(b"\x89PNG")
    for more, says in ((["--policy", "none"], "not known"), (["--days", "x"], "range of days"), (["--clip", "soon"], "no time")):
        refused = CliRunner().invoke(app, [*asked, *more])
        assert refused.exit_code != 0
        assert says in str(refused.exception)


def _two_groups(tmp_path: Path) -> list[str]:
    """Twice as much as there is room for, of a and b alike, and one of a that wants all."""
    path = tmp_path / "trace.csv"
    rows = "".join(f"{group}{number},{number * 450},7200,2,{group},u,\n" for number in range(300) for group in "ab")
    path.write_text(f"job_id,submit_s,duration_s,gpus,group,user,priority\n{rows}whole,9,60,16,a,u,\n")
    return ["--trace", str(path), "--nodes", "2", "--gpus-per-node", "8"]


def test_weights_limits_use_and_policy_of_a_cluster_file_can_be_tried_on_a_trace(tmp_path: Path) -> None:
    asked = ["simulate", *_two_groups(tmp_path)]

    def found(sharing: str, *more: str) -> dict[str, Any]:
        path = tmp_path / "cluster.yaml"
        path.write_text(f"nodes: [{{name: other, gpus: 1}}]\n{sharing}\n")
        said = CliRunner().invoke(app, [*asked, "--accounts", str(path), "--json", *more])
        assert said.exit_code == 0, said.output + str(said.exception)
        record = json.loads(said.stdout)
        assert record["accounts"] == str(path)
        return {**record["results"][0], "left": record["refused"]}

    equal = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["results"][0]
    heavy = found("accounts: [{name: a, weight: 9}, {name: b}]")
    assert heavy["jain"] < equal["jain"] - 0.05, "a was served before b"
    used = found("accounts: [{name: b, used_gpu_hours: 100000}]")
    assert used["hash"] != equal["hash"], "b stands back for what it had"
    limited = found("accounts: [{name: a, limit_gpus: 8}]")
    assert limited["left"] == [{"line": 602, "because": "job whole asks for 16 GPUs and a is limited to 8; ask for fewer, or raise the limit"}]
    assert limited["jobs"] == equal["jobs"] - 1
    assert found("policy: {evictions_a_day: 0, trial_s: 100000000}")["preemptions"] == 0 < equal["preemptions"]
    dear, cheap = (found(f"policy: {{restart_s: {restart_s}}}")["lost_gpu_h"] for restart_s in (1800, 0))
    assert dear > cheap
    assert found("policy: {restart_s: 1800}", "--restart-s", "0")["lost_gpu_h"] == cheap, "what is said by hand comes first"
    assert found("policy: {}")["hash"] == equal["hash"]


def test_a_moment_of_a_trace_is_shared_as_a_cluster_file_says(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("accounts: [{name: a, weight: 3}, {name: b}]\npolicy: {half_life_s: 86400}\n")
    said = CliRunner().invoke(app, ["shares", *_two_groups(tmp_path), "--at", "5h", "--accounts", str(path), "--json"])
    rows = {row["name"]: row for row in json.loads(said.stdout)["accounts"]}
    assert (rows["a"]["entitled_gpus"], rows["b"]["entitled_gpus"]) == (12, 4)


@pytest.mark.parametrize(
    ("sharing", "more", "says"),
    [
        ("acounts: []", [], "cluster.yaml:1: the file has the unknown key 'acounts'; did you mean 'accounts'?"),
        ("policy:\n  half_live_s: 1", [], "cluster.yaml:2: the policy has the unknown key 'half_live_s'; did you mean 'half_life_s'?"),
        ("accounts:\n- {name: a, wait: 1}", [], "cluster.yaml:2: an account has the unknown key 'wait'"),
        ("policy: {patience_s: 1}\naccounts: [{name: a, quota_gpus: 17}]", [], "cluster.yaml:2: the quotas below all add up to 17 GPUs and the cluster has 16"),
        ("accounts: [{name: a, limit_gpus: 0}, {name: b, limit_gpus: 1}]", [], "a is limited to 0; ask for fewer, or raise the limit; give more --nodes"),
        ("accounts: []", ["--policy", "fifo"], "is for holdfast and health-blind, and fifo knows of none"),
    ],
)
def test_accounts_that_cannot_be_tried_on_a_trace_are_refused_in_a_sentence(tmp_path: Path, sharing: str, more: list[str], says: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{sharing}\n")
    refused = CliRunner().invoke(app, ["simulate", *_two_groups(tmp_path), "--accounts", str(path), *more])
    assert refused.exit_code != 0
    assert says in str(refused.exception)


def test_accounts_are_for_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a, gpus: 8}]\n")
    for words, says in ((["simulate"], "--accounts is for the replay of a trace"), (["queue", "--cluster", str(path)], "is for a trace")):
        refused = CliRunner().invoke(app, [*words, "--accounts", str(path)])
        assert refused.exit_code != 0
        assert says in str(refused.exception)


# Nodes that fail.


def _gangs(seed: int, count: int) -> list[TraceJob]:
    """A cluster that is four fifths full, half of it with gangs of several nodes."""
    dice = random.Random(seed)
    return [
        TraceJob(
            id=f"j{number}", submit_s=dice.uniform(0, 20 * DAY_S), duration_s=dice.uniform(1, 24) * HOUR_S, gpus=dice.choice([1, 1, 1, 2, 4, 8, 16, 32, 64]),
            group=f"g{dice.randrange(3)}", user=f"u{dice.randrange(4)}",
        )
        for number in range(count)
    ]  # fmt: skip


def _with_failures(name: str, jobs: list[TraceJob], seed: int, *, lemons: float = 0.0) -> tuple[Replay, Figures]:
    scheduler = scheduler_named(name, nodes_of(50, 8))
    assert isinstance(scheduler, Holdfast)
    audit = audit_of(scheduler)
    failing = outages(50, mtbf_s=2000 * HOUR_S, seed=seed, first_at=0.0, last_at=40 * DAY_S, lemons=lemons)
    replay = Replay(jobs, scheduler, watchers=[audit], outages=failing).run()
    audit.auditor.sweep()
    assert audit.auditor.failures == []
    assert not replay.stuck
    return replay, figures(replay, policy=name, gpus=400, took_s=0.0)


def test_with_failing_nodes_every_job_still_ends_no_invariant_fails_and_the_same_seed_gives_the_same_story() -> None:
    jobs = _gangs(1, 800)
    replay, found = _with_failures("holdfast", jobs, 1, lemons=0.02)
    assert found.node_failures > 10
    assert found.gang_replacements + found.gang_requeues > 10
    assert found.failure_lost_gpu_h > 0
    assert replay.hash == _with_failures("holdfast", jobs, 1, lemons=0.02)[0].hash


def test_with_one_lemon_in_fifty_nodes_who_remembers_what_failed_where_loses_less() -> None:
    lost = {name: sum(_with_failures(name, _gangs(seed, 800), seed, lemons=0.02)[1].failure_lost_gpu_h for seed in range(3)) for name in ON_NODES}
    assert lost["holdfast"] < 0.8 * lost["health-blind"]


def test_the_command_replays_failures_and_says_what_they_cost(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,gpus\n" + "".join(f"j{n},{n * 600},36000,{(1, 8)[n % 2]}\n" for n in range(60)))
    asked = ["simulate", "--trace", str(path), "--nodes", "6", "--gpus-per-node", "4", "--node-mtbf-hours", "100", "--repair-hours", "2", "--lemons", "0.1"]
    said = CliRunner().invoke(app, [*asked, "--json", "--policy", "holdfast", "--policy", "health-blind"])
    assert said.exit_code == 0, said.output
    ours, blind = json.loads(said.stdout)["results"]
    assert ours["node_failures"] > 0
    assert ours["suspect_gpu_h"] > 0 == blind["suspect_gpu_h"]
    assert {"gang_replacements", "gang_shrinks", "gang_requeues", "failure_lost_gpu_h", "invariant_failures"} <= set(ours)
    assert "node failures" in CliRunner().invoke(app, asked).output
    for more, says in ((["--policy", "fifo"], "no nodes that could fail"), (["--lemons", "2"], "between 0 and 1"), (["--node-mtbf-hours", "0"], "above 0")):
        refused = CliRunner().invoke(app, [*asked, *more])
        assert refused.exit_code != 0
        assert says in str(refused.exception)
    never = CliRunner().invoke(app, ["simulate", "--trace", str(path), "--lemons", "0.02"])
    assert "give --node-mtbf-hours" in str(never.exception)


def test_a_cluster_that_is_gone_for_weeks_is_waited_for_and_breaks_nothing(tmp_path: Path) -> None:
    """Longer than the half-life of shares, with jobs of two users waiting: nobody has a part of nothing."""
    path, lost = tmp_path / "trace.csv", tmp_path / "lost.csv"
    path.write_text("job_id,submit_s,duration_s,gpus,user\n1,0,100,1,a\n2,0,100,8,b\n")
    lost.write_text("at_s,node,repair_s\n" + "".join(f"50,{node},{30 * 86400}\n" for node in ("one", "two")))
    said = CliRunner().invoke(app, ["simulate", "--trace", str(path), "--nodes", "2", "--gpus-per-node", "4", "--failures", str(lost), "--json"])
    assert said.exit_code == 0, said.output
    (found,) = json.loads(said.stdout)["results"]
    assert (found["unfinished"], found["invariant_failures"], found["node_failures"]) == (0, 0, 2)
    assert found["completion_s"]["longest"] > 30 * 86400


def test_the_command_replays_recorded_failures_the_same_for_the_same_seed_in_every_process(tmp_path: Path) -> None:
    """Sets of strings come in another order with another PYTHONHASHSEED: nothing that is decided may."""
    trace, lost = tmp_path / "trace.csv", tmp_path / "lost.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus,group\n" + "".join(f"j{n},{n * 600},36000,{(1, 8)[n % 2]},g{n % 3}\n" for n in range(60)))
    lost.write_text("at_s,node,repair_s\n" + "".join(f"{hour * 1800},machine-{hour % 7},{3600 if hour % 2 else ''}\n" for hour in range(300)) + "x,y,z\n")
    asked = [sys.executable, "-m", "holdfast.cli", "simulate", "--trace", trace, "--nodes", "6", "--gpus-per-node", "4", "--failures", lost, "--json"]

    def results(hashseed: str, *more: str) -> list[dict[str, Any]]:
        said = subprocess.run([*asked, *more], env={**os.environ, "PYTHONHASHSEED": hashseed}, check=True, capture_output=True, text=True)
        assert "lost.csv: line 302 is left out: at_s 'x' is not a number" in said.stderr
        return [{name: value for name, value in one.items() if name != "took_s"} for one in json.loads(said.stdout)["results"]]

    first, second = results("1", "--seeds", "0-1"), results("2", "--seeds", "0-1", "--policy", "holdfast")
    assert first == second
    assert first[0]["hash"] != first[1]["hash"], "which machine is which node is for the seed to say"
    for one in first:
        assert (one["unfinished"], one["invariant_failures"]) == (0, 0)
        assert one["node_failures"] > 10
        assert one["failure_lost_gpu_h"] > 0
        assert one["gang_replacements"] + one["gang_requeues"] > 5
    assert results("1", "--failures-from", "40h")[0]["node_failures"] < first[0]["node_failures"]


def test_a_node_that_was_recorded_to_fail_takes_the_work_since_the_last_checkpoint_and_a_restart(tmp_path: Path) -> None:
    trace, lost = tmp_path / "trace.csv", tmp_path / "lost.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus,user\nlong,500,14400,4,u\n")
    lost.write_text("at_s,node,repair_s\n8100,node-0,3600\n")
    asked = ["simulate", "--trace", str(trace), "--nodes", "1", "--gpus-per-node", "4", "--failures", str(lost), "--json"]
    said = CliRunner().invoke(app, [*asked, "--policy", "health-blind", "--policy", "holdfast"])
    assert said.exit_code == 0, said.output
    blind, ours = json.loads(said.stdout)["results"]
    assert blind["node_failures"] == blind["gang_requeues"] == 1
    waited = 900 + 3600 + 300  # Since the checkpoint at 7,200 s of work; the repair; a restart.
    assert blind["wait_s"]["longest"] == pytest.approx(waited)
    assert ours["wait_s"]["longest"] == pytest.approx(waited + 6 * HOUR_S), "a gang comes back to a repaired node when its probation is over"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--failures", "LOST", "--policy", "fifo"], "fifo counts GPUs in one pool and has no nodes that could fail"),
        (["--failures", "LOST", "--node-mtbf-hours", "100"], "both say when nodes fail"),
        (["--failures", "LOST", "--lemons", "0.1"], "only those fail that were recorded"),
        (["--failures", "LOST", "--failures-from", "soon"], "--failures-from 'soon' is no time"),
        (["--failures", "LOST", "--repair-hours", "0"], "hours above 0"),
        (["--failures", "none.csv"], "cannot be read"),
        (["--failures-from", "2d"], "give --failures FILE"),
        (["--repair-hours", "5"], "none fail; give --node-mtbf-hours"),
    ],
)
def test_failures_that_cannot_be_replayed_are_refused_in_a_sentence(tmp_path: Path, more: list[str], says: str) -> None:
    trace, lost = tmp_path / "trace.csv", tmp_path / "lost.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,60,1\n")
    lost.write_text("at_s,node\n1,a\n")
    refused = CliRunner().invoke(app, ["simulate", "--trace", str(trace), *[str(lost) if one == "LOST" else one for one in more]])
    assert refused.exit_code != 0
    assert says in str(refused.exception)
