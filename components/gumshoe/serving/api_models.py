"""Requests of the HTTP API, and the responses that only it has. `gumshoe.client.responses` has the others."""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gumshoe.client.responses import PROBLEM_TYPE

_REQUEST = ConfigDict(extra="forbid")
_QUESTION, _INBOX, _DAY, _ANSWER = "When is the audit?", "ann@example.com", "2024-05-01", "The audit is on 14 May."
_SOURCES = ["<7@example.com>"]
Id = Annotated[str, Field(min_length=1, max_length=1000)]


class QuestionBody(BaseModel):
    """A question, about one inbox if the server answers from mail."""

    model_config = _REQUEST

    question: str = Field(min_length=1, description="The question.", examples=[_QUESTION])
    inbox_address: str | None = Field(
        None,
        max_length=320,
        description="Address of the inbox to search. Optional if the caller may read only one; omit for documents.",
        examples=[_INBOX],
    )
    query_date: date | None = Field(
        None,
        description="Later messages are ignored. Default: today for mail, none for documents.",
        examples=[_DAY],
    )
    session_id: str | None = Field(
        None,
        max_length=200,
        description="Questions of one session are answered by the same policy.",
        examples=["4f1c"],
    )
    steps: bool = Field(False, description="Return the steps too: each tool call with its result.", examples=[True])


class FeedbackBody(BaseModel):
    """Feedback about an answer."""

    model_config = _REQUEST

    question: str = Field(min_length=1, description="The question in the answer.", examples=[_QUESTION])
    inbox_address: str | None = Field(None, max_length=320, description="Inbox of the question.", examples=[_INBOX])
    query_date: date | None = Field(
        None, description="The query_date in the answer. Required for mail.", examples=[_DAY]
    )
    answer: str = Field(max_length=10_000, description="The answer returned by /invoke.", examples=[_ANSWER])
    source_ids: list[Id] = Field(
        default_factory=list,
        max_length=20,
        description="The source_ids in the answer.",
        examples=[_SOURCES],
    )
    right: bool = Field(description="True if the answer is correct.", examples=[True])
    right_answer: str | None = Field(
        None, max_length=10_000, description="Correct answer, if known.", examples=[_ANSWER]
    )
    right_source_ids: list[Id] = Field(
        default_factory=list,
        max_length=20,
        description="IDs of the messages or documents that contain it.",
        examples=[_SOURCES],
    )


class SourceBody(BaseModel):
    """A source of an answer, with the inbox and the day of its question."""

    model_config = _REQUEST

    source_id: Id = Field(
        description="ID of the message or document, as in the answer's `source_ids`.", examples=_SOURCES
    )
    inbox_address: str | None = Field(
        None,
        max_length=320,
        description="Address of the inbox to read. Optional if the caller may read only one; omit for documents.",
        examples=[_INBOX],
    )
    query_date: date | None = Field(
        None, description="The query_date in the answer. Later messages do not exist.", examples=[_DAY]
    )


def _unwrap(body: Any) -> Any:
    """Return the content of `parameters`, which KFP and other agents send, or the object itself."""
    return body["parameters"] if isinstance(body, dict) and set(body) == {"parameters"} else body


InvokeBody = Annotated[QuestionBody, BeforeValidator(_unwrap)]


class Problem(BaseModel):
    """A problem (RFC 9457)."""

    type: str = Field(
        pattern=f"^{PROBLEM_TYPE}",
        description=f"`{PROBLEM_TYPE}` followed by the error code.",
        examples=[f"{PROBLEM_TYPE}serving.inbox-missing"],
    )
    title: str = Field(
        description="Kind of problem. It is the same for all problems with this code.", examples=["Invalid request"]
    )
    status: int = Field(description="HTTP status.", examples=[422])
    detail: str = Field(
        description="What is wrong with this request, and what to do.",
        examples=["inbox_address: required, because you may read several inboxes"],
    )
    code: str = Field(
        description="Error code. Test this, not the texts. `gumshoe explain CODE` describes it.",
        examples=["serving.inbox-missing"],
    )
    request_id: str = Field(description="ID of the request in the server's log.", examples=["8f14e45fceea167a"])


class Caller(BaseModel):
    """The authenticated caller."""

    name: str = Field(description="Name of the key, or the subject of the token.", examples=["calendar-app"])
    inboxes: list[str] = Field(
        description="Addresses and patterns of the inboxes that the caller may read.", examples=[[_INBOX]]
    )
    has_inboxes: bool = Field(
        description="True if the server answers from inboxes, false if it answers from documents.", examples=[True]
    )
    feedback: bool = Field(description="True if the server accepts feedback.", examples=[False])
    sources: bool = Field(
        description="True if the caller can read the sources of answers: POST /source.", examples=[True]
    )


class HealthStatus(BaseModel):
    """The process works."""

    status: Literal["ok"] = Field("ok", description="Always `ok`.", examples=["ok"])


class ReadyStatus(BaseModel):
    """The server can answer questions."""

    status: Literal["ready"] = Field("ready", description="Always `ready`.", examples=["ready"])
    policies: list[str] = Field(
        description="Versions of the models in service; the second one is the canary.", examples=[["invoices-3"]]
    )
