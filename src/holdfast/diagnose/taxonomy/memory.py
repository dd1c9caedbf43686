"""Classes about memory that ran out, and limits like it."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="gpu_oom",
        definition="The GPU's memory did not hold what the job asked for.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.OUT_OF_MEMORY,),
        action="Make the micro-batch or the sequence smaller, or shard or recompute more.",
        otherwise={
            Permanence.UNCLEAR: "See with `nvidia-smi` whose memory it is. If another process holds the card, use another card; if it is this job, make the "
            "micro-batch or the sequence smaller.",
        },
        look_alikes=("gpu_kernel_error", "host_oom"),
        page="The allocator says how much it wanted, how much this process holds and how much the card has. Where this process holds little of a card that "
        "is full, a neighbour or another process of the job holds the rest, and the log cannot say which. cuBLAS and cuDNN say ALLOC_FAILED for it.",
        retries=0,
    ),
    CauseClass(
        name="host_oom",
        definition="The machine's or the job's limit of main memory was reached, and the kernel or the scheduler killed a process for it.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.OUT_OF_MEMORY, Cause.KILLED, Cause.VANISHED),
        action="Ask for more memory, or use less: fewer loader workers, smaller prefetch, no whole data set in memory. `dmesg | grep -i oom` on the node "
        "confirms it.",
        otherwise={
            Permanence.UNCLEAR: "Look for a memory kill on the node (`dmesg | grep -i oom`). If there is one, ask for more memory or use less. If there is "
            "none, ask who killed it, and try once more.",
        },
        look_alikes=("dataloader_worker_died", "user_cancelled", "preempted", "ray_worker_died"),
        page="Sure signs are the kernel's `oom-kill` and `Killed process` records, Slurm's `oom_kill event` and `Out Of Memory`, LSF's TERM_MEMLIMIT and "
        "Kubernetes' OOMKilled. A bare `Killed`, -9 or exit code 137 is not one of them: an operator or a scheduler kills with the same signal.",
        retries=0,
    ),
    CauseClass(
        name="shm_exhausted",
        definition="/dev/shm is too small for what loader workers or collectives put there.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.OUT_OF_MEMORY, Cause.CRASH, Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Give the container a bigger /dev/shm (`--shm-size=16g`, `--ipc=host`, or an emptyDir of medium Memory), or use fewer loader workers.",
        look_alikes=("dataloader_worker_died", "disk_full", "nccl_system_error"),
        page="A loader worker dies of a bus error and torch says so with an advice about shared memory; NCCL fails to extend a /dev/shm/nccl- file; `No "
        "space left on device` names /dev/shm or a torch_ segment.",
        retries=0,
    ),
    CauseClass(
        name="dataloader_worker_died",
        definition="A loader worker process was killed or left, and nothing says by whom.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.WORKER,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Look for a memory kill on the node first (`dmesg`), then at /dev/shm; try once more, then with fewer workers or `num_workers=0` to see the "
        "real error.",
        look_alikes=("host_oom", "shm_exhausted", "segfault"),
        page="`DataLoader worker (pid …) is killed by signal: Killed` is most often the memory limit of the job; with a bus error it is /dev/shm; with a "
        "segmentation fault it is native code in the data set. An exception inside a worker is not this class: it is named after the exception.",
        retries=1,
    ),
    CauseClass(
        name="too_many_open_files",
        definition="A process reached its limit of open file descriptors.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Raise the limit (`ulimit -n 65536` before the launch), or call `torch.multiprocessing.set_sharing_strategy('file_system')`.",
        look_alikes=("dataloader_worker_died", "file_not_found"),
        page="Errno 24 in any language, and torch's `received 0 items of ancdata`, which is the same limit met while a tensor is handed to another process.",
        retries=0,
    ),
)
