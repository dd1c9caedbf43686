"""Resources: what a job may use of each node it runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace

MEMORY_BYTES_MIN = 64 << 20  # In less than this no interpreter gets as far as its first line.
PROCESSES_MIN = 8  # For one worker: its threads count too, and those of its data loaders.
WEIGHT_USUAL = 100  # What everybody has who did not ask.


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """For all workers of the job on one node together, unless it says otherwise. None: as much as there is."""

    memory_bytes: int | None = None  # At this somebody of the job is killed, and nobody else.
    memory_max_bytes: int | None = None  # So far that may be raised after somebody was.
    memory_high_bytes: int | None = None  # Above this the kernel takes memory back and holds the job up, and kills nobody.
    worker_memory_bytes: int | None = None  # One worker, with all processes below it.
    cpus: float | None = None  # Cores' worth of time, whichever cores.
    cpu_weight: int | None = None  # Against others, when cores are short: from 1 to 10,000.
    processes: int | None = None  # Threads counted.

    def with_memory(self, memory_bytes: int) -> Resources:
        """With so much, as far as it may be raised."""
        least, most = self.memory_bytes, self.memory_max_bytes
        return self if least is None or most is None else replace(self, memory_bytes=max(least, min(memory_bytes, most)))

    def words(self) -> tuple[str, ...]:
        """One for each that was asked for."""
        said = (
            ("memory", self.memory_bytes and size(self.memory_bytes) + (f", up to {size(self.memory_max_bytes)}" if self.memory_max_bytes else "")),
            ("memory held back above", self.memory_high_bytes and size(self.memory_high_bytes)),
            ("memory of a worker", self.worker_memory_bytes and size(self.worker_memory_bytes)),
            ("CPUs", self.cpus and f"{self.cpus:g}"),
            ("CPU weight", self.cpu_weight and str(self.cpu_weight)),
            ("processes and threads", self.processes and str(self.processes)),
        )
        return tuple(f"{what} {value}" for what, value in said if value)


def size(number_bytes: int) -> str:
    """As somebody would have typed it."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if number_bytes % unit == 0:
            return f"{number_bytes // unit} {name}"
    return f"{number_bytes / 1e9:.4g} GB" if number_bytes >= 1e9 else f"{number_bytes / 1e6:.4g} MB"
