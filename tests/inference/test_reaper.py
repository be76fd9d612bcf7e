"""The reaper ends its program however it is stopped, and if its parent is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gumshoe.inference import reaper as reaper_module
from tests.waiting import wait_until

PATIENCE = 3600  # seconds; longer than any test
PROGRAM = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@contextmanager
def run_reaper(
    program: str = PROGRAM, *options: str, before: tuple[str, ...] = ()
) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """Yield a reaper and the process id that its program prints. `before` is a program that starts the reaper."""
    reaper_command = [sys.executable, "-m", "gumshoe.inference.reaper", "--patience", str(PATIENCE), *options]
    command = [*before, *reaper_command, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reaper:
        assert reaper.stdout is not None
        yield reaper, int(reaper.stdout.readline())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def leave(reaper: "subprocess.Popen[bytes]") -> None:
    assert reaper.stdin is not None
    reaper.stdin.close()


def send_signal(number: signal.Signals) -> "Callable[[subprocess.Popen[bytes]], None]":
    return lambda reaper: reaper.send_signal(number)


@pytest.mark.parametrize(
    "end",
    [leave, *map(send_signal, (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))],
    ids=["pipe", "TERM", "HUP", "QUIT"],
)
def test_the_program_ends_with_its_parent(end: "Callable[[subprocess.Popen[bytes]], None]") -> None:
    with run_reaper() as (reaper, program):
        end(reaper)
        assert reaper.wait() == 143
        assert not is_running(program)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a program that its parent was killed")
def test_the_program_is_killed_if_the_reaper_is_killed() -> None:
    with run_reaper() as (reaper, program):
        reaper.kill()
        wait_until(lambda: not is_running(program))


def test_sigquit_kills_a_program_at_once() -> None:
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); "
    with run_reaper(f"{deaf}time.sleep(600)") as (reaper, program):
        reaper.send_signal(signal.SIGQUIT)
        assert reaper.wait() == 143
        assert not is_running(program)


def test_sigquit_ends_the_time_that_a_program_has() -> None:
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); "
    with run_reaper(f"{deaf} print(os.getpid(), flush=True); time.sleep(600); time.sleep(600)") as (reaper, program):
        leave(reaper)
        assert reaper.stdout is not None
        assert reaper.stdout.readline() == b"asked\n"
        reaper.send_signal(signal.SIGQUIT)
        assert reaper.wait() == 143
        assert not is_running(program)


def test_child_processes_that_outlive_the_program_have_time_to_end() -> None:
    """The program ends at once on SIGTERM, and its child only after it has printed that it saves its state."""
    saving = "import os, signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
    saving += "print(os.getpid(), flush=True); signal.sigwait([signal.SIGTERM]); time.sleep(0.2); print('saved')"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {saving!r}])"
    with run_reaper(program, "--group") as (reaper, child):
        leave(reaper)
        assert reaper.stdout is not None
        assert reaper.stdout.read() == b"saved\n"
        assert reaper.wait() == 143
        assert not is_running(child)


@pytest.mark.parametrize(
    ("number", "before"), [(signal.SIGINT, ()), (signal.SIGHUP, ("nohup",))], ids=["interrupt", "nohup"]
)
def test_a_signal_that_is_not_for_the_reaper_does_not_end_the_program(
    number: signal.Signals, before: tuple[str, ...]
) -> None:
    """The program exits later with its own status, not with 143."""
    waits = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); "
    waits += "print(os.getpid(), flush=True); signal.sigwait([signal.SIGUSR1]); sys.exit(7)"
    with run_reaper(waits, before=before) as (reaper, program):
        reaper.send_signal(number)
        os.kill(program, signal.SIGUSR1)
        assert reaper.wait() == 7


@pytest.mark.ci
def test_the_exit_status_is_passed_on_and_no_process_remains() -> None:
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); sys.exit(7)"
    with run_reaper(child) as (reaper, left):
        assert reaper.wait() == 7
    wait_until(lambda: not is_running(left))


def run_contained(tmp_path: Path, *command: str, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """Run a program with all options, and return its output and how it ended."""
    place = tmp_path / "input"
    place.write_text("a question")
    read_end, write_end = os.pipe()
    with place.open() as given, os.fdopen(read_end) as report:
        options = ["--input", str(given.fileno()), "--report", str(write_end), "--contain"]
        reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper_module.__file__, *options, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(given.fileno(), write_end),
            env=environment or {},
            text=True,
        )
        os.close(write_end)
        with reaper:
            assert reaper.stdout is not None
            return reaper.stdout.read(), report.read()


def test_the_program_gets_input_and_the_environment_of_the_reaper_and_nothing_else(tmp_path: Path) -> None:
    assert run_contained(tmp_path, "/bin/cat") == ("a question", "exit 0")
    assert run_contained(tmp_path, "/usr/bin/env", environment={"A": "ä=1"})[0] == "A=ä=1\n"


@pytest.mark.parametrize(
    ("script", "end"),
    [("exit 3", "exit 3"), ("exit 247", "exit 247"), ("kill -9 $$", "signal 9"), ("kill -SEGV $$", "signal 11")],
)
def test_the_report_tells_a_status_from_a_signal(tmp_path: Path, script: str, end: str) -> None:
    assert run_contained(tmp_path, "/bin/sh", "-c", script) == ("", end)


def test_the_report_says_that_a_program_cannot_be_started(tmp_path: Path) -> None:
    assert run_contained(tmp_path, str(tmp_path / "missing"))[1].startswith("error ")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux can adopt orphans")
def test_processes_that_leave_the_group_of_the_program_end_with_it(tmp_path: Path) -> None:
    script = "{ setsid sh -c 'sleep 600 & echo $!; exec sleep 600' & } | { read pid; echo $pid; }"
    output, end = run_contained(tmp_path, "/bin/sh", "-c", script)
    assert end == "exit 0"
    assert [each for each in map(int, output.split()) if is_running(each)] == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux can adopt orphans")
def test_processes_that_leave_the_group_end_after_the_time_of_the_group() -> None:
    program = "import subprocess, time; p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    program += "print(p.pid, flush=True); time.sleep(600)"
    with run_reaper(program, "--group") as (reaper, left):
        leave(reaper)
        assert reaper.wait() == 143
        assert not is_running(left)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux can kill processes whose parent ends")
def test_the_program_is_killed_if_it_kills_the_reaper(tmp_path: Path) -> None:
    output, end = run_contained(tmp_path, "/bin/sh", "-c", "echo $$; kill -9 $PPID; exec sleep 600")
    assert end == ""
    wait_until(lambda: not is_running(int(output)))
