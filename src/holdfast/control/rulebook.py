"""The rules in force: those that come with Holdfast, and those of a person's own. Files are opened here; what they say is read in `detect.rules`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from holdfast.detect.rules.reading import Read, RuleSet, combined, read_rules
from holdfast.detect.rules.rule import Rule
from holdfast.domain.job import JobSpec
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory


def shipped() -> list[Read]:
    pack = resources.files("holdfast.detect.rules") / "pack"
    files = sorted((one for one in pack.iterdir() if one.name.endswith(".yaml")), key=lambda one: one.name)
    return [read_rules(one.read_text(encoding="utf-8"), one.name) for one in files]


def own(paths: Sequence[Path], *, sampling_s: float = 1.0) -> list[Read]:
    return [read_rules(text_of(path), str(path), sampling_s=sampling_s) for path in paths]


def rules_in_force(paths: Sequence[Path] = (), *, sampling_s: float = 1.0) -> RuleSet:
    """Its `problems` say what is wrong; the rules that are good are there nevertheless."""
    return combined(shipped(), own(paths, sampling_s=sampling_s))


def rules_of(directory: JobDirectory) -> tuple[Rule, ...]:
    """The rules that watch a job. Its files were good when it was started; one that is not any more is left out, and the job goes on."""
    spec = msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec)
    try:
        found = rules_in_force([Path(file) for file in spec.rules])
    except UserError as error:
        print(f"holdfast control: only the shipped rules are in force: {error}", file=sys.stderr, flush=True)
        return rules_in_force().rules
    for problem in found.problems:
        print(f"holdfast control: a rule is left out: {problem}", file=sys.stderr, flush=True)
    return found.rules


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}. Expected a YAML file.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Expected a YAML file.") from error
