"""Handle signals while a block runs."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def stays_ignored(number: int) -> bool:
    """Return True if a signal of the terminal is ignored, e.g. SIGHUP under nohup, or SIGINT in a script's background.

    Such a signal must not be handled: it would end what was started to outlive the terminal.
    """
    return number in _OF_TERMINAL and signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Install a handler for signals while the block runs, and restore the previous handlers at its end.

    Signals of the terminal that are ignored stay ignored (see `stays_ignored`). Use it in the main thread. Example:
    `with handle_signals(stop, signal.SIGTERM, signal.SIGINT): ...`
    """
    before = {number: signal.signal(number, handler) for number in numbers if not stays_ignored(number)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def delay_signals() -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP that arrive while the block runs at its end.

    Use it for blocks of at most some seconds, after which what they change is whole. In a thread other than the main
    one, which gets no signals, this does nothing. If the block fails, its error wins.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    with handle_signals(lambda number, _: received.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
    for number in received:
        signal.raise_signal(number)


_exiting = threading.Event()


def _exit_once(number: int, _: FrameType | None) -> None:
    if not _exiting.is_set():
        _exiting.set()
        raise SystemExit(128 + number)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that what it made for its own use is removed.

    Only the first one counts, because a terminal that is closed sends several, also in a block inside another one. In a
    thread other than the main one, which gets no signals, this does nothing.

    Raises:
        SystemExit: with status 128 plus the number of the signal that was received.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is _exit_once:
        yield
        return
    _exiting.clear()
    with handle_signals(_exit_once, signal.SIGTERM, signal.SIGHUP):
        yield
