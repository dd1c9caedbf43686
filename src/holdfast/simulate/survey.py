"""Many made-up worlds, one after the other, and which of them broke: `holdfast simulate --seeds N`."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Sequence

from holdfast.simulate.world import run


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


def survey_text(summary: dict[str, object]) -> str:
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
