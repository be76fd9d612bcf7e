"""Map errors to problems (RFC 9457) that reveal nothing about the server's internals."""

import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import PolicyError
from gumshoe.serving.access import ForbiddenError, SigningKeysUnavailableError, UnauthenticatedError
from gumshoe.serving.ask import PROBLEM_TYPE
from gumshoe.serving.telemetry import request_id

_log = logging.getLogger(__name__)
_FAILED = 500
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # the rest of the request is not read
    413: {"Connection": "close"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}


class RefusedRequestError(Exception):
    """Report a request that is rejected, with the code, status, title and detail of its problem."""

    def __init__(self, code: str, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.status, self.title, self.detail = code, status, title, detail


class BusyError(Exception):
    """Report that the queue is full."""


class ModelNotReadyError(Exception):
    """Report that the model is not available yet or any more. The message says why, for the log."""


class DeadlineExceededError(Exception):
    """Report that there was no answer within the deadline."""


_INTERNAL = "serving.internal-error"
_PROBLEMS: dict[type[Exception], tuple[str, int, str, str | None]] = {
    ForbiddenError: ("serving.inbox-forbidden", 403, "Forbidden", "You may not read this inbox."),
    BusyError: ("serving.busy", 429, "Too many requests", "Try again later."),
    DeadlineExceededError: ("serving.deadline-exceeded", 504, "Timeout", None),
    ModelNotReadyError: ("serving.model-unavailable", 503, "Model not available", "Try again later."),
    PolicyError: (
        "serving.model-failed",
        502,
        "Model failed",
        "The model gave no usable answer. See the server's log.",
    ),
    SigningKeysUnavailableError: (
        "serving.signing-keys-unavailable",
        503,
        "Not available",
        "The keys that tokens are signed with are not available. Try again later.",
    ),
    UnavailableError: (
        "serving.dependency-unavailable",
        503,
        "Not available",
        "Something that this server needs does not answer. Try again later.",
    ),
    Exception: (_INTERNAL, 500, "Internal error", "The server failed. See its log."),
}
"""Code, status, title and detail by error class. The first matching class counts. None: the error's own message."""
_HTTP_PROBLEMS = {404: ("serving.not-found", "Not found"), 405: ("serving.method-not-allowed", "Method not allowed")}
HANDLED_ERRORS = (RefusedRequestError, UnauthenticatedError, RequestValidationError, HTTPException, *_PROBLEMS)
"""All errors that are answered with a problem; the last is for unexpected ones."""


def describe_error(error: Exception) -> tuple[str, int, str, str]:
    """Return the code, status, title and detail of the problem for an error.

    Internal errors all have the same code, because their own would reveal how the server works.
    """
    match error:
        case RefusedRequestError():
            return error.code, error.status, error.title, error.detail
        case UnauthenticatedError():
            return error.code, 401, "Authentication required", str(error)
        case RequestValidationError():
            return (
                "serving.invalid-request",
                422,
                "Invalid request",
                "; ".join(map(_describe_fault, error.errors()[:5])),
            )
        case HTTPException() if error.status_code < _FAILED:
            code, title = _HTTP_PROBLEMS.get(error.status_code, ("serving.invalid-request", "Invalid request"))
            return code, error.status_code, title, str(error.detail)
    code, status, title, detail = next(entry for kind, entry in _PROBLEMS.items() if isinstance(error, kind))
    return code, status, title, str(error) if detail is None else detail


def log_unexpected(error: Exception) -> None:
    """Log an error that is answered as an internal one."""
    code, *_ = describe_error(error)
    if code == _INTERNAL:
        _log.error("a request failed", exc_info=error)


def format_problem(code: str, status: int, title: str, detail: str) -> dict[str, Any]:
    """Return a problem as JSON."""
    body = {"type": f"{PROBLEM_TYPE}{code}", "title": title, "status": status, "detail": detail}
    return {**body, "request_id": request_id.get()}


def build_error_response(error: Exception) -> Response:
    """Return the response to a failed request."""
    code, status, title, detail = describe_error(error)
    headers = {**_HEADERS.get(status, {}), **(getattr(error, "headers", None) or {})}
    return JSONResponse(format_problem(code, status, title, detail), status, headers, "application/problem+json")


def _describe_fault(fault: Any) -> str:
    """Return what is wrong with a field, without its value."""
    where = ".".join(map(str, fault["loc"][1:]))
    return f"{where}: {fault['msg'].lower()}" if where else str(fault["msg"]).lower()
