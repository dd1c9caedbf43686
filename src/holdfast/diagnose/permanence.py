"""Whether trying again can help, from what the lines say beyond the class: sizes of an allocation, a status code, what a file is.

Wrong in one direction costs GPU-days: a permanent cause is never called transient because a less likely class would be. Where the log cannot say, the answer
is `unclear`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.diagnose.readings import Reading
from holdfast.diagnose.signatures import said
from holdfast.diagnose.taxonomy import HEALTHY, UNKNOWN, Permanence, Scope, class_of

_DOUBT = 0.2  # So much probability of permanent classes, and `transient` is not said.
_GUESS = 0.2  # What no line says, and is less likely than this, is no reason not to try again.
_UNITS = {"b": 1.0, "kib": 2.0**10, "kb": 2.0**10, "mib": 2.0**20, "mb": 2.0**20, "gib": 2.0**30, "gb": 2.0**30, "tib": 2.0**40, "tb": 2.0**40}
_SIZE = r"([\d.]+)\s*(bytes|[kmgt]?i?b)\b"
_TRIED = re.compile(rf"tried to allocate {_SIZE}", re.IGNORECASE)
_TOTAL = (re.compile(rf"total capacity of {_SIZE}", re.IGNORECASE), re.compile(rf"{_SIZE} total capacity", re.IGNORECASE))
_OWN = re.compile(rf"this process has {_SIZE}|{_SIZE} (?:already allocated|is allocated by pytorch|reserved in total)", re.IGNORECASE)
_MOSTLY = 0.6  # Of the card: this much of it in our own hands is our own size.
_NO_WAY_OUT = ("outgoing traffic has been disabled", "offlinemodeisenabled", "offline mode is enabled", "hf_hub_offline")
_NO_ANSWER = (
    "couldn't connect to", "localentrynotfounderror", "cannot find the requested files in the local cache", "network is unreachable", "no route to host",
)  # fmt: skip
_NOT_TRUSTED = ("certificate_verify_failed", "certificate verify failed")
_NO_ENTRY = r"\b(?:401|403|404|407|410|451)\b"
_REFUSED = re.compile(rf"(?:http|status|client|response|code|error)\D{{0,40}}{_NO_ENTRY}|{_NO_ENTRY}\W{{0,3}}(?:client|message|unauthor|forbid|not found)")
_JUST_WRITTEN = ("checkpoint", "ckpt", ".tmp", "tmp_", ".lock", ".incomplete", "cache", "global_step", "latest")
_REQUEUED = ("requeue", "will be resubmitted", "resubmit")


def permanence_of(cause: str, speaking: Sequence[Reading], probabilities: Mapping[str, float]) -> tuple[Permanence, Scope, str]:
    """What to believe of the whole answer: permanence, scope and why."""
    known = class_of(cause)
    first = max((one for one in speaking if one.cause == cause), key=lambda one: one.weight, default=None)  # A correction may name another cause.
    permanence, because = known.permanence, "as usual for this class"
    if first is not None and first.permanence is not None:
        permanence, because = first.permanence, f"so says {first.signature}"
    scope = first.scope if first is not None and first.scope else known.scope
    text = "\n".join(line for one in speaking for line in (one.event.message, *one.event.text)).lower()
    if cause == "gpu_oom":
        permanence, because = _of_sizes(text)
    elif cause == "remote_service_error" and said(_NO_WAY_OUT, text):
        permanence, because = Permanence.PERMANENT, "there is no way out to the service"
    elif cause == "remote_service_error" and _REFUSED.search(text):
        permanence, because = Permanence.PERMANENT, "the service answered, and refuses"
    elif not speaking and permanence is Permanence.TRANSIENT:
        permanence, because = Permanence.UNCLEAR, "no line says it by itself"
    elif cause == "remote_service_error" and said(_NOT_TRUSTED, text):
        permanence, because = Permanence.UNCLEAR, "the certificate of the service is not trusted here: whether other nodes know it is not said"
    elif cause == "remote_service_error" and permanence is Permanence.TRANSIENT and said(_NO_ANSWER, text):
        permanence, because = Permanence.UNCLEAR, "the service was not reached at all: whether there is a way out from other nodes is not said"
    elif cause == "file_not_found" and _another_wrote_it(speaking):
        permanence, because = Permanence.UNCLEAR, "one rank alone misses a file that another may just have written"
    elif cause == "time_limit" and said(_REQUEUED, text):
        permanence, because = Permanence.TRANSIENT, "it is queued again"
    if permanence is Permanence.PERMANENT and not speaking and probabilities.get(cause, 1.0) < _GUESS:
        permanence, because = Permanence.UNCLEAR, "it is hardly more than a guess"
    if permanence is Permanence.TRANSIENT:
        others = (name for name in probabilities if name not in (cause, HEALTHY, UNKNOWN))
        doubt = sum(probabilities[name] for name in others if class_of(name).permanence is Permanence.PERMANENT)
        if doubt > _DOUBT:
            permanence, because = Permanence.UNCLEAR, f"a permanent cause has a probability of {doubt:.0%}"
    return permanence, scope, because


def _another_wrote_it(speaking: Sequence[Reading]) -> bool:
    ranks = {one.event.rank for one in speaking}
    alone = len(ranks) == 1 and (next(iter(ranks)) or 0) > 0
    return alone and said(_JUST_WRITTEN, speaking[0].event.message.lower())


def _of_sizes(text: str) -> tuple[Permanence, str]:
    """Whose memory it is that is full: the job's own, or a neighbour's."""
    total, tried = _first(_TOTAL, text), _first((_TRIED,), text)
    own = max((_bytes(found) for found in _OWN.finditer(text)), default=None)
    if total is None:
        return Permanence.UNCLEAR, "the line does not say how big the card is"
    if tried is not None and tried >= total:
        return Permanence.PERMANENT, "it asked for more than the card has"
    if own is None:
        return Permanence.UNCLEAR, "the line does not say how much this process holds"
    if own + (tried or 0.0) >= _MOSTLY * total:
        return Permanence.PERMANENT, f"this process holds {own / total:.0%} of the card itself"
    return Permanence.UNCLEAR, f"this process holds {own / total:.0%} of a card that is full: who holds the rest, a neighbour or the job itself, is not said"


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> float | None:
    return next((_bytes(found) for pattern in patterns if (found := pattern.search(text))), None)


def _bytes(found: re.Match[str]) -> float:
    try:
        number, unit = (one for one in found.groups() if one is not None)
        return float(number) * _UNITS.get(unit.lower(), 1.0)
    except ValueError:  # "1.2.3" is no number.
        return 0.0
