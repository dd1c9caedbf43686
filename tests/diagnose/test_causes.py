"""Causes: from logs as people have them to one answer, with its lines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.causes import Beside, diagnose
from holdfast.diagnose.reading import read
from holdfast.diagnose.taxonomy import CLASSES
from holdfast.domain.diagnosis import Cause
from holdfast.domain.finding import Finding
from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.log_diagnosis import LogDiagnosis
from holdfast.domain.log_event import LogDigest
from holdfast.domain.surroundings import Difference

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    step()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {total} GiB of which 0.10 GiB is free. "
STEPS = "".join(f"step {number} loss: {3 - number / 100:.3f}\n" for number in range(40))


def said(*texts: str, **more: object) -> LogDiagnosis:
    digest = read([(f"rank{number}.log" if len(texts) > 1 else "train.log", [text.encode()]) for number, text in enumerate(texts)])
    return diagnose(digest, **more)  # type: ignore[arg-type]


def test_an_exception_names_its_class_with_the_line_it_stands_on() -> None:
    one = said(f"{STEPS}{TRACEBACK}RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 768x10)\n")
    assert (one.cause, one.permanence, one.scope) == ("shape_mismatch", "permanent", "job_code")
    assert one.evidence[0].path == "train.log"
    assert one.evidence[0].line == 44
    assert one.step == 39
    assert one.confidence > 0.6


def test_an_error_after_which_training_went_on_is_healthy() -> None:
    one = said(f"{TRACEBACK}ConnectionResetError: [Errno 104] Connection reset by peer\nretrying\n{STEPS}Training completed\n")
    assert one.cause == "healthy"


def test_a_log_without_anything_is_not_called_healthy() -> None:
    assert said("").cause == "unknown"
    assert said("loading the model\n").cause == "unknown"
    assert "cannot tell" in said("").because


def test_a_binary_is_said_to_be_one() -> None:
    one = diagnose(read([("a.out", [bytes(range(256)) * 50])]))
    assert one.cause == "unknown"
    assert one.because.startswith("I cannot tell, because")


def test_advice_is_no_evidence() -> None:
    advice = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    one = said(f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered\n{advice}")
    assert one.cause == "gpu_illegal_access"
    assert "device_assert" not in {name for name, share in one.alternatives if share > 0.1}


@pytest.mark.parametrize(
    ("held", "permanence"),
    [("this process has 38.00 GiB memory in use.", "permanent"), ("this process has 3.00 GiB memory in use.", "unclear"), ("", "unclear")],
)
def test_whose_memory_is_full_decides_whether_trying_again_can_help(held: str, permanence: str) -> None:
    assert said(f"{TRACEBACK}{OOM.format(total='39.39')}Including non-PyTorch memory, {held}\n").permanence == permanence


def test_a_bare_kill_is_never_proof_of_a_lack_of_memory() -> None:
    bare = said(f"{STEPS}/var/spool/job: line 3:  4242 Killed                  python train.py\n")
    assert bare.permanence == "unclear"
    proven = said(f"{STEPS}Killed\n", beside=Beside(kernel=(KernelEvent(kind="oom_kill", message="Memory cgroup out of memory: Killed process 4242", at=0.0),)))
    assert proven.cause == "host_oom"
    assert proven.confidence > bare.confidence


def test_status_codes_decide_about_services() -> None:
    broken = said(f"{TRACEBACK}requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.example.org/m\n")
    assert broken.permanence == "transient"
    refused = said(f"{TRACEBACK}requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hub.example.org/m\n")
    assert (refused.cause, refused.permanence) == ("remote_service_error", "permanent")


def test_xids_are_read_by_number_and_the_earlier_one_counts() -> None:
    one = said("[100.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=11, GPU has fallen off the bus.\n[100.2] NVRM: Xid (PCI:0000:3b:00): 45, pid=11, Ch 00000010\n")
    assert (one.cause, one.permanence) == ("gpu_fell_off_bus", "transient")
    assert said("[100.1] NVRM: Xid (PCI:0000:3b:00): 63, pid=11, Row Remapper: New row marked for remapping\n").cause not in ("gpu_ecc", "gpu_xid_other")


def test_an_echo_does_not_win_while_somebody_says_a_cause() -> None:
    watchdog = (
        "[rank{rank}]:[E1116 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )
    one = said(*(STEPS + (f"{TRACEBACK}KeyError: 'labels'\n" if rank == 2 else watchdog.format(rank=rank)) for rank in range(8)))
    assert (one.cause, one.ranks) == ("code_error", (2,))
    alone = said(*(STEPS + ("" if rank == 5 else watchdog.format(rank=rank)) for rank in range(8)))
    assert (alone.cause, alone.ranks) == ("nccl_timeout", (5,)), "who says nothing while all others wait is the one to look at"


def test_the_last_run_of_a_file_counts() -> None:
    run = f"Starting training\n{STEPS}{TRACEBACK}"
    one = said(f"{run}KeyError: 'a'\n{run}FileNotFoundError: [Errno 2] No such file or directory: '/d/x'\n")
    assert one.cause == "file_not_found"


def test_a_correction_changes_the_answer_for_the_same_failure() -> None:
    text = f"{STEPS}{TRACEBACK}RuntimeError: the sampler is in a wrong state\n"
    first = said(text)
    assert first.fingerprint
    again = said(text.replace("line 9", "line 11"), overrides={first.fingerprint: "data_corrupt"})
    assert again.cause == "data_corrupt"
    assert "corrected" in again.because
    assert said(text, overrides={first.fingerprint: "no_such_class"}).cause == first.cause


def test_findings_and_exit_codes_stand_beside_the_log() -> None:
    assert said(STEPS, beside=Beside(exit_codes=((3, -11),))).cause == "segfault"
    assert said("", beside=Beside(findings=(Finding(kind="silent_node", because="nothing was heard of n7"),))).cause == "unknown", "an empty log stays one"
    quiet = said(STEPS, beside=Beside(findings=(Finding(kind="silent_node", because="nothing was heard of n7"),), exit_codes=((0, 1),)))
    assert "node_fail" in {quiet.cause, *(name for name, _ in quiet.alternatives)}


def test_what_changed_is_one_piece_of_evidence_for_each_kind() -> None:
    unclear = f"{TRACEBACK}TypeError: build() got an unexpected keyword argument 'deep'\n"
    package = [Difference(kind="package", because=f"package lib{number} was 1.0, is 2.0") for number in range(30)]
    script = Difference(kind="script", because="script is another one")
    alone, with_packages, with_one = (said(unclear, beside=Beside(changed=changed)) for changed in ((), tuple(package), tuple(package[:1])))
    shares = [dict([(one.cause, one.confidence), *one.alternatives])["version_incompat"] for one in (alone, with_packages, with_one)]
    assert shares[0] < shares[1] == pytest.approx(shares[2])
    assert said(unclear, beside=Beside(changed=(script,))).cause == "code_error"
    assert any("and 26 more" in line for line in with_packages.reasoning)


def test_the_core_s_own_name_for_it_speaks_where_the_log_does_not() -> None:
    assert said("loading the model\n").cause == "unknown"
    one = said("loading the model\n", beside=Beside(seen_as=Cause.HANG, exit_codes=((0, -6),)))
    assert one.cause in ("hang", "nccl_timeout", "process_abort", "unknown")
    assert any("the core named it hang" in line for line in one.reasoning)


def test_a_part_of_a_library_that_is_missing_is_another_version_and_a_library_that_is_missing_is_not_there() -> None:
    library = TRACEBACK.replace("train.py", "/opt/site-packages/onelib/core.py")
    for text, cause in (
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'einops'\n", "import_missing"),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'torch._six'\n", "version_incompat"),
        (f"{library}ModuleNotFoundError: No module named 'otherlib.part'\n", "version_incompat"),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'mine.part'\n", "import_missing"),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'torch.nn'; 'torch' is not a package\n", "code_error"),
    ):
        assert said(text).cause == cause, text


def test_a_port_that_was_taken_is_not_why_ranks_timed_out_that_had_found_each_other() -> None:
    port = f"{TRACEBACK}RuntimeError: The server socket has failed to listen on any local network address. errno: 98 - Address already in use\n"
    work = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    watchdog = f"[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: {work}\n"
    assert said(port).cause == "port_in_use"
    assert said(port + watchdog).cause == "nccl_timeout"


def test_a_file_of_settings_that_does_not_parse_is_a_setting_and_a_sample_is_data() -> None:
    error = "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 9 column 5 (char 120)\n"
    below = 'Traceback (most recent call last):\n  File "{}", line 9, in {}\n    load()\n  File "/usr/lib/json/decoder.py", line 355, in decode\n    raise\n'
    assert said(below.format("/opt/site-packages/transformers/training_args.py", "__post_init__") + error).cause == "config_error"
    assert said(below.format("/home/me/dataset.py", "__getitem__") + error).cause == "data_corrupt"


def test_warnings_after_which_a_program_speaks_on_are_no_failure() -> None:
    assert said("WARNING failed to load the fast tokenizer\nbuilding the model\nreading the data set\n").cause == "healthy"


def test_numbers_speak_where_no_line_does() -> None:
    series = {"cgroup_memory_bytes": [(0.0, 1e9), (60.0, 7.9e9)], "cgroup_memory_limit_bytes": [(0.0, 8e9), (60.0, 8e9)]}
    one = said(STEPS, beside=Beside(series=series, exit_codes=((0, -9),)))
    assert one.cause == "host_oom"
    assert any("of its limit" in line for line in one.reasoning)


def test_a_loss_that_is_not_finite_is_seen_without_any_error() -> None:
    assert said(f"{STEPS}step 41 loss: nan\nstep 42 loss: nan\nRuntimeError: Loss is nan, stopping training\n").cause == "numeric_nan"


def test_other_languages_keep_numbers_and_names() -> None:
    assert said(f"{TRACEBACK}OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar: '/out/model.pt'\n").cause == "disk_full"
    assert said(f"{TRACEBACK}PermissionError: [Errno 13] Permission non accordée: '/data'\n").cause == "permission_denied"


class Certain:
    def probabilities(self, digest: LogDigest, /) -> Mapping[str, float]:
        return {"gpu_nvlink": 1.0}


def test_a_clear_line_outweighs_the_model_and_the_model_decides_where_there_is_none() -> None:
    assert said(f"{TRACEBACK}ModuleNotFoundError: No module named 'einops'\n", model=Certain()).cause == "import_missing"
    assert said(f"{TRACEBACK}vendor.StrangeError: 0x17\n", model=Certain()).cause == "gpu_nvlink"


PIECES = [STEPS, TRACEBACK, "KeyError: 'x'\n", "Killed\n", OOM.format(total="8") + "\n", "NCCL WARN socketProgress: closed\n", "\x00", "exitcode  : -9\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_any_log_has_an_answer_whose_probabilities_are_ones(parts: list[str]) -> None:
    one = said("".join(parts))
    assert one.cause in CLASSES
    assert one.permanence in ("transient", "permanent", "unclear")
    assert 0 < one.confidence <= 1
    assert one.confidence + sum(share for _, share in one.alternatives) <= 1 + 1e-9
    assert all(share <= one.confidence + 1e-9 for _, share in one.alternatives)


PERMANENT = {
    "a version that does not exist": "ERROR: Could not find a version that satisfies the requirement einops==99.0 (from versions: 0.7.0, 0.8.0)\n"
    "ERROR: No matching distribution found for einops==99.0\n",
    "a package that does not exist": "ERROR: Could not find a version that satisfies the requirement einopps (from versions: none)\n"
    "ERROR: No matching distribution found for einopps\n",
    "the same, as uv says it": "  x No solution found when resolving dependencies:\n  Because there is no version of einops==99.0 and you require it, we can "
    "conclude that your requirements are unsatisfiable.\n",
    "the same, as conda says it": "PackagesNotFoundError: The following packages are not available from current channels:\n\n  - einops=99.0\n",
    "a missing file": f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'\n",
    "a missing script": "python: can't open file '/w/trian.py': [Errno 2] No such file or directory\n",
    "a wrong argument": "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --nosuch\n",
    "no authorisation": f"{TRACEBACK}requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hub.example.org/api\n",
    "a licence that was not accepted": "huggingface_hub.errors.GatedRepoError: 403 Client Error.\nCannot access gated repo for url https://hub.example.org/m.\n",
    "a bucket one may not read": f"{TRACEBACK}botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation\n",
    "a module that does not exist": f"{TRACEBACK}ModuleNotFoundError: No module named 'einopps'\n",
    "a missing key of the settings": f"{TRACEBACK}omegaconf.errors.ConfigAttributeError: Key 'optimizer' is not in struct\n    full_key: optimizer\n",
    "a missing key": f"{TRACEBACK}KeyError: 'learning_rate'\n",
    "Holdfast's own refusal": f"{TRACEBACK}holdfast.errors.UserError: ema is an EMA, and nothing is known about its state. Give it state_dict.\n",
}


@pytest.mark.parametrize("text", PERMANENT.values(), ids=PERMANENT)
def test_what_the_same_job_would_meet_again_is_permanent(text: str) -> None:
    one = said(text, model=shipped_text_model())
    assert one.permanence == "permanent", one
    assert "again" not in one.action.replace("trying again will end there again", ""), one.action


RETRYING = (
    "WARNING: Retrying (Retry(total={left}, connect=None, read=None, redirect=None, status=None)) after connection broken by "
    "'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f00>: Failed to establish a new connection: [Errno -3] Temporary "
    "failure in name resolution')': /simple/einops/\n"
)
NOTHING = "ERROR: Could not find a version that satisfies the requirement einops (from versions: none)\nERROR: No matching distribution found for einops\n"


def test_an_index_that_did_not_answer_passes_although_the_installer_ends_with_the_same_words() -> None:
    one = said(RETRYING.format(left=1) + RETRYING.format(left=0) + NOTHING, model=shipped_text_model())
    assert (one.cause, one.permanence) == ("remote_service_error", "transient")
    assert one.action.startswith("Wait and try again")
    listed = said(RETRYING.format(left=4) + PERMANENT["a version that does not exist"], model=shipped_text_model())
    assert (listed.cause, listed.permanence) == ("config_error", "permanent"), "it answered in the end, with its list"


def test_the_class_of_a_clients_exception_alone_does_not_say_that_it_passes() -> None:
    client = 'Traceback (most recent call last):\n  File "/opt/site-packages/mlflow/store.py", line 9, in get\n    raise MlflowException(text)\n'
    assert said(f"{client}mlflow.exceptions.MlflowException: no run of this name\n").permanence != "transient"


def test_holdfasts_own_refusal_is_named_as_such() -> None:
    one = said(PERMANENT["Holdfast's own refusal"], model=shipped_text_model())
    assert one.cause == "config_error"
    assert "Holdfast itself refused" in one.because
    assert "Give it state_dict" in one.evidence[0].text
    other = said(f"{TRACEBACK}holdfast.checkpoint.errors.CheckpointMismatch: the checkpoint holds model, ema, and guard() was given model.\n")
    assert (other.cause, other.permanence) == ("checkpoint_mismatch", "permanent")


def test_a_correction_takes_its_permanence_from_the_class_a_person_named() -> None:
    refused = said(PERMANENT["no authorisation"])
    one = said(PERMANENT["no authorisation"], overrides={refused.fingerprint: "gpu_ecc"})
    assert (one.cause, one.permanence) == ("gpu_ecc", "transient")


def test_a_healthy_log_says_why_it_is_called_so() -> None:
    calm = said(STEPS).because
    assert "progress up to step 39" in calm
    assert "nothing in it sounds alarming" in calm
    survived = said(f"{TRACEBACK}ConnectionResetError: [Errno 104] Connection reset by peer\nretrying\n{STEPS}Training completed\n").because
    assert "ends as that of a run that is done" in survived
    assert "train.log:4, and the run went on" in survived


def test_evidence_holds_the_line_that_says_it_wherever_it_stands_in_a_chain() -> None:
    chain = f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: '/conf/run.yaml'\n\n{{}}\n\n{TRACEBACK}RuntimeError: could not load it\n"
    for words in ("During handling of the above exception, another exception occurred:", "The above exception was the direct cause of the following one:"):
        one = said(STEPS + chain.format(words))
        assert one.cause == "file_not_found"
        assert [(quote.line, quote.text) for quote in one.evidence[:2]] == [
            (44, "FileNotFoundError: [Errno 2] No such file or directory: '/conf/run.yaml'"), (51, "RuntimeError: could not load it"),
        ]  # fmt: skip


def test_evidence_names_the_line_of_the_exception_and_not_of_what_follows_it() -> None:
    one = said(f"{TRACEBACK}RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: \"head.weight\".\n\tsize mismatch for x\n")
    assert (one.cause, one.evidence[0].line) == ("checkpoint_mismatch", 4)
    java = said("java.lang.RuntimeException: job failed\n\tat a.B.c(B.java:3)\nCaused by: java.io.IOException: No space left on device\n\tat a.D.e(D.java:5)\n")
    assert (java.cause, java.evidence[0].line) == ("disk_full", 3)


def test_the_first_bad_step_is_the_first_and_so_is_its_line() -> None:
    bad = "".join(f"step {number} loss nan\n" for number in (40, 50, 60))
    one = said(f"step 5 loss inf\n{STEPS}{bad}AssertionError: loss is nan\n")
    assert (one.cause, one.step) == ("numeric_nan", 40), "a single loss that was not finite was survived"
    assert ("step 40 loss nan", 42) in [(quote.text, quote.line) for quote in one.evidence]


REFUSED = {
    "no credentials": "botocore.exceptions.NoCredentialsError: Unable to locate credentials\n",
    "no key": "wandb: Network error (ConnectionError), entering retry loop.\nwandb: ERROR api_key not configured (no-tty). Call wandb.login()\n",
    "ssh key": "git@git.example.org: Permission denied (publickey).\nfatal: Could not read from remote repository.\n\nPlease make sure you have the rights.\n",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_who_has_no_key_is_refused_again(text: str) -> None:
    assert (said(text).cause, said(text).permanence) == ("remote_service_error", "permanent")
    assert said(text, model=shipped_text_model()).permanence == "permanent"


def test_an_error_that_comes_with_advice_is_an_error() -> None:
    one = said("Error response from daemon: toomanyrequests: the pull rate limit is reached. You may increase it by logging in.\n")
    assert (one.cause, one.permanence) == ("remote_service_error", "transient")


def test_a_service_of_which_no_line_speaks_is_not_said_to_pass() -> None:
    class Thinks:
        def probabilities(self, digest: LogDigest) -> Mapping[str, float]:
            return {name: 0.999 if name == "remote_service_error" else 1e-5 for name in CLASSES}

    one = said("ERROR: the tracker has sent back a teapot\n", model=Thinks())
    assert (one.cause, one.permanence) == ("remote_service_error", "unclear")


def test_evidence_of_a_crash_names_the_line_that_says_so_and_not_the_end_of_its_stack() -> None:
    one = said('step 12\nFatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "/w/ds.py", line 17 in get\n')
    assert (one.cause, one.evidence[0].line) == ("segfault", 2)
