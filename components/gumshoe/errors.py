"""The root of every error that Gumshoe raises for its users.

A message says what was wrong, where, and what to do; the command line prints it without a traceback and
ends with the class's exit status.
"""

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError


class GumshoeError(Exception):
    """Something failed. Exit status 1."""

    exit_status: ClassVar[int] = 1


class UsageError(GumshoeError):
    """The request cannot be carried out as it was put. Exit status 2."""

    exit_status = 2


class RefusedError(GumshoeError):
    """The work was done and the answer is no, as when a gate refuses. Exit status 3."""

    exit_status = 3


class UnavailableError(GumshoeError):
    """Something outside did not answer; the same request may succeed later. Exit status 75 (EX_TEMPFAIL)."""

    exit_status = 75


def faults_of(error: "ValidationError", most: int = 5) -> str:
    """What is wrong in data that was checked, and where."""
    told = ((".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")) for each in error.errors())
    return "; ".join(f"{where}: {said[:1].lower()}{said[1:]}".removeprefix(": ") for where, said in islice(told, most))
