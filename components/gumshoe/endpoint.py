"""Connect to OpenAI-compatible servers and translate their errors."""

import json
import os
import re
from typing import TYPE_CHECKING, Any

from gumshoe.errors import UsageError
from gumshoe.network import clean_credential

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

# How servers report a full context, if they send no code for it: vLLM and Mistral; SGLang; vLLM; llama.cpp; LM Studio;
# Anthropic and Bedrock; Gemini; xAI; TGI; DashScope.
_TOO_LONG = re.compile(
    r"maximum context length|context length is only|longer than the model's context length"
    r"|longer than the maximum model length|exceeds? the available context size|greater than the context length"
    r"|(prompt|input) is too long|exceed context limit|input token count.{0,40}exceeds the maximum number of tokens"
    r"|maximum prompt length is|`inputs` (tokens \+ `max_new_tokens` must be|must have less than)"
    r"|range of input length should be",
    re.I,
)
_TOO_LONG_CODES = {"context_length_exceeded", "exceed_context_size_error"}  # OpenAI and Groq; llama.cpp
_SEARCH_LENGTH = 500  # characters of an error to search; a server may repeat the request after them
_MAX_ERROR_LENGTH = 1000  # characters of an error to report
FILTERED = re.compile(
    "content_filter|content_policy|data_?inspection_?failed|safety|sensitive|prohibited_content|blocklist|recitation|spii",
    re.I,
)
"""Reasons of OpenAI, Azure, Moonshot, OpenRouter, DashScope, Z.AI and Gemini to withhold a text."""
# Words of Azure, DeepSeek, OpenAI and OpenRouter for the same, if they send no code for it.
_FILTERED_WORDS = re.compile(
    "content management policy|content exists risk|flagged as potentially violating|request blocked: prompt injection",
    re.I,
)
_DENIED, _NOT_FOUND = {401, 403}, 404
_CONNECT_TIMEOUT = 10.0  # seconds


def api_key(url: str | None) -> str:
    """Return OPENAI_API_KEY, or "none" if it is not set and `url` is given: local servers may need no key.

    Raises:
        UsageError: if OPENAI_API_KEY is malformed, or not set and `url` is None, i.e. OpenAI itself.
    """
    given = clean_credential(os.environ.get("OPENAI_API_KEY", ""))
    if given is None:
        raise UsageError(
            "models.malformed-api-key",
            "OPENAI_API_KEY contains white space or characters other than ASCII; copy the whole key again",
        )
    key = given or ("none" if url else "")
    if not key:
        raise UsageError("models.no-api-key", "OPENAI_API_KEY is not set; set it, or use your own server: MODEL@URL")
    return key


def openai_client(url: str | None, *, timeout: float | None = None, retries: int = 0) -> "AsyncOpenAI":
    """Return a client for `url`, or for OpenAI if it is None.

    `timeout` is in seconds per read; None sets no limit: a model may think for minutes before the first byte arrives,
    and the server bills a request that is given up and sent again. A connection must be there in 10 seconds anyway.

    Raises:
        UsageError: if there is no API key (see `api_key`).
    """
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

    from gumshoe.openai_transport import OpenAITransport

    key = api_key(url)
    limits = Timeout(timeout, connect=min(timeout or _CONNECT_TIMEOUT, _CONNECT_TIMEOUT))
    http = DefaultAsyncHttpxClient(transport=OpenAITransport(), timeout=limits)
    return AsyncOpenAI(base_url=url, api_key=key, timeout=limits, max_retries=retries, http_client=http)


def is_too_long(error: "APIStatusError") -> bool:
    """Return True if a request was rejected because it does not fit into the model's context."""
    return bool({error.code, error.type} & _TOO_LONG_CODES or _TOO_LONG.search(error_text(error)[:_SEARCH_LENGTH]))


def error_text(error: "APIStatusError") -> str:
    """Return the status of an error, and what the server says about it.

    OpenAI's client has the words only of errors in OpenAI's own form. Gemini sends a list, xAI and TGI a text, and
    servers with FastAPI or pydantic the list of what is wrong.
    """
    text, body = str(error), error.body
    if not body or (isinstance(body, dict) and isinstance(body.get("message"), str)):
        return text
    said = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return text if said.startswith("<") else f"{text} - {said}"[:_MAX_ERROR_LENGTH]


def error_fields(error: "APIStatusError") -> dict[str, Any]:
    """Return the fields of the error object that a server sent; empty without one. Gemini sends a list of one."""
    body = error.body
    if isinstance(body, list) and body and isinstance(body[0], dict):
        body = body[0].get("error", body[0])
    return body if isinstance(body, dict) else {}


def is_filtered(error: "APIStatusError") -> bool:
    """Return True if a content filter of the server rejected a request."""
    fields = error_fields(error)
    metadata = fields.get("metadata")  # of OpenRouter
    if isinstance(metadata, dict) and {"flagged_input", "reasons"} & set(metadata):
        return True
    kinds = (str(fields.get(name) or "") for name in ("code", "type"))
    return any(map(FILTERED.search, kinds)) or bool(_FILTERED_WORDS.search(error_text(error)[:_SEARCH_LENGTH]))


def raise_if_misconfigured(model: str, error: "APIStatusError") -> None:
    """Raise UsageError if an error means that the model, the key or the address is wrong.

    Raises:
        UsageError: if the status is 401, 403 or 404, and no content filter rejected the request.
    """
    if error.status_code in _DENIED and not is_filtered(error):
        raise UsageError(
            "models.access-denied", f"access to {model} denied: {error_text(error)}; check OPENAI_API_KEY"
        ) from None
    if error.status_code == _NOT_FOUND:
        raise UsageError(
            "models.not-found", f"{model} not found: {error_text(error)}; check its name and the address"
        ) from None
