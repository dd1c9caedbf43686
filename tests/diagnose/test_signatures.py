"""Every signature finds its own example, cites who prints it, and means a class that exists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.reading import read
from holdfast.diagnose.readings import readings
from holdfast.diagnose.signatures import INDEX, SIGNATURES, Index, Signature, fires, readable
from holdfast.diagnose.signatures.signature import said
from holdfast.diagnose.taxonomy import CLASSES


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda one: one.name)
def test_a_signature_finds_its_example(signature: Signature) -> None:
    digest = read([("a.log", [signature.example.encode()])])
    assert signature.name in {one.signature for one in readings(digest, index=Index((signature,)))}


def test_signatures_have_names_of_their_own_and_sources() -> None:
    assert len({one.name for one in SIGNATURES}) == len(SIGNATURES)
    assert not [one.name for one in SIGNATURES if len(one.source) < 10]
    assert not [one.name for one in SIGNATURES if one.cause not in CLASSES]
    assert not [one.name for one in SIGNATURES if not (one.says or one.error or one.form)]


def test_every_class_that_is_a_failure_has_a_signature() -> None:
    assert set(CLASSES) - {one.cause for one in SIGNATURES} == {"gpu_xid_other"}, "which is read by number"


def test_a_gap_in_a_phrase_spans_other_words_but_not_a_whole_log() -> None:
    assert said(("tried … GiB",), "it tried to allocate 2 gib")
    assert not said(("tried … GiB",), "it tried" + " " * 1000 + "gib")
    assert not said(("GiB … tried",), "it tried to allocate 2 gib")
    assert said(("a … c",), "a b a " + " " * 500 + "a c")


def test_a_dot_in_a_phrase_is_a_part_of_one_word() -> None:
    assert said(("named '·.·'",), "no module named 'a.b'")
    assert not said(("named '·.·'",), "no module named 'a'. install 'b'")


@given(st.lists(st.sampled_from([one.example for one in SIGNATURES] + ["step 4 loss: nan", "all is well"]), min_size=1, max_size=3))
def test_the_index_loses_no_signature(texts: list[str]) -> None:
    for event in read([("a.log", ["\n".join(texts).encode()])]).events:
        on = readable(event, running=True)
        assert [one for one in SIGNATURES if fires(one, on)] == [one for one in INDEX.possible(on) if fires(one, on)]
