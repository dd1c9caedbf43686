"""Diagnosis on logs of real failures: is the class right, can trying again help, is a healthy log left alone, and is the confidence what it says?

Two rows are ours: what ships, on all logs, which its signatures were tuned on and its text model never saw; and the same with the text model trained anew on
the logs of all other sources (a repository or a thread is one source), so that no source stands on both sides. Beside them, judged by the same split:
regular expressions like those other systems use (written anew), the nearest template of our Drain, and plain TF-IDF with a logistic regression.

Permanence is judged on these logs together with the incidents that `incidents/cause.py --out DIR` really caused, with `--incidents DIR`.

The logs are not part of this repository: `--data DIR`, or HOLDFAST_DATA, names a folder with failures/failure-logs.jsonl (a JSON object a line: text, label,
permanence, source). Needs scikit-learn (`pip install 'holdfast[dev]'`).
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from harness.measure import Report, arguments, say
from train_text_model import Example, fitted, of_written

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.causes import Thinks, diagnose
from holdfast.diagnose.reading import read
from holdfast.diagnose.reading.templates import masked
from holdfast.diagnose.readings import readings
from holdfast.diagnose.signatures import SIGNATURES
from holdfast.diagnose.taxonomy import CLASSES, HEALTHY, UNKNOWN, Permanence
from holdfast.domain.log_diagnosis import LogDiagnosis
from holdfast.domain.log_event import LogDigest

FETCH = "Name the folder that holds failures/failure-logs.jsonl with --data DIR, or HOLDFAST_DATA=DIR."
FOLDS = 5
OFTEN = 5  # Rows a class needs to count for macro-F1.
ROW_COUNTS = 3.0  # How much more a real log counts than a written one, when the model is trained anew.
BINS = 10
PERMANENCE = tuple(one.value for one in Permanence)
# Rows whose label we doubt, by their place in the file, and why, in our own words. They count as they are labelled.
DOUBTED = {
    190: "the allocator ran out, the library went on with the CPU and training made progress: healthy",
    245: "an index beyond the end of an array, for which the taxonomy has a class of its own; labelled code_error",
    251: "a call that a newer version of a parser no longer takes: version_incompat; labelled code_error",
    256: "a tracker's own log says that it found no conda, and goes on: healthy", 257: "as 256",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    digest: LogDigest
    text: str
    label: str
    permanence: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    cause: str
    confidence: float
    permanence: str



def main() -> None:
    texts = {"data": "the folder that holds failures/ (default: $HOLDFAST_DATA)", "incidents": "what incidents/cause.py --out has caused"}
    chosen = arguments(__doc__ or "", texts=texts, each=(3, 1, "logs of every written message, for training anew"))
    report = Report("Diagnosis")
    rows = logs(chosen.data)
    if rows is None:
        report.note(f"Nothing was judged: neither --data nor HOLDFAST_DATA is set. {FETCH}")
        report.finish(chosen)
        return
    sources = {row.source for row in rows}
    report.note(f"{len(rows)} logs of {len(sources)} sources, {sum(row.label == HEALTHY for row in rows)} of them healthy.")
    say(f"{len(rows)} logs read")
    caused = list(incidents(chosen.incidents))
    shipped = [said(diagnose(row.digest, model=shipped_text_model())) for row in rows]
    measured(report, "what ships", rows, shipped, bars=True)
    permanence(report, "what ships", rows, shipped, caused, [said(diagnose(row.digest, model=shipped_text_model())) for row in caused])
    say("what ships was judged")
    written = list(of_written(chosen.seed, chosen.each))
    retrained = held_out(rows, written)
    measured(report, "trained anew, sources held out", rows, retrained, bars=True)
    say("sources were held out")
    for name, judge in (("regular expressions", expressions), ("nearest template", nearest_template), ("TF-IDF", tf_idf)):
        measured(report, name, rows, judge(rows), bars=False)
        say(f"{name} judged")
    measured(report, "signatures alone", rows, [said(diagnose(row.digest)) for row in rows], bars=False)
    per_signature(report, rows)
    confusion(report, rows, shipped)
    doubted(report, rows, shipped)
    report.finish(chosen)


def said(one: LogDiagnosis) -> Said:
    return Said(cause=one.cause, confidence=one.confidence, permanence=one.permanence)


# The logs.


def logs(given: str) -> list[Row] | None:
    where = given or os.environ.get("HOLDFAST_DATA", "")
    if not where:
        return None
    file = Path(where) / "failures" / "failure-logs.jsonl"
    if not file.is_file():
        sys.exit(f"diagnose.py: {file} is not there. {FETCH}")
    return [row_of(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def row_of(row: Mapping[str, str]) -> Row:
    digest = read([("log.txt", [row["text"].encode()])])
    return Row(digest=digest, text=row["text"], label=row["label"], permanence=row["permanence"], source=row["source"].partition(":")[0])


def incidents(directory: str) -> Iterator[Row]:
    """What was really caused: logs, and truth.json beside them."""
    for file in sorted(Path(directory).glob("*/truth.json")) if directory else ():
        truth = json.loads(file.read_text())
        if truth["cause"] in (HEALTHY, UNKNOWN):
            continue
        digest = read([(str(log.relative_to(file.parent)), [log.read_bytes()]) for log in sorted(file.parent.rglob("*.log"))])
        yield Row(digest=digest, text="", label=truth["cause"], permanence=truth["permanence"], source=f"caused/{truth['way']}")


# Figures.


def measured(report: Report, name: str, rows: Sequence[Row], answers: Sequence[Said], *, bars: bool) -> None:
    right, f1 = accuracy(rows, answers), macro_f1(rows, answers)
    healthy = [one for row, one in zip(rows, answers, strict=True) if row.label == HEALTHY]
    faulty = sum(one.cause not in (HEALTHY, UNKNOWN) for one in healthy) / len(healthy)
    error = calibration_error(rows, answers)
    low, high = by_source(rows, answers, accuracy)
    low_f1, high_f1 = by_source(rows, answers, macro_f1)
    report.series(f"{name}: accuracy", "", [right], f"95 % by source {low:.3f} to {high:.3f}")
    report.series(f"{name}: macro-F1", "", [f1], f"95 % by source {low_f1:.3f} to {high_f1:.3f}; classes with {OFTEN} rows or more")
    report.series(f"{name}: healthy called faulty", "", [faulty], f"{sum(one.cause == UNKNOWN for one in healthy)} more called unknown")
    if bars:
        report.series(f"{name}: calibration error", "", [error])
        report.bar(f"{name}: accuracy", right, "", at_least=0.93)
        report.bar(f"{name}: macro-F1", f1, "", at_least=0.88)
        report.bar(f"{name}: healthy called faulty", faulty, "", at_most=0.03)
        report.bar(f"{name}: calibration error", error, "", at_most=0.05)


def permanence(report: Report, name: str, rows: Sequence[Row], answers: Sequence[Said], caused: Sequence[Row], caused_answers: Sequence[Said]) -> None:
    pairs = [(row, one) for row, one in zip((*rows, *caused), (*answers, *caused_answers), strict=True) if row.label != HEALTHY]
    passing = sum(row.permanence == Permanence.TRANSIENT for row in caused)
    report.note(f"Permanence: {sum(row.label != HEALTHY for row in rows)} logs and {len(caused)} incidents, {passing} of them transient.")
    for word in PERMANENCE:
        of = [one for row, one in pairs if row.permanence == word]
        recall = sum(one.permanence == word for one in of) / len(of) if of else None
        report.series(f"{name}: permanence {word}", "", [recall] if recall is not None else [], f"recall over {len(of)}")
        report.bar(f"{name}: recall of {word}", recall, "", at_least=0.85)
    worst = sum(row.permanence == "permanent" and one.permanence == "transient" for row, one in pairs)
    report.bar(f"{name}: transient said of a permanent cause", worst, "times", at_most=0)
    if caused:
        report.series(f"{name}: accuracy on caused incidents", "", [accuracy(caused, caused_answers)])


def accuracy(rows: Sequence[Row], answers: Sequence[Said]) -> float:
    return sum(row.label == one.cause for row, one in zip(rows, answers, strict=True)) / len(rows)


def macro_f1(rows: Sequence[Row], answers: Sequence[Said]) -> float:
    count = Counter(row.label for row in rows)
    scores = []
    for name in (name for name, times in count.items() if times >= OFTEN):
        both = sum(row.label == name == one.cause for row, one in zip(rows, answers, strict=True))
        either = count[name] + sum(one.cause == name for one in answers)
        scores.append(2 * both / either)
    return sum(scores) / len(scores) if scores else 0.0


def calibration_error(rows: Sequence[Row], answers: Sequence[Said]) -> float:
    """How far confidence and truth are apart, in ten equal steps of confidence, each weighed by its answers."""
    bins: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for row, one in zip(rows, answers, strict=True):
        bins[min(BINS - 1, int(one.confidence * BINS))].append((one.confidence, row.label == one.cause))
    return sum(abs(sum(sure for sure, _ in each) - sum(right for _, right in each)) for each in bins.values()) / len(rows)


def by_source(rows: Sequence[Row], answers: Sequence[Said], figure: Callable[[Sequence[Row], Sequence[Said]], float]) -> tuple[float, float]:
    """The 95 % interval of a figure when whole sources are drawn anew."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.source].append(number)
    draw, names, found = random.Random(0), sorted(groups), []
    for _ in range(400):
        chosen = [number for name in draw.choices(names, k=len(names)) for number in groups[name]]
        found.append(figure([rows[number] for number in chosen], [answers[number] for number in chosen]))
    found.sort()
    return found[int(0.025 * len(found))], found[int(0.975 * len(found))]


