"""Map errors to problems (RFC 9457) that reveal nothing about the server's internals."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asgi_correlation_id import correlation_id
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gumshoe.client.responses import PROBLEM_TYPE
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import PolicyError
from gumshoe.serving.access import (
    ForbiddenError,
    KeysUnavailableError,
    NoCollectionsError,
    SigningKeysUnavailableError,
    UnauthenticatedError,
)
from gumshoe.serving.adapter_binding import AdapterBoundError
from gumshoe.serving.api_models import UNKNOWN_FIELD, Problem, describe_unknown_field
from gumshoe.serving.fair_limiter import BusyError
from gumshoe.serving.usage_budgets import BudgetExhaustedError

_log = logging.getLogger(__name__)
_FAILED = 500
_MOST_SHOWN = 100  # characters of a path in a detail
_NOT_JSON = "the body is not JSON; send a JSON object and the header Content-Type: application/json"
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # the rest of the request is not read
    413: {"Connection": "close"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Status and title of all problems with one code, and the detail of those that have none of their own."""

    status: int
    title: str
    detail: str


INVALID, NOT_FOUND, METHOD, INTERNAL = (
    "serving.invalid-request",
    "serving.not-found",
    "serving.method-not-allowed",
    "serving.internal-error",
)
_FORBIDDEN, _BUSY, _DEADLINE = "serving.inbox-forbidden", "serving.busy", "serving.deadline-exceeded"
_BUDGET = "serving.budget-exhausted"
_EMPTY = "scenarios.empty-question"
_NO_MODEL, _MODEL_FAILED = "serving.model-unavailable", "serving.model-failed"
_NO_SIGNING_KEYS, _NO_DEPENDENCY = "serving.signing-keys-unavailable", "serving.dependency-unavailable"
_BOUND = "serving.adapter-bound"
_NO_KEYS, _NO_COLLECTIONS = "serving.keys-unavailable", "serving.no-collections"

