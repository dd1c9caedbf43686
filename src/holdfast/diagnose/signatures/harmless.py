"""Signatures of what only looks alarming: an event that one of these finds is a note, whatever else it says."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import SURE, Signature

SIGNATURES = (
    Signature(
        name="factory_registered_twice", cause="healthy", strength=SURE,
        says=(
            "Attempting to register factory for plugin", "computation placer already registered", "TF-TRT Warning", "oneDNN custom operations are on",
            "Could not load dynamic library", "Cannot dlopen some GPU libraries", "could not find cuda drivers on your machine", "Unable to register cu",
            "NUMA node read from SysFS had negative value",
        ),
        source="tensorflow and xla stream_executor start-up messages, printed on machines that work",
        example="E0000 00:00:1 cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been "
        "registered",
    ),
    Signature(
        name="address_family", cause="healthy", strength=SURE,
        says=("Address family not supported by protocol", "cannot be initialized to connect to"),
        unless=("failed to listen",),
        source="torch c10d/socket.cpp: IPv6 is tried first, and IPv4 afterwards",
        example="[W socket.cpp:426] [c10d] The client socket cannot be initialized to connect to [n1]:29500 (errno: 97 - Address family not supported by "
        "protocol).",
    ),
    Signature(
        name="advice", cause="healthy", strength=SURE,
        says=(
            "entering retry loop", "Network error resolved", "The current process just got forked, after parallelism has already been used",
            "Token indices sequence length is longer than", "Setting OMP_NUM_THREADS environment variable", "destroy_process_group() was not called",
            "barrier(): using the device under current context", "Some weights of … were not initialized", "Some weights of the model checkpoint",
            "You should probably TRAIN this model", "(using the default)",
        ),
        source="huggingface tokenizers and transformers, torchrun, torch ProcessGroupNCCL: advice printed by runs that work",
        example="ERROR huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid "
        "deadlocks...",
    ),
    Signature(
        name="nccl_ras_port", cause="healthy", strength=SURE,
        says=("ras … Address already in use", "NCCL WARN … ras", "ncclras"),
        unless=("Watchdog", "ncclSystemError"),
        source="NCCL src/ras: its port is optional, and training goes on without it",
        example="n1:77:99 [0] ras/ras.cc:420 NCCL WARN Call to bind failed: Address already in use",
    ),
    Signature(
        name="overflow_skipped", cause="healthy", strength=SURE,
        says=(
            "OVERFLOW! Rank", "Attempted loss scale", "Gradient overflow.  Skipping step", "Gradient overflow. Skipping step",
            "gradient overflow detected, ignoring gradient",
        ),
        source="deepspeed fp16 loss_scaler, apex amp, fairseq: a step that is skipped while the loss scale is found",
        example="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768 ERROR",
    ),
)  # fmt: skip
