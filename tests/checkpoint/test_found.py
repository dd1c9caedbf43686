"""What counts as a checkpoint and what stays; that what comes out of one is what went in; and that damage is always seen, and told with what to do."""

from __future__ import annotations

import copy
import json
import math
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint.disks import RANKS, QuickDisk, save_step
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import chunks
from holdfast.checkpoint.chunks import Store, cut
from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.digest import best_algorithm, digest_of
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.document import from_document, to_document
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import CheckpointFound, list_complete, newest_complete, verify
from holdfast.checkpoint.layout import FORMAT, MANIFEST, Manifest, decode_manifest, encode, receipt_file
from holdfast.checkpoint.read import note_of, restore
from holdfast.checkpoint.remove import Retention, kept, prune
from holdfast.checkpoint.state import get_tensors, get_value, put_value
from holdfast.checkpoint.write import save

MiB = 1 << 20
EVER = Retention(last=100, restored=(1, 0))


def complete(checkpoints: Path, step: int, generation: int = 1) -> Path:
    for rank in range(RANKS):
        save_step(QuickDisk(), checkpoints, step, rank, generation=generation, retention=Retention(last=100, restored=(generation, 0)))
    return checkpoints / f"step-{step:08d}.g{generation}"


def names(checkpoints: Path) -> list[str]:
    return [found.name for found in list_complete(checkpoints)]


# Which one is there, and which is the newest.


def test_there_is_nothing_in_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "missing") is None


