"""How a cluster is shared, as a file says it: who shares with whom, what was used before, and the rules that the site changes.

    accounts: [{name: vision, weight: 2, quota_gpus: 8}, {name: ann, in: vision, limit_gpus: 8, used_gpu_hours: 100}]
    policy:   {half_life_s: 1209600, patience_s: 43200, classes: {high: {factor: 3, user_ceiling: 0.2}}}

A cluster file has both, and for a trace they are all that is read of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.cli.fields import Fields, document_of
from holdfast.detect.rules.document import Value
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.place import NodeRoom
from holdfast.schedule.policy import CLASSES, Policy, PriorityClass
from holdfast.schedule.tree import Account, Tree, in_tree

TOP = ("now_s", "nodes", "accounts", "policy", "jobs")
_ACCOUNT = ("name", "in", "weight", "quota_gpus", "limit_gpus", "may_borrow", "administers", "used_gpu_hours")
_POLICY: dict[str, Any] = {one.name: one.default for one in dataclasses.fields(Policy) if one.name != "classes"}
_CLASS = ("factor", "user_ceiling", "group_ceiling", "estimate_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    accounts: tuple[Account, ...] = ()
    used_gpu_s: Mapping[tuple[str, ...], float] = field(default_factory=dict)  # By account, before the cluster was told of anything.
    policy: Policy = field(default_factory=Policy)

    def begin(self, cluster: Cluster, now: float) -> None:
        """A cluster of these accounts is told what they had used by now."""
        for path, gpu_s in self.used_gpu_s.items():
            cluster.used(path, gpu_s, now)


def read_sharing(path: Path, nodes: Sequence[NodeRoom]) -> Sharing:
    """Of a cluster file, for other nodes than it may have: refused where its quotas are more than those."""
    read, top = Fields(str(path)), document_of(path, "accounts or a policy")
    fields = read.fields(top, TOP, "the file")
    sharing = sharing_of(read, fields)
    with read.at_line(fields["accounts"].line if "accounts" in fields else top.line):
        Tree(sharing.accounts, capacity_gpus=sum(node.gpus for node in nodes))
    return sharing


def sharing_of(read: Fields, fields: Mapping[str, Value]) -> Sharing:
    accounts, used = _accounts(read, fields.get("accounts"))
    return Sharing(accounts=tuple(accounts), used_gpu_s=used, policy=_policy(read, fields["policy"]) if "policy" in fields else Policy())


def _accounts(read: Fields, value: Value | None) -> tuple[list[Account], dict[tuple[str, ...], float]]:
    rows: list[tuple[Account, str | None]] = []
    used: dict[int, float] = {}
    for item in read.items(value, "accounts"):
        fields = read.fields(item, _ACCOUNT, "an account")
        name, group = read.text(fields, "name", item), read.text(fields, "in", None) or None
        if "/" in name:
            *above, last = name.rsplit("/", 1)
            read.refuse(item.line, f"account {name!r} has a / in its name, which stands between a group and who is in it; write name: {last}, in: {above[0]}")
        if any(one.name == name and other == group for one, other in rows):
            read.refuse(item.line, f"account {name!r} is declared twice{f' in {group}' if group else ''}; give each a name of its own")
        weight = read.number(fields["weight"], "weight") if "weight" in fields else 1.0
        if weight <= 0:
            read.refuse(fields["weight"].line, f"account {name} has weight {weight:g}; expected a number above 0, or for no GPUs limit_gpus: 0")
        limit = read.whole(fields, "limit_gpus", 0) if "limit_gpus" in fields else None
        if "used_gpu_hours" in fields:
            used[len(rows)] = 3600.0 * read.number(fields["used_gpu_hours"], "used_gpu_hours", least=0.0)
        quota, borrow, administers = read.whole(fields, "quota_gpus", 0), read.yes(fields, "may_borrow", True), read.yes(fields, "administers", False)
        rows.append((Account(name=name, weight=weight, quota_gpus=quota, limit_gpus=limit, may_borrow=borrow, administers=administers), group))
    with read.at_line(value.line if value is not None else 1):
        accounts = in_tree(rows)
    return accounts, {accounts[number].path: gpu_s for number, gpu_s in used.items()}


def _policy(read: Fields, value: Value) -> Policy:
    """What is not named stays as it is."""
    fields = read.fields(value, (*_POLICY, "classes"), "the policy")
    changed: dict[str, Any] = {}
    for name, usual in _POLICY.items():
        if name in fields:
            changed[name] = read.whole(fields, name, None) if isinstance(usual, int) else read.number(fields[name], name)
            with read.at_line(fields[name].line):
                Policy(**{name: changed[name]})  # Refused beside its own line.
    classes = read.fields(fields["classes"], tuple(CLASSES), "classes") if "classes" in fields else {}
    return Policy(**changed, classes=CLASSES | {name: _class(read, CLASSES[name], one) for name, one in classes.items()})


def _class(read: Fields, usual: PriorityClass, value: Value) -> PriorityClass:
    changed = usual
    for name, one in read.fields(value, _CLASS, f"class {usual.name}").items():
        number: Any = read.number(one, name)
        with read.at_line(one.line):
            changed = replace(changed, **{name: number})
    return changed
