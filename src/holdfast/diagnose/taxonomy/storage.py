"""Classes about files, checkpoints and data."""

from __future__ import annotations

from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Scope
from holdfast.domain.diagnosis import Cause

CLASSES = (
    CauseClass(
        name="disk_full",
        definition="No space or no quota was left where something was written.",
        permanence=Permanence.PERMANENT,
        scope=Scope.STORAGE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Free space or raise the quota (`df -h`, `df -i`, `quota`), then go on; never delete the last good checkpoint for it.",
        look_alikes=("shm_exhausted", "storage_io", "checkpoint_corrupt"),
        page="ENOSPC (errno 28), EDQUOT (errno 122), and a torch file writer that fails in the middle of a save (`PytorchStreamWriter failed writing file`, "
        "`unexpected pos`).",
        retries=0,
    ),
    CauseClass(
        name="storage_io",
        definition="Storage answered with an error or went away.",
        permanence=Permanence.TRANSIENT,
        scope=Scope.STORAGE,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.UNKILLABLE),
        action="Wait and try again; where one node alone has it, leave that node out. Check mounts and the storage service.",
        otherwise={Permanence.UNCLEAR: "Check the mount, the path and the storage service. If they are well, try once more."},
        look_alikes=("disk_full", "checkpoint_corrupt", "remote_service_error"),
        page="EIO (errno 5), ESTALE (errno 116), `Transport endpoint is not connected` (errno 107), a mount that is gone or became read-only, an object "
        "store that does not answer.",
    ),
    CauseClass(
        name="checkpoint_corrupt",
        definition="A checkpoint or weights file is cut off or damaged.",
        permanence=Permanence.PERMANENT,
        scope=Scope.STORAGE,
        seen_as=(Cause.CHECKPOINT_CORRUPT, Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Go back to the newest checkpoint that verifies, or download the weights again; look at why the save was cut (a full disk, a kill).",
        look_alikes=("data_corrupt", "checkpoint_mismatch", "disk_full"),
        page="`failed finding central directory`, `invalid header or archive is corrupted`, `Error while deserializing header`, `unexpected EOF, expected … "
        "more bytes. The file might be corrupted`, `Ran out of input` while a checkpoint is loaded.",
        retries=0,
    ),
    CauseClass(
        name="checkpoint_mismatch",
        definition="A checkpoint does not belong to the model, the optimizer or the layout that loads it.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_STARTABLE),
        action="Load it into the model it was made from: check model configuration, vocabulary size, wrappers (`module.`), parallel layout; or load with "
        "strict=False on purpose.",
        look_alikes=("checkpoint_corrupt", "shape_mismatch", "version_incompat"),
        page="`Error(s) in loading state_dict`, missing and unexpected keys, size mismatch, parameter groups that differ. The same words as a notice before "
        "a run that goes on are normal for fine-tuning.",
        retries=0,
    ),
    CauseClass(
        name="file_not_found",
        definition="A file or directory the job needs is not there.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_STARTABLE),
        action="Check the path, the working directory and that it is mounted on every node.",
        otherwise={
            Permanence.UNCLEAR: "See whether the file is there now: another rank may just have written it to shared storage. If it is, try once more; if not, "
            "check the path, the working directory and that it is mounted on every node.",
        },
        look_alikes=("storage_io", "import_missing", "remote_service_error", "permission_denied"),
        page="FileNotFoundError, errno 2, `can't open file`, `does not appear to have a file named`. On network storage a file that another rank wrote a "
        "moment ago may not be seen yet.",
        retries=0,
    ),
    CauseClass(
        name="permission_denied",
        definition="The job may not read, write or execute something.",
        permanence=Permanence.PERMANENT,
        scope=Scope.CONFIG,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE, Cause.NOT_STARTABLE),
        action="Check owner and mode of what is named (`ls -ld`), the user inside the container, and cache directories (HF_HOME, TRITON_CACHE_DIR) that "
        "belong to somebody else.",
        look_alikes=("file_not_found", "remote_service_error", "storage_io"),
        page="EACCES (errno 13), EPERM (errno 1), `Read-only file system` where nothing says that it became so.",
        retries=0,
    ),
    CauseClass(
        name="data_corrupt",
        definition="A sample or a data file cannot be read.",
        permanence=Permanence.PERMANENT,
        scope=Scope.DATA,
        seen_as=(Cause.EXCEPTION, Cause.EXIT_CODE),
        action="Find the sample (the message or the loader's index names it), mend or drop it; or skip and count bad samples up to a bound.",
        look_alikes=("checkpoint_corrupt", "code_error", "storage_io"),
        page="Images that cannot be identified or are truncated, JSON, CSV, Parquet, Arrow, tar and gzip that cannot be decoded, pickles that end early, "
        "inside a data set or loader.",
        retries=0,
    ),
)
