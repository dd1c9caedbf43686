"""`holdfast diagnose`: from anybody's logs, what broke, where, whether trying again can help, and what to do.

What is named is one case: the files of all ranks belong together, and so do the files of a directory. With `--each`, every file is a case of its own. A name
that is no path is one of our own jobs: its logs are read, and what its journal says of exits and findings is put beside them.

The exit status lets a script act: 0 healthy, or a job of ours that finished, 10 transient, 11 permanent, 12 unclear or unknown; 2 where nothing could be
read. Of several cases the one that needs a person most decides: permanent before unclear before transient.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console

from holdfast.cli.diagnose_shown import Case, as_record, page, show
from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.causes import Beside, diagnose
from holdfast.diagnose.of_job import beside_of, by_journal
from holdfast.diagnose.reading import read
from holdfast.diagnose.reading.masking import without_secrets
from holdfast.diagnose.taxonomy import HEALTHY, UNKNOWN, Permanence
from holdfast.diagnose.text_model import TextModel, UnfitModel
from holdfast.domain.job import Outcome
from holdfast.domain.log_event import LogDigest
from holdfast.domain.state import State
from holdfast.errors import UserError
from holdfast.launch.layout import past_database
from holdfast.observe.log_files import LogFiles

EXIT_CODES = {Permanence.TRANSIENT.value: 10, Permanence.PERMANENT.value: 11, Permanence.UNCLEAR.value: 12}
_HEALTHY_CODE = 0
_PROGRESS_S = 0.2
_GRAVEST = (11, 12, 10, 0)  # Which one decides for several cases.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    paths: tuple[str, ...]
    explain: bool = False
    as_json: bool = False
    each: bool = False
    html: Path | None = None
    state: Path


def run_diagnose(asked: Asked, *, out: TextIO, err: TextIO) -> int:
    """Read, judge and show. Gives the exit status."""
    paths, own = _with_jobs(asked)
    beside = _beside(own)
    overrides = _overrides(asked.state)
    model = _model()
    told: list[Case] = []
    codes: set[int] = set()
    said: list[str] = []
    for name, digest, problems in _cases(paths, each=asked.each, err=err):
        said += problems
        judged = diagnose(digest, model=model, beside=beside, overrides=overrides)
        outcome = None
        if own is not None and len(paths) == 1 and not asked.each:
            judged, outcome = by_journal(judged, own.state, job=own.job, runs=own.runs), own.state.outcome
        changed = tuple(one.because for one in beside.changed)
        case = Case(path=name, digest=digest, diagnosis=judged, said=tuple(problems), changed=changed, outcome=outcome)
        codes.add(exit_status(case))
        if asked.as_json:
            print(json.dumps(as_record(case, explain=asked.explain), ensure_ascii=False), file=out, flush=True)
        elif asked.html is None:
            show(case, Console(file=out, highlight=False, soft_wrap=True), explain=asked.explain)
        if asked.html is not None:
            told.append(case)
    for problem in said:
        print(f"holdfast: {problem}", file=err, flush=True)
    if asked.html is not None:
        _write(asked.html, page(told))
    if not codes:
        raise UserError(f"nothing was read of {', '.join(asked.paths)}: expected log files, directories of them, `-`, or the name of a job")
    return next(code for code in _GRAVEST if code in codes)


def exit_status(case: Case) -> int:
    if case.diagnosis.cause == HEALTHY or case.outcome is Outcome.FINISHED:
        return _HEALTHY_CODE
    if case.diagnosis.cause == UNKNOWN:
        return EXIT_CODES[Permanence.UNCLEAR.value]
    return EXIT_CODES[case.diagnosis.permanence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One of our own jobs."""

    job: str
    state: State
    runs: bool


def _with_jobs(asked: Asked) -> tuple[list[str], Own | None]:
    """Paths as they are; the name of one of our own jobs as the directory of its logs, with its journal."""
    paths: list[str] = []
    own: Own | None = None
    for path in asked.paths:
        if path == "-" or Path(path).exists() or "/" in path:
            paths.append(path)
            continue
        from holdfast.cli.job import is_held, known_job, state_of

        try:
            directory = known_job(asked.state, path)
        except UserError as error:
            raise UserError(f"there is no file {path!r}, and {error}") from error
        paths.append(str(directory.logs))
        own = Own(job=path, state=state_of(directory), runs=is_held(directory))
    return paths, own


def _beside(own: Own | None) -> Beside:
    if own is None:
        return Beside()
    beside = beside_of(own.state)
    return replace(beside, changed=tuple(replace(one, because=without_secrets(one.because)) for one in beside.changed))


def _cases(paths: Sequence[str], *, each: bool, err: TextIO) -> Iterator[tuple[str, LogDigest, list[str]]]:
    if not each:
        files = LogFiles(paths)
        digest = read(_with_progress(files.sources(), err))
        if digest.paths or not files.said:
            yield paths[0] if len(paths) == 1 else ", ".join(paths), digest, files.said
        else:
            raise UserError(" ".join(files.said))
        return
    listed = LogFiles(paths, with_empty=True)
    names = listed.files()
    first = list(listed.said)
    for name in names:
        files = LogFiles([name])
        digest = read(_with_progress(files.sources(), err))
        yield name, digest, [*first, *files.said]
        first = []
    if not names and first:
        raise UserError(" ".join(first))


def _with_progress(sources: Iterator[tuple[str, Iterator[bytes]]], err: TextIO) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Says on a terminal how far it is, where it takes longer."""
    if not err.isatty():
        yield from sources
        return
    began = shown_at = time.monotonic()
    size = 0

    def counted(path: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal size, shown_at
        for chunk in chunks:
            size += len(chunk)
            now = time.monotonic()
            if now - shown_at > _PROGRESS_S and now - began > 1.0:
                shown_at = now
                print(f"\r\x1b[K{size / 1e6:,.0f} MB, {path[-60:]}", end="", file=err, flush=True)
            yield chunk

    try:
        for path, chunks in sources:
            yield path, counted(path, chunks)
    finally:
        print("\r\x1b[K", end="", file=err, flush=True)


def _model() -> TextModel | None:
    """Without one, signatures and numbers answer alone."""
    try:
        return shipped_text_model()
    except UnfitModel as error:
        print(f"holdfast: {error}", file=sys.stderr, flush=True)
        return None


def _overrides(root: Path) -> dict[str, str]:
    if not past_database(root).exists():
        return {}
    from holdfast.cli.lessons import overrides_in

    return overrides_in(root)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page cannot be written to {path}: {error.strerror}; name a file in a directory that can be written") from error
