"""What callers are told where something goes wrong: problems as RFC 9457 has them, and nothing of how it is done."""

import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gumshoe.agent.policy import PolicyError
from gumshoe.errors import UnavailableError
from gumshoe.serving.access import ForbiddenError, ProviderSilentError, UnauthenticatedError
from gumshoe.serving.telemetry import request_id

_log = logging.getLogger(__name__)
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # what else comes of the request is not read
    413: {"Connection": "close"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}


class RefusedRequestError(Exception):
    """A request that is not taken."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail


class BusyError(Exception):
    """As many requests wait as may."""


class NotReadyError(Exception):
    """The model is not there, or not yet; the message says why, for the log."""


class TooSlowError(Exception):
    """There was no answer within the deadline."""


_EXPLAINED: dict[type[Exception], tuple[int, str, str | None]] = {
    UnauthenticatedError: (401, "Who asks is not known", None),
    ForbiddenError: (403, "Not allowed", "you may not read that inbox"),
    BusyError: (429, "Too many ask at once", "ask again in a while"),
    TooSlowError: (504, "Too slow", None),
    NotReadyError: (503, "There is no model now", "the model is not there, or not yet; ask again in a while"),
    PolicyError: (502, "The model failed", "the model gave no answer that can be used; this server's log says more"),
    ProviderSilentError: (503, "Not available", None),
    UnavailableError: (503, "Not available", "what this server needs does not answer now; ask again in a while"),
    Exception: (500, "Something went wrong", "this server failed; its log says more"),
}
"""Status, title and detail, which is the error's own where it is None. The first that fits counts."""
KINDS = (RefusedRequestError, RequestValidationError, HTTPException, *_EXPLAINED)
"""All errors that are told of; the last is for those that nobody thought of."""


def explained(error: Exception) -> tuple[int, str, str]:
    """Status, title and detail of what went wrong."""
    match error:
        case RefusedRequestError():
            return error.status, error.title, error.detail
        case RequestValidationError():
            return 422, "It is not a question", "; ".join(map(_fault, error.errors()[:5]))
        case HTTPException():
            return error.status_code, "Not taken", str(error.detail)
    status, title, detail = next(told for kind, told in _EXPLAINED.items() if isinstance(error, kind))
    return status, title, str(error) if detail is None else detail


def log_unexpected(error: Exception) -> None:
    """Have the log tell of an error that nobody thought of."""
    if explained(error) == _EXPLAINED[Exception]:
        _log.error("a request failed", exc_info=error)


def problem(status: int, title: str, detail: str) -> dict[str, Any]:
    """What went wrong, as it is sent."""
    return {"type": "about:blank", "title": title, "status": status, "detail": detail, "request_id": request_id.get()}


def answer_to(error: Exception) -> Response:
    """A request that went wrong is answered with this."""
    status, title, detail = explained(error)
    headers = {**_HEADERS.get(status, {}), **(getattr(error, "headers", None) or {})}
    return JSONResponse(problem(status, title, detail), status, headers, "application/problem+json")


def _fault(fault: Any) -> str:
    """What is wrong with a field; never what it holds."""
    where = ".".join(map(str, fault["loc"][1:]))
    return f"{where}: {fault['msg'].lower()}" if where else str(fault["msg"]).lower()
