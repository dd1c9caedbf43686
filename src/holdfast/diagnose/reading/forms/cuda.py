"""Errors of CUDA and its libraries on a line of their own: the code's name where one is given, or follows from the documented text of the runtime."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_CODE: Final = re.compile(r"\b(?:CUDA_ERROR_[A-Z_]+|cudaError[A-Z]\w+|CUBLAS_STATUS_(?!SUCCESS)[A-Z_]+|CUDNN_STATUS_(?!SUCCESS)[A-Z_]+"
    r"|CUSOLVER_STATUS_(?!SUCCESS)[A-Z_]+|CUSPARSE_STATUS_(?!SUCCESS)[A-Z_]+|CUFFT_(?!SUCCESS)[A-Z_]+|NVML_ERROR_[A-Z_]+|hipError[A-Z]\w+"
    r"|NVRTC_ERROR_[A-Z_]+)\b")
_SAYS: Final = re.compile(
    r"(?:CUDA|HIP|Cuda|cuda)(?: runtime| driver)? (?:error|failure|Error)\b|CUDA out of memory|HIP out of memory|device-side assert|illegal memory access"
    r"|no kernel image is available"
    r"|CUDA driver version is insufficient|NVML: |Failed to initialize NVML|NVIDIA driver .*(?:too old|not|mismatch)|[Nn]o CUDA-capable device"
    r"|no CUDA GPUs are available|uncorrectable ECC|unspecified launch failure"
    r"|cuda(?:Malloc|Memcpy|Launch|Stream|Event)\w* (?:failed|returned)|misaligned address|invalid device ordinal|cuDNN error|cuBLAS .*(?:error|fail)"
)
_GATE: Final = frozenset((
    "cuda", "hip", "cublas", "cudnn", "cusolver", "cusparse", "cufft", "nvml", "nvrtc", "nvidia", "assert", "assertion", "illegal", "image", "uncorrectable",
    "unspecified", "misaligned",
    "ordinal",
))  # fmt: skip
_KERNEL_ASSERT: Final = re.compile(r"\.cuh?:\d+: .*(?:block: \[|thread: \[).*Assertion")
# cudaGetErrorString's words, from the CUDA runtime's documentation of cudaError.
_WORDS: Final = (
    ("an illegal memory access was encountered", "cudaErrorIllegalAddress"), ("device-side assert triggered", "cudaErrorAssert"),
    ("out of memory", "cudaErrorMemoryAllocation"), ("unspecified launch failure", "cudaErrorLaunchFailure"), ("misaligned address",
    "cudaErrorMisalignedAddress"),
    ("uncorrectable ECC error", "cudaErrorECCUncorrectable"), ("uncorrectable NVLink error", "cudaErrorNvlinkUncorrectable"),
    ("no kernel image is available", "cudaErrorNoKernelImageForDevice"), ("no CUDA-capable device", "cudaErrorNoDevice"),
    ("driver version is insufficient", "cudaErrorInsufficientDriver"), ("invalid device ordinal", "cudaErrorInvalidDevice"),
    ("all CUDA-capable devices are busy", "cudaErrorDevicesUnavailable"), ("busy or unavailable", "cudaErrorDevicesUnavailable"),
    ("system not yet initialized", "cudaErrorSystemNotReady"), ("system has unsupported display driver", "cudaErrorSystemDriverMismatch"),
    ("unsupported toolchain", "cudaErrorUnsupportedPtxVersion"), ("illegal instruction", "cudaErrorIllegalInstruction"), ("hardware stack error",
    "cudaErrorHardwareStackError"),
    ("launch timed out", "cudaErrorLaunchTimeout"), ("too many resources requested", "cudaErrorLaunchOutOfResources"), ("initialization error",
    "cudaErrorInitializationError"),
    ("invalid configuration argument", "cudaErrorInvalidConfiguration"), ("unknown error", "cudaErrorUnknown"), ("Contained Memory Error",
    "cudaErrorContained"),
)  # fmt: skip


def name_of(text: str) -> str:
    """The name of the CUDA error a text speaks of; empty when it speaks of none."""
    if (found := _CODE.search(text)) is not None:
        return found[0]
    return next((name for words, name in _WORDS if words in text), "")


def read(line: Line) -> Found | None:
    text = line.text
    if line.words.isdisjoint(_GATE) and "cuda" not in text and "hipError" not in text:
        return None
    if _KERNEL_ASSERT.search(text):
        return single(LogForm.CUDA, "cudaErrorAssert", text.strip(), line)
    if _CODE.search(text) or _SAYS.search(text):
        return single(LogForm.CUDA, name_of(text), text.strip(), line)
    return None
