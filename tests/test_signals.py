"""Test signal handlers that are installed while a block runs."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from gumshoe.signals import delay_signals, handle_signals

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2)


def test_signals_are_handled_in_the_block_only() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    received: list[int] = []
    with handle_signals(lambda number, _: received.append(number), *NUMBERS):
        for number in NUMBERS:
            signal.raise_signal(number)
    assert received == [*NUMBERS]
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_the_previous_handlers_are_restored_after_an_error() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]

    def stop(*_: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError), handle_signals(stop, *NUMBERS):
        signal.raise_signal(signal.SIGUSR1)
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_a_signal_of_the_terminal_that_is_ignored_stays_ignored() -> None:
    """`nohup` ignores SIGHUP, and the background of a script ignores SIGINT."""
    received: list[int] = []
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with handle_signals(lambda number, _: received.append(number), *before):
            for number in before:
                signal.raise_signal(number)
        assert [signal.getsignal(number) for number in before] == [signal.SIG_IGN] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert received == [signal.SIGTERM]


def test_signals_wait_until_a_block_has_ended() -> None:
    done: list[str] = []

    def work() -> None:
        with delay_signals():
            with delay_signals():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]


def test_the_error_of_a_block_wins_over_its_signals() -> None:
    def fail() -> None:
        with delay_signals():
            signal.raise_signal(signal.SIGINT)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()


def test_signals_are_not_delayed_in_other_threads() -> None:
    """Only the main thread may set handlers."""
    with ThreadPoolExecutor() as pool:

        def run() -> bool:
            with delay_signals():
                return True

        assert pool.submit(run).result()
