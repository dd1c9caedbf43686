"""What the text model is trained on and judged by: made logs say what they should, caused ones are really caused, and a worse model is not written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from holdfast.diagnose.taxonomy import CLASSES
from holdfast.diagnose.text_model import stored
from holdfast.diagnose.text_model.tokens import hashed

_BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_BENCHMARKS))


def test_every_class_has_messages_in_many_words() -> None:
    from incidents.written import messages

    counted = Counter(one.cause for one in messages())

    assert set(counted) == set(CLASSES)
    assert min(counted.values()) >= 10
    assert len({one.group for one in messages()}) == sum(counted.values())


def test_made_logs_repeat_under_the_same_seed_and_have_no_blank_left() -> None:
    from incidents.blanks import sections
    from incidents.written import written

    ours = {"gpu", "rank", "path", "pt", "n", "small", "big", "mib", "gib", "hex", "pid", "ip", "port", "job", "shape", "step", "loss", *sections("names")}
    made = list(written(7, 1))

    assert made == list(written(7, 1))
    for one in made:
        for _, text in one.files:
            left = set(re.findall(r"\{(\w+)\}", text)) & ours
            assert not left, f"{one.name}: {left}"


def test_a_cascade_keeps_a_trace_of_its_cause_and_repeats() -> None:
    from incidents.cascades import cascades

    made = list(cascades(3, 6))

    assert made == list(cascades(3, 6))
    for one in made:
        assert 0 <= one.rank < one.ranks
        assert set(one.causes) <= set(CLASSES)
        assert any(text.strip() for _, text in one.files)
    assert len({one.ranks for one in made}) > 2


def test_an_incident_is_really_caused_and_its_truth_kept(tmp_path: Path) -> None:
    command = [sys.executable, str(_BENCHMARKS / "incidents" / "cause.py"), "--out", str(tmp_path / "out"), "--only", "crash-bash"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    truth = json.loads((tmp_path / "out" / "crash-bash" / "truth.json").read_text())

    assert truth["cause"] == "segfault"
    assert truth["exit_codes"] == {"0": 139}
    assert "Segmentation fault" in (tmp_path / "out" / "crash-bash" / "job.log").read_text()


def test_a_model_that_is_worse_on_what_was_kept_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = loaded_training()
    monkeypatch.setattr(training, "MODEL", tmp_path / "model.npz")
    kept = [training.example("a", "a", "disk_full", [("a.log", b"OSError: no space left on device\n")])]
    kept += [training.example("b", "b", "unknown", [("b.log", b"hello\n")])]

    training.replaced(of_weight(6.0), kept)
    good = (tmp_path / "model.npz").read_bytes()
    with pytest.raises(SystemExit, match=r"Not written.*disk_full: a"):
        training.replaced(of_weight(-6.0), kept)

    assert (tmp_path / "model.npz").read_bytes() == good


def loaded_training() -> ModuleType:
    import train_text_model

    return train_text_model


def of_weight(weight: float) -> dict[str, np.ndarray]:
    return stored(
        classes=("disk_full", "unknown"), hashes=np.array([hashed("space")], dtype=np.uint32), rarity=np.array([1.0]), weights=np.array([[weight, -weight]]),
        bias=np.array([-1.0, 1.0]), temperature=1.0, made="2026-01-01", material="",
    )  # fmt: skip
