"""The learned reader: from the words of a digest to a probability for every class of cause.

tokens.py      a line to words, with whatever differs between two runs of the same failure masked
features.py    a digest to weighted words: what is decisive weighs most, the last lines least
model.py       weighted words to probabilities, in numpy, and which words spoke for an answer
model.npz      the arrays, made by benchmarks/train_text_model.py; opened by `control.shipped_text_model`, for this room opens nothing
"""

from holdfast.diagnose.text_model.features import features
from holdfast.diagnose.text_model.model import TextModel, UnfitModel, Word, stored

__all__ = ["TextModel", "UnfitModel", "Word", "features", "stored"]
