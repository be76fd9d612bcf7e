"""Requests of the HTTP API, and the responses that only it has. `gumshoe.client.responses` has the others."""

from collections.abc import Iterable
from datetime import date
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gumshoe.client.responses import PROBLEM_TYPE
from gumshoe.scenarios.scenario import Consent
from gumshoe.scenarios.unknown_answer import is_unknown
from gumshoe.serving.policy_metrics import Verdict

UNKNOWN_FIELD = "unknown_field"
"""Type of the fault that names unknown fields: its context has `unknown`, the text for each."""
_QUESTION, _INBOX, _DAY, _ANSWER = "When is the invoice due?", "ann@example.com", "2024-05-01", "On Friday."
_SOURCES = ["<1@example.com>"]
_MOST_SHOWN = 60  # characters of a field's name in a message
_OTHER_NAMES = {"inbox": "inbox_address", "date": "query_date", "asked_on": "query_date"}
_MAX_ANSWER, _MAX_SOURCES = 200_000, 1000  # of an answer that a server has given
Id = Annotated[str, Field(min_length=1, max_length=1000)]


def describe_unknown_field(name: str, known: Iterable[str]) -> str:
    """Return that a field does not exist, with the known field that is meant, or all of them.

    >>> describe_unknown_field("inbox", ["question", "inbox_address"])
    'inbox: unknown field; did you mean inbox_address?'
    """
    known = list(known)
    other = _OTHER_NAMES.get(name)
    meant = [other] if other in known else get_close_matches(name, known, n=1)
    hint = f"did you mean {meant[0]}?" if meant else f"the fields are {', '.join(known)}"
    return f"{name[:_MOST_SHOWN]}: unknown field; {hint}"


class RequestBody(BaseModel):
    """Base of the bodies of requests. Fields that do not exist are refused by name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, values: Any) -> Any:
        if isinstance(values, dict) and (unknown := values.keys() - cls.model_fields.keys()):
            texts = [describe_unknown_field(each, cls.model_fields) for each in sorted(unknown)[:5]]
            raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", {"unknown": texts})
        return values


class QuestionBody(RequestBody):
    """A question, about one inbox if the server answers from mail."""

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


class FeedbackBody(RequestBody):
    """Feedback about an answer."""

    question: str = Field(min_length=1, description="The question in the answer.", examples=[_QUESTION])
    inbox_address: str | None = Field(None, max_length=320, description="Inbox of the question.", examples=[_INBOX])
    query_date: date | None = Field(
        None, description="The query_date in the answer. Required for mail.", examples=[_DAY]
    )
    answer: str = Field(max_length=_MAX_ANSWER, description="The answer returned by /invoke.", examples=[_ANSWER])
    source_ids: list[Id] = Field(
        default_factory=list,
        max_length=_MAX_SOURCES,
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
    unanswerable: bool = Field(
        False,
        description='True if no message or document contains the answer, so that "I don\'t know" is correct.',
        examples=[False],
    )
    consent: Consent | None = Field(
        None,
        description="What it may be used for: `training`, or `none`. Default: the server's setting `keeping.consent`.",
        examples=["training"],
    )
    policy: str | None = Field(
        None,
        max_length=1000,
        description="The policy in the answer. Without it, the verdict does not count in the measures of a canary.",
        examples=["invoices-3"],
    )

    @field_validator("unanswerable")
    @classmethod
    def _check_unanswerable(cls, unanswerable: bool, info: ValidationInfo) -> bool:
        """Check that the other fields agree that there is no answer."""
        given = info.data
        if unanswerable and (given.get("right_answer") or given.get("right_source_ids")):
            raise PydanticCustomError("contradiction", "must be false if right_answer or right_source_ids are given")
        answer = str(given.get("answer", "")).strip()
        if unanswerable and given.get("right") and answer and not is_unknown(answer):
            raise PydanticCustomError("contradiction", 'must be false if an answer other than "i don\'t know" is right')
        return unanswerable

    @property
    def verdict(self) -> Verdict:
        """The verdict about the answer, as it counts in the measures of a policy."""
        if self.right:
            return "right"
        if self.unanswerable:
            return "unanswerable"
        return "corrected" if self.right_answer else "wrong"


class SourceBody(RequestBody):
    """A source of an answer, with the inbox and the day of its question."""

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
    collections: list[str] = Field(
        description="Names and patterns of the collections of documents that the caller may read. If the index has no "
        "collections, every caller may read all of it.",
        examples=[["hr", "eng-*"]],
    )
    has_inboxes: bool = Field(
        description="True if the server answers from inboxes, false if it answers from documents.", examples=[True]
    )
    feedback: bool = Field(description="True if the server accepts feedback.", examples=[False])
    consent: Consent = Field(description="What feedback may be used for, unless it says otherwise.", examples=["none"])
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
