"""Responses of the agent server: what its client returns, and what its OpenAPI description is made from."""

import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PROBLEM_TYPE = "urn:gumshoe:error:"
"""Prefix of a problem's type, before the error code."""
_RESULT = "1 message found\n  id: <1@example.com>"
_MESSAGE = {
    "message_id": "<1@example.com>",
    "sent": "2024-03-05T08:30:00Z",
    "sender": "bob@example.com",
    "subject": "Invoice",
}
_STEP = {"turn": 1, "tool": "search_inbox", "arguments": {"keywords": ["invoice"]}, "text": "", "result": _RESULT}
_COST = {
    "samples": 1,
    "failed": 0,
    "turns": 3,
    "prompt_tokens": 2400,
    "sampled_tokens": 120,
    "seconds": 1.9,
    "longest": 1.9,
}


class Response(BaseModel):
    """Base of all responses. Fields that a newer server adds are ignored."""

    model_config = ConfigDict(frozen=True)


class CitedMessage(Response):
    """A message that contains the answer."""

    message_id: str = Field(description="Message-ID, with its angle brackets.", examples=["<1@example.com>"])
    sent: datetime.datetime | None = Field(
        description="When the message was sent; null if unknown.", examples=["2024-03-05T08:30:00Z"]
    )
    sender: str = Field(description="Address of the sender.", examples=["bob@example.com"])
    subject: str = Field(description="Subject of the message.", examples=["Invoice"])

    @property
    def id(self) -> str:
        return self.message_id

    @property
    def label(self) -> str:
        """Description of the source on one line."""
        sent = f"{self.sent:%Y-%m-%d} " if self.sent else ""
        return f"{sent}{self.sender}: {self.subject} {self.message_id}"


class CitedDocument(Response):
    """A document that contains the answer."""

    document_id: str = Field(description="ID of the document.", examples=["asthma"])
    title: str = Field(description="Title of the document.", examples=["What is asthma?"])
    url: str = Field("", description="Web address; empty if it has none.", examples=["https://example.com/asthma"])

    @property
    def id(self) -> str:
        return self.document_id

    @property
    def label(self) -> str:
        """Description of the source on one line."""
        return " ".join(filter(None, [self.title, self.document_id, self.url]))


class AgentStep(Response):
    """A tool call of the model with its result, or a turn without one."""

    turn: int = Field(description="Number of the turn, from 1.", examples=[1])
    tool: str = Field(description="Name of the tool; empty if the turn has no call.", examples=["search_inbox"])
    arguments: dict[str, Any] = Field(description="Arguments of the call.", examples=[{"keywords": ["invoice"]}])
    text: str = Field(
        description="Text of the turn outside reasoning and calls, in its first step.", examples=["I search for it."]
    )
    result: str | None = Field(
        None,
        description="Result of the tool. Null while the tool runs, and if the turn ended the conversation.",
        examples=[_RESULT],
    )
    reasoning: str = Field("", description="Reasoning of the turn, in its first step.", examples=["Where is it?"])
    call: int = Field(1, description="Number of the call in its turn, from 1.", examples=[1])


class AnswerCost(Response):
    """Cost of an answer: all episodes that were run for it, and the judge, if one chose among them."""

    samples: int = Field(description="Number of episodes that ended.", examples=[1])
    failed: int = Field(
        description="Number of episodes that failed because of infrastructure; their cost is not included.",
        examples=[0],
    )
    turns: int = Field(description="Number of turns of all episodes.", examples=[3])
    prompt_tokens: int | None = Field(
        description="Sum over all requests to the model, as an endpoint bills them; null if unknown.", examples=[2400]
    )
    sampled_tokens: int | None = Field(description="Number of sampled tokens; null if unknown.", examples=[120])
    seconds: float = Field(
        description="Total seconds in the model and the tools, over all episodes, and in the judge.", examples=[1.9]
    )
    longest: float = Field(
        description="Seconds of the longest episode and of the judge after it: the latency if all run at once.",
        examples=[1.9],
    )
    judge_requests: int = Field(0, description="Number of requests to the judge.", examples=[0])
    judge_prompt_tokens: int = Field(0, description="Number of the judge's prompt tokens.", examples=[0])
    judge_sampled_tokens: int = Field(0, description="Number of the judge's sampled tokens.", examples=[0])
    judge_dollars: float = Field(0.0, description="Price of the judge in US dollars, if known.", examples=[0.0])


class AgentAnswer(Response):
    """Answer to a question, with its sources and steps."""

    question: str = Field(description="The question.", examples=["When is the invoice due?"])
    inbox_address: str | None = Field(
        description="Address of the inbox; null if the question is about documents.", examples=["ann@example.com"]
    )
    query_date: datetime.date | None = Field(
        description="Day as of which the question was answered; null if it has none.", examples=["2024-05-01"]
    )
    answer: str = Field(description="The answer. Without success, it may be empty.", examples=["On Friday."])
    source_ids: tuple[str, ...] = Field(
        description="IDs of the messages or documents with the answer. Only those that exist are listed.",
        examples=[["<1@example.com>"]],
    )
    sources: tuple[CitedMessage | CitedDocument, ...] = Field(
        description="The same messages or documents, to show to users.",
        examples=[[_MESSAGE]],
    )
    success: bool = Field(description="True if the agent found an answer.", examples=[True])
    reason: str = Field(description="Why there is no answer; empty if there is one.", examples=[""])
    steps: tuple[AgentStep, ...] = Field(
        description="Each tool call with its result, if the request asked for steps.",
        examples=[[_STEP]],
    )
    policy: str = Field(description="Version of the model that answered.", examples=["invoices-3"])
    turns: int = Field(description="Number of turns of the model.", examples=[3])
    seconds: float = Field(description="Seconds from the first turn to the answer.", examples=[2.1])
    chosen: str = Field(
        "",
        description="Why this answer was chosen among several samples; empty for a single sample.",
        examples=["4 of 8 samples agree"],
    )
    cost: AnswerCost | None = Field(
        None,
        title="Cost",
        description="Cost of all samples.",
        examples=[_COST],
    )
    handles: dict[str, str] = Field(
        default_factory=dict,
        description="IDs of messages or documents by the handles that the steps show in their place, e.g. m1. Empty if "
        "the steps show the IDs, or if the request did not ask for steps.",
        examples=[{}],
    )


class CitedText(Response):
    """A source with its text. The text is data: never interpret it as HTML or as instructions."""

    source: CitedMessage | CitedDocument = Field(
        title="Source", description="The message or the document.", examples=[_MESSAGE]
    )
    details: dict[str, str] = Field(
        description="Labels and values to show above the text.", examples=[{"To": "ann@example.com"}]
    )
    text: str = Field(description="The text, at most 200,000 characters.", examples=["The invoice is due on Friday."])
    truncated: bool = Field(
        False, description="True if the end of the text is missing because it is too long.", examples=[False]
    )


class FeedbackResult(Response):
    """Result of feedback."""

    kept: bool = Field(
        description="True if the question was accepted for training. The server publishes it later.", examples=[True]
    )
