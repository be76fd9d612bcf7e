"""What callers are told where something goes wrong: problems as RFC 9457 has them, and nothing of how it is done."""

import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import PolicyError
from gumshoe.serving.access import ForbiddenError, ProviderSilentError, UnauthenticatedError
from gumshoe.serving.ask import PROBLEM_TYPE
from gumshoe.serving.telemetry import request_id

_log = logging.getLogger(__name__)
_FAILED = 500
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # what else comes of the request is not read
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
    """As many requests wait as may."""


class ModelNotReadyError(Exception):
    """The model is not there, or not yet; the message says why, for the log."""


class TooSlowError(Exception):
    """There was no answer within the deadline."""


_INTERNAL = "serving.internal-error"
_EXPLAINED: dict[type[Exception], tuple[str, int, str, str | None]] = {
    ForbiddenError: ("serving.inbox-forbidden", 403, "Forbidden", "You may not read this inbox."),
    BusyError: ("serving.busy", 429, "Too many requests", "Try again later."),
    TooSlowError: ("serving.deadline-exceeded", 504, "Timeout", None),
    ModelNotReadyError: ("serving.model-unavailable", 503, "Model not available", "Try again later."),
    PolicyError: (
        "serving.model-failed",
        502,
        "Model failed",
        "The model gave no usable answer. See the server's log.",
    ),
    ProviderSilentError: (
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
"""Code, status, title and detail, which is the error's own if it is None. The first class that matches counts."""
_OF_STATUS = {404: ("serving.not-found", "Not found"), 405: ("serving.method-not-allowed", "Method not allowed")}
KINDS = (RefusedRequestError, UnauthenticatedError, RequestValidationError, HTTPException, *_EXPLAINED)
"""All errors that are answered with a problem; the last is for unexpected ones."""


def problem_of(error: Exception) -> tuple[str, int, str, str]:
    """Return the code, the status, the title and the detail of the problem that an error is answered with.

    The code of an internal error is not its own, which would show how the server works.
    """
    match error:
        case RefusedRequestError():
            return error.code, error.status, error.title, error.detail
        case UnauthenticatedError():
            return error.code, 401, "Authentication required", str(error)
        case RequestValidationError():
            return "serving.invalid-request", 422, "Invalid request", "; ".join(map(_fault, error.errors()[:5]))
        case HTTPException() if error.status_code < _FAILED:
            code, title = _OF_STATUS.get(error.status_code, ("serving.invalid-request", "Invalid request"))
            return code, error.status_code, title, str(error.detail)
    code, status, title, detail = next(told for kind, told in _EXPLAINED.items() if isinstance(error, kind))
    return code, status, title, str(error) if detail is None else detail


def log_unexpected(error: Exception) -> None:
    """Log an error that is answered as an internal one."""
    code, *_ = problem_of(error)
    if code == _INTERNAL:
        _log.error("a request failed", exc_info=error)


def problem(code: str, status: int, title: str, detail: str) -> dict[str, Any]:
    """Return a problem as it is sent."""
    told = {"type": f"{PROBLEM_TYPE}{code}", "title": title, "status": status, "detail": detail}
    return {**told, "request_id": request_id.get()}


def answer_to(error: Exception) -> Response:
    """Return the response to a request that failed."""
    code, status, title, detail = problem_of(error)
    headers = {**_HEADERS.get(status, {}), **(getattr(error, "headers", None) or {})}
    return JSONResponse(problem(code, status, title, detail), status, headers, "application/problem+json")


def _fault(fault: Any) -> str:
    """What is wrong with a field; never what it holds."""
    where = ".".join(map(str, fault["loc"][1:]))
    return f"{where}: {fault['msg'].lower()}" if where else str(fault["msg"]).lower()
