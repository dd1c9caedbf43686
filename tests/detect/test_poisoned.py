"""A poisoned checkpoint: accused when the first numbers after a restore are NaN and stay so, and never otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.poisoned import Look, Poisoned
from holdfast.domain.finding import Finding

LOOK_S = 0.2
FINITE, BAD, NONE = True, False, None
LOSSES = st.lists(st.sampled_from((FINITE, BAD, NONE)), min_size=1, max_size=12)


def watch(losses: Sequence[bool | None], *, checkpoint: str = "step-20", every: int = 1, late: int = 0, up_s: float = 0.0) -> list[Finding]:
    """What is found of a rank that began at step 20 and shows `losses`, look after look, with `every` steps between them.

    The first of these looks comes after `late` more steps, and `up_s` after the rank was started.
    """
    detector, found = Poisoned(), []
    for number, loss in enumerate(losses, 1):
        look = Look(step=20 + late + every * number, step_started=20, finite=loss)
        found += [finding] if (finding := detector.look({0: look}, checkpoint, 20, up_at=0.0, now=up_s + number * LOOK_S)) else []
    return found


@given(LOSSES)
def test_it_accuses_exactly_when_the_first_loss_is_early_and_bad_and_the_next_one_too(losses: list[bool | None]) -> None:
    detector_steps = Poisoned().steps
    first = next((number for number, loss in enumerate(losses, 1) if loss is not None), 0)
    said = [loss for loss in losses[first - 1 :] if loss is not None] if first else []
    expected = 0 < first <= max(detector_steps, int(Poisoned().soon_s / LOOK_S + 1e-9)) and said[:2] == [BAD, BAD]
    assert bool(watch(losses)) == expected


@given(LOSSES)
def test_a_run_that_restored_nothing_is_never_accused(losses: list[bool | None]) -> None:
    assert not watch([BAD, BAD, *losses], checkpoint="")


@given(LOSSES, st.integers(1, 300), st.integers(0, 2))
def test_whoever_was_finite_first_is_never_accused(losses: list[bool | None], every: int, late: int) -> None:
    assert not watch([FINITE, *losses], every=every, late=late)


@given(st.integers(1, 300), st.integers(0, 2))
def test_whoever_was_finite_between_two_looks_is_never_accused(every: int, known: int) -> None:
    """Six good steps of 30 ms and a bad batch after them pass before anybody looks."""
    detector = Poisoned()
    for number in range(1, 9):
        look = Look(step=20 + every * number, step_started=20, finite=BAD, was_finite=number >= known)
        assert detector.look({0: look}, "step-20", 20, up_at=0.0, now=number * LOOK_S) is None


@given(LOSSES)
def test_one_bad_loss_that_a_finite_one_follows_accuses_nobody(losses: list[bool | None]) -> None:
    assert not watch([BAD, FINITE, *losses])


@given(st.integers(3, 1000), st.integers(1, 50))
def test_bad_numbers_of_a_gang_that_was_not_seen_from_its_start_accuse_nobody_later_than_the_first_steps(late: int, every: int) -> None:
    assert not watch([BAD] * 8, late=late, every=every, up_s=60.0)
    assert watch([BAD] * 8, up_s=60.0)


@given(st.floats(0.0, 3600.0), st.integers(1, 500))
def test_a_start_of_any_length_hides_nothing_when_it_was_watched(start_s: float, every: int) -> None:
    detector, at = Poisoned(), 0.0
    while at < start_s:
        assert detector.look({0: Look(step=20, step_started=20, finite=NONE)}, "step-20", 20, up_at=0.0, now=at) is None
        at += 1.0
    looks = [Look(step=20 + every * number, step_started=20, finite=BAD) for number in (1, 2)]
    assert [detector.look({0: look}, "step-20", 20, up_at=0.0, now=at + LOOK_S * number) is None for number, look in enumerate(looks)] == [True, False]


@given(st.integers(1, 500))
def test_steps_too_short_to_be_seen_one_by_one_do_not_hide_it(every: int) -> None:
    assert len(watch([BAD, BAD], every=every)) == 1


@given(st.dictionaries(st.integers(0, 63), st.booleans(), min_size=1))
def test_the_finding_names_the_checkpoint_its_step_and_every_bad_rank_once_a_generation(bad: dict[int, bool]) -> None:
    detector = Poisoned()
    found = [
        detector.look({rank: Look(step=step, step_started=20, finite=not is_bad) for rank, is_bad in bad.items()}, "step-20", 20, up_at=19.0, now=float(step))
        for step in range(20, 27)
    ]
    told = [finding for finding in found if finding is not None]
    if not any(bad.values()):
        assert not told
        return
    (finding,) = told
    assert finding.ranks == tuple(sorted(rank for rank, is_bad in bad.items() if is_bad))
    assert (finding.kind, finding.checkpoint, finding.step, finding.since) == ("poisoned_checkpoint", "step-20", 20, 21.0)
    assert "step-20" in finding.because
    assert finding is found[2]


def test_the_same_step_seen_twice_is_one_sign_and_not_two() -> None:
    detector = Poisoned()
    for number in range(10):
        assert detector.look({0: Look(step=21, step_started=20, finite=BAD)}, "step-20", 20, up_at=0.0, now=float(number)) is None
    assert detector.look({0: Look(step=22, step_started=20, finite=BAD)}, "step-20", 20, up_at=0.0, now=11.0) is not None
