"""Learning: lemons found, failures foretold, and recovery that costs less. All of it simulated; only `--data` looks at failures that happened.

Lemons      a fleet with 1 % lemons at 20 times the rate, 7 days: found at least 90 %, healthy nodes evicted at most 1 %, at 0.05 faults a node and day.
            Beside it other rates, what the best rule there is could find, and how many days it would need: at 0.0065 (only what stops a job and is the node's
            own fault, Meta's RSC-1) 31 % in 7 days is the most anybody can. What is counted is every fault that is put down to a node: those that stop a job
            (0.021 to 0.024 on RSC-1, whatever the reason) and as many again that do not (a contained XID, a remapped row, a flapping link).
Foretelling precursors planted with several strengths into simulated fleets, on seeds the model was not fitted on: precision, recall, lead time.
Recovery    a month of jobs through the real ladder with and without learning, same seeds: the median cost of an incident must fall.
LANL        with --data DIR: nodes of ten years of a laboratory's clusters (DIR/traces/failures/lanl_1996_2005_failures.csv.gz) that were on the list at the
            end of a quarter: how many times as often as the others they failed in the next one.
"""

from __future__ import annotations

import csv
import gzip
import os
import statistics
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fleets import lemons, month, precursors
from harness.measure import Report, arguments, say

from holdfast.learn.decay import DAY_S
from holdfast.learn.precursor_weights import ALARM, HORIZON_H
from holdfast.learn.precursors import chances
from holdfast.learn.reputation import Fault, Service, reputations

RATE = 0.05  # Faults a node and day.
RATES = (0.0065, 0.0237, 0.04, RATE, 0.1)
QUARTER_S = 91 * DAY_S


def main() -> None:
    chosen = arguments(
        __doc__ or "", texts={"data": "the folder that holds traces/ (default: $HOLDFAST_DATA; without it LANL is left out)"},
        fleets=(40, 6, "fleets of 512 nodes; a quarter as many of 2,048"), months=(40, 8, "simulated months"), foretold=(8, 2, "fleets for each strength"),
    )  # fmt: skip
    report = Report("Learning")
    find_lemons(report, chosen.seed, chosen.fleets)
    foretell(report, chosen.seed, chosen.foretold)
    recover(report, chosen.seed, chosen.months)
    where = Path(chosen.data or os.environ.get("HOLDFAST_DATA", "")) / "traces" / "failures" / "lanl_1996_2005_failures.csv.gz"
    if where.is_file():
        laboratory(report, where)
    else:
        report.note("LANL left out: --data names the folder that holds traces/")
    report.finish(chosen)


