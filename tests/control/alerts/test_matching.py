"""Matchers: a label, an operator, a value."""

from __future__ import annotations

import pytest

from holdfast.control.alerts.matching import BadMatcher, matcher

LABELS = {"severity": "warning", "node": "gpu-7", "kind": "slow_rank"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("node=gpu-7", True), ('node = "gpu-7"', True), ("node=gpu", False), ("node!=gpu-7", False), ("node!=x", True),
        ("kind=~slow_.*", True), ("kind=~slow", False), ("kind!~data.*", True), ("kind!~slow.*", False),
        ("rank=", True), ("rank!=3", True), ("rank=~.+", False), ("severity>=warning", True), ("severity>warning", False), ("severity<=warning", True),
        ("severity<critical", True), ("severity>=critical", False), ("severity=warning", True),
    ],
)  # fmt: skip
def test_a_matcher_says_whether_labels_fit(text: str, matches: bool) -> None:
    assert matcher(text).matches(LABELS) is matches
    assert matcher(str(matcher(text))) == matcher(text), "it is written as it was read"


def test_without_a_severity_no_order_holds() -> None:
    assert not matcher("severity>=info").matches({})


@pytest.mark.parametrize("text", ["", "node", "=x", "node>3", "Node=x", "kind=~(", "severity=bad", "severity>=bad"])
def test_what_is_no_matcher_is_refused(text: str) -> None:
    with pytest.raises(BadMatcher):
        matcher(text)
