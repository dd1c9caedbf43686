"""Corrections: what people said failures really were. The newest that is not revoked holds for its fingerprint, at once; training takes the others in.

    overrides    fingerprint to class: what whoever diagnoses is given, and follows
    material     the same as labelled text: what the training script takes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.domain.past import Correction, PastIncident


def standing(corrections: Iterable[Correction]) -> dict[str, Correction]:
    """By fingerprint, the one that holds."""
    found: dict[str, Correction] = {}
    for one in sorted(corrections, key=lambda one: (one.at, one.number)):
        if one.revoked_at is None:
            found[one.fingerprint] = one
    return found


def overrides(corrections: Iterable[Correction]) -> dict[str, str]:
    return {fingerprint: one.cause for fingerprint, one in sorted(standing(corrections).items())}


def corrected(incident: PastIncident, holding: Mapping[str, Correction]) -> str:
    """The cause of an incident after what people said of its fingerprint."""
    said = holding.get(incident.fingerprint)
    return said.cause if said is not None else incident.cause


def material(corrections: Iterable[Correction]) -> list[dict[str, Any]]:
    """One labelled text a fingerprint: `{"text", "cause", "fingerprint", "source"}`. What has no text teaches nothing."""
    return [
        {"text": "\n".join(one.text), "cause": one.cause, "fingerprint": fingerprint, "source": f"correction of {one.incident}"}
        for fingerprint, one in sorted(standing(corrections).items())
        if one.text
    ]
