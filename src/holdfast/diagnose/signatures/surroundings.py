"""Signatures of what surrounds a job: services, the scheduler, people."""

from __future__ import annotations

from holdfast.diagnose.signatures.signature import FAIR, STRONG, SURE, WEAK, Signature
from holdfast.diagnose.taxonomy import Permanence, Role

_CLIENTS = (
    "requests/", "urllib", "httpx/", "aiohttp/", "huggingface_hub/", "wandb/", "mlflow/", "http/client.py", "botocore/", "google/", "openai/", "comet_ml/",
    "neptune/", "clearml/", "datasets/", "fsspec/",
)
_HTTP = "RFC 9110, status codes; requests.exceptions.HTTPError; huggingface_hub.errors"

SIGNATURES = (
    Signature(
        name="service_refuses", cause="remote_service_error", strength=SURE, permanence=Permanence.PERMANENT,
        says=(
            "401 Client Error", "401, message=", "403, message=", "404, message=", "Forbidden'", "Unauthorized'", "HTTP 401", "HTTP 403", "HTTP 404",
            "403 Client Error", "404 Client Error", "403 Forbidden", "401 Unauthorized", "404 Not Found", "GatedRepoError", "RepositoryNotFoundError",
            "EntryNotFoundError", "RevisionNotFoundError", "You are trying to access a gated repo", "Invalid user token", "not a valid model identifier",
            "is not a local folder", "doesn't exist on the Hub", "HTTP Error 401", "HTTP Error 403", "HTTP Error 404", "permission denied … wandb",
            "API key is invalid", "Invalid username or password", "Authentication failed for", "pull access denied", "AuthenticationError", "error 401",
            "error 403", "DatasetNotFoundError", "invalid api key", "status code 401", "status code 403", "status code 404", "manifest unknown",
            "Cannot access gated repo", "Repository Not Found", "Unable to locate credentials", "NoCredentialsError", "PartialCredentialsError",
            "DefaultCredentialsError", "api_key not configured", "UsageError: api_key", "No API key configured", "Permission denied (publickey",
            "Host key verification failed",
        ),
        unless=("LocalEntryNotFoundError",),
        source=f"{_HTTP}: 401, 403 and 404 do not pass by themselves; botocore and google.auth exceptions without credentials; wandb; ssh(1)",
        example="huggingface_hub.errors.GatedRepoError: 403 Client Error. Access to model org/model is restricted.",
    ),
    Signature(
        name="service_broken", cause="remote_service_error", strength=SURE,
        says=(
            "500 Server Error", "502 Server Error", "503 Server Error", "504 Server Error", "429 Client Error", "Too Many Requests", "Bad Gateway",
            "Service Unavailable", "Gateway Time-out", "Gateway Timeout", "Internal Server Error", "HTTP Error 5", "HTTP Error 429", "HTTPError 5",
            "503 Service", "504 Gateway", "RateLimitError", "APIConnectionError", "responded with 5", "status code 5", "HTTP 5", "Error 502", "Error 503",
            "toomanyrequests",
        ),
        unless=("storage.googleapis.com", "amazonaws", "s3.", "gs://"),
        source=f"{_HTTP}: 429 and 5xx pass by",
        example="requests.exceptions.HTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://hub.example.org/api",
    ),
    Signature(
        name="service_out_of_reach", cause="remote_service_error", strength=SURE,
        says=(
            "_InactiveRpcError", "could not connect to server", "lost connection to the server",
            "ConnectionLostException", "Connection to server … lost", "Network is unreachable", "connection refused … http",
            "Temporary failure in name resolution", "Name or service not known", "Failed to resolve", "NameResolutionError", "Could not resolve host",
            "Max retries exceeded with url", "We couldn't connect to", "HTTPSConnectionPool", "HTTPConnectionPool", "LocalEntryNotFoundError",
            "OfflineModeIsEnabled", "Read timed out", "urlopen error", "CERTIFICATE_VERIFY_FAILED", "getaddrinfo failed", "nodename nor servname",
            "ProxyError", "RemoteDisconnected", "wandb … CommError", "wandb … network error", "Network error", "ImagePullBackOff", "ErrImagePull",
            "SSLError", "Cannot connect to host", "ClientConnectorError", "httpx.ConnectError", "httpx.ReadTimeout", "httpcore", "ChunkedEncodingError",
            "fatal: unable to access", "ConnectTimeout", "Connection to … timed out",
            "cannot find the requested files in the local cache", "mlflow … API request", "outgoing traffic has been disabled", "Error communicating with",
            "wandb: ERROR Error while calling", "Unable to connect to", "[Errno -2]", "[Errno -3]",
            "Run initialization has timed out",
        ),
        unless=(
            "s3.", "amazonaws", "EndpointConnectionError", "NCCL", "c10d", "TCPStore", "DistNetworkError", "client socket", "HCCL", "storage.googleapis.com",
        ),
        source="requests, urllib3, httpx and aiohttp exceptions; getaddrinfo(3): EAI_AGAIN, EAI_NONAME; huggingface_hub LocalEntryNotFoundError; "
        "wandb.errors.CommError",
        example="requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example.org', port=443): Max retries exceeded with url: /api (Caused by "
        "NameResolutionError: Failed to resolve 'hub.example.org')",
    ),
    Signature(
        name="connection_exception", cause="remote_service_error", strength=FAIR,
        error=(
            "ConnectionError", "ConnectTimeout", "ReadTimeout", "URLError", "SSLError", "gaierror", "TimeoutException", "ConnectError",
            "ServerDisconnectedError", "ServiceUnavailable", "FSTimeoutError",
        ),
        frames=_CLIENTS,
        source="exceptions of HTTP clients that got no answer",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/httpx/_transports/default.py\", line 118, in map_exceptions\n    raise "
        "e\nhttpx.ConnectError: all attempts failed",
    ),
    Signature(
        name="client_exception", cause="remote_service_error", strength=FAIR, permanence=Permanence.UNCLEAR,
        error=("HTTPError", "CommError", "HfHubHTTPError", "ClientError", "MlflowException"),
        frames=_CLIENTS,
        source="exceptions of clients of hubs and trackers, whose class alone does not say whether the service did not answer or refused",
        example="Traceback (most recent call last):\n  File \"/opt/site-packages/wandb/sdk/wandb_init.py\", line 1200, in init\n    raise "
        "e\nwandb.errors.CommError: cannot talk to the server",
    ),
    Signature(
        name="scheduler_time_limit", cause="time_limit", strength=SURE,
        says=(
            "JobState=TIMEOUT", "Reason=TimeLimit", "TERM_CPULIMIT", "run limit", "ran longer than", "exceeded its limit h_rt", "of … time limit",
            "hit the time limit", "wall clock limit", "walltime limit", "maximum runtime", "DUE TO TIME LIMIT", "timeout: sending signal", "TERM_RUNLIMIT",
            "reaching LSF run time limit", "reason: DeadlineExceeded", "DeadlineExceeded … active", "wall time (",
            "Job was active on the node longer than specified deadline", "walltime … exceeded limit", "exceeded … walltime", "reached the time limit",
            "time limit reached", "Time limit reached", "exceeded time limit", "JobStatus: TIMEOUT", "wall time limit", "exceeded the maximum run time",
            "State: TIMEOUT", "MaxRuntimeExceeded", "time limit exceeded", "reached its time limit", "exceeded its time limit", "exit code 140",
            "activeDeadlineSeconds",
            "Time limit exhausted",
        ),
        source="Slurm: 'CANCELLED AT … DUE TO TIME LIMIT'; LSF termination reasons, TERM_RUNLIMIT; Kubernetes Jobs, activeDeadlineSeconds; PBS 'job killed: "
        "walltime … exceeded limit'",
        example="slurmstepd: error: *** JOB 77 ON n3 CANCELLED AT 2026-11-16T04:05:06 DUE TO TIME LIMIT ***",
    ),
    Signature(
        name="scheduler_preempted", cause="preempted", strength=SURE,
        says=(
            "being reclaimed", "TERMINATE_ON_HOST_MAINTENANCE", "spot … reclaimed", "reclaimed by", "DUE TO PREEMPTION", "TERM_PREEMPT",
            "PreemptionByScheduler", "preemption notice", "being preempted", "was preempted", "has been preempted", "Preempted by", "Preempting",
            "spot interruption", "Spot Instance interruption", "instance-action", "will be terminated by … spot", "preempted", "PREEMPTED",
            "DisruptionTarget", "TerminationByKubelet", "graceful node shutdown", "maintenance event", "preemption signal", "spot instance … reclaim",
            "evicted by priority", "Scheduled event Preempt", "Handling auto-requeue signal", "DUE TO JOB REQUEUE", "due to job requeue", "interruption notice",
        ),
        unless=("not preempted", "preempted: 0", "Preemption … enabled", "checking for preempt", "nodes are available"),
        source="Slurm: 'CANCELLED AT … DUE TO PREEMPTION'; LSF TERM_PREEMPT; Kubernetes pod disruption conditions; EC2 spot instance interruption notices",
        example="slurmstepd: error: *** JOB 77 ON n3 CANCELLED AT 2026-11-16T04:05:06 DUE TO PREEMPTION ***",
    ),
    Signature(
        name="job_cancelled", cause="user_cancelled", strength=STRONG,
        says=(
            "deleted by", "kubectl delete", "stopped by the user", "qdel", "cancelled through", "canceled through", "job deletion", "CANCELLED AT",
            "JOB … CANCELLED", "TERM_OWNER", "TERM_ADMIN", "scancel", "killed by owner", "cancelled by user", "canceled by user", "killed by user",
            "is killed by signal: Terminated", "is killed by signal: Hangup", "is killed by signal: Interrupt", "stopped by user", "aborted by user",
            "Job … was cancelled", "terminated by user", "job killed by", "CANCELLED by", "Force Terminated job", "interrupted by user",
            "Interrupted by user", "Cancelled by",
        ),
        unless=("DUE TO", "*** STEP", "Sending process"),
        source="Slurm: '*** JOB … CANCELLED AT …' without a reason; LSF termination reasons TERM_OWNER, TERM_ADMIN",
        example="slurmstepd: error: *** JOB 77 ON n3 CANCELLED AT 2026-11-16T04:05:06 ***",
    ),
    Signature(
        name="step_cancelled", cause="user_cancelled", strength=WEAK, role=Role.ECHO,
        says=("STEP … CANCELLED AT",),
        unless=("DUE TO", "*** JOB"),
        source="Slurm: '*** STEP … CANCELLED AT …': a cancel, or srun ending its other tasks after one failed",
        example="slurmstepd: error: *** STEP 77.0 ON n3 CANCELLED AT 2026-11-16T04:05:06 ***",
    ),
    Signature(
        name="keyboard_interrupt", cause="user_cancelled", strength=STRONG,
        says=(
            "KeyboardInterrupt", "Received SIGINT", "received SIGINT", "signal SIGINT", "got signal: 2\n", "got signal: 1\n", "Received 2 death signal",
            "Received 1 death signal", "SIGHUP", "exitcode  : -2", "Detected KeyboardInterrupt", "^C", "Signals.SIGINT", "Hangup", "signal 2 (",
            "Interrupt: ",
        ),
        unless=("ignored", "handler installed", "ignoring"),
        source="Python KeyboardInterrupt; torch elastic SignalException 'Process … got signal: 2'; signal(7): SIGINT 2, SIGHUP 1",
        example="Traceback (most recent call last):\n  File \"train.py\", line 8, in <module>\n    step()\nKeyboardInterrupt",
    ),
    Signature(
        name="terminated_from_outside", cause="user_cancelled", strength=FAIR, role=Role.ECHO,
        says=(
            "got signal: 15", "Received 15 death signal", "Received SIGTERM", "received SIGTERM", "signal SIGTERM", "`Termination signal` is detected",
            "exitcode  : -15", "exitcode: -15",
            "Signal 15", "exit code 143", "exit code -15", "Signals.SIGTERM", "caught signal SIGTERM", "SIGTERM received", "signal 15",
        ),
        unless=("Sending process", "closing signal", "DUE TO"),
        source="torch elastic SignalException 'Process … got signal: 15'; who sent SIGTERM (a user, a scheduler, a launcher that cleans up) is not said",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 88 got signal: 15",
    ),
    Signature(
        name="launcher_ends_survivors", cause="unknown", strength=WEAK, role=Role.CLEAN_UP,
        says=(
            "Sending process … closing signal SIGTERM", "closing signal SIG", "Waiting up to … seconds for job step to finish", "Unable to shutdown process",
            "Terminating process group", "Sending SIGTERM to",
        ),
        source="torch/distributed/elastic/multiprocessing/api.py: 'Sending process %s closing signal SIGTERM'",
        example="W1116 04:05:06.123000 88 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4242 closing signal SIGTERM",
    ),
    Signature(
        name="bare_connection", cause="remote_service_error", strength=WEAK, permanence=Permanence.TRANSIENT,
        error=("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "TimeoutError", "timeout", "ConnectionAbortedError", "IncompleteRead"),
        unless=("gloo", "NCCL", "c10d"),
        source="Python library reference: ConnectionError and its kin",
        example="Traceback (most recent call last):\n  File \"train.py\", line 8, in f\n    s.connect(a)\nConnectionRefusedError: [Errno 111] Connection "
        "refused",
    ),
    Signature(
        name="generic_os_error", cause="storage_io", strength=WEAK,
        error=("OSError", "IOError", "BlockingIOError"),
        unless=("Can't load", "We couldn't connect", "huggingface", "[Errno", "shared object", "symbol", "not a local folder"),
        source="Python library reference: OSError where no number is given",
        example="Traceback (most recent call last):\n  File \"train.py\", line 8, in f\n    f.read()\nOSError: read failed",
    ),
)  # fmt: skip
