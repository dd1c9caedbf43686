"""What decides. `Core` takes events and answers with effects; `core.py` is where to begin."""

from holdfast.core.base import BROKEN_CODE
from holdfast.core.core import Core

__all__ = ["BROKEN_CODE", "Core"]
