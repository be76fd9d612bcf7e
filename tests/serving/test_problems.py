"""Problems: whatever goes wrong, a caller is sent a code that the catalogue lists, and nothing of how it is done."""

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
"""The code and a value of an error inside, which callers are not told of."""


def sent(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body that the server answers with."""
    from gumshoe.serving.errors import answer_to

    response = answer_to(error)
    assert response.media_type == "application/problem+json"
    return response.status_code, json.loads(bytes(response.body))


def codes_of(call: ast.Call) -> Iterator[str]:
    for each in ast.walk(call.args[0]):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def errors_made(*names: str) -> list[ast.Call]:
    """Return the calls in the serving package that make errors of these names."""
    trees = [ast.parse(path.read_text()) for path in SERVING.glob("*.py")]
    calls = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Call)]
    return [each for each in calls if ast.unparse(each.func) in names]


def test_every_request_that_is_rejected_has_a_listed_code() -> None:
    known = load_error_codes()
    made = errors_made("RefusedRequestError", "UnauthenticatedError", "_invalid")
    codes = {code for call in made for code in codes_of(call)}
    assert {"serving.unknown-key", "serving.inbox-missing", "serving.host-not-allowed", "serving.not-ready"} <= codes
    assert sorted(codes - set(known)) == []


def test_every_class_of_error_is_answered_with_a_listed_code() -> None:
    from gumshoe.serving.errors import _EXPLAINED, KINDS

    known = load_error_codes()
    assert [code for code, *_ in _EXPLAINED.values() if code not in known] == []
    assert KINDS[-1] is Exception
    titles: dict[str, set[str]] = {}
    for code, _, title, _ in _EXPLAINED.values():
        titles.setdefault(code, set()).add(title)
    assert {code: found for code, found in titles.items() if len(found) > 1} == {}


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
def test_an_error_of_the_framework_has_a_listed_code(status: int, code: str) -> None:
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    assert code in load_error_codes()
    answered, told = sent(HTTPException(status, headers={"Allow": "POST"}))
    assert (answered, told["status"], told["type"]) == (status, status, f"{TYPE}{code}")
    answered, told = sent(RequestValidationError([{"loc": ("body", "question"), "msg": "Field required"}]))
    assert (answered, told["type"]) == (422, f"{TYPE}serving.invalid-request")
    assert told["detail"].startswith("question: ")


EXPECTED: list[tuple[Exception, int, str]] = [
    (PolicyError(INNER, PLACE, PLACE), 502, "serving.model-failed"),
    (ToolFailedError(INNER, PLACE), 503, "serving.dependency-unavailable"),
    (UnavailableError(INNER, PLACE), 503, "serving.dependency-unavailable"),
    (UsageError(INNER, PLACE), 500, "serving.internal-error"),
    (GumshoeError(INNER, PLACE), 500, "serving.internal-error"),
    (ValueError(PLACE), 500, "serving.internal-error"),
]


@pytest.mark.parametrize(("error", "status", "code"), EXPECTED)
def test_errors_inside_are_answered_with_a_code_of_the_server_alone(error: Exception, status: int, code: str) -> None:
    answered, told = sent(error)
    assert (answered, told["type"]) == (status, f"{TYPE}{code}")
    assert INNER not in json.dumps(told)
    assert PLACE not in json.dumps(told)


def test_errors_of_callers_have_their_own_codes() -> None:
    from gumshoe.serving.access import ForbiddenError, ProviderSilentError, UnauthenticatedError
    from gumshoe.serving.errors import BusyError, ModelNotReadyError, RefusedRequestError, TooSlowError

    for error, status, code in (
        (RefusedRequestError("serving.not-ready", 503, "Not ready", "adapter"), 503, "serving.not-ready"),
        (UnauthenticatedError("serving.unknown-key", "This key is not known."), 401, "serving.unknown-key"),
        (ForbiddenError(), 403, "serving.inbox-forbidden"),
        (BusyError(), 429, "serving.busy"),
        (TooSlowError("No answer within 3 seconds."), 504, "serving.deadline-exceeded"),
        (ModelNotReadyError(PLACE), 503, "serving.model-unavailable"),
        (ProviderSilentError(INNER, PLACE), 503, "serving.signing-keys-unavailable"),
    ):
        answered, told = sent(error)
        assert (answered, told["status"], told["type"]) == (status, status, f"{TYPE}{code}")
        assert PLACE not in json.dumps(told)
