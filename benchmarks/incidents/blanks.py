"""Blanks in a text that is made: `{a|b}` is one of these, `{mib}` a number of that kind, `{path}` a path; from the draw alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

_AROUND = Path(__file__).parent / "around"
_BLANK = re.compile(r"\{([^{}]*)\}")
_SAME = frozenset({"path", "pt", "host", "rank", "gpu", "job", "module", "pid", "ip", "port"})  # Named twice in one text, it is the same one.
_SIZES = (1, 2, 3, 7, 8, 16, 32, 64, 77, 128, 197, 256, 512, 768, 1000, 1024, 4096, 32000)


def filled(draw: random.Random, text: str, **given: str) -> str:
    """The text with its blanks filled; what is `given` is taken as it is, and what is no blank of ours stays."""
    kept = dict(given)

    def one(match: re.Match[str]) -> str:
        asked = match[1]
        if "|" in asked:
            return draw.choice(asked.split("|"))
        if asked in kept and (asked in _SAME or asked in given):
            return kept[asked]
        if asked in _NUMBERS:
            kept[asked] = _NUMBERS[asked](draw)
        elif asked in sections("names"):
            kept[asked] = filled(draw, draw.choice(sections("names")[asked]))
        elif asked in _ENDINGS:
            kept[asked] = filled(draw, f"{{directory}}/{{stem}}{{|_v2|-final|/raw}}{draw.choice(_ENDINGS[asked])}")
        else:
            return match[0]
        return kept[asked]

    while True:  # What was put in may hold a blank of its own.
        before, text = text, _BLANK.sub(one, text)
        if before == text:
            return text


@cache
def sections(name: str) -> dict[str, tuple[str, ...]]:
    """A file of `around/`: section to lines; those before the first heading are the section ''. A line that starts with a bar belongs to the one before."""
    found: dict[str, list[str]] = {"": []}
    section = ""
    for line in (_AROUND / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
            found[section] = []
        elif line.startswith("|") and found[section]:
            found[section][-1] += "\n" + line[1:]
        elif line.strip():
            found[section].append(line)
    return {name: tuple(lines) for name, lines in found.items()}


def _shape(draw: random.Random) -> str:
    return ", ".join(str(draw.choice(_SIZES)) for _ in range(draw.randint(1, 4)))


def _time(draw: random.Random) -> str:
    return f"2026-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}T{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}:{draw.randint(0, 59):02d}"


def _ip(draw: random.Random) -> str:
    return f"10.{draw.randint(0, 255)}.{draw.randint(0, 255)}.{draw.randint(1, 254)}"


_ENDINGS: dict[str, tuple[str, ...]] = {
    "path": (".json", ".txt", ".bin", ".parquet", ".csv", ""),
    "pt": (".pt", ".pth", ".ckpt", ".bin", ".safetensors", "/checkpoint-5000/pytorch_model.bin"),
    "img": (".jpg", ".png", ".JPEG", ".tif"),
    "dir": ("",),
    "py": (".py",),
}
_NUMBERS: dict[str, Callable[[random.Random], str]] = {
    "n": lambda draw: str(draw.randint(10, 99)),
    "small": lambda draw: str(draw.randint(1, 7)),
    "big": lambda draw: str(draw.randint(1000, 9_999_999)),
    "mib": lambda draw: f"{draw.uniform(2, 900):.2f}",
    "gib": lambda draw: f"{draw.uniform(0.5, 79):.2f}",
    "gpu": lambda draw: str(draw.randint(0, 7)),
    "rank": lambda draw: str(draw.randint(0, 63)),
    "hex": lambda draw: f"0x{draw.getrandbits(47):012x}",
    "sha": lambda draw: f"{draw.getrandbits(160):040x}",
    "ip": _ip,
    "port": lambda draw: str(draw.randint(1024, 65535)),
    "pid": lambda draw: str(draw.randint(300, 400_000)),
    "job": lambda draw: str(draw.randint(10_000, 9_999_999)),
    "shape": _shape,
    "step": lambda draw: str(draw.randint(1, 90_000)),
    "loss": lambda draw: f"{draw.uniform(0.1, 9):.4f}",
    "ms": lambda draw: str(draw.choice((120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000))),
    "s": lambda draw: str(draw.choice((10, 30, 60, 300, 600, 900, 1800, 3600))),
    "time": _time,
    "pci": lambda draw: f"0000:{draw.randint(1, 239):02x}:00",
    "v": lambda draw: f"{draw.randint(0, 4)}.{draw.randint(0, 40)}.{draw.randint(0, 4)}",
}
