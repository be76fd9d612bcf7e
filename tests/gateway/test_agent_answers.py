"""Answers are read from what agents return, in the forms that frameworks have, and nothing else is an answer."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel

from gumshoe.gateway.agent_answers import MAX_ANSWER, MAX_SOURCE, MAX_SOURCES, ReturnedAnswer, read_answer
from gumshoe.gateway.agent_errors import AgentFailedError

FRIDAY = ReturnedAnswer("Friday", ("<7@example.com>",))
JSON = '{"answer": "Friday", "sources": ["<7@example.com>"]}'
CALL = {"name": "return_final_answer", "args": {"answer": "Friday"}, "id": "1", "type": "tool_call"}


@dataclass
class AnswerData:
    answer: str
    sources: list[str] = field(default_factory=lambda: ["<7@example.com>"])


class AnswerModel(BaseModel):
    answer: str | None
    sources: tuple[str, ...] = ("<7@example.com>",)


class AnswerDict(TypedDict):
    answer: str
    sources: list[str]


class AnswerGraphState(BaseModel):
    messages: list[Any]
    structured_response: AnswerModel | None = None


def state(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [SystemMessage("Search."), HumanMessage("When?"), *messages], **more}


@pytest.mark.parametrize(
    "value",
    [
        JSON,
        f"\n{JSON}\n",
        {"answer": "Friday", "sources": ["<7@example.com>"], "reasoning": "It says so."},
        AnswerDict(answer="Friday", sources=["<7@example.com>"]),
        AnswerData("Friday"),
        AnswerModel(answer=" Friday\n"),
        AIMessage(JSON),
        AIMessage([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": JSON}]),
        AIMessage([JSON[:20], JSON[20:]]),
        {"role": "assistant", "content": JSON},
        SimpleNamespace(role="assistant", content=JSON, tool_calls=None),
        state(AIMessage("", tool_calls=[CALL]), ToolMessage("Given.", tool_call_id="1"), AIMessage(JSON)),
        state(AIMessage("Saturday"), structured_response=AnswerModel(answer="Friday")),
        state(AIMessage("Saturday"), structured_response=None, answer="Friday", sources=["<7@example.com>"]),
        state(AIMessage(JSON), HumanMessage("Thanks."), answer=None),
        AnswerGraphState(messages=[AIMessage(JSON)]),
        AnswerGraphState(messages=[], structured_response=AnswerModel(answer="Friday")),
        SimpleNamespace(final_output=JSON),
        SimpleNamespace(final_output=AnswerModel(answer="Friday")),
    ],
)
def test_forms_of_an_answer_with_its_sources(value: Any) -> None:
    assert read_answer(value) == FRIDAY


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("Friday", "Friday"),
        ('"Friday"', '"Friday"'),
        ("[1, 2]", "[1, 2]"),
        ('{"answer": ["Friday"]}', '{"answer": ["Friday"]}'),
        ('{"answer": "Friday", "sources": "<7@example.com>"}', '{"answer": "Friday", "sources": "<7@example.com>"}'),
        ('{"answer": "Friday"', '{"answer": "Friday"'),
        ('{"answer": ' * 500, ('{"answer": ' * 500).strip()),
        ("a\0b\ud800", "a\ufffdb\ufffd"),
        ({"answer": 42}, "42"),
        ('{"answer": 42, "sources": null}', "42"),
        (AIMessageChunk(content="Friday"), "Friday"),
    ],
)
def test_text_of_any_other_form_is_the_answer(value: Any, answer: str) -> None:
    assert read_answer(value) == ReturnedAnswer(answer)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " \n",
        {"answer": None},
        {"answer": ""},
        AnswerModel(answer=None, sources=()),
        state(),
        state(AIMessage("")),
        state(AIMessage("I search.", tool_calls=[CALL]), ToolMessage("Given.", tool_call_id="1")),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"messages": []},
        SimpleNamespace(final_output=None),
    ],
)
def test_an_agent_may_return_no_answer(value: Any) -> None:
    assert read_answer(value) == ReturnedAnswer(None)


class Broken:
    @property
    def final_output(self) -> str:
        raise OSError("a disk is gone")


@pytest.mark.parametrize(
    "value",
    [
        42,
        b"Friday",
        ["Friday"],
        ("Friday", ["<7@example.com>"]),
        {},
        {"result": "Friday"},
        {"answer": True},
        {"answer": b"Friday"},
        {"answer": {"text": "Friday"}},
        {"answer": "Friday", "sources": "<7@example.com>"},
        {"answer": "Friday", "sources": {"<7@example.com>"}},
        {"answer": "Friday", "sources": [7]},
        {"messages": "Friday"},
        HumanMessage("Friday"),
        AnswerModel,
        object(),
        Broken(),
        SimpleNamespace(final_output=42),
        SimpleNamespace(final_output=SimpleNamespace(final_output="Friday")),
        (each for each in "Friday"),
        "x" * (MAX_ANSWER + 1),
        '{"answer": "%s"}' % ("x" * (MAX_ANSWER + 1)),
        {"answer": "x" * (MAX_ANSWER + 1)},
        {"answer": "Friday", "sources": ["<7@example.com>"] * (MAX_SOURCES + 1)},
        {"answer": "Friday", "sources": ["x" * (MAX_SOURCE + 1)]},
        {"x" * 10_000: 1},
    ],
)
def test_anything_else_is_an_error_of_the_agent(value: Any) -> None:
    with pytest.raises(AgentFailedError) as caught:
        read_answer(value)
    assert caught.value.code == "gateway.agent-answer-invalid"
    assert len(str(caught.value)) < 500


def test_an_answer_may_be_as_long_as_the_limits_say() -> None:
    sources = ["x" * MAX_SOURCE] * MAX_SOURCES
    assert read_answer({"answer": "x" * MAX_ANSWER, "sources": sources}).sources == tuple(sources)
