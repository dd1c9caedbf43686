"""Causes: everything that was seen put together, as log-odds, into one answer with its probability.

Each kind of evidence adds to the classes it speaks for: signatures, the text model, exit codes, the kernel, findings, the numbers before the end. No kind
comes first: a clear line outweighs the model, and the model decides where lines are unclear. What weighs how much stands in `weights.py`. `unknown` has a
weight of its own and wins where nothing else is worth more; `healthy` gains from progress and a good end and loses to anything fatal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.diagnose import weights
from holdfast.diagnose.numbers import Said, Series, before_the_end, first_bad_step, last_step, of_losses
from holdfast.diagnose.over_ranks import Culprit, Writer, culprit, first_alone, in_their_own_files, order, writer_of
from holdfast.diagnose.permanence import permanence_of
from holdfast.diagnose.readings import UNREAD, Reading, last_starts, readings
from holdfast.diagnose.signatures.settings import HOLDFAST_REFUSES
from holdfast.diagnose.taxonomy import CLASSES, HEALTHY, UNKNOWN, Role, class_of, classes_seen_as
from holdfast.diagnose.taxonomy.xids import xid_of
from holdfast.domain.diagnosis import Cause
from holdfast.domain.finding import Finding
from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.log_diagnosis import LogDiagnosis, Quote
from holdfast.domain.log_event import LogDigest, LogEvent, LogForm
from holdfast.domain.surroundings import Difference

_FATAL = 1.0  # A reading of less weight does not make a run a failed one.
_COUNTS = 0.3
_ENDED_BY_LAUNCHER = (-15, 143)
_SURE_TO_COUNT = 0.45  # Less is left of what was survived.
_GOES_ON_LINES = 1  # More than so many lines after an error, and the program went on.
_ALTERNATIVES = 5
_LIKELY = 0.01  # What is less likely is not worth a line.
_QUOTES = 6
_QUOTED_CHARACTERS = 400
_CHANGES_SAID = 4
NUMBERS_ARE_BAD = "numeric_nan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known besides the log."""

    exit_codes: tuple[tuple[int | None, int], ...] = ()  # Of our own workers: rank, and the code or the negative signal.
    kernel: tuple[KernelEvent, ...] = ()
    findings: tuple[Finding, ...] = ()
    seen_as: Cause | None = None  # What the core named it,
    named: str = ""  # and the class, where an end of a worker told it.
    series: Series = field(default_factory=dict)
    changed: tuple[Difference, ...] = ()  # What is different since the last good attempt.


class Thinks(Protocol):
    """The text model, or whoever else gives a probability for each class."""

    def probabilities(self, digest: LogDigest, /) -> Mapping[str, float]: ...


@dataclass(slots=True)
class _Weighed:
    """Log-odds by class, and the sentences they came with."""

    log_odds: dict[str, float] = field(default_factory=lambda: {name: 0.0 if name in (HEALTHY, UNKNOWN) else weights.PRIOR for name in CLASSES})
    said: list[str] = field(default_factory=list)

    def add(self, cause: str, value: float, because: str) -> None:
        self.log_odds[cause] = self.log_odds.get(cause, 0.0) + value
        self.said.append(f"{cause} {value:+.1f}: {because}")


def diagnose(
    digest: LogDigest, *, model: Thinks | None = None, beside: Beside | None = None, overrides: Mapping[str, str] | None = None
) -> LogDiagnosis:
    """What a digest and whatever stands beside it say. `model` is the text model; `overrides` are corrections by people."""
    beside = beside or Beside()
    digest = in_their_own_files(digest)
    read = readings(digest)
    left = order(read, digest)
    read = [replace(one, counts=one.counts * share) for one, share in zip(read, left, strict=True)]
    weighed = _Weighed()
    _signatures(read, digest, weighed)
    _exits((*digest.exit_codes, *beside.exit_codes), weighed)
    _beside(beside, weighed)
    _numbers(digest, beside, weighed)
    _good_end(digest, read, beside.exit_codes, weighed)
    _model(model, digest, read, weighed)
    probabilities = probabilities_of(weighed.log_odds)
    return _answer(digest, read, probabilities, weighed, overrides or {})


