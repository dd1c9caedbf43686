"""Late data: a rank waits for its next batch for far longer than usual. The data is late; the rank is not at fault, and is waited for.

Sees        that the rank is quiet and its main thread is in the loop over `run.steps` or in a data loader.
Says        `late_data`, with the place in the data set or loader, and what it waits for there.
Is wrong    when the data will never come (a loader worker that is stuck): at its limit it is a `silent_rank` too. An evaluation that waits for its own loader
            is called late data as well.
Costs       nothing of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.detect.pause import in_time, what_comes, who_waits
from holdfast.detect.standstill import Sight
from holdfast.domain.finding import Finding, Severity


def late_data(sight: Sight, others: Sequence[Sight], limit_s: float | None) -> Finding:
    assert sight.signs is not None
    where = f" in {sight.signs.where}" if sight.signs.where else ""
    return Finding(
        kind="late_data", node=sight.node, ranks=(sight.rank,), step=sight.step, severity=Severity.WARNING, place=sight.signs.place, lasted_s=sight.quiet_s,
        because=f"rank {sight.rank} has waited for data for {in_time(sight.quiet_s)}{where}{who_waits(others)}", evidence=what_comes(sight, limit_s),
    )  # fmt: skip
