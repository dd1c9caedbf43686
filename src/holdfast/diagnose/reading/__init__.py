"""From logs of any kind and size to a digest: pure, streaming, bounded."""

from holdfast.diagnose.reading.read import read
from holdfast.diagnose.reading.templates import fingerprint

__all__ = ["fingerprint", "read"]
