"""Describe the HTTP API for `/openapi.json` and `/docs`: security, tags, problems, and examples."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Security
from fastapi.params import Depends
from fastapi.security import HTTPBearer

from gumshoe.installation import DISTRIBUTION
from gumshoe.serving.api_models import Problem
from gumshoe.serving.errors import PROBLEM_KINDS, build_problem

_PROBLEM_JSON = "application/problem+json"
_DESCRIPTION = """\
Ask an agent that answers from mail or documents.

Errors are problem details (RFC 9457). Test their `code`; `gumshoe explain CODE` describes each code. Requests that are
answered with 429 or 503 can be sent again after the seconds in `Retry-After`.

MCP clients find the same agent at `/mcp` (streamable HTTP). `gumshoe.client` is a client in Python.
"""
_TAGS = [
    {"name": "agent", "description": "Ask questions, read the sources of answers, and give feedback."},
    {"name": "operations", "description": "Probes and metrics. They need no credentials and reveal no content."},
]
AGENT, OPERATIONS = (str(each["name"]) for each in _TAGS)

ANY_REQUEST = (
    "serving.malformed-request",
    "serving.request-incomplete",
    "serving.not-found",
    "serving.method-not-allowed",
    "serving.request-too-slow",
    "serving.request-too-large",
    "serving.headers-too-large",
    "serving.too-many-connections",
    "serving.host-not-allowed",
    "serving.client-not-local",
    "serving.origin-not-allowed",
    "serving.internal-error",
)
"""Problems of every operation."""
_CREDENTIALS = (
    "serving.credentials-missing",
    "serving.unknown-key",
    "serving.invalid-token",
    "serving.unsupported-algorithm",
    "serving.unknown-signing-key",
    "serving.token-lives-too-long",
    "serving.keys-unavailable",
    "serving.signing-keys-unavailable",
)
AUTHENTICATED = (*ANY_REQUEST, *_CREDENTIALS)
"""Problems of operations that need credentials."""
_INBOX = (
    *AUTHENTICATED,
    "serving.invalid-request",
    "serving.inbox-missing",
    "serving.inbox-not-supported",
    "scenarios.invalid-inbox",
    "scenarios.invalid-query-date",
    "serving.inbox-forbidden",
    "serving.no-collections",
    "serving.dependency-unavailable",
)
_RUNNING = ("serving.busy", "serving.budget-exhausted", "serving.deadline-exceeded")
_QUESTION = (*_INBOX, "scenarios.empty-question", "serving.question-too-long")
ASKING = (*_QUESTION, *_RUNNING, "serving.adapter-bound", "serving.model-failed", "serving.model-unavailable")
"""Problems of operations that run the agent."""
READING_SOURCE = (*_INBOX, *_RUNNING, "serving.source-not-found", "serving.sources-not-readable")
GIVING_FEEDBACK = (
    *_QUESTION,
    *_RUNNING,
    "serving.query-date-missing",
    "serving.invalid-answer",
    "serving.feedback-disabled",
    "serving.too-much-feedback",
)

_QUESTION_REF = {"$ref": "#/components/schemas/QuestionBody"}
_EXAMPLE = {"question": "When is the invoice due?", "inbox_address": "ann@example.com", "query_date": "2024-05-01"}
_INVOKE_SCHEMAS = {
    "InvokeRequest": {
        "title": "InvokeRequest",
        "description": "A question, bare or in `parameters`.",
        "anyOf": [_QUESTION_REF, {"$ref": "#/components/schemas/QuestionParameters"}],
    },
    "QuestionParameters": {
        "title": "QuestionParameters",
        "description": "A question in `parameters`, as Kubeflow Pipelines and other agents send it.",
        "type": "object",
        "properties": {
            "parameters": {
                "title": "Parameters",
                "description": "The question.",
                "examples": [_EXAMPLE],
                **_QUESTION_REF,
            }
        },
        "required": ["parameters"],
        "additionalProperties": False,
    },
}
QUESTION_EXAMPLES = {
    "requestBody": {
        "description": "The question, bare or in `parameters`.",
        "content": {
            "application/json": {
                "examples": {
                    "bare": {"summary": "A question about mail", "value": _EXAMPLE},
                    "parameters": {"summary": "The same in `parameters`", "value": {"parameters": _EXAMPLE}},
                }
            }
        },
    }
}
"""Addition to the description of operations that take a question."""
_STEP = '{"turn": 1, "tool": "search_inbox", "arguments": {"keywords": ["invoice"]}, "text": "", "result": null}'
EVENT_STREAM: dict[str, Any] = {
    "description": "Server-sent events: `step` with an AgentStep for each turn, and again with the result of its "
    "tool; finally `answer` with an AgentAnswer, or `problem` with a Problem.",
    "content": {
        "text/event-stream": {
            "schema": {
                "title": "Event",
                "description": "One of the events.",
                "type": "object",
                "properties": {
                    "event": {
                        "title": "Event",
                        "description": "Type of the event.",
                        "enum": ["step", "answer", "problem"],
                        "examples": ["step"],
                    },
                    "data": {
                        "title": "Data",
                        "description": "JSON of an AgentStep, an AgentAnswer or a Problem, by the type of the event.",
                        "type": "string",
                        "contentMediaType": "application/json",
                        "examples": [_STEP],
                    },
                },
                "required": ["event", "data"],
            },
            "example": f"event: step\ndata: {_STEP}\n\n",
        }
    },
}
METRICS_TEXT: dict[str, Any] = {
    "description": "Metrics in Prometheus' text format.",
    "content": {
        "text/plain": {
            "schema": {
                "type": "string",
                "title": "Metrics",
                "description": "Metrics in Prometheus' text format.",
                "examples": ["# TYPE gumshoe_running gauge\ngumshoe_running 0.0\n"],
            }
        }
    },
}


class AgentApi(FastAPI):
    """FastAPI app whose OpenAPI description has titles, examples and problems everywhere."""

    def __init__(self) -> None:
        super().__init__(
            title="Gumshoe",
            summary="Agent server of Gumshoe.",
            description=_DESCRIPTION,
            version=version(DISTRIBUTION),
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
            openapi_tags=_TAGS,
            generate_unique_id_function=lambda route: route.name,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,  # it would send clients behind a proxy to another address
        )

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description."""
        if self.openapi_schema is None:
            api = super().openapi()
            api.setdefault("components", {}).setdefault("schemas", {}).update(
                Problem=Problem.model_json_schema(), **_INVOKE_SCHEMAS
            )
            operations = [each for methods in api["paths"].values() for each in methods.values()]
            for body in (
                each["requestBody"]["content"]["application/json"] for each in operations if "requestBody" in each
            ):
                if body["schema"] == _QUESTION_REF:  # `InvokeBody` takes both forms
                    body["schema"] = {"$ref": "#/components/schemas/InvokeRequest"}
        return super().openapi()


