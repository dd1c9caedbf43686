"""Signatures of the program: its code, its libraries, its numbers."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.domain.log_event import LogForm

_LIBRARY = ("site-packages/", "dist-packages/")

_OF_A_SEQUENCE = (
    "list index out of range", "list assignment index out of range", "tuple index out of range", "string index out of range", "pop from empty list",
    "pop index out of range", "Dimension out of range", "too many indices for", "deque index out of range", "range object index out of range",
)  # fmt: skip
# Of a dotted name Python names the first part that is missing: the library itself was found. Packages that projects also call their own are left out.
_PART_OF_LIBRARY = tuple(
    f"No module named {quote}{library}."
    for library in (
        "torch", "torchvision", "torchaudio", "numpy", "scipy", "sklearn", "pandas", "tensorflow", "tensorflow_core", "keras", "jax", "jaxlib", "flax",
        "transformers", "tokenizers", "accelerate", "diffusers", "peft", "trl", "timm", "deepspeed", "pytorch_lightning", "torchmetrics", "triton", "PIL",
        "huggingface_hub", "tensorboard", "matplotlib", "networkx", "importlib", "collections", "flash_attn", "xformers", "transformer_engine", "apex", "mmcv",
        "vllm", "bitsandbytes", "sentence_transformers",
    )
    for quote in ("", "'")
)  # fmt: skip

SIGNATURES = (
    Signature(
        name="module_not_found", cause="import_missing", strength=SURE,
        says=("No module named", "ModuleNotFoundError", "PackageNotFoundError"),
        unless=_PART_OF_LIBRARY,
        source="Python library reference: ModuleNotFoundError; importlib.metadata.PackageNotFoundError",
        example="ModuleNotFoundError: No module named 'einops'",
    ),
    Signature(
        name="module_moved", cause="version_incompat", strength=SURE,
        says=_PART_OF_LIBRARY,
        unless=("is not a package",),
        source="Python importlib: ModuleNotFoundError names the first part that is missing, so the library is there and has no such part: torch 2.0 release "
        "notes on torch._six, torchvision 0.17 on transforms.functional_tensor, scikit-learn 0.23 on sklearn.externals, NumPy 2 on numpy.core",
        example="ModuleNotFoundError: No module named 'torch._six'",
    ),
    Signature(
        name="library_imports_moved", cause="version_incompat", strength=SURE + 2.0,
        says=("No module named '·.·'",),
        raised_in=_LIBRARY,
        unless=("is not a package",),
        source="Python importlib: ModuleNotFoundError names the first part that is missing; here an installed library asks for a part that another one has "
        "not",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/onelib/core.py\", line 5, in <module>\n    import "
        "otherlib.helpers\nModuleNotFoundError: No module named 'otherlib.helpers'",
    ),
    Signature(
        name="shadowed_module", cause="code_error", strength=SURE,
        says=("No module named … is not a package",),
        source="Python importlib: \"No module named 'a.b'; 'a' is not a package\": a file of the program has the name of a library",
        example="ModuleNotFoundError: No module named 'torch.nn'; 'torch' is not a package",
    ),
    Signature(
        name="standard_library_changed", cause="version_incompat", strength=SURE + 1.0,
        says=tuple(f"No module named '{name}'" for name in ("distutils", "imp", "asyncore", "asynchat", "smtpd", "cgi", "pipes")),
        source="PEP 632 and PEP 594; What's New In Python 3.12 and 3.13, Removed: distutils, imp, asyncore, asynchat, smtpd, cgi, pipes",
        example="ModuleNotFoundError: No module named 'distutils'",
    ),
    Signature(
        name="library_not_found", cause="import_missing", strength=SURE,
        says=(
            "cannot open shared object file", "error while loading shared libraries", "Unable to load any of {libcudnn",
            "Could not load library libcud … Error: lib", "Library not loaded", "image not found",
        ),
        source="ld.so(8): 'error while loading shared libraries: …: cannot open shared object file: No such file or directory'",
        example="ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    ),
    Signature(
        name="command_not_found", cause="import_missing", strength=STRONG,
        says=(
            "execve(): … No such file or directory", "there is no package called", ": command not found", "executable file not found in $PATH",
            "No such file or directory: 'nvcc'", "nvcc not found", "ninja is required to load C++ extensions", "CUDA_HOME environment variable is not set",
            "CUDA_HOME does not exist", "No CUDA runtime is found, using CUDA_HOME", "g++: not found", "Failed to find C compiler",
            "could not find compiler", ": not found\n", "exec: \"… not found", "command 'gcc' failed: No such file", "command 'g++' failed: No such file",
            "env: … No such file or directory", "Lmod has detected the following error",
        ),
        source="bash(1): exit status 127; torch/utils/cpp_extension.py; triton/runtime/build.py 'Failed to find C compiler'",
        example="/var/spool/job/script: line 14: torchrun: command not found",
    ),
    Signature(
        name="please_install", cause="import_missing", strength=STRONG,
        says=(
            "pip install", "but it was not found in your environment", "is not installed", "not installed", "please install", "needs to be installed",
            "conda install", "to be installed", "requires the … library", "You need to install", "apt-get install", "Missing optional dependency",
            "package is required",
        ),
        error=("ImportError", "RuntimeError", "ValueError", "OSError", "AssertionError", "MissingDependencyException", "DependencyError", "Exception"),
        unless=("requires accelerate>=", "version", ">="),
        source="transformers utils/import_utils.py: 'requires the … library but it was not found in your environment'; pandas 'Missing optional dependency'",
        example="ImportError: This modeling file requires the `einops` library but it was not found in your environment. Run `pip install einops`",
    ),
    Signature(
        name="install_newer", cause="version_incompat", strength=STRONG,
        says=(
            "is required for a normal functioning of this module, but found", ">= … required", "requires … >=", "requires … version", "pip install -U",
            "please upgrade", "upgrade your", "too old", "is incompatible with", "not compatible with", "incompatible version", "but you have",
            "version … is required", "or higher is required", "minimum version", "only supported with … >=", "pip install --upgrade",
            "requires accelerate>=", "Please update",
        ),
        error=(
            "ImportError", "RuntimeError", "ValueError", "OSError", "AssertionError", "VersionConflict", "ContextualVersionConflict", "DistributionNotFound",
        ),
        unless=("NVIDIA driver", "CUDA driver", "sizes"),
        source="transformers utils/versions.py: '… is required for a normal functioning of this module, but found …'; pkg_resources.VersionConflict",
        example="ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this module, but found tokenizers==0.15.2.",
    ),
    Signature(
        name="name_moved", cause="version_incompat", strength=SURE,
        says=(
            "Descriptors cannot", "saved by another version", "cannot import name", "numpy.dtype size changed", "compiled using NumPy 1.x cannot be run in",
            "operator torchvision::nms does not exist", "Descriptors cannot be created directly", "_ARRAY_API not found",
            "numpy.core.multiarray failed to import", "binary incompatibility", "compiled against API version", "compiled against … version",
            "No module named 'numpy._core", "No module named 'numpy.core", "Could not load this library", "compiled with different CUDA major versions",
            "cuDNN version incompatibility", "was built for newer", "Couldn't load custom C++ ops", "No operators found for",
        ),
        unless=("partially initialized module", "circular import"),
        source="Python ImportError 'cannot import name'; NumPy 2 migration guide; torchvision extension.py; protobuf Python news of 4.21",
        example="ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers' (/opt/site-packages/transformers/__init__.py)",
    ),
    Signature(
        name="symbol_missing", cause="version_incompat", strength=SURE,
        says=(
            "undefined symbol", "version `GLIBC", "version 'GLIBC", "GLIBCXX_", "CXXABI_", "wrong ELF class", "symbol not found in flat namespace",
            "version `lib", "invalid ELF header", "symbol lookup error",
        ),
        source="ld.so(8): 'undefined symbol', 'version `GLIBCXX_3.4.29' not found'",
        example="ImportError: /opt/site-packages/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E",
    ),
    Signature(
        name="circular_import", cause="code_error", strength=STRONG,
        says=("partially initialized module", "most likely due to a circular import"),
        source="Python importlib: 'cannot import name … from partially initialized module … (most likely due to a circular import)'",
        example="ImportError: cannot import name 'a' from partially initialized module 'b' (most likely due to a circular import)",
    ),
    Signature(
        name="module_attribute", cause="version_incompat", strength=STRONG,
        says=(
            "module '… has no attribute", "has been removed", "was removed in", "np.float", "np.object", "np.bool", "np.int",
            "type object '… has no attribute",
        ),
        error=("AttributeError",),
        frames=_LIBRARY,
        source="Python AttributeError on a module: a name that the installed version does not have; NumPy 1.24 release notes on np.bool, np.int and np.float",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/oldlib/core.py\", line 5, in f\n    x = np.bool(1)\nAttributeError: module "
        "'numpy' has no attribute 'bool'.",
    ),
    Signature(
        name="library_attribute", cause="version_incompat", strength=STRONG,
        says=(
            "module 'torch", "module 'numpy", "module 'tensorflow", "module 'jax", "module 'transformers", "module 'pkgutil", "module 'collections",
            "module 'inspect", "module 'PIL", "module 'pandas", "module 'scipy", "module 'sklearn", "module 'cv2", "module 'tensorboard", "module 'keras",
            "module 'distutils", "module 'triton", "module 'deepspeed", "module 'accelerate", "module 'datasets", "module 'pytorch_lightning",
            "module 'google", "was removed in the NumPy", "was a deprecated alias for the builtin", "has been removed in v",
        ),
        error=("AttributeError", "NotImplementedError"),
        source="Python AttributeError on a module of a library: a name that the installed version does not have; NumPy 2 migration guide 'was removed in the "
        "NumPy 2.0 release'; Lightning 'has been removed in v2.0.0'",
        example="Traceback (most recent call last):\n  File \"train.py\", line 5, in f\n    torch.accelerator.go()\nAttributeError: module 'torch' has no "
        "attribute 'accelerator'",
    ),
    Signature(
        name="library_calls_library", cause="version_incompat", strength=FAIR,
        says=(
            "got an unexpected keyword argument", "missing … required positional argument", "takes … positional argument",
            "Can't instantiate abstract class", "non-default argument",
        ),
        error=("TypeError",),
        frames=_LIBRARY,
        source="Python TypeError on a call from one installed library to another: an interface that changed between versions",
        example="Traceback (most recent call last):\n  File \"train.py\", line 5, in <module>\n    t.train()\n  File \"/opt/site-packages/trl/trainer.py\", "
        "line 90, in train\n    super().__init__(tokenizer=t)\nTypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'",
    ),
    Signature(
        name="interface_changed", cause="version_incompat", strength=WEAK,
        says=("got an unexpected keyword argument",),
        error=("TypeError",),
        source="Python library reference: TypeError; beside unexpected_keyword, for the line says of neither which it is",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    Wrapper(deep=True)\nTypeError: Wrapper.__init__() got an "
        "unexpected keyword argument 'deep'",
    ),
    Signature(
        name="argument_renamed", cause="version_incompat", strength=STRONG,
        says=tuple(
            f"got an unexpected keyword argument '{name}'"
            for name in (
                "evaluation_strategy", "eval_strategy", "processing_class", "no_cuda", "overwrite_output_dir", "dispatch_batches", "use_auth_token",
                "torch_dtype", "attn_implementation", "num_items_in_batch", "cache_position", "weights_only", "gpus", "tpu_cores",
                "progress_bar_refresh_rate", "checkpoint_callback", "resume_from_checkpoint", "weights_summary", "proxies", "squared", "sparse_output",
                "max_seq_length", "dataset_text_field",
            )
        ),
        error=("TypeError",),
        source="release notes and migration guides: transformers 4.46 and 5 (evaluation_strategy, tokenizer), trl 0.12 and later, Lightning 2.0 (gpus, "
        "resume_from_checkpoint), torch 1.13 (weights_only), scikit-learn 1.2 and 1.4 (sparse_output, squared), httpx 0.28 (proxies)",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    TrainingArguments(evaluation_strategy='steps')\nTypeError: "
        "TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
    ),
    Signature(
        name="format_of_another_version", cause="version_incompat", strength=STRONG,
        says=(
            "Unsupported global", "does not recognize this architecture", "Dataset scripts are no longer supported", "unsupported pickle protocol",
            "was saved with a newer version", "Feature type … not found", "unknown opcode", "Keras 3 only supports", "not recognized by this version",
            "requires Python >=", "Python 3.7 is not supported", "is deprecated and has been removed", "no longer supported", "Unsupported Python version",
            "data did not match any variant of untagged enum", "Illegal instruction", "tf.contrib",
        ),
        source="torch/serialization.py: 'Weights only load failed … Unsupported global' (default of weights_only since 2.6); transformers auto; datasets 4; "
        "tokenizers",
        example="_pickle.UnpicklingError: Weights only load failed. This file can still be loaded. WeightsUnpickler error: Unsupported global: GLOBAL "
        "numpy.core.multiarray.scalar was not an allowed global by default.",
    ),
    Signature(
        name="model_type_unknown", cause="version_incompat", strength=STRONG,
        error=("KeyError",),
        frames=("configuration_auto.py __getitem__",),
        source="transformers models/auto/configuration_auto.py: a model type that the installed version does not know; model cards of new architectures, "
        "Requirements: 'you might encounter KeyError'",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/transformers/models/auto/configuration_auto.py\", line 730, in "
        "__getitem__\n    raise KeyError(key)\nKeyError: 'newbert'",
    ),
    Signature(
        name="torch_shapes", cause="shape_mismatch", strength=SURE,
        says=(
            "shapes cannot be multiplied", "must match the size of tensor", "stack expects each tensor to be equal size",
            "Sizes of tensors must match except in dimension", "Expected input batch_size", "is invalid for input of size",
            "expected input … to have … channels", "view size is not compatible", "does not match the broadcast shape", "The expanded size of the tensor",
            "size mismatch, m1", "mat1 and mat2", "Expected tensor for argument … to have the same size", "shape mismatch",
            "Target size … must be the same as input size", "must have the same shape", "Calculated padded input size per channel",
            "Kernel size can't be greater than actual input size", "Given normalized_shape", "Expected target size", "Expected hidden",
            "input.size(-1) must be equal to input_size", "Expected 3D", "Expected 4D", "Expected 2D", "The size of tensor a", "same number of dimensions",
            "could not broadcast", "Expected more than 1 value per channel when training", "number of dims don't match",
            "only batches of spatial targets supported", "inconsistent tensor size", "Expected size for first two dimensions of batch2",
            "The shape of the … mask", "but got mask of size", "einsum(): operands do not broadcast", "einsum(): subscript", "inhomogeneous shape",
            "expected … to have size", "must be a 3D tensor", "must be a matrix", "1D tensors expected", "output with shape … doesn't match",
            "setting an array element with a sequence", "The shape of the 2D attn_mask",
            "-dimensional input for", "Output size is too small", "the number of sizes provided", "that is different to the input size",
            "query should be unbatched 2D or batched 3D", "you should probably activate truncation and/or padding", "Input is too small",
            "Padding size should be less than",
        ),
        unless=("loading state_dict", "copying a param", "in checkpoint"),
        source="torch aten/src/ATen/native (LinearAlgebra.cpp, TensorShape.cpp, Convolution.cpp) and torch/nn/functional.py: 'mat1 and mat2 shapes cannot "
        "be multiplied (…)'",
        example="RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 768x10)",
    ),
    Signature(
        name="array_shapes", cause="shape_mismatch", strength=SURE,
        says=(
            "operands could not be broadcast together", "Incompatible shapes", "Matrix size-incompatible", "incompatible with the layer: expected",
            "requires contracting dimensions to have the same shape", "Dimensions must be equal", "all the input array dimensions",
            "all input arrays must have the same shape", "cannot reshape array", "cannot reshape tensor", "Shapes … are incompatible",
            "matmul: Input operand 1 has a mismatch", "Input to reshape is a tensor with", "incompatible shapes for broadcasting", "could not be broadcast",
            "arguments to jax… incompatible", "Shape must be rank", "Got incompatible shapes", "shapes … not aligned", "add got incompatible shapes",
            "ConcatOp : Dimension", "Found input variables with inconsistent numbers of samples", "but got array with shape", "Shape inconsistent, Provided",
            "All arrays must be of the same length", "Length of values … does not match length of index", "axes don't match array",
        ),
        unless=("npyio",),
        source="NumPy 'operands could not be broadcast together with shapes'; TensorFlow InvalidArgumentError 'Incompatible shapes'; jax.lax 'dot_general "
        "requires contracting dimensions'",
        example="ValueError: operands could not be broadcast together with shapes (3,4) (5,)",
    ),
    Signature(
        name="sequence_index", cause="code_error", strength=SURE,
        says=_OF_A_SEQUENCE,
        error=("IndexError",),
        source="CPython Objects/listobject.c, tupleobject.c: 'list index out of range'; a slip in the program, not an index into data",
        example="Traceback (most recent call last):\n  File \"train.py\", line 9, in f\n    x[5]\nIndexError: list index out of range",
    ),
    Signature(
        name="index_error", cause="index_out_of_range", strength=STRONG,
        error=("IndexError",),
        unless=("shape mismatch", "same number of dimensions", *_OF_A_SEQUENCE),
        source="Python library reference: IndexError",
        example="Traceback (most recent call last):\n  File \"train.py\", line 9, in f\n    x[5]\nIndexError: index out of range in self",
    ),
    Signature(
        name="index_words", cause="index_out_of_range", strength=STRONG,
        says=(
            "exceeds dimension size", "Class values must be smaller than num_classes", "out_of_range", "index out of bounds", "index is out of bounds",
            "index out of range", "out of bounds for dimension", "is out of bounds for axis", "Target … is out of bounds", "index … is out of range",
            "indices … out of range", "INDICES element is out of", "indices[ … is not in [0", "out-of-bounds index", "which is outside the valid range of",
            "cur_target >= 0 && cur_target < n_classes", "ArrayIndexOutOfBoundsException", "out of bounds for length",
        ),
        unless=("CUDA error", "block: [", *_OF_A_SEQUENCE),
        source="torch aten embedding: 'index out of range in self'; torch nll_loss 'Target … is out of bounds.'; TensorFlow GatherOp 'indices[…] is not in "
        "[0, …)'; Rust slice panics",
        example="thread 'main' panicked at src/main.rs:4:10:\nindex out of bounds: the len is 3 but the index is out of range 9",
    ),
    Signature(
        name="python_code", cause="code_error", strength=FAIR,
        error=(
            "TypeError", "AttributeError", "ModuleAttributeError", "NameError", "UnboundLocalError", "KeyError", "NotImplementedError", "ZeroDivisionError",
            "RecursionError",
            "StopIteration", "LookupError", "ImportError",
        ),
        unless=("validation error", "got an unexpected keyword argument"),
        source="Python library reference, built-in exceptions: raised where code is used in a way it does not allow",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    modle(x)\nNameError: name 'modle' is not defined",
    ),
    Signature(
        name="unexpected_keyword", cause="code_error", strength=WEAK,
        says=("got an unexpected keyword argument",),
        error=("TypeError",),
        source="Python library reference: TypeError; the caller's slip, or an interface that changed between versions, and the line does not say which",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    save(best=True)\nTypeError: save() got an unexpected "
        "keyword argument 'best'",
    ),
    Signature(
        name="python_syntax", cause="code_error", strength=SURE,
        error=("SyntaxError", "IndentationError", "TabError"),
        source="Python library reference: SyntaxError, IndentationError, TabError",
        example="  File \"train.py\", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax",
    ),
    Signature(
        name="assertion", cause="code_error", strength=FAIR,
        says=("AssertionError: \n",),
        error=("AssertionError",),
        source="Python library reference: AssertionError; without a word the program speaks of itself, with words the words decide",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in f\n    assert x.ok\nAssertionError",
    ),
    Signature(
        name="autograd_misuse", cause="code_error", strength=SURE,
        says=(
            "needed for gradient computation has been modified by an inplace operation", "backward through the graph a second time",
            "does not require grad and does not have a grad_fn", "Expected to have finished reduction in the prior iteration",
            "Expected to mark a variable ready only once", "leaf Variable that requires grad", "Expected all tensors to be on the same device",
            "expected scalar type", "Cannot re-initialize CUDA in forked subprocess", "Can't pickle", "cannot pickle",
            "current process has finished its bootstrapping phase", "mat1 and mat2 must have the same dtype",
            "Input type … and weight type … should be the same", "found at least two devices", "a Tensor with … elements cannot be converted to Scalar",
            "only one element tensors can be converted", "Boolean value of Tensor", "not implemented for 'Half'", "not implemented for '", "Output 0 of",
            "Function … is not differentiable", "grad can be implicitly created only for scalar outputs", "Attempting to unscale FP16 gradients",
            "unscale_() has already been called", "No inf checks were recorded", "result type … can't be cast", "can't convert cuda",
            "Can't call numpy() on Tensor", "expected … dtype", "should have the same dtype", "is on cpu, but expected", "one of them is on",
            "can't assign a", "self must be", "Only Tensors of floating point", "Input and parameter tensors are not", "Expected object of",
            "must be Tensor, not", "Cannot copy out of meta tensor", "Cannot set version_counter",
        ),
        source="torch autograd, DistributedDataParallel reducer, amp grad_scaler and dispatcher: documented misuse of the interface",
        example="RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed).",
    ),
    Signature(
        name="compiler_of_graphs", cause="code_error", strength=FAIR,
        says=(
            "torch._dynamo.exc", "torch._inductor.exc", "TorchRuntimeError", "BackendCompilerFailed", "CompilationError: at", "triton.compiler.errors",
            "ConcretizationTypeError", "TracerBoolConversionError", "TracerArrayConversionError", "UnexpectedTracerError",
            "operation not permitted when stream is capturing", "graph break", "Unsupported: ",
        ),
        error=(
            "InternalTorchDynamoError", "Unsupported", "TorchRuntimeError", "BackendCompilerFailed", "CompilationError", "InductorError",
            "ConcretizationTypeError", "TracerBoolConversionError", "TracerArrayConversionError", "UnexpectedTracerError", "RuntimeError",
            "AcceleratorError",
        ),
        source="torch._dynamo and torch._inductor exceptions; triton CompilationError; jax.errors",
        example="torch._dynamo.exc.Unsupported: torch._dynamo.exc: call_function on a builtin",
    ),
    Signature(
        name="python_other", cause="code_error", strength=WEAK, form=(LogForm.PYTHON, LogForm.SCHEDULER),
        error=(
            "ValueError", "RuntimeError", "AssertionError", "Exception", "BaseException", "InvalidArgumentError", "XlaRuntimeError", "UserException",
            "InternalError",
            "OverflowError", "ArithmeticError", "UnimplementedError",
        ),
        unless=("CUDA", "NCCL", "gloo", "connection", "timeout", "timed out"),
        source="Python library reference: ValueError, RuntimeError, AssertionError where nothing clearer is said",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in f\n    raise RuntimeError('the sampler is in a wrong "
        "state')\nRuntimeError: the sampler is in a wrong state",
    ),
    Signature(
        name="rust_panic", cause="code_error", strength=WEAK, form=(LogForm.RUST,),
        source="The Rust reference: panic",
        example="thread 'main' panicked at src/lib.rs:10:5:\ncalled `Option::unwrap()` on a `None` value",
    ),
    Signature(
        name="loss_not_finite", cause="numeric_nan", strength=SURE,
        says=(
            "had NaN values", "NaN values", "loss is infinite", "produced nan", "not a number", "loss is nan", "nan loss", "loss is NaN",
            "nan values in its", "found NaN in", "NaN or Inf", "nan or inf", "loss scale already at minimum", "Minimum loss scale reached", "non-finite",
            "not finite", "contains either `inf`, `nan`", "Model diverged with loss = NaN", "NaN loss during training", "Invalid loss, terminating training",
            "Input contains NaN", "input contains infinity", "encountered nan", "nan encountered", "nan detected", "detected nan", "found nan",
            "invalid values:\ntensor([[nan", "found invalid values", "Loss is inf", "loss = nan", "loss became nan", "contains nan", "nan gradient",
            "NaN gradient", "gradient is nan", "infinite loss", "inf or nan", "Inf or NaN", "got nan", "NaNs", "is NaN", "loss=nan", "loss: nan, stopping",
            "cannot convert float NaN to integer", "FloatingPointError", "gradient norm is nan", "grad norm is nan", "overflow … minimum",
        ),
        unless=("skipping", "Attempted loss scale", "OVERFLOW! Rank"),
        source="torch anomaly mode 'Function … returned nan values in its 0th output.'; deepspeed loss_scaler.py; fairseq fp16_optimizer.py; Megatron "
        "rerun_state_machine; tf.estimator NanLossDuringTrainingError; torch.multinomial",
        example="RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    ),
    Signature(
        name="loss_diverged", cause="loss_divergence", strength=SURE,
        says=(
            "diverged:", "keeps rising", "over divergence_threshold", "orders of magnitude", "does not converge", "exploded at step", "spike detected",
            "perplexity rose", "loss diverged", "has diverged", "training diverged", "divergence detected", "loss exploded", "loss … is diverging",
            "loss explosion", "loss is exploding", "loss spike", "loss too large", "exceeds divergence threshold", "Monitored metric … diverged",
            "loss is too high", "diverging loss",
        ),
        source="lightning EarlyStopping divergence_threshold; Acme (NSDI'24) on loss spikes; programs that check their loss",
        example="RuntimeError: loss diverged: 8123.5 at step 900, was 2.1",
    ),
)  # fmt: skip
