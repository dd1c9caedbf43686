"""What is different between two attempts, in words."""

from __future__ import annotations

from holdfast.domain.surroundings import differences

BEFORE = {"package torch": "2.5.1", "package einops": "0.8.0", "environment NCCL_ALGO": "aa", "environment GONE": "bb", "script": "11", "kernel": "6.1"}


def test_every_change_is_named_and_values_of_the_environment_are_not() -> None:
    after = {"package torch": "2.6.0", "package xxhash": "3.4", "environment NCCL_ALGO": "cc", "script": "22", "kernel": "6.1"}

    said = {one.because: one.kind for one in differences(BEFORE, after)}

    assert said == {
        "package torch was 2.5.1, is 2.6.0": "package", "package einops is gone, it was 0.8.0": "package", "package xxhash is new: 3.4": "package",
        "environment NCCL_ALGO is another one": "environment", "environment GONE is gone": "environment", "script is another one": "script",
    }  # fmt: skip


def test_nothing_is_different_from_the_same_or_from_what_was_never_recorded() -> None:
    assert differences(BEFORE, dict(BEFORE)) == ()
    assert differences({}, BEFORE) == ()
    assert differences(BEFORE, {}) == ()
