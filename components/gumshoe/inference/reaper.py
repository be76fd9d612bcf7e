"""Run a program, and end it with all its children as soon as the parent process is gone.

`python -m gumshoe.inference.reaper [--patience SECONDS] PROGRAM ARGUMENT...` reads a pipe on its standard input. The
pipe closes when the parent closes it, exits, or is killed, which no handler in the parent could detect. The program
has some seconds to exit by itself, and none after a SIGQUIT.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_PATIENCE = 10.0  # default seconds between SIGTERM and SIGKILL
_POLL_INTERVAL = 0.5  # seconds between checks if the program still runs


def main(command: list[str]) -> int:
    """Run the command until it exits or the pipe closes. Return its exit status, or 143 if it was terminated."""
    patience = _PATIENCE
    if command[0] == "--patience":
        patience, command = float(command[1]), command[2:]
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, lambda *_: None)  # the parent process decides
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    while program.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_INTERVAL)
        if signals or (readable and not os.read(sys.stdin.fileno(), 1024)):
            return _terminate(program, 0.0 if signal.SIGQUIT in signals else patience)
    _signal_group(program, signal.SIGKILL)  # remaining child processes
    return program.returncode


def _terminate(program: "subprocess.Popen[bytes]", patience: float) -> int:
    _signal_group(program, signal.SIGTERM)
    started = time.monotonic()
    while program.poll() is None and time.monotonic() - started < patience:
        time.sleep(0.05)
    _signal_group(program, signal.SIGKILL)
    program.wait()
    return 128 + signal.SIGTERM


def _signal_group(program: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
