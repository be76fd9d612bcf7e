"""Run a program, and end it with all its children as soon as the parent process is gone.

`python -m gumshoe.inference.reaper [OPTION...] PROGRAM ARGUMENT...` reads a pipe on its standard input. The pipe closes
when the parent closes it, exits, or is killed, which no handler in the parent could detect. The program has some
seconds to exit by itself, and none after a SIGQUIT. A SIGHUP that is ignored at the start, as under nohup, stays
ignored. On Linux, the program is also killed if this process is. Options, before the program:

    --patience SECONDS  time between SIGTERM and SIGKILL
    --group             give that time to the program's child processes too, not only until the program has ended, and
                        end also those that have left its process group (Linux)
    --input FD          standard input of the program; without it, the program has none
    --report FD         write there how the program ended: `exit STATUS`, `signal NUMBER`, or `error TEXT` if it could
                        not be started
    --contain           end also processes that have left the program's process group, and let Linux kill the program
                        before others if memory is used up (Linux)

It imports the standard library only, and can therefore be run as a file by `python -I -S`, with an environment that is
meant for the program.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

_PATIENCE = 10.0  # default seconds between SIGTERM and SIGKILL
_POLL_INTERVAL = 0.5  # seconds between checks if the program still runs, where its end cannot be waited for
_ORPHAN_PATIENCE = 2.0  # seconds for killed orphans to disappear
_OOM_SCORE = "1000"  # the maximum
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl


@dataclass(slots=True)
class _Options:
    command: list[str]
    patience: float = _PATIENCE
    is_group_awaited: bool = False
    input: int = subprocess.DEVNULL
    report: int | None = None
    is_contained: bool = False


def main(arguments: list[str]) -> int:
    """Run the command until it exits or the pipe closes. Return its exit status, or 143 if it was terminated."""
    options = _parse(arguments)
    signals: list[int] = []
    handled = [signal.SIGTERM, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        handled.append(signal.SIGHUP)
    for each in handled:
        signal.signal(each, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, lambda *_: None)  # the parent process decides
    if options.is_contained or options.is_group_awaited:
        _adopt_orphans()
    try:
        program = _start(options)
    except OSError as error:
        if options.report is None:
            raise
        _write_report(options, f"error {error.strerror}")
        return 1
    try:
        return _wait(program, options, signals)
    finally:
        if options.is_contained or options.is_group_awaited:
            _kill_orphans()
        _write_report(options, _describe_end(program.returncode))


def _parse(arguments: list[str]) -> _Options:
    options = _Options(arguments)
    while options.command[0].startswith("--"):
        match options.command:
            case ["--patience", seconds, *rest]:
                options.patience = float(seconds)
            case ["--group", *rest]:
                options.is_group_awaited = True
            case ["--input", descriptor, *rest]:
                options.input = int(descriptor)
            case ["--report", descriptor, *rest]:
                options.report = int(descriptor)
            case ["--contain", *rest]:
                options.is_contained = True
            case _:
                sys.exit(f"unknown option: {options.command[0]}")
        options.command = rest
    return options


def _start(options: _Options) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603
        options.command,
        stdin=options.input,
        start_new_session=True,
        env=_read_own_environment() if options.is_contained else None,
        preexec_fn=_prepare_contained if options.is_contained else _die_with_reaper,
    )


def _read_own_environment() -> dict[bytes, bytes] | None:
    """Return the environment that this process was started with; Python may have added LC_CTYPE to it since."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib takes time to import
            pairs = [each.partition(b"=") for each in file.read().split(b"\0") if each]
    except OSError:
        return None
    return {name: value for name, _, value in pairs}


def _wait(program: "subprocess.Popen[bytes]", options: _Options, signals: list[int]) -> int:
    watched: list[TextIO | int] = [sys.stdin]
    with suppress(AttributeError, OSError):  # not on every system
        watched.append(os.pidfd_open(program.pid))
    while program.poll() is None:
        readable, _, _ = select.select(watched, [], [], _POLL_INTERVAL)
        if signals or (sys.stdin in readable and not os.read(sys.stdin.fileno(), 1024)):
            return _terminate(program, options, signals)
    _signal_group(program, signal.SIGKILL)  # remaining child processes
    return program.returncode


def _terminate(program: "subprocess.Popen[bytes]", options: _Options, signals: list[int]) -> int:
    """End the program and its group. A SIGQUIT ends the time that they have for it."""
    _signal_group(program, signal.SIGTERM)
    started = time.monotonic()
    while _is_running(program, options) and time.monotonic() - started < options.patience:
        if signal.SIGQUIT in signals:
            break
        time.sleep(0.05)
    _signal_group(program, signal.SIGKILL)
    program.wait()
    return 128 + signal.SIGTERM


def _is_running(program: "subprocess.Popen[bytes]", options: _Options) -> bool:
    if program.poll() is None:
        return True
    if not options.is_group_awaited:
        return False
    with suppress(ChildProcessError):  # an adopted process that has ended is in the group until then
        while os.waitpid(-program.pid, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(program.pid, 0)
    except OSError:
        return False
    return True


def _signal_group(program: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.pid, number)


def _adopt_orphans() -> None:
    """Become the parent of processes whose parent ends, in place of the first process of the system."""
    _set_process_option(_SUBREAPER, 1)


def _die_with_reaper() -> None:
    """Let this process be killed if its parent, the reaper, is killed."""
    _set_process_option(_DEATH_SIGNAL, signal.SIGKILL)


def _prepare_contained() -> None:
    """Let this process be killed with the reaper, and before others if memory is used up."""
    _die_with_reaper()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(_OOM_SCORE)


def _set_process_option(option: int, value: int) -> None:
    import ctypes

    with suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(option, value)


def _kill_orphans() -> None:
    """Kill the child processes of this process, and those that they leave behind in turn."""
    children, started = f"/proc/self/task/{os.getpid()}/children", time.monotonic()
    with suppress(OSError):
        while time.monotonic() - started < _ORPHAN_PATIENCE:
            with open(children) as file:  # noqa: PTH123
                pids = [int(each) for each in file.read().split()]
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)


def _describe_end(status: int | None) -> str:
    if status is None:
        return "error unknown"
    return f"exit {status}" if status >= 0 else f"signal {-status}"


def _write_report(options: _Options, text: str) -> None:
    if options.report is not None:
        with suppress(OSError):  # nobody reads it any more
            os.write(options.report, text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
