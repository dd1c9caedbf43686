"""Weighted words to probabilities: a linear model over hashed words, its weights in eight bits, in numpy.

`stored` makes the arrays and `TextModel.load` takes them, so that what is written and what is read stand side by side. No array holds objects: nothing is ever
unpickled. A model of another version is refused, because its words would not be ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.diagnose.text_model.features import features
from holdfast.diagnose.text_model.tokens import hashed
from holdfast.domain.log_event import LogDigest
from holdfast.errors import HoldfastError

VERSION = 1  # Counts what features and tokens make of a digest: a change there needs a new model.
_ARRAYS = ("version", "classes", "hashes", "rarity", "weights", "scale", "bias", "temperature", "made", "material")
_STEPS = 127  # What eight bits hold on each side of nothing.


class UnfitModel(HoldfastError):
    """These arrays are not a text model this version can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word or flag that spoke for an answer, and how strongly, in log-odds against the average class."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    classes: tuple[str, ...]
    hashes: npt.NDArray[np.uint32]  # Of the words it knows, ascending.
    rarity: npt.NDArray[np.float32]  # Of each word: a word in every log says little.
    weights: npt.NDArray[np.int8]  # Word by class.
    scale: npt.NDArray[np.float32]  # What one step of eight bits is worth, by class.
    bias: npt.NDArray[np.float32]
    temperature: float  # Fitted on groups that were held out: above 1 it is less sure than it would be.
    made: str
    material: str  # The checksum of what it was trained on.

    @classmethod
    def load(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TextModel:
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise UnfitModel(f"The text model lacks {', '.join(missing)}. Expected the arrays that benchmarks/train_text_model.py writes: make it anew.")
        version = int(arrays["version"])
        if version != VERSION:
            raise UnfitModel(f"The text model is of version {version}, expected {VERSION}: make it anew with benchmarks/train_text_model.py --write.")
        weights, hashes, classes = arrays["weights"], arrays["hashes"], tuple(str(name) for name in arrays["classes"])
        shapes = {"weights": (len(hashes), len(classes)), "rarity": (len(hashes),), "scale": (len(classes),), "bias": (len(classes),)}
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                raise UnfitModel(f"The text model's {name} have the shape {arrays[name].shape}, expected {shape}: the file is damaged, install Holdfast again.")
        return cls(
            classes=classes, hashes=hashes.astype(np.uint32), rarity=arrays["rarity"].astype(np.float32), weights=weights.astype(np.int8),
            scale=arrays["scale"].astype(np.float32), bias=arrays["bias"].astype(np.float32), temperature=float(arrays["temperature"]),
            made=str(arrays["made"]), material=str(arrays["material"]),
        )  # fmt: skip

    def probabilities(self, digest: LogDigest) -> dict[str, float]:
        """A probability for each class, calibrated; they sum to 1. A digest without a known word gives what is usual then: mostly `unknown`."""
        rows, values, _ = self._known(digest)
        scores = self._scores(rows, values) / self.temperature
        scores -= scores.max()
        shares = np.exp(scores.astype(np.float64))
        shares /= shares.sum()
        return dict(zip(self.classes, shares.tolist(), strict=True))

    def words_for(self, digest: LogDigest, name: str, *, at_most: int = 8) -> tuple[Word, ...]:
        """The words that spoke most for a class, strongest first."""
        column = self.classes.index(name)
        rows, values, known = self._known(digest)
        if not len(rows):
            return ()
        each = self.weights[rows].astype(np.float32) * self.scale
        spoken = values * (each[:, column] - each.mean(axis=1)) / self.temperature
        order = np.argsort(-spoken, kind="stable")[:at_most]
        return tuple(Word(text=known[place], weight=round(float(spoken[place]), 3)) for place in order if spoken[place] > 0)

    def _known(self, digest: LogDigest) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32], list[str]]:
        found = sorted(features(digest).items())
        asked = np.array([hashed(word) for word, _ in found], dtype=np.uint32)
        places = np.searchsorted(self.hashes, asked)
        places[places == len(self.hashes)] = 0
        here = np.flatnonzero(self.hashes[places] == asked) if len(self.hashes) else np.empty(0, np.intp)
        rows = places[here]
        values = np.array([weight for _, weight in found], dtype=np.float32)[here] * self.rarity[rows]
        length = float(np.sqrt((values**2).sum()))
        return rows, values / length if length else values, [found[place][0] for place in here.tolist()]

    def _scores(self, rows: npt.NDArray[np.intp], values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        said: npt.NDArray[np.float32] = (values @ self.weights[rows].astype(np.float32)) * self.scale + self.bias
        return said


def stored(
    *, classes: tuple[str, ...], hashes: npt.NDArray[np.uint32], rarity: npt.NDArray[Any], weights: npt.NDArray[Any], bias: npt.NDArray[Any],
    temperature: float, made: str, material: str,
) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    """The arrays of a model, as they are written: weights by word and class become eight bits each, by the largest of their class."""
    order = np.argsort(hashes, kind="stable")
    scale = np.maximum(np.abs(weights).max(axis=0, initial=0.0), 1e-9) / _STEPS
    return {
        "version": np.array(VERSION), "classes": np.array(classes), "hashes": hashes[order].astype(np.uint32), "rarity": rarity[order].astype(np.float16),
        "weights": np.rint(weights[order] / scale).astype(np.int8), "scale": scale.astype(np.float32), "bias": np.asarray(bias, np.float32),
        "temperature": np.array(temperature, np.float32), "made": np.array(made), "material": np.array(material),
    }  # fmt: skip