def _signatures(read: Sequence[Reading], digest: LogDigest, weighed: _Weighed) -> None:
    """The clearest event of each class, a little for each other one; echoes hardly count beside a root."""
    read = _without_lesser_lines(read)
    root = max((one.weight for one in read if one.role is Role.ROOT), default=0.0)
    by_class: dict[str, list[Reading]] = {}
    for one in read:
        if one.cause != UNKNOWN and one.role in (Role.ROOT, Role.ECHO):
            by_class.setdefault(one.cause, []).append(one)
    for cause, ones in by_class.items():
        worth = sorted({_place(one.event): _worth(one, root) for one in sorted(ones, key=lambda each: _worth(each, root))}.values(), reverse=True)
        value = worth[0] + weights.AGAIN * min(1.0, sum(worth[1:3]))
        best = max(ones, key=lambda each: _worth(each, root))
        if value > 0.05:
            place = f"{best.event.path}:{best.event.first_line}"
            weighed.add(cause, weights.SIGNATURE * value, f"{place} {best.signature}{' (an echo)' if best.role is Role.ECHO else ''}, {best.source}")
    read_places = {_place(one.event) for one in read}
    known = max((one.weight for one in read if one.role is Role.ROOT and one.cause != UNKNOWN), default=0.0)
    unread = next((one.event for one in read if one.signature == UNREAD and one.event.form is LogForm.PYTHON and one.weight >= _FATAL), None)
    cut = next((one for one in digest.events if _fatal_form(one) and _place(one) not in read_places and not one.warning and not one.progress_after), None)
    if known < _FATAL and (unread or (cut and root < _FATAL)):
        event = unread or cut
        assert event is not None
        weighed.add("code_error", weights.CODE_UNREAD, f"{event.path}:{event.first_line} a traceback that no signature knows: {event.error}")


def _without_lesser_lines(read: Sequence[Reading]) -> list[Reading]:
    """A lone line that says error was survived where the same writer has a traceback, a record or a code after it."""
    last: dict[Writer, int] = {}
    for one in read:
        if one.event.form is not LogForm.LINE and one.role is Role.ROOT and one.weight >= 2.0:
            writer = writer_of(one.event)
            last[writer] = max(last.get(writer, 0), one.event.first_line)
    survived = [one.event.form is LogForm.LINE and one.event.first_line < last.get(writer_of(one.event), 0) for one in read]
    return [replace(one, counts=one.counts * weights.LINE_BEFORE_WORSE) if less else one for one, less in zip(read, survived, strict=True)]


def _worth(one: Reading, root: float) -> float:
    return one.weight * (weights.ECHO_BESIDE_ROOT if one.role is Role.ECHO and root >= _FATAL else 1.0)


def _place(event: LogEvent) -> tuple[str, int]:
    return (event.path, event.first_line)


def _fatal_form(event: LogEvent) -> bool:
    return event.form in (LogForm.PYTHON, LogForm.NATIVE, LogForm.RUST, LogForm.JAVA)


def _exits(codes: Sequence[tuple[int | None, int]], weighed: _Weighed) -> None:
    """The codes of those that were not ended by the launcher: SIGTERM beside any other code is clean-up."""
    bad = [(rank, code) for rank, code in codes if code != 0]
    own = [(rank, code) for rank, code in bad if code not in _ENDED_BY_LAUNCHER] or bad
    best: dict[str, tuple[float, str]] = {}
    for rank, code in own:
        for cause, value in weights.EXIT_CODES.get(code, ()):
            who = f"rank {rank}" if rank is not None else "the job"
            best.setdefault(cause, (value, f"{who} ended with {code}"))
    for cause, (value, because) in best.items():
        weighed.add(cause, value, because)


