"""Run programs as agents: one process per episode, in any language."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from tempfile import TemporaryFile, mkdtemp
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.gateway.agent_answers import ReturnedAnswer, read_answer_text
from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.agent_errors import AgentCrashedError, AgentFailedError, shorten
from gumshoe.gateway.agent_task import AgentTask
from gumshoe.inference import reaper
from gumshoe.rollouts.agent_settings import AgentSettings

PATIENCE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
MAX_OUTPUT = 1 << 20
"""Number of bytes at the end of the standard output that are kept."""
MAX_ERRORS = 1 << 14
"""Number of bytes at the end of the standard error that are kept."""
_ERROR_LINES = 5  # last lines of the standard error in a message
_STOP_PATIENCE = 5.0  # seconds for the reaper to end, after those that it gives the program
_PIPE_PATIENCE = 1.0  # seconds for the rest of the output after the reaper has ended
_MAX_REPORT = 1000  # bytes


class ProgramAgent:
    """Run a program. See `gumshoe.gateway.agents.Agent`.

    Each episode has a process with a session of its own, in the working directory of Gumshoe. Its environment has the
    variables that the settings name, OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL and GUMSHOE_MCP_URL, and TMPDIR: an
    empty directory that is removed at the end. Its standard input is the question and the schemas of the tools in JSON.
    The last line of its standard output is the answer, as `read_answer_text` reads it.

    A reaper ends the process with all that it has started: at its end, at the deadline, if the episode is cancelled,
    and if Gumshoe itself is killed.

    Raises:
        UsageError: if the program does not exist.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._command = (_find_program(settings), *settings.command[1:])
        self._slots = asyncio.Semaphore(settings.processes)

    async def __call__(self, task: AgentTask, clock: AgentClock) -> ReturnedAnswer:
        """Run one episode. See `gumshoe.gateway.agents.Agent`."""
        async with self._slots, self._start(task) as process:
            async with clock.limit():
                await asyncio.wait({process.exited})  # which does not cancel it
            end = await process.read_end()
        match end.split(" ", 1):
            case ["exit", "0"]:
                return read_answer_text(process.output.last_line())
            case ["exit", status]:
                errors = process.errors.last_lines(task.api_key)
                raise AgentFailedError("gateway.agent-exited", f"the agent exited with status {status}{errors}")
            case ["signal", number]:
                errors = process.errors.last_lines(task.api_key)
                raise AgentCrashedError(
                    "gateway.agent-killed", f"the agent was killed by {_name_signal(number)}{errors}"
                )
            case ["error", fault]:
                raise _not_started(fault)
        raise AgentCrashedError("gateway.agent-killed", "the process that supervises the agent was killed")

    @asynccontextmanager
    async def _start(self, task: AgentTask) -> AsyncIterator["_Process"]:
        """Start the program, and end it with the block.

        Raises:
            AgentCrashedError: if it cannot be started.
        """
        try:
            directory = mkdtemp(prefix="gumshoe-agent-")
        except OSError as error:
            raise _not_started(error) from None
        spawning = asyncio.create_task(self._spawn(task, directory))
        try:
            try:
                process = await asyncio.shield(spawning)  # a process that is being started cannot be ended
            except OSError as error:
                raise _not_started(error) from None
            yield process
        finally:
            await _finish(_clean_up(spawning, directory))

    async def _spawn(self, task: AgentTask, directory: str) -> "_Process":
        """Start the reaper, which starts the program."""
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            question = stack.enter_context(TemporaryFile())
            question.write(_write_question(task))
            question.seek(0)
            report, report_of_reaper = os.pipe()
            os.set_blocking(report, False)
            stack.callback(os.close, report_of_reaper)
            options = ["--patience", str(PATIENCE), "--input", str(question.fileno())]
            options += ["--report", str(report_of_reaper), "--contain"]
            try:
                transport, protocol = await loop.subprocess_exec(
                    lambda: _Process(report),
                    *(sys.executable, "-I", "-S", reaper.__file__, *options, *self._command),
                    env=self._build_environment(task, directory),
                    pass_fds=(question.fileno(), report_of_reaper),
                    start_new_session=True,  # signals of the terminal do not reach it
                )
            except BaseException:
                os.close(report)
                raise
        protocol.transport = transport
        return protocol

    def _build_environment(self, task: AgentTask, directory: str) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in self._settings.inherit if name in os.environ}
        of_episode = {
            "OPENAI_BASE_URL": task.base_url,
            "OPENAI_API_KEY": task.api_key,
            "OPENAI_MODEL": task.model,
            "GUMSHOE_MCP_URL": task.mcp_url,
        }
        return {**inherited, "TMPDIR": directory, **self._settings.environment, **of_episode}


