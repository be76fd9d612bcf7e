"""Base classes of all errors that Gumshoe raises for its users.

An error has a stable code, such as `mail.unreadable-mbox`, and a message of the form *what is wrong: what was found;
what to do*. The command line prints both without a traceback and exits with the exit status of the class. `error_codes`
lists the codes with their causes and remedies.
"""

import warnings
from typing import ClassVar

from gumshoe.redaction import redact


class GumshoeError(Exception):
    """Report a failure. Exit status 1.

    Args:
        code: `<area>.<problem>`, listed in the `errors.toml` of the package that raises it.
        message: what is wrong: what was found; what to do. Credentials in it are masked. Custom environments and
            rewards may pass the message alone; its code is then `plugins.no-code`.
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, code: str, message: str | None = None) -> None:
        if message is None:
            code, message = "plugins.no-code", code
            warnings.warn("errors take a code and a message", DeprecationWarning, stacklevel=2)
        message = redact(message)
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
