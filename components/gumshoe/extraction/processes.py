"""Run functions on hostile input in separate processes, which are killed if they take too long.

Hostile files can keep a parser busy for hours, fill the memory or crash the interpreter.
"""

import asyncio
import logging
import multiprocessing
import os
import resource
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

from gumshoe.errors import UnavailableError

if TYPE_CHECKING:
    from pebble import ProcessPool

Result = TypeVar("Result")
FailureKind = Literal["timeout", "crash", "memory"]
MAX_MEMORY = 4 << 30
"""Number of bytes that one process may map."""
_CALLS_PER_PROCESS = 500


class ExtractionFailure(Exception):  # noqa: N818 - a result of a file, not an error of the user
    """A function did not finish within the limits. `kind` says which limit it exceeded."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class BoundedProcesses:
    """Call functions in processes, each call within a time limit in seconds."""

    def __init__(self, pool: "ProcessPool", seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds

    def with_limit(self, seconds: float) -> "BoundedProcesses":
        """Return the same processes with another time limit."""
        return BoundedProcesses(self._pool, seconds)

    def run(self, function: Callable[..., Result], *args: object) -> Result:
        """Call a function in a process and return its result.

        Raises:
            ExtractionFailure: if it takes too long, runs out of memory, or crashes its process.
            UnavailableError: if no process can be started.
        """
        with self._explain_errors():
            return self._submit(function, *args).result()

    async def run_async(self, function: Callable[..., Result], *args: object) -> Result:
        """Work like `run`, without blocking the event loop."""
        with self._explain_errors():
            return await asyncio.wrap_future(self._submit(function, *args))

    def _submit(self, function: Callable[..., Result], *args: object) -> "Future[Result]":
        # The time limit covers the work itself, not the wait for a free process.
        submitted: Future[Result] = self._pool.schedule(function, args=args, timeout=self._seconds)
        return submitted

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        from pebble import ProcessExpired

        try:
            yield
        except TimeoutError:
            raise ExtractionFailure("timeout", f"text extraction took more than {self._seconds:g} seconds") from None
        except ProcessExpired as error:
            raise ExtractionFailure("crash", f"the process that extracts its text crashed ({error})") from None
        except MemoryError:
            raise ExtractionFailure("memory", "text extraction ran out of memory") from None
        except BrokenProcessPool:
            raise UnavailableError(
                "extraction.processes-not-started",
                "the processes that read files cannot be started; see what they printed, and if this is a script, put "
                'what it does under `if __name__ == "__main__":`',
            ) from None


@contextmanager
def open_processes(count: int, seconds: float, preload: tuple[str, ...] = ()) -> Iterator[BoundedProcesses]:
    """Yield `count` processes, which start when they are first used and end with the block.

    `preload` names the modules to import once for all processes.
    """
    from pebble import ProcessPool

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    with ProcessPool(count, max_tasks=_CALLS_PER_PROCESS, initializer=_start_process, context=context) as pool:
        yield BoundedProcesses(pool, seconds)


def end_with_parent() -> None:
    """End this process, which `multiprocessing` has started, as soon as the process that started it is gone.

    A parser would go on otherwise, without a limit of time, if that process was killed. One that never lets other
    threads of Python run ends only after its file.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


def _start_process() -> None:
    """Limit the memory of this process, and let parsers be quiet: what is wrong with a file is in its result."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY if hard_limit == resource.RLIM_INFINITY else min(MAX_MEMORY, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
    logging.disable()
    warnings.simplefilter("ignore")
    end_with_parent()
