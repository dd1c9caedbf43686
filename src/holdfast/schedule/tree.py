"""Who shares with whom: groups in groups, users as leaves, to any depth. Each has a weight, and may have a guaranteed quota, a limit, or no right to borrow.

A tree is checked when it is made, so that nothing after it meets a cycle or a weight of zero. Users that nobody declared join their group when they first
submit, with weight 1. Inside the room an account is a number, for it is looked at on every start; its name is for people.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import UserError

ROOT = 0
DEPTH_MAX = 100  # Levels of groups below each other: the order is found from the top, level by level.


class TreeRefused(UserError):
    """Groups or users that cannot share as they were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A group or a user. `parent` is the path of its group, `()` at the top."""

    name: str
    parent: tuple[str, ...] = ()
    weight: float = 1.0
    quota_gpus: int = 0  # Guaranteed: taken back from those who borrow it.
    limit_gpus: int | None = None
    may_borrow: bool = True  # Without it, the quota is the limit.
    administers: bool = False  # It, and whoever is below it, may submit work that goes before other groups.

    @property
    def path(self) -> tuple[str, ...]:
        return (*self.parent, self.name)


class Tree:
    """The accounts, by number: `parents[0]` is the root's, which has none."""

    def __init__(self, accounts: Iterable[Account] = (), *, capacity_gpus: int) -> None:
        self.capacity_gpus = capacity_gpus
        self.accounts: list[Account] = [Account(name="all")]
        self.parents: list[int] = [-1]
        self.children: list[list[int]] = [[]]
        self.limits: list[int | None] = [None]
        self.quotas: list[int] = [0]  # What is guaranteed now: less than was given while nodes are out of service.
        self.weights: list[float] = [1.0]
        self.quota_accounts: list[int] = []
        self.administrators: dict[int, None] = {}  # Who, with all below, may submit work that goes before other groups.
        self.limited = False  # Whether any account has a limit.
        self.lines: list[tuple[int, ...]] = [(ROOT,)]  # From the root down to the account, both included.
        self._numbers: dict[tuple[str, ...], int] = {(): ROOT}
        given = {account.path: account for account in accounts}
        for path in sorted(given, key=len):
            if path[:-1] and path[:-1] not in given:
                raise TreeRefused(f"account {'/'.join(path)} belongs to {'/'.join(path[:-1])}, which is not declared; declare it, or correct the name")
            self._join(given[path])
        self._check_quotas()

    def number(self, path: Sequence[str]) -> int:
        """The account of this path; those on the way to it that are new join with weight 1."""
        found = self.known(path)
        if found is not None:
            return found
        if len(path) > 1:
            self.number(path[:-1])
        return self._join(Account(name=path[-1], parent=tuple(path[:-1])))

    def known(self, path: Sequence[str]) -> int | None:
        """The account of this path, where there is one already."""
        if not path or any(not part for part in path):
            raise TreeRefused(f"{'/'.join(path)!r} names no account; expected a group and a user, each with a name")
        if len(path) > DEPTH_MAX:
            raise TreeRefused(_too_deep(path))
        return self._numbers.get(tuple(path))

    def name(self, number: int) -> str:
        return "/".join(self.accounts[number].path) if number else "all"

    def guarantee(self, capacity_gpus: int) -> None:
        """Quotas that add up to what is in service: where they would come to more, each falls in proportion, and so do those below it."""
        if not self.quota_accounts:
            return
        for parent, children in enumerate(self.children):
            there = capacity_gpus if parent == ROOT else self.quotas[parent]
            given = [self.accounts[child].quota_gpus for child in children]
            for child, quota in zip(children, given if sum(given) <= there else _in_proportion(there, given), strict=True):
                self.quotas[child] = quota

    def _join(self, account: Account) -> int:
        _check(account)
        number, parent = len(self.accounts), self._numbers[account.parent]
        self._numbers[account.path] = number
        self.accounts.append(account)
        self.parents.append(parent)
        self.children.append([])
        self.children[parent].append(number)
        self.quotas.append(account.quota_gpus)
        self.limits.append(account.limit_gpus if account.may_borrow else account.quota_gpus)
        self.weights.append(account.weight)
        if account.administers:
            self.administrators[number] = None
        if account.quota_gpus:
            self.quota_accounts.append(number)
        self.limited = self.limited or self.limits[-1] is not None
        self.lines.append((*self.lines[parent], number))
        return number

    def _check_quotas(self) -> None:
        for parent, children in enumerate(self.children):
            there = self.capacity_gpus if parent == ROOT else self.quotas[parent]
            asked = sum(self.quotas[child] for child in children)
            if asked > there:
                whose = "the cluster has" if parent == ROOT else f"{self.name(parent)} itself is guaranteed"
                raise TreeRefused(f"the quotas below {self.name(parent)} add up to {asked} GPUs and {whose} {there}; lower them, or raise what is above")


