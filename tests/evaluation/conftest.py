"""Fixtures of evaluations: an index, scenarios about it, a tokenizer, and a server with two chat models."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.inference.fake_vllm import FakeVLLM, chat_turn, next_call, write_tokenizer
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question, write_questions

QUESTIONS = 12
KINDS = ("who", "when", "where")
WRONG_ANSWER = "Nobody knows what it said"


@dataclass(frozen=True)
class Place:
    """An index, scenarios about it, and the tokenizer of token policies."""

    index: Path
    scenarios: Path
    tokenizer: Path


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("evaluation")
    index = make_index(directory, map(record, range(1, 25))).path.parent
    lines = [
        question(number, split="test" if number <= QUESTIONS else "train", kind=KINDS[number % 3])
        for number in range(1, 21)
    ]
    scenarios = write_questions(directory / "q.jsonl", lines)
    return Place(index, Path(scenarios), write_tokenizer(directory / "model"))


def wrong_about(*numbers: int, of: str = "base") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a chat model that answers correctly, except that the model `of` errs on these questions."""

    def chat(request: dict[str, Any]) -> dict[str, Any]:
        results = [each["content"] for each in request["messages"] if each["role"] == "tool"]
        asked = next(each["content"] for each in request["messages"] if each["role"] == "user")
        name, arguments = next_call(asked, results)
        number = int(re.findall(r"\d+", asked)[-1])
        if request["model"] == of and number in numbers and name == "return_final_answer":
            arguments = {"answer": WRONG_ANSWER, "message_ids": ["<99@example.com>"]}
        turn = chat_turn(None, (name, json.dumps(arguments)), call=f"call-{len(results)}")
        return turn | {"usage": {"prompt_tokens": 500, "completion_tokens": 50, "total_tokens": 550}}

    return chat


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM(chat=wrong_about(2, 3, 5, 7)) as server:
        yield server
    assert server.errors == []


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry judges without pauses."""
    monkeypatch.setattr("gumshoe.rewards.chat_judge._MAX_PAUSE", 0)
