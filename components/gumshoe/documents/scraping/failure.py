"""Why a page could not be taken."""

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
    "no text",
    "not found",
    "host set aside",
]


class PageFailure(Exception):  # noqa: N818 - what befell a page, not what the user did
    """A page was not taken. It becomes a row of a report, and never ends a command.

    `may_pass` is whether the same request may succeed later; `wait` is for how long, in seconds, its server asked to
    be left alone.
    """

    def __init__(self, reason: Reason, detail: str, *, may_pass: bool = False, wait: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.may_pass = may_pass
        self.wait = wait