def _beside(beside: Beside, weighed: _Weighed) -> None:
    for event in beside.kernel:
        if event.kind == "xid" and event.code is not None:
            xid = xid_of(event.code)
            if xid.role is Role.ROOT:
                weighed.add(xid.cause, 7.0, f"the kernel tells of Xid {xid.code}, {xid.meaning}")
        elif event.kind in weights.KERNEL:
            cause, value = weights.KERNEL[event.kind]
            weighed.add(cause, value, f"the kernel: {event.message}")
    for finding in beside.findings:
        if finding.kind in weights.FINDINGS:
            weighed.add(weights.FINDINGS[finding.kind], weights.FINDING, finding.because)
    if beside.seen_as is not None:
        names = classes_seen_as(beside.seen_as)
        for name in names:  # The fewer it may be, the more it says.
            weighed.add(name, weights.SEEN_AS * math.log(len(CLASSES) / len(names)), f"the core named it {beside.seen_as}")
        for name in weighed.log_odds.keys() - set(names):
            weighed.log_odds[name] += weights.NO_FAILURE if name in (HEALTHY, UNKNOWN) else weights.NOT_SEEN_AS
        weighed.said.append(f"all but {', '.join(names)} {weights.NOT_SEEN_AS:+.1f}: the core named it {beside.seen_as}, so something failed")
    if beside.named in CLASSES:
        weighed.add(beside.named, weights.NAMED, "the end of a worker said so")
    for kind, ones in _by_kind(beside.changed).items():
        cause, value = weights.CHANGED[kind]
        more = f" and {len(ones) - _CHANGES_SAID} more" if len(ones) > _CHANGES_SAID else ""
        weighed.add(cause, value, f"changed since the last good attempt: {', '.join(one.because for one in ones[:_CHANGES_SAID])}{more}")


def _by_kind(changed: Sequence[Difference]) -> dict[str, list[Difference]]:
    """What weighs nothing is left out; ten packages that changed are one piece of evidence."""
    found: dict[str, list[Difference]] = {}
    for one in changed:
        if one.kind in weights.CHANGED:
            found.setdefault(one.kind, []).append(one)
    return found


def _numbers(digest: LogDigest, beside: Beside, weighed: _Weighed) -> None:
    said: list[Said] = [*before_the_end(beside.series), *of_losses(digest.progress)]
    for one in said:
        weighed.add(one.cause, one.log_odds, one.because)


def _good_end(digest: LogDigest, read: Sequence[Reading], own_codes: Sequence[tuple[int | None, int]], weighed: _Weighed) -> None:
    """What speaks for a run that is well. `own_codes` are those of our workers; codes in a log may be those of a worker that was started again."""
    codes = (*digest.exit_codes, *own_codes)
    telling = [one for one in read if one.role is not Role.NOTE and (one.cause != UNKNOWN or one.counts >= 1.0)]
    fatal = any(one.weight >= _FATAL and one.counts > _SURE_TO_COUNT for one in telling)
    starts = last_starts(digest)
    fatal = fatal or any(_fatal_form(one) and not one.warning and not one.progress_after and one.first_line >= starts.get(one.path, 0) for one in digest.events)
    fatal = fatal or any(code not in (0, *_ENDED_BY_LAUNCHER) for _, code in own_codes)
    if digest.no_text_because:
        weighed.add(UNKNOWN, 8.0, digest.no_text_because)
        return
    weighed.add(UNKNOWN, weights.UNKNOWN_BESIDE_FATAL if fatal else weights.UNKNOWN, "what is always possible")
    if fatal:
        weighed.add(HEALTHY, weights.HEALTHY_FATAL, "something fatal was said, and nothing went on after it")
    else:
        harmless = {_place(one.event) for one in read if one.cause == HEALTHY}
        unread = next((one for one in digest.events if not one.warning and not one.progress_after and _place(one) not in harmless), None)
        last = max((one.line for one in digest.tail if unread is not None and one.path == unread.path), default=0)
        if unread is not None and last <= unread.last_line + _GOES_ON_LINES:
            weighed.add(HEALTHY, weights.HEALTHY_UNREAD, f"{unread.path}:{unread.first_line} is called an error")
        elif digest.events or digest.progress or digest.said_finished:
            weighed.add(HEALTHY, weights.HEALTHY_NOTHING_FATAL, "nothing fatal was said")
            if not digest.progress and _only_warned(digest):
                weighed.add(HEALTHY, weights.HEALTHY_WARNINGS, "whatever was said was said as a warning, and the program spoke on")
        if digest.progress:
            weighed.add(HEALTHY, weights.HEALTHY_PROGRESS, f"training made progress up to line {digest.progress[-1].line}")
            weighed.add("hang", weights.HANG_IN_MIDDLE, "the log ends in the middle")
        elif not digest.events:
            weighed.add(UNKNOWN, weights.UNKNOWN_IN_SILENCE, "neither an error nor progress is told of")
    if digest.said_finished:
        weighed.add(HEALTHY, weights.HEALTHY_FINISHED if not fatal else 1.0, "the log ends as a training that is done")
    if codes and all(code == 0 for _, code in codes):
        weighed.add(HEALTHY, weights.HEALTHY_EXIT_ZERO, "every exit code is 0")
    elif any(code not in (0, *_ENDED_BY_LAUNCHER) for _, code in codes) and not fatal:
        weighed.add(HEALTHY, -weights.HEALTHY_EXIT_ZERO, "an exit code is not 0")


