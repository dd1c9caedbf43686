"""Signatures of settings: an argument, an option, a file or a request that was refused."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import STRONG, SURE, WEAK, Signature

_LIBRARY = ("site-packages/", "dist-packages/")
_SETTINGS = (
    "argparse.py", "omegaconf", "hydra/", "pydantic", "hf_argparser", "training_args.py", "config", "arguments.py", "click/", "typer/", "absl/",
    "jsonargparse", "simple_parsing", "yaml/", "tomllib", "draccus", "tyro/", "gin/",
)

HOLDFAST_REFUSES = "holdfast_refuses"
REQUIREMENT = "requirement_not_met"  # Also said where the index did not answer, which only the lines around it tell.

SIGNATURES = (
    Signature(
        name=HOLDFAST_REFUSES, cause="config_error", strength=SURE + 1.7,
        error=("UserError",),
        says=("holdfast.errors.UserError",),
        source="src/holdfast/errors.py: UserError, what a person gave cannot work",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    run = holdfast.guard(model=m, ema=e)\n"
        "holdfast.errors.UserError: ema is an EMA: expected state_dict and load_state_dict.",
    ),
    Signature(
        name=REQUIREMENT, cause="config_error", strength=SURE,
        says=(
            "Could not find a version that satisfies", "No matching distribution found", "PackagesNotFoundError", "because there is no version of",
            "which doesn't match any versions", "was not found in the package registry",
        ),
        source="pip resolver: 'Could not find a version that satisfies the requirement … (from versions: …)'; conda PackagesNotFoundError; uv and poetry: the "
        "index answered, and has no such version",
        example="ERROR: Could not find a version that satisfies the requirement einops==99.0 (from versions: 0.7.0, 0.8.0)\nERROR: No matching distribution "
        "found for einops==99.0",
    ),
    Signature(
        name="arguments_refused", cause="config_error", strength=SURE,
        says=(
            ".py: error:", "error: unrecognized arguments", "error: the following arguments are required", "error: argument", "invalid choice:",
            "expected one argument", "expected at least one argument", "error: ambiguous option", "error: No such option", "Error: Missing option '",
            "Error: Missing option \"", "error: unexpected argument '--", "unknown setting",
            "Error: Missing argument", "Error: Invalid value for", "Error: No such command", "Error: Got unexpected extra argument",
            "not used by the HfArgumentParser", "FATAL Flags parsing error", "Unknown command line flag", "unrecognized option", "unrecognized argument",
            "No such option:", "Unparsed arguments",
        ),
        source="Python argparse; click and typer; absl.flags; transformers hf_argparser.py",
        example="usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data",
    ),
    Signature(
        name="settings_refused", cause="config_error", strength=SURE,
        says=(
            "is a required property", "invalid mount config", "empty parameter list", "schema … error", "validation error for", "validation errors for",
            "Could not override", "Error merging override", "is not in struct", "ConfigAttributeError", "ConfigKeyError", "MissingMandatoryValue",
            "MissingConfigException", "Could not find … in the config search path", "DeepSpeedConfigError", "Check batch related parameters",
            "train_batch_size is not equal to micro_batch_per_gpu", "MisconfigurationException", "expected, but not set", "Expected env var",
            "Missing mandatory value", "ScannerError", "yaml.parser.ParserError", "while parsing a block mapping", "TOMLDecodeError", "Key … not in",
            "InstantiationException", "extra fields not permitted", "Extra inputs are not permitted", "Primary config", "Interpolation key",
            "Unrecognized configuration class", "Unrecognized model", "Field required", "Invalid configuration", "invalid config", "Missing required",
            "Unknown config", "could not be converted to Integer", "could not be converted to Float", "InterpolationResolutionError",
            "ConfigCompositionException", "could not find the monitored key", "mismatch TrainingArguments values", "is mutually exclusive with",
            "has no pad token", "does not have a padding token", "Could not find '… Available options in",
        ),
        unless=("You requested gpu", "machine only has", "CUDA error", "gpu backend", "No GPU"),
        source="pydantic ValidationError; hydra and omegaconf errors; deepspeed runtime/config.py; lightning MisconfigurationException; "
        "torch/distributed/rendezvous.py 'environment variable … expected, but not set'; PyYAML",
        example="pydantic_core._pydantic_core.ValidationError: 1 validation error for TrainConfig\nlr\n  Input should be a valid number",
    ),
    Signature(
        name="sizes_do_not_divide", cause="config_error", strength=STRONG,
        says=(
            "divisible by", "not divisible", "must be a multiple of", "evenly divisible", "must be divisible", "should be divisible", "not a multiple",
            "does not divide", "world size must", "world_size must",
        ),
        unless=("Expected input batch_size", "state_dict", "checkpoint"),
        source="Megatron-LM arguments.py and parallel_state.py; DeepSpeed; transformers: sizes that do not divide each other",
        example="AssertionError: world size (12) is not divisible by tensor parallel size (8)",
    ),
    Signature(
        name="option_refused", cause="config_error", strength=WEAK + 0.5,
        says=(
            "is not supported", "not supported", "must be one of", "should be one of", "is not a valid", "not a valid", "unknown option",
            "Unknown",
            "invalid value", "requires … to be", "must be set", "must be specified", "you must specify", "should be specified", "cannot be used with",
            "mutually exclusive", "cannot both", "Invalid", "unsupported", "must be greater than", "must be positive", "must be larger", "is required",
            "not allowed", "must be provided", "requires `", " --", "`--", "'--", "need to specify", "got an invalid", "set to", "Only one of",
            "can't be used together",
            "Unrecognized", "not recognized", "expected one of", "choose from", "api_key not configured", "Your setup doesn't support", "is not registered",
            "must be either", "cannot be None", "set `", "specify",
        ),
        error=(
            "ValueError", "AssertionError", "RuntimeError", "NotImplementedError", "KeyError", "UsageError", "Exception", "ArgumentError",
            "ArgumentTypeError",
        ),
        unless=("huggingface.co", "Unknown error", "loading state_dict", "literal for", "argument must be", "invalid load key", "CUDA error", "Client Error"),
        source="libraries that check what they are given: transformers training_args.py and configuration_utils.py, accelerate, torch.optim 'Invalid "
        "learning rate', wandb 'api_key not configured (no-tty)'",
        example="ValueError: `fp16_backend` is not supported: must be one of 'auto', 'apex'",
    ),
    Signature(
        name="settings_file_broken", cause="config_error", strength=STRONG + 1.7,
        error=("JSONDecodeError", "YAMLError", "ScannerError", "ParserError", "TOMLDecodeError", "MissingSectionHeaderError", "DuplicateOptionError"),
        frames=(
            "argparse.py", "omegaconf", "hydra/", "pydantic", "hf_argparser", "training_args.py", "integrations/deepspeed.py", "utils/deepspeed.py",
            "runtime/config.py", "configuration_utils.py", "load_config", "read_config", "parse_config", "from_config", "config.py", "configparser.py",
        ),
        source="Python json and configparser, PyYAML: a file that does not parse, below a reader of settings: transformers, accelerate, DeepSpeed, one's own",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/deepspeed/runtime/config.py\", line 700, in __init__\n    "
        "json.load(open(config))\njson.decoder.JSONDecodeError: Expecting ',' delimiter: line 9 column 5 (char 120)",
    ),
    Signature(
        name="raised_in_settings", cause="config_error", strength=WEAK + 0.5,
        error=(
            "ValueError", "TypeError", "KeyError", "AssertionError", "JSONDecodeError", "AttributeError", "RuntimeError", "ConfigTypeError",
            "UnsupportedValueType",
        ),
        frames=_SETTINGS,
        unless=("has no attribute", "unexpected keyword", "No module", "huggingface.co"),
        source="an exception raised inside a parser of settings: argparse, omegaconf, hydra, pydantic, transformers' configuration and training arguments",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/transformers/training_args.py\", line 1700, in __post_init__\n    raise "
        "ValueError('wrong')\nValueError: wrong",
    ),
    Signature(
        name="library_refuses", cause="config_error", strength=WEAK + 0.4,
        error=("ValueError", "AssertionError", "Exception"),
        raised_in=_LIBRARY,
        unless=("CUDA", "NCCL", "gloo", "connection", "timeout", "timed out", "NaN", "shape", "dimension"),
        source="Python library reference: ValueError is raised for an argument of the right type and an inappropriate value; here by an installed library",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    Trainer(3)\n  File "
        "\"/opt/site-packages/lib/trainer.py\", line 8, in __init__\n    raise ValueError('no steps')\nValueError: no steps",
    ),
    Signature(
        name="scheduler_refuses", cause="config_error", strength=SURE,
        says=(
            "Batch job submission failed", "invalid partition", "Requested node configuration is not available", "More processors requested than permitted",
            "Unable to allocate resources", "Invalid account", "Invalid qos", "Invalid generic resource (gres)", "Unable to create step for job",
            "exec format error", "Bad --mem-per", "There are not enough slots available",
        ),
        source="Slurm sbatch and srun errors (slurm_errno.c); Open MPI 'There are not enough slots available in the system'",
        example="sbatch: error: Batch job submission failed: Requested node configuration is not available",
    ),
)  # fmt: skip
