"""Signatures of files, storage, checkpoints and data."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.diagnose.taxonomy import Permanence, Scope
from holdfast.domain.log_event import LogForm

_LOADING = (
    "torch/serialization.py", "load_state_dict", "load_checkpoint", "from_pretrained", "safetensors", "modeling_utils", "resume", "restore",
    "checkpointing.py", "_load_from_checkpoint", "torch/jit/", "checkpoint",
)
_DATA = (
    "dataset", "dataloader", "data_loader", "/data/", "_utils/worker.py", "webdataset", "pyarrow", "pandas", "pil/", "torchvision/datasets", "collate",
    "preprocess", "streaming", "indexed", "__getitem__", "imageio", "cv2", "soundfile", "torchaudio", "tokenize_",
)

SIGNATURES = (
    Signature(
        name="no_space", cause="disk_full", strength=SURE,
        says=(
            "ephemeral local storage usage exceeds", "no free blocks", "no space left", "out of disk space", "out of space", "No space left on device",
            "[Errno 28]", "ENOSPC", "Disk quota exceeded", "[Errno 122]", "EDQUOT", "(os error 28)", "(os error 122)", "disk full", "disk is full",
            "not enough disk space", "Not enough free disk space", "insufficient disk space", "ephemeral-storage", "StorageFull", "quota exceeded … inode",
        ),
        unless=("/dev/shm", "</torch_", "shared memory", "nccl-", "retrying"),
        source="errno(3): ENOSPC 28, EDQUOT 122; Rust io::ErrorKind::StorageFull; Kubernetes eviction signals",
        example="OSError: [Errno 28] No space left on device: '/out/step-500/model.bin'",
    ),
    Signature(
        name="torch_writer_failed", cause="disk_full", strength=STRONG,
        says=(
            "PytorchStreamWriter failed writing", "inline_container.cc … unexpected pos", "unexpected pos … vs", "file write failed",
            "basic_ios::clear: iostream error", "Can't write data … No space", "Unable to … write … errno = 28",
        ),
        unless=("Permission denied",),
        source="torch caffe2/serialize/inline_container.cc: 'unexpected pos %d vs %d', 'PytorchStreamWriter failed writing file'; hdf5 'file write failed'",
        example="RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 704 vs 598",
    ),
    Signature(
        name="storage_errno", cause="storage_io", strength=SURE,
        says=(
            "Input/output error", "[Errno 5]", "Stale file handle", "Stale NFS file handle", "[Errno 116]", "Transport endpoint is not connected",
            "[Errno 107]", "Remote I/O error", "[Errno 121]", "Structure needs cleaning", "[Errno 117]", "[Errno 112] Host is down", "(os error 5)",
            "(os error 116)", "(os error 107)", "[Errno 108]", "Cannot send after transport endpoint shutdown", "[Errno 70]", "Communication error on send",
        ),
        source="errno(3): EIO 5, ESTALE 116, ENOTCONN 107, EREMOTEIO 121, EUCLEAN 117, EHOSTDOWN 112, ESHUTDOWN 108",
        example="OSError: [Errno 116] Stale file handle: '/mnt/nfs/ckpt'",
    ),
    Signature(
        name="kernel_storage", cause="storage_io", strength=SURE, form=(LogForm.KERNEL, LogForm.LINE),
        says=(
            "blk_update_request: I/O error", "Buffer I/O error on dev", "EXT4-fs error", "EXT4-fs (… error", "XFS (… I/O error", "metadata I/O error",
            "nfs: server … not responding", "Remounting filesystem read-only", "nvme … timeout, aborting", "nvme … controller is down", "LustreError",
            "Lustre: … was lost", "Aborting journal on device", "critical medium error", "I/O error, dev", "ceph: … hang", "GPFS … unmounted",
        ),
        source="Linux block, ext4, XFS, NFS and NVMe drivers: 'I/O error, dev … sector …', 'nfs: server … not responding'; Lustre console messages",
        example="[88.1] blk_update_request: I/O error, dev nvme1n1, sector 29900 op 0x0:(READ) flags 0x80700",
    ),
    Signature(
        name="object_store", cause="storage_io", strength=STRONG,
        says=(
            "storage.googleapis.com … 503", "Filesystem closed", "reading gs://", "Error executing an HTTP request", "EndpointConnectionError",
            "Could not connect to the endpoint URL", "botocore … ReadTimeoutError", "botocore … ConnectTimeoutError", "botocore … ConnectionClosedError",
            "An error occurred (SlowDown)", "(InternalError) when calling", "(ServiceUnavailable) when calling", "(503) when calling", "reached max retries",
            "s3 … IncompleteBody", "Could not obtain block", "org.apache.hadoop … ConnectException", "IncompleteReadError", "ResponseStreamingError",
            "google.cloud.storage … 503", "gcsfs … 5", "An error occurred (RequestTimeout)", "AWS Error NETWORK_CONNECTION", "AWS Error UNKNOWN",
            "S3 … timed out", "curlCode: 28",
        ),
        unless=("AccessDenied", "NoSuchKey", "NoSuchBucket"),
        source="botocore.exceptions and the S3 API's error responses; Hadoop DFSClient 'Could not obtain block'; Arrow S3 filesystem",
        example="botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: \"https://s3.example.org/bucket/shard-1\"",
    ),
    Signature(
        name="busy_or_gone_mount", cause="storage_io", strength=FAIR,
        says=(
            "Device or resource busy: '.nfs", "Device or resource busy", "[Errno 16]", "No such device", "[Errno 19]", "mount … failed",
            "Connection timed out: '/", "[Errno 110] … '/", "FailedMount", "Unable to attach or mount volumes", "MountVolume.SetUp failed", "hung_task",
            "blocked for more than",
        ),
        source="errno(3): EBUSY 16, ENODEV 19; NFS silly rename; Kubernetes volume events; Linux hung task detector",
        example="OSError: [Errno 16] Device or resource busy: '.nfs0000000001'",
    ),
    Signature(
        name="became_read_only", cause="storage_io", strength=SURE, running=True,
        says=("Read-only file system", "[Errno 30]", "(os error 30)"),
        source="errno(3): EROFS 30; a file system that was written before is remounted read-only by the kernel after an error",
        example="step 1 loss: 2.0\nstep 2 loss: 1.9\nTraceback (most recent call last):\n  File \"t.py\", line 2, in <module>\n    save()\nOSError: [Errno "
        "30] Read-only file system: '/data/out'",
    ),
    Signature(
        name="read_only", cause="permission_denied", strength=FAIR, running=False,
        says=("Read-only file system", "[Errno 30]", "(os error 30)"),
        unless=("Remounting",),
        source="errno(3): EROFS 30",
        example="OSError: [Errno 30] Read-only file system: '/data/out'",
    ),
    Signature(
        name="torch_file_corrupt", cause="checkpoint_corrupt", strength=SURE,
        says=(
            "storage has wrong element size", "storage has wrong size", "checkpoint … is incomplete", "Invalid magic number; corrupt file",
            "checkpoint … is truncated", "checkpoint … corrupt",
            "cannot restore from it", "is truncated: pickle", "checkpoint … bytes long, expected", "corrupt … checkpoint",
            "failed finding central directory", "invalid header or archive is corrupted", "PytorchStreamReader failed",
            "file in archive is not in a subdirectory", "Error while deserializing header", "HeaderTooLarge", "HeaderTooSmall",
            "InvalidHeaderDeserialization", "MetadataIncompleteBuffer", "InvalidHeaderLength", "The file might be corrupted", "not a ZIP archive",
            "storage has wrong byte size", "incomplete metadata, file not fully covered", "checkpoint is corrupt", "corrupted checkpoint",
            "checkpoint … checksum", "does not verify", "Unable to open table file", "truncated file: eof", "load persistent id instruction",
            "truncated checkpoint", "header too large", "corrupt checkpoint",
        ),
        source="torch caffe2/serialize/inline_container.cc: 'PytorchStreamReader failed reading zip archive: failed finding central directory'; "
        "torch/serialization.py; safetensors tensor.rs SafeTensorError",
        example="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    Signature(
        name="unpickling_checkpoint", cause="checkpoint_corrupt", strength=STRONG,
        says=(
            "invalid load key", "Ran out of input", "pickle data was truncated", "unpickling stack underflow", "File is not a zip file", "Bad magic number",
            "Unsupported operand", "Invalid magic number", "Truncated", "checksum", "file signature not found", "truncated file",
            "Unable to load weights from pytorch checkpoint file", "Unable to synchronously open file", "Error -3 while decompressing",
            "unexpected end of data", "CRC",
        ),
        error=("UnpicklingError", "EOFError", "BadZipFile", "DataLossError", "error", "ReadError", "OSError", "ValueError"),
        frames=_LOADING,
        unless=("Unsupported global",),
        source="Python pickle.UnpicklingError, zipfile.BadZipFile; HDF5 'file signature not found'; transformers modeling_utils load_state_dict",
        example="Traceback (most recent call last):\n  File \"train.py\", line 12, in load_checkpoint\n    state = torch.load(path)\n  File "
        "\"/opt/site-packages/torch/serialization.py\", line 1040, in _legacy_load\n    magic = pickle_module.load(f)\n_pickle.UnpicklingError: invalid "
        "load key, 'v'.",
    ),
    Signature(
        name="unpickling_anywhere", cause="checkpoint_corrupt", strength=FAIR,
        says=("invalid load key", "pickle data was truncated", "unpickling stack underflow"),
        error=("UnpicklingError",),
        source="Python pickle; torch/serialization.py: what torch.load says of a file that is no checkpoint, a pointer of git-lfs or a page of HTML among them",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    main()\n_pickle.UnpicklingError: invalid load key, 'v'.",
    ),
    Signature(
        name="weights_unreadable", cause="checkpoint_corrupt", strength=STRONG,
        says=(
            "Unable to load weights from pytorch checkpoint file", "OSError: Unable to load weights",
            "It looks like the config file at … is not a valid JSON file", "file signature not found", "SafetensorError", "Ran out of input … ckpt",
            "could not be unpickled … checkpoint",
        ),
        unless=("No space left", "Permission denied", "No such file", "does not exist"),
        source="transformers modeling_utils.py: 'Unable to load weights from pytorch checkpoint file for …'; safetensors_rust.SafetensorError",
        example="OSError: Unable to load weights from pytorch checkpoint file for '/ckpt/pytorch_model.bin' at '/ckpt/pytorch_model.bin'.",
    ),
    Signature(
        name="holdfast_mismatch", cause="checkpoint_mismatch", strength=SURE + 1.7,
        error=("CheckpointMismatch",),
        says=("holdfast.checkpoint.errors.CheckpointMismatch",),
        source="src/holdfast/checkpoint/errors.py: CheckpointMismatch, the script and the checkpoint do not fit together",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    run = holdfast.guard(model=m)\n"
        "holdfast.checkpoint.errors.CheckpointMismatch: the checkpoint holds model, ema, and guard() was given model.",
    ),
    Signature(
        name="holdfast_corrupt", cause="checkpoint_corrupt", strength=SURE + 1.7,
        error=("CheckpointCorrupt",),
        says=("holdfast.checkpoint.errors.CheckpointCorrupt",),
        source="src/holdfast/checkpoint/errors.py: CheckpointCorrupt, a checkpoint does not verify",
        example="Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    run = holdfast.guard(model=m)\n"
        "holdfast.checkpoint.errors.CheckpointCorrupt: step-00000020.g1: chunk 3 of model does not verify.",
    ),
    Signature(
        name="state_dict_mismatch", cause="checkpoint_mismatch", strength=SURE, form=(LogForm.PYTHON,),
        says=(
            "Size mismatch between saved", "checkpoint was saved with", "tree structures do not match", "tree structures differ",
            "different from the checkpoint", "does not match the checkpoint", "Error(s) in loading state_dict", "Missing key(s) in state_dict",
            "Unexpected key(s) in state_dict", "size mismatch for", "copying a param with shape", "While copying the parameter named",
            "You are trying to load a weight file containing", "Layer count mismatch when loading weights", "Cannot load model parameters from checkpoint",
            "cannot load the checkpoint", "parameter group that doesn't match the size of optimizer",
            "different number of parameter groups", "Missing key in checkpoint state_dict", "Trying to set a tensor of shape", "ignore_mismatched_sizes",
            "has been trained with a different", "not found in checkpoint", "in checkpoint … does not match", "checkpoint … not compatible",
            "The checkpoint being loaded used a DP world size", "could not be restored", "shape mismatch … checkpoint", "checkpoint … shape",
            "value … from checkpoint … is not equal to", "Incompatible keys", "keys are missing and", "does not fit the model", "weights … do not match",
        ),
        source="torch/nn/modules/module.py load_state_dict: 'Error(s) in loading state_dict for …'; torch/optim/optimizer.py; transformers; deepspeed; "
        "Megatron check_checkpoint_args",
        example="RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: \"head.weight\".",
    ),
    Signature(
        name="state_dict_words", cause="checkpoint_mismatch", strength=FAIR, form=(LogForm.LINE, LogForm.TENSORFLOW, LogForm.NATIVE),
        says=("Error(s) in loading state_dict", "Missing key(s) in state_dict", "Unexpected key(s) in state_dict", "not found in checkpoint"),
        source="torch/nn/modules/module.py load_state_dict; tensorflow tensor_bundle: 'Key … not found in checkpoint'",
        example="ERROR trainer restore: Missing key(s) in state_dict, giving up",
    ),
    Signature(
        name="key_of_checkpoint", cause="checkpoint_mismatch", strength=STRONG,
        says=("KeyError", "mismatch", "_state_dict", "does not match", "state_dict", "world size", "param_groups", "expected"),
        error=("KeyError", "ValueError", "AssertionError"),
        frames=(
            "load_state_dict", "load_checkpoint", "load_from_checkpoint", "restore_checkpoint", "resume_from", "load_ckpt", "load_model",
            "checkpoint_connector.py", "restore_optimizers", "load_weights",
        ),
        unless=("does not exist", "not found in"),
        source="a loader that misses an entry: torch.optim load_state_dict, Lightning checkpoint_connector, Megatron checkpointing",
        example="Traceback (most recent call last):\n  File \"train.py\", line 31, in load_checkpoint\n    model.load(ckpt['ema'])\nKeyError: 'ema'",
    ),
    Signature(
        name="file_not_found", cause="file_not_found", strength=STRONG,
        error=("FileNotFoundError", "NotADirectoryError", "NotFoundError", "IsADirectoryError"),
        unless=("shared object file", "Stale"),
        source="Python library reference: FileNotFoundError (ENOENT), NotADirectoryError (ENOTDIR)",
        example="Traceback (most recent call last):\n  File \"train.py\", line 4, in <module>\n    open(p)\nFileNotFoundError: [Errno 2] No such file or "
        "directory: '/data/train.jsonl'",
    ),
    Signature(
        name="no_such_file", cause="file_not_found", strength=STRONG,
        says=(
            "Can't load tokenizer for", "Can't load the model for", "Can't load the configuration of", "Can't load config for", "Dataset not found",
            "no training files match", "cannot be found at the path", "no files match", "is missing on disk", "No such file or directory", "can't open file",
            "[Errno 2]", "(os error 2)", "does not appear to have a file named", "Error no file named", "Can't find a valid checkpoint at",
            "Unable to find latest file", "Couldn't find any data file at", "Couldn't find a dataset script at", "Couldn't find file at",
            "Unable to find … in dataset", "cannot find the path", "FileNotFoundException", "No files found", "NoSuchKey", "NoSuchBucket", "No such key",
            "Path does not exist", "Couldn't find trainer checkpoint",
        ),
        unless=("shared object file", "ModuleNotFoundError", "Stale", "command not found", "cannot load shared"),
        source="errno(3): ENOENT 2; python: 'can't open file'; transformers 'does not appear to have a file named'; datasets 'Couldn't find'",
        example="python: can't open file '/home/me/trian.py': [Errno 2] No such file or directory",
    ),
    Signature(
        name="path_missing", cause="file_not_found", strength=FAIR,
        says=(
            "does not exist", "doesn't exist", "not found at", "could not find file", "no such file", "is not a file", "is not a directory",
            "unable to open file", "no checkpoint found", "cannot find", "not a valid directory", "cannot open file", "missing file",
        ),
        error=("ValueError", "AssertionError", "RuntimeError", "OSError", "Exception", "DataFilesNotFoundError", "EmptyDatasetError"),
        unless=("on the Hub", "huggingface.co", "attribute", "operator", "Unexpected key", "state_dict", "key "),
        source="libraries that check a path themselves: h5py 'unable to open file', torchvision 'Dataset not found', DeepSpeed, Megatron",
        example="AssertionError: data path /data/c4_text_document.bin does not exist",
    ),
    Signature(
        name="command_file_missing", cause="import_missing", strength=STRONG,
        error=("FileNotFoundError",),
        frames=("subprocess.py _execute_child",),
        source="Python subprocess: FileNotFoundError when the program to start is not there",
        example="Traceback (most recent call last):\n  File \"/usr/lib/python3.11/subprocess.py\", line 1955, in _execute_child\n    raise "
        "child_exception_type(errno_num, err_msg, err_filename)\nFileNotFoundError: [Errno 2] No such file or directory: 'nvcc'",
    ),
    Signature(
        name="permission_denied", cause="permission_denied", strength=SURE,
        says=(
            "Insufficient Permissions", "not permitted to", "Permission denied", "PermissionError", "[Errno 13]", "Operation not permitted", "[Errno 1]",
            "EACCES", "(os error 13)", "(AccessDenied)", "AccessDeniedException", "Access denied", "AccessControlException",
        ),
        unless=("401", "403 Client", "huggingface.co", "ECC", "stream is capturing", "nvidia-smi", "set_mempolicy", "publickey"),
        source="errno(3): EACCES 13, EPERM 1; S3 AccessDenied; Hadoop AccessControlException",
        example="PermissionError: [Errno 13] Permission denied: '/scratch/other/cache'",
    ),
    Signature(
        name="bad_image_or_media", cause="data_corrupt", strength=SURE,
        says=(
            "cannot identify image file", "image file is truncated", "broken data stream when reading image", "Truncated File Read",
            "Invalid data found when processing input", "moov atom not found", "Premature end of JPEG", "Corrupt JPEG", "broken PNG file",
            "DecompressionBombError", "Could not open … as an image", "Error opening … Format not recognised", "decoder error", "Failed to decode",
        ),
        source="Pillow PIL.UnidentifiedImageError, ImageFile: 'image file is truncated'; FFmpeg AVERROR_INVALIDDATA; libsndfile",
        example="PIL.UnidentifiedImageError: cannot identify image file '/data/img/0001.jpg'",
    ),
    Signature(
        name="bad_table_or_archive", cause="data_corrupt", strength=SURE,
        says=(
            "bad checksum", "sample … is damaged", "checksum mismatch", "checksum does not match", "Parquet magic bytes not found", "ArrowInvalid",
            "Not an Arrow file", "ArrowIOError", "Error tokenizing data", "Compressed file ended before the end-of-stream marker", "Not a gzipped file",
            "incorrect data check", "invalid stored block lengths", "Cannot load file containing pickled data", "Failed to interpret file … as a pickle",
            "corrupted record at", "truncated record at", "NonMatchingChecksumError", "unpack requires a buffer of", "Expected image (JPEG, PNG",
            "NonMatchingSplitsSizesError", "An error occurred while generating the dataset",
            "failed hash check", "CorruptedError", "Index file doesn't match expected format", "tarfile.ReadError", "JSON parse error",
            "couldn't cast array", "file could not be opened successfully", "DataLoss: corrupted", "DATA_LOSS", "corrupted shard",
            "Magic number … does not match", "ShardCorrupt", "Could not read record", "bad sample", "corrupt record",
        ),
        source="pyarrow.lib.ArrowInvalid, pandas.errors.ParserError, gzip, zlib, tarfile, numpy.load, tf.errors.DataLossError, huggingface datasets "
        "exceptions",
        example="pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
    ),
    Signature(
        name="decode_in_data", cause="data_corrupt", strength=STRONG,
        error=(
            "JSONDecodeError", "UnicodeDecodeError", "UnpicklingError", "EOFError", "BadZipFile", "ReadError", "error", "DecodeError", "zlib.error",
            "ParserError", "CParserError", "BadGzipFile", "UnidentifiedImageError", "DataLossError",
        ),
        frames=_DATA,
        source="Python json, codecs, pickle, zipfile and tarfile exceptions below a data set or a loader",
        example="Traceback (most recent call last):\n  File \"/app/dataset.py\", line 22, in __getitem__\n    return json.loads(line)\n  File "
        "\"/usr/lib/python3.11/json/decoder.py\", line 355, in raw_decode\n    raise JSONDecodeError(\"Expecting value\", s, "
        "err.value)\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ),
    Signature(
        name="decode_anywhere", cause="data_corrupt", strength=FAIR,
        error=("JSONDecodeError", "UnicodeDecodeError", "EOFError", "BadZipFile", "ReadError", "BadGzipFile"),
        unless=("EOF when reading a line",),
        source="Python json, codecs, pickle, zipfile and tarfile exceptions",
        example="Traceback (most recent call last):\n  File \"run.py\", line 2, in <module>\n    json.load(f)\njson.decoder.JSONDecodeError: Extra data: "
        "line 2 column 1 (char 6)",
    ),
    Signature(
        name="array_does_not_fit_file", cause="data_corrupt", strength=FAIR,
        says=(
            "cannot reshape array of size", "buffer size must be a multiple of element size", "mmap length is greater than file size",
            "buffer is smaller than requested size",
        ),
        error=("ValueError",),
        frames=("npyio", "numpy/lib/format", "memmap", "indexed_dataset", "frombuffer", *_DATA),
        source="numpy.load and numpy.memmap on a file that is cut off",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/numpy/lib/format.py\", line 839, in read_array\n    array.shape = "
        "shape\nValueError: cannot reshape array of size 91 into shape (10,10)",
    ),
    Signature(
        name="shape_of_sample", cause="data_corrupt", strength=WEAK, permanence=Permanence.PERMANENT, scope=Scope.DATA,
        says=("invalid sample", "empty dataset", "num_samples should be a positive integer value, but got num_samples=0", "dataset is empty", "no samples"),
        source="torch/utils/data/sampler.py: 'num_samples should be a positive integer value, but got num_samples=0'",
        example="ValueError: num_samples should be a positive integer value, but got num_samples=0",
    ),
)  # fmt: skip
