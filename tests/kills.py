"""Kill programs at a chosen call, to test what they leave behind.

A test passes the code of a program to `run_program`. The program calls `run_killed` once for each point.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_killed(owner: Any, name: str, call: int, run: Callable[[], object]) -> None:
    """Call `run` in a child process, kill it with SIGKILL at a call of `owner.name`, and print its exit code.

    Calls are counted from 1. If there are fewer, `run` ends, and the exit code is 0.
    """
    child = os.fork()  # a new process would take a second to import its modules
    if not child:
        original, calls = getattr(owner, name), itertools.count(1)

        def call_or_kill(*arguments: Any, **options: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        setattr(owner, name, call_or_kill)
        run()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def run_program(code: str, *arguments: str | Path) -> list[int]:
    """Run Python code in a process, and return the exit codes that it prints."""
    environment = {**os.environ, "PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(map(int, ended.stdout.split()))
