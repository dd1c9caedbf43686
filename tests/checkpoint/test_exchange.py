"""Checkpoints go out to torch, safetensors and DCP and come back the same to the last bit; what is broken or hostile is refused, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import pickle
import resource
import shutil
import signal
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.exchange import Exported, Format, Imported, export_checkpoint, import_checkpoint
from holdfast.checkpoint.found import CheckpointFound, list_complete, newest_complete, verify
from holdfast.checkpoint.state import put_value
from holdfast.errors import UserError

SOME_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


class Net(nn.Module):
    """A buffer of every dtype, a tensor of no dimension, an empty one, one that lies otherwise in memory, and a part that is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(300, 300).requires_grad_(False)
        self.layer = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        for dtype in SOME_DTYPES:
            self.register_buffer(f"in_{str(dtype).removeprefix('torch.')}", (torch.rand(3, 5) * 100).to(dtype))
        self.register_buffer("number", torch.rand(()).bfloat16())
        self.register_buffer("empty", torch.zeros(0, 7))
        self.register_buffer("image", torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(batch))


@dataclass
class Training:
    seed: int
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    generator: torch.Generator = field(init=False)
    extra: dict[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.layer.parameters(), lr=0.1 * self.seed, amsgrad=True)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.extra = {"seed": self.seed}

    def run(self, checkpoints: Path, steps: int, save_every: int = 2) -> tuple[int, list[float]]:
        """Where it went on, and what it drew."""
        pieces = {"model": self.model, "optimizer": self.optimizer, "generator": self.generator, "extra": self.extra}
        run = holdfast.guard(**pieces, checkpoints=checkpoints, save_every=save_every, keep=10)
        began, drawn = run.step, []
        for _ in run.steps(steps):
            drawn.append(float(torch.rand(())))
            loss = self.model(torch.rand(8, 4, generator=self.generator)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            run.report(loss=loss)
            self.extra.update({"names": ("a", "b"), 7: None, "nan": float("nan"), "count": Counter("aab"), "empty": {}, "list": [torch.ones(2), {"deep": 1}]})
        return began, drawn

    def states(self) -> list[Any]:
        return [self.model.state_dict(), self.optimizer.state_dict(), self.generator.get_state(), self.extra]


def bits(value: Any) -> Any:
    """Something to compare: every bit, the kind of every container, and the order."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, dict):
        return (type(value), [(key, bits(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [bits(item) for item in value])
    return (type(value), repr(value))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Training]:
    checkpoints = tmp_path_factory.mktemp("trained") / "checkpoints"
    training = Training(seed=1)
    training.run(checkpoints, steps=4)
    return checkpoints, training


def newest(checkpoints: Path) -> CheckpointFound:
    found = newest_complete(checkpoints)
    assert found is not None
    return found


def exported(checkpoints: Path, to: Path, format: str, **options: Any) -> Exported:
    done = export_checkpoint(newest(checkpoints), to, Format(format), **options)
    assert [path.name for path in to.parent.iterdir() if path.name.startswith(".")] == [], "no temporary name is left"
    return done


def imported(source: Path, checkpoints: Path, **options: Any) -> Imported:
    done = import_checkpoint(source, checkpoints, **options)
    assert newest(checkpoints).name == done.name, "it is what a run goes on from"
    verify(checkpoints / done.name)
    return done


# There and back.


@pytest.mark.parametrize("format", ["torch", "dcp"])
def test_a_run_goes_on_from_its_export_as_if_nothing_had_happened(trained: tuple[Path, Training], tmp_path: Path, format: str) -> None:
    checkpoints, training = trained
    there = tmp_path / "there"
    assert exported(checkpoints, there, format).remarks == ()
    done = imported(there, tmp_path / "back", trust=format == "dcp")
    assert (done.name, done.step, done.remarks) == ("step-00000004.g0", 4, ())
    again, untouched = Training(seed=2), Training(seed=3)
    began, drawn = again.run(tmp_path / "back", steps=4)
    assert (began, drawn) == (4, [])
    assert bits(again.states()) == bits(training.states())
    assert again.run(tmp_path / "back", steps=6) == untouched.run(checkpoints_copy(checkpoints, tmp_path), steps=6)
    assert bits(again.states()) == bits(untouched.states())


def checkpoints_copy(checkpoints: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoints, tmp_path / "copy"))


def test_an_exported_file_of_torch_loads_without_running_code(trained: tuple[Path, Training], tmp_path: Path) -> None:
    checkpoints, training = trained
    exported(checkpoints, tmp_path / "out.pt", "torch", rank=0)
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert loaded.keys() == {"pieces", "step", "progress", "randomness"}
    assert loaded["step"] == 4
    assert bits(loaded["pieces"]["model"]) == bits(training.model.state_dict())
    assert loaded["pieces"]["model"]._metadata == training.model.state_dict()._metadata, "the versions of a module's parts are there too"
    fresh = Net()
    fresh.load_state_dict(loaded["pieces"]["model"])


def test_torch_itself_loads_an_export_to_dcp(trained: tuple[Path, Training], tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    checkpoints, training = trained
    exported(checkpoints, tmp_path / "out", "dcp")
    state = {"model": Net().state_dict(), "optimizer": {"state": {0: {"exp_avg": torch.zeros(3, 4)}}, "param_groups": [{"lr": 0.0, "betas": ()}]}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert bits(state["model"]) == bits(training.model.state_dict())
    assert torch.equal(state["optimizer"]["state"][0]["exp_avg"], training.optimizer.state_dict()["state"][0]["exp_avg"])
    assert state["optimizer"]["param_groups"] == [{"lr": 0.1, "betas": (0.9, 0.999)}]


def test_a_model_goes_through_safetensors_and_what_else_there_was_is_named(trained: tuple[Path, Training], tmp_path: Path) -> None:
    checkpoints, training = trained
    done = exported(checkpoints, tmp_path / "out.safetensors", "safetensors")
    header, data = parsed(tmp_path / "out.safetensors")
    assert header.pop("__metadata__")["format"] == "pt"
    assert header["model.number"]["shape"] == []
    assert header["model.in_bfloat16"]["dtype"] == "BF16"
    for name, tensor in training.model.state_dict().items():
        begin, end = header[f"model.{name}"]["data_offsets"]
        assert data[begin:end] == bits(tensor)[2], name
        assert begin % tensor.element_size() == 0, "aligned"
    assert len(header) == done.tensors
    assert [remark for remark in done.remarks if "plain values (optimizer.param_groups.0.lr" in remark]
    back = imported(tmp_path / "out.safetensors", tmp_path / "back")
    assert (back.pieces, back.step) == (("model",), 4)
    assert back.remarks == ("left out: extra, generator, optimizer, of which safetensors does not hold enough to restore it",)
    model = Net()
    assert holdfast.guard(model=model, checkpoints=tmp_path / "back").step == 4
    assert bits(dict(model.state_dict())) == bits(dict(training.model.state_dict()))


def parsed(path: Path) -> tuple[dict[str, Any], bytes]:
    text = path.read_bytes()
    length = int.from_bytes(text[:8], "little")
    assert length % 8 == 0
    return json.loads(text[8 : 8 + length]), text[8 + length :]


def test_the_safetensors_package_reads_what_we_write_and_we_read_what_it_writes(trained: tuple[Path, Training], tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed, so its own reader cannot be asked")
    checkpoints, training = trained
    exported(checkpoints, tmp_path / "out.safetensors", "safetensors", piece="model")
    theirs = safetensors.load_file(tmp_path / "out.safetensors")
    expected = dict(training.model.state_dict())
    assert {name: bits(tensor) for name, tensor in theirs.items()} == {name: bits(tensor) for name, tensor in expected.items()}
    safetensors.save_file({name: tensor.contiguous() for name, tensor in expected.items()}, tmp_path / "theirs.safetensors")
    imported(tmp_path / "theirs.safetensors", tmp_path / "back", step=9)
    model = Net()
    assert holdfast.guard(model=model, checkpoints=tmp_path / "back").step == 9
    assert bits(dict(model.state_dict())) == bits(expected)


def test_one_piece_goes_to_safetensors_under_its_own_names_and_becomes_the_piece_asked_for(trained: tuple[Path, Training], tmp_path: Path) -> None:
    checkpoints, training = trained
    exported(checkpoints, tmp_path / "out.safetensors", "safetensors", piece="model")
    assert parsed(tmp_path / "out.safetensors")[0].keys() - {"__metadata__"} == training.model.state_dict().keys()
    assert imported(tmp_path / "out.safetensors", tmp_path / "back", piece="teacher").pieces == ("teacher",)
    with pytest.raises(UserError, match="has no piece 'modle'; it has extra, generator, model, optimizer"):
        exported(checkpoints, tmp_path / "other", "torch", piece="modle")


def test_dtypes_that_safetensors_does_not_know_are_left_out_and_named(tmp_path: Path) -> None:
    state = {"wide": torch.ones(2, dtype=torch.complex128), "narrow": torch.ones(2), "array": numpy.arange(3, dtype=">i4")}
    list(holdfast.guard(state=state, checkpoints=tmp_path / "checkpoints").steps(1))
    done = exported(tmp_path / "checkpoints", tmp_path / "out.safetensors", "safetensors")
    assert parsed(tmp_path / "out.safetensors")[0].keys() == {"__metadata__", "state.narrow", "state.array"}
    assert "left out: state.wide, because safetensors has no word for its dtype complex128" in done.remarks
    assert "NumPy arrays, of which there are 1, are written as tensors" in done.remarks
    exported(tmp_path / "checkpoints", tmp_path / "out.pt", "torch")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["pieces"]["state"]["array"].tolist() == [0, 1, 2]


def test_names_that_would_become_the_same_are_refused_where_names_are_joined(tmp_path: Path) -> None:
    list(holdfast.guard(state={"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}, checkpoints=tmp_path / "checkpoints").steps(1))
    for format in ("safetensors", "dcp"):
        with pytest.raises(UserError, match=r"both be called 'state.a.b'.*--format torch"):
            exported(tmp_path / "checkpoints", tmp_path / "out", format)
    assert not (tmp_path / "out").exists()
    exported(tmp_path / "checkpoints", tmp_path / "out", "torch")


# What others wrote.


def test_a_bare_state_dict_becomes_the_model_and_a_dictionary_of_states_its_pieces(tmp_path: Path) -> None:
    training = Training(seed=1)
    training.run(tmp_path / "unused", steps=2)
    torch.save(training.model.state_dict(), tmp_path / "bare.pt")
    done = imported(tmp_path / "bare.pt", tmp_path / "bare", step=30)
    assert (done.pieces, done.step) == (("model",), 30)
    model = Net()
    run = holdfast.guard(model=model, checkpoints=tmp_path / "bare")
    assert run.step == 30
    assert bits(dict(model.state_dict())) == bits(dict(training.model.state_dict()))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert next(run.steps(31)) == 30
    assert torch.equal(torch.rand(3), expected), "random numbers are the script's own"

    both = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(), "epoch": 3, "step": 40}
    torch.save(both, tmp_path / "both.pt")
    done = imported(tmp_path / "both.pt", tmp_path / "both")
    assert (done.pieces, done.step) == (("model", "optimizer"), 40)
    assert "left out: epoch (int)" in done.remarks[0]
    again = Training(seed=2)
    holdfast.guard(model=again.model, optimizer=again.optimizer, checkpoints=tmp_path / "both")
    assert bits(again.optimizer.state_dict()) == bits(training.optimizer.state_dict())

    torch.save(training.optimizer.state_dict(), tmp_path / "optimizer.pt", _use_new_zipfile_serialization=False)
    assert imported(tmp_path / "optimizer.pt", tmp_path / "optimizer").pieces == ("optimizer",)


def test_what_dcp_saved_elsewhere_restores_a_model_and_its_optimizer(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    training = Training(seed=1)
    training.run(tmp_path / "unused", steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(), "step": 12}
        dcp.save(states, checkpoint_id=tmp_path / "theirs", no_dist=True)
    with pytest.raises(UserError, match=r"is a pickle.*reading one runs whatever code is in it.*--trust if you know who wrote it"):
        import_checkpoint(tmp_path / "theirs", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert imported(tmp_path / "theirs", tmp_path / "back", trust=True).step == 12
    again = Training(seed=2)
    assert holdfast.guard(model=again.model, optimizer=again.optimizer, checkpoints=tmp_path / "back").step == 12
    assert bits(dict(again.model.state_dict())) == bits(dict(training.model.state_dict()))
    assert bits(again.optimizer.state_dict()) == bits(training.optimizer.state_dict())


def test_an_import_is_newer_than_all_that_is_there(tmp_path: Path) -> None:
    list(holdfast.guard(model=nn.Linear(2, 2), checkpoints=tmp_path / "checkpoints").steps(50))
    theirs = nn.Linear(2, 2)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pt")
    assert imported(tmp_path / "theirs.pt", tmp_path / "checkpoints", step=7).name == "step-00000007.g2"
    model = nn.Linear(2, 2)
    run = holdfast.guard(model=model, checkpoints=tmp_path / "checkpoints", save_every=1)
    assert run.step == 7
    assert torch.equal(model.weight, theirs.weight)
    list(run.steps(8))
    assert newest(tmp_path / "checkpoints").name == "step-00000008.g3"


# Several ranks.


def save_ranks(checkpoints: Path, states: Sequence[dict[str, Any]], shared: dict[str, Any] | None = None) -> CheckpointFound:
    """A checkpoint of several ranks, with the notes that real ones would leave."""
    for rank, pieces in enumerate(states):
        own = {"pieces": pieces, "shared": sorted(shared or {}), "randomness": {}, "progress": {"rank": rank}}

        def fill(store: Any, rank: int = rank, own: dict[str, Any] = own) -> str:
            notes = {"own": put_value(store, own)} | ({"shared": put_value(store, shared)} if shared and rank == 0 else {})
            return store.put(json.dumps(notes).encode()).digest

        commit(Disk(), checkpoints, Shard(step=5, generation=1, world_size=len(states), rank=rank), fill)
    return newest(checkpoints)


def part(whole: torch.Tensor, placements: Sequence[tuple[Any, ...]], mesh: Sequence[int], rank: int) -> dict[str, Any]:
    """What a rank's DTensor leaves in its state, cut with torch.chunk: each dimension of the mesh cuts what the ones before it left."""
    local, offset = whole, [0] * whole.dim()
    for depth, placement in enumerate(placements):
        if placement[0] == "shard":
            dim, index = placement[1], rank // prod(mesh[depth + 1 :]) % mesh[depth]
            chunks = [*local.chunk(mesh[depth], dim)]
            offset[dim] += sum(chunk.shape[dim] for chunk in chunks[:index])
            local = chunks[index] if index < len(chunks) else local.narrow(dim, 0, 0)
    return {
        "__holdfast__": "dtensor", "local": local.contiguous(), "shape": list(whole.shape), "stride": list(whole.stride()), "placements": list(placements),
        "mesh": (tuple(mesh), tuple(range(prod(mesh))), ()), "dtype": whole.dtype, "offset": offset,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "placements", "mesh"),
    [
        ((6, 4), [("shard", 0)], (2,)),
        ((7, 3), [("shard", 0)], (4,)),
        ((3, 5), [("shard", 1)], (4,)),
        ((2, 2), [("shard", 0)], (4,)),
        ((9, 7), [("shard", 0), ("shard", 1)], (2, 2)),
        ((11, 2), [("shard", 0), ("shard", 0)], (2, 3)),
        ((5, 4), [("replicate",), ("shard", 0)], (2, 2)),
        ((5, 6, 3), [("shard", 2), ("replicate",), ("shard", 0)], (2, 2, 2)),
        ((3,), [("replicate",)], (2,)),
        ((), [("replicate",)], (2,)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sharded_tensors_are_put_together(tmp_path: Path, shape: tuple[int, ...], placements: Any, mesh: tuple[int, ...], dtype: torch.dtype) -> None:
    whole = torch.rand(shape).to(dtype)
    ranks = range(prod(mesh))
    states = [{"model": OrderedDict(weight=part(whole, placements, mesh, rank), plain=torch.ones(2)), "seen": {"rank": rank}} for rank in ranks]
    save_ranks(tmp_path / "checkpoints", states)
    done = exported(tmp_path / "checkpoints", tmp_path / "out.pt", "torch")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert bits(loaded["pieces"]["model"]["weight"]) == bits(whole)
    assert loaded["pieces"]["seen"] == {"rank": 0}
    assert done.remarks == (f"of seen each of the {len(ranks)} ranks has its own, and this is rank 0's; --rank gives another's",)
    last = exported(tmp_path / "checkpoints", tmp_path / "last.pt", "torch", rank=ranks[-1])
    loaded = torch.load(tmp_path / "last.pt", weights_only=True)
    assert bits(loaded["pieces"]["model"]["weight"]) == bits(states[-1]["model"]["weight"]["local"])
    assert loaded["pieces"]["seen"] == loaded["progress"] == {"rank": ranks[-1]}
    assert "own parts of larger ones" in last.remarks[0]


def test_copies_on_meshes_of_their_own_are_no_stages_of_a_pipeline(tmp_path: Path) -> None:
    """As with FSDP over one dimension of a mesh and tensors that the other dimension does not split: ranks 0 and 2 hold what 1 and 3 hold."""
    whole = torch.full((5, 2), float("nan"))
    notes = [part(whole, [("shard", 0)], (2,), rank // 2) | {"mesh": ((2,), (rank % 2, rank % 2 + 2), ("dp",))} for rank in range(4)]
    save_ranks(tmp_path / "checkpoints", [{"model": {"weight": note}} for note in notes])
    exported(tmp_path / "checkpoints", tmp_path / "out.pt", "torch")
    assert bits(torch.load(tmp_path / "out.pt", weights_only=True)["pieces"]["model"]["weight"]) == bits(whole)


def test_what_is_put_together_goes_to_every_format_and_can_be_trained_on_by_one_process(tmp_path: Path) -> None:
    model = nn.Linear(5, 3)
    states = [{"model": {name: part(tensor, [("shard", 0)], (2,), rank) for name, tensor in model.state_dict().items()}} for rank in range(2)]
    save_ranks(tmp_path / "checkpoints", states)
    for format in Format:
        exported(tmp_path / "checkpoints", tmp_path / format, format)
        imported(tmp_path / format, tmp_path / f"back-{format}", trust=True)
        again = nn.Linear(5, 3)
        assert holdfast.guard(model=again, checkpoints=tmp_path / f"back-{format}").step == 5
        assert bits(dict(again.state_dict())) == bits(dict(model.state_dict()))


def test_what_all_ranks_hold_alike_is_there_whichever_rank_is_asked_for(tmp_path: Path) -> None:
    shared = {"model": OrderedDict(weight=torch.rand(3))}
    save_ranks(tmp_path / "checkpoints", [{"sampler": {"at": rank}} for rank in range(2)], shared)
    for rank in (None, 0, 1):
        exported(tmp_path / "checkpoints", tmp_path / "out.pt", "torch", rank=rank, force=True)
        pieces = torch.load(tmp_path / "out.pt", weights_only=True)["pieces"]
        assert bits(pieces["model"]) == bits(shared["model"])
        assert pieces["sampler"] == {"at": rank or 0}
    with pytest.raises(UserError, match="has no rank 2: it was written by 2, from 0 to 1"):
        exported(tmp_path / "checkpoints", tmp_path / "out.pt", "torch", rank=2, force=True)


def test_stages_of_a_pipeline_and_missing_parts_are_not_put_together(tmp_path: Path) -> None:
    whole = torch.rand(4, 2)
    notes = [part(whole, [("shard", 0)], (2,), rank) for rank in range(2)]
    elsewhere = part(whole + 1, [("shard", 0)], (2,), 0) | {"mesh": ((2,), (2, 3), ())}
    save_ranks(tmp_path / "other", [{"model": {"weight": notes[0]}}, {"model": {"weight": elsewhere}}])
    save_ranks(tmp_path / "more", [{"model": {"weight": notes[0]}}, {"model": {"weight": notes[1], "next": notes[1]}}])
    save_ranks(tmp_path / "hole", [{"model": {"weight": notes[0]}}, {"model": {}}])
    expected = {"other": (UserError, "rank 1 holds another"), "more": (UserError, "nothing of model.next"), "hole": (CheckpointCorrupt, "saved have 4")}
    for name, (error, said) in expected.items():
        with pytest.raises(error, match=said):
            exported(tmp_path / name, tmp_path / "out.pt", "torch")
        exported(tmp_path / name, tmp_path / f"{name}.pt", "torch", rank=1)
    assert not (tmp_path / "out.pt").exists()


# Whole or not at all.


def test_nothing_is_replaced_unasked_and_nothing_that_is_no_export(trained: tuple[Path, Training], tmp_path: Path) -> None:
    checkpoints, _ = trained
    for format in Format:
        to = tmp_path / format
        exported(checkpoints, to, format)
        with pytest.raises(UserError, match=r"is there already.*--force"):
            exported(checkpoints, to, format)
        exported(checkpoints, to, format, force=True)
    with pytest.raises(UserError, match="is a directory, which an export of format torch is not"):
        exported(checkpoints, tmp_path / "dcp", "torch", force=True)
    with pytest.raises(UserError, match="is a file, which an export of format dcp is not"):
        exported(checkpoints, tmp_path / "torch", "dcp", force=True)
    (tmp_path / "dcp" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things than a checkpoint of DCP, and is not replaced"):
        exported(checkpoints, tmp_path / "dcp", "dcp", force=True)
    with pytest.raises(UserError, match=r"expected .*missing to be a directory that you may write to"):
        exported(checkpoints, tmp_path / "missing" / "out.pt", "torch")


@contextlib.contextmanager
def small_files(limit_bytes: int) -> Iterator[None]:
    """No file can grow beyond this, as on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("format", list(Format))
def test_an_export_that_does_not_fit_leaves_what_was_there_and_nothing_else(trained: tuple[Path, Training], tmp_path: Path, format: Format) -> None:
    checkpoints, _ = trained
    exported(checkpoints, tmp_path / "out", format)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with small_files(100_000), pytest.raises(OSError, match=r"File too large: '.*/out'"):
        exported(checkpoints, tmp_path / "out", format, force=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_import_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    torch.save({"a": torch.rand(100_000)}, tmp_path / "in.pt")
    with small_files(100_000), pytest.raises(OSError, match="File too large"):
        import_checkpoint(tmp_path / "in.pt", tmp_path / "new" / "checkpoints")
    assert not (tmp_path / "new").exists()
    list(holdfast.guard(state={"a": 1}, checkpoints=tmp_path / "old").steps(1))
    before = sorted(tmp_path.rglob("*"))
    with small_files(100_000), pytest.raises(OSError, match="File too large"):
        import_checkpoint(tmp_path / "in.pt", tmp_path / "old")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_checkpoint_is_not_exported(trained: tuple[Path, Training], tmp_path: Path) -> None:
    checkpoints = checkpoints_copy(trained[0], tmp_path)
    older, found = list_complete(checkpoints)[1], newest(checkpoints)
    file = max((found.path / "chunks").iterdir(), key=lambda chunk: chunk.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[7] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CheckpointCorrupt, match=f"cannot be exported: chunk .* is damaged.*Restore {older.name} instead"):
        exported(checkpoints, tmp_path / "out.pt", "torch")
    assert not (tmp_path / "out.pt").exists()


# Broken and hostile files.


def refused(source: Path, tmp_path: Path, **options: Any) -> str:
    """What is said; and nothing is left."""
    with pytest.raises(UserError) as raised:
        import_checkpoint(source, tmp_path / "target", **options)
    assert not (tmp_path / "target").exists()
    return str(raised.value)


def safetensors_file(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def tensor(begin: int, end: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data_bytes", "said"),
    [
        ({"a": tensor(0, 8)}, 4, "its tensors take 8 bytes and its data has 4: it may be cut short"),
        ({"a": tensor(0, 8)}, 12, "its tensors take 8 bytes and its data has 12"),
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "'b' begins at byte 4, and what is before it ends at 8"),
        ({"a": tensor(0, 8), "b": tensor(0, 8)}, 8, "'b' begins at byte 0, and what is before it ends at 8"),
        ({"a": tensor(0, 4), "b": tensor(8, 12)}, 12, "'b' begins at byte 8, and what is before it ends at 4"),
        ({"a": tensor(8, 0, [0])}, 8, "lies from byte 8 to 0"),
        ({"a": tensor(-8, 0, [2])}, 8, "lies from byte -8 to 0"),
        ({"a": tensor(0, 8, [3])}, 8, "and a tensor of F32 [3] has 12 bytes"),
        ({"a": tensor(0, 8, [1 << 70, 1 << 70])}, 8, "lies from byte 0 to 8"),
        ({"a": tensor(0, 0, [0, 1 << 70])}, 0, "no tensor can be made of the shape"),
        ({"a": tensor(0, 8, [-2])}, 8, "has no dtype, shape and data_offsets as they should be"),
        ({"a": tensor(0, 8, [2.0])}, 8, "has no dtype, shape and data_offsets"),
        ({"a": tensor(0, 8, [True, 2])}, 8, "has no dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, 8, "has no dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "has no dtype, shape and data_offsets"),
        ({"a": 3}, 8, "has no dtype, shape and data_offsets"),
        ({"a": tensor(0, 8, dtype="F1000")}, 8, "'a' is of dtype 'F1000', and those known are F64, F32"),
        ({"../../a": tensor(0, 8)}, 8, "'../../a' cannot be the name of a piece or a tensor"),
        ({"model..weight": tensor(0, 8)}, 8, "cannot be the name of a piece or a tensor"),
        ({"a\x1b[2J": tensor(0, 8)}, 8, "cannot be the name of a piece or a tensor"),
        ({"": tensor(0, 8)}, 8, "cannot be the name of a piece or a tensor"),
        ([], 0, "its header is no dictionary of tensors"),
        ({"__metadata__": 3}, 0, "its header is no dictionary of tensors"),
        (b"{", 0, "its header is no JSON"),
        (b"[" * 100_000, 0, "its header is no JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", 0, "its header is no JSON"),
        (b"\xff\xfe{}", 0, "its header is no JSON"),
        (b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4, "a name is there twice"),
        ({}, 0, "holds nothing that could be a piece"),
    ],
)
def test_a_hostile_safetensors_file_gets_a_sentence(tmp_path: Path, header: Any, data_bytes: int, said: str) -> None:
    path = safetensors_file(tmp_path / "in.safetensors", header, bytes(data_bytes))
    assert said in refused(path, tmp_path)


@pytest.mark.parametrize("length", [1 << 63, 100_000_001, 3000, 0])
def test_a_header_of_an_impossible_length_is_not_read(tmp_path: Path, length: int) -> None:
    path = safetensors_file(tmp_path / "in.safetensors", {"a": tensor(0, 8)}, bytes(8), length=length)
    assert "is no sound safetensors file" in refused(path, tmp_path)


@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_a_file_cut_short_anywhere_is_refused(trained: tuple[Path, Training], tmp_path: Path, format: str) -> None:
    exported(trained[0], tmp_path / "whole", format, piece="model")
    whole = (tmp_path / "whole").read_bytes()
    for size in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "in").write_bytes(whole[:size])
        assert "Nothing was imported" in refused(tmp_path / "in", tmp_path, format=Format(format))


class Foreign:
    """Something that only code of its own can make again."""


def test_what_needs_code_to_be_read_is_read_only_when_trusted(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(2)}, "arguments": Foreign()}, tmp_path / "in.pt")
    said = refused(tmp_path / "in.pt", tmp_path)
    assert "reading that runs code which the file brings along" in said
    assert "--trust if you know who wrote it" in said
    assert "Foreign" in said
    done = imported(tmp_path / "in.pt", tmp_path / "target", trust=True)
    assert done.remarks == ("left out: arguments (Foreign), because no piece of guard() is of such a kind; a dictionary would be",)
    torch.save({"model": {"a": torch.ones(2), "b": Foreign()}}, tmp_path / "inside.pt")
    with pytest.raises(UserError, match=r"model\['b'\] holds a .*Foreign, which cannot be stored without pickling"):
        import_checkpoint(tmp_path / "inside.pt", tmp_path / "other", trust=True)
    assert not (tmp_path / "other").exists()


def test_files_that_are_something_else_get_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear diary")
    assert "is no file of torch.save" in refused(tmp_path / "text", tmp_path)
    assert "is not there" in refused(tmp_path / "missing", tmp_path)
    assert "is no plain file" in refused(Path("/dev/null"), tmp_path)
    for value, said in (([1, 2], "holds a list"), ({"a": 1}, "holds nothing that could be a piece"), ({"model": {"a": torch.ones(2).to_sparse()}}, "sparse")):
        torch.save(value, tmp_path / "in.pt")
        assert said in refused(tmp_path / "in.pt", tmp_path)
    torch.save({"pieces": {}, "step": -1, "progress": {}, "randomness": {}}, tmp_path / "in.pt")
    assert "the keys of an export of Holdfast, but not its values" in refused(tmp_path / "in.pt", tmp_path)
    torch.save({"../model": {"a": torch.ones(2)}}, tmp_path / "in.pt")
    assert "'../model' cannot be the name of a piece" in refused(tmp_path / "in.pt", tmp_path)


def test_a_half_written_or_hostile_directory_of_dcp_is_refused(trained: tuple[Path, Training], tmp_path: Path) -> None:
    there = tmp_path / "in"
    exported(trained[0], there, "dcp")
    metadata, data = there / ".metadata", there / "__0_0.distcp"
    sound, whole = metadata.read_bytes(), data.read_bytes()
    data.write_bytes(whole[:-1])
    assert f"is half-written: expected at least {len(whole)} bytes in its file __0_0.distcp, saw {len(whole) - 1}" in refused(there, tmp_path, trust=True)
    data.unlink()
    assert "saw 0" in refused(there, tmp_path, trust=True)
    data.write_bytes(whole)
    described = pickle.loads(sound)
    for one in described.storage_data.values():
        one.relative_path = "../in/__0_0.distcp"
    metadata.write_bytes(pickle.dumps(described))
    assert "names the file '../in/__0_0.distcp', which is not in this directory" in refused(there, tmp_path, trust=True)
    metadata.write_bytes(sound[: len(sound) // 2])
    assert "cannot be read as a checkpoint of torch.distributed.checkpoint" in refused(there, tmp_path, trust=True)
    metadata.unlink()
    assert "has no file .metadata, which torch.distributed.checkpoint writes last" in refused(there, tmp_path, trust=True)
