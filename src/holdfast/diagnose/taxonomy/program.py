"""Classes about the program: its code, its libraries, its settings, its numbers."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="import_missing",
        definition="A module, a shared library or a command is not installed.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.NOT_STARTABLE, Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Install what is named into the environment the job runs in, on every node; check that the right environment is active.",
        look_alikes=("version_incompat", "file_not_found"),
        page="ModuleNotFoundError, `cannot open shared object file: No such file or directory`, `command not found`, a library that says which package to "
        "install.",
        retries=0,
    ),
    CauseClass(
        name="version_incompat",
        definition="Installed parts do not fit each other: a name that moved, a binary built for another version.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.NOT_STARTABLE, Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Pin the two packages named to versions made for each other; rebuild compiled extensions after changing torch.",
        look_alikes=("import_missing", "code_error", "gpu_driver_mismatch"),
        page="`cannot import name`, `undefined symbol`, `version GLIBCXX_… not found`, `numpy.dtype size changed`, `compiled using NumPy 1.x`, a library "
        "that was called by another library with an argument it does not know, a part of a library that is there and has no such part (`No module named "
        "'torch._six'`), a module that this Python's standard library no longer has.",
        retries=0,
    ),
    CauseClass(
        name="shape_mismatch",
        definition="Tensors whose sizes do not fit an operation or each other.",
        permanence=Permanence.PERMANENT,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Print the shapes at the line the traceback names; check hidden sizes, padding and the last, smaller batch.",
        look_alikes=("checkpoint_mismatch", "code_error", "index_out_of_range"),
        page="`mat1 and mat2 shapes cannot be multiplied`, `The size of tensor a must match`, `stack expects each tensor to be equal size`, `Expected input "
        "batch_size to match target`.",
        retries=0,
    ),
    CauseClass(
        name="index_out_of_range",
        definition="An index into data beyond the end of a tensor, a table or a data set.",
        permanence=Permanence.PERMANENT,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Check the index at the line the traceback names: labels against classes, token ids against the vocabulary, sample numbers against the data "
        "set.",
        look_alikes=("device_assert", "shape_mismatch", "code_error"),
        page="IndexError, `index out of range in self` of an embedding, `index 5 is out of bounds for dimension 0 with size 5`.",
        retries=0,
    ),
    CauseClass(
        name="code_error",
        definition="The program raised an exception that points at its own code: a wrong name, type, value or index.",
        permanence=Permanence.PERMANENT,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_STARTABLE, Cause.REPLICAS_DISAGREE),
        action="Mend the line the traceback ends in; trying again will end there again.",
        look_alikes=("config_error", "version_incompat", "data_corrupt"),
        page="TypeError, AttributeError, NameError, KeyError, SyntaxError, an index beyond the end of a list, a circular import, a failed assertion without a "
        "word, and a RuntimeError of autograd or of DDP about how the model is used.",
        retries=0,
    ),
    CauseClass(
        name="config_error",
        definition="An argument, an option, a requirement or a configuration file was rejected.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_STARTABLE),
        action="Mend the option, the requirement or the setting that the message names; `--help` or the documentation lists what it may be.",
        look_alikes=("code_error", "import_missing", "file_not_found"),
        page="`error: unrecognized arguments`, `the following arguments are required`, validation errors of pydantic, Hydra and OmegaConf, a file of settings "
        "that does not parse, a version of a package that does not exist, batch sizes that "
        "do not divide, a device count that does not fit a parallel layout, a scheduler that refuses a request.",
        retries=0,
    ),
    CauseClass(
        name="numeric_nan",
        definition="The loss, a gradient or an output is no longer a finite number.",
        permanence=Permanence.UNCLEAR,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.POISONED_CHECKPOINT, Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_FINITE),
        action="Go back to the last good checkpoint and skip the batch. The same step again: lower the rate, clip gradients, check the data; another step: "
        "suspect the card.",
        look_alikes=("loss_divergence", "gpu_ecc", "data_corrupt"),
        page="`loss: nan`, `Function … returned nan values`, a loss scale at its minimum, a check for finite values that failed. Code, data, or hardware "
        "that computes wrongly.",
        retries=1,
    ),
    CauseClass(
        name="loss_divergence",
        definition="The loss went orders of magnitude above its trend.",
        permanence=Permanence.PERMANENT,
        scope=Scope.JOB_CODE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.DIVERGED),
        action="Go back to a checkpoint before the rise and lower the learning rate, lengthen the warm-up or skip the data of those steps.",
        look_alikes=("numeric_nan",),
        page="A program that says that it diverged and stops, or a loss that ends far above where it was.",
        retries=0,
    ),
)
