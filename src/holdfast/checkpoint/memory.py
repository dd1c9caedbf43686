"""How much memory there is to spare, before anybody takes gigabytes of it. Standard library only."""

from __future__ import annotations

from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that nobody needs now, on the machine and in the control groups that may hold us to less: ours, and each above it."""
    free = [int(line.split()[1]) << 10 for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for group in _upwards(root / "sys/fs/cgroup", path):
                free += _left_in(group, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            for group in _upwards(root / "sys/fs/cgroup/memory", path):
                free += _left_in(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return min(free, default=1 << 62)


def _upwards(top: Path, path: str) -> list[Path]:
    group = top / path.strip("/")
    return [group, *(above for above in group.parents if above == top or top in above.parents)]


def _left_in(group: Path, limit: str, usage: str, cache: str) -> list[int]:
    """What a control group has left, with what its page cache would give back; nothing where it sets no limit."""
    try:
        cached = next((int(line.split()[1]) for line in _lines(group / "memory.stat") if line.split()[0] == cache), 0)
        return [int((group / limit).read_text()) - int((group / usage).read_text()) + cached]
    except (OSError, ValueError):  # There is none, or its limit is the word `max`.
        return []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
