"""Run agents in threads of their own, so that one that blocks delays neither the gateway nor the end of the process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar, cast

from gumshoe.gateway.agent_errors import AgentsHangError

T = TypeVar("T")
MAX_THREADS = 1024
"""Maximum number of threads of all agents, and of abandoned episodes."""
GRACE = 5.0
"""Seconds for an agent to end after it was cancelled; then it is abandoned."""
_live: set[object] = set()  # an entry for each thread that has not ended, and for each abandoned run
_lock = threading.Lock()
_current: "AgentLoop | None" = None


class AgentLoop:
    """An event loop in a thread, for the agents of all episodes: HTTP clients that agents share stay in one loop.

    Functions that are not async run in threads of their own, also those of libraries that use `asyncio.to_thread` or
    the loop's executor. Threads do not keep the process from ending.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_AgentThreads())
        self._runs = set[_Run]()
        self._is_retired = False
        _start_thread(self._serve)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while self._runs or not self._is_retired:
            with suppress(SystemExit, KeyboardInterrupt):  # of a task that an agent has started
                self._loop.run_forever()
        self._loop.close()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "_Run":
        """Start a coroutine with a copy of the caller's context."""
        run = _Run(coroutine, asyncio.get_running_loop().create_future())
        self._loop.call_soon_threadsafe(self._start, run)
        return run

    async def wait(self, run: "_Run") -> Any:
        """Wait for a coroutine, and return its result.

        If the caller is cancelled, the coroutine is cancelled too. It is abandoned if it does not end soon; if it
        blocks the loop, later calls of `run_agent` use another one.

        Raises:
            BaseException: if the coroutine raises it, e.g. SystemExit.
        """
        try:
            await asyncio.wait({run.ended})
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # the loop has ended, with this run
                self._loop.call_soon_threadsafe(run.cancel)
            await asyncio.wait({run.ended}, timeout=GRACE)
            self._abandon(run)
            raise
        result, error = run.ended.result()
        if error is not None:
            raise error
        return result

    def _start(self, run: "_Run") -> None:
        self._runs.add(run)
        self._loop.create_task(run.contain()).add_done_callback(lambda _: self._end(run))

    def _end(self, run: "_Run") -> None:
        self._runs.discard(run)
        _live.discard(run)
        if self._is_retired and not self._runs:
            self._loop.stop()

    def _abandon(self, run: "_Run") -> None:
        """Count a cancelled run that has not ended, and leave the loop if it is blocked."""
        if not run.has_ended:
            _live.add(run)
        if run.has_ended:  # just now
            _live.discard(run)
        if not (run.is_cancelled or run.has_ended):
            _leave(self)
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._retire)

    def _retire(self) -> None:
        """End the loop with its last run."""
        self._is_retired = True
        if not self._runs:
            self._loop.stop()


class _Run:
    """A coroutine that runs in the loop of agents."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], ended: "asyncio.Future[Any]") -> None:
        self._coroutine, self._caller = coroutine, ended.get_loop()
        self.ended = ended
        """Done with the result and the exception of the coroutine."""
        self._task: asyncio.Task[Any] | None = None
        self.is_cancelled = self.has_ended = False

    def cancel(self) -> None:
        """Cancel it. Called in the loop, which does not get to it while it is blocked."""
        self.is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def contain(self) -> None:
        """Run the coroutine, and pass its result or its exception on to the caller."""
        self._task = asyncio.current_task()
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = await self._coroutine, None
        except BaseException as error:  # noqa: BLE001 - raised again by `AgentLoop.wait`
            outcome = None, error
        self.has_ended = True
        with suppress(RuntimeError):  # the caller's loop is closed
            self._caller.call_soon_threadsafe(self._set_outcome, outcome)

    def _set_outcome(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)


class _AgentThreads(ThreadPoolExecutor):
    """Run each function in a new thread, which does not keep the process from ending."""

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*arguments, **named)
            except StopIteration as error:  # which no future takes
                future.set_exception(RuntimeError(f"StopIteration: {error}"))
            except BaseException as error:  # noqa: BLE001 - for the one that waits for the result
                future.set_exception(error)
            else:
                future.set_result(result)

        _start_thread(work)
        return future


def _check_count() -> None:
    """Raise AgentsHangError if there are too many threads and abandoned runs."""
    if len(_live) >= MAX_THREADS:
        raise AgentsHangError(
            "gateway.agents-hang",
            f"{len(_live)} threads or episodes of agents have not ended; an agent must end when its deadline has "
            "passed, or be a command, whose processes can be killed",
        )


def _start_thread(work: Callable[[], None]) -> None:
    """Start a thread.

    Raises:
        AgentsHangError: if there are too many.
    """
    _check_count()
    entry = object()

    def run() -> None:
        try:
            work()
        finally:
            _live.discard(entry)

    _live.add(entry)
    try:
        threading.Thread(target=run, name="agent", daemon=True).start()
    except RuntimeError:
        _live.discard(entry)
        raise


def _leave(loop: AgentLoop) -> None:
    global _current
    with _lock:
        _current = None if _current is loop else _current


async def run_agent(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of an agent in the event loop of agents. See `AgentLoop.wait`.

    Raises:
        AgentsHangError: if too many agents have not ended.
    """
    global _current
    try:
        _check_count()
        with _lock:  # a loop that is left ends with the runs that were started before
            loop = _current = _current or AgentLoop()
            run = loop.start(coroutine)
    except AgentsHangError:
        coroutine.close()
        raise
    return cast(T, await loop.wait(run))
