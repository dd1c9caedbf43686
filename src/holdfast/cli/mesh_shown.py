"""The mesh of a job, drawn: a row for each replica, a column for each shard, and who of them is lost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.screen import Table
from holdfast.cli.words import count, one_line
from holdfast.core import replicas
from holdfast.domain.mesh import Mesh
from holdfast.domain.state import NodeState, State

_ROWS: Final = 12
_COLUMNS: Final = 16


def mesh_sentence(state: State) -> str:
    """Who holds what, and what is in a gang together."""
    mesh = state.mesh
    if mesh is None:
        return ""
    if mesh.shards == 1:
        said = "every rank holds all of the state"
    elif mesh.copies == 1:
        said = f"the state is in {mesh.shards} shards, and each rank holds the only copy of its own"
    else:
        said = f"the state is in {mesh.shards} shards, and {mesh.copies} ranks hold each"
    nodes = replicas.block(state)
    together = f"; a replica is on {nodes} nodes" if nodes > 1 else ""
    return f"{mesh}: {said}{together}"


def mesh_rows(state: State) -> list[tuple[str, str]]:
    if state.mesh is None:
        return []
    names = _stand_by(state)
    by = f"{one_line(', '.join(names))} {'stands' if len(names) == 1 else 'stand'} by: the replica is not whole" if names else ""
    return [("mesh", mesh_sentence(state)), *(("", one_line(said)) for said in (state.mesh_said, by) if said)]


def _stand_by(state: State) -> list[str]:
    return [name for name in state.left_over if name in state.nodes and state.nodes[name].state is NodeState.READY]


def mesh_now(state: State) -> RenderableType | None:
    """The grid of the gang there is; None where nothing is known, or every rank holds the same."""
    mesh = replicas.mesh(state)
    return drawn(mesh, lost_ranks(state)) if mesh is not None and state.gang is not None and mesh.shards > 1 else None


def lost_ranks(state: State) -> tuple[int, ...]:
    gang, spec = state.gang, state.spec
    if gang is None or spec is None:
        return ()
    lost = (place for place, name in enumerate(gang.nodes) if name in state.nodes and state.nodes[name].state is not NodeState.READY)
    return tuple(rank for place in lost for rank in range(place * spec.ranks_per_node, (place + 1) * spec.ranks_per_node))


def drawn(mesh: Mesh, lost: Collection[int]) -> RenderableType:
    """Rows with somebody lost come first where not all have room."""
    gone, held = set(lost), set(mesh.who_else(lost))
    rows = mesh.replicas()
    order = sorted(range(len(rows)), key=lambda row: (not gone & set(rows[row]), row))[:_ROWS]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for _ in range(min(mesh.shards, _COLUMNS) + 1):
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(f"shard {shard}", style="dim") for shard in range(min(mesh.shards, _COLUMNS))))
    for row in sorted(order):
        ranks = sorted(rows[row], key=mesh.shard)
        shown = ranks[:_COLUMNS]
        if len(ranks) > _COLUMNS and gone & set(ranks[_COLUMNS:]):
            shown = [*ranks[: _COLUMNS - 1], min(gone & set(ranks[_COLUMNS:]))]
        table.add_row(f"replica {row}", *(_cell(rank, gone, held) for rank in shown), "…" if len(ranks) > _COLUMNS else "")
    below = f"… and {count(len(rows) - len(order), 'replica')} more" if len(rows) > len(order) else ""
    legend = "✗ lost   = holds the same" if gone else ""
    return Group(table, *(Text(line, style="dim") for line in (below, legend) if line))


def _cell(rank: int, gone: set[int], held: set[int]) -> Text:
    if rank in gone:
        return Text(f"{rank} ✗", style="red")
    return Text(f"{rank} =", style="green") if rank in held else Text(f"{rank}  ")


def mesh_json(state: State) -> dict[str, Any] | None:
    mesh, gang, spec = replicas.mesh(state), state.gang, state.spec
    if state.mesh is None or spec is None:
        return None
    found: dict[str, Any] = {
        "dimensions": [{"name": one.name, "size": one.size, "replicates": one.replicates, "resizes": one.resizes} for one in state.mesh.dimensions],
        "says": mesh_sentence(state), "contradiction": state.mesh_said or None, "shards": state.mesh.shards, "copies": state.mesh.copies,
        "nodes_of_a_replica": replicas.block(state), "stand_by": _stand_by(state),
    }  # fmt: skip
    if mesh is None or gang is None:
        return found | {"replicas": []}
    gone = set(lost_ranks(state))
    return found | {
        "replicas": [
            {
                "ranks": list(ranks), "lost": [rank for rank in ranks if rank in gone],
                "nodes": list(dict.fromkeys(gang.nodes[rank // spec.ranks_per_node] for rank in ranks)),
            }
            for ranks in mesh.replicas()
        ],
        "only_copies_lost": list(mesh.only_copies(gone)),
    }  # fmt: skip
