"""Signatures of the GPU, its driver and what is compiled for it. Xids are read by number: see `xids.py`."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.diagnose.taxonomy import Permanence, Role, Scope

_CUDA = "CUDA Runtime API, cudaError_t"

SIGNATURES = (
    Signature(
        name="cuda_ecc", cause="gpu_ecc", strength=SURE,
        says=(
            "double-bit ECC error", "infoROM is corrupted", "ECC … uncorrectable", "uncorrectable ECC error", "cudaErrorECCUncorrectable",
            "CUDA_ERROR_ECC_UNCORRECTABLE", "double bit ecc error", "uncontained ecc error", "row remapping failure", "Uncorrectable DRAM error",
            "Uncorrectable SRAM error",
        ),
        source=f"{_CUDA}: cudaErrorECCUncorrectable (214) 'uncorrectable ECC error encountered'",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    Signature(
        name="gpu_off_bus", cause="gpu_fell_off_bus", strength=SURE,
        says=(
            "fallen off the bus", "device is lost", "does not answer on the PCIe bus", "has fallen off the bus", "Unable to determine the device handle for",
            "GPU is lost", "GPU_IS_LOST", "GPU requires reset", "NVML_ERROR_GPU_IS_LOST",
        ),
        source="NVIDIA Xid catalogue: 79 'GPU has fallen off the bus'; nvidia-smi: 'Unable to determine the device handle for GPU …: GPU is lost'",
        example="Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
    ),
    Signature(
        name="pcie_fatal", cause="gpu_fell_off_bus", strength=FAIR,
        says=("PCIe Bus Error: severity=Uncorrected (Fatal)", "AER: Uncorrected (Fatal) error", "AER: Multiple Uncorrected (Fatal)", "pciehp … Link Down"),
        source="Linux drivers/pci/pcie/aer.c: 'PCIe Bus Error: severity=…'",
        example="[ 991.2] pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    ),
    Signature(
        name="cuda_nvlink", cause="gpu_nvlink", strength=SURE,
        says=(
            "NVSwitch fatal error", "NVLink training failure", "NVLink … failed", "NVLink … CRC error", "uncorrectable NVLink error",
            "cudaErrorNvlinkUncorrectable", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "NVLink: fatal error detected", "nvidia-nvswitch … SXid", "NVLink … is down",
            "Fatal NVSwitch error",
        ),
        source=f"{_CUDA}: cudaErrorNvlinkUncorrectable (220) 'uncorrectable NVLink error detected during the execution'",
        example="RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    ),
    Signature(
        name="cuda_illegal_access", cause="gpu_illegal_access", strength=SURE,
        says=(
            "illegal memory access was encountered", "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA error: misaligned address",
            "cudaErrorMisalignedAddress", "an illegal instruction was encountered", "Invalid __global__ read", "Invalid __global__ write",
            "Warp Out-of-range Address", "hipErrorIllegalAddress", "Memory access fault by GPU node", "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
            "MMU Fault",
        ),
        source=f"{_CUDA}: cudaErrorIllegalAddress (700) 'an illegal memory access was encountered'; ROCm runtime: 'Memory access fault by GPU node'",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    Signature(
        name="cuda_device_assert", cause="device_assert", strength=SURE,
        says=(
            "device-side assert triggered", "cudaErrorAssert", "CUDA_ERROR_ASSERT", "block: [ … thread: [ … Assertion", "hipErrorAssert",
            "Device-side assertion … failed",
        ),
        source=f"{_CUDA}: cudaErrorAssert (710) 'device-side assert triggered'; torch kernels print 'block: […], thread: […] Assertion `…` failed.'",
        example="RuntimeError: CUDA error: device-side assert triggered",
    ),
    Signature(
        name="kernel_assertion_line", cause="device_assert", strength=SURE,
        says=(
            ".cu … Assertion `", "thread: [ … ] Assertion `", "block: [ … ] Assertion `", "CUDA_KERNEL_ASSERT", "indexSelectSmallIndex",
            "indexSelectLargeIndex",
        ),
        also=("Assertion",),
        source="torch c10/macros/Macros.h CUDA_KERNEL_ASSERT: '<file>:<line>: <kernel>: block: [x,y,z], thread: [x,y,z] Assertion `…` failed.'",
        example="../aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < "
        "n_classes` failed.",
    ),
    Signature(
        name="gpu_library_status", cause="gpu_kernel_error", strength=STRONG,
        says=(
            "CUBLAS_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_INTERNAL_ERROR", "CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_INVALID_VALUE",
            "CUBLAS_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_MAPPING_ERROR", "CUDNN_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_MAPPING_ERROR", "CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_BAD_PARAM", "CUDNN_STATUS_NOT_INITIALIZED", "cuDNN error:",
            "CUFFT_INTERNAL_ERROR", "cublas runtime error", "cuFFT error", "CUSOLVER_STATUS", "cusolver error", "CUSPARSE_STATUS", "miopenStatus",
            "HIPBLAS_STATUS",
        ),
        unless=("ALLOC_FAILED", "version mismatch", "VERSION_MISMATCH", "ARCH_MISMATCH"),
        source="cuBLAS, cuDNN, cuFFT, cuSOLVER and cuSPARSE documentation, status types",
        example="RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    ),
    Signature(
        name="cuda_launch_failure", cause="gpu_kernel_error", strength=STRONG,
        says=(
            "Blas GEMM launch failed", "Blas xGEMM launch failed", "cuda launch error", "unspecified launch failure", "cudaErrorLaunchFailure",
            "CUDA_ERROR_LAUNCH_FAILED", "too many resources requested for launch", "cudaErrorLaunchOutOfResources", "invalid configuration argument",
            "cudaErrorInvalidConfiguration", "the launch timed out and was terminated", "cudaErrorLaunchTimeout", "CUDA error: invalid resource handle",
            "CUDA error: invalid argument", "CUDA error: unknown error", "cudaErrorUnknown", "Invalid handle. Cannot load symbol cublas",
            "hipErrorLaunchFailure", "CUDA error: initialization error",
        ),
        source=f"{_CUDA}: cudaErrorLaunchFailure (719), cudaErrorLaunchOutOfResources (701), cudaErrorInvalidConfiguration (9), cudaErrorUnknown (999)",
        example="RuntimeError: CUDA error: unspecified launch failure",
    ),
    Signature(
        name="no_engine_found", cause="gpu_kernel_error", strength=STRONG,
        says=(
            "was unable to find an engine to execute this computation", "Unable to find a valid cuDNN algorithm to run convolution",
            "Failed to find any valid engine", "no valid execution plans", "No valid execution plan", "Failed to determine best cudnn convolution algorithm",
        ),
        source="torch aten/src/ATen/native/cudnn/Conv_v8.cpp: 'GET was unable to find an engine to execute this computation'",
        example="RuntimeError: GET was unable to find an engine to execute this computation",
    ),
    Signature(
        name="cuda_error_other", cause="gpu_kernel_error", strength=WEAK,
        says=(
            "cuda runtime error (", "THCudaCheck FAIL", "CUDA error:", "Triton Error [CUDA]", "CUDA driver error:", "CUDA kernel launch", "HIP error:",
            "CUDA runtime error",
        ),
        source=f"{_CUDA}: any other; torch c10/cuda/CUDAException.cpp prints 'CUDA error: …'",
        example="RuntimeError: CUDA error: operation failed for a reason of its own",
    ),
    Signature(
        name="no_gpu", cause="gpu_unavailable", strength=SURE,
        says=(
            "can only be used on CUDA", "no GPU detected", "no GPU is available", "GPU not found", "No NVIDIA GPU", "No CUDA GPUs are available",
            "no CUDA-capable device is detected", "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "Found no NVIDIA driver on your system",
            "couldn't communicate with the NVIDIA driver", "No GPUs found", "no GPUs found!", "could not select device driver",
            "nvidia-container-cli: initialization error", "Failed to initialize NVML", "no supported gpu backend found", "No HIP GPUs are available",
            "No devices were found", "CUDA is not available", "CUDA unknown error", "NVML Shared Library Not Found", "NVMLError_LibraryNotFound",
            "NVMLError_DriverNotLoaded", "Unable to initialize backend 'cuda'", "No visible GPU devices", "need at least one GPU", "requires a GPU",
            "torch.cuda.is_available() is False", "torch.cuda.is_available() should be True", "Failed to infer device type", "no GPU available", "No GPU found",
            "torch.cuda.device_count() == 0", "Insufficient nvidia.com/gpu", "Cannot access accelerator device when none is available",
            "can fulfill resource request {'GPU'", "the NVIDIA kernel module is not loaded", "Unable to find any GPU",
        ),
        unless=("Driver/library version mismatch",),
        source=f"torch/csrc/cuda and torch/cuda/__init__.py: 'No CUDA GPUs are available'; {_CUDA}: cudaErrorNoDevice (100)",
        example="RuntimeError: No CUDA GPUs are available",
    ),
    Signature(
        name="bad_ordinal", cause="gpu_unavailable", strength=SURE,
        says=(
            "invalid device ordinal", "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "Invalid device id",
            "You requested gpu: … But your machine only has", "You requested gpu … available", "but your machine only has",
            "Attempting to deserialize object on CUDA device", "device >= 0 && device < num_gpus", "nvidia-container-cli: device error",
        ),
        source=f"{_CUDA}: cudaErrorInvalidDevice (101) 'invalid device ordinal'; lightning accelerators/cuda.py",
        example="RuntimeError: CUDA error: invalid device ordinal",
    ),
    Signature(
        name="gpu_busy", cause="gpu_unavailable", strength=SURE,
        says=(
            "CUDA-capable device(s) is/are busy or unavailable", "cudaErrorDevicesUnavailable", "all CUDA-capable devices are busy",
            "CUDA_ERROR_DEVICE_UNAVAILABLE", "device already in use", "in exclusive mode",
        ),
        source=f"{_CUDA}: cudaErrorDevicesUnavailable (46) 'all CUDA-capable devices are busy or unavailable'",
        example="RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
    Signature(
        name="cpu_only_build", cause="gpu_unavailable", strength=SURE, permanence=Permanence.PERMANENT, scope=Scope.CONFIG,
        says=(
            "not compiled with CUDA enabled", "Torch not compiled with", "not linked with support for cuda devices", "was not compiled with CUDA",
            "built without CUDA", "Not compiled with CUDA support", "not compiled with GPU support", "Cannot use GPU in CPU-only",
            "PaddlePaddle is the CPU version",
        ),
        source="torch/cuda/__init__.py: 'Torch not compiled with CUDA enabled'",
        example="AssertionError: Torch not compiled with CUDA enabled",
    ),
    Signature(
        name="fabric_not_ready", cause="gpu_unavailable", strength=FAIR,
        says=("system not yet initialized", "cudaErrorSystemNotReady", "Error 802", "CUDA_ERROR_SYSTEM_NOT_READY"),
        source=f"{_CUDA}: cudaErrorSystemNotReady (802); on NVSwitch machines the fabric manager is not running",
        example="RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    Signature(
        name="driver_library_mismatch", cause="gpu_driver_mismatch", strength=SURE, permanence=Permanence.UNCLEAR, scope=Scope.NODE,
        says=(
            "Driver/library version mismatch", "NVML_ERROR_LIB_RM_VERSION_MISMATCH", "API mismatch: the client has the version",
            "cudaErrorSystemDriverMismatch", "unsupported display driver / cuda driver combination", "Error 803",
        ),
        source="NVML: NVML_ERROR_LIB_RM_VERSION_MISMATCH 'Driver/library version mismatch': the kernel module and the libraries differ until a reboot",
        example="Failed to initialize NVML: Driver/library version mismatch",
    ),
    Signature(
        name="driver_too_old", cause="gpu_driver_mismatch", strength=SURE, stands=True, permanence=Permanence.UNCLEAR,
        says=(
            "driver version is insufficient for CUDA runtime version", "NVIDIA driver on your system is too old", "cudaErrorInsufficientDriver",
            "unsatisfied condition: cuda", "forward compatibility was attempted on non supported HW", "cudaErrorCompatNotSupportedOnDevice",
            "CUDA driver is a stub library", "driver is older than the runtime",
        ),
        source=f"{_CUDA}: cudaErrorInsufficientDriver (35), cudaErrorCompatNotSupportedOnDevice (804); torch/csrc/cuda: 'The NVIDIA driver on your system is "
        "too old'",
        example="RuntimeError: The NVIDIA driver on your system is too old (found version 11020).",
    ),
    Signature(
        name="no_kernel_image", cause="gpu_driver_mismatch", strength=SURE,
        says=(
            "only supports Ampere GPUs or newer", "compute capability … required", "requires compute capability", "GPU with compute capability",
            "no kernel image is available for execution", "cudaErrorNoKernelImageForDevice", "unsupported toolchain", "cudaErrorUnsupportedPtxVersion",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "device kernel image is invalid", "cudaErrorInvalidKernelImage", "invalid value for --gpu-architecture",
            "is not defined for option 'gpu-name'", "Unsupported .version", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUBLAS_STATUS_ARCH_MISMATCH",
            "CUDNN_STATUS_ARCH_MISMATCH", "hipErrorNoBinaryForGpu", "Unsupported gpu architecture",
        ),
        source=f"{_CUDA}: cudaErrorNoKernelImageForDevice (209), cudaErrorUnsupportedPtxVersion (222); nvcc and nvrtc messages",
        example="RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    Signature(
        name="toolkit_mismatch", cause="gpu_driver_mismatch", strength=FAIR,
        says=("The detected CUDA version … mismatches the version that was used to compile", "does not match the version torch was compiled with"),
        source="torch/utils/cpp_extension.py CUDA_MISMATCH_MESSAGE; deepspeed op_builder: 'Installed CUDA version … does not match'",
        example="RuntimeError: The detected CUDA version (12.4) mismatches the version that was used to compile PyTorch (11.8).",
    ),
    Signature(
        name="card_not_supported", cause="gpu_driver_mismatch", strength=WEAK, role=Role.NOTE,
        says=("is not compatible with the current PyTorch installation",),
        source="torch/cuda/__init__.py, a warning: '… with CUDA capability sm_… is not compatible with the current PyTorch installation.'",
        example="UserWarning: NVIDIA X with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    Signature(
        name="gpu_heat", cause="gpu_thermal_power", strength=STRONG,
        says=(
            "HW_SLOWDOWN", "HW_THERMAL", "GPU … degrees", "temperature above threshold", "thermal shutdown", "HW Thermal Slowdown", "HW Power Brake",
            "GPU … over temperature", "GPU … overheat", "shutdown temperature", "critical temperature", "power cable", "Failed to … auxiliary power",
            "thermal violation",
        ),
        source="NVML clocks event reasons: HW Thermal Slowdown, HW Power Brake; Xid 54 'Auxiliary power is not connected'",
        example="nvidia-smi: GPU 3 reached its shutdown temperature of 92 C",
    ),
)  # fmt: skip