# Trained anew, with whole sources held out.


def folds(rows: Sequence[Row]) -> Iterator[tuple[list[int], list[int]]]:
    """Those to train on and those to judge, split by source."""
    for fold in range(FOLDS):
        judged = [number for number, row in enumerate(rows) if crc32(row.source.encode()) % FOLDS == fold]
        yield [number for number in range(len(rows)) if number not in set(judged)], judged


@dataclass(frozen=True, slots=True)
class Anew:
    """A text model of this run, as the combination takes it."""

    trained: Sequence[Example]

    def thinker(self) -> Thinks:
        found = fitted(self.trained)

        class Thinker:
            def probabilities(self, digest: LogDigest, /) -> Mapping[str, float]:
                scores = found.scores([_as_example("", HEALTHY, digest)])[0]
                shares = np.exp(scores - scores.max())
                return dict(zip(found.classes, (shares / shares.sum()).tolist(), strict=True))

        return Thinker()


def _as_example(group: str, cause: str, digest: LogDigest) -> Example:
    from holdfast.diagnose.text_model import features

    return Example(name=group, group=group, cause=cause, words=features(digest), digest=digest, counts=ROW_COUNTS)


def held_out(rows: Sequence[Row], written: Sequence[Example]) -> list[Said]:
    answers: dict[int, Said] = {}
    for number, (known, judged) in enumerate(folds(rows), start=1):
        real = [_as_example(rows[one].source, rows[one].label, rows[one].digest) for one in known]
        model = Anew([*written, *real]).thinker()
        answers |= {one: said(diagnose(rows[one].digest, model=model)) for one in judged}
        say(f"fold {number} of {FOLDS}: {len(known)} logs to train on, {len(judged)} judged")
    return [answers[number] for number in range(len(rows))]


