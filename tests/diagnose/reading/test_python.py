"""Tracebacks of Python, as the interpreter and the libraries around it print them."""

from __future__ import annotations

from diagnose.reading.reading_logs import digest, only

from holdfast.domain.log_event import LogForm


def test_a_traceback_becomes_class_message_and_frames() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "/opt/job/train.py", line 88, in <module>
            main()
          File "/opt/job/train.py", line 41, in main
            loss = model(batch)
                   ^^^^^^^^^^^^
        ValueError: too many values to unpack (expected 2)
        """
    )
    assert (event.form, event.error, event.message) == (LogForm.PYTHON, "ValueError", "too many values to unpack (expected 2)")
    assert [(frame.path, frame.line, frame.function) for frame in event.frames] == [("/opt/job/train.py", 88, "<module>"), ("/opt/job/train.py", 41, "main")]
    assert (event.first_line, event.last_line) == (1, 7)
    assert event.text[0] == "Traceback (most recent call last):"


def test_what_an_exception_was_raised_from_stands_under_it_innermost_first() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "a.py", line 1, in open
            socket.connect()
        ConnectionRefusedError: [Errno 111] Connection refused

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "b.py", line 2, in fetch
            open()
        urllib3.exceptions.NewConnectionError: Failed to establish a new connection

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "c.py", line 3, in main
            fetch()
        requests.exceptions.ConnectionError: Max retries exceeded with url: /api
        """
    )
    assert event.error == "requests.exceptions.ConnectionError"
    assert event.message == "Max retries exceeded with url: /api"
    assert event.under == ("ConnectionRefusedError: [Errno 111] Connection refused", "urllib3.exceptions.NewConnectionError: Failed to establish a new "
        "connection")
    assert not event.warning


def test_a_loader_worker_s_own_exception_names_the_error() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "train.py", line 9, in <module>
            for batch in loader:
          File "/lib/torch/_utils.py", line 722, in reraise
            raise exception
        KeyError: Caught KeyError in DataLoader worker process 3.
        Original Traceback (most recent call last):
          File "/lib/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
            data = fetcher.fetch(index)
          File "dataset.py", line 20, in __getitem__
            return self.items[name]
        KeyError: 'label'
        """
    )
    assert event.error == "KeyError"
    assert "Caught KeyError in DataLoader worker process 3" in event.message
    assert "'label'" in event.message
    assert event.under == ("KeyError: 'label'",)
    assert event.frames[-1].path == "dataset.py"


def test_a_spawned_process_s_traceback_is_read_through_its_parent_s() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "/lib/torch/multiprocessing/spawn.py", line 158, in join
            raise ProcessRaisedException(msg, error_index, failed_process.pid)
        torch.multiprocessing.spawn.ProcessRaisedException:

        -- Process 1 terminated with the following error:
        Traceback (most recent call last):
          File "/lib/torch/multiprocessing/spawn.py", line 68, in _wrap
            fn(i, *args)
          File "train.py", line 20, in worker
            x = torch.zeros(2) @ torch.zeros(3)
        RuntimeError: inconsistent tensor size, expected tensor [2] and src [3] to have the same number of elements, but got 2 and 3 elements respectively
        """
    )
    assert event.error == "RuntimeError"
    assert "inconsistent tensor size" in event.message
    assert event.rank == 1


def test_a_task_of_ray_names_the_exception_that_the_task_raised() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "main.py", line 5, in <module>
            ray.get(f.remote())
        ray.exceptions.RayTaskError(ZeroDivisionError): ray::f() (pid=10, ip=10.0.0.3)
          File "main.py", line 2, in f
            return 1 / 0
        ZeroDivisionError: division by zero
        """
    )
    assert event.error == "ZeroDivisionError"
    assert "division by zero" in event.message


def test_a_group_names_its_first_exception_and_keeps_the_others() -> None:
    event = only(
        """
          + Exception Group Traceback (most recent call last):
          |   File "x.py", line 1, in <module>
          |     raise group
          | ExceptionGroup: two things (2 sub-exceptions)
          +-+---------------- 1 ----------------
            | Traceback (most recent call last):
            |   File "x.py", line 2, in a
            |     raise
            | ValueError: first
            +---------------- 2 ----------------
            | Traceback (most recent call last):
            |   File "x.py", line 3, in b
            |     raise
            | TypeError: second
            +------------------------------------
        """
    )
    assert event.error == "ValueError"
    assert "first" in event.message
    assert any("ExceptionGroup" in one for one in event.under)
    assert any("TypeError: second" in one for one in event.under)


def test_a_syntax_error_has_no_header_and_is_read_all_the_same() -> None:
    event = only(
        """
          File "train.py", line 7
            if x = 3:
               ^^^^^
        SyntaxError: invalid syntax. Maybe you meant '==' or ':=' instead of '='?
        """
    )
    assert (event.error, event.frames[0].line) == ("SyntaxError", 7)


def test_a_message_of_several_lines_is_one() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "train.py", line 7, in <module>
            model.load_state_dict(state)
        RuntimeError: Error(s) in loading state_dict for Net:
        \tMissing key(s) in state_dict: "fc.weight".
        \tsize mismatch for head.weight: copying a param with shape torch.Size([10, 4]) from checkpoint
        wandb: Waiting for the run to finish
        """
    )
    assert "Missing key(s)" in event.message
    assert "size mismatch for head.weight" in event.message
    assert "wandb" not in event.message


