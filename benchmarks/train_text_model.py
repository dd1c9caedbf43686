"""The text model: trained on logs the project makes itself, measured on messages it has not seen, and written only where it is no worse than the last.

The material is written from what libraries print (incidents/written.py), and with `--incidents DIR` also what `incidents/cause.py --out DIR` really caused.
With `--corrections FILE` come the incidents a person named (`holdfast learn export --corrections FILE`). Nothing else is trained on.

One message, or one way of causing an incident, is one group, and a group stands on one side only. One group in eight is kept: never trained on, it judges.
The others are split five times to measure what an unseen message gets and to fit the temperature, then all of them are trained on together.

Without `--write` nothing is written. With it the model that ships is replaced if neither accuracy nor macro-F1 on the kept set fell; what got worse is named.
Needs scikit-learn (`pip install 'holdfast[dev]'`), which nothing at run time does.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from harness.measure import Report, arguments, say
from incidents.written import written

from holdfast.diagnose.reading import read
from holdfast.diagnose.taxonomy import CLASSES
from holdfast.diagnose.text_model import TextModel, UnfitModel, features, stored
from holdfast.diagnose.text_model.tokens import hashed
from holdfast.domain.log_event import LogDigest

MODEL = Path(__file__).parents[1] / "src" / "holdfast" / "diagnose" / "text_model" / "model.npz"
KEPT_ONE_IN = 8
FOLDS = 5
WORDS_MAX = 14_000
STRENGTH = 30.0  # The inverse of the penalty on weights: of 8, 30 and 100 the best in cross-validation, by little.
CAUSED_COUNTS = 3.0  # How much more a log that was really caused counts than one that was written.

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    name: str
    group: str
    cause: str
    words: Mapping[str, float]
    digest: LogDigest
    counts: float = 1.0

    @property
    def kept(self) -> bool:
        return crc32(self.group.encode()) % KEPT_ONE_IN == 0


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        flags={"write": "replace the model that ships, where it is no worse"},
        texts={"incidents": "what incidents/cause.py --out has caused", "corrections": "what holdfast learn export --corrections has written"},
        each=(5, 2, "logs of every written message"),
    )
    report = Report("Text model")
    examples = [*of_written(chosen.seed, chosen.each), *of_caused(chosen.incidents), *of_corrections(chosen.corrections)]
    trained, kept = [one for one in examples if not one.kept], [one for one in examples if one.kept]
    groups = {one.group for one in examples}
    report.note(f"{len(examples)} logs of {len(groups)} messages and ways, {len({one.group for one in kept})} of which are kept.")
    say(f"{len(examples)} logs read, {len(groups)} groups")
    unseen = cross_validated(report, trained)
    temperature = fitted_temperature(unseen, trained)
    new = model(trained, temperature)
    judge(report, new, kept)
    report.finish(chosen)
    if chosen.write:
        replaced(new, kept)


# The material.


def of_written(seed: int, each: int) -> Iterable[Example]:
    for one in written(seed, each):
        yield example(one.name, one.group, one.cause, [(path, text.encode()) for path, text in one.files])


def of_caused(directory: str) -> Iterable[Example]:
    """The directories that incidents/cause.py makes: logs, and truth.json beside them."""
    for file in sorted(Path(directory).glob("*/truth.json")) if directory else ():
        truth = json.loads(file.read_text())
        logs = [(str(log.relative_to(file.parent)), log.read_bytes()) for log in sorted(file.parent.rglob("*.log"))]
        yield example(file.parent.name, f"caused/{truth['way']}", truth["cause"], logs, CAUSED_COUNTS)


def of_corrections(path: str) -> Iterable[Example]:
    """Incidents that a person named: one JSON object a line with `cause`, `fingerprint` and `text`."""
    for number, line in enumerate(Path(path).read_text().splitlines() if path else ()):
        row = json.loads(line)
        if row.get("cause") in CLASSES and row.get("text"):
            group = f"correction/{row.get('fingerprint') or number}"
            yield example(f"correction-{number}", group, row["cause"], [("corrected.log", row["text"].encode())], CAUSED_COUNTS)


def example(name: str, group: str, cause: str, logs: Sequence[tuple[str, bytes]], counts: float = 1.0) -> Example:
    assert cause in CLASSES, f"{name}: {cause} is not in the taxonomy"
    digest = read([(path, [content]) for path, content in logs])
    return Example(name=name, group=group, cause=cause, words=features(digest), digest=digest, counts=counts)


def checksum(examples: Iterable[Example]) -> str:
    said = hashlib.sha256()
    for one in sorted(examples, key=lambda each: each.name):
        said.update(json.dumps([one.name, one.cause, sorted(one.words.items())]).encode())
    return said.hexdigest()


# Training.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    words: dict[str, int]  # To their row.
    rarity: Floats
    weights: Floats
    bias: Floats
    classes: tuple[str, ...]

    def scores(self, examples: Sequence[Example]) -> Floats:
        said: Floats = np.asarray(matrix(examples, self.words, self.rarity) @ self.weights + self.bias)
        return said


def fitted(examples: Sequence[Example], *, words_max: int = WORDS_MAX) -> Fitted:
    """Trained twice: on all words that stand in two groups or more, then on those that turned out to matter."""
    groups: dict[str, set[str]] = {}
    for one in examples:
        for word in one.words:
            groups.setdefault(word, set()).add(one.group)
    chosen = sorted(word for word, seen in groups.items() if len(seen) > 1)
    first = regression(examples, chosen)
    if len(chosen) <= words_max:
        return first
    told = np.abs(first.weights).max(axis=1) * first.rarity
    return regression(examples, sorted(np.array(chosen)[np.argsort(-told, kind="stable")[:words_max]].tolist()))


def regression(examples: Sequence[Example], chosen: Sequence[str]) -> Fitted:
    from sklearn.linear_model import LogisticRegression

    words = {word: row for row, word in enumerate(chosen)}
    seen = np.zeros(len(words))
    for one in examples:
        for word in one.words:
            if word in words:
                seen[words[word]] += 1
    rarity = np.log((1 + len(examples)) / (1 + seen)) + 1
    causes = np.array([one.cause for one in examples])
    names, place, count = np.unique(causes, return_inverse=True, return_counts=True)
    weights = np.array([one.counts for one in examples]) * np.sqrt(len(examples) / len(names) / count)[place]  # Rare classes count for more, not for all.
    learned = LogisticRegression(C=STRENGTH, max_iter=200, tol=1e-3)
    learned.fit(matrix(examples, words, rarity), causes, sample_weight=weights)
    return Fitted(words=words, rarity=rarity, weights=learned.coef_.T, bias=learned.intercept_, classes=tuple(str(name) for name in learned.classes_))


def matrix(examples: Sequence[Example], words: Mapping[str, int], rarity: Floats) -> Any:
    from scipy.sparse import csr_matrix

    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for row, one in enumerate(examples):
        known = [(words[word], weight * rarity[words[word]]) for word, weight in one.words.items() if word in words]
        length = float(np.sqrt(sum(value**2 for _, value in known))) or 1.0
        for column, value in known:
            rows.append(row)
            columns.append(column)
            values.append(value / length)
    return csr_matrix((values, (rows, columns)), shape=(len(examples), len(words)))


def model(examples: Sequence[Example], temperature: float) -> dict[str, npt.NDArray[Any]]:
    found = fitted(examples)
    hashes = np.array([hashed(word) for word in found.words], dtype=np.uint32)
    _, first = np.unique(hashes, return_index=True)  # Two words with one hash: the first is kept.
    return stored(
        classes=found.classes, hashes=hashes[first], rarity=found.rarity[first], weights=found.weights[first], bias=found.bias, temperature=temperature,
        made=datetime.now(UTC).date().isoformat(), material=checksum(examples),
    )  # fmt: skip


# Measuring.


def cross_validated(report: Report, examples: Sequence[Example]) -> Floats:
    """What each example scores from a model that has seen nothing of its group."""
    names = tuple(sorted({one.cause for one in examples}))
    scores = np.full((len(examples), len(names)), -30.0)
    for fold in range(FOLDS):
        inside = [row for row, one in enumerate(examples) if crc32(f"fold {one.group}".encode()) % FOLDS == fold]
        others = [one for one in examples if crc32(f"fold {one.group}".encode()) % FOLDS != fold]
        began = time.monotonic()
        found = fitted(others)
        scores[np.ix_(inside, [names.index(name) for name in found.classes])] = found.scores([examples[row] for row in inside])
        say(f"fold {fold + 1} of {FOLDS}: {len(others)} logs, {len(found.words)} words, {time.monotonic() - began:.0f} s")
    said = [names[column] for column in scores.argmax(axis=1)]
    truth = [one.cause for one in examples]
    report.series("accuracy on unseen messages", "", [accuracy(truth, said)], f"{FOLDS} splits by message")
    report.series("macro-F1 on unseen messages", "", [macro_f1(truth, said)])
    temperature = fitted_temperature(scores, examples)
    report.series("temperature", "", [temperature])
    report.series("calibration error on unseen messages", "", [calibration_error(shares(scores / temperature), said, truth)], "after the temperature")
    real = [row for row, one in enumerate(examples) if one.group.startswith("caused/")]
    if real:
        right = accuracy([truth[row] for row in real], [said[row] for row in real])
        report.series("accuracy on ways of causing that are unseen", "", [right], f"{len(real)} logs")
    wrong: dict[str, dict[str, int]] = {}
    for one, name in zip(examples, said, strict=True):
        if name != one.cause:
            wrong.setdefault(one.cause, {})[name] = wrong.get(one.cause, {}).get(name, 0) + 1
    report.raw["confused"] = wrong
    report.raw["recall"] = {name: accuracy([name] * truth.count(name), [one for one, true in zip(said, truth, strict=True) if true == name]) for name in names}
    return scores


def fitted_temperature(scores: Floats, examples: Sequence[Example]) -> float:
    names = sorted({one.cause for one in examples})
    rows, columns = np.arange(len(examples)), np.array([names.index(one.cause) for one in examples])
    tried = np.geomspace(0.3, 5, 60)
    losses = [-np.log(np.maximum(shares(scores / temperature)[rows, columns], 1e-9)).mean() for temperature in tried]
    return float(tried[int(np.argmin(losses))])


def judge(report: Report, arrays: Mapping[str, npt.NDArray[Any]], kept: Sequence[Example]) -> None:
    loaded = TextModel.load(arrays)
    said = [loaded.probabilities(one.digest) for one in kept]
    best = [max(one, key=one.__getitem__) for one in said]
    truth = [one.cause for one in kept]
    report.series("accuracy on the kept set", "", [accuracy(truth, best)], f"{len(kept)} logs of {len({one.group for one in kept})} groups")
    report.series("macro-F1 on the kept set", "", [macro_f1(truth, best)])
    probabilities = np.array([[one[name] for name in loaded.classes] for one in said])
    report.series("calibration error on the kept set", "", [calibration_error(probabilities, best, truth)])
    report.series("size", "kB", [sum(array.nbytes for array in arrays.values()) / 1000], f"{len(arrays['hashes'])} words, before compression")
    began = time.perf_counter()
    for one in kept[:200]:
        loaded.probabilities(one.digest)
    report.series("one digest judged", "ms", [(time.perf_counter() - began) / max(1, len(kept[:200])) * 1e3])


def replaced(new: Mapping[str, npt.NDArray[Any]], kept: Sequence[Example]) -> None:
    """Write the new model, unless the last one is better on the kept set."""
    truth = [one.cause for one in kept]
    try:
        with np.load(MODEL, allow_pickle=False) as arrays:
            last = TextModel.load({name: arrays[name] for name in arrays.files})
    except (FileNotFoundError, UnfitModel) as error:
        say(f"nothing to compare with: {error}")
    else:
        before, now = answers(last, kept), answers(TextModel.load(new), kept)
        held = {"accuracy": (accuracy(truth, before), accuracy(truth, now)), "macro-F1": (macro_f1(truth, before), macro_f1(truth, now))}
        for name, (was, is_now) in held.items():
            say(f"{name} on the kept set: {was:.4f} of the last model, {is_now:.4f} now")
        fallen = [name for name, (was, is_now) in held.items() if is_now < was]
        if fallen:
            lost = sorted({f"{one.cause}: {one.group}" for one, was, is_now in zip(kept, before, now, strict=True) if was == one.cause != is_now})
            sys.exit(f"Not written: {' and '.join(fallen)} on the kept set fell ({held}). Right before and wrong now: {'; '.join(lost[:40])}")
    np.savez_compressed(MODEL, **new)
    say(f"written to {MODEL}: {MODEL.stat().st_size / 1000:.0f} kB")


def answers(one: TextModel, examples: Sequence[Example]) -> list[str]:
    said = [one.probabilities(each.digest) for each in examples]
    return [max(each, key=each.__getitem__) for each in said]


def accuracy(truth: Sequence[str], said: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(truth, said, strict=True)) / max(1, len(truth))


def macro_f1(truth: Sequence[str], said: Sequence[str]) -> float:
    pairs = list(zip(truth, said, strict=True))
    scores = []
    for name in sorted(set(truth)):
        hit = sum(a == b == name for a, b in pairs)
        scores.append(2 * hit / (truth.count(name) + said.count(name)))
    return sum(scores) / len(scores)


def shares(scores: Floats) -> Floats:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    said: Floats = raised / raised.sum(axis=1, keepdims=True)
    return said


def calibration_error(probabilities: Floats, said: Sequence[str], truth: Sequence[str], *, bins: int = 10) -> float:
    """By how much confidence and accuracy differ, over ten equal bins of confidence, weighted by their size."""
    sure = probabilities.max(axis=1)
    right = np.array([a == b for a, b in zip(said, truth, strict=True)], dtype=float)
    place = np.minimum((sure * bins).astype(int), bins - 1)
    return float(sum(abs(sure[place == one].mean() - right[place == one].mean()) * (place == one).mean() for one in range(bins) if (place == one).any()))


if __name__ == "__main__":
    main()
