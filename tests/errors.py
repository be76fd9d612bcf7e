"""What tests check of an error: its code, and the values in its message, never the sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gumshoe.errors import GumshoeError


@contextmanager
def raises(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[GumshoeError]]:
    """Expect an error with this code whose message contains each of the values, e.g. a path, a line or a key."""
    with pytest.raises(GumshoeError) as raised:
        yield raised
    check_error(raised.value, code, *values)


def check_error(error: BaseException, code: str, *values: object) -> None:
    """Check an error's code, and that its message contains each of the values."""
    assert isinstance(error, GumshoeError), repr(error)
    assert error.code == code, error.message_with_code
    for value in values:
        assert str(value) in error.message
