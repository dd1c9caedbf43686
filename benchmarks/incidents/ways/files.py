"""Checkpoints and data that are damaged, missing, of another shape or not permitted; disks that are full or fail."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

from incidents.way import Way
from incidents.world import as_nobody, becomes_read_only, dead_fuse, failing_disk, small_disk

_TRAIN = "train.py"


def checkpoint(scratch: Path, **changed: int) -> Path:
    """A checkpoint as jobs/train.py saves it."""
    import torch
    from torch import nn

    width, hidden, classes = changed.get("width", 16), changed.get("hidden", 32), changed.get("classes", 4)
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    path = scratch / "step_20.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 20}, path)
    return path


def cut(share: float) -> Callable[[Path], None]:
    def prepare(scratch: Path) -> None:
        path = checkpoint(scratch)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return prepare


def overwritten(content: bytes) -> Callable[[Path], None]:
    def prepare(scratch: Path) -> None:
        checkpoint(scratch).write_bytes(content)

    return prepare


def flipped(scratch: Path) -> None:
    """Ones inside the archive: its directory is whole, what it holds is not."""
    path = checkpoint(scratch)
    content = bytearray(path.read_bytes())
    content[40:400] = b"\xff" * 360
    path.write_bytes(bytes(content))


def of_shape(**changed: int) -> Callable[[Path], None]:
    def prepare(scratch: Path) -> None:
        checkpoint(scratch, **changed)

    return prepare


def with_state(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def prepare(scratch: Path) -> None:
        import torch

        path = checkpoint(scratch)
        torch.save(change(torch.load(path)), path)

    return prepare


def samples(write: Callable[[Path, int], None], spoil: Callable[[Path], None], *, count: int = 40) -> Callable[[Path], None]:
    """A directory of good samples, one of which is spoilt."""

    def prepare(scratch: Path) -> None:
        directory = scratch / "data"
        directory.mkdir()
        for number in range(count):
            write(directory / f"sample_{number:03d}", number)
        spoil(sorted(directory.iterdir())[17])

    return prepare


def write_json(path: Path, number: int) -> None:
    path.with_suffix(".json").write_text(json.dumps({"features": [number / 40] * 16, "label": number % 4}))


def write_pickle(path: Path, number: int) -> None:
    path.with_suffix(".pkl").write_bytes(pickle.dumps(([number / 40] * 16, number % 4)))


def write_image(path: Path, number: int) -> None:
    from PIL import Image

    Image.new("RGB", (48, 48), (number, 20, 90)).save(path.with_suffix(".png"))


def write_numpy(path: Path, number: int) -> None:
    import numpy

    numpy.save(path.with_suffix(".npy"), numpy.array([number / 40] * 16 + [number % 4], dtype="float32"))


def write_csv(path: Path, number: int) -> None:
    path.with_suffix(".csv").write_text(",".join(["0.5"] * 16 + [str(number % 4)]))


def write_shard(path: Path, number: int) -> None:
    import torch

    torch.save({"x": torch.full((16,), number / 40), "y": number % 4}, path.with_suffix(".pt"))


def cut_file(share: float) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return spoil


def instead(text: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.write_text(text)

    return spoil


def big_files(scratch: Path) -> None:
    """What failing_disk puts into its image: more than what is left of the device."""
    directory = scratch / "files"
    directory.mkdir()
    for number in range(16):
        (directory / f"shard_{number:02d}.bin").write_bytes(bytes([number]) * (1 << 20))
    checkpoint(scratch)
    shutil.copy(scratch / "step_20.pt", directory / "zz_step_20.pt")


def locked(name: str, mode: int) -> Callable[[Path], None]:
    def prepare(scratch: Path) -> None:
        target = scratch / name
        if name.endswith(".pt"):
            checkpoint(scratch).rename(target) if target.name != "step_20.pt" else checkpoint(scratch)
        elif name == "data":
            samples(write_json, lambda path: path.chmod(0o600))(scratch)
            return
        else:
            target.mkdir()
        target.chmod(mode)

    return prepare


def _corrupt(variant: str, prepare: Callable[[Path], None], *, quick: bool = False) -> Way:
    return Way(
        name="checkpoint_damaged", variant=variant, cause="checkpoint_corrupt", permanence="permanent", scope="storage",
        command=(_TRAIN, "--resume", "{dir}/step_20.pt"), prepare=prepare, quick=quick,
    )  # fmt: skip


def _mismatch(variant: str, prepare: Callable[[Path], None], *more: str, quick: bool = False) -> Way:
    return Way(
        name="checkpoint_of_another_model", variant=variant, cause="checkpoint_mismatch", permanence="permanent", scope="config",
        command=(_TRAIN, "--resume", "{dir}/step_20.pt", *more), prepare=prepare, quick=quick,
    )  # fmt: skip


def _data(
    variant: str, kind: str, write: Callable[[Path, int], None], spoil: Callable[[Path], None], *more: str, cause: str = "data_corrupt", quick: bool = False
) -> Way:
    return Way(
        name=f"sample_damaged_{kind}" if cause == "data_corrupt" else f"sample_{cause}", variant=variant, cause=cause, permanence="permanent",
        scope="data" if cause == "data_corrupt" else "job_code", command=(_TRAIN, "--data", "{dir}/data", "--format", kind, *more),
        prepare=samples(write, spoil), quick=quick,
    )  # fmt: skip


def _missing(variant: str, *command: str, quick: bool = False) -> Way:
    return Way(name="file_missing", variant=variant, cause="file_not_found", permanence="permanent", scope="config", command=command, quick=quick)


def _full(variant: str, *command: str, size: str = "1m", quick: bool = False) -> Way:
    return Way(
        name="disk_full", variant=variant, cause="disk_full", permanence="permanent", scope="storage", command=command, inside=small_disk(size), root=True,
        quick=quick, within_s=30.0,
    )  # fmt: skip


def _denied(variant: str, prepare: Callable[[Path], None], *command: str, quick: bool = False) -> Way:
    return Way(
        name="not_permitted", variant=variant, cause="permission_denied", permanence="permanent", scope="config", command=command, prepare=prepare,
        inside=as_nobody, root=True, quick=quick,
    )  # fmt: skip


def _failing(name: str, variant: str, *command: str, **more: object) -> Way:
    return Way(name=name, variant=variant, cause="storage_io", permanence="transient", scope="storage", command=command, root=True, **more)  # type: ignore[arg-type]


WAYS: tuple[Way, ...] = (
    _corrupt("cut_10", cut(0.1)),
    _corrupt("cut_50", cut(0.5), quick=True),
    _corrupt("cut_95", cut(0.95)),
    _corrupt("empty", overwritten(b"")),
    _corrupt("text", overwritten(b"<html>404 not found</html>")),
    _corrupt("zeros", overwritten(b"\0" * 4000)),
    _corrupt("flipped", flipped),
    _mismatch("wider", of_shape(width=24), quick=True),
    _mismatch("hidden", of_shape(hidden=48)),
    _mismatch("classes", of_shape(classes=10)),
    _mismatch("renamed", with_state(lambda state: {**state, "model": {f"module.{key}": value for key, value in state["model"].items()}})),  # type: ignore[attr-defined]
    _mismatch("fewer", with_state(lambda state: {**state, "model": dict(list(state["model"].items())[:-1])})),  # type: ignore[call-overload]
    _mismatch("no_optimizer", with_state(lambda state: {"model": state["model"], "step": 1})),
    _mismatch("optimizer", with_state(lambda state: {**state, "optimizer": {"state": {}, "param_groups": [{"params": [0]}]}})),
    _data("cut", "json", write_json, cut_file(0.6), quick=True),
    _data("empty", "json", write_json, instead("")),
    _data("html", "json", write_json, instead("<html>")),
    _data("cut", "image", write_image, cut_file(0.5)),
    _data("text", "image", write_image, instead("not an image")),
    _data("worker", "image", write_image, instead("not an image"), "--workers", "1"),
    _data("cut", "pickle", write_pickle, cut_file(0.5)),
    _data("text", "pickle", write_pickle, instead("<!doctype html>")),
    _data("cut", "numpy", write_numpy, cut_file(0.7)),
    _data("text", "numpy", write_numpy, instead("hello")),
    _data("word", "csv", write_csv, instead("0.5,oops,0.5")),
    _data("worker", "json", write_json, cut_file(0.6), "--workers", "2"),
    _data("label", "json", write_json, instead(json.dumps({"features": [0.0] * 16, "label": 77})), cause="index_out_of_range"),
    _data("length", "json", write_json, instead(json.dumps({"features": [0.0] * 9, "label": 1})), cause="shape_mismatch"),
    _data("length_worker", "json", write_json, instead(json.dumps({"features": [0.0] * 9, "label": 1})), "--workers", "1", cause="shape_mismatch"),
    _missing("data", _TRAIN, "--data", "{dir}/no-such-data", quick=True),
    _missing("resume", _TRAIN, "--resume", "{dir}/step_900.pt"),
    _missing("config", _TRAIN, "--config", "{dir}/config.json"),
    _missing("index", "host.py", "open_one", "{dir}/index/train.json"),
    _missing("save", _TRAIN, "--save", "{dir}/no/such/place"),
    _missing("directory", "host.py", "read_all", "{dir}/shards"),
    _full("torch_save", _TRAIN, "--save", "{dir}/full", "--save-every", "5", "--steps", "4000", size="60k", quick=True),
    _full("write", "host.py", "save_checkpoints", "{dir}/full"),
    _full("append", "host.py", "log_metrics", "{dir}/full"),
    _full("numpy", "host.py", "numpy_save", "{dir}/full"),
    _full("sqlite", "host.py", "sqlite", "{dir}/full"),
    _denied("checkpoint", locked("step_20.pt", 0o600), _TRAIN, "--resume", "{dir}/step_20.pt", quick=True),
    _denied("data", locked("data", 0o700), _TRAIN, "--data", "{dir}/data"),
    _denied("save", locked("out", 0o755), _TRAIN, "--save", "{dir}/out"),
    _denied("make", locked("runs", 0o755), "host.py", "make", "{dir}/runs"),
    _denied("tool", locked("tool", 0o700), "host.py", "run_tool", "{dir}/tool/convert"),
    _failing("device_lost", "shards", "host.py", "read_all", "{dir}/disk", prepare=big_files, inside=failing_disk(0.4), quick=True, kernel_log=True),
    _failing("device_lost", "shards_late", "host.py", "read_all", "{dir}/disk", prepare=big_files, inside=failing_disk(0.6)),
    _failing("device_lost", "checkpoint", _TRAIN, "--resume", "{dir}/disk/zz_step_20.pt", prepare=big_files, inside=failing_disk(0.3)),
    _failing("mount_died", "data", _TRAIN, "--data", "{dir}/full/data", inside=dead_fuse, quick=True),
    _failing("mount_died", "resume", _TRAIN, "--resume", "{dir}/full/step_20.pt", inside=dead_fuse),
    _failing("mount_died", "save", "host.py", "save_checkpoints", "{dir}/full", inside=dead_fuse),
    _failing("mount_died", "index", "host.py", "open_one", "{dir}/full/index.json", inside=dead_fuse),
    _failing("became_read_only", "torch_save", _TRAIN, "--save", "{dir}/full", "--steps", "400", "--seconds-per-step", "0.01", inside=becomes_read_only(0.5)),
    _failing("became_read_only", "write", "host.py", "save_checkpoints", "{dir}/full", inside=becomes_read_only(0.03)),
    _failing("became_read_only", "make", "host.py", "make", "{dir}/full", inside=becomes_read_only(0.0)),
)  # fmt: skip
