"""Run the episodes of an agent server in worker processes, which share its index, its limits and its metrics.

The server itself answers HTTP and MCP, checks access, and decides what runs when. A worker is given one episode after
the other, and sends its steps, audit lines and result back.
"""

import asyncio
import itertools
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace

from gumshoe.errors import GumshoeError
from gumshoe.inference.policy import PolicyError
from gumshoe.rollouts.answer import Answer, AnswerStep
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.serving.audit_log import write_line
from gumshoe.serving.errors import ModelNotReadyError
from gumshoe.serving.telemetry import Metrics
from gumshoe.serving.worker_messages import (
    CancelJob,
    EpisodeJob,
    JobAudit,
    JobEnd,
    JobStep,
    MessageChannel,
    WorkerAlive,
    WorkerReady,
    WorkerStart,
)

_START_DEADLINE = 300.0  # seconds for a worker to open the index and its embedding model
_END_DEADLINE = 5.0  # seconds for a worker to end
_PAUSES = (0.5, 30.0)  # shortest and longest pause before a worker that ended is started again, in seconds
_SILENCE = 6  # pulses without a message, after which a worker is stuck
_MAX_CANCELLED = 1000  # episodes whose contexts are kept
_LONG = 60.0  # seconds after which a worker counts as stable

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pending:
    """An episode in progress."""

    end: "asyncio.Future[tuple[Answer, Trajectory]]"
    on_step: Callable[[AnswerStep], object]
    context: Context
    """Context variables of its request, for audit lines."""


@dataclass(slots=True, eq=False)
class _WorkerProcess:
    """A running worker process."""

    process: asyncio.subprocess.Process
    channel: MessageChannel
    pending: dict[int, _Pending] = field(default_factory=dict)
    heard: int = 0
    """Number of messages."""
    silent: int = 0
    """Number of pulses without a message."""
    cancelled: dict[int, Context] = field(default_factory=dict)
    """Contexts of the last episodes that were cancelled: their tool calls go on, and then write audit lines."""

    async def read(self) -> None:
        """Handle messages until the process ends."""
        with suppress(EOFError, ConnectionError):
            while True:
                message = await self.channel.receive()
                self.heard += 1
                if isinstance(message, WorkerAlive):
                    continue
                found = self.pending.get(message.number)
                if isinstance(message, JobAudit):
                    if context := found.context if found else self.cancelled.get(message.number):
                        context.run(write_line, message.fields)
                elif found is None:
                    continue
                elif isinstance(message, JobStep):
                    found.on_step(message.step)
                elif isinstance(message, JobEnd) and not found.end.done():
                    if message.result is not None:
                        found.end.set_result(message.result)
                    else:
                        found.end.set_exception(message.error or AssertionError("an end without result"))

    def cancel(self, number: int) -> None:
        """Cancel an episode."""
        self.channel.send(CancelJob(number))
        self.cancelled[number] = self.pending[number].context
        if len(self.cancelled) > _MAX_CANCELLED:
            del self.cancelled[next(iter(self.cancelled))]

    async def watch(self, pulse: float) -> None:
        """Kill the process if it is stuck, so that its questions fail at once and new ones go to another one."""
        while self.silent < _SILENCE:  # counted, because the server itself may have been stopped for a while
            before = self.heard
            await asyncio.sleep(pulse)
            self.silent = self.silent + 1 if self.heard == before else 0
        _log.error("a worker process has been silent for %g seconds and is killed", _SILENCE * pulse)
        self.process.kill()

    def fail_pending(self) -> None:
        """End all episodes in progress with an error."""
        for each in self.pending.values():
            if not each.end.done():
                each.end.set_exception(
                    _WorkerLostError("serving.worker-lost", "the process of this question has ended")
                )


class _WorkerLostError(PolicyError):
    """Report that the process of an episode ended."""


