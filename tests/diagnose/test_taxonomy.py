"""The taxonomy: one place, complete, and the documentation is made from it."""

from __future__ import annotations

from pathlib import Path

from holdfast.diagnose.taxonomy import CLASSES, HEALTHY, UNKNOWN, Role, class_of, classes_seen_as
from holdfast.diagnose.taxonomy.page import page
from holdfast.diagnose.taxonomy.xids import XIDS, xid_of
from holdfast.domain.diagnosis import Cause

PAGE = Path(__file__).resolve().parents[2] / "docs" / "causes.md"


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


def test_what_nobody_has_heard_of_is_unknown() -> None:
    assert class_of("no_such_class").name == UNKNOWN
    assert class_of(HEALTHY).name == HEALTHY


def test_xids_speak_for_classes() -> None:
    assert not [one.code for one in XIDS.values() if one.cause not in CLASSES]
    assert xid_of(79).cause == "gpu_fell_off_bus"
    assert xid_of(45).role is Role.ECHO, "a clean-up after another error"
    assert xid_of(63).role is Role.NOTE, "a remap that worked is no failure"
    assert xid_of(9999).cause == "gpu_xid_other"
