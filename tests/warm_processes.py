"""Start `gumshoe` in processes that are forked from one which has imported it: imports take most of a command's time.

A command has its own arguments, environment and output, like one that is started with `python -m gumshoe`. What
libraries read from the environment when they are imported, e.g. HF_HOME, is that of the test session.

A test session starts one process to fork from, `python -m tests.warm_processes FD`, which gets each request over the
socket FD: four file descriptors, of a file with the request in JSON, of the output, of the errors, and of a socket
that gets the id of the new process and, when it has ended, its exit status.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing.connection import wait  # unlike `select`, it takes any file descriptor
from pathlib import Path
from typing import IO, Protocol

_IMPORTED = (
    "gumshoe.artifacts.s3",
    "gumshoe.environments.search",
    "gumshoe.evaluation.commands",
    "gumshoe.inference.policy_names",
    "gumshoe.mail.commands",
    "gumshoe.rollouts.commands",
    "gumshoe.serving.server",
    "openai",
    "transformers.tokenization_utils_tokenizers",
    "uvicorn.loops.uvloop",
)
_SIZE = 4  # bytes of a number on a socket
_BEFORE_EXIT = 30.0


class Process(Protocol):
    """A running process, as tests use it: a `subprocess.Popen` or a `WarmProcess`."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class WarmProcess:
    """A running command."""

    def __init__(self, status: socket.socket, temporary: Sequence[IO[bytes]]) -> None:
        self._status, self._temporary = status, temporary
        self._output: list[str] = []
        self.returncode: int | None = None
        self.pid = self._read() or 0
        assert self.pid, "the process to fork from has ended"

    def _read(self) -> int | None:
        data = self._status.recv(_SIZE)
        return int.from_bytes(data, signed=True) if data else None

    def poll(self) -> int | None:
        """Return the exit status, or None if the process still runs."""
        if self.returncode is None and wait([self._status], 0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: if it does not end in time.
        """
        if self.returncode is None:
            if not wait([self._status], timeout):
                raise subprocess.TimeoutExpired("gumshoe", timeout or 0)
            found = self._read()
            assert found is not None, "the process to fork from has ended"
            self.returncode = found
            self._status.close()
            for file in self._temporary:
                file.seek(0)
                self._output.append(file.read().decode())
                file.close()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for the end of a process that was started without files, and return its output and errors."""
        self.wait()
        out, err = self._output
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_gumshoe(
    *arguments: object,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> WarmProcess:
    """Start a command in this directory, which writes to open files, by default temporary ones.

    `env` is added to the environment.
    """
    given = (stdout, stderr)
    written: list[IO[bytes]] = [each or tempfile.TemporaryFile() for each in given]  # noqa: SIM115 - the process closes it
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as request:
        variables = {**os.environ, "COLUMNS": "200", **(env or {})}
        words = {"arguments": list(map(str, arguments)), "env": variables, "cwd": str(Path.cwd())}
        request.write(json.dumps(words).encode())
        request.seek(0)
        socket.send_fds(_origin(), [b"-"], [request.fileno(), *(each.fileno() for each in written), theirs.fileno()])
    return WarmProcess(ours, [each for each in written if each not in given])


@cache
def _origin() -> socket.socket:
    """Start the process to fork from, and return its socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "COLUMNS": "200"},
        )

    def end() -> None:
        ours.close()
        process.wait(_BEFORE_EXIT)

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request. Return the arguments of the command in a new process, or None at the end of requests."""
    running: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = wait([requests, woken])
        if woken in ready:
            woken.recv(1024)
            _report_ends(running)
        if requests not in ready:
            continue
        message, files, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            return None
        status = socket.socket(fileno=files[3])
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (requests, woken, wakes, status, *running.values()):
                each.close()
            return _become(*files[:3])
        for file in files[:3]:
            os.close(file)
        running[pid] = status
        status.send(pid.to_bytes(_SIZE, signed=True))


def _report_ends(running: dict[int, socket.socket]) -> None:
    for pid in [*running]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as asked, suppress(OSError):  # nobody waits for it any more
                asked.send(os.waitstatus_to_exitcode(status).to_bytes(_SIZE, signed=True))


def _become(request: int, stdout: int, stderr: int) -> list[str]:
    """Take over the environment, the directory and the files of a request. Return its arguments."""
    with open(request, "rb") as file:
        words = json.load(file)
    os.environ.clear()
    os.environ.update(words["env"])
    os.chdir(words["cwd"])
    for ours, theirs in ((stdout, 1), (stderr, 2)):
        os.dup2(ours, theirs)
        os.close(ours)
    return list(words["arguments"])


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        for name in _IMPORTED:
            import_module(name)
        gc.collect()
        gc.freeze()
        words = _serve(asked)
    if words is not None:
        sys.argv = ["gumshoe", *words]
        runpy.run_module("gumshoe", run_name="__main__", alter_sys=True)
