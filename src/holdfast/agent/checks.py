"""Checks of this node, on demand: does it compute rightly, by itself, and is its link to another node well?

The same checks as those of `holdfast doctor`, in processes of their own with deadlines, so that what hangs is an answer.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from holdfast.domain.effect import CheckNode
from holdfast.domain.node import NodeSpec
from holdfast.preflight import links
from holdfast.preflight.check import Place, Verdict
from holdfast.preflight.examine import examine, worst

_ALONE: Final = ("compute", "memory", "graphics")


def check(effect: CheckNode, spec: NodeSpec) -> dict[str, Any]:
    """The answer to the effect."""
    match effect.part:
        case "listen":
            server, port = links.listen(spec.host)
            threading.Thread(target=server.communicate, daemon=True).start()  # It leaves when it was called, or nobody did in time.
            return {"port": port}
        case "call":
            return _call(effect)
        case _:
            return _compute(spec)


def _compute(spec: NodeSpec) -> dict[str, Any]:
    place = Place(state=spec.state, checkpoints=spec.checkpoints, node=spec.node, host=spec.host)
    seen = ("env", f"CUDA_VISIBLE_DEVICES={','.join(map(str, spec.gpus))}", "CUDA_DEVICE_ORDER=PCI_BUS_ID") if spec.gpus else ()
    found = list(examine(place, _ALONE, prefix=seen))
    verdict = worst(found)
    said = "; ".join(one.said for one in found if one.verdict is verdict)
    return {"passed": verdict is not Verdict.BAD, "said": said}


def _call(effect: CheckNode) -> dict[str, Any]:
    try:
        seen = links.judge(f"to {effect.host}", links.reach(effect.host, effect.port))
    except OSError as error:
        return {"passed": False, "said": f"{effect.host} is not reached: {error}"}
    return {"passed": seen.verdict is Verdict.OK, "said": seen.said}
