"""Errors of everything that is not Python: each form as its library prints it."""

from __future__ import annotations

import pytest
from diagnose.reading.reading_logs import digest, only

from holdfast.domain.log_event import LogForm


def test_what_cpp_threw_is_named_with_its_frames() -> None:
    event = only(
        """
        terminate called after throwing an instance of 'c10::Error'
          what():  CUDA error: an illegal memory access was encountered
        CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
        For debugging consider passing CUDA_LAUNCH_BLOCKING=1
        Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

        Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):
        frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f1 in /lib/torch/lib/libc10.so)
        frame #1: c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool) + 0x118 (0x7f2 in /lib/torch/lib/libc10_cuda.so)

        Aborted (core dumped)
        """,
        error="c10::Error",
    )
    assert event.form is LogForm.CUDA
    assert "illegal memory access" in event.message
    assert event.frames[1].path == "/lib/torch/lib/libc10_cuda.so"
    assert event.last_line == 9


def test_faulthandler_s_stack_has_its_latest_call_last() -> None:
    event = only(
        """
        Fatal Python error: Segmentation fault

        Current thread 0x00007f2a1c000740 (most recent call first):
          File "/lib/numpy/core.py", line 12 in crash
          File "train.py", line 3 in <module>

        Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
        """
    )
    assert (event.form, event.error) == (LogForm.NATIVE, "SIGSEGV")
    assert [frame.function for frame in event.frames] == ["<module>", "crash"]


def test_a_failed_check_of_glog_is_fatal() -> None:
    event = only(
        """
        F1116 04:05:06.123456  4711 data_loader.cc:88] Check failed: size > 0 (0 vs. 0) empty shard
        *** Check failure stack trace: ***
            @     0x7f3c8  google::LogMessage::Fail()
            @     0x7f3d0  google::LogMessage::SendToLog()
        """
    )
    assert event.form is LogForm.NATIVE
    assert "empty shard" in event.message
    assert len(event.frames) == 2


def test_glog_s_signal_stack_is_named_by_its_signal() -> None:
    event = only(
        """
        *** SIGSEGV (@0x0) received by PID 4711 (TID 0x7f3) from PID 0; stack trace: ***
            @     0x7f3c8  (unknown)
            @     0x7f3d0  at::native::copy_()
        """
    )
    assert (event.error, event.frames[1].function) == ("SIGSEGV", "at::native::copy_()")


def test_open_mpi_s_signal_is_named() -> None:
    event = only(
        """
        [node7:04711] *** Process received signal ***
        [node7:04711] Signal: Segmentation fault (11)
        [node7:04711] Signal code: Address not mapped (1)
        [node7:04711] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x42520)[0x7f]
        [node7:04711] *** End of error message ***
        """
    )
    assert event.error == "SIGSEGV"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("Segmentation fault (core dumped)", "SIGSEGV"),
        ("Killed", "SIGKILL"),
        ("run.sh: line 12:  4711 Killed                  python train.py --big", "SIGKILL"),
        ("Bus error (core dumped)", "SIGBUS"),
        ("double free or corruption (out)", "SIGABRT"),
        ("python: ../src/tensor.cc:33: void f(): Assertion `n > 0' failed.", "SIGABRT"),
    ],
)
def test_the_shell_s_and_the_c_library_s_words_are_signals(line: str, error: str) -> None:
    event = only(line + "\n")
    assert (event.form, event.error) == (LogForm.NATIVE, error)


def test_a_panic_of_rust_has_its_message_and_place() -> None:
    event = only("thread '<unnamed>' panicked at src/lib.rs:201:9:\nassertion failed: index < len\nnote: run with `RUST_BACKTRACE=1` environment variable to "
        "display a backtrace\n")
    assert (event.form, event.message, event.frames[0].line) == (LogForm.RUST, "assertion failed: index < len", 201)


def test_java_s_causes_stand_under_it() -> None:
    event = only(
        """
        Exception in thread "main" org.apache.spark.SparkException: Job aborted due to stage failure
        \tat org.apache.spark.scheduler.DAGScheduler.failJob(DAGScheduler.scala:2454)
        \tat java.base/java.lang.Thread.run(Thread.java:829)
        Caused by: java.net.ConnectException: Connection refused
        \tat java.base/sun.nio.ch.Net.connect0(Native Method)
        \t... 12 more
        """
    )
    assert (event.form, event.error) == (LogForm.JAVA, "org.apache.spark.SparkException")
    assert event.under == ("java.net.ConnectException: Connection refused",)
    assert event.frames[-1].line == 2454


def test_a_watchdog_s_timeout_names_the_rank_it_speaks_of() -> None:
    event = only(
        "[rank5]:[E1116 04:05:06.123456789 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1201, "
        "OpType=ALLREDUCE, "
        "NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600032 milliseconds before timing out.\n"
    )
    assert (event.form, event.error, event.rank) == (LogForm.COLLECTIVE, "NCCL timeout", 5)
    assert "SeqNum=1201" in event.message
    assert "OpType=ALLREDUCE" in event.message
    assert event.at_s is not None
    assert not event.warning


