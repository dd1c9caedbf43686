"""What passes: errors after which the same is likely to work a moment later: a disk or a network that stumbled, not a file that is missing or closed to us."""

from __future__ import annotations

import errno
from typing import Final

_PASSES: Final = {
    errno.EAGAIN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.ENETDOWN,
    errno.ENETRESET, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip


def passes(error: BaseException) -> bool:
    """Libraries for remote data have errors of their own, which are known by their names."""
    if isinstance(error, (ConnectionError, TimeoutError)) or (isinstance(error, OSError) and error.errno in _PASSES):
        return True
    return any(kind.__name__.endswith(("ConnectionError", "Timeout", "TimeoutError")) for kind in type(error).__mro__)