def _in_proportion(amount: int, given: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `amount`: rounded down, and one more to those that lost most by it."""
    whole = sum(given)
    parts = [amount * one // whole for one in given]
    for number in sorted(range(len(given)), key=lambda number: (-(amount * given[number] % whole), number))[: amount - sum(parts)]:
        parts[number] += 1
    return parts


def in_tree(rows: Iterable[tuple[Account, str | None]]) -> list[Account]:
    """Accounts that name their group, by its whole path or by a name that only one has, with the path to it; refused when one is inside itself."""
    given = list(rows)
    named: dict[str, list[int]] = {}
    for number, (account, _) in enumerate(given):
        named.setdefault(account.name, []).append(number)
    placed: dict[int, Account] = {}
    numbers: dict[str, int] = {}  # By the whole path.
    left = list(range(len(given)))
    while left:
        later = []
        for number in left:
            account, group = given[number]
            above = _above(group, named, numbers) if group is not None else None
            if group is not None and above not in placed:
                later.append(number)
                continue
            placed[number] = replace(account, parent=placed[above].path if above is not None else ())
            _check(placed[number])
            path = "/".join(placed[number].path)
            if path in numbers:
                raise TreeRefused(f"account {path} is declared twice; give each a name of its own")
            numbers[path] = number
        if len(later) == len(left):
            raise TreeRefused(_unplaced(given, named, left[0]))
        left = later
    return [placed[number] for number in range(len(given))]


def _above(group: str, named: Mapping[str, Sequence[int]], numbers: Mapping[str, int]) -> int | None:
    """Which one is meant."""
    same = named.get(group, ())
    return numbers.get(group, same[0] if len(same) == 1 else None)


def _unplaced(given: Sequence[tuple[Account, str | None]], named: Mapping[str, Sequence[int]], number: int) -> str:
    """Why the group of this account is not found: it is not there, there are several, or they are inside each other."""
    way: list[int] = []
    while number not in way:
        way.append(number)
        account, group = given[number]
        same = named.get(group or "", ())
        if not same:
            return f"account {account.name} belongs to {group}, which is not declared; declare it, or correct the name"
        if len(same) > 1:
            return f"account {account.name} belongs to {group}, and {len(same)} accounts are called that; write the whole path, such as vision/{group}"
        number = same[0]
    circle = [given[one][0].name for one in (*way[way.index(number) :], number)]
    return f"account {circle[0]} is its own ancestor: {' -> '.join(circle)}; a group cannot be inside itself"


def _too_deep(path: Sequence[str]) -> str:
    return f"account {path[-1]} is {len(path):,} levels deep, below {'/'.join(path[:3])}/…; expected {DEPTH_MAX} or fewer: leave out groups with one member"


def _check(account: Account) -> None:
    where = f"account {'/'.join(account.path)}"
    if len(account.path) > DEPTH_MAX:
        raise TreeRefused(_too_deep(account.path))
    if not account.name or any(not part for part in account.parent):
        raise TreeRefused(f"{where} has no name; give it one")
    if not (math.isfinite(account.weight) and account.weight > 0):
        raise TreeRefused(f"{where} has weight {account.weight:g}; expected a number above 0: who shall get nothing is left out, or given limit_gpus=0")
    if account.quota_gpus < 0 or (account.limit_gpus is not None and account.limit_gpus < 0):
        raise TreeRefused(f"{where} has quota {account.quota_gpus} and limit {account.limit_gpus}; expected numbers of GPUs, 0 or more")
    if account.limit_gpus is not None and account.limit_gpus < account.quota_gpus:
        raise TreeRefused(f"{where} is guaranteed {account.quota_gpus} GPUs and limited to {account.limit_gpus}; a guarantee cannot be above the limit")