PROBLEM_KINDS: dict[str, ProblemKind] = {
    INVALID: ProblemKind(422, "Invalid request", "question: field required"),
    _EMPTY: ProblemKind(422, "Invalid request", "question: the question is empty; write one"),
    "scenarios.invalid-inbox": ProblemKind(
        422,
        "Invalid request",
        "inbox_address: not a plain address: 'ann' (it has no @); write e.g. ann@example.com",
    ),
    "scenarios.invalid-query-date": ProblemKind(
        422, "Invalid request", "query_date: query date 9999-12-31 is out of range"
    ),
    "serving.question-too-long": ProblemKind(422, "Invalid request", "question: at most 2,000 characters, got 2,345"),
    "serving.inbox-missing": ProblemKind(
        422, "Invalid request", "inbox_address: required, because you may read several inboxes"
    ),
    "serving.inbox-not-supported": ProblemKind(
        422, "Invalid request", "inbox_address: this server answers from documents; leave it out"
    ),
    "serving.query-date-missing": ProblemKind(
        422, "Invalid request", "query_date: required, the day as of which it was answered"
    ),
    "serving.invalid-answer": ProblemKind(422, "Invalid request", "answer: it has no letters or digits"),
    "serving.malformed-request": ProblemKind(400, "Malformed request", "The request is not valid HTTP/1.1."),
    "serving.request-incomplete": ProblemKind(400, "Incomplete request", "The request ended before its body."),
    "serving.credentials-missing": ProblemKind(
        401, "Authentication required", "Send a key or a token: Authorization: Bearer ..."
    ),
    "serving.unknown-key": ProblemKind(401, "Authentication failed", "This key is not known."),
    "serving.invalid-token": ProblemKind(
        401, "Authentication failed", "The token is not valid: signature has expired."
    ),
    "serving.unsupported-algorithm": ProblemKind(
        401, "Authentication failed", "The token is signed with an algorithm that is not allowed."
    ),
    "serving.unknown-signing-key": ProblemKind(
        401, "Authentication failed", "The token is signed with a key that is not published."
    ),
    "serving.token-lives-too-long": ProblemKind(
        401, "Authentication failed", "The token is valid for more than 86,400 seconds after it was issued."
    ),
    _FORBIDDEN: ProblemKind(403, "Access denied", "You may not read this inbox. GET /principal lists yours."),
    "serving.client-not-local": ProblemKind(
        403, "Client not allowed", "This host name is only for clients on the server's own machine."
    ),
    "serving.origin-not-allowed": ProblemKind(
        403,
        "Origin not allowed",
        "Origin header 'https://page.example' is not allowed. The operator can add the page's origin to "
        "access.allowed_origins.",
    ),
    _NO_COLLECTIONS: ProblemKind(
        403, "Access denied", "Your key or token may not read any collection of documents. GET /principal lists yours."
    ),
    _BOUND: ProblemKind(
        403, "Not answered for this inbox", "The agent only answers questions about what it was trained on."
    ),
    NOT_FOUND: ProblemKind(404, "Not found", "There is no /ask; see /docs."),
    "serving.source-not-found": ProblemKind(
        404, "Source not found", "message '<8@example.com>' does not exist in that inbox"
    ),
    "serving.sources-not-readable": ProblemKind(
        404, "Sources not readable", "This server's environment does not show its sources."
    ),
    "serving.feedback-disabled": ProblemKind(
        404, "Feedback disabled", "The operator can enable it: --set keeping.feedback=true."
    ),
    METHOD: ProblemKind(405, "Method not allowed", "Use POST."),
    "serving.request-too-slow": ProblemKind(408, "Request timeout", "The body did not arrive within 20 seconds."),
    "serving.request-too-large": ProblemKind(413, "Request too large", "A request may have at most 65,536 bytes."),
    "serving.host-not-allowed": ProblemKind(
        421,
        "Host not allowed",
        "Host header 'agent.example' is not allowed. The operator can add it to access.allowed_hosts.",
    ),
    "serving.too-much-feedback": ProblemKind(
        429, "Too much feedback", "At most 100 feedback records per hour. Try again in 60 seconds."
    ),
    "serving.headers-too-large": ProblemKind(431, "Headers too large", "The headers may have at most 65,536 bytes."),
    _BUSY: ProblemKind(429, "Too many requests", "Try again later."),
    _BUDGET: ProblemKind(
        429,
        "Budget exhausted",
        "Your budget of 1,000,000 tokens per day is used up. Try again in 3,600 seconds.",
    ),
    INTERNAL: ProblemKind(500, "Internal error", "The server failed. See its log."),
    _MODEL_FAILED: ProblemKind(502, "Model failed", "The model gave no usable answer. See the server's log."),
    _NO_MODEL: ProblemKind(503, "Model unavailable", "Try again later."),
    "serving.too-many-connections": ProblemKind(503, "Too many connections", "Try again later."),
    "serving.not-ready": ProblemKind(503, "Not ready", "invoices-3: the model server does not answer"),
    _NO_KEYS: ProblemKind(503, "Keys unavailable", "The server's key file does not exist. Try again later."),
    _NO_SIGNING_KEYS: ProblemKind(
        503, "Signing keys unavailable", "The keys that tokens are signed with are not available. Try again later."
    ),
    _NO_DEPENDENCY: ProblemKind(
        503, "Dependency unavailable", "Something that this server needs does not answer. Try again later."
    ),
    _DEADLINE: ProblemKind(504, "Deadline exceeded", "No answer within 120 seconds."),
}
"""Every problem by its code. The OpenAPI description shows the details as examples."""


