"""Signatures of memory and other limits that were reached."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.diagnose.taxonomy import Permanence, Role
from holdfast.domain.log_event import LogForm

SIGNATURES = (
    Signature(
        name="torch_gpu_oom", cause="gpu_oom", strength=SURE,
        says=("CUDA out of memory", "HIP out of memory", "MPS backend out of memory", "XPU out of memory", "NPU out of memory"),
        source="torch c10/cuda/CUDACachingAllocator.cpp: 'CUDA out of memory. Tried to allocate …'; aten/src/ATen/mps/MPSAllocator.mm; torch_npu "
        "NPUCachingAllocator",
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a total capacity of 39.39 GiB of which 512.00 MiB is "
        "free.",
    ),
    Signature(
        name="cuda_gpu_oom", cause="gpu_oom", strength=SURE,
        says=(
            "CUDA error: out of memory", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA driver error: out of memory",
            "Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'", "cudaMalloc failed: out of memory", "CUDA failure 2: out of memory",
            "hipErrorOutOfMemory", "[CUDA]: out of memory", "cuda runtime error (2) : out of memory", "Out of memory error on GPU",
            "error == cudaSuccess (2 vs. 0)",
        ),
        source="CUDA Runtime API, cudaError_t: cudaErrorMemoryAllocation (2) 'out of memory'",
        example="RuntimeError: CUDA error: out of memory",
    ),
    Signature(
        name="gpu_library_alloc_failed", cause="gpu_oom", strength=STRONG, permanence=Permanence.UNCLEAR,
        says=("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED"),
        source="cuBLAS and cuDNN documentation, status types: resource allocation failed inside the library, usually by cudaMalloc()",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    Signature(
        name="tensorflow_gpu_oom", cause="gpu_oom", strength=SURE,
        says=("OOM when allocating tensor with shape", "ran out of memory trying to allocate", "failed to allocate … from device: CUDA_ERROR_OUT_OF_MEMORY"),
        source="tensorflow/core/framework/op_kernel.cc, bfc_allocator.cc: 'OOM when allocating tensor with shape[…]'",
        example="tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512,512] on "
        "/job:localhost/device:GPU:0 by allocator GPU_0_bfc",
    ),
    Signature(
        name="xla_gpu_oom", cause="gpu_oom", strength=SURE,
        says=(
            "RESOURCE_EXHAUSTED: Out of memory", "Resource exhausted: Out of memory", "RESOURCE_EXHAUSTED: … allocat",
            "Ran out of memory in memory space hbm", "RESOURCE_EXHAUSTED: Failed to allocate",
        ),
        source="openxla/xla: bfc_allocator and tpu compiler, status RESOURCE_EXHAUSTED; docs.jax.dev 'GPU memory allocation'",
        example="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    ),
    Signature(
        name="serving_cache_oom", cause="gpu_oom", strength=STRONG,
        says=(
            "No available memory for the cache blocks", "is less than desired GPU memory utilization",
            "Not enough memory. Please try to increase --mem-fraction-static", "Not enough GPU memory", "insufficient GPU memory",
        ),
        source="vllm/v1/core/kv_cache_utils.py and worker/utils.py; sglang memory pool: not enough GPU memory for the cache",
        example="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ),
    Signature(
        name="oom_exception_class", cause="gpu_oom", strength=STRONG,
        error=("OutOfMemoryError",),
        unless=("java.lang", "ray.exceptions", "heap space"),
        source="torch.OutOfMemoryError (torch.cuda.OutOfMemoryError before 2.5)",
        example="Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    y = model(x)\ntorch.cuda.OutOfMemoryError: Allocation on "
        "device",
    ),
    Signature(
        name="kernel_oom_kill", cause="host_oom", strength=SURE,
        says=(
            "systemd-oomd", "due to memory pressure", "oom_score", "OOM killer", "Out of memory: Killed process", "Memory cgroup out of memory",
            "invoked oom-killer", "oom-kill:constraint=", "oom_reaper: reaped process", "Out of memory: Kill process",
        ),
        source="Linux mm/oom_kill.c: 'Out of memory: Killed process %d (%s)', 'oom-kill:constraint='",
        example="[51234.1] Memory cgroup out of memory: Killed process 4411 (python) total-vm:210GB, anon-rss:180GB",
    ),
    Signature(
        name="slurm_oom_kill", cause="host_oom", strength=SURE,
        says=(
            "DUE TO MEMORY LIMIT", "exceeded memory limit", "oom-kill event", "oom_kill event", "killed by the cgroup out-of-memory handler",
            "task … : Out Of Memory", "Exceeded job memory limit", "Exceeded step memory limit", "OUT_OF_MEMORY",
        ),
        source="Slurm src/plugins/task/cgroup/task_cgroup_memory.c: 'Detected %u oom_kill event in StepId=%s'; srun: 'task %s: Out Of Memory'",
        example="slurmstepd: error: Detected 1 oom_kill event in StepId=991.0. Some of the step tasks have been OOM Killed.",
    ),
    Signature(
        name="scheduler_memory_limit", cause="host_oom", strength=SURE,
        says=(
            "TERM_MEMLIMIT", "reaching LSF memory usage limit", "OOMKilled", "PBS: job killed: mem", "PBS: job killed: vmem",
            "The node was low on resource: memory", "TERM_SWAP",
        ),
        source="IBM Spectrum LSF termination reasons; Kubernetes container state reasons; PBS Professional admin guide, resource limits",
        example="TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
    ),
    Signature(
        name="ray_memory_monitor", cause="host_oom", strength=SURE,
        says=("killed due to the node running low on memory", "killed due to memory pressure (OOM)", "raylet … memory … exceeds the memory usage threshold"),
        source="docs.ray.io, out-of-memory prevention: 'Task was killed due to the node running low on memory.'",
        example="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ),
    Signature(
        name="cpu_allocator", cause="host_oom", strength=SURE,
        says=(
            "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "posix_memalign. DefaultCPUAllocator",
            "Torch: not enough memory: you tried to allocate",
        ),
        source="torch c10/core/impl/alloc_cpu.cpp: 'DefaultCPUAllocator: can't allocate memory: you tried to allocate %d bytes'",
        example="RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 800000000000 "
        "bytes. Error code 12 (Cannot allocate memory)",
    ),
    Signature(
        name="python_memory_error", cause="host_oom", strength=STRONG,
        error=("MemoryError", "_ArrayMemoryError", "ArrowMemoryError"),
        source="Python library reference, MemoryError; numpy.core._exceptions._ArrayMemoryError",
        example="Traceback (most recent call last):\n  File \"prep.py\", line 3, in <module>\n    a = np.zeros((10**6, "
        "10**6))\nnumpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000) and data type float64",
    ),
    Signature(
        name="cannot_allocate_memory", cause="host_oom", strength=FAIR,
        says=(
            "Cannot allocate memory", "std::bad_alloc", "[Errno 12]", "java.lang.OutOfMemoryError", "Unable to allocate … for an array",
            "memory allocation of … bytes failed",
        ),
        unless=("/dev/shm", "shared memory", "ibv_", "ENOMEM … ib"),
        source="errno(3): ENOMEM 12; C++ std::bad_alloc; Java OutOfMemoryError; Rust alloc error handler",
        example="OSError: [Errno 12] Cannot allocate memory",
    ),
    Signature(
        name="bare_killed", cause="host_oom", strength=FAIR,
        form=(LogForm.LINE, LogForm.SCHEDULER, LogForm.NATIVE, LogForm.PYTHON), permanence=Permanence.UNCLEAR,
        says=(
            "exited with code 137", "code 137", "code -9", "signal 9", "status 137", " Killed ", ": Killed\n", "SIGKILL", "exitcode  : -9", "exitcode: -9",
            "Signal 9 (SIGKILL)", "signal 9 (Killed)", "exited with exit code 137", "died with <Signals.SIGKILL: 9>", "exit code: 137",
            "returned exit code -9", "returned exit code 137", "exits with return code = -9", "exit code -9", "signal: killed", "killed by signal 9",
            "task … : Killed", "exit code = -9", "exitcode -9",
        ),
        unless=("DataLoader worker", "then SIGKILL", "wall time"),
        source="signal(7): SIGKILL; torch elastic: 'Signal 9 (SIGKILL) received by PID'; who sent it is not said, so this alone never proves a lack of "
        "memory",
        example="Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4242)\n  traceback : Signal 9 "
        "(SIGKILL) received by PID 4242",
    ),
    Signature(
        name="shm_advice", cause="shm_exhausted", strength=SURE,
        says=(
            "ObjectStoreFullError", "shared-memory backing file", "not enough space for … shared-memory", "insufficient shared memory (shm)",
            "out of shared memory", "increasing the shared memory", "/dev/shm is full", "/dev/shm full", "/dev/shm is not large enough",
            "increase … shared memory … docker", "unable to allocate shared memory(shm) for file",
        ),
        source="torch/utils/data/_utils/signal_handling.py: 'This might be caused by insufficient shared memory (shm).'",
        example="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
    Signature(
        name="loader_bus_error", cause="shm_exhausted", strength=STRONG,
        says=("killed by signal: Bus error", "bus error encountered in worker"),
        source="torch/csrc/DataLoader.cpp: 'DataLoader worker (pid …) is killed by signal: Bus error.'",
        example="RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared "
        "memory.",
    ),
    Signature(
        name="shm_no_space", cause="shm_exhausted", strength=SURE,
        says=("/dev/shm", "</torch_", "shared memory", "shared_memory", "'psm_", "'/psm_"),
        also=("No space left", "[Errno 28]", "unable to resize", "unable to write to file", "Cannot allocate memory"),
        source="torch aten/src/ATen/MapAllocator.cpp: 'unable to write to file </torch_…>: No space left on device (28)'",
        example="RuntimeError: unable to write to file </torch_118_99>: No space left on device (28)",
    ),
    Signature(
        name="shm_no_space_in_sharing", cause="shm_exhausted", strength=SURE + 1.0,
        says=("No space left", "[Errno 28]"),
        frames=("multiprocessing/shared_memory.py", "multiprocessing/reductions.py", "_new_using_fd", "_share_fd", "_new_shared", "share_memory"),
        source="Python multiprocessing.shared_memory and torch storage sharing: they write to /dev/shm",
        example="Traceback (most recent call last):\n  File \"/opt/lib/python3.11/multiprocessing/shared_memory.py\", line 114, in __init__\n    "
        "os.ftruncate(self._fd, size)\nOSError: [Errno 28] No space left on device",
    ),
    Signature(
        name="nccl_shm", cause="shm_exhausted", strength=SURE,
        says=("Error while creating shared memory segment", "Error: failed to extend /dev/shm/nccl-", "Call to posix_fallocate failed : No space left"),
        source="NCCL src/misc/shmutils.cc; NCCL user guide, troubleshooting: shared memory",
        example="node1:77:91 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a1B2c3 to 9637892 bytes",
    ),
    Signature(
        name="loader_worker_killed", cause="dataloader_worker_died", strength=SURE,
        says=("DataLoader worker … is killed by signal", "DataLoader worker … exited unexpectedly", "DataLoader worker … killed"),
        unless=("Bus error", "signal: Terminated", "signal: Hangup", "signal: Interrupt"),
        source="torch/csrc/DataLoader.cpp and torch/utils/data/dataloader.py: 'DataLoader worker (pid(s) …) exited unexpectedly'",
        example="RuntimeError: DataLoader worker (pid(s) 5150, 5151) exited unexpectedly",
    ),
    Signature(
        name="process_pool_broken", cause="dataloader_worker_died", strength=STRONG,
        says=(
            "DataLoader timed out", "worker … exited … data loader", "TerminatedWorkerError", "input pipeline lost its worker",
            "A process in the process pool was terminated abruptly", "One of the subprocesses has abruptly died during map operation", "BrokenProcessPool",
            "A worker process managed by the executor was unexpectedly terminated", "Pin memory thread exited unexpectedly",
            "worker process died unexpectedly",
        ),
        source="concurrent.futures.process.BrokenProcessPool; huggingface datasets utils/py_utils.py; joblib TerminatedWorkerError; torch dataloader.py",
        example="RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
    ),
    Signature(
        name="loader_pipe_reset", cause="dataloader_worker_died", strength=FAIR,
        error=("ConnectionResetError", "EOFError", "BrokenPipeError", "ConnectionRefusedError"),
        frames=("multiprocessing/reductions.py", "multiprocessing/connection.py", "multiprocessing/queues.py", "_utils/pin_memory.py", "torch/utils/data/"),
        unless=("Ran out of input",),
        source="Python multiprocessing.connection: recv raises EOFError and ConnectionResetError when the other end is gone; torch DataLoader hands tensors "
        "that way",
        example="Traceback (most recent call last):\n  File \"/opt/lib/python3.11/site-packages/torch/utils/data/_utils/pin_memory.py\", line 49, in "
        "do_one_step\n    r = in_queue.get()\n  File \"/opt/lib/python3.11/multiprocessing/connection.py\", line 519, in Client\n    c = "
        "SocketClient(address)\nConnectionResetError: [Errno 104] Connection reset by peer",
    ),
    Signature(
        name="too_many_open_files", cause="too_many_open_files", strength=SURE,
        says=("Too many open files", "[Errno 24]", "items of ancdata", "(os error 24)", "EMFILE", "ENFILE"),
        source="errno(3): EMFILE 24; torch multiprocessing notes on sharing strategies: 'received 0 items of ancdata'",
        example="OSError: [Errno 24] Too many open files: '/data/shard-0001.bin'",
    ),
    Signature(
        name="process_limit", cause="process_abort", strength=WEAK, role=Role.ROOT, permanence=Permanence.PERMANENT,
        says=("Resource temporarily unavailable", "can't start new thread", "pthread_create failed", "libgomp: Thread creation failed"),
        source="pthread_create(3): EAGAIN, a limit on threads or memory was reached",
        example="RuntimeError: can't start new thread",
    ),
)  # fmt: skip
