"""Foretelling: from the series jobs have kept to the node that is about to fail."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.foretelling import foretold
from holdfast.cli.learning_shown import report_json
from holdfast.control.history import LEVELS, History, Looked
from holdfast.domain.metric import Series
from holdfast.launch.layout import JobDirectory
from holdfast.learn.lessons import Lessons

NOW = 1_800_000_000.0 // LEVELS[-1][0] * LEVELS[-1][0]
ERRORS = "gpu_ecc_corrected_total"


@pytest.fixture
def kept(state: Path) -> Path:
    """Eight days of two nodes in rows of six hours: n1 corrected 600 errors on the last day, n2 always corrects four a day."""
    directory = JobDirectory(state / "jobs" / "job")
    directory.path.mkdir(parents=True)
    directory.journal.touch()
    span = LEVELS[-1][0]
    series = (Series(metric=ERRORS, node="n1", of="0"), Series(metric=ERRORS, node="n2", of="0"), Series(metric=ERRORS, of="*"))
    history = History(directory.series)
    history.write(Looked(int(NOW - 8 * 86400), series, np.zeros((3, 3), np.float32)))
    history.close()
    with sqlite3.connect(directory.series) as database:
        database.execute("DELETE FROM rows")
        for row in range(8 * 4):
            at = int(NOW - 8 * 86400 + row * span)
            grew = np.array([np.nan, 600 / 86400 if row >= 28 else 0.0, 4 / 86400, 1.0], np.float32)
            database.execute("INSERT INTO rows VALUES (?, ?, ?)", (len(LEVELS) - 1, at, np.tile(grew, (3, 1)).astype("<f4").tobytes()))
    return state


def test_a_node_whose_corrected_errors_rise_is_told_of_and_one_that_always_has_some_is_not(kept: Path) -> None:
    told = foretold(kept, NOW)
    assert [(node, one.alarm) for node, one in told] == [("n1", True), ("n2", False)]
    assert "600 corrected memory errors in a day (usual: 0)" in told[0][1].says
    body = report_json(Lessons((), (), (), (), NOW), told)
    assert body["foretold"][0]["node"] == "n1"


def test_where_nothing_was_kept_nothing_is_foretold(state: Path) -> None:
    assert foretold(state, NOW) == []
