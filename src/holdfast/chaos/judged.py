"""What was found, held against what was done: is it the right kind, and is the right one named?"""

from __future__ import annotations

from holdfast.chaos.fault import Fault
from holdfast.diagnose.together import leading
from holdfast.domain.incident import Incident


def right(fault: Fault, incident: Incident) -> bool:
    causes = {str(diagnosis.cause) for diagnosis in incident.diagnoses[:1]}
    return bool(({leading(incident.findings).kind} | causes) & set(fault.kinds))


def named(fault: Fault, incident: Incident, rank: int, node: str) -> bool:
    blamed = incident.diagnoses[0] if incident.diagnoses and str(incident.diagnoses[0].cause) in fault.kinds else leading(incident.findings)
    match fault.culprit:
        case "rank":
            return blamed.ranks == (rank,)
        case "node":
            return blamed.node == node
        case _:
            return True


def what(incident: Incident) -> str:
    """The kind it is named after, the cause, and all kinds in it."""
    cause = f" → {incident.diagnoses[0].cause}" if incident.diagnoses else ""
    return f"{leading(incident.findings).kind}{cause} ({', '.join(sorted({finding.kind for finding in incident.findings}))})"
