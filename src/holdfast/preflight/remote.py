"""Remote: whether the store in which checkpoints are kept a second time answers, can be listed, and takes a file."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Final

from holdfast.checkpoint.remote_address import limits_from, open_remote, redacted
from holdfast.checkpoint.remote_files import RemoteRefused, RemoteUnavailable, Stopped
from holdfast.errors import UserError
from holdfast.preflight.check import Check, Place, bad, looking, ok

_WITHIN_S: Final = 8.0


def look(place: Place) -> list[Check]:
    if not place.remote:
        return [ok("remote", "no remote store: checkpoints are kept here alone")]
    shown = redacted(place.remote)
    looking(shown)
    began = time.monotonic()
    try:
        limits = limits_from(os.environ)
        remote = open_remote(place.remote, limits=replace(limits, deadline_s=min(limits.deadline_s, _WITHIN_S / 2), tries=1))
        remote.reach(stop=lambda: time.monotonic() - began > _WITHIN_S)
    except Stopped:
        said = f"{shown} did not answer within {_WITHIN_S:.0f} s"
        return [bad("remote", said, "see whether it is up and can be reached from here", culprit=shown)]
    except (RemoteUnavailable, RemoteRefused, UserError) as error:
        return [bad("remote", str(error), "see whether it is up, and who may write there", culprit=shown)]
    took_s = time.monotonic() - began
    return [ok("remote", f"{shown} can be listed and written, {took_s:.2f} s for both", answer_s=took_s)]
