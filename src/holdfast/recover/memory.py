"""Memory: what to change after an out-of-memory, so that no try is like the one before.

    GPU     fragmented: other segments first · then half the micro-batch with twice the accumulation, down to one sample · then nothing is left
    host    more memory, where it may have more (--memory MIN:MAX) · then half the workers of the data loaders, down to none · then half the micro-batch
    both    a leak: from the checkpoint, as it was, which gives all of it back; once that brought the job no further, as if it were none

The global batch is never touched. What fitted once is gone back to at once; the way up is tried only when a person starts the job again (`Fitting.upwards`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.fitting import Fitting
from holdfast.domain.resources import Resources, size
from holdfast.domain.state import Attempt

AS_MUCH_AS_THERE_IS: Final = Resources()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What is tried next, and why; without a fitting nothing is left to try."""

    because: str
    fitting: Fitting | None = None


def adjust(diagnosis: Diagnosis, fitting: Fitting, history: Sequence[Attempt] = (), resources: Resources = AS_MUCH_AS_THERE_IS) -> Adjustment | None:
    """The next try after an out-of-memory; None where it came from something else, or nothing about it can be changed from here."""
    if diagnosis.cause is not Cause.OUT_OF_MEMORY:
        return None
    if diagnosis.leak and not _in_vain(diagnosis, history):
        because = "a leak fills what there is, however small the batch: all ranks start again as they were, which gives all of it back"
        return Adjustment(because=f"{because}; {diagnosis.leak}", fitting=fitting)
    if diagnosis.memory == "fragmented" and not fitting.expandable:
        because = "the memory was there, in pieces: all ranks start again with segments that can grow"
        return Adjustment(because=because, fitting=replace(fitting, expandable=True))
    more = _more(diagnosis, fitting, resources)
    if more is not None:
        return more
    workers = diagnosis.loader_workers // 2
    if not diagnosis.memory and diagnosis.loader_workers and fitting.loader_workers != workers:  # A loader with a time limit keeps one, whatever it is told.
        because = f"the machine's memory was short: data loaders start again with {workers} workers instead of {diagnosis.loader_workers}"
        return Adjustment(because=because, fitting=replace(fitting, loader_workers=workers))
    if diagnosis.memory == "held" or not diagnosis.micro_batch:
        return None
    return _smaller(diagnosis.micro_batch, fitting)


def _more(diagnosis: Diagnosis, fitting: Fitting, resources: Resources) -> Adjustment | None:
    """Twice what it had, where it was killed at the limit that may be raised, and that is not as high as it may be."""
    had, most = fitting.resources(resources).memory_bytes, resources.memory_max_bytes
    if diagnosis.limit != "--memory" or had is None or most is None or had >= most:
        return None
    memory_bytes = min(most, 2 * had)
    beyond = "the most it may have" if memory_bytes == most else f"and may have {size(most)}"
    because = f"{size(had)} were too little (--memory): all ranks start again with {size(memory_bytes)} on each node, {beyond}"
    return Adjustment(because=because, fitting=replace(fitting, memory_bytes=memory_bytes))


def _in_vain(diagnosis: Diagnosis, history: Sequence[Attempt]) -> bool:
    """To start again after the same leak has not brought the job any further than it had been."""
    return bool(history) and history[-1].fingerprint == diagnosis.fingerprint and not history[-1].progressed


def _smaller(tried: int, fitting: Fitting) -> Adjustment:
    if tried == 1:
        return Adjustment(because="not even one sample fits into the memory of a rank: a smaller model, shorter samples or another GPU is needed")
    fits = fitting.fits if fitting.fits < tried else 0
    micro_batch = fits or tried // 2
    known = "which fitted before" if fits else "half of it"
    because = f"{tried} samples at once do not fit: all ranks start again with {micro_batch}, {known}, in more batches a step; the step's samples stay the same"
    return Adjustment(because=because, fitting=replace(fitting, micro_batch=micro_batch, fits=fits, too_big=tried))
