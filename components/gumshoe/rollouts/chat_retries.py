"""Repeat requests to a chat server after failures that may pass, for all conversations of a model together."""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from gumshoe.endpoint import error_fields, error_text
from gumshoe.inference.policy import PolicyError

if TYPE_CHECKING:
    from openai import APIError, APIStatusError

Answer = TypeVar("Answer")

_MAX_PAUSE = 60.0  # seconds; servers count requests per minute
_MAX_FAILURE_PAUSE = 8.0  # seconds
_TOO_MANY, _INTERNAL, _UNAVAILABLE, _OVERLOADED = 429, 500, 503, 529
_TEMPORARY = {408, 409, 425}
_NO_QUOTA = {"insufficient_quota", "exceeded_current_quota_error"}  # the account has no money
# One request has more tokens than the server takes in a minute.
_TOO_LARGE = re.compile(r"request too large|tokens must be reduced", re.I)


class RequestRetries:
    """Repeat requests of a model that fail for reasons that may pass.

    A server that has too many requests (status 429, 529, or 503 with `Retry-After`) is asked again until the deadline
    of the turn, because the other conversations go on meanwhile. No conversation sends anything during the pause: it is
    the one that the server asks for, or else doubles from one second to a minute with each rejection, and is halved
    again with each answer. Other failures are repeated up to `attempts`. A request that may have been answered, but too
    late, is not: the server bills it.
    """

    def __init__(self, attempts: int = 5, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._attempts, self._sleep = attempts, sleep
        self._rejections = 0  # in a row, except for those of requests that were sent before the last pause
        self._paused_at = self._resume_at = 0.0  # times of the event loop
        self._rejection: APIStatusError | None = None

    async def run(self, send: Callable[[], Awaitable[Answer]], deadline: float) -> Answer:
        """Return what `send` returns. `deadline` is a time of the event loop.

        Raises:
            APIError, PolicyError: if it cannot be repeated, fails each time, or is rejected until the deadline.
        """
        from openai import APIError, APIStatusError  # takes half a second to import

        failures, now = 0, asyncio.get_running_loop().time
        while True:
            await self._wait(deadline)
            started = now()
            try:
                answer = await send()
            except (APIError, PolicyError) as error:
                if isinstance(error, APIStatusError) and _is_busy(error):
                    self._pause(error, started)
                    continue
                failures += 1
                if failures >= self._attempts or not _may_pass(error):
                    raise
                await self._sleep(min(2.0 ** (failures - 2), _MAX_FAILURE_PAUSE) * random.uniform(0.75, 1))  # noqa: S311
            else:
                self._rejections = max(0, self._rejections - 1)
                return answer

    async def _wait(self, deadline: float) -> None:
        """Wait until the server may be asked again.

        Raises:
            APIStatusError: if that is after the deadline.
        """
        now = asyncio.get_running_loop().time
        while self._rejection is not None and now() < self._resume_at:
            # Not all at once, or most would be rejected again.
            resume = self._resume_at + random.random() * min(self._resume_at - self._paused_at, _MAX_PAUSE)  # noqa: S311
            if resume >= deadline:
                raise self._rejection.with_traceback(None)  # or it would keep all conversations that it has ended
            await self._sleep(resume - now())

    def _pause(self, error: "APIStatusError", started: float) -> None:
        """Let all conversations wait, after a rejection of a request that was sent at a time of the event loop."""
        now, asked = asyncio.get_running_loop().time(), _read_pause(error)
        if started >= self._paused_at or asked:
            pause = asked or min(2.0**self._rejections, _MAX_PAUSE)
            self._resume_at = max(self._resume_at, now + pause)
        if started >= self._paused_at:
            self._rejections, self._paused_at = min(self._rejections + 1, 6), now
        self._rejection = error


def is_too_large(error: "APIStatusError") -> bool:
    """Return True if a request has more tokens than the server takes in a minute, so that waiting does not help."""
    return error.status_code == _TOO_MANY and _TOO_LARGE.search(error_text(error)) is not None


def _is_busy(error: "APIStatusError") -> bool:
    """Return True if a server rejects a request because it has too many of them."""
    fields = error_fields(error)
    if error.response.headers.get("x-should-retry") == "false" or is_too_large(error):
        return False
    if _NO_QUOTA & {str(fields.get("code")), str(fields.get("type"))}:
        return False
    code = error.status_code
    return code in {_TOO_MANY, _OVERLOADED} or (code == _UNAVAILABLE and _read_pause(error) is not None)


def _may_pass(error: "APIError | PolicyError") -> bool:
    """Return True if the same request may succeed another time."""
    from httpx2 import ConnectTimeout
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    if isinstance(error, APIStatusError):
        told, code = error.response.headers.get("x-should-retry"), error.status_code
        return told == "true" or (told != "false" and (code in _TEMPORARY or code >= _INTERNAL))
    if isinstance(error, APITimeoutError):
        return isinstance(error.__cause__, ConnectTimeout)
    return isinstance(error, APIConnectionError | PolicyError)


def _read_pause(error: "APIStatusError") -> float | None:
    """Return the seconds that a server asks to wait, or None if it does not say so."""
    headers = error.response.headers
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            pause = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        return pause if 0 < pause < float("inf") else None
    try:
        pause = parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
    except (KeyError, ValueError):
        return None
    return pause if pause > 0 else None
