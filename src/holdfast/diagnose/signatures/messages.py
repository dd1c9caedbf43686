"""Signatures of collectives, the store and the rendezvous."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.diagnose.taxonomy import Permanence, Role, Scope

_NCCL = "NCCL user guide, ncclResult_t"

SIGNATURES = (
    Signature(
        name="watchdog_timeout", cause="nccl_timeout", strength=SURE,
        says=(
            "Heartbeat monitor timed out", "collective … did not complete within", "HCCL … timeout", "stall_check", "participants waiting on all-reduce",
            "NCCL … timed out", "allreduce … timed out", "all_reduce … timed out", "Watchdog caught collective operation timeout", "before timing out",
            "Timeout at NCCL work", "due to a collective timeout", "operations have failed or timed out", "failed to pass monitoredBarrier",
            "watchdog got stuck for", "Watchdog timeout", "last enqueued NCCL work", "Timeout(ms)=", "Notify wait execute timeout",
            "submitted to be reduced, gathered or broadcasted by subset of ranks",
        ),
        also=("NCCL", "WorkNCCL", "collective", "monitoredBarrier", "HCCL", "XCCL", "watchdog", "subset of ranks"),
        unless=("clients joined",),
        source="torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: 'Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=…, "
        "Timeout(ms)=…) ran for … milliseconds before timing out.'",
        example="[rank3]:[E1116 04:05:06.123 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
    ),
    Signature(
        name="gloo_timeout", cause="nccl_timeout", strength=STRONG,
        says=("gloo … Timed out waiting … operation to complete", "Timed out waiting … for recv operation", "Timed out waiting … for send operation"),
        source="gloo/transport/tcp/unbound_buffer.cc: 'Timed out waiting %ldms for recv operation to complete': a collective that was not done in time",
        example="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete",
    ),
    Signature(
        name="nccl_aborted", cause="nccl_timeout", strength=WEAK,
        says=(
            "NCCL watchdog thread terminated with exception", "NCCL communicator was aborted",
            "To avoid data inconsistency, we are taking the entire process down", "Received a dump signal", "taking the entire process down",
            "Process group watchdog thread terminated with exception",
        ),
        source="torch ProcessGroupNCCL.cpp: what the watchdog says while it ends the process, whatever the error was",
        example="[E ProcessGroupNCCL.cpp:915] [Rank 1] NCCL watchdog thread terminated with exception: something",
    ),
    Signature(
        name="nccl_remote_error", cause="nccl_remote_closed", strength=SURE,
        says=(
            "ncclRemoteError", "remote process exiting prematurely", "remote process exited or there was a network error",
            "Connection closed by remote peer", "socketProgressOpt: Call to recv", "socketProgress: Connection closed", "NCCL … Connection reset by peer",
            "NCCL … Broken pipe", "NCCL … Connection closed by peer",
        ),
        source=f"{_NCCL}: ncclRemoteError (6) 'A call failed possibly due to a network error or a remote process exiting prematurely'",
        example="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2113, remote process exited or there was a network error, NCCL "
        "version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
    Signature(
        name="nccl_system_error", cause="nccl_system_error", strength=STRONG,
        says=("ncclSystemError", "unhandled system error", "System call (e.g. socket, malloc) or external library call failed"),
        source=f"{_NCCL}: ncclSystemError (2) 'System call (e.g. socket, malloc) or external library call failed or device error'",
        example="torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL "
        "version 2.19.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    ),
    Signature(
        name="nccl_cuda_or_internal", cause="nccl_system_error", strength=FAIR,
        says=(
            "ncclUnhandledCudaError", "unhandled cuda error", "ncclInternalError", "Call to CUDA function failed",
            "internal error - please report this issue to the NCCL", "NCCL error in:", "NCCL failure", "NCCL Error 1", "NCCL Error 2", "NCCL Error 3",
        ),
        unless=("out of memory", "ncclInvalidUsage", "invalid usage", "ncclRemoteError", "remote process exited", "invalid argument", "ncclInvalidArgument"),
        source=f"{_NCCL}: ncclUnhandledCudaError (1), ncclInternalError (3)",
        example="RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled cuda error, NCCL version "
        "2.18.1\nncclUnhandledCudaError: Call to CUDA function failed.",
    ),
    Signature(
        name="nccl_ib_completion", cause="nccl_system_error", strength=SURE,
        says=(
            "Got completion from peer … with error", "IBV_WC_", "UCX ERROR", "RDMA … failed", "RDMA … error", "ib_uverbs", "mlx5_core … error",
            "NET/IB … Got completion from peer", "Got completion from peer … with status", "ibv_modify_qp failed", "Call to ibv_", "ibv_reg_mr",
            "ibv_poll_cq", "IB Async event", "ibv_create_qp", "ibv_create_cq", "mlx5_cmd … error", "local catastrophic error", "got completion with error",
            "NET/OFI … failed", "transport retry counter exceeded",
        ),
        unless=("is not implemented", "status=5 opcode", "with error 5,", "status 5"),
        source="NCCL src/transport/net_ib.cc: 'NET/IB : Got completion from peer … with status=… opcode=…'; ibv_poll_cq(3): status 12 is retry exceeded",
        example="gpu7:101:188 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.8<50131> with status=12 opcode=0 len=0 vendor "
        "err 129",
    ),
    Signature(
        name="nccl_no_interface", cause="nccl_system_error", strength=SURE, scope=Scope.CONFIG,
        says=(
            "has already checked in", "Failed to execute operation Connect", "operation=Connect, res=", "Bootstrap : no socket interface found",
            "No socket interface found", "no usable interface", "NCCL WARN … Connect to … failed", "NCCL WARN … failed : Connection refused",
            "NCCL WARN … No route to host", "NCCL WARN … Connection timed out", "socketStartConnect: Connect to", "socketPollConnect: connect",
            "NCCL WARN … Software caused connection abort",
        ),
        source="NCCL src/bootstrap.cc: 'Bootstrap : no socket interface found'; src/misc/socket.cc: 'socketStartConnect: Connect to … failed : …'",
        example="node0:55:55 [0] bootstrap.cc:44 NCCL WARN Bootstrap : no socket interface found",
    ),
    Signature(
        name="nccl_invalid_usage", cause="nccl_invalid_usage", strength=SURE,
        says=(
            "Tensors must be CUDA and dense", "Detected mismatch between collectives on ranks", "must match number of collective participants",
            "invalid root", "must be the same size as input tensor times world size", "used by two ranks", "ncclInvalidUsage", "invalid usage, NCCL version",
            "invalid usage (run with NCCL_DEBUG", "Duplicate GPU detected", "invalid usage of NCCL", "ncclInvalidArgument", "invalid argument, NCCL version",
            "invalid argument (run with NCCL_DEBUG", "NCCL Error 5", "NCCL Error 4", "Tensors must be on distinct GPU devices",
            "No backend type associated with device type", "NCCL backend only supports", "ProcessGroupNCCL does not support",
            "NCCL WARN Mismatched collectives",
        ),
        source=f"{_NCCL}: ncclInvalidUsage (5) 'This usually reflects invalid usage of NCCL library', ncclInvalidArgument (4)",
        example="ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on "
        "CUDA device 1a000",
    ),
    Signature(
        name="gloo_mesh", cause="gloo_connect", strength=SURE, role=Role.ROOT,
        says=(
            "Gloo connectFullMesh failed", "connectFullMesh", "Unable to resolve hostname to a (local) address", "gloo … Connect timeout",
            "SO_ERROR: Connection refused", "gloo … no error", "Unable to find address for", "makeDeviceForHostname", "makeDeviceForInterface",
            "gloo … Connection refused", "gloo … No route to host",
        ),
        source="gloo/transport/tcp and gloo/rendezvous/context.cc: 'Gloo connectFullMesh failed with …'; torch ProcessGroupGloo.cpp",
        example="RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    Signature(
        name="gloo_lost", cause="gloo_connect", strength=STRONG,
        says=(
            "gloo/transport/tcp", "gloo … Connection closed by peer", "gloo … Connection reset by peer", "gloo … Application timeout caused pair closure",
            "gloo … closed",
        ),
        unless=("connectFullMesh", "Timed out waiting"),
        source="gloo/transport/tcp/pair.cc: 'Connection closed by peer [host]:port', 'Read error … Connection reset by peer'; unbound_buffer.cc: 'Timed out "
        "waiting …ms for recv operation to complete'",
        example="RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.1.3]:21833",
    ),
    Signature(
        name="rendezvous_failed", cause="rendezvous_timeout", strength=SURE,
        says=(
            "connect() timed out. Original timeout was", "has timed out after … while trying to connect", "RendezvousTimeoutError",
            "RendezvousConnectionError", "The connection to the C10d store has failed", "clients joined", "waiting for clients", "store based barrier",
            "The client socket has timed out", "client socket has failed to connect to any network address", "RendezvousError", "Rendezvous timed out",
            "waiting for rendezvous", "workers have not joined", "has timed out, will not wait", "via c10d key-value store by key",
        ),
        unless=("RendezvousClosedError", "RendezvousGracefulExitError"),
        source="torch/distributed/elastic/rendezvous/api.py; torch/csrc/distributed/c10d/TCPStore.cpp: 'Timed out after … seconds waiting for clients. k/n "
        "clients joined.'",
        example="torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 3/4 clients joined.",
    ),
    Signature(
        name="store_timeout", cause="rendezvous_timeout", strength=STRONG,
        says=(
            "wait timeout after", "Socket Timeout", "DistStoreError", "Timed out initializing process group", "Timeout waiting for key",
            "timed out waiting for … ncclUniqueId", "Barrier timed out", "barrier … timed out … ranks", "storeKey … Timeout",
            "Connect to the coordination service timed out", "DEADLINE_EXCEEDED: Barrier", "nanny barrier",
        ),
        unless=("NCCL work", "WorkNCCL", "http"),
        source="torch/csrc/distributed/c10d/TCPStore.cpp and FileStore.cpp: 'wait timeout after …ms, keys: …'; tsl coordination service: 'Barrier timed out'",
        example="torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//store_based_barrier_key",
    ),
    Signature(
        name="store_gone", cause="rendezvous_timeout", strength=WEAK, role=Role.ECHO,
        says=(
            "Connection was likely closed. Did the remote server shutdown or crash", "failed to shutdown the rendezvous",
            "failed to send a keep-alive heartbeat to the rendezvous", "RendezvousClosedError", "sendBytes failed on SocketImpl",
            "recvValue failed on SocketImpl", "TCPStore … Broken pipe", "TCPStore … Connection reset", "failed to recv, got 0 bytes",
            "RendezvousGracefulExitError", "coordination service … UNAVAILABLE", "Failed to check the \"should dump\" flag on TCPStore",
        ),
        source="torch/csrc/distributed/c10d/socket.cpp and TCPStore.cpp: what clients say when the host of the store is gone",
        example="[W socket.cpp:460] [c10d] recvValue failed on SocketImpl(fd=66): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
        "server shutdown or crash?",
    ),
    Signature(
        name="c10d_refused", cause="rendezvous_timeout", strength=WEAK,
        says=("[c10d] The client socket has failed to connect", "[c10d] The IPv6 network addresses of", "DistNetworkError"),
        unless=("Address already in use", "EADDRINUSE"),
        source="torch/csrc/distributed/c10d/socket.cpp: 'The client socket has failed to connect to [host]:port (errno: 111 - Connection refused).'",
        example="[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused).",
    ),
    Signature(
        name="address_in_use", cause="port_in_use", strength=SURE,
        says=(
            "Could not start gRPC server", "another process is utilizing it", "errno=98", "code: 98", "bind: ", "Address already in use", "EADDRINUSE",
            "errno: 98", "[Errno 98]", "address is already in use", "(os error 98)", "port … is already in use", "port … already allocated",
            "Failed to bind to address", "port is already in use",
        ),
        unless=("ncclras", "ras.cc", "rasnet", "RAS thread", "trying another", "trying next", "using another port", "using port"),
        source="errno(3): EADDRINUSE 98; torch c10d/socket.cpp: 'The server socket has failed to listen on any local network address.'",
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
        "code: -98, name: EADDRINUSE, message: address already in use",
    ),
    Signature(
        name="mpi_lost_peer", cause="nccl_remote_closed", strength=FAIR,
        says=(
            "MPI_ERR_PROC_FAILED", "btl_tcp … Connection reset by peer", "mca_btl_tcp_frag_recv", "UCX … Connection reset by remote peer",
            "UCX … Endpoint timeout", "HorovodInternalError", "Horovod has been shut down",
        ),
        source="Open MPI btl/tcp, UCX and Horovod: what survivors print when a peer is gone",
        example="[n2][[1,1],3][btl_tcp_frag.c:241] mca_btl_tcp_frag_recv: readv failed: Connection reset by peer (104)",
    ),
    Signature(
        name="connection_of_ranks", cause="nccl_remote_closed", strength=WEAK, permanence=Permanence.UNCLEAR,
        error=("DistBackendError", "DistNetworkError"),
        unless=("Address already in use", "EADDRINUSE", "invalid usage", "unhandled system error", "unhandled cuda"),
        source="torch.distributed exceptions: DistBackendError, DistNetworkError",
        example="torch.distributed.DistBackendError: a backend failed",
    ),
)  # fmt: skip