class EpisodeWorkers:
    """Worker processes. Use it with `open_workers`.

    A worker that ends or is stuck is started again, at first after half a second. Its episodes run again in another one
    if they had no step yet, and fail otherwise.
    """

    def __init__(self, start: WorkerStart, metrics: Metrics) -> None:
        self._start, self._metrics = start, metrics
        self._alive: list[_WorkerProcess] = []
        self._numbers = itertools.count(1)
        metrics.workers.set_function(lambda: float(len(self._alive)))

    @property
    def problem(self) -> str:
        """Why no episode can run; empty if one can."""
        return "" if self._alive else "no worker process is running"

    async def answer(self, job: EpisodeJob, on_step: Callable[[AnswerStep], object]) -> tuple[Answer, Trajectory]:
        """Run an episode in the worker that has the fewest, and return its answer and trajectory.

        Raises:
            ModelNotReadyError: if there is no worker at the moment.
            PolicyError: if the worker ended, or the policy failed.
            GumshoeError: as `Answerer.answer`.
        """
        has_begun = False

        def note(step: AnswerStep) -> None:
            nonlocal has_begun
            has_begun = True
            on_step(step)

        try:
            return await self._answer_once(job, note)
        except _WorkerLostError:
            if has_begun:
                raise
            return await self._answer_once(job, on_step)

    async def _answer_once(self, job: EpisodeJob, on_step: Callable[[AnswerStep], object]) -> tuple[Answer, Trajectory]:
        worker = min(self._alive, key=lambda each: (each.silent > 1, len(each.pending)), default=None)
        if worker is None:
            raise ModelNotReadyError(self.problem)
        number = next(self._numbers)
        pending = _Pending(asyncio.get_running_loop().create_future(), on_step, copy_context())
        worker.pending[number] = pending
        worker.channel.send(replace(job, number=number))
        try:
            return await pending.end
        except asyncio.CancelledError:
            worker.cancel(number)
            raise
        finally:
            del worker.pending[number]

    async def keep_running(self, opened: "asyncio.Future[None]") -> None:
        """Run one worker after the other. `opened` is set when the first one is ready, or could not start."""
        shortest, longest = _PAUSES
        pause = shortest
        while True:
            started = time.monotonic()
            try:
                async with self._run_process() as worker:
                    if not opened.done():
                        opened.set_result(None)
                    await worker.read()
                    status = await worker.process.wait()
                why = f"ended with status {status}"
            except GumshoeError as error:
                if not opened.done():
                    opened.set_exception(error)
                    return
                why = f"did not start: {error.message_with_code}"
            except Exception as error:  # noqa: BLE001 - or no other one would start, e.g. if a message is damaged
                _log.exception("a worker process is given up")
                why = f"is given up: {type(error).__name__}"
            self._metrics.worker_restarts.inc()
            if time.monotonic() - started > _LONG:
                pause = shortest
            _log.error("a worker process %s; another one starts in %g seconds", why, pause)
            await asyncio.sleep(pause)
            pause = min(longest, 2 * pause)

    @asynccontextmanager
    async def _run_process(self) -> AsyncIterator[_WorkerProcess]:
        """Run a worker while the block runs.

        Raises:
            GumshoeError: if it cannot open what it needs.
        """
        process, channel = await _spawn()
        worker = _WorkerProcess(process, channel)
        watch: asyncio.Task[None] | None = None
        try:
            channel.send(self._start)
            await _wait_until_ready(channel)
            watch = asyncio.create_task(worker.watch(self._start.pulse))
            self._alive.append(worker)
            yield worker
        finally:
            if watch is not None:
                watch.cancel()
            if worker in self._alive:
                self._alive.remove(worker)
            worker.fail_pending()
            channel.close()  # which ends the process
            await _end(process)


async def _spawn() -> tuple[asyncio.subprocess.Process, MessageChannel]:
    """Start a process, and return it with our end of its channel.

    Raises:
        GumshoeError: if the system does not start it.
    """
    try:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "gumshoe.serving.episode_worker", str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C reaches the server only, which answers what it has accepted
                )
            except BaseException:
                ours.close()
                raise
    except OSError as error:  # e.g. no memory, or too many processes or open files
        raise GumshoeError(
            "serving.worker-not-ready", f"cannot start a worker process: {error}; see the limits of this machine"
        ) from None
    return process, await MessageChannel.open(ours)


async def _wait_until_ready(channel: MessageChannel) -> None:
    try:
        async with asyncio.timeout(_START_DEADLINE):
            ready: WorkerReady = await channel.receive()
    except TimeoutError:
        raise GumshoeError(
            "serving.worker-not-ready", f"a worker process was not ready within {_START_DEADLINE:g} seconds"
        ) from None
    except (EOFError, ConnectionError):
        raise GumshoeError(
            "serving.worker-not-ready", "a worker process ended before it was ready; see its output above"
        ) from None
    if ready.error is not None:
        raise ready.error


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_END_DEADLINE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@asynccontextmanager
async def open_workers(count: int, start: WorkerStart, metrics: Metrics) -> AsyncIterator[EpisodeWorkers]:
    """Run this number of workers while the block runs. All are ready when it begins.

    Raises:
        GumshoeError: if one does not start.
    """
    workers = EpisodeWorkers(start, metrics)
    loop = asyncio.get_running_loop()
    opened = [loop.create_future() for _ in range(count)]
    running = [asyncio.create_task(workers.keep_running(each)) for each in opened]
    try:
        await asyncio.gather(*opened)
        yield workers
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, *opened, return_exceptions=True)
