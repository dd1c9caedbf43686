"""A file of torch.save: {"pieces": …, "step": …, "progress": …, "randomness": …}, which loads with weights_only=True; or whatever somebody else saved."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.portable import Portable, is_tensor, leaves, sorted_out
from holdfast.checkpoint.told import OldFile, Told, disk_error_in, gist_of, new_file
from holdfast.errors import UserError


def write(disk: Disk, path: Path, state: Portable, told: Told) -> int:
    """How many tensors were written."""
    sizes = [leaf.nbytes for _, leaf in leaves(state.pieces) if is_tensor(leaf)]
    with new_file(disk, path, sum(sizes), told) as file:
        try:
            torch.save(state.envelope(), file)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise disk_error_in(error) or error from None
    return len(sizes)


def read(path: Path, told: Told, *, trust: bool, piece: str | None) -> Portable:
    return sorted_out(_load(path, told, trust=trust), piece, path)


def _load(path: Path, told: Told, *, trust: bool) -> Any:
    try:
        with OldFile(path, told) as raw, io.BufferedReader(raw) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            looks_saved = file.peek(4)[:4] == b"PK\x03\x04" or file.peek(1)[:1] == b"\x80"  # A zip archive; older versions wrote bare pickles.
            return torch.load(file, map_location="cpu", weights_only=not trust)
    except (OSError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        if trust or not looks_saved:
            raise UserError(f"{path} is no file of torch.save: {gist_of(error)}. Nothing was imported.") from error
        raise UserError(
            f"{path} holds more than tensors and plain values, and reading that runs code which the file brings along: nothing was imported. "
            f"Use --trust if you know who wrote it. What was found: {gist_of(error)}"
        ) from error
    except Exception as error:  # A broken file makes torch raise whatever it stumbles over.
        raise UserError(f"{path} cannot be read as a file of torch.save and may be cut short or damaged: {gist_of(error)}. Nothing was imported.") from error
