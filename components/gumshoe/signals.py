"""Handle signals while a block runs."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Install a handler for signals while the block runs, and restore the previous handlers at its end.

    Use it in the main thread. Example: `with handle_signals(stop, signal.SIGTERM, signal.SIGINT): ...`
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
