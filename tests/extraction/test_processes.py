"""Limits of the processes that read hostile files."""

import logging
import os
import resource
import subprocess
import sys
import time
import warnings

import psutil
import pytest

from gumshoe.extraction import processes as processes_module
from gumshoe.extraction.processes import MAX_MEMORY, ExtractionFailure, open_processes
from tests.errors import raises


def test_processes_have_a_memory_limit() -> None:
    with open_processes(1, 20) as processes:
        held, _ = processes.run(resource.getrlimit, resource.RLIMIT_AS)
        with pytest.raises(ExtractionFailure) as failure:
            processes.run(bytearray, 2 * MAX_MEMORY)
    assert held == MAX_MEMORY
    assert failure.value.kind == "memory"


def test_a_lower_limit_of_the_system_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may raise a hard limit, e.g. of `ulimit -v`; processes that tried could not start."""
    limits = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MAX_MEMORY // 2, MAX_MEMORY // 2))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    monkeypatch.setattr(logging, "disable", lambda: None)
    with warnings.catch_warnings():
        processes_module._start_process()
    assert limits == [(MAX_MEMORY // 2, MAX_MEMORY // 2)]


def test_parsers_are_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    with open_processes(1, 20) as processes:
        processes.run(logging.error, "broken file")
        processes.run(warnings.warn, "broken file")
    assert capfd.readouterr() == ("", "")


def test_what_takes_too_long_or_crashes_is_ended_and_the_next_call_answered() -> None:
    with open_processes(1, 0.5) as processes:
        with pytest.raises(ExtractionFailure) as slow:
            processes.run(time.sleep, 60)
        with pytest.raises(ExtractionFailure) as crashed:
            processes.run(os._exit, 3)
        assert processes.run(abs, -1) == 1
    assert (slow.value.kind, crashed.value.kind) == ("timeout", "crash")


def test_processes_that_cannot_be_started_are_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "_start_process", os.abort)
    with open_processes(1, 20) as processes, raises("extraction.processes-not-started"):
        processes.run(abs, -1)


@pytest.mark.ci
def test_a_process_ends_with_its_parent_even_if_it_is_busy() -> None:
    code = "import os, time\nfrom gumshoe.extraction.processes import open_processes\n"
    code += "with open_processes(1, 600) as processes:\n print(processes.run(os.getpid), flush=True)\n"
    code += " processes.run(time.sleep, 600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([worker])
    assert not worker.is_running()
