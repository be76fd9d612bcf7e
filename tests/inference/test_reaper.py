"""The guardian of a server: however it is asked to end, or left alone, the server ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import wait_until

PATIENCE = 3600  # seconds, which a test cannot wait for
PROGRAM = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@contextmanager
def guarded(program: str = PROGRAM) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """Yield a guardian, and the process id that its program prints."""
    options = ["--patience", str(PATIENCE)]
    command = [sys.executable, "-m", "gumshoe.inference.reaper", *options, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guardian:
        assert guardian.stdout is not None
        yield guardian, int(guardian.stdout.readline())


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def leave(guardian: "subprocess.Popen[bytes]") -> None:
    assert guardian.stdin is not None
    guardian.stdin.close()


def signalled(number: signal.Signals) -> "Callable[[subprocess.Popen[bytes]], None]":
    return lambda guardian: guardian.send_signal(number)


@pytest.mark.parametrize(
    "end",
    [leave, *map(signalled, (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))],
    ids=["pipe", "TERM", "HUP", "QUIT"],
)
def test_the_program_ends_with_who_asked_for_it(end: "Callable[[subprocess.Popen[bytes]], None]") -> None:
    with guarded() as (guardian, program):
        end(guardian)
        assert guardian.wait() == 143
        assert not is_there(program)


def test_a_program_that_will_not_end_is_ended_at_once_where_that_is_asked() -> None:
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); "
    with guarded(f"{deaf}time.sleep(600)") as (guardian, program):
        guardian.send_signal(signal.SIGQUIT)
        assert guardian.wait() == 143
        assert not is_there(program)


def test_an_interrupt_is_left_to_who_asked_for_it() -> None:
    """SIGINT does not end the program: it ends later by itself, with its own exit status and not 143."""
    waits = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); "
    waits += "print(os.getpid(), flush=True); signal.sigwait([signal.SIGUSR1]); sys.exit(7)"
    with guarded(waits) as (guardian, program):
        guardian.send_signal(signal.SIGINT)
        os.kill(program, signal.SIGUSR1)
        assert guardian.wait() == 7


def test_a_program_that_ends_gives_its_status_and_leaves_nothing() -> None:
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); sys.exit(7)"
    with guarded(child) as (guardian, left):
        assert guardian.wait() == 7
    wait_until(lambda: not is_there(left))