def find_lemons(report: Report, seed: int, fleets: int) -> None:
    for nodes, count in ((512, fleets), (2048, max(1, fleets // 4))):
        for per_day in RATES:
            played = [lemons.play(nodes, per_day, seed + number) for number in range(count)]
            found = 100 * sum(one.found for one in played) / sum(one.lemons for one in played)
            evicted = 100 * sum(one.evicted for one in played) / sum(one.healthy for one in played)
            best, days = 100 * lemons.best_possible(per_day), lemons.days_needed(per_day)
            say(f"{nodes} nodes, {per_day} a day: {found:.1f} % of {sum(one.lemons for one in played)} lemons, {evicted:.2f} % of the healthy evicted")
            name = f"{nodes:,} nodes at {per_day} faults a node-day"
            if per_day == RATE:
                report.bar(f"{name}: lemons found in 7 days", found, "%", at_least=90.0)
                report.bar(f"{name}: healthy nodes evicted", evicted, "%", at_most=1.0)
                report.series(f"{name}: until a lemon was found", "days", [day for one in played for day in one.days])
            note = f"at best {best:.0f} %; 90 % can be had after {days:.0f} days"
            report.series(f"{name}: found", "%", [100 * one.found / one.lemons for one in played], note)
            report.series(f"{name}: healthy evicted", "%", [100 * one.evicted / one.healthy for one in played])


def foretell(report: Report, seed: int, fleets: int) -> None:
    for announced in (0.4, 0.8):
        for strength in (10.0, 30.0, 100.0):
            planted = precursors.Planted(announced=announced, strength=strength)
            judged = []
            for number in range(fleets):
                fleet = precursors.play(planted, nodes=512, days=60, seed=seed + number)
                found, _, at, who = precursors.rows(fleet, HORIZON_H)
                judged.append(precursors.judge(fleet, chances(found), at, who, alarm=ALARM, horizon_h=HORIZON_H))
            name = f"simulated, {announced:.0%} announced, {strength:g} times the usual rate"
            say(f"{name}: recall {100 * statistics.mean(one.recall for one in judged):.0f} %, {sum(one.alarms for one in judged)} alarms")
            report.series(f"{name}: precision", "%", [100 * one.precision for one in judged if one.precision is not None])
            report.series(f"{name}: recall", "%", [100 * one.recall for one in judged])
            report.series(f"{name}: lead time", "h", [one.lead_h for one in judged if one.lead_h is not None], "of those foretold, median a fleet")


def recover(report: Report, seed: int, months: int) -> None:
    for kinds, name in ((month.KINDS, "half of the GPU faults stay with their node"), (month.PASSING, "no fault stays")):
        without = [month.play(seed + number, learning=False, kinds=kinds) for number in range(months)]
        learned = [month.play(seed + number, learning=True, kinds=kinds) for number in range(months)]
        medians = [[statistics.median(one.costs_s) for one in side] for side in (without, learned)]
        fell = [100 * (1 - after / before) for before, after in zip(*medians, strict=True)]
        say(f"{name}: median cost {statistics.median(medians[0]):.0f} s without, {statistics.median(medians[1]):.0f} s with learning")
        if kinds is month.KINDS:
            ratio = statistics.median(medians[1]) / statistics.median(medians[0])
            report.bar("median cost of an incident, with learning against without (median month)", ratio, "of it", under=1.0)
            report.bar("months in which the median fell", 100 * sum(value > 0 for value in fell) / len(fell), "%", at_least=90.0)
        for side, played, middle in (("without", without, medians[0]), ("with", learned, medians[1])):
            report.series(f"{name}, {side}: median cost of an incident", "s", middle)
            report.series(f"{name}, {side}: lost in the month", "h", [sum(one.costs_s) / 3600 for one in played])
            report.series(f"{name}, {side}: given up to a person", "incidents", [one.gave_up for one in played])


def laboratory(report: Report, path: Path) -> None:
    """Every node of a system counts as in service from its first failure to the system's last: when it was bought is not recorded."""
    by_system: dict[str, list[Fault]] = {}
    for row in _rows(path):
        fault = Fault(node=row["node"], cause=row["root_cause"], at=_seconds(row["started"]))
        by_system.setdefault(row["system"], []).append(fault)
    ratios, listed = [], 0
    for _, faults in sorted(by_system.items()):
        first = {node: min(fault.at for fault in faults if fault.node == node) for node in {fault.node for fault in faults}}
        end = max(fault.at for fault in faults)
        at = min(first.values()) + QUARTER_S
        while len(first) >= 50 and at + QUARTER_S <= end:
            there = [node for node, since in first.items() if since < at]
            thought = reputations([one for one in faults if one.at < at], [Service(node=node, since=first[node], until=at) for node in there], at)
            following = [fault.node for fault in faults if at <= fault.at < at + QUARTER_S]
            bad = {one.node for one in thought.lemons}
            others = [following.count(node) for node in there if node not in bad]
            if bad and sum(others):
                listed += len(bad)
                ratios.append(statistics.mean(following.count(node) for node in bad) / statistics.mean(others))
            at += QUARTER_S
    say(f"LANL: {listed} listings in {len(ratios)} quarters")
    note = f"{listed} listings in systems of 50 nodes or more"
    report.series("LANL: nodes on the list, in the quarter after: times as many failures as the others", "times", ratios, note)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M").timestamp()


if __name__ == "__main__":
    main()