class _Process(asyncio.SubprocessProtocol):
    """A running reaper with its program."""

    transport: asyncio.SubprocessTransport

    def __init__(self, report: int) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.output, self.errors = _Tail(MAX_OUTPUT), _Tail(MAX_ERRORS)
        self._closed: asyncio.Future[None] = loop.create_future()
        self._report = report

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the end of what the program writes."""
        (self.output if fd == 1 else self.errors).add(data)

    def process_exited(self) -> None:
        """Note that the reaper has ended, and so has the program."""
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncio
        """Note that all output was read."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def read_end(self) -> str:
        """Return how the program has ended, as the reaper reports it, once all output was read."""
        await asyncio.wait({self._closed}, timeout=_PIPE_PATIENCE)
        try:
            return os.read(self._report, _MAX_REPORT).decode()
        except BlockingIOError:
            return ""

    async def stop(self) -> None:
        """End the program if it still runs, and wait until it has ended."""
        if not self.exited.done():
            given = self.transport.get_pipe_transport(0)
            if given is not None:
                given.close()  # the reaper ends the program
            await asyncio.wait({self.exited}, timeout=PATIENCE + _STOP_PATIENCE)
        self.transport.close()  # kills the reaper if it still runs
        await asyncio.wait({self._closed}, timeout=_PIPE_PATIENCE)
        os.close(self._report)


class _Tail:
    """The end of an output."""

    def __init__(self, limit: int) -> None:
        self._limit, self._data, self._is_cut = limit, bytearray(), False

    def add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * self._limit:
            del self._data[: -self._limit]
            self._is_cut = True

    def last_line(self) -> str:
        """Return the last line that is not blank.

        Raises:
            AgentFailedError: if it is too long to be kept.
        """
        before, _, line = self._data.rstrip().rpartition(b"\n")
        if self._is_cut and not before:
            raise AgentFailedError(
                "gateway.agent-answer-invalid",
                f"the last line of the agent's output, which is its answer, has more than {self._limit:,} bytes",
            )
        return line.decode(errors="replace")

    def last_lines(self, key: str) -> str:
        """Return the last lines as the end of a message, without credentials and the key of the episode."""
        lines = deque(filter(None, map(str.strip, self._data.decode(errors="replace").splitlines())), _ERROR_LINES)
        shown = shorten("; ".join(lines), key, from_end=True)
        return f": {shown}" if shown else ""


def _find_program(settings: AgentSettings) -> str:
    """Return the absolute path of the program.

    Raises:
        UsageError: if it does not exist.
    """
    inherited = os.environ.get("PATH") if "PATH" in settings.inherit else None
    found = shutil.which(settings.command[0], path=settings.environment.get("PATH", inherited or os.defpath))
    if found is None:
        raise UsageError(
            "gateway.agent-not-found",
            f"the agent's program does not exist or cannot be executed: {settings.command[0]}; check the command, and "
            "PATH in its environment",
        )
    return os.path.abspath(found)  # noqa: PTH100 - links stay, e.g. of virtual environments


def _write_question(task: AgentTask) -> bytes:
    given = {
        "question": task.question,
        "system_prompt": task.system_prompt,
        "user_prompt": task.user_prompt,
        "query_date": task.query_date.isoformat() if task.query_date else None,
        "inbox_address": task.inbox_address,
        "tools": task.tools.schemas(),
    }
    return json.dumps(given, ensure_ascii=False).encode() + b"\n"


def _name_signal(number: str) -> str:
    with suppress(ValueError):
        return signal.Signals(int(number)).name
    return f"signal {number}"


def _not_started(fault: OSError | str) -> AgentCrashedError:
    return AgentCrashedError("gateway.agent-not-started", f"the agent's program cannot be started: {fault}")


async def _clean_up(spawning: "asyncio.Task[_Process]", directory: str) -> None:
    with suppress(OSError):  # it could not be started
        await (await spawning).stop()
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def _finish(cleanup: Coroutine[Any, Any, None]) -> None:
    """Wait for a cleanup, which goes on even if the caller is cancelled once more."""
    task = asyncio.create_task(cleanup)
    _cleanups.add(task)
    task.add_done_callback(_cleanups.discard)
    await asyncio.shield(task)


_cleanups: set[asyncio.Task[None]] = set()
"""Cleanups that go on; the event loop itself holds tasks only weakly."""
