"""Base classes of all errors that Gumshoe raises for its users.

An error has a stable code, such as `mail.unreadable-mbox`, and a message of the form *what is wrong: what was found;
what to do*. The command line prints both without a traceback and exits with the exit status of the class. `error_codes`
lists the codes with their causes and remedies.
"""

import warnings
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MOST_SHOWN = 60  # characters of a value in a message
_WITHOUT_VALUE = ("missing", "extra_forbidden", "value_error")  # the value does not matter, or is in the message


class GumshoeError(Exception):
    """Report a failure. Exit status 1.

    Args:
        code: `<area>.<problem>`, listed in the `errors.toml` of the package that raises it.
        message: what is wrong: what was found; what to do. Custom environments and rewards may pass the message
            alone; its code is then `plugins.no-code`.
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, code: str, message: str | None = None) -> None:
        if message is None:
            code, message = "plugins.no-code", code
            warnings.warn("errors take a code and a message", DeprecationWarning, stacklevel=2)
        super().__init__(code, message)
        self.code, self.message = code, message
        self.add_note(f"[{code}]")  # shown at the end of tracebacks, e.g. of pipeline steps

    def __str__(self) -> str:
        return self.message

    @property
    def message_with_code(self) -> str:
        """The message and, at its end, the code, as users see them."""
        return f"{self.message} [{self.code}]"


class UsageError(GumshoeError):
    """Report wrong arguments or settings. Exit status 2."""

    exit_status = 2


class RefusedError(GumshoeError):
    """Report a negative result, e.g. a gate that fails. Exit status 3."""

    exit_status = 3


class UnavailableError(GumshoeError):
    """Report that an external service failed; a later attempt may succeed. Exit status 75 (EX_TEMPFAIL)."""

    exit_status = 75


def describe_validation_error(error: "ValidationError", most: int = 5, *, with_values: bool = False) -> str:
    """Return the key and the reason of each fault that pydantic found, up to `most` of them.

    With `with_values`, the wrong values are added; they must not be secret.
    """
    return "; ".join(_describe_fault(each, with_values) for each in islice(error.errors(), most))


def _describe_fault(fault: "ErrorDetails", with_value: bool) -> str:
    key, kind = ".".join(map(str, fault["loc"])), fault["type"]
    why = "must be a mapping" if kind in ("model_type", "dict_type") else fault["msg"].removeprefix("Value error, ")
    found = f", got {shorten_value(fault['input'])}" if with_value and kind not in _WITHOUT_VALUE else ""
    return f"{key}: {why[:1].lower()}{why[1:]}{found}".removeprefix(": ")


def shorten_value(value: object) -> str:
    """Return a value as in Python code, cut to a length that fits into a message."""
    shown = repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