def test_nccl_s_warnings_count_where_they_name_an_error_and_only_there() -> None:
    bad, fine = digest(
        """
        node3:4711:4799 [2] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node4<45678>
        node3:4711:4799 [2] NCCL WARN NET/Plugin : could not find libnccl-net.so, using internal implementation
        """
    ).events
    assert (bad.node, bad.warning, bad.form) == ("node3", False, LogForm.COLLECTIVE)
    assert fine.warning


@pytest.mark.parametrize(
    "line",
    [
        "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.1, 29500).",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:34567",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ],
)
def test_gloo_and_the_store_are_collectives(line: str) -> None:
    assert only(line + "\n").form is LogForm.COLLECTIVE


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "Xid 79"),
        ("Nov 16 04:05:06 gpu-12 kernel: [ 99.123456] NVRM: Xid (PCI:0000:18:00): 94, pid=4711, Contained: SM (0x1).", "Xid 94"),
        ("2026-11-16T04:05:06+0000 gpu-12 kernel: Out of memory: Killed process 4711 (python) total-vm:123kB, anon-rss:99kB", "oom-kill"),
        ("[Mon Nov 16 04:05:06 2026] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,task=python,pid=4711,uid=0", "oom-kill"),
        ("kernel: EXT4-fs error (device sda1): ext4_find_entry:1531: inode #2: comm python: reading directory lblock 0", "file system error"),
        ("kernel: blk_update_request: I/O error, dev nvme0n1, sector 1234 op 0x0:(READ)", "I/O error"),
        ("kernel: nfs: server fs1 not responding, still trying", "NFS"),
        ("kernel: EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "machine check"),
        ("kernel: python[4711]: segfault at 0 ip 00007f sp 00007ffd error 4 in libtorch.so[7f+1]", "segfault"),
        ("kernel: INFO: task python:4711 blocked for more than 120 seconds.", "hung task"),
    ],
)
def test_records_of_the_kernel_are_named(line: str, error: str) -> None:
    event = only(line + "\n")
    assert (event.form, event.error) == (LogForm.KERNEL, error)


def test_a_corrected_memory_error_is_no_evidence_by_itself() -> None:
    assert only("kernel: EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0 (channel:0 slot:0)\n").warning


@pytest.mark.parametrize(
    ("line", "error", "codes"),
    [
        ("slurmstepd: error: *** JOB 4711 ON gpu-12 CANCELLED AT 2026-11-16T04:05:06 DUE TO TIME LIMIT ***", "time limit", ()),
        ("slurmstepd: error: *** STEP 4711.0 ON gpu-12 CANCELLED AT 2026-11-16T04:05:06 DUE TO PREEMPTION ***", "preempted", ()),
        ("slurmstepd: error: *** JOB 4711 ON gpu-12 CANCELLED AT 2026-11-16T04:05:06 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "node failure",
        ()),
        ("slurmstepd: error: *** JOB 4711 ON gpu-12 CANCELLED AT 2026-11-16T04:05:06 ***", "cancelled", ()),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.", "oom_kill", ()),
        ("srun: error: gpu-12: task 3: Out Of Memory", "oom_kill", ((3, -9),)),
        ("srun: error: gpu-12: tasks 0-2: Exited with exit code 1", "task ended", ((0, 1), (1, 1), (2, 1))),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "oom_kill", ()),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", "time limit", ()),
        ("      Reason:       OOMKilled", "oom_kill", ()),
        ("Warning  Evicted  2m  kubelet  The node was low on resource: memory.", "evicted", ()),
        ("=>> PBS: job killed: walltime 3630 exceeded limit 3600", "time limit", ()),
        ("mpirun noticed that process rank 3 with PID 0 on node gpu-12 exited on signal 9 (Killed).", "mpirun", ((3, -9),)),
        ("[2026-11-16 04:05:06,123] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4711", "clean-up", ()),
        ("[2026-11-16 04:05:06,123] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py'] exits with return code = -9", "exit",
        ((None, -9),)),
        ("E1116 04:05:06.123000 4711 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 2 (pid: 4799) of binary: "
        "/usr/bin/python", "child failed", ((None, -11),)),
    ],
)
def test_schedulers_and_launchers_say_how_it_ended(line: str, error: str, codes: tuple[tuple[int | None, int], ...]) -> None:
    found = digest(line + "\n")
    assert [(event.form, event.error) for event in found.events] == [(LogForm.SCHEDULER, error)]
    assert found.exit_codes == codes