def test_nccl_s_own_words_belong_to_the_message_of_the_exception() -> None:
    event = only(
        """
        Traceback (most recent call last):
          File "train.py", line 7, in <module>
            dist.barrier()
        torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275,
            unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5
        ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
        Last error:
        socketStartConnect: Connect to 10.0.0.4<35001> failed : Software caused connection abort
        """
    )
    assert event.error == "torch.distributed.DistBackendError"
    assert "ncclSystemError" in event.message
    assert "socketStartConnect" in event.message


def test_tracebacks_of_ranks_that_print_at_the_same_time_are_sorted_apart() -> None:
    found = digest(
        """
        [rank0]: Traceback (most recent call last):
        [rank1]: Traceback (most recent call last):
        [rank0]:   File "a.py", line 1, in f
        [rank1]:   File "b.py", line 2, in g
        [rank0]:     x()
        [rank1]:     y()
        [rank1]: KeyError: 'y'
        [rank0]: ValueError: x
        """
    )
    assert [(event.rank, event.error, event.frames[0].path) for event in found.events] == [(0, "ValueError", "a.py"), (1, "KeyError", "b.py")]


def test_the_same_traceback_of_two_writers_without_prefix_is_told_once_or_twice_and_never_torn() -> None:
    found = digest(
        """
        Traceback (most recent call last):
        Traceback (most recent call last):
          File "a.py", line 1, in f
          File "a.py", line 1, in f
            x()
            x()
        ValueError: x is 3
        ValueError: x is 3
        """
    )
    assert [(event.error, event.message) for event in found.events] == [("ValueError", "x is 3")]
    assert found.events[0].times == 2


def test_a_traceback_cut_at_its_end_still_tells_where_it_was() -> None:
    event = only('Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\n  File "b.py", li')
    assert (event.error, event.frames[0].path) == ("", "a.py")


def test_a_traceback_cut_at_its_start_still_tells_its_exception() -> None:
    event = only('    x()\n  File "b.py", line 3, in g\n    y()\nKeyError: 3\n')
    assert (event.error, event.message, event.frames[0].function) == ("KeyError", "3", "g")


def test_a_box_drawn_by_rich_is_a_traceback() -> None:
    event = only(
        """
        ╭─────────────────── Traceback (most recent call last) ────────────────────╮
        │ /opt/job/train.py:12 in main                                            │
        │                                                                          │
        │ ❱ 12 │   raise ValueError("no")                                          │
        ╰──────────────────────────────────────────────────────────────────────────╯
        ValueError: no
        """
    )
    assert (event.error, event.message, event.frames[0].line) == ("ValueError", "no", 12)


def test_a_traceback_right_after_a_bar_is_found() -> None:
    found = digest('  45%|████▌     | 450/1000 [00:10<00:12, 44.1it/s]Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\nKeyError: 3\n')
    assert [event.error for event in found.events] == ["KeyError"]


def test_a_stack_inside_a_json_record_is_a_traceback() -> None:
    event = only(
        '{"time": "2026-11-16T04:05:06Z", "level": "ERROR", "rank": 3, "message": "training failed", '
        '"exc_info": "Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in f\\n    x()\\nKeyError: 3"}\n',
        error="KeyError",
    )
    assert (event.rank, event.frames[0].path, event.first_line) == (3, "a.py", 1)
    assert event.at_s == 1794801906.0


def test_an_exception_without_a_traceback_is_one() -> None:
    event = only("2026-11-16 04:05:06,123 ERROR trainer: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n")
    assert "CUDA out of memory" in event.message
    assert event.at_s is not None


def test_what_the_interpreter_ignored_is_no_evidence() -> None:
    event = only(
        """
        Exception ignored in: <function Loader.__del__ at 0x7f2a>
        Traceback (most recent call last):
          File "loader.py", line 3, in __del__
            self.close()
        AttributeError: 'NoneType' object has no attribute 'close'
        """
    )
    assert (event.error, event.warning) == ("AttributeError", True)
