"""The reason why a page could not be fetched."""

from typing import Literal

Reason = Literal[
    "address",
    "private address",
    "robots.txt",
    "no such host",
    "connection",
    "certificate",
    "timeout",
    "status",
    "redirects",
    "too large",
    "content type",
    "broken answer",
    "unreadable",
    "old format",
    "no text",
    "scan",
    "needs JavaScript",
    "asks for consent",
    "not found",
    "host set aside",
]


class PageFailure(Exception):  # noqa: N818 - a result of a page, not an error of the user
    """A page was not fetched. The failure is reported with the results, and never ends a command.

    `may_pass` is True if the failure may be temporary. `wait` is the pause in seconds that the server asked for.
    """

    def __init__(self, reason: Reason, detail: str, *, may_pass: bool = False, wait: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.may_pass = may_pass
        self.wait = wait
