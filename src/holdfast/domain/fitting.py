"""Fitting: what is known of how much a job can hold in memory at once, kept with the job over its attempts.

It only ever learns by trying: what made a step fits, what ended in an out-of-memory does not. Zero stands for "nobody knows yet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.domain.resources import Resources, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    micro_batch: int = 0  # The most samples a rank is given at once from now on; 0: as many as the script says.
    fits: int = 0  # The most that made a step.
    too_big: int = 0  # The least that did not fit.
    expandable: bool = False  # torch's allocator is told to grow its segments, against fragmentation.
    memory_bytes: int = 0  # All workers of a node together get so much, where it may be raised (--memory MIN:MAX); 0: as much as was asked for.
    loader_workers: int | None = None  # Data loaders get so many workers at most; None: as many as the script says.

    def __str__(self) -> str:
        said = (
            f"{self.micro_batch} samples of a rank at once" if self.micro_batch else "",
            f"{self.fits} fitted" if self.fits else "",
            f"{self.too_big} did not fit" if self.too_big else "",
            f"{size(self.memory_bytes)} of memory on a node" if self.memory_bytes else "",
            "segments that can grow" if self.expandable else "",
            f"{self.loader_workers} loader workers at most" if self.loader_workers is not None else "",
        )
        return ", ".join(filter(None, said)) or "as the script says"

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """How a worker hears of it. `before` is the environment it would have: what a user told torch's allocator stays."""
        found = {"HOLDFAST_MICRO_BATCH": str(self.micro_batch)} if self.micro_batch else {}
        if self.loader_workers is not None:
            found["HOLDFAST_LOADER_WORKERS"] = str(self.loader_workers)
        name = "PYTORCH_ALLOC_CONF" if before.get("PYTORCH_ALLOC_CONF") else "PYTORCH_CUDA_ALLOC_CONF"  # The second is understood by all versions of torch.
        told = before.get(name, "")
        if self.expandable and "expandable_segments" not in told:
            found[name] = ",".join(filter(None, (told, "expandable_segments:True")))
        return found

    def resources(self, asked: Resources) -> Resources:
        """What the workers of a node may use from now on."""
        return asked.with_memory(self.memory_bytes)

    def fitted(self) -> Fitting:
        """A step was made with what there is now."""
        return replace(self, fits=max(self.fits, self.micro_batch))

    def upwards(self) -> Fitting:
        """For a new start by a person: half of the way from what fits to what does not is tried, since something may have changed meanwhile."""
        between = (self.fits + self.too_big) // 2
        return replace(self, micro_batch=between) if 0 < self.fits < between < self.too_big else self
