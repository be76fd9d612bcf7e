"""A worker process of the agent server: run episodes, as `python -m gumshoe.serving.episode_worker FD`.

FD is its end of a socket pair. It ends when the server closes the other end, or is gone.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import uvloop
from asgi_correlation_id import correlation_id

from gumshoe.environments.registry import open_env
from gumshoe.errors import GumshoeError
from gumshoe.rollouts.answer import Answer, Answerer, AnswerStep
from gumshoe.rollouts.episode import EpisodeRunner
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.serving.audit_log import AuditLog, record_policy
from gumshoe.serving.garbage_collection import prepare_garbage_collection
from gumshoe.serving.served_policies import open_served_policy, prepare_environment
from gumshoe.serving.telemetry import log_as_json
from gumshoe.serving.usage_budgets import UsageBudgets, meter_usage
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
    to_portable,
)

_log = logging.getLogger(__name__)


class EpisodeWorker:
    """Run the episodes that the server asks for."""

    def __init__(
        self,
        channel: MessageChannel,
        start: WorkerStart,
        answerer: Answerer,
        budgets: UsageBudgets,
        stack: AsyncExitStack,
    ) -> None:
        self._channel, self._start, self._answerer = channel, start, answerer
        self._budgets, self._stack = budgets, stack
        self._policies = {each.name.version: each for each in start.policies}
        self._runners: dict[str, asyncio.Task[EpisodeRunner]] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def work(self) -> None:
        """Run episodes until the other end of the channel is closed."""
        try:
            while True:
                message = await self._channel.receive()
                if isinstance(message, EpisodeJob):
                    task = self._tasks[message.number] = asyncio.create_task(self._run(message))
                    task.add_done_callback(lambda _, number=message.number: self._tasks.pop(number))  # type: ignore[misc]
                elif isinstance(message, CancelJob) and (running := self._tasks.get(message.number)):
                    running.cancel()
        except (EOFError, ConnectionError):
            tasks = list(self._tasks.values())
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: EpisodeJob) -> None:
        try:
            self._channel.send(JobEnd(job.number, result=await self._answer(job)))
        except GumshoeError as error:
            self._channel.send(JobEnd(job.number, error=to_portable(error)))
        except Exception as error:  # noqa: BLE001 - or the server would wait for ever
            _log.exception("an episode failed")
            self._channel.send(JobEnd(job.number, error=RuntimeError(f"{type(error).__name__} in a worker process")))

    async def _answer(self, job: EpisodeJob) -> tuple[Answer, Trajectory]:
        correlation_id.set(job.request_id)
        if job.principal is not None:
            AuditLog(self._forward_audit(job.number)).start_trail(job.principal)
            record_policy(job.policy)
        run, meter = (
            await self._open_runner(job.policy),
            meter_usage(self._budgets, job.caller, self._start.model.limits.max_tokens),
        )

        def report(step: AnswerStep) -> None:  # also called by tools' threads
            self._loop.call_soon_threadsafe(self._channel.send, JobStep(job.number, step))

        found = await self._answerer.answer(job.scenario, run, job.seed, report, job.sample, meter)
        await asyncio.sleep(0)  # steps that threads have reported come first
        return found

    def _forward_audit(self, number: int) -> logging.Logger:
        """Return a logger that sends audit lines to the server, which writes those of all processes."""
        send, loop = self._channel.send, self._loop

        class Forward(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                loop.call_soon_threadsafe(send, JobAudit(number, record.__dict__["fields"]))

        logger = logging.Logger("gumshoe.audit", logging.INFO)
        logger.addHandler(Forward())
        return logger

    async def _open_runner(self, policy: str) -> EpisodeRunner:
        """Return what runs the episodes of a policy, opened once. If that fails, the next question tries again."""
        if policy not in self._runners:
            opening = open_served_policy(self._policies[policy], self._start.model, self._start.limits.deadline)
            task = self._runners[policy] = asyncio.create_task(self._stack.enter_async_context(opening))
            task.add_done_callback(partial(self._forget_failed, policy))  # also if no question waits any more
        return await asyncio.shield(self._runners[policy])

    def _forget_failed(self, policy: str, opened: "asyncio.Task[EpisodeRunner]") -> None:
        if opened.cancelled() or opened.exception() is not None:
            del self._runners[policy]


async def _work(end: socket.socket) -> None:
    channel = await MessageChannel.open(end)
    try:
        start: WorkerStart = await channel.receive()
    except EOFError:
        return
    if start.logs_json:
        log_as_json()
    limits = start.limits
    async with ToolThreads() as threads, AsyncExitStack() as stack:
        try:
            env_factory = await prepare_environment(open_env(start.index, start.environment), start.policies[0])
            budgets = UsageBudgets(limits.tokens_per_day, limits.calls_per_day, limits.usage_file)
        except GumshoeError as error:
            channel.send(WorkerReady(to_portable(error)))
            return
        finally:
            await channel.flush()
        stack.callback(budgets.close)
        answerer = Answerer(env_factory, start.model.limits.episode, threads)
        worker = EpisodeWorker(channel, start, answerer, budgets, stack)
        prepare_garbage_collection()
        channel.send(WorkerReady())
        pulse = asyncio.create_task(_send_pulse(channel, start.pulse))
        try:
            await worker.work()
        finally:
            pulse.cancel()


async def _send_pulse(channel: MessageChannel, every: float) -> None:
    """Show the server that this process is not stuck."""
    while True:
        await asyncio.sleep(every)
        channel.send(WorkerAlive())


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Run as a worker process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server ends its workers after it has answered everything
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(socket.socket(fileno=int(arguments[0]))))


if __name__ == "__main__":
    main()
