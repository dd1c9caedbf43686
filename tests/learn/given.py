"""Histories for tests, drawn or written down."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.domain.past import PastIncident, PastRemedy
from holdfast.learn.decay import DAY_S
from holdfast.learn.reputation import Fault, Service

NOW = 100 * DAY_S
TIMES = st.floats(0.0, 120 * DAY_S, allow_nan=False)  # Some of them after NOW: a clock was set back.
NODES = st.sampled_from([f"n{number}" for number in range(6)])
CAUSES = st.sampled_from(("hang", "crash", "exception"))
FAULTS = st.lists(st.builds(Fault, node=NODES, cause=CAUSES, at=TIMES), max_size=30)
SPANS = st.builds(lambda node, since, long: Service(node=node, since=since, until=since + long), NODES, TIMES, st.floats(0.0, 9 * DAY_S))
SERVICE = st.lists(SPANS, max_size=12)
REMEDY = st.builds(PastRemedy, rung=st.sampled_from(("respawn", "replace")), worked=st.booleans(), cost_s=st.floats(0.0, 1e4))
REMEDIES = st.lists(REMEDY, max_size=3).map(tuple)
INCIDENTS = st.lists(
    st.builds(
        PastIncident, job=st.sampled_from(("a", "b")), number=st.integers(1, 50), opened_at=TIMES, cause=CAUSES, fingerprint=st.sampled_from(("", "f", "g")),
        node=NODES, remedies=REMEDIES,
    ),
    max_size=20,
)  # fmt: skip


def incident(number: int = 1, *, job: str = "job", at: float = NOW, fingerprint: str = "f", **more: object) -> PastIncident:
    return PastIncident(job=job, number=number, opened_at=at, fingerprint=fingerprint, **more)  # type: ignore[arg-type]