def _only_warned(digest: LogDigest) -> bool:
    """Whether there were warnings, nothing but warnings, and lines after the last of them."""
    last = {one.path: one.last_line for one in sorted(digest.events, key=lambda one: one.last_line)}
    return bool(last) and all(one.warning for one in digest.events) and any(one.line > last.get(one.path, one.line) for one in digest.tail)


def _model(model: Thinks | None, digest: LogDigest, read: Sequence[Reading], weighed: _Weighed) -> None:
    """What the text model thinks: of the first cause alone where many speak at once, for most of what is said then are echoes."""
    if model is None:
        return
    alone = first_alone(digest, read)
    thought = model.probabilities(alone)
    best = max(thought, key=lambda name: thought[name])
    known = max((one.weight for one in read if one.role is Role.ROOT and one.cause != UNKNOWN), default=0.0)
    unread = any(one.signature == UNREAD and one.weight >= _FATAL for one in read)
    weight = weights.MODEL_UNREAD if unread and known < _FATAL else weights.MODEL
    for name in weighed.log_odds:
        share = math.log(max(thought.get(name, 0.0), 1e-9))
        weighed.log_odds[name] += weight * max(share, weights.MODEL_FLOOR)
    weighed.said.append(f"the text model thinks it {best} with {thought[best]:.0%}{'' if alone is digest else ', of what came first'}")


def probabilities_of(log_odds: Mapping[str, float]) -> dict[str, float]:
    """Calibrated: log-odds to shares that sum to 1, with something left for everything else."""
    top = max(log_odds.values())
    shares = {name: math.exp((value - top) / weights.TEMPERATURE) for name, value in log_odds.items()}
    total = sum(shares.values())
    return {name: (1.0 - weights.LAPSE) * share / total + weights.LAPSE / len(shares) for name, share in shares.items()}


def _answer(digest: LogDigest, read: Sequence[Reading], probabilities: Mapping[str, float], weighed: _Weighed, overrides: Mapping[str, str]) -> LogDiagnosis:
    cause = max(probabilities, key=lambda name: (probabilities[name], name))
    speaking = sorted((one for one in read if one.cause == cause and one.counts > _COUNTS), key=lambda one: -one.weight)
    fingerprint = next((event.fingerprint for event in (*(one.event for one in speaking), *digest.events) if event.fingerprint), "")
    corrected = overrides.get(fingerprint) if fingerprint else None
    if corrected is not None and corrected in CLASSES:
        weighed.said.append(f"corrected by a person: {fingerprint} is {corrected}, where {cause} was thought")
        probabilities = {name: 0.98 if name == corrected else 0.02 * share for name, share in probabilities.items()}
        cause = corrected
        speaking = sorted((one for one in read if one.event.fingerprint == fingerprint), key=lambda one: -one.weight)
    permanence, scope, why = permanence_of(cause, speaking, probabilities)
    who = culprit(cause, read, digest) if cause not in (HEALTHY, UNKNOWN) else _only_named(read, digest)
    ranked = sorted(((name, share) for name, share in probabilities.items() if name != cause and share >= _LIKELY), key=lambda pair: (-pair[1], pair[0]))
    return LogDiagnosis(
        cause=cause, permanence=str(permanence), scope=str(scope), confidence=probabilities[cause], because=_because(cause, digest, speaking, who, corrected),
        action=class_of(cause).advice(permanence), alternatives=tuple(ranked[:_ALTERNATIVES]), evidence=_quotes(cause, speaking, read, digest), ranks=who.ranks,
        node=who.node, fingerprint=fingerprint, reasoning=(*weighed.said, f"{permanence}: {why}", *((f"who: {who.because}",) if who.because else ())),
        step=first_bad_step(digest.progress) if cause == NUMBERS_ARE_BAD else last_step(digest.progress),
    )  # fmt: skip