# Peers.

# What regular expressions of other systems look for in a log, in our own words: the first that is found in the last lines decides.
EXPRESSIONS: tuple[tuple[str, str], ...] = (
    ("gpu_oom", r"CUDA out of memory|OutOfMemoryError"), ("gpu_ecc", r"uncorrectable ECC"), ("gpu_fell_off_bus", r"fallen off the bus|Xid.*\b79\b"),
    ("gpu_nvlink", r"NVLink"), ("device_assert", r"device-side assert"), ("gpu_illegal_access", r"illegal memory access"),
    ("gpu_kernel_error", r"CUDA error|CUDNN_STATUS|CUBLAS_STATUS"), ("nccl_timeout", r"collective operation timeout"),
    ("nccl_system_error", r"NCCL (?:error|WARN)|ncclSystemError"), ("gloo_connect", r"gloo"), ("port_in_use", r"Address already in use"),
    ("disk_full", r"No space left on device"), ("host_oom", r"oom-kill|Out of memory|OOMKilled|\bKilled\b|exit code 137"),
    ("dataloader_worker_died", r"DataLoader worker"), ("time_limit", r"TIME LIMIT|RUNLIMIT"), ("preempted", r"PREEMPT"), ("node_fail", r"NODE FAILURE"),
    ("user_cancelled", r"KeyboardInterrupt|CANCELLED|SIGTERM"), ("segfault", r"Segmentation fault|SIGSEGV"), ("numeric_nan", r"\bnan\b|\bNaN\b"),
    ("import_missing", r"ModuleNotFoundError|ImportError"), ("file_not_found", r"FileNotFoundError|No such file"),
    ("permission_denied", r"Permission denied"), ("remote_service_error", r"ConnectionError|HTTPError|timed out"),
    ("shape_mismatch", r"size mismatch|shapes? cannot|must match"), ("code_error", r"Traceback|Error:"),
)  # fmt: skip


