"""How often a job starts within the range that was told to it, and what nodes that fail cost with and without a memory of them.

Philly is replayed on 120 nodes × 8 GPUs, eight days from day 50 (on which the slack of the range was found) and from day 80 (on which it was not). Every twelve
hours 40 of those that wait are told when they will start; what really happened is looked up at the end. Then seven days on 100 nodes, of which two are lemons,
under our scheduler and under the same without a memory of failures. No policy is told how long a job takes.

The traces are not part of this repository: DIR/traces/jobs/philly2017_jobs.csv.gz; say --data DIR, or HOLDFAST_DATA=DIR.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.measure import Report, arguments, say

from holdfast.schedule.cycle import Decisions
from holdfast.schedule.forecast import Expected, forecast
from holdfast.simulate.failures import outages
from holdfast.simulate.figures import figures
from holdfast.simulate.policies.named import ON_NODES, scheduler_named
from holdfast.simulate.policies.ours import Holdfast, nodes_of
from holdfast.simulate.replay import Replay
from holdfast.simulate.trace import Trace, TraceJob, between, clipped, read_trace, with_users

_EVERY_S = 43_200.0
_ASKED = 40


@dataclass(slots=True)
class Asked:
    """Asks for forecasts in the middle of a replay, and notes when jobs start."""

    scheduler: Holdfast
    next_at: float
    until: float
    told: list[tuple[str, float, Expected]] = field(default_factory=list)
    starts: dict[str, list[float]] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)

    def submitted(self, job: TraceJob, now: float) -> None:
        pass

    def ended(self, id: str, now: float) -> None:
        pass

    def decided(self, decisions: Decisions, now: float) -> None:
        for start in decisions.starts:
            self.starts.setdefault(start.job, []).append(now)
        if self.next_at <= now < self.until:
            self.next_at += _EVERY_S
            waiting = sorted(id for id, job in self.scheduler.cluster.jobs.items() if not job.running)
            began = time.process_time()
            found = forecast(self.scheduler.cluster, random.Random(int(now)).sample(waiting, min(_ASKED, len(waiting))))
            self.took_s.append(time.process_time() - began)
            self.told += [(id, now, expected) for id, expected in found.items()]


def main() -> None:
    chosen = arguments(__doc__ or "", texts={"data": "the folder that holds traces/ (default: $HOLDFAST_DATA)"})
    where = chosen.data or os.environ.get("HOLDFAST_DATA", "")
    path = Path(where) / "traces" / "jobs" / "philly2017_jobs.csv.gz"
    if not where or not path.is_file():
        sys.exit(f"forecast.py: {path} is not there; --data names the folder that holds traces/")
    report, trace = Report("Expected starts and failing nodes"), read_trace(path)
    for first in (50,) if chosen.quick else (50, 80):
        starts(report, _days(trace, first, first + 8), first)
    for seed in range(1 if chosen.quick else 2):
        lemons(report, _days(trace, 50, 57), seed)
    report.finish(chosen)


def _days(trace: Trace, first: int, last: int) -> Trace:
    return with_users(clipped(between(trace, first, last), 7 * 86400), 0)


def starts(report: Report, trace: Trace, first: int) -> None:
    say(f"forecasts, days {first} to {first + 8}")
    scheduler = Holdfast(nodes_of(120, 8))
    asked = Asked(scheduler, next_at=(first + 1) * 86400.0, until=(first + 8) * 86400.0)
    Replay(trace.jobs, scheduler, watchers=[asked]).run()
    real = [next(at for at in asked.starts[id] if at > now) for id, now, _ in asked.told]
    inside = [expected.earliest <= at <= expected.latest for (_, _, expected), at in zip(asked.told, real, strict=True)]
    report.series(f"days {first} to {first + 8}: started within the range", "%", [100 * sum(inside) / len(inside)], f"{len(inside)} jobs that waited")
    report.series(f"days {first} to {first + 8}: one forecast", "s", asked.took_s, f"of {_ASKED} jobs")


def lemons(report: Report, trace: Trace, seed: int) -> None:
    for name in ON_NODES:
        say(f"failing nodes, {name}, seed {seed}")
        first, last = trace.jobs[0].submit_s, trace.jobs[-1].submit_s
        failing = outages(100, mtbf_s=6000 * 3600.0, seed=seed, first_at=first, last_at=last + 30 * 86400, lemons=0.02)
        replay = Replay(trace.jobs, scheduler_named(name, nodes_of(100, 8)), outages=failing).run()
        found = figures(replay, policy=name, gpus=800, took_s=0.0)
        report.series(f"two lemons, seed {seed}, {name}: lost to {found.node_failures} failures", "GPU-h", [found.failure_lost_gpu_h])


if __name__ == "__main__":
    main()
