"""Classes about ranks that talk to each other: collectives, the store, the rendezvous."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Role, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="nccl_timeout",
        definition="A collective was not done in time, and no rank says why.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NETWORK,
        seen_as=(Cause.HANG, Cause.NETWORK),
        role=Role.ECHO,
        action="Find the rank that is behind (the lowest sequence number, or the one with no timeout line) and read its log; try once more; the second "
        "time, test nodes in halves.",
        look_alikes=("hang", "nccl_remote_closed", "gpu_ecc", "dataloader_worker_died"),
        page="The watchdog of every waiting rank says the same. The cause is mostly a rank that never came: it crashed, reads data, saves, or entered "
        "another collective. The network is the rarer cause. A tiny payload or sequence number 1 speaks for a rank that never came.",
        retries=1,
    ),
    CauseClass(
        name="nccl_remote_closed",
        definition="A peer closed its connection, and no log says why it went.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NETWORK,
        seen_as=(Cause.NETWORK,),
        role=Role.ECHO,
        action="Look at the rank that went first: its log, its exit code, its node. This rank is well.",
        look_alikes=("nccl_timeout", "nccl_system_error", "node_fail", "gloo_connect"),
        page="ncclRemoteError, `remote process exited or there was a network error`, `Connection closed by peer`. A consequence wherever another rank's "
        "failure is known.",
        retries=1,
    ),
    CauseClass(
        name="nccl_system_error",
        definition="NCCL failed in a system call, in the network card's library or in CUDA.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NETWORK,
        seen_as=(Cause.NETWORK,),
        action="At the start: set NCCL_SOCKET_IFNAME to the right interface, check firewall, /dev/shm and ulimit -l, and read NCCL_DEBUG=INFO. In the "
        "middle of a run: leave the node out.",
        look_alikes=("gpu_driver_mismatch", "shm_exhausted", "nccl_remote_closed", "gpu_nvlink"),
        page="ncclSystemError, ncclUnhandledCudaError and ncclInternalError, completion errors of InfiniBand. NCCL's `Last error` line says more than the "
        "exception. Before the first step it is mostly a setting, afterwards mostly a link.",
        retries=1,
    ),
    CauseClass(
        name="nccl_invalid_usage",
        definition="NCCL was called in a way it forbids.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Check that each rank has a GPU of its own (`torch.cuda.set_device(local_rank)`) and that there are not more ranks than GPUs.",
        look_alikes=("gpu_unavailable", "config_error", "nccl_system_error"),
        page="ncclInvalidUsage and ncclInvalidArgument. `Duplicate GPU detected` is two ranks on one card.",
        retries=0,
    ),
    CauseClass(
        name="gloo_connect",
        definition="Gloo could not connect the ranks, or lost a connection, and no rank says why.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NETWORK,
        seen_as=(Cause.NETWORK,),
        role=Role.ECHO,
        action="At the start: check that host names resolve to an address others reach, and set GLOO_SOCKET_IFNAME. In the middle: look at the rank that "
        "went first.",
        look_alikes=("nccl_remote_closed", "rendezvous_timeout"),
        page="`Gloo connectFullMesh failed`, `Connection closed by peer`, `Connection reset by peer`, a gloo operation that timed out. In the middle of a "
        "run it is an echo of a rank that died.",
        retries=1,
    ),
    CauseClass(
        name="rendezvous_timeout",
        definition="Ranks or agents did not find each other in time.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NETWORK,
        seen_as=(Cause.NETWORK,),
        role=Role.ECHO,
        action="Start all agents together; check that MASTER_ADDR and the port are reached from every node, and which node is missing.",
        look_alikes=("port_in_use", "gloo_connect", "hang"),
        page="RendezvousTimeoutError, `Timed out after … waiting for clients. k/n clients joined`, a TCPStore that cannot be connected to or does not "
        "answer, a barrier of the store that not all reach. When the host of the store died in the middle of a run, its end is the cause and this the echo.",
        retries=1,
    ),
    CauseClass(
        name="port_in_use",
        definition="The port the job wants is taken.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Use another port (`--master-port 0`, `--standalone` or `--rdzv-endpoint HOST:0`) and start again; an earlier run of the job may still hold it.",
        otherwise={Permanence.UNCLEAR: "Use another port (`--master-port 0`, `--standalone` or `--rdzv-endpoint HOST:0`) and try once more."},
        look_alikes=("rendezvous_timeout",),
        page="EADDRINUSE, errno 98, `Address already in use`. Fatal in the store; harmless where the program then takes the next port.",
    ),
)
