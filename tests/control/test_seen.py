"""What was seen last of a job outlives its control."""

from __future__ import annotations

from pathlib import Path

from holdfast.control.seen import Seen, keep, last_seen


def test_the_newest_look_is_what_is_found(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    assert last_seen(path) is None
    keep(path, Seen(at=1_700_000_000.123456, step=10**12, generation=12345))
    keep(path, Seen(at=1_700_000_001.0, step=-1, generation=1))
    assert last_seen(path) == Seen(at=1_700_000_001.0, step=-1, generation=1), "nothing is left of a longer record"


def test_half_a_record_and_a_place_that_takes_none_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_bytes(b'{"at": 17')
    assert last_seen(tmp_path / "seen.json") is None
    keep(tmp_path / "absent" / "seen.json", Seen(at=1.0, step=1, generation=1))
