"""The environment of a worker: what torchrun sets, so that scripts run unchanged, and what tells our own lines where everything is."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.agent import collectives
from holdfast.agent.staging import STAGED
from holdfast.agent.watch import Watch
from holdfast.domain.effect import StartGang
from holdfast.domain.node import NodeSpec


def worker_environment(spec: NodeSpec, watch: Watch, effect: StartGang, rank: int, local_rank: int) -> dict[str, str]:
    flight = collectives.flight_path(Path(spec.shared_memory), effect.generation, rank, {**os.environ, **spec.job.env})
    interface = {"GLOO_SOCKET_IFNAME": spec.interface, "NCCL_SOCKET_IFNAME": spec.interface} if spec.interface else {}
    # In the order of the bus the numbers are those of /dev/nvidiaN and nvidia-smi.
    seen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if spec.gpus else {}
    temporary = {"TMPDIR": spec.temporary} if spec.temporary else {}
    return {
        **effect.env, **interface, **seen, **temporary, **effect.fitting.environment({**os.environ, **effect.env}),
        **effect.treatment.environment(), **effect.scaling.environment(),
        "RANK": str(rank), "LOCAL_RANK": str(local_rank), "GROUP_RANK": str(effect.node_rank), "ROLE_RANK": str(rank), "ROLE_NAME": "default",
        "WORLD_SIZE": str(effect.world_size), "LOCAL_WORLD_SIZE": str(len(effect.ranks)), "GROUP_WORLD_SIZE": str(effect.nodes),
        "ROLE_WORLD_SIZE": str(effect.world_size), "MASTER_ADDR": effect.store_host, "MASTER_PORT": str(effect.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(effect.restarts), "TORCHELASTIC_MAX_RESTARTS": str(spec.job.policy.max_restarts or 0),
        "TORCHELASTIC_RUN_ID": spec.job.job, "TORCHELASTIC_USE_AGENT_STORE": str(effect.store_hosted),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP",  # By the launcher.
        "TORCHELASTIC_ERROR_FILE": str(error_path(Path(spec.state), effect.generation, rank)),
        "HOLDFAST_JOB": spec.job.job, "HOLDFAST_NODE": spec.mark, "HOLDFAST_GENERATION": str(effect.generation),
        "HOLDFAST_BEATS": str(watch.beat_path(effect.generation, rank)), "HOLDFAST_CHECKPOINTS": spec.checkpoints,
        "HOLDFAST_SNAPSHOTS": spec.shared_memory, "HOLDFAST_INTERVAL": str(watch.interval_path()),
        "HOLDFAST_SAVE_EVERY": "" if effect.save_every is None else str(effect.save_every), "HOLDFAST_SAVE_ASKED": "1" if effect.save_asked else "",
        "HOLDFAST_PROFILE": str(watch.profile_path(effect.generation, rank)), "HOLDFAST_PROFILES": spec.profiles,
        "HOLDFAST_FLIGHT": str(flight or ""),
        "HOLDFAST_RESTORE": effect.restore, "HOLDFAST_REJOIN": "1" if effect.rejoin else "", "HOLDFAST_SCRATCH": spec.scratch,
        "HOLDFAST_STAGED": str(Path(spec.scratch) / STAGED) if spec.job.stage else "",
    }  # fmt: skip


def error_path(state: Path, generation: int, rank: int) -> Path:
    """Where a worker's exception is written down, by torch's `record` or by the warm parent."""
    return state / f"error-{generation}-{rank}.json"
