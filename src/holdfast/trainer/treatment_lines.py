"""What is said in the log about a run that does something otherwise than its script says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.domain.scaling import Scaling
from holdfast.domain.treatment import Window


def treatment_lines(left_out: Sequence[Window], tune: str, scaling: Scaling, unread: Sequence[str]) -> Iterator[str]:
    if left_out:
        several = len(left_out) > 1 or "-" in str(left_out[0])
        steps = f"step{'s' if several else ''} {', '.join(map(str, left_out))}"
        yield f"the data of {steps} is left out, because training went wrong with it. Steps are counted from 0 here."
    if tune:
        yield f"changed for this run: {tune}. The script says something else."
    if scaling != Scaling():
        yield f"fewer ranks than were asked for, and --smaller-batch was given: {scaling}."
    if unread:
        names = ", ".join(unread)
        yield f"{names} cannot be changed, because the script does not ask for it. Use holdfast.tune({unread[0]!r}, …) in the script."
