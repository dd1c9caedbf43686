"""What was learned reaches the core with the job's specification: suspects are taken last, a stubborn node is left, a correction decides."""

from __future__ import annotations

from core.teller import Teller

from holdfast.domain.event import JobSubmitted
from holdfast.domain.job import JobSpec, Outcome
from holdfast.domain.learned import Learned, Remedy

ECC = "exit 0 exception step=5 exception=RuntimeError print=ecc"


def started(learned: Learned | None, *, nodes: int = 1) -> Teller:
    teller = Teller()
    teller.take(JobSubmitted(at=teller.at, spec=JobSpec(job="scenario", argv=("train.py",), nodes=nodes, spares=1, learned=learned)))
    for name in ("n1", "n2"):
        teller.play(f"hear {name}")
    teller.play("up")
    return teller


def gang(teller: Teller) -> tuple[str, ...]:
    assert teller.core.state.gang is not None
    return teller.core.state.gang.nodes


def test_a_suspect_is_taken_last_and_taken_all_the_same_when_there_is_nobody_else() -> None:
    teller = Teller()
    teller.take(JobSubmitted(at=teller.at, spec=JobSpec(job="scenario", argv=("train.py",), nodes=1, learned=Learned(version="v", suspects=("n1",)))))
    teller.play("hear n1")
    assert gang(teller) == ("n1",)


def test_where_a_respawn_never_helped_the_next_gang_stands_on_the_spare() -> None:
    rows = (Remedy(cause="exception", rung="respawn", failed=5.0, failed_s=200.0),)
    teller = started(Learned(version="v7", remedies=rows))
    assert gang(teller) == ("n1",)
    teller.play(ECC)
    teller.play("stopped")
    incident = teller.core.state.incidents[0]
    assert incident.plans[-1].learned == "v7"
    assert gang(teller) == ("n2",), incident.plans[-1].because
    assert teller.core.state.avoided == ("n1",)


def test_without_anything_learned_the_same_node_is_used_again() -> None:
    teller = started(None)
    teller.play(ECC)
    teller.play("stopped")
    assert gang(teller) == ("n1",)
    assert teller.core.state.incidents[0].plans[-1].learned == ""


def test_a_correction_to_a_permanent_class_stops_the_next_one_of_the_same_fingerprint_at_once() -> None:
    before = started(None)
    before.play(ECC)
    before.play("stopped")
    fingerprint = before.core.state.incidents[0].diagnoses[0].fingerprint
    teller = started(Learned(version="v", corrections=((fingerprint, "import_missing"),)))
    teller.play(ECC)
    teller.play("stopped")
    diagnosis = teller.core.state.incidents[0].diagnoses[0]
    assert (diagnosis.corrected, diagnosis.permanent) == ("import_missing", True)
    assert "as somebody corrected" in diagnosis.because
    assert teller.core.state.outcome is Outcome.PERMANENT
