"""The text model that comes with Holdfast. The file is opened here; what its arrays mean is known in `diagnose.text_model`."""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np

from holdfast.diagnose.text_model import TextModel, UnfitModel


@cache
def shipped_text_model() -> TextModel:
    file = resources.files("holdfast.diagnose.text_model") / "model.npz"
    try:
        with resources.as_file(file) as path, np.load(path, allow_pickle=False) as arrays:
            return TextModel.load({name: arrays[name] for name in arrays.files})
    except (OSError, ValueError, EOFError) as error:
        raise UnfitModel(f"The text model {file} cannot be read: {error}. Expected the one that comes with Holdfast: install it again.") from error
