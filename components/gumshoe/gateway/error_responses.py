"""Errors as HTTP responses in the form of OpenAI's API."""

from typing import Any

import orjson

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.gateway.gateway_errors import GatewayError, UnknownKeyError, WrongMethodError

Headers = list[tuple[bytes, bytes]]


def describe_error(error: GumshoeError) -> dict[str, Any]:
    """Return an error as OpenAI's API has it. What only the operator should know is left out."""
    if isinstance(error, GatewayError):
        code = error.api_code or error.code
        return {"message": str(error), "type": error.api_type, "param": error.param, "code": code}
    if isinstance(error, UsageError):
        return {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}
    return {"message": "the request failed", "type": "server_error", "param": None, "code": error.code}


def find_status(error: GumshoeError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, GatewayError):
        return error.status
    return 400 if isinstance(error, UsageError) else 500


def write_error(error: GumshoeError) -> tuple[Headers, bytes]:
    """Return headers and body of an error. OpenAI's clients try again only if `x-should-retry` is true."""
    body = orjson.dumps({"error": describe_error(error)})
    retry_after = error.retry_after if isinstance(error, GatewayError) else None
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-should-retry", b"false" if retry_after is None else b"true"),
    ]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    if isinstance(error, UnknownKeyError):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, WrongMethodError):
        headers.append((b"allow", error.allowed.encode()))
    return headers, body
