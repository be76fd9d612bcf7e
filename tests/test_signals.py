"""Test signal handlers that are installed while a block runs."""

import signal

import pytest

from gumshoe.signals import handle_signals

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
