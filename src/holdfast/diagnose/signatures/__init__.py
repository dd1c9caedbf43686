"""Signatures: what libraries, the kernel and schedulers are known to print, one readable entry each, with its source and an example that tests it."""

from __future__ import annotations

from holdfast.diagnose.signatures import hardware, harmless, machine, memory, messages, program, settings, storage, surroundings
from holdfast.diagnose.signatures.index import Index
from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Readable, Signature, fires, readable, said

__all__ = ["FAIR", "INDEX", "SIGNATURES", "STRONG", "SURE", "WEAK", "Index", "Readable", "Signature", "fires", "readable", "said"]

_GROUPS = (harmless, memory, hardware, messages, storage, program, settings, machine, surroundings)
SIGNATURES: tuple[Signature, ...] = tuple(one for group in _GROUPS for one in group.SIGNATURES)
INDEX = Index(SIGNATURES)
