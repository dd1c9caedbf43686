"""The scheduler on traces of real clusters, beside those it is held against, in the same run.

Philly: days 50 to 110 of 2017, clipped at 7 days, 88,139 jobs of 12 virtual clusters (groups of equal weight) on 160 nodes × 8 GPUs. It has no users: 20 in
each group are made up by Zipf's law from the seed. First the calibration: FIFO, skip and EASY over one pool of GPUs must come to known figures, which proves
the replay. Ours places gangs on nodes, evicts, and pays for it: the work since the last checkpoint (one each 30 minutes of run time) and a restart of 300 s
(0 and 1,800 s are shown too). A wait is all time in the cluster that was not a job's own work; the time to the first start is shown beside it. The others
only count GPUs, which is in their favour; each row says what it knew. Users of seven other seeds, and days 20 to 80, stand beside it. wagap 2013 has users and
their real limits; Muri's traces are of 8 nodes, and one has the results its authors published.

Also: one cycle with 10,000 jobs waiting for 1,024 nodes, starts a second, and the cost of an event from 160 to 10,000 nodes. `--plots DIR` draws waits and
completions for each policy, and the cost of an event over the number of nodes (matplotlib).

The traces are not part of this repository: DIR/traces/jobs/philly2017_jobs.csv.gz and so on; say --data DIR, or HOLDFAST_DATA=DIR.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.measure import Report, arguments, say

from holdfast.cli.png import drawable, empty, save
from holdfast.cli.replays_png import draw
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import decide
from holdfast.schedule.job import JobRequest
from holdfast.schedule.policy import Policy
from holdfast.simulate.audit import audit_of
from holdfast.simulate.figures import Figures, as_record, figures
from holdfast.simulate.policies.named import scheduler_named
from holdfast.simulate.policies.ours import Holdfast, nodes_of
from holdfast.simulate.replay import Replay
from holdfast.simulate.trace import TraceJob, between, clipped, read_trace, with_users

CALIBRATION = {"fifo": (85_347, 197_747), "skip": (38_447, 1_346_704), "easy": (76_670, 196_173)}  # Average completion and longest wait, in seconds.
BASELINES = ("fifo", "skip", "easy", "shortest-first", "tiresias", "fair-tree")


def main() -> None:
    texts = {"data": "the folder that holds traces/ (default: $HOLDFAST_DATA)", "plots": "a folder for pictures"}
    chosen = arguments(__doc__ or "", texts=texts, starts=(5000, 2000, "starts of the speed test"))
    report = Report("Scheduling")
    plots = Path(chosen.plots) if chosen.plots else None
    if plots is not None:
        drawable(plots / "philly.png")
    where = chosen.data or os.environ.get("HOLDFAST_DATA", "")
    if not where:
        report.note("No trace was replayed: neither --data nor HOLDFAST_DATA is set.")
    else:
        root = Path(where) / "traces"
        if not (root / "jobs" / "philly2017_jobs.csv.gz").is_file():
            sys.exit(f"schedule.py: {root / 'jobs' / 'philly2017_jobs.csv.gz'} is not there; --data names the folder that holds traces/")
        philly(report, root, seed=chosen.seed, quick=chosen.quick, plots=plots)
        if not chosen.quick:
            wagap(report, root)
            muri(report, root)
    cycle_speed(report, chosen.starts)
    growth(report, quick=chosen.quick, plots=plots)
    report.finish(chosen)


def philly(report: Report, root: Path, *, seed: int, quick: bool, plots: Path | None) -> None:
    everything = clipped(read_trace(root / "jobs" / "philly2017_jobs.csv.gz"), 7 * 86400)
    trace = with_users(between(everything, 50, 110), seed)
    replays = []
    for name in BASELINES[:3] if quick else BASELINES:
        found, replay = replayed(report, "Philly", trace.jobs, name, 160, 8)
        replays.append((name, replay))
        if name in CALIBRATION:
            average, longest = CALIBRATION[name]
            report.bar(f"calibration, {name}: average completion is off by", 100 * abs(found.completion_s.average / average - 1), "%", at_most=0.5)
            report.bar(f"calibration, {name}: longest wait is off by", 100 * abs(found.wait_s.longest / longest - 1), "%", at_most=0.5)
    found, replay = replayed(report, "Philly", trace.jobs, "holdfast", 160, 8)
    if plots is not None:
        shown = [(name, one.ran.values()) for name, one in (("holdfast", replay), *replays)]
        draw("Philly, days 50 to 110, 160 nodes of 8 GPUs: a simulation", shown, plots / "philly.png")
    report.bar("Philly: average completion (goal 40,000)", found.completion_s.average, "s", at_most=45_000)
    report.bar("Philly: longest wait", found.wait_s.longest, "s", at_most=245_000)
    report.bar("Philly: longest wait to the first start", found.first_wait_s.longest, "s", at_most=245_000)
    report.bar("Philly: p99 wait of jobs of 8 or more GPUs", found.large_wait_s.p99 if found.large_wait_s else None, "s", at_most=190_000)
    report.bar("Philly: invariant failures", found.invariant_failures, "", at_most=0)
    report.bar("Philly: replay on one core, audit included", found.took_s, "s", at_most=120)
    error, windows = backlog_share_error(seed)
    report.bar(f"share error with a backlog of all ({windows} windows)", 100 * error, "% of the cluster", at_most=5)
    if found.share_error is not None:
        report.bar(f"Philly: share error ({found.share_windows} windows)", 100 * found.share_error, "% of the cluster", at_most=5)
    if not quick:
        for restart_s in (0.0, 1800.0):
            for name in ("holdfast", "tiresias"):  # The others never evict.
                replayed(report, f"Philly, restart of {restart_s:.0f} s", trace.jobs, name, 160, 8, restart_s=restart_s)
        seeds = [found]  # Any change of a decision moves the longest wait by some thousand seconds: one set of users says little.
        for other in range(seed + 1, seed + 8):
            trace = with_users(between(everything, 50, 110), other)
            seeds.append(replayed(report, f"Philly, users of seed {other}", trace.jobs, "holdfast", 160, 8)[0])
        report.series("Philly, users of eight seeds: average completion", "s", [one.completion_s.average for one in seeds])
        report.series("Philly, users of eight seeds: longest wait", "s", [one.wait_s.longest for one in seeds])
        report.series("Philly, users of eight seeds: p99 wait of jobs of 8 or more GPUs", "s", [one.large_wait_s.p99 for one in seeds if one.large_wait_s])
        for name in ("fifo", "holdfast"):
            replayed(report, "Philly, days 20 to 80", with_users(between(everything, 20, 80), seed).jobs, name, 160, 8)


def backlog_share_error(seed: int) -> tuple[float, int]:
    """Twelve groups of five users, all with more than they get, for three half-lives of a day: every window can be judged."""
    dice = random.Random(seed)
    jobs = [
        TraceJob(
            id=f"{group}-{user}-{number}", submit_s=0.0, duration_s=dice.uniform(1800, 28_800), gpus=dice.choice([1, 1, 2, 4, 8]), group=f"g{group}",
            user=f"u{user}",
        )
        for group in range(12) for user in range(5) for number in range(60 + 40 * (group % 3))
    ]  # fmt: skip
    scheduler = Holdfast(nodes_of(20, 8), policy=Policy(half_life_s=86400.0))
    audit = audit_of(scheduler)
    Replay(jobs, scheduler, watchers=[audit], until=2.5 * 86400).run()
    error, windows = audit.share()
    return error or 0.0, windows


def wagap(report: Report, root: Path) -> None:
    """Cores, not GPUs, and limits that users gave: the median is 13.5 times the run time."""
    path = root / "jobs" / "wagap2013_jobs.csv.gz"
    if not path.is_file():
        report.note("wagap 2013 was not replayed: it is not there.")
        return
    jobs = []
    with gzip.open(path, "rt") as rows:
        for row in csv.DictReader(rows):
            run_s, cores = float(row["run_s"]), int(row["procs"])
            if run_s > 0 and 0 < cores <= 2176:
                limit_s = max(0.0, float(row["req_time_s"])) or None
                jobs.append(TraceJob(id=row["job"], submit_s=float(row["submit_s"]), duration_s=run_s, gpus=cores, user=row["user"], estimate_s=limit_s))
    for name in ("fifo", "skip", "easy", "holdfast"):
        replayed(report, "wagap 2013, 136 nodes × 16 cores", jobs, name, 136, 16)


def muri(report: Report, root: Path) -> None:
    path, results = root / "bench" / "muri_cluster_trace.csv", root / "bench" / "muri_cluster_results.csv.gz"
    if not path.is_file() or not results.is_file():
        report.note("Muri's trace was not replayed: it is not there.")
        return
    published: dict[str, list[float]] = {}
    with gzip.open(results, "rt") as rows:
        for row in csv.DictReader(rows):
            published.setdefault(row["policy"], []).append(float(row["JCT"]))
    for policy, times in sorted(published.items()):
        report.series(f"Muri's cluster trace, {policy} as published: average completion", "s", [statistics.fmean(times)], "Muri's own share GPUs between jobs")
    for name in ("fifo", "skip", "shortest-first", "tiresias", "holdfast"):
        replayed(report, "Muri's cluster trace, 8 × 8", muri_jobs(path), name, 8, 8)
    for number in (1, 3):
        for name in ("fifo", "skip", "shortest-first", "holdfast"):
            replayed(report, f"Muri's trace {number}, 8 × 8", muri_jobs(root / "bench" / f"muri_trace{number}.csv"), name, 8, 8)


def muri_jobs(path: Path) -> list[TraceJob]:
    with path.open() as rows:
        return [
            TraceJob(id=row["job_id"], submit_s=float(row["submit_s"]), duration_s=float(row["duration_s"]), gpus=int(row["num_gpu"]), user="all")
            for row in csv.DictReader(rows)
        ]


def replayed(report: Report, what: str, jobs: Sequence[TraceJob], name: str, nodes: int, gpus: int, restart_s: float = 300.0) -> tuple[Figures, Replay]:
    scheduler = scheduler_named(name, nodes_of(nodes, gpus), Policy(restart_s=restart_s))
    audit = audit_of(scheduler) if isinstance(scheduler, Holdfast) else None
    began = time.process_time()
    replay = Replay(jobs, scheduler, restart_s=restart_s, watchers=[audit] if audit else []).run()
    took_s = time.process_time() - began
    share = audit.share() if audit else (None, 0)
    found = figures(replay, policy=name, gpus=nodes * gpus, took_s=took_s, share=share, failures=len(audit.auditor.failures) if audit else 0)
    wait, large = found.wait_s, found.large_wait_s
    line = (
        f"wait {wait.average:,.0f} average, {wait.median:,.0f} median, {wait.p99:,.0f} p99, {wait.longest:,.0f} longest; "
        f"of 8+ GPUs {large.p99 if large else 0:,.0f} p99; first start at most {found.first_wait_s.longest:,.0f}; "
        f"{found.evictions_a_job:.2f} evictions a job, {found.lost_gpu_h:,.0f} GPU-h lost; used {found.utilisation:.0%}; Jain {found.jain:.2f}; "
        f"finish-time p99 {found.finish_time_fairness:.1f}; {found.invariant_failures} invariants failed; {took_s:.0f} s; knew {found.knows}"
    )
    report.series(f"{what}, {name}: average completion", "s", [found.completion_s.average], line)
    report.raw[f"{what}, {name}"] = as_record(found)
    say(f"{what}, {name}: completion {found.completion_s.average:,.0f} s; {line}")
    return found, replay


def cycle_speed(report: Report, starts: int) -> None:
    """1,024 full nodes and 10,000 waiting jobs of 300 users in 12 groups; each cycle a few jobs end."""
    dice = random.Random(0)
    cluster = Cluster(nodes_of(1024, 8))
    now = 0.0
    for number in range(10_000 + 8 * 1024):
        account = (f"g{number % 12}", f"u{dice.randrange(25)}")
        cluster.submit(JobRequest(id=f"j{number}", account=account, gpus=dice.choice([1, 1, 1, 1, 2, 4, 8, 16]), checkpoint_every_s=1800.0), now)
    began = time.process_time()
    first = decide(cluster, now)
    report.series("first cycle: an empty cluster of 1,024 nodes is filled", "starts/s", [len(first.starts) / (time.process_time() - began)])
    cycles_s, begun, spent = [], 0, 0.0
    while begun < starts and cluster.running:
        now += 30.0
        for job in dice.sample(list(cluster.running), min(10, len(cluster.running))):
            cluster.end(job.request.id, now)
        began = time.process_time()
        begun += len(decide(cluster, now).starts)
        cycles_s.append(time.process_time() - began)
        spent += cycles_s[-1]
    report.series("cycles with thousands waiting", "s", cycles_s)
    report.bar("one cycle, p99", 1000 * sorted(cycles_s)[int(0.99 * len(cycles_s))], "ms", at_most=250)
    report.bar("starts a second, in process", begun / spent, "starts/s", at_least=1000)


def growth(report: Report, *, quick: bool, plots: Path | None) -> None:
    """The same load for each node, on ever more nodes: what an event costs. n log n for the whole would be a cost for each event that grows with log n. The
    median of several replays: a small one takes a fifth of a second, in which a busy neighbour costs half as much again."""
    costs = []
    for nodes, times in ((160, 15), (640, 7), (2560, 3), (10_000, 3))[: 3 if quick else 4]:
        dice = random.Random(1)
        jobs = [
            TraceJob(
                id=f"j{number}", submit_s=dice.uniform(0, 86_400), duration_s=dice.lognormvariate(8, 1.5), gpus=dice.choice([1, 1, 1, 2, 4, 8]),
                group=f"g{number % 12}", user=f"u{dice.randrange(25)}",
            )
            for number in range(nodes * 12)
        ]  # fmt: skip
        taken_us = []
        for _ in range(times):
            began = time.process_time()
            replay = Replay(jobs, Holdfast(nodes_of(nodes, 8))).run()
            taken_us.append(1e6 * (time.process_time() - began) / replay.events)
        costs.append((nodes, statistics.median(taken_us)))
        report.series(f"cost of an event, {nodes:,} nodes", "µs", taken_us, f"{replay.events:,} events each")
        say(f"cost of an event, {nodes:,} nodes: {costs[-1][1]:.0f} µs")
    (fewest, first), (most, last) = costs[0], costs[-1]
    allowed = math.log(most) / math.log(fewest)
    report.bar(f"cost of an event at {most:,} nodes, in times of that at {fewest} (n log n: {allowed:.2f})", last / first, "times", at_most=allowed)
    if plots is not None:
        draw_growth(costs, plots / "growth.png")


def draw_growth(costs: Sequence[tuple[int, float]], path: Path) -> None:
    """Measured, and what n log n for the whole would come to from the first."""
    figure = empty(8, 5, "What an event costs")
    axes = figure.subplots()
    nodes = [count for count, _ in costs]
    axes.semilogx(nodes, [cost for _, cost in costs], marker="o", label="measured")
    axes.semilogx(nodes, [costs[0][1] * math.log(count) / math.log(nodes[0]) for count in nodes], linestyle="--", label="n log n")
    axes.set(xlabel="nodes of 8 GPUs, 12 jobs for each in a day", ylabel="µs", ylim=(0, None))
    axes.legend()
    save(figure, path)


if __name__ == "__main__":
    main()