def _only_named(read: Sequence[Reading], digest: LogDigest) -> Culprit:
    return culprit(UNKNOWN, read, digest) if read else Culprit()


def _because(cause: str, digest: LogDigest, speaking: Sequence[Reading], who: Culprit, corrected: str | None) -> str:
    known = class_of(cause)
    if digest.no_text_because:
        return f"I cannot tell, because {digest.no_text_because}"
    if corrected:
        return f"{known.definition} So it was corrected for this failure."
    if cause == UNKNOWN:
        first = next((one for one in digest.events if not one.warning), None)
        if first is None:
            return "I cannot tell, because the log tells of neither an error nor progress."
        return f"I cannot tell, because nothing known fits what it says: {first.error or first.message[:120]}"
    if cause == HEALTHY:
        return f"{known.definition} {_health(digest)}."
    rank = f" on rank {', '.join(map(str, who.ranks[:4]))}{' and others' if len(who.ranks) > 4 else ''}" if who.ranks else ""
    told = "" if speaking else " No line says so by itself; it is the likeliest of what was seen."
    if any(one.signature == HOLDFAST_REFUSES for one in speaking):
        told = " Holdfast itself refused what it was given, and its message says what to change."
    return f"{known.definition.rstrip('.')}{rank}.{told}"


def _health(digest: LogDigest) -> str:
    """What speaks for a run that is well; alarming words are mentioned only where some are."""
    step = last_step(digest.progress)
    if digest.said_finished:
        sign = "The log ends as that of a run that is done"
    elif digest.progress:
        sign = f"Training made progress up to {f'step {step}' if step is not None else f'line {digest.progress[-1].line}'}"
    elif digest.exit_codes and all(code == 0 for _, code in digest.exit_codes):
        sign = "Every exit code is 0"
    else:
        sign = "Nothing fatal was said"
    first = next(iter(digest.events), None)
    if first is None:
        return f"{sign}, and nothing in it sounds alarming"
    later = [*((one.path, one.line) for one in digest.progress), *((one.path, one.line) for one in digest.tail)]
    last = max((line for path, line in later if path == first.path), default=0)
    went_on = ", and the run went on" if last > first.last_line else ""
    return f"{sign}. Alarming words stand in it, the first at {first.path}:{first.said_line or first.first_line}{went_on}"


def _quotes(cause: str, speaking: Sequence[Reading], read: Sequence[Reading], digest: LogDigest) -> tuple[Quote, ...]:
    """The lines that speak for it, the clearest first; then what else was said; where nothing was, the last line."""
    others = [one for one in sorted(read, key=lambda one: -one.weight) if one.cause != cause and one.counts > _COUNTS]
    quotes: list[Quote] = []
    seen: set[tuple[str, int]] = set()
    for one in (*speaking, *others):
        if len(quotes) >= _QUOTES:
            break
        event = one.event
        if _place(event) in seen or any(quote.text == _said(event) for quote in quotes):
            continue
        seen.add(_place(event))
        says = one.cause if one.cause != UNKNOWN else str(one.role)
        if one.said_in is not None:
            raised = event.under[one.said_in][:_QUOTED_CHARACTERS]
            quotes.append(Quote(path=event.path, line=one.line, text=raised, says=says, rank=event.rank, node=event.node))
            says = "what it led to"
        quotes.append(Quote(path=event.path, line=event.said_line or event.last_line, text=_said(event), says=says, rank=event.rank, node=event.node))
    if not quotes:
        shown = [one for one in digest.events if not one.warning][:2]
        quotes += [Quote(path=one.path, line=one.said_line or one.last_line, text=_said(one), rank=one.rank, node=one.node) for one in shown]
    if not quotes and digest.tail:
        last = digest.tail[-1]
        quotes.append(Quote(path=last.path, line=last.line, text=last.text[:_QUOTED_CHARACTERS], says="the last line", rank=last.rank, node=last.node))
    return tuple(quotes)


def _said(event: LogEvent) -> str:
    if event.error and event.form is LogForm.PYTHON:
        return f"{event.error}: {event.message}"[:_QUOTED_CHARACTERS]
    return (event.message or (event.text[-1] if event.text else event.error))[:_QUOTED_CHARACTERS]
