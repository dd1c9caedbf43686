"""Classes about the GPU and its driver."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="gpu_ecc",
        definition="A GPU memory error that could not be corrected.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.NODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.REPLICAS_DISAGREE),
        action="Leave this node out and start elsewhere; reset the GPU, and send it back if the error returns (`nvidia-smi -q -d ECC,ROW_REMAPPER`).",
        look_alikes=("gpu_illegal_access", "gpu_xid_other", "nccl_timeout"),
        hardware_persists=True,
        page="Xid 48, 64, 94, 95 and 140, and CUDA's `uncorrectable ECC error encountered`. Xid 63 alone is a row remap that worked, and no failure.",
    ),
    CauseClass(
        name="gpu_fell_off_bus",
        definition="The GPU no longer answers on the PCIe bus.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.NODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.UNKILLABLE),
        action="Leave this node out and start elsewhere; power-cycle the machine, check power, heat and seating of the card.",
        look_alikes=("gpu_unavailable", "gpu_xid_other"),
        hardware_persists=True,
        page="Xid 79, `GPU has fallen off the bus`, `Unable to determine the device handle`, `GPU is lost`, and PCIe AER records for the card's address.",
    ),
    CauseClass(
        name="gpu_nvlink",
        definition="An error of the links or switches between GPUs.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.NODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Leave this node out and start elsewhere; reset the GPUs and the fabric manager, and look at `nvidia-smi nvlink -e`.",
        look_alikes=("gpu_ecc", "nccl_system_error", "nccl_timeout"),
        hardware_persists=True,
        page="Xid 74 and 144 to 150, CUDA's `uncorrectable NVLink error`, SXid lines of a switch, and a fabric manager that is not running.",
    ),
    CauseClass(
        name="gpu_xid_other",
        definition="The driver reported another of its numbered errors.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Do what the table of Xids says for the number. If it is a halt or a GSP error, reset the GPU and move; if it is 13 or 43, look at the "
        "program first.",
        otherwise={Permanence.TRANSIENT: "Leave this node out and start elsewhere; reset the GPU."},
        look_alikes=("gpu_illegal_access", "gpu_fell_off_bus", "gpu_ecc"),
        page="Xid 45 is a clean-up after another error: the earlier one counts. Xid 154 carries the driver's own advice, which is trusted over any table.",
        retries=1,
    ),
    CauseClass(
        name="gpu_illegal_access",
        definition="A kernel on the GPU read or wrote memory that is not its own.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Try once on another node. The same again: run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer and mend the kernel or the indices.",
        look_alikes=("device_assert", "gpu_ecc", "gpu_kernel_error"),
        page="CUDA error 700 and Xid 31. About two of three are the user's code, the rest hardware; only a second try elsewhere tells them apart. The line "
        "that raises is often not the one to blame, because kernels run later than they are called.",
        retries=1,
    ),
    CauseClass(
        name="device_assert",
        definition="An assertion inside a kernel failed: most often an index or a label outside its range.",
        permanence=Permanence.PERMANENT,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Check labels against the number of classes and token ids against the vocabulary; run on the CPU or with CUDA_LAUNCH_BLOCKING=1 to see the "
        "line.",
        look_alikes=("index_out_of_range", "gpu_illegal_access"),
        page="`device-side assert triggered`, with an `Assertion … failed` line of the kernel before it. The advice `Compile with TORCH_USE_CUDA_DSA` "
        "follows every CUDA error and means nothing.",
        retries=0,
    ),
    CauseClass(
        name="gpu_kernel_error",
        definition="A GPU library or a launch failed, and does not say why.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.WORKER,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Try once more elsewhere. The same again: leave more GPU memory free, check dtypes and shapes, and that CUDA, cuDNN and torch fit together.",
        look_alikes=("gpu_oom", "version_incompat", "gpu_illegal_access"),
        page="CUBLAS_STATUS_EXECUTION_FAILED, CUDNN_STATUS_INTERNAL_ERROR, `unspecified launch failure`, `too many resources requested for launch`. Often "
        "memory that ran out behind it.",
        retries=1,
    ),
    CauseClass(
        name="gpu_unavailable",
        definition="The job found no GPU it could use.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.NODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Run `nvidia-smi` on the node. If the card is gone, move; if it is there, check CUDA_VISIBLE_DEVICES, the container's GPU option and that "
        "torch is built for CUDA.",
        otherwise={Permanence.PERMANENT: "Install a torch that is built for CUDA, on every node."},
        look_alikes=("gpu_fell_off_bus", "gpu_driver_mismatch", "config_error"),
        page="`No CUDA GPUs are available`, `invalid device ordinal`, `Torch not compiled with CUDA enabled`, `all CUDA-capable devices are busy or "
        "unavailable`, `couldn't communicate with the NVIDIA driver`.",
        retries=1,
    ),
    CauseClass(
        name="gpu_driver_mismatch",
        definition="The driver, the CUDA libraries and the compiled kernels do not fit together.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Install a torch that is built for this driver and card, or a newer driver.",
        otherwise={
            Permanence.UNCLEAR: "Compare `nvidia-smi` on this node with its peers. If it differs, leave the node out or reboot it, and try once more; if not, "
            "install a torch that is built for this driver and card.",
        },
        look_alikes=("gpu_unavailable", "version_incompat", "nccl_system_error"),
        page="`Driver/library version mismatch` is a node that was updated and not rebooted, and another node will do. `driver version is insufficient`, "
        "`no kernel image is available` and `the provided PTX was compiled with an unsupported toolchain` are the same everywhere.",
        retries=0,
    ),
    CauseClass(
        name="gpu_thermal_power",
        definition="The GPU is too hot or short of power.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.NODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NODE_LOST),
        action="Leave this node out and start elsewhere, or cap its clocks; check cooling, power supply and cables.",
        look_alikes=("hang", "gpu_fell_off_bus"),
        hardware_persists=True,
        page="Throttle reasons, a thermal shutdown, Xid 54. Seen in measurements more than in logs: a slow rank with a low clock.",
    ),
)
