"""The taxonomy as a page of the documentation: docs/causes.md is this text, and a test holds it so.

    python -c 'from holdfast.diagnose.taxonomy.page import page; print(page(), end="")' > docs/causes.md
"""

from __future__ import annotations

from holdfast.diagnose.taxonomy import CLASSES, CauseClass, classes_seen_as
from holdfast.diagnose.taxonomy.xids import XIDS
from holdfast.domain.diagnosis import Cause

_HEAD = """# Causes

Every class of causes that [`holdfast diagnose`](diagnosis.md) can name. **Permanence** answers one question: would the same job, unchanged, run on
other healthy nodes? `transient`: yes. `permanent`: no. `unclear`: the log cannot say. It is what holds where a line says no more; sizes,
status codes and Xids can change it.

This page is made from `src/holdfast/diagnose/taxonomy/`; change it there.

| class | permanence | scope | what it is |
| --- | --- | --- | --- |
"""
_SEEN = """## As an incident names it

What the core names an incident of our own jobs from exits and findings alone, and the classes that may stand behind it. `holdfast diagnose JOB` reads the logs
and says which.

| incident | classes |
| --- | --- |
"""
_XIDS = """## Xids

The driver's numbered errors, from NVIDIA's catalogue (Ampere and newer). The number counts, and after it Xid 154, which carries the driver's own advice.

| Xid | meaning | class | permanence | what to do |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    table = "".join(f"| [{one.name}](#{one.name}) | {one.permanence} | {one.scope} | {one.definition} |\n" for one in CLASSES.values())
    sections = "\n".join(_section(one) for one in CLASSES.values())
    seen = "".join(f"| {cause} | {_behind(cause)} |\n" for cause in Cause)
    return f"{_HEAD}{table}\n{sections}\n{_SEEN}{seen}\n{_XIDS}{_xid_rows()}"


def _behind(cause: Cause) -> str:
    if cause is Cause.EXIT_CODE and classes_seen_as(cause) == classes_seen_as(Cause.EXCEPTION):
        return f"as {Cause.EXCEPTION}: the program may have caught it, and said so or not"
    return ", ".join(f"[{name}](#{name})" for name in classes_seen_as(cause))


def _section(one: CauseClass) -> str:
    lines = [f"## {one.name}", "", one.definition, "", one.page, "", f"**Now:** {one.action}", ""]
    lines += [part for permanence, action in one.otherwise.items() for part in (f"**Now, where it is {permanence}:** {action}", "")]
    said = [f"role {one.role}"] if one.role != "root" else []
    said += ["worth one more try" if one.retries else "not worth another try"] if one.retries is not None else []
    said += ["the part stays bad"] if one.hardware_persists else []
    said += [f"mistaken for {', '.join(f'[{other}](#{other})' for other in one.look_alikes)}"] if one.look_alikes else []
    return "\n".join([*lines, f"{one.permanence}, {one.scope}{''.join(f'; {part}' for part in said)}.", ""])


def _xid_rows() -> str:
    """Codes that mean the same stand in one row."""
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for one in XIDS.values():
        cause = one.cause if one.role == "root" else f"{one.cause}, {one.role}"
        rows.setdefault((one.meaning, cause, str(one.permanence), one.advice), []).append(one.code)
    return "".join(f"| {', '.join(map(str, codes))} | {' | '.join(told)} |\n" for told, codes in rows.items())