def require_credentials(*, open_access: bool) -> list[Depends]:
    """Return the dependencies that describe the security of an operation. `Middleware` authenticates callers.

    The list is empty with open access.
    """
    scheme = HTTPBearer(
        scheme_name="credentials",
        bearerFormat="key or JWT",
        description="A key of `gumshoe serve-key`, or a token (JWT) of the identity provider, if the server accepts "
        "them: `Authorization: Bearer ...`.",
        auto_error=False,
    )
    return [] if open_access else [Security(scheme)]


def describe_problems(codes: Iterable[str]) -> dict[int | str, dict[str, Any]]:
    """Return the responses for problems with these codes, by status, each with an example."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in sorted(codes, key=lambda code: PROBLEM_KINDS[code].status):
        kind = PROBLEM_KINDS[code]
        response = by_status.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {
                    _PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}},
                },
            },
        )
        if kind.title not in response["description"].split(" / "):
            response["description"] += f" / {kind.title}"
        example = build_problem(code).model_dump() | {"request_id": "8f14e45fceea167a"}
        response["content"][_PROBLEM_JSON]["examples"][code] = {"summary": code, "value": example}
        if kind.status in (429, 503):
            seconds = {"type": "integer", "examples": [1]}
            response["headers"] = {
                "Retry-After": {"description": "Seconds until the request can be sent again.", "schema": seconds}
            }
    return by_status
