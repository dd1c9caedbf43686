"""The address of a job's remote store: whether it may be written down, and whether the store is there, before anything is started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Final

from holdfast.domain.job import JobSpec
from holdfast.errors import UserError

_WITHIN_S: Final = 10.0


def address_for(root: str, job: str) -> str:
    """Below `root` each job has a place of its own, so that none goes on from what another saved; nothing for nothing."""
    if not root:
        return ""
    from holdfast.checkpoint.remote_address import redacted

    if redacted(root) != root:
        raise UserError(
            f"the remote store {redacted(root)} has credentials or parameters in its address, and an address is kept with the job and shown. Give it without "
            "what is before the @ and after the ?, and the credentials where the store's own tools look for them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "or the AWS configuration, HADOOP_USER_NAME, fsspec's configuration."
        )
    return f"{root.rstrip('/')}/{job}"


def reached(spec: JobSpec, *, again: bool = False) -> JobSpec:
    """The job with what its store says about it; raises a sentence when the store cannot be used. One that ran before goes on while its store is away."""
    if not spec.remote:
        return spec
    from holdfast.checkpoint.remote_address import limits_from, open_remote
    from holdfast.checkpoint.remote_files import RemoteRefused, RemoteUnavailable, Stopped

    limits, end = limits_from(os.environ), time.monotonic() + _WITHIN_S
    remote = open_remote(spec.remote, limits=dataclasses.replace(limits, deadline_s=min(limits.deadline_s, _WITHIN_S), tries=2))
    _make_directory(spec.remote)
    _check_network(spec)
    try:
        generation = remote.reach(stop=lambda: time.monotonic() > end)
    except Stopped:
        problem = f"the remote store {remote.url} did not answer within {_WITHIN_S:g} s. See whether it is up and can be reached from here."
    except RemoteUnavailable as error:
        problem = str(error)
    except RemoteRefused as error:
        raise RemoteRefused(f"{error} Or go on without it: `holdfast resume {spec.job} --remote ''`.") if again else error from None
    else:
        return dataclasses.replace(spec, generations_before=generation)
    if not again:
        raise RemoteUnavailable(f"{problem} Nothing was started.")
    print(f"holdfast: {problem} The job goes on from what is saved here, if anything is.", file=sys.stderr)
    return spec


def _make_directory(url: str) -> None:
    """The job's own below one that is there: nothing is written to where a mount is missing."""
    path = Path(url.partition("://")[2] if url.startswith(("file://", "local://")) else url)
    if path.is_absolute():
        with contextlib.suppress(OSError):  # What is wrong with it is told when it is used.
            path.mkdir(exist_ok=True)


def _check_network(spec: JobSpec) -> None:
    if spec.own_network and "://" in spec.remote and not spec.remote.startswith(("file://", "local://")):
        raise UserError(f"--own-network keeps the nodes from reaching {spec.remote}: leave it out, or give a mounted directory as --remote.")
