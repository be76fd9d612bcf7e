"""Errors of damaged indexes."""

from pathlib import Path

import apsw
import pytest

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.errors import GumshoeError, UsageError
from tests.errors import raises

PLACE = Path("some/index")


def read_badly(error: BaseException, *, content: bool) -> None:
    with explain_damage(PLACE, content=content):
        raise error


@pytest.mark.parametrize("error", [IndexError(7), ValueError(), OverflowError(), MemoryError(), apsw.MismatchError()])
def test_errors_of_content_are_damage_only_where_an_index_is_read(error: Exception) -> None:
    with raises("store.index-damaged", PLACE, type(error).__name__) as found:
        read_badly(error, content=True)
    assert found.value.__cause__ is error
    with pytest.raises(type(error)):
        read_badly(error, content=False)


def test_other_errors_keep_their_class() -> None:
    for error in (UsageError("mail.invalid-limit", "x"), KeyboardInterrupt(), OSError("disk")):
        with pytest.raises(type(error)):
            read_badly(error, content=True)


def test_errors_of_sqlite_are_damage_or_temporary() -> None:
    for error, code in ((apsw.CorruptError(), "store.index-damaged"), (apsw.IOError(), "store.index-unreadable")):
        with raises(code, PLACE) as found:
            read_badly(error, content=False)
        assert isinstance(found.value, GumshoeError)
