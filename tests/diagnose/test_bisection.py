"""Which change mattered, by the noise of the unchanged runs."""

from __future__ import annotations

from math import inf, isnan, nan

from holdfast.diagnose.bisection import compare


def curve(end: float, steps: int = 8) -> dict[int, float]:
    return dict.fromkeys(range(1, steps + 1), end)


def test_what_moves_the_loss_far_beyond_the_noise_matters_and_the_rest_does_not() -> None:
    found = compare([curve(1.0), curve(1.1)], {"a": curve(1.2), "b": curve(2.0), "c": curve(0.5)})
    assert round(found.noise, 6) == 0.1
    assert [(one.change, one.matters) for one in found.effects] == [("b", True), ("c", True), ("a", False)]
    assert found.says.startswith("b mattered most: the loss ends 0.95 higher")


def test_runs_that_repeat_to_the_bit_have_a_noise_of_a_thousandth() -> None:
    found = compare([curve(2.0), curve(2.0)], {"a": curve(2.004), "b": curve(2.1)})
    assert [one.matters for one in found.effects] == [True, False]
    assert compare([curve(2.0), curve(2.0)], {"a": curve(2.004)}).says == "no change mattered: none moved the loss by 3 times the noise"


def test_a_change_that_ruins_training_comes_first_and_one_that_saves_it_is_named() -> None:
    found = compare([curve(1.0), curve(1.0)], {"a": curve(3.0), "b": {**curve(1.0), 7: nan, 8: nan}})
    assert (found.effects[0].change, found.effects[0].times) == ("b", inf)
    assert "not finite from step 7 on" in found.says
    saved = compare([curve(nan), curve(nan)], {"a": curve(3.0), "b": curve(nan)})
    assert isnan(saved.noise)
    assert saved.says == "unchanged, training goes wrong; with a it does not"
    assert compare([curve(nan)], {"a": curve(nan)}).says == "training goes wrong unchanged, and with every change"


def test_a_run_that_said_nothing_says_nothing() -> None:
    (effect,) = compare([curve(1.0), curve(1.0)], {"a": {}}).effects
    assert (effect.matters, effect.says) == (False, "no loss was seen")
