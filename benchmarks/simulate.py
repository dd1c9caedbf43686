"""The core in made-up worlds: does every seed keep its promises, is every place tried where something can go wrong, and would a mistake be found?

Seeds       worlds from seed N on (--seed), each with a storm and then peace: no promise may be broken, no job may get stuck. A process for every core
            takes its share.
Sites       each named fault site must be hit a hundred times in a thousand of these seeds, and the median seed must have a thousand events.
Large       a few worlds of 1,024 nodes: no promise may be broken there either.
Twice       seeds run a second time, in another process: the hash of the event log must be the same.
Planted     mistakes put into the core and into what keeps the contract of control, agent and trainer (`tests/simulate/planted.py`): each must be found within
            a thousand seeds from 0; the table says at which, and by which promise.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from harness.measure import Report, arguments, say

from holdfast.simulate.cores import cores
from holdfast.simulate.survey import Played, Survey, survey

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulate"))  # Bugs are planted for tests; nothing that is shipped holds them.
from planted import BUGS, Bug, found_at


def main() -> None:
    chosen = arguments(
        __doc__ or "", seeds=(10_000, 400, "worlds"), twice=(1000, 100, "of them a second time"), large=(4, 1, "worlds of 1,024 nodes"),
        planted=(1000, 300, "seeds to find a planted bug in"),
    )  # fmt: skip
    report = Report("Simulation")
    found = surveyed(report, range(chosen.seed, chosen.seed + chosen.seeds))
    again(report, range(chosen.seed, chosen.seed + min(chosen.twice, chosen.seeds)), found)
    if chosen.large:
        large(report, range(chosen.seed, chosen.seed + chosen.large))
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        bugs(report, pool, chosen.planted)
    report.finish(chosen)


def surveyed(report: Report, seeds: range) -> Survey:
    told = [0, 0]

    def each(one: Played) -> None:
        told[0] += 1
        told[1] += one.report is None
        if told[0] % 500 == 0:
            say(f"{told[0]:,} seeds, {told[1]} broke a promise")

    found = survey(seeds, processes=cores(), each=each)
    rarest = list(found.sites)
    report.bar(f"seeds of {len(seeds):,} that broke a promise", len(found.failed), "seeds", at_most=0)
    report.bar(f"hits of the rarest fault site in 1,000 seeds ({rarest[0]})", 1000 * found.sites[rarest[0]] / len(seeds), "hits", at_least=100)
    report.bar("events of the median seed", found.median_events, "events", at_least=1000)
    report.series(f"seeds a second, {found.processes} processes", "seeds/s", [len(seeds) / found.wall_s])
    report.series(f"events a second, {found.processes} processes", "events/s", [found.events_per_s])
    report.note(f"{len(rarest)} fault sites; outcomes: {found.outcomes}")
    report.raw |= {"sites": found.sites, "outcomes": found.outcomes, "failed": found.failed}
    for site in rarest[:10]:
        say(f"{found.sites[site]:>7} hits of {site}")
    return found


def again(report: Report, seeds: range, found: Survey) -> None:
    second = survey(seeds, processes=cores())
    same = sum(found.hashes.get(seed) == hash for seed, hash in second.hashes.items())
    report.bar(f"seeds of {len(seeds):,} with the same event log twice", same, "seeds", at_least=len(seeds))


def large(report: Report, seeds: range) -> None:
    found = survey(seeds, processes=cores(), nodes=1024, each=lambda one: say(f"1,024 nodes, seed {one.seed}: {one.broke or 'every promise kept'}"))
    report.bar(f"worlds of {len(seeds)} of 1,024 nodes that broke a promise", len(found.failed), "seeds", at_most=0)
    report.series(f"a world of 1,024 nodes, {found.median_events:,.0f} events in the median", "s", [found.wall_s * found.processes / len(seeds)])
    report.raw["failed, of 1,024 nodes"] = found.failed


def bugs(report: Report, pool: ProcessPoolExecutor, seeds: int) -> None:
    """Bugs travel by their number: what they replace cannot."""
    rows = list(pool.map(_found, range(len(BUGS)), [seeds] * len(BUGS)))
    for bug, row in zip(BUGS, rows, strict=True):
        say(f"planted: {bug.name}: " + (f"seed {row[0]}: {row[1][:120]}" if row else f"not found in {seeds} seeds"))
    report.bar(f"planted bugs of {len(BUGS)} found within {seeds:,} seeds", sum(row is not None for row in rows), "bugs", at_least=max(20, len(BUGS)))
    report.series("seeds until a planted bug is found", "seeds", [row[0] + 1 for row in rows if row])
    report.raw["planted"] = [_row(bug, row) for bug, row in zip(BUGS, rows, strict=True)]


def _found(number: int, seeds: int) -> tuple[int, str] | None:
    return found_at(BUGS[number], range(seeds))


def _row(bug: Bug, row: tuple[int, str] | None) -> dict[str, object]:
    return {"bug": bug.name, "seed": row[0] if row else None, "promise": row[1] if row else ""}


if __name__ == "__main__":
    main()
