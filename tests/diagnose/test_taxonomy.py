"""The taxonomy: one place, complete, and the documentation is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.diagnose.signatures import SIGNATURES
from holdfast.diagnose.taxonomy import CLASSES, HEALTHY, UNKNOWN, CauseClass, Permanence, Role, class_of, classes_seen_as
from holdfast.diagnose.taxonomy.page import page
from holdfast.diagnose.taxonomy.xids import XIDS, xid_of
from holdfast.domain.diagnosis import Cause

PAGE = Path(__file__).resolve().parents[2] / "docs" / "causes.md"
TRY_AGAIN = re.compile(r"\b(?:try|start|queue)s? (?:it )?(?:again|once|elsewhere)|once more|wait and|\bstart elsewhere", re.IGNORECASE)
ON_A_CONDITION = re.compile(r"\b[Ii]f\b|\bonce\b|once more|[Tt]he same again|Leave (?:this|the) node out")
OF_SIZES_CODES_AND_FILES = {  # What permanence.py makes of what a line says.
    "gpu_oom": {Permanence.UNCLEAR}, "remote_service_error": {Permanence.PERMANENT}, "file_not_found": {Permanence.UNCLEAR},
    "time_limit": {Permanence.TRANSIENT},
}  # fmt: skip


def may_be(one: CauseClass) -> set[Permanence]:
    """How permanent a failure of this class may be called. A transient one is called unclear where a permanent cause is not unlikely."""
    said = {signature.permanence for signature in SIGNATURES if signature.cause == one.name and signature.permanence is not None}
    said |= {xid.permanence for xid in XIDS.values() if xid.cause == one.name and xid.role is Role.ROOT}
    said |= {one.permanence} | OF_SIZES_CODES_AND_FILES.get(one.name, set())
    return said | {Permanence.UNCLEAR} if Permanence.TRANSIENT in said else said


def test_the_page_is_what_the_taxonomy_says() -> None:
    assert PAGE.read_text() == page(), "docs/causes.md is old: the docstring of taxonomy/page.py says how to write it anew"


def test_the_core_and_the_taxonomy_name_the_same_failures() -> None:
    assert not [cause for cause in Cause if not classes_seen_as(cause)], "the core names what no class stands behind"
    assert {one.name for one in CLASSES.values() if not one.seen_as} == {HEALTHY, UNKNOWN}, "a class that the core has no name for"


def test_look_alikes_are_classes() -> None:
    assert not [(one.name, other) for one in CLASSES.values() for other in one.look_alikes if other not in CLASSES]
    assert not [one.name for one in CLASSES.values() if one.name in one.look_alikes]


def test_every_class_says_what_to_do_in_whole_sentences() -> None:
    assert not [one.name for one in CLASSES.values() if not (one.action.endswith((".", ")")) and one.definition.endswith(".") and len(one.page) > 20)]


@pytest.mark.parametrize("one", CLASSES.values(), ids=lambda one: one.name)
def test_advice_and_permanence_never_contradict_each_other(one: CauseClass) -> None:
    assert set(one.otherwise) <= may_be(one) - {one.permanence}, "advice that is never given"
    for permanence in may_be(one):
        advice = one.advice(permanence)
        match permanence:
            case Permanence.PERMANENT:
                assert not TRY_AGAIN.search(advice), f"{one.name} cannot pass: {advice}"
            case Permanence.TRANSIENT:
                assert TRY_AGAIN.search(advice) or "again" in advice, f"{one.name} passes, and nothing says to go on: {advice}"
            case Permanence.UNCLEAR:
                assert not TRY_AGAIN.search(advice) or ON_A_CONDITION.search(advice), f"{one.name} may not pass, and this does not ask: {advice}"


def test_what_nobody_has_heard_of_is_unknown() -> None:
    assert class_of("no_such_class").name == UNKNOWN
    assert class_of(HEALTHY).name == HEALTHY


def test_xids_speak_for_classes() -> None:
    assert not [one.code for one in XIDS.values() if one.cause not in CLASSES]
    assert xid_of(79).cause == "gpu_fell_off_bus"
    assert xid_of(45).role is Role.ECHO, "a clean-up after another error"
    assert xid_of(63).role is Role.NOTE, "a remap that worked is no failure"
    assert xid_of(9999).cause == "gpu_xid_other"
