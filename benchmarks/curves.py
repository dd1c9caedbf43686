"""Curves: small models of many kinds are really trained, all of them well, and nothing may be said of any.

Every run is looked at as control would: the mean of the loss and of the gradient's norm since the last look, and the newest learning rate, one look a
second. So many steps between two looks are a pace; a run is judged at two. The detectors are those that control runs, as they come. A finding of
severity warning or more is a false alarm; and so is a plateau, though it is only worth knowing: all of these still learn, or have learned.

The kinds are in two lists: `first.py`, made while the thresholds could still change, and `last.py`, a third of all, made when they were frozen:

    loss        looks 5, history 60, share 0.7, noises 8; come down means by half of the first loss, beyond it by 3 times the progress
    gradient    looks 5, history 60, up 20, down 1000
    not finite  steps 3
    plateau     share 0.5, less 0.01, fine 0.005, history 600; come down means by 0.3 of the first loss, learned is 0.05 of it

The other side is counted in the same trainings: a fault at two thirds of some of them, and whether anything is said within 30 looks. Loss and norm also go
to the detector of unusual values, for information: its findings wake nobody. Step times go nowhere: a step here takes a millisecond and stands for
a second, so that any other work on the machine would pass for a slow minute.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from harness.measure import Report, arguments, say
from scripts.curves.first import FIRST
from scripts.curves.last import LAST
from scripts.curves.training import HEALTHY, INPUTS, Kind, Said, Trouble

from holdfast.detect.gradient import Gradient
from holdfast.detect.loss import LossJump
from holdfast.detect.not_finite import NotFinite
from holdfast.detect.plateau import Plateau
from holdfast.detect.unusual import Unusual
from holdfast.domain.finding import Finding, Severity

FOUND_WITHIN = 30  # Looks.
FAULT_PACE = 2
SPIKE_LOOKS = 40  # So long the inputs are wrong; the other faults stay.


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    loss: float  # NaN: no finite one since the last look.
    norm: float
    rate: float
    step: int
    bad_since: int  # The step since which the loss is not finite; -1: it is.


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    kind: str
    seed: int
    name: str
    pace: int
    looks: tuple[Look, ...]

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}, {self.name}, {self.pace} steps a look"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    look: int
    kind: str
    severity: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    kind: str
    fault: str
    seed: int
    before: int  # Alarms before the fault.
    after: int | None  # Looks until it was found.
    by: str


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        texts={"plots": "a folder for a drawing of each curve that raised an alarm", "only": "kinds whose name contains this"},
        seeds=(5, 1, "runs of each kind"),
        fault_seeds=(3, 1, "runs of each kind with each fault"),
    )
    torch.set_num_threads(1)
    report = Report("Curves: healthy trainings of many kinds")
    counts = {}
    for name, kinds in (("first two thirds", FIRST), ("last third", LAST)):
        kinds = [kind for kind in kinds if chosen.only in kind.name]
        counts[name] = sum(healthy(kind, chosen.seed, chosen.seeds, chosen.plots, report) for kind in kinds)
        say(f"{name}: {len(kinds)} kinds, {counts[name]} false alarms")
    injected = [one for kind in (*FIRST, *LAST) if chosen.only in kind.name for one in faults(kind, chosen.seed, chosen.fault_seeds)]
    tell_of_faults(report, injected)
    for name, count in counts.items():
        report.bar(f"false alarms, {name}", count, "findings", at_most=0)
    report.finish(chosen)


# Healthy ones.


def healthy(kind: Kind, first_seed: int, seeds: int, plots: str, report: Report) -> int:
    """Train and judge one kind; how many false alarms there were."""
    began, alarms, unusual, curves, looks = time.monotonic(), 0, 0, 0, 0
    for seed in range(first_seed, first_seed + seeds):
        said = trained(kind, seed, kind.steps, HEALTHY)
        for pace in kind.paces:
            for curve in looked_at(kind, seed, said, pace):
                found = judged(curve) + plateaus(curve)
                alarms, unusual, curves, looks = alarms + len(found), unusual + unusual_values(curve), curves + 1, looks + len(curve.looks)
                for one in found:
                    say(f"FALSE ALARM: {curve}, look {one.look}: {one.kind}: {one.because}")
                if found and plots:
                    draw(curve, found, Path(plots))
                report.raw.setdefault("curves", []).append({
                    "kind": kind.name, "seed": seed, "curve": curve.name, "pace": pace, "looks": len(curve.looks), "first_loss": curve.looks[0].loss,
                    "last_loss": _mean([look.loss for look in curve.looks[-20:]]), "alarms": [asdict(one) for one in found],
                })  # fmt: skip
    note = f"{curves} curves, {looks} looks; for information: {unusual} unusual values; {time.monotonic() - began:.0f} s"
    report.series(kind.name, "false alarms", [alarms], note)
    say(f"{kind.name}: {alarms} false alarms; {note}")
    return alarms


def trained(kind: Kind, seed: int, steps: int, trouble: Trouble, most: int | None = None) -> list[tuple[Said, ...]]:
    """What the training said of its steps. `most`: it is left after so many."""
    torch.manual_seed(seed)
    return list(islice(kind.train(steps, trouble), most))


def looked_at(kind: Kind, seed: int, said: Sequence[tuple[Said, ...]], pace: int) -> Iterator[Curve]:
    for number, name in enumerate(kind.curves):
        yield Curve(kind=kind.name, seed=seed, name=name, pace=pace, looks=tuple(_looks([one[number] for one in said], pace)))


def _looks(said: Sequence[Said], pace: int) -> Iterator[Look]:
    bad_since = -1
    for at in range(0, len(said) - pace + 1, pace):
        some = said[at : at + pace]
        for step, one in enumerate(some, at):
            bad_since = -1 if math.isfinite(one.loss) else step if bad_since < 0 else bad_since
        loss, norm = _mean([one.loss for one in some]), _mean([one.norm for one in some])
        yield Look(loss=loss, norm=norm, rate=some[-1].rate, step=at + pace - 1, bad_since=bad_since)


def _mean(values: Sequence[float]) -> float:
    """Of those that are finite, as the trainer adds them up."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def judged(curve: Curve) -> list[Alarm]:
    """What the detectors of control say, as they come."""
    loss, gradient, not_finite = LossJump(), Gradient(), NotFinite()
    alarms: list[Alarm] = []
    told: set[str] = set()
    for number, look in enumerate(curve.looks):
        now = float(number)
        if math.isfinite(look.loss):
            loss.look(look.loss, look.rate, now)
        if math.isfinite(look.norm):
            gradient.look(look.norm, now)
        not_finite.look({0: look.bad_since} if look.bad_since >= 0 else {}, {0: look.step}, ["node"], now)
        standing = {one.key: one for detector in (loss, gradient, not_finite) for one in detector.standing if one.severity is not Severity.INFO}
        alarms += [_alarm(number, one) for key, one in standing.items() if key not in told]
        told = set(standing)
    return alarms


