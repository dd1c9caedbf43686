"""All ways, by area."""

from __future__ import annotations

from incidents.way import Way
from incidents.ways import files, healthy, machine, program, ranks, services

ALL: tuple[Way, ...] = (*files.WAYS, *program.WAYS, *machine.WAYS, *services.WAYS, *ranks.WAYS, *healthy.WAYS)