def test_a_checkpoint_that_one_rank_has_not_written_does_not_exist(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    save_step(QuickDisk(), tmp_path, 20, 0)
    assert names(tmp_path) == ["step-00000010.g1"]


def test_what_was_written_after_a_rollback_outranks_what_was_left_behind(tmp_path: Path) -> None:
    complete(tmp_path, 30, generation=1)
    complete(tmp_path, 20, generation=2)
    assert names(tmp_path) == ["step-00000020.g2", "step-00000030.g1"]


def test_directories_that_are_not_ours_and_manifests_of_another_step_are_passed_over(tmp_path: Path) -> None:
    path = complete(tmp_path, 10)
    (tmp_path / "step-10").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    path.rename(tmp_path / "step-00000011.g1")
    assert names(tmp_path) == []


def test_a_torn_checkpoint_is_called_torn(tmp_path: Path) -> None:
    save_step(QuickDisk(), tmp_path, 10, 0)
    with pytest.raises(CheckpointCorrupt, match=r"no manifest.*There is no older one"):
        verify(tmp_path / "step-00000010.g1")


def test_control_can_look_for_checkpoints_without_torch_or_numpy(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    code = (
        "import sys, pathlib, holdfast.checkpoint.found as found\n"
        "one = found.newest_complete(pathlib.Path(sys.argv[1])); found.verify(one.path)\n"
        "assert not {'torch', 'numpy', 'msgspec'} & set(sys.modules); print(one.name)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "step-00000010.g1\n", done.stderr


# Which ones stay.


def test_pruning_keeps_the_newest_and_the_line_of_the_one_restored(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        complete(tmp_path, step, generation=1)
    complete(tmp_path, 30, generation=2)  # Rolled back to step 20, then saved again.
    retention = Retention(last=2, restored=(1, 20))
    assert prune(QuickDisk(), tmp_path, retention, generation=2, now=0.0) == ("step-00000010.g1",)
    assert names(tmp_path) == ["step-00000030.g2", "step-00000040.g1", "step-00000030.g1", "step-00000020.g1"]
    complete(tmp_path, 40, generation=2)
    prune(QuickDisk(), tmp_path, retention, generation=2, now=0.0)
    assert names(tmp_path) == ["step-00000040.g2", "step-00000030.g2"]
    for name in names(tmp_path):
        verify(tmp_path / name)


def checkpoint(step: int, *, at: float, numbers: dict[str, float] | None = None) -> CheckpointFound:
    manifest = Manifest(step=step, generation=1, world_size=1, algorithm="none", states=(), chunks=(), at=at, numbers=numbers)
    return CheckpointFound(path=Path(manifest.name), manifest=manifest)


@st.composite
def lines(draw: st.DrawFn) -> list[CheckpointFound]:
    """A run's checkpoints, newest first, some of them with a loss."""
    steps = sorted(draw(st.sets(st.integers(0, 200), max_size=30)), reverse=True)
    losses = draw(st.lists(st.none() | st.integers(0, 9), min_size=len(steps), max_size=len(steps)))
    return [checkpoint(step, at=float(step), numbers=None if loss is None else {"loss": float(loss)}) for step, loss in zip(steps, losses, strict=True)]


@given(
    line=lines(), last=st.integers(1, 6), every=st.integers(0, 50), best=st.integers(0, 4), metric=st.sampled_from(["loss", "-loss"]), older=st.integers(0, 99),
)  # fmt: skip
def test_every_rule_keeps_what_it_promises_and_nothing_is_kept_without_a_rule(
    line: list[CheckpointFound], last: int, every: int, best: int, metric: str, older: int
) -> None:
    rules = Retention(last=last, every=every, best=best, metric=metric, older_s=float(older))
    stay = kept(line, rules, now=200.0)
    newest = {one.name for one in line[: max(2, last)]}
    divisible = {one.name for one in line if every and one.step % every == 0}
    sign = -1 if metric == "-loss" else 1
    judged = sorted((one for one in line if one.manifest.numbers), key=lambda one: (sign * (one.manifest.numbers or {})["loss"], -one.step))
    assert newest | divisible | {one.name for one in judged[:best]} <= stay
    assert stay == newest.union(divisible, (one.name for one in judged[:best]), kept(line, Retention(last=2, older_s=float(older)), now=200.0))


@given(older_s=st.floats(1.0, 1e6), share=st.floats(0.02, 0.25), began=st.floats(0.0, 2e9))
def test_once_a_run_is_old_enough_there_is_always_a_checkpoint_from_before_whatever_is_noticed_late(older_s: float, share: float, began: float) -> None:
    rules, interval, slack = Retention(last=2, older_s=older_s), share * older_s, 1e-6 * older_s + 1e-6
    line: list[CheckpointFound] = []
    for step in range(int(4 / share)):
        now = began + step * interval
        line.insert(0, checkpoint(step, at=now))
        stay = kept(line, rules, now=now)
        line = [one for one in line if one.name in stay]
        assert len(line) <= 7, "this rule is meant to keep few"
        for moment in (now, now + interval / 2, now + interval):
            if moment > began + 2 * older_s + slack:
                assert any(older_s - slack <= moment - one.manifest.at <= 2 * older_s + slack for one in line)


@given(every=st.integers(1, 20), looks=st.integers(1, 200), late=st.integers(1, 4))
def test_whenever_replicas_are_found_to_differ_there_is_a_checkpoint_from_when_they_did_not(every: int, looks: int, late: int) -> None:
    line: list[CheckpointFound] = []
    for step in range(1, 1000):
        compared = tuple(look * looks for look in range(max(0, step // looks - late), step // looks + 1))
        if step % every == 0:
            line.insert(0, checkpoint(step, at=0.0))
            stay = kept(line, Retention(last=2, compared=compared), now=0.0)
            line = [one for one in line if one.name in stay]
            assert len(line) <= 2 + len(compared)
        if compared[0] >= every:
            assert any(compared[0] - every < one.step <= compared[0] for one in line), (step, compared)


# How bytes are cut.


@given(sizes=st.lists(st.integers(0, 200) | st.integers(0, MiB) | st.integers(0, 100 * MiB) | st.sampled_from([256 << 10, 32 * MiB, 64 * MiB]), max_size=40))
def test_the_chunks_hold_every_byte_once_and_in_order_and_a_large_tensor_has_its_own(sizes: list[int]) -> None:
    done = [0] * len(sizes)
    for chunk in cut(sizes):
        assert 0 < sum(extent.size for extent in chunk) <= 32 * MiB
        assert all(a.tensor < b.tensor for a, b in pairwise(chunk))
        for extent in chunk:
            assert extent.start == done[extent.tensor]
            assert extent.size > 0
            done[extent.tensor] += extent.size
        large = [extent for extent in chunk if sizes[extent.tensor] >= 256 << 10]
        assert not large or len(chunk) == 1
    assert done == sizes


# What goes in comes out: the shape of a state.

scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**1000), 10**1000) | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
    | st.complex_numbers() | st.sampled_from([-0.0, math.nan, math.inf, -math.inf, "$", torch.bfloat16, torch.float8_e5m2, torch.bool])
    | st.sampled_from([torch.device("cpu"), torch.device("cuda:3"), torch.Size([2, 0, 3])])
)  # fmt: skip
keys: st.SearchStrategy[Any] = st.deferred(
    lambda: st.text(max_size=4) | st.just("$") | st.integers() | st.booleans() | st.floats(allow_nan=False) | st.tuples(keys, keys)
)


def _ordered(items: list[tuple[Any, Any]], versions: Any) -> OrderedDict[Any, Any]:
    ordered = OrderedDict(items)
    if versions is not None:
        ordered._metadata = versions  # type: ignore[attr-defined]
    return ordered


plain = st.recursive(
    scalars,
    lambda inside: st.one_of(
        st.lists(inside, max_size=4), st.lists(inside, max_size=4).map(tuple), st.sets(keys, max_size=4), st.dictionaries(keys, inside, max_size=4),
        st.dictionaries(st.text(max_size=4), inside, max_size=4), st.dictionaries(keys, st.integers(), max_size=4).map(Counter),
        st.builds(_ordered, st.lists(st.tuples(keys, inside), max_size=4), st.none() | st.dictionaries(st.text(max_size=4), inside, max_size=2)),
    ),
    max_leaves=20,
)  # fmt: skip


def alike(one: Any, other: Any) -> bool:
    """The same value of the same kind, to the sign of a zero; unlike with ==, true is not one, and what is not a number is like itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and math.copysign(1, one) == math.copysign(1, other))
    if isinstance(one, complex):
        return alike(one.real, other.real) and alike(one.imag, other.imag)
    if isinstance(one, dict):
        return alike([*one.items()], [*other.items()]) and alike(getattr(one, "_metadata", None), getattr(other, "_metadata", None))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, set):
        return one == other and sorted(map(repr, one)) == sorted(map(repr, other))
    return bool(one == other)


@settings(max_examples=200)
@given(value=plain)
def test_a_document_gives_back_the_same_value_of_the_same_kind(value: Any) -> None:
    tensors: list[Any] = []
    document = json.loads(json.dumps(to_document(value, tensors)))
    assert alike(from_document(document, tensors), value)


# What goes in comes out: tensors.


def round_trip(directory: Path, value: Any, disk: Disk | None = None) -> Any:
    home = "step-00000001.g1"
    (directory / home / "chunks").mkdir(parents=True, exist_ok=True)
    store = Store(disk or QuickDisk(), directory, home, rank=0, known={}, algorithm=best_algorithm())
    note = json.loads(json.dumps(put_value(store, value)))
    return get_value(directory, {chunk.digest: chunk for chunk in store.chunks}, store.algorithm, note)


def octets(tensor: torch.Tensor) -> bytes:
    """The elements in order, however they lie in memory."""
    return bytes(tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy())


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert octets(one) == octets(other)


DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back_to_the_last_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    numbers = torch.tensor([*random.Random(1).randbytes(3 * 16 * 5)], dtype=torch.uint8)
    tensor = (numbers > 127) if dtype is torch.bool else numbers.view(dtype)
    shaped = tensor.reshape(-1, 3).t() if tensor.numel() % 3 == 0 else tensor
    value = [tensor, shaped, tensor[:0], tensor[:0].reshape(0, 5), tensor[0], tensor[1:]]
    for before, after in zip(value, round_trip(tmp_path, value), strict=True):
        assert_same(before, after)
        if before.is_contiguous() or before is shaped:
            assert before.stride() == after.stride()


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor that lies in memory in some way: permuted, sliced, expanded, shifted."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = torch.arange(math.prod(shape) + 3, dtype=torch.int16)[3:].reshape(shape)
    for _ in range(draw(st.integers(0, 3))):
        if tensor.dim():
            tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
            dim = draw(st.integers(0, tensor.dim() - 1))
            tensor = tensor.narrow(dim, *((0, tensor.shape[dim]) if draw(st.booleans()) else (0, tensor.shape[dim] // 2)))
            tensor = tensor[(slice(None),) * dim + (slice(None, None, draw(st.integers(1, 2))),)]
            tensor = tensor.unsqueeze(dim).expand([*tensor.shape[:dim], draw(st.integers(1, 2)), *tensor.shape[dim:]])
    return tensor


@settings(max_examples=200)
@given(tensor=views())
def test_a_tensor_comes_back_the_same_however_it_lay_in_memory(tmp_path_factory: pytest.TempPathFactory, tensor: torch.Tensor) -> None:
    (after,) = round_trip(tmp_path_factory.getbasetemp() / "views", [tensor])
    assert_same(tensor, after)


def test_the_order_in_memory_survives_for_tensors_without_gaps(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    volumes = torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    value = [images, volumes, images.permute(3, 0, 2, 1), torch.randn(4, 6).t(), torch.randn(2, 4, dtype=torch.complex64).t().conj()]
    for before, after in zip(value, round_trip(tmp_path, value), strict=True):
        assert_same(before, after)
        assert before.stride() == after.stride()


def _complex() -> torch.Tensor:
    return torch.randn(4, 6, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: _complex().conj(), lambda: _complex().transpose(0, 2).conj(), lambda: _complex()[::2].conj(), lambda: _complex().conj().imag,
        lambda: _complex().transpose(0, 2)[::2].conj(), lambda: _complex().transpose(0, 2).conj().imag,
    ],
    ids=["conjugate", "turned", "sliced", "negative", "turned and sliced", "negative and turned"],
)  # fmt: skip
def test_what_is_stored_conjugated_or_negated_comes_back_as_it_is_seen(tmp_path: Path, make: Callable[[], torch.Tensor]) -> None:
    assert_same(make(), round_trip(tmp_path, [make()])[0])


def test_a_tensor_that_stands_in_two_places_is_stored_once_and_comes_back_in_both(tmp_path: Path) -> None:
    tied = torch.randn(300, 300)
    first, second = round_trip(tmp_path, {"embedding": tied, "head": tied}).values()
    assert_same(first, tied)
    assert_same(second, tied)
    assert sum(1 for _ in tmp_path.rglob("chunks/*")) == 1


def test_a_tensor_of_several_chunks_comes_back_from_a_real_disk(tmp_path: Path) -> None:
    large = torch.randint(-(2**62), 2**62, (4 * MiB + 4321,), generator=torch.Generator().manual_seed(1)).view(torch.int8)[3:]
    alike_in_part = torch.zeros(70 * MiB // 8 + 1, dtype=torch.int64)
    for before, after in zip([large, alike_in_part], round_trip(tmp_path, [large, alike_in_part], Disk()), strict=True):
        assert torch.equal(before, after)
    assert sum(path.stat().st_size for path in tmp_path.rglob("chunks/*")) < large.nbytes + 33 * MiB + alike_in_part.nbytes % (32 * MiB)


# Damage.


@pytest.fixture
def read_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same small checkpoint is read thousands of times, and starting threads would be most of it."""
    monkeypatch.setattr(chunks, "_READERS", 1)


def make_pieces(rank: int) -> dict[str, Any]:
    """What a small script has: one tensor is large enough for chunks of its own, the others share one."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 4))
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def train(pieces: dict[str, Any]) -> None:
    pieces["optimizer"].zero_grad()
    pieces["model"](torch.randn(8, 256)).square().mean().backward()
    pieces["optimizer"].step()


def state(pieces: dict[str, Any]) -> dict[str, bytes]:
    """Every tensor in these pieces."""
    model = {f"model {name}": octets(tensor) for name, tensor in pieces["model"].state_dict().items()}
    momenta = pieces["optimizer"].state_dict()["state"]
    return model | {f"optimizer {name}": octets(momentum["momentum_buffer"].detach()) for name, momentum in momenta.items()}


class Saved:
    """Checkpoints of steps 10 and 20 by two ranks, and what step 20 must give back."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ranks = [make_pieces(rank) for rank in range(RANKS)]
        for step in (10, 20):
            for rank, pieces in enumerate(ranks):
                train(pieces)
                shard = Shard(step=step, generation=1, world_size=RANKS, rank=rank)
                save(root, shard, pieces, {"epoch": step}, EVER, QuickDisk())
        self.expected = [state(pieces) for pieces in ranks]
        self.others = [make_pieces(rank) for rank in range(RANKS)]
        for pieces in self.others:
            train(pieces)

    def copied_to(self, root: Path) -> Saved:
        copied = copy.copy(self)
        copied.root = shutil.copytree(self.root, root)
        return copied

    @property
    def path(self) -> Path:
        return self.root / "step-00000020.g1"

    @property
    def older(self) -> Path:
        return self.root / "step-00000010.g1"

    def chunks(self, rank: int, kind: str) -> list[Path]:
        """The chunk that holds a rank's note, the one its small tensors share, or those of its large ones."""
        found = CheckpointFound(path=self.path, manifest=verify(self.path))
        if kind == "note":
            wanted = {found.manifest.states[rank]}
        else:
            held = {digest for tensor in note_of(found, rank)["own"]["tensors"] for digest, _, _ in tensor["at"]}
            wanted = {chunk.digest for chunk in found.manifest.chunks if chunk.digest in held and (chunk.size_bytes >= 256 << 10) == (kind == "large")}
        return [self.root / chunk.path for chunk in found.manifest.chunks if chunk.digest in wanted]

    def restores(self, rank: int) -> bool:
        """Whether this rank gets everything back, to the last bit; otherwise it was refused with the advice to take the older one."""
        pieces = self.others[rank]
        try:
            restored = restore(self.path, pieces, rank=rank, world_size=RANKS)
        except CheckpointCorrupt as corrupt:
            return "Restore step-00000010.g1 instead" not in str(corrupt)
        assert state(pieces) == self.expected[rank]
        assert restored.progress == {"epoch": 20}
        return True

    def is_refused(self) -> bool:
        """By whoever reads all of it, and by rank 1, which needs what is damaged here."""
        with pytest.raises(CheckpointCorrupt, match=r"Restore step-00000010\.g1 instead"):
            verify(self.path)
        return not self.restores(1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("original"))


@pytest.fixture
def saved(original: Saved, tmp_path: Path, read_without_threads: None) -> Saved:
    saved = original.copied_to(tmp_path / "checkpoints")
    assert all(saved.restores(rank) for rank in range(RANKS))
    return saved


def damages(file: Path, *, most: int) -> Iterator[str]:
    """Damage a file in one way after the other, and mend it at the end: a bit anywhere, a byte less, a byte more, all of it gone."""
    sound = file.read_bytes()
    positions = range(len(sound)) if len(sound) <= most else sorted(random.Random(1).sample(range(len(sound)), most))
    for position in positions:
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        yield f"byte {position} of {file}"
    for content, how in ((sound[:-1], "a byte less in"), (sound + b"\0", "a byte more in"), (sound[:-1] + b"\0\0", "another end of"), (b"", "nothing in")):
        file.write_bytes(content)
        yield f"{how} {file}"
    file.unlink()
    yield f"no {file}"
    file.write_bytes(sound)


@pytest.mark.parametrize("kind", ["note", "small", "large"])
def test_a_damaged_chunk_is_always_refused_and_nothing_of_it_is_loaded(saved: Saved, kind: str) -> None:
    done = [damage for damage in damages(saved.chunks(1, kind)[0], most=200) if saved.is_refused()]
    assert len(done) == 205
    verify(saved.older)
    assert all(saved.restores(rank) for rank in range(RANKS)), "it is mended now"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["note", "small"])
def test_every_damaged_byte_of_a_chunk_is_refused(saved: Saved, kind: str) -> None:
    for damage in damages(saved.chunks(1, kind)[0], most=100_000):
        assert saved.is_refused(), damage


def test_a_rank_that_needs_nothing_of_what_is_damaged_gets_all_of_its_own(saved: Saved) -> None:
    file = saved.chunks(1, "small")[0]
    file.write_bytes(bytes(file.stat().st_size))
    assert saved.restores(0)
    assert saved.is_refused()


def test_two_chunks_in_each_others_place_are_refused(saved: Saved) -> None:
    one, other = saved.chunks(1, "large")
    assert one.stat().st_size == other.stat().st_size
    between = one.with_name("between")
    for old, new in ((one, between), (other, one), (between, other)):
        old.rename(new)
    assert saved.is_refused()


def test_what_is_said_about_a_damaged_chunk(saved: Saved) -> None:
    file = saved.chunks(1, "small")[0]
    sound, name = file.read_bytes(), file.name
    file.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    with pytest.raises(CheckpointCorrupt, match=rf"chunk \S+{name} is damaged: expected xxh3_128 {name}, saw \w+. Restore step-00000010.g1 instead"):
        verify(saved.path)
    file.write_bytes(sound[:-1])
    with pytest.raises(CheckpointCorrupt, match=f"{name} is damaged: expected {len(sound)} bytes, saw {len(sound) - 1}"):
        verify(saved.path)
    file.write_bytes(sound + b" ")
    with pytest.raises(CheckpointCorrupt, match=f"{name} is damaged: expected {len(sound)} bytes, saw more"):
        verify(saved.path)
    file.unlink()
    with pytest.raises(CheckpointCorrupt, match=f"{name} cannot be read: .*No such file"):
        verify(saved.path)
    with pytest.raises(CheckpointCorrupt, match=f"{name} is damaged: expected {len(sound)} bytes, none is there"):
        restore(saved.path, saved.others[0], rank=0, world_size=RANKS)


def test_a_damaged_manifest_is_always_refused_and_the_older_checkpoint_is_the_newest_complete_one(saved: Saved) -> None:
    for number, damage in enumerate(damages(saved.path / MANIFEST, most=10_000)):
        with pytest.raises(CheckpointCorrupt, match=r"Restore step-00000010\.g1 instead"):  # And never as one of another version.
            verify(saved.path) if number % 4 else restore(saved.path, saved.others[0], rank=0, world_size=RANKS)
        newest = newest_complete(saved.path.parent)
        assert newest is not None, damage
        assert newest.path == saved.older, damage
    assert all(saved.restores(rank) for rank in range(RANKS)), "it is mended now"


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_damaged_receipt_means_nothing_once_the_manifest_is_there(saved: Saved, rank: int) -> None:
    for damage in damages(saved.path / receipt_file(rank), most=10):
        verify(saved.path)
        assert saved.restores(rank), damage


def test_a_receipt_that_is_damaged_before_the_checkpoint_is_complete_leads_to_no_manifest(tmp_path: Path) -> None:
    before = tmp_path / "before"
    complete(before, 10)
    save_step(QuickDisk(), before, 20, 0)
    for number, damage in enumerate(damages(before / "step-00000020.g1" / receipt_file(0), most=100)):
        checkpoints = tmp_path / f"{number}"
        shutil.copytree(before, checkpoints)
        assert save_step(QuickDisk(), checkpoints, 20, 1) is None, damage
        assert names(checkpoints) == ["step-00000010.g1"], damage
    assert save_step(QuickDisk(), before, 20, 1) is not None


# Manifests that nobody of ours wrote, with the right checksum.


def sealed(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, sort_keys=True, indent=1)
    return f'{{"checksum": "{digest_of(body.encode(), "xxh3_128")}",\n"record": {body}}}\n'.encode()


def test_a_manifest_of_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    path = complete(tmp_path, 20)
    record = json.loads((path / MANIFEST).read_bytes())["record"]
    assert sealed(record) == (path / MANIFEST).read_bytes(), "this test writes manifests as they are written"
    (path / MANIFEST).write_bytes(sealed({**record, "format": FORMAT + 1}))
    with pytest.raises(CheckpointMismatch, match=rf"format {FORMAT + 1} and this Holdfast reads format {FORMAT}: .*Restore step-00000010.g1 instead"):
        verify(path)
    assert names(tmp_path) == ["step-00000010.g1"]


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"null", b'{"record": 1}', b'{"format": 1}', b'{"record": {"format": 2}}', b"\xff\xfe"])
def test_what_is_no_manifest_is_passed_over(tmp_path: Path, broken: bytes) -> None:
    (complete(tmp_path, 10) / MANIFEST).write_bytes(broken)
    assert names(tmp_path) == []


_FOREIGN = [
    {"home": "../elsewhere"}, {"home": "/etc"}, {"home": ".."}, {"home": ""}, {"home": "step-00000010.g1/.."}, {"home": "step-00000010.g1\n"}, {"home": None},
    {"digest": "../../../etc/passwd"}, {"digest": "/etc/passwd"}, {"digest": "a" * 31 + "/"}, {"digest": "A" * 32}, {"digest": ""}, {"digest": 7},
    {"size_bytes": -1}, {"size_bytes": True}, {"size_bytes": 1.0}, {"size_bytes": None},
]  # fmt: skip


@pytest.mark.parametrize("foreign", _FOREIGN, ids=str)
def test_a_manifest_that_names_what_no_checkpoint_has_is_refused_whatever_its_checksum_says(tmp_path: Path, foreign: dict[str, Any]) -> None:
    path = complete(tmp_path, 10)
    manifest = decode_manifest((path / MANIFEST).read_bytes())
    for position in range(len(manifest.chunks)):
        chunk = replace(manifest.chunks[position], **foreign)
        states = tuple(chunk.digest if one == manifest.chunks[position].digest else one for one in manifest.states)
        (path / MANIFEST).write_bytes(encode(replace(manifest, states=states, chunks=(*manifest.chunks[:position], chunk, *manifest.chunks[position + 1 :]))))
        with pytest.raises(CheckpointCorrupt, match="names or sizes that no checkpoint has"):
            verify(path)
        assert names(tmp_path) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"states": ["0" * 32, "1" * 32]}, {"chunks": 5}, {"chunks": [5]}, {"chunks": [["a", 1]]}, {"step": "10"}, {"step": -1}, {"world_size": True},
        {"more": 1}, {"states": [[], []]}, {"states": ["0" * 32]}, {"algorithm": "none"}, {"algorithm": None}, {"states": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_passed_over_whatever_its_checksum_says(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = complete(tmp_path, 10)
    (path / MANIFEST).write_bytes(sealed({**json.loads((path / MANIFEST).read_bytes())["record"], **fields}))
    assert names(tmp_path) == []
    with pytest.raises((CheckpointCorrupt, CheckpointMismatch)):
        verify(path)


def test_a_manifest_with_fewer_states_than_ranks_is_refused(tmp_path: Path) -> None:
    path = complete(tmp_path, 10)
    manifest = decode_manifest((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_bytes(encode(replace(manifest, states=manifest.states[:1])))
    with pytest.raises(CheckpointCorrupt):
        restore(path, {}, rank=1, world_size=RANKS)


def test_a_manifest_that_the_disk_cannot_read_is_passed_over(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    manifest = complete(tmp_path, 20) / MANIFEST
    manifest.unlink()
    manifest.mkdir()  # Stands for a bad block: the system answers with an error of its own when it is read.
    assert names(tmp_path) == ["step-00000010.g1"]


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (3 << 20) + 4096, (3 << 20) + 4097])
@pytest.mark.parametrize("begin", [0, 64])
@pytest.mark.parametrize("cached", [True, False])
def test_a_chunk_read_straight_from_the_device_is_the_same_wherever_it_lies_and_goes(tmp_path: Path, size: int, begin: int, cached: bool) -> None:
    content = random.Random(size).randbytes(size)
    store = Store(Disk(), tmp_path, "step-00000001.g1", rank=0, known={}, algorithm=best_algorithm())
    (tmp_path / "step-00000001.g1" / "chunks").mkdir(parents=True)
    chunk = store.put(content)
    with (tmp_path / chunk.path).open("rb") as file:
        if cached:
            file.read()
        else:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    place = memoryview(mmap.mmap(-1, begin + size))[begin:]
    chunks.read_chunk(tmp_path, chunk, store.algorithm, place, alone=True)
    assert place == content
    with (tmp_path / chunk.path).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointCorrupt, match="saw more"):
        chunks.read_chunk(tmp_path, chunk, store.algorithm, place, alone=True)


def test_what_was_on_a_gpu_comes_back_through_the_memory_of_the_threads_that_read_it(tmp_path: Path) -> None:
    """The way of a tensor to a GPU, with the CPU in the GPU's place: all but the copy itself is the same."""
    torch.manual_seed(0)
    large = torch.randn(3, 5 << 20)  # Several chunks.
    tensors = [
        large, torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last), torch.tensor(3.0), torch.empty(0, 3), torch.randn(7).bfloat16(),
        torch.randn(5, dtype=torch.complex64), torch.tensor([True, False]), large[:, ::2],
    ]  # fmt: skip
    store = Store(Disk(), tmp_path, "step-00000001.g1", rank=0, known={}, algorithm=best_algorithm())
    (tmp_path / "step-00000001.g1" / "chunks").mkdir(parents=True)
    note = put_value(store, tensors)
    known = {chunk.digest: chunk for chunk in store.chunks}
    for which in range(2):  # All of them from a GPU; and every other one, so that some share chunks with those that were not.
        kinds = [{**kind, **({"cuda": True} if which == 0 or number % 2 else {})} for number, kind in enumerate(note["tensors"])]
        found = get_tensors(tmp_path, known, store.algorithm, kinds, gpu=torch.device("cpu"))
        assert all(torch.equal(one, other) for one, other in zip(tensors, found, strict=True))
        assert found[1].stride() == tensors[1].stride()