def test_torchrun_s_table_tells_all_exit_codes_and_who_was_first() -> None:
    found = digest(
        """
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        ============================================================
        train.py FAILED
        ------------------------------------------------------------
        Failures:
        [1]:
          time      : 2026-11-16_04:05:07
          host      : gpu-12
          rank      : 3 (local_rank: 3)
          exitcode  : -15 (pid: 4712)
          error_file: <N/A>
          traceback : Signal 15 (SIGTERM) received by PID 4712
        ------------------------------------------------------------
        Root Cause (first observed failure):
        [0]:
          time      : 2026-11-16_04:05:06
          host      : gpu-11
          rank      : 1 (local_rank: 1)
          exitcode  : -9 (pid: 4711)
          error_file: <N/A>
          traceback : Signal 9 (SIGKILL) received by PID 4711
        ============================================================
        """
    )
    table = next(event for event in found.events if event.form is LogForm.SCHEDULER)
    assert (table.rank, table.node) == (1, "gpu-11")
    assert "SIGKILL" in table.message
    assert set(found.exit_codes) == {(3, -15), (1, -9)}


def test_a_table_ends_at_its_last_rule_and_the_next_one_is_another_launcher_s() -> None:
    def table(rank: int, *traceback: str) -> str:
        lines = ("Root Cause (first observed failure):", "[0]:", "  host      : n1", f"  rank      : {rank} (local_rank: {rank})", "  exitcode  : 1 (pid: 7)")
        return "\n".join((f"train{rank}.py FAILED", "-" * 20, *lines, *traceback, "=" * 20, ""))

    raised = ("  traceback : Traceback (most recent call last):", '      File "a.py", line 1, in f', "        g()", "    PermissionError: no")
    found = digest(table(1, *raised) + "some other line\n" + table(2, "  traceback : Signal 6 (SIGABRT) received by PID 8"))
    first, second = (event for event in found.events if event.form is LogForm.SCHEDULER)
    assert (first.rank, second.rank) == (1, 2)
    assert "PermissionError: no" in first.message
    assert "SIGABRT" in second.message


def test_a_traceback_that_a_logger_writes_as_a_warning_was_caught() -> None:
    lines = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()", "FileNotFoundError: [Errno 2] No such file: 'x'")
    logged = digest("".join(f"2026-03-04 05:06:07,123 some.logger: [WARNING] {line}\n" for line in lines))
    assert [event.warning for event in logged.events if event.form is LogForm.PYTHON] == [True]
    stderr = digest("".join(f"(WARNING){line}\n" for line in lines))
    assert all(not event.warning for event in stderr.events), "without a time it is how somebody marks all of stderr"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("2026-11-16 04:05:06.123456: W external/xla/bfc_allocator.cc:482] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.",
        "RESOURCE_EXHAUSTED"),
        ("UNAVAILABLE: failed to connect to all addresses", "UNAVAILABLE"),
        ("INTERNAL: Failed to execute XLA Runtime executable", "INTERNAL"),
    ],
)
def test_status_lines_of_tensorflow_and_xla_are_named_by_their_code(line: str, error: str) -> None:
    event = only(line + "\n")
    assert (event.form, event.error) == (LogForm.TENSORFLOW, error)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("CUDA error: device-side assert triggered", "cudaErrorAssert"),
        ("Failed: Cuda error kernel.cu:12 'an illegal memory access was encountered'", "cudaErrorIllegalAddress"),
        ("cublasCreate(handle) failed with CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_NOT_INITIALIZED"),
        ("../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [3,0,0], thread: [1,0,0] Assertion `srcIndex < srcSelectDimSize` "
        "failed.", "cudaErrorAssert"),
    ],
)
def test_errors_of_cuda_have_the_runtime_s_names(line: str, error: str) -> None:
    event = only(line + "\n")
    assert (event.form, event.error) == (LogForm.CUDA, error)


@pytest.mark.parametrize(
    "line",
    [
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "/lib/torch/nn/functional.py:12: UserWarning: dropout2d: Received a 2-D input and this may cause an error",
        "2026-11-16 04:05:06,123 WARNING hub: connection timed out, retrying in 5 s",
        "download failed (attempt 1/5): connection reset by peer",
        "Error reading shard 12, skipping",
        "DeprecationWarning: this will be an error in a later version",
    ],
)
def test_advice_warnings_and_retries_are_marked(line: str) -> None:
    assert all(event.warning for event in digest(line + "\n").events)


def test_the_last_attempt_is_no_warning() -> None:
    assert not only("download failed (attempt 5/5): connection reset by peer\n").warning


@pytest.mark.parametrize(
    "line",
    ["step 3: 0 errors", "validation error: 0.123", "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P", "Namespace(timeout=1800, ignore_errors=False)", "found "
        "1,234 files", "loss: 2.31 | number of nan iterations: 0 |"],
)
def test_words_of_trouble_that_say_there_is_none_are_no_events(line: str) -> None:
    assert digest(line + "\n").events == ()
