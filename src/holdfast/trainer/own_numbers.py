"""Numbers of the user's own, watched like ours: `gauge`.

    tokens = holdfast.gauge("tokens_per_s", unit="1/s")
    tokens.set(batch_tokens / seconds)

Set it from anywhere in the process. It never blocks and never raises: a tensor on a GPU is read a step late, and what cannot be read is said once and left
out. It is exported as `holdfast_user_<name>` and can be used in rules as `user_<name>`.
"""

from __future__ import annotations

from typing import Any

from holdfast.domain.gauges import UNIT_MAX, USER_NAME
from holdfast.errors import UserError
from holdfast.trainer.numbers import Numbers

_units: dict[str, str] = {}
_failed: dict[str, str] = {}
_numbers = Numbers()


class Gauge:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def set(self, value: Any) -> None:
        """Take a number or a tensor of one element."""
        try:
            _numbers.offer(self.name, value)
        except Exception as error:  # The loop is worth more than a number.
            _failed[self.name] = str(error)


def gauge(name: str, *, unit: str = "") -> Gauge:
    """A gauge of this name; the same one when it is asked for again."""
    if not USER_NAME.fullmatch(name):
        raise UserError(f"gauge({name!r}): expected a name of lower-case letters, digits and underscores that begins with a letter and has at most 48 of them.")
    if len(unit.encode()) > UNIT_MAX:
        raise UserError(f"gauge({name!r}, unit={unit!r}): expected a unit of at most {UNIT_MAX} bytes, such as s, bytes or 1/s.")
    _units[name] = unit or _units.get(name, "")
    return Gauge(name)


def failed() -> dict[str, str]:
    """The gauges that were given something that is no number, and what was wrong with it."""
    return _failed


def collect() -> list[tuple[str, float, str]]:
    """The newest values that have arrived, for the loop to write down: name, value, unit."""
    _numbers.collect()
    return [(name, value, _units.get(name, "")) for name, value in _numbers.arrived.items()]
