"""OpenAI-compatible addresses: a client for one, and what its errors mean."""

import os
import re
from typing import TYPE_CHECKING

from gumshoe.errors import UsageError

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_TOO_LONG = re.compile("maximum context length|context length is only", re.I)  # vLLM has no code for it
_DENIED, _NOT_FOUND = {401, 403}, 404


def api_key(url: str | None) -> str:
    """The key for an address: OPENAI_API_KEY; a server of one's own may need none.

    Raises:
        UsageError: there is no key for OpenAI itself.
    """
    key = os.environ.get("OPENAI_API_KEY") or ("none" if url else "")
    if not key:
        raise UsageError("models.no-api-key", "OPENAI_API_KEY is not set; set it, or use your own server: MODEL@URL")
    return key


def openai_client(url: str | None, *, timeout: float | None = 120, retries: int = 4) -> "AsyncOpenAI":
    """Return a client for `url`, or for OpenAI if it is None. `timeout` is in seconds per read; None sets no limit.

    Raises:
        UsageError: as `api_key`.
    """
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=url, api_key=api_key(url), timeout=timeout, max_retries=retries)


def is_too_long(error: "APIStatusError") -> bool:
    """Whether a request was refused because it does not fit into the model's context."""
    return error.code == "context_length_exceeded" or _TOO_LONG.search(str(error)) is not None


def check_known(model: str, error: "APIStatusError") -> None:
    """
    Raises:
        UsageError: the error says that the model, the key or the address is wrong.
    """
    if error.status_code in _DENIED:
        raise UsageError("models.access-denied", f"access to {model} denied: {error}; check OPENAI_API_KEY") from None
    if error.status_code == _NOT_FOUND:
        raise UsageError("models.not-found", f"{model} not found: {error}; check its name and the address") from None
