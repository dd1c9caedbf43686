"""Bugs that were planted are found: a simulator that finds nothing proves nothing."""

from __future__ import annotations

import pytest
from simulate.planted import BUGS, Bug, found_at, planted

from holdfast.simulate.world import run


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_at_its_seed(bug: Bug) -> None:
    assert found_at(bug, [bug.seed]) is not None


def test_there_are_at_least_twenty_of_them_and_each_is_taken_out_again() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    before = {bug.name: getattr(bug.on, bug.attribute) for bug in BUGS}
    for bug in BUGS:
        with planted(bug):
            assert getattr(bug.on, bug.attribute) is not before[bug.name]
        assert getattr(bug.on, bug.attribute) is before[bug.name]
    run(0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_a_thousand_seeds(bug: Bug) -> None:
    found = found_at(bug, range(1000))
    assert found is not None
    print(f"{bug.name}: seed {found[0]}: {found[1]}")