class RefusedRequestError(Exception):
    """Report a request that is rejected, with the code of its problem and a detail.

    `status` replaces the code's own status. `headers` are sent with the response.
    """

    def __init__(
        self,
        code: str,
        detail: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kind = PROBLEM_KINDS[code]
        super().__init__(detail or kind.detail)
        self.code, self.status, self.headers = code, status or kind.status, dict(headers or {})


class ModelNotReadyError(Exception):
    """Report that the model is not available yet or any more. The message says why, for the log."""


class DeadlineExceededError(Exception):
    """Report that there was no answer within the deadline."""


_CODES: dict[type[Exception], str] = {
    ForbiddenError: _FORBIDDEN,
    AdapterBoundError: _BOUND,
    NoCollectionsError: _NO_COLLECTIONS,
    BusyError: _BUSY,
    BudgetExhaustedError: _BUDGET,
    DeadlineExceededError: _DEADLINE,
    ModelNotReadyError: _NO_MODEL,
    PolicyError: _MODEL_FAILED,
    KeysUnavailableError: _NO_KEYS,
    SigningKeysUnavailableError: _NO_SIGNING_KEYS,
    UnavailableError: _NO_DEPENDENCY,
    Exception: INTERNAL,
}
"""Code by error class. The first matching class counts."""
HANDLED_ERRORS = (RefusedRequestError, UnauthenticatedError, RequestValidationError, HTTPException, *_CODES)
"""All errors that are answered with a problem; the last is for unexpected ones."""


def describe_error(error: Exception, path: str = "") -> Problem:
    """Return the problem for an error of a request for `path`.

    Internal errors all have the same code, because their own would reveal how the server works.
    """
    match error:
        case RefusedRequestError():
            return build_problem(error.code, str(error), error.status)
        case UnauthenticatedError() | BudgetExhaustedError():
            return build_problem(error.code, str(error))
        case RequestValidationError() if _has_empty_question(error):
            return build_problem(_EMPTY)
        case RequestValidationError():
            return build_problem(INVALID, _describe_faults_of_body(error))
        case HTTPException(status_code=404):
            return build_problem(NOT_FOUND, f"There is no {path[:_MOST_SHOWN]}; see /docs.")
        case HTTPException(status_code=405):
            return build_problem(METHOD, f"Use {(error.headers or {}).get('Allow', 'another method')}.")
        case HTTPException() if error.status_code < _FAILED:
            return build_problem(INVALID, str(error.detail), error.status_code)
        case DeadlineExceededError():
            return build_problem(_DEADLINE, str(error))
    return build_problem(next(code for kind, code in _CODES.items() if isinstance(error, kind)))


def build_problem(code: str, detail: str | None = None, status: int | None = None) -> Problem:
    """Return the problem with a code, with its usual detail and status unless others are given."""
    kind = PROBLEM_KINDS[code]
    return Problem(
        type=f"{PROBLEM_TYPE}{code}",
        title=kind.title,
        status=status or kind.status,
        detail=kind.detail if detail is None else detail,
        code=code,
        request_id=correlation_id.get() or "",
    )


def log_unexpected(error: Exception) -> None:
    """Log an error that is answered as an internal one."""
    if describe_error(error).code == INTERNAL:
        _log.error("a request failed", exc_info=error)


def build_error_response(error: Exception, path: str = "") -> Response:
    """Return the response to a failed request for `path`."""
    problem = describe_error(error, path)
    headers = {**_HEADERS.get(problem.status, {}), **(getattr(error, "headers", None) or {})}
    return JSONResponse(problem.model_dump(), problem.status, headers, "application/problem+json")


def describe_faults(faults: Sequence[Any], wrapper: str = "", known: Iterable[str] = ()) -> str:
    """Return what is wrong with the fields of a request, without their values, for up to five faults of pydantic.

    `wrapper` is the field that contains the request, if one does. `known` are the fields that a request may have.
    """
    return "; ".join(text for fault in faults[:5] for text in _describe_fault(fault, wrapper, known))


def _has_empty_question(error: RequestValidationError) -> bool:
    """Return True if nothing is wrong but that the question is empty."""
    return [(each["type"], each["loc"][-1]) for each in error.errors()] == [("string_too_short", "question")]


def _describe_faults_of_body(error: RequestValidationError) -> str:
    faults = error.errors()
    is_wrapped = isinstance(error.body, dict) and set(error.body) == {"parameters"}
    is_known = not any(each["type"] == UNKNOWN_FIELD and "parameters" in each["input"] for each in faults)
    wrapper = "parameters" if is_wrapped and is_known else ""
    return describe_faults([{**each, "loc": each["loc"][1:]} for each in faults], wrapper)


def _describe_fault(fault: dict[str, Any], wrapper: str, known: Iterable[str]) -> Iterator[str]:
    kind, place = fault["type"], [wrapper, *map(str, fault["loc"])]
    where = ".".join(filter(None, place))
    if kind == "json_invalid":
        reason = fault["ctx"]["error"]
        yield f"the body is not valid JSON: {reason[:1].lower()}{reason[1:]}, at character {fault['loc'][0] + 1}"
    elif kind == UNKNOWN_FIELD:
        yield from (f"{where}.{text}".lstrip(".") for text in fault["ctx"]["unknown"])
    elif kind == "extra_forbidden":
        yield describe_unknown_field(where, known)
    elif not where:
        yield _NOT_JSON if isinstance(fault["input"], bytes) else "the body must be a JSON object"
    else:
        yield f"{where}: {_describe_reason(fault)}"


def _describe_reason(fault: dict[str, Any]) -> str:
    """Return what is wrong with a field."""
    kind = fault["type"]
    if kind.startswith("date"):
        return "write a date as YYYY-MM-DD"
    if kind.startswith("bool"):
        return "must be true or false"
    if kind.startswith(("model", "dict")):
        return "must be a JSON object"
    return str(fault["msg"]).lower()
