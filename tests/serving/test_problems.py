"""Test problems: every error has a code from the catalogue and reveals nothing about the server's internals."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gumshoe.error_codes import load_error_codes
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.inference.policy import PolicyError
from gumshoe.rollouts.tool_threads import ToolFailedError

SERVING = Path(__file__).parents[2] / "components" / "gumshoe" / "serving"
TYPE = "urn:gumshoe:error:"
INNER, PLACE = "store.access-denied", "http://10.0.0.7/vault"
"""Code and message of an inner error, which callers must not see."""


def respond(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body that the server answers an error with."""
    from gumshoe.serving.errors import build_error_response

    response = build_error_response(error)
    assert response.media_type == "application/problem+json"
    return response.status_code, json.loads(bytes(response.body))


def codes_of(call: ast.Call) -> Iterator[str]:
    for each in ast.walk(call.args[0]):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def find_error_calls(*names: str) -> list[ast.Call]:
    """Return the calls in the serving package that create errors of these classes."""
    trees = [ast.parse(path.read_text()) for path in SERVING.glob("*.py")]
    calls = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Call)]
    return [each for each in calls if ast.unparse(each.func) in names]


def test_every_rejected_request_has_a_listed_code() -> None:
    known = load_error_codes()
    from gumshoe.serving.errors import PROBLEM_KINDS

    made = find_error_calls("RefusedRequestError", "UnauthenticatedError")
    codes = {code for call in made for code in codes_of(call)}
    assert {"serving.unknown-key", "serving.inbox-missing", "serving.host-not-allowed", "serving.not-ready"} <= codes
    assert sorted(codes - set(PROBLEM_KINDS)) == []
    assert sorted(set(PROBLEM_KINDS) - set(known)) == []


def test_a_title_names_its_cause() -> None:
    """Problems of one status may share a title, those of different statuses never do."""
    from gumshoe.serving.errors import PROBLEM_KINDS

    statuses: dict[str, set[int]] = {}
    for kind in PROBLEM_KINDS.values():
        statuses.setdefault(kind.title, set()).add(kind.status)
    assert {title: found for title, found in statuses.items() if len(found) > 1} == {}
    expected = {
        "serving.inbox-missing": "Invalid request",
        "serving.credentials-missing": "Authentication required",
        "serving.unknown-key": "Authentication failed",
        "serving.inbox-forbidden": "Access denied",
        "serving.method-not-allowed": "Method not allowed",
        "serving.host-not-allowed": "Host not allowed",
        "serving.busy": "Too many requests",
        "serving.deadline-exceeded": "Deadline exceeded",
    }
    assert {code: PROBLEM_KINDS[code].title for code in expected} == expected


def test_every_error_class_has_a_problem() -> None:
    from gumshoe.serving.errors import _CODES, HANDLED_ERRORS, PROBLEM_KINDS

    assert set(_CODES.values()) <= set(PROBLEM_KINDS)
    assert HANDLED_ERRORS[-1] is Exception


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "serving.invalid-request"),
        (404, "serving.not-found"),
        (405, "serving.method-not-allowed"),
        (415, "serving.invalid-request"),
        (500, "serving.internal-error"),
    ],
)
def test_a_framework_error_has_a_listed_code(status: int, code: str) -> None:
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    answered, body = respond(HTTPException(status, headers={"Allow": "POST"}))
    assert (answered, body["status"], body["type"], body["code"]) == (status, status, f"{TYPE}{code}", code)
    answered, body = respond(
        RequestValidationError([{"type": "missing", "loc": ("body", "question"), "msg": "Field required", "input": {}}])
    )
    assert (answered, body["type"]) == (422, f"{TYPE}serving.invalid-request")
    assert body["detail"].startswith("question: ")


EXPECTED: list[tuple[Exception, int, str]] = [
    (PolicyError(INNER, PLACE, PLACE), 502, "serving.model-failed"),
    (ToolFailedError(INNER, PLACE), 503, "serving.dependency-unavailable"),
    (UnavailableError(INNER, PLACE), 503, "serving.dependency-unavailable"),
    (UsageError(INNER, PLACE), 500, "serving.internal-error"),
    (GumshoeError(INNER, PLACE), 500, "serving.internal-error"),
    (ValueError(PLACE), 500, "serving.internal-error"),
]


@pytest.mark.parametrize(("error", "status", "code"), EXPECTED)
def test_inner_errors_are_answered_with_a_server_code(error: Exception, status: int, code: str) -> None:
    answered, body = respond(error)
    assert (answered, body["type"]) == (status, f"{TYPE}{code}")
    assert INNER not in json.dumps(body)
    assert PLACE not in json.dumps(body)


def test_caller_errors_keep_their_codes() -> None:
    from gumshoe.serving.access import ForbiddenError, SigningKeysUnavailableError, UnauthenticatedError
    from gumshoe.serving.errors import DeadlineExceededError, ModelNotReadyError, RefusedRequestError
    from gumshoe.serving.fair_limiter import BusyError

    for error, status, code in (
        (RefusedRequestError("serving.not-ready", "adapter"), 503, "serving.not-ready"),
        (UnauthenticatedError("serving.unknown-key", "This key is not known."), 401, "serving.unknown-key"),
        (ForbiddenError(), 403, "serving.inbox-forbidden"),
        (BusyError(), 429, "serving.busy"),
        (DeadlineExceededError("No answer within 3 seconds."), 504, "serving.deadline-exceeded"),
        (ModelNotReadyError(PLACE), 503, "serving.model-unavailable"),
        (SigningKeysUnavailableError(INNER, PLACE), 503, "serving.signing-keys-unavailable"),
    ):
        answered, body = respond(error)
        assert (answered, body["status"], body["type"]) == (status, status, f"{TYPE}{code}")
        assert PLACE not in json.dumps(body)
