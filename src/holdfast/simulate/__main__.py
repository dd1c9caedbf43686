"""`python -m holdfast.simulate`: many worlds, one after the other, and which of them broke."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from holdfast.simulate.world import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worlds that were asked for; 0 when each kept its promises."""
    parser = argparse.ArgumentParser(prog="holdfast simulate", description="Run the core through made-up faults, from seeds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--story", action="store_true", help="print all that happens")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    asked = parser.parse_args(arguments)
    summary = survey(range(asked.start, asked.start + asked.seeds), story=asked.story)
    print(json.dumps(summary) if asked.json else _text(summary))
    return 1 if summary["failed"] else 0


def survey(seeds: Sequence[int], *, story: bool = False) -> dict[str, object]:
    """Run each seed, go on after one that fails, and count."""
    outcomes: Counter[str] = Counter()
    failed: dict[str, str] = {}
    events, virtual_s, began = 0, 0.0, time.perf_counter()
    for seed in seeds:
        lines: list[str] | None = [] if story else None
        try:
            report = run(seed, lines=lines)
        except AssertionError as error:
            failed[str(seed)] = str(error) or traceback.format_exc(limit=-1)
        else:
            outcomes[report.outcome] += 1
            events, virtual_s = events + report.events, virtual_s + report.virtual_s
        print(*lines or (), sep="\n", end="\n" if lines else "")
    wall_s = time.perf_counter() - began
    return {
        "seeds": len(seeds), "failed": failed, "outcomes": dict(sorted(outcomes.items())), "events": events, "wall_s": round(wall_s, 3),
        "events_per_s": round(events / wall_s), "virtual_hours_per_s": round(virtual_s / 3600 / wall_s, 1), "seeds_per_minute": round(60 * len(seeds) / wall_s),
    }  # fmt: skip


def _text(summary: dict[str, object]) -> str:
    said = [
        f"{summary['seeds']} seeds in {summary['wall_s']} s: {summary['events']} events, {summary['events_per_s']} events/s, "
        f"{summary['virtual_hours_per_s']} virtual hours a second, {summary['seeds_per_minute']} seeds a minute",
        f"outcomes: {summary['outcomes']}",
    ]
    failed = summary["failed"]
    assert isinstance(failed, dict)
    said += [f"seed {seed} failed: {because}" for seed, because in failed.items()]
    said.append(f"failed seeds: {', '.join(failed)}" if failed else "no seed failed")
    return "\n".join(said)


if __name__ == "__main__":
    raise SystemExit(main())