def plateaus(curve: Curve) -> list[Alarm]:
    """The first, if there is one, without knowing how long the run will be: that is the harder case."""
    plateau = Plateau()
    for number, look in enumerate(curve.looks):
        plateau.look(look.loss, look.rate, math.nan, float(number))
        if plateau.standing:
            return [_alarm(number, plateau.standing[0])]
    return []


def unusual_values(curve: Curve) -> int:
    rows = np.array([(look.loss, look.norm) for look in curve.looks])
    return len(Unusual(2).look_at_rows(np.arange(len(rows), dtype=np.float64), rows).found)


def _alarm(look: int, finding: Finding) -> Alarm:
    return Alarm(look=look, kind=finding.kind, severity=finding.severity, because=finding.because)


# Faulty ones.


def faults(kind: Kind, first_seed: int, seeds: int) -> Iterator[Injected]:
    """Each fault of a kind, at two thirds of a run of half the length."""
    steps = kind.steps // 2
    at = 2 * steps // 3 // FAULT_PACE * FAULT_PACE
    for fault in kind.faults:
        trouble = Trouble(fault=fault, at=at, until=at + SPIKE_LOOKS * FAULT_PACE if fault == INPUTS else steps)
        for seed in range(first_seed, first_seed + seeds):
            said = trained(kind, seed, steps, trouble, most=at + 2 * FOUND_WITHIN * FAULT_PACE)
            (curve,) = looked_at(kind, seed, said, FAULT_PACE)
            alarms = judged(curve)
            late = [one for one in alarms if one.look >= at // FAULT_PACE]
            after = late[0].look - at // FAULT_PACE if late else None
            yield Injected(
                kind=kind.name, fault=fault, seed=seed, before=len(alarms) - len(late), after=after, by=" ".join(sorted({one.kind for one in late})),
            )  # fmt: skip


def tell_of_faults(report: Report, injected: Sequence[Injected]) -> None:
    report.raw["faults"] = [asdict(one) for one in injected]
    for fault in dict.fromkeys(one.fault for one in injected):
        of_it = [one for one in injected if one.fault == fault]
        found = [one for one in of_it if one.after is not None and one.after <= FOUND_WITHIN]
        missed = Counter(one.kind for one in of_it if one not in found)
        note = f"found {len(found)} of {len(of_it)} within {FOUND_WITHIN}" + "".join(f"; missed in {kind}, {many} times" for kind, many in missed.items())
        report.series(fault, "looks until found", [float(one.after) for one in found if one.after is not None], note)
    early = sum(one.before for one in injected)
    report.note(f"{len(injected)} runs with a fault; {early} alarms in them before it.")


# Drawings.


def draw(curve: Curve, alarms: Sequence[Alarm], folder: Path) -> None:
    """Loss above, norm below, each on its own scale by powers of ten where it can be; a red line where an alarm was raised."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() else "-" for letter in str(curve))
    rows = [_line([look.loss for look in curve.looks], 20), _line([look.norm for look in curve.looks], 200)]
    marks = "".join(f'<path d="M{10 + 780 * one.look / len(curve.looks):.1f} 10V370" stroke="red"><title>{one.kind}</title></path>' for one in alarms)
    texts = "".join(f'<text x="10" y="{395 + 14 * row}">{_escaped(f"look {one.look}: {one.because}")}</text>' for row, one in enumerate(alarms[:5]))
    (folder / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="470" font-size="11"><rect width="800" height="470" fill="white"/>'
        f'<text x="10" y="12">{_escaped(str(curve))}</text>{"".join(rows)}{marks}{texts}</svg>\n'
    )


def _line(values: Sequence[float], top: int, height: int = 160) -> str:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    by_powers = min(finite) > 0
    scaled = [math.log10(value) if by_powers and math.isfinite(value) else value for value in values]
    low, high = (math.log10(min(finite)), math.log10(max(finite))) if by_powers else (min(finite), max(finite))
    points = " ".join(
        f"{10 + 780 * at / len(values):.1f},{top + height * (1 - (value - low) / max(high - low, 1e-12)):.1f}"
        for at, value in enumerate(scaled) if math.isfinite(value)
    )  # fmt: skip
    ends = f'<text x="700" y="{top + 10}">{max(finite):.4g}</text><text x="700" y="{top + height}">{min(finite):.4g}</text>'
    return f'<polyline fill="none" stroke="steelblue" points="{points}"/>{ends}'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


if __name__ == "__main__":
    main()
