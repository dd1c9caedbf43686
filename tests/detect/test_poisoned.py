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


def watch(losses: Sequence[bool | None], *, checkpoint: str = "step-20", every: int = 1, late: int = 0, seen_before: bool = True) -> list[Finding]:
    """What is found of a rank that began at step 20 and shows `losses`, look after look, with `every` steps between them; the first look after `late` more."""
    detector, found = Poisoned(), []
    looks = [Look(step=20, step_started=20, finite=None)] if seen_before else []
    looks += [Look(step=20 + late + every * number, step_started=20, finite=loss) for number, loss in enumerate(losses, 1)]
    for number, look in enumerate(looks):
        found += [finding] if (finding := detector.look({0: look}, checkpoint, 20, number * LOOK_S)) else []
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


@given(LOSSES)
def test_one_bad_loss_that_a_finite_one_follows_accuses_nobody(losses: list[bool | None]) -> None:
    assert not watch([BAD, FINITE, *losses])


@given(st.integers(4, 1000), st.integers(1, 50))
def test_bad_numbers_of_a_gang_that_was_not_seen_from_its_start_accuse_nobody_later_than_the_first_steps(late: int, every: int) -> None:
    assert not watch([BAD] * 8, late=late, every=every, seen_before=False)


@given(st.integers(1, 500))
def test_steps_too_short_to_be_seen_one_by_one_do_not_hide_it(every: int) -> None:
    assert len(watch([BAD, BAD], every=every)) == 1


@given(st.dictionaries(st.integers(0, 63), st.booleans(), min_size=1))
def test_the_finding_names_the_checkpoint_its_step_and_every_bad_rank_once_a_generation(bad: dict[int, bool]) -> None:
    detector = Poisoned()
    found = [
        detector.look({rank: Look(step=step, step_started=20, finite=not is_bad) for rank, is_bad in bad.items()}, "step-20", 20, float(step))
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
        assert detector.look({0: Look(step=21, step_started=20, finite=BAD)}, "step-20", 20, float(number)) is None
    assert detector.look({0: Look(step=22, step_started=20, finite=BAD)}, "step-20", 20, 11.0) is not None
