"""The text model: probabilities that can be relied on, from arrays that hold nothing but numbers and names."""

from __future__ import annotations

import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.reading import read
from holdfast.diagnose.taxonomy import CLASSES
from holdfast.diagnose.text_model import TextModel, UnfitModel, features, stored
from holdfast.diagnose.text_model.tokens import hashed, words
from holdfast.domain.log_event import LogDigest

_NOTHING = LogDigest(paths=(), lines=0, size_bytes=0, events=(), tail=(), progress=())
_CLEAR = {
    "gpu_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free.",
    "import_missing": "ModuleNotFoundError: No module named 'einops'",
    "disk_full": "OSError: [Errno 28] No space left on device: '/scratch/run/step_900.pt'",
    "port_in_use": "OSError: [Errno 98] Address already in use",
    "time_limit": "slurmstepd: error: *** JOB 71 ON n3 CANCELLED AT 2026-03-04T05:06:07 DUE TO TIME LIMIT ***",
    "gpu_fell_off_bus": "[77.1] NVRM: Xid (PCI:0000:41:00): 79, pid=81, name=python, GPU has fallen off the bus.",
}


def digest(text: str) -> LogDigest:
    return read([("job.log", [text.encode()])])


def small_model(**changed: object) -> dict[str, np.ndarray]:
    arrays = stored(
        classes=("disk_full", "unknown"), hashes=np.array([hashed("space"), hashed("left")], dtype=np.uint32), rarity=np.array([1.0, 1.0]),
        weights=np.array([[4.0, -4.0], [2.0, -2.0]]), bias=np.array([-1.0, 1.0]), temperature=1.0, made="2026-01-01", material="0" * 64,
    )  # fmt: skip
    return {**arrays, **{name: np.array(value) for name, value in changed.items()}}


@pytest.mark.parametrize("cause", sorted(_CLEAR))
def test_a_clear_message_gets_its_class(cause: str) -> None:
    said = shipped_text_model().probabilities(digest(_CLEAR[cause] + "\n"))

    assert max(said, key=said.__getitem__) == cause


def test_it_knows_exactly_the_classes_of_the_taxonomy() -> None:
    assert set(shipped_text_model().classes) == set(CLASSES)


def test_every_class_can_be_its_answer() -> None:
    """Each has a word whose weight for it is larger than for any other class."""
    model = shipped_text_model()
    strongest = (model.weights.astype(np.float32) * model.scale).argmax(axis=1)

    assert set(strongest.tolist()) == set(range(len(model.classes)))


def test_an_empty_log_is_mostly_unknown() -> None:
    for empty in (_NOTHING, digest("")):
        said = shipped_text_model().probabilities(empty)

        assert max(said, key=said.__getitem__) == "unknown"


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=400))
def test_probabilities_of_any_text_are_shares_of_one_whole_and_repeat(text: str) -> None:
    model, seen = shipped_text_model(), digest(text)
    said = model.probabilities(seen)

    assert abs(sum(said.values()) - 1) < 1e-9
    assert all(0 <= share <= 1 for share in said.values())
    assert model.probabilities(seen) == said


def test_it_says_which_words_spoke_for_an_answer() -> None:
    spoken = shipped_text_model().words_for(digest("OSError: [Errno 28] No space left on device\n"), "disk_full")

    assert spoken[0].weight > 0
    assert any("space" in word.text for word in spoken)
    assert shipped_text_model().words_for(_NOTHING, "gpu_ecc", at_most=0) == ()


def test_numbers_paths_and_ranks_change_nothing_but_codes_do() -> None:
    assert list(words("rank 3: read /data/anna/part-7.bin at 0x7f12 failed")) == list(words("rank 61: read /mnt/bob/part-123.bin at 0xdead99 failed"))
    assert list(words("Errno 28")) != list(words("Errno 13"))
    assert "memory" in set(words("OutOfMemoryError"))


def test_the_same_error_on_other_ranks_counts_once() -> None:
    alone = features(digest("[rank0]: ValueError: bad batch\n"))
    many = features(digest("".join(f"[rank{rank}]: ValueError: bad batch\n" for rank in range(8))))

    assert many["valueerror"] <= alone["valueerror"] * 2


def test_the_shipped_file_is_small_and_holds_no_objects() -> None:
    file = resources.files("holdfast.diagnose.text_model") / "model.npz"
    with resources.as_file(file) as path:
        assert path.stat().st_size < 1_000_000
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as arrays:
            assert all(name.endswith(".npy") for name in archive.namelist())
            assert all(arrays[name].dtype.kind in "iufU" for name in arrays.files)


def test_what_is_stored_is_what_is_loaded(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "model.npz", **small_model())
    with np.load(tmp_path / "model.npz", allow_pickle=False) as arrays:
        model = TextModel.load({name: arrays[name] for name in arrays.files})
    said = model.probabilities(digest("OSError: no space left\n"))

    assert model.classes == ("disk_full", "unknown")
    assert model.made == "2026-01-01"
    assert said["disk_full"] > 0.9


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"version": 999}, "of version 999"),
        ({"weights": np.zeros((3, 2), np.int8)}, "shape"),
        ({"bias": np.zeros(5)}, "shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_a_reason(changed: dict[str, object], expected: str) -> None:
    with pytest.raises(UnfitModel, match=expected):
        TextModel.load(small_model(**changed))


def test_arrays_that_are_missing_are_named() -> None:
    arrays = small_model()
    del arrays["scale"]

    with pytest.raises(UnfitModel, match="lacks scale"):
        TextModel.load(arrays)


def test_a_model_without_any_word_still_answers() -> None:
    arrays = stored(
        classes=("a", "b"), hashes=np.empty(0, np.uint32), rarity=np.empty(0), weights=np.empty((0, 2)), bias=np.zeros(2), temperature=1.0, made="", material=""
    )

    assert TextModel.load(arrays).probabilities(digest("anything at all\n")) == {"a": 0.5, "b": 0.5}