def expressions(rows: Sequence[Row]) -> list[Said]:
    found = [next((name for name, pattern in EXPRESSIONS if re.search(pattern, row.text)), HEALTHY) for row in rows]
    return [Said(cause=name, confidence=0.0, permanence=CLASSES[name].permanence.value) for name in found]


def nearest_template(rows: Sequence[Row]) -> list[Said]:
    """Each log as the set of its templates; the most alike of another source decides."""
    templates = [frozenset(masked(line.strip()) for line in row.text.splitlines() if line.strip()) for row in rows]
    answers: dict[int, str] = {}
    for known, judged in folds(rows):
        rare = Counter(template for one in known for template in templates[one])
        for one in judged:
            best = max(known, key=lambda other: sum(1.0 / rare[each] for each in templates[one] & templates[other]))
            shared = templates[one] & templates[best]
            answers[one] = rows[best].label if shared else UNKNOWN
    return [Said(cause=answers[number], confidence=0.0, permanence=CLASSES[answers[number]].permanence.value) for number in range(len(rows))]


def tf_idf(rows: Sequence[Row]) -> list[Said]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    answers: dict[int, str] = {}
    for known, judged in folds(rows):
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
        learned = LogisticRegression(C=30.0, max_iter=400, class_weight="balanced")
        learned.fit(words.fit_transform(rows[one].text for one in known), [rows[one].label for one in known])
        answers |= dict(zip(judged, map(str, learned.predict(words.transform(rows[one].text for one in judged))), strict=True))
    return [Said(cause=answers[number], confidence=0.0, permanence=CLASSES[answers[number]].permanence.value) for number in range(len(rows))]


# What stands behind the figures.


def per_signature(report: Report, rows: Sequence[Row]) -> None:
    fired: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for name in {one.signature for one in readings(row.digest)}:
            fired[name].append(row)
    report.raw["signatures"] = {
        one.name: {
            "rows": len(fired[one.name]), "sources": len({row.source for row in fired[one.name]}),
            "right": sum(row.label == one.cause for row in fired[one.name]), "source": one.source,
        }
        for one in SIGNATURES
    }  # fmt: skip
    alone = [one for one in SIGNATURES if fired[one.name] and len({row.source for row in fired[one.name]}) == 1]
    wrong = [one.name for one in alone if not one.source]
    firing = sum(bool(fired[one.name]) for one in SIGNATURES)
    report.note(f"{firing} of {len(SIGNATURES)} signatures fire, {len(alone)} of them on one source only, of which {len(wrong)} cite no document.")


def confusion(report: Report, rows: Sequence[Row], answers: Sequence[Said]) -> None:
    table = Counter((row.label, one.cause) for row, one in zip(rows, answers, strict=True) if row.label != one.cause)
    report.raw["confusion"] = [{"label": label, "said": cause, "rows": times} for (label, cause), times in sorted(table.items())]
    for (label, cause), times in table.most_common(12):
        report.note(f"{times} times {label} was called {cause}")


def doubted(report: Report, rows: Sequence[Row], answers: Sequence[Said]) -> None:
    report.raw["doubted"] = {str(number): {"label": rows[number].label, "why": why} for number, why in DOUBTED.items() if number < len(rows)}
    kept = [number for number in range(len(rows)) if number not in DOUBTED]
    right = accuracy([rows[number] for number in kept], [answers[number] for number in kept])
    report.series("what ships: accuracy without doubted rows", "", [right], f"{len(DOUBTED)} rows whose label we doubt are left out here and nowhere else")


if __name__ == "__main__":
    main()
