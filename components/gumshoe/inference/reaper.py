"""Runs a program and ends it, with all that it started, as soon as whoever asked for it is gone.

`python -m gumshoe.inference.reaper [--patience SECONDS] PROGRAM ARGUMENT...` holds one end of a pipe as its standard
input. The pipe closes when the asking process closes it, ends, or is killed; a kill is the one ending that no handler
of its own could see. The program is given some seconds to end by itself, and none after a SIGQUIT.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_PATIENCE = 10.0  # seconds between asking a program to end and ending it, unless given
_LOOK = 0.5  # seconds between two looks at whether it still runs


def main(command: list[str]) -> int:
    """Run the command until it or the pipe ends: its exit status, or 143 where it was ended."""
    patience = _PATIENCE
    if command[0] == "--patience":
        patience, command = float(command[1]), command[2:]
    asked_to_end: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: asked_to_end.append(number))
    signal.signal(signal.SIGINT, lambda *_: None)  # the asking process decides
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    while program.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK)
        if asked_to_end or (readable and not os.read(sys.stdin.fileno(), 1024)):
            return _end(program, 0.0 if signal.SIGQUIT in asked_to_end else patience)
    _signal_group(program, signal.SIGKILL)  # what it left behind
    return program.returncode


def _end(program: "subprocess.Popen[bytes]", patience: float) -> int:
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
