"""Test the Python client against a real server, and against servers that fail."""

import dataclasses
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from gumshoe.client import (
    AgentAnswer,
    AgentClient,
    AgentStep,
    AnswerCost,
    AuthenticationError,
    CitedDocument,
    CitedMessage,
    CitedText,
    InboxForbiddenError,
    RequestRejectedError,
    ServerUnavailableError,
)
from tests.errors import raises
from tests.http_server import run_faulty_server
from tests.inference.fake_vllm import FakeVLLM, status
from tests.serving.agent_server import ANN, BOB, DAY, AgentProcess, ServerClient, ServerFiles, add_key
from tests.serving.in_process import make_settings, model_settings, serve_in_thread

QUESTION, ON = "What is in 7?", date.fromisoformat(DAY)
ANSWER = {
    "question": QUESTION,
    "inbox_address": ANN,
    "query_date": DAY,
    "answer": "7",
    "source_ids": [],
    "sources": [],
    "success": True,
    "reason": "",
    "steps": [],
    "policy": "adapter",
    "turns": 1,
    "seconds": 1.0,
    "of_a_newer_server": True,
}


@pytest.fixture
def client(server: AgentProcess) -> Iterator[AgentClient]:
    with AgentClient(server.url) as client:
        yield client


@pytest.fixture
def protected_server(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> Iterator[ServerClient]:
    """Run a server in a thread that requires a key, for Ann's mail, and accepts feedback."""
    key = add_key(tmp_path / "keys", "ann", [ANN])
    settings = make_settings(
        place,
        access={"keys": str(tmp_path / "keys")},
        model=model_settings(place, model.address),
        store=str(tmp_path / "store"),
        keeping={"feedback": True},
    )
    with serve_in_thread(settings, key=key) as running:
        yield running


def test_an_answer_has_steps_sources_and_cost(client: AgentClient) -> None:
    answer = client.ask(QUESTION, inbox=ANN, date=ON)
    assert (answer.answer, answer.success, answer.query_date) == ("Body of message 7", True, ON)
    assert [each.tool for each in answer.steps] == ["search_inbox", "read_email", "return_final_answer"]
    assert answer.sources[0].id == "<7@example.com>"
    assert answer.sources[0].label == f"2001-05-08 {ANN}: Subject 7 <7@example.com>"
    assert answer.cost is not None
    assert answer.cost.turns == 3


def test_a_stream_yields_the_steps_and_then_the_answer(client: AgentClient) -> None:
    *steps, answer = client.ask_stream(QUESTION, inbox=ANN, date=ON)
    assert [(each.turn, each.result is None) for each in steps if isinstance(each, AgentStep)] == [
        (1, True),
        (1, False),
        (2, True),
        (2, False),
        (3, True),
    ]
    assert isinstance(answer, AgentAnswer)
    assert answer.answer == "Body of message 7"


def test_a_stream_may_contain_any_character(client: AgentClient) -> None:
    text = "a\x85b\u2028c\x0bd\r\ne"
    call = {"name": "return_final_answer", "arguments": {"answer": text, "message_ids": []}}
    *_, answer = client.ask_stream(f"Call:{json.dumps(call)}", inbox=ANN, date=ON)
    assert isinstance(answer, AgentAnswer)
    assert answer.answer == text


def test_feedback_is_stored_and_sources_are_read(protected_server: ServerClient) -> None:
    with AgentClient(protected_server.url, protected_server.key) as client:
        answer = client.ask(QUESTION, date=ON)
        assert client.feedback(answer, right=True)
        assert not client.feedback(answer, right=False)
        assert client.feedback(answer, right=False, right_answer="8", right_source_ids=["<8@example.com>"])
        assert "Body of message 7" in client.read_source(answer, answer.source_ids[0]).text
        with raises("serving.source-not-found", "<99@example.com>"):
            client.read_source(answer, "<99@example.com>")


@pytest.mark.parametrize("key", ["secret\nword", "secr\u00e9t", "two secrets"])
def test_a_malformed_key_is_not_printed(key: str) -> None:
    with raises("serving.malformed-key") as raised:
        AgentClient("http://127.0.0.1:9", key)
    assert "secr" not in str(raised.value)


def test_errors_have_a_class_a_code_and_a_status(protected_server: ServerClient, model: FakeVLLM) -> None:
    with AgentClient(protected_server.url, "gum_wrong") as client, raises("serving.unknown-key", "401") as raised:
        client.ask(QUESTION)
    assert isinstance(raised.value, AuthenticationError)
    with AgentClient(protected_server.url, protected_server.key) as client:
        with raises("serving.inbox-forbidden", "403") as raised:
            client.ask(QUESTION, inbox=BOB)
        assert isinstance(raised.value, InboxForbiddenError)
        with raises("serving.question-too-long", "422", "9,000") as raised:
            next(client.ask_stream("?" * 9000))
        assert isinstance(raised.value, RequestRejectedError)
        assert raised.value.status == 422
        assert raised.value.request_id
        model.inject(status(400))
        with raises("serving.model-failed", "502") as raised:
            client.ask(QUESTION)
        assert isinstance(raised.value, ServerUnavailableError)


def test_a_date_may_be_written(server: ServerClient) -> None:
    with AgentClient(server.url) as client:
        for day in (DAY, date.fromisoformat(DAY)):
            assert str(client.ask(QUESTION, inbox=ANN, date=day).query_date) == DAY
        with raises("serving.invalid-date", "1 May"):
            client.ask(QUESTION, inbox=ANN, date="1 May")


def test_an_address_of_a_route_is_refused_with_a_hint(server: ServerClient) -> None:
    with AgentClient(f"{server.url}/invoke") as client, raises("serving.not-found", "without /invoke"):
        client.ask(QUESTION, inbox=ANN)


@pytest.mark.parametrize("code", [429, 503])
def test_requests_are_sent_again_if_the_server_is_busy(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = json.dumps({"type": "urn:gumshoe:error:serving.busy", "title": "Busy", "detail": "later"}).encode()
    answers = {"fine": (200, "application/json", json.dumps(ANSWER).encode())}
    pauses: list[float] = []
    with (
        run_faulty_server(
            faults := deque(["busy"] * 3),
            lambda _, fault: answers.get(fault, (code, "application/problem+json", problem)),
        ) as url,
        AgentClient(url) as client,
    ):
        monkeypatch.setattr(client._retrying, "sleep", pauses.append)
        assert client.ask(QUESTION).answer == "7"
        assert pauses == ([1, 1, 1] if code == 429 else [1, 2, 4])  # the test's server sends Retry-After with 429
        faults.extend(["busy"] * 4)
        with raises("serving.busy", url, code) as raised:
            client.ask(QUESTION)
        assert isinstance(raised.value, ServerUnavailableError)
        assert (raised.value.status, len(pauses)) == (code, 6)


def test_a_request_is_not_sent_again_if_the_budget_of_the_day_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "urn:gumshoe:error:serving.budget-exhausted"
    problem = json.dumps({"type": kind, "title": "Budget exhausted", "detail": "tomorrow"}).encode()
    pauses: list[float] = []
    with (
        run_faulty_server(deque(), lambda *_: (429, "application/problem+json", problem)) as url,
        AgentClient(url) as client,
    ):
        monkeypatch.setattr(client._retrying, "sleep", pauses.append)
        with raises("serving.budget-exhausted", url, 429):
            client.ask(QUESTION)
    assert pauses == []


STEP = b'event: step\ndata: {"turn": 1, "tool": "x", "arguments": {}, "text": ""}\n\n'
_TYPE = "urn:gumshoe:error:serving.model-failed"
LATE = f'event: problem\ndata: {{"type": "{_TYPE}", "title": "T", "status": 502, "detail": "D"}}\n\n'.encode()


@pytest.mark.parametrize(
    ("events", "code"), [([STEP, LATE], "serving.model-failed"), ([STEP, b": alive\n\n"], "serving.unreachable")]
)
def test_a_stream_that_ends_without_an_answer_is_an_error(events: list[bytes], code: str) -> None:
    with (
        run_faulty_server(deque(), lambda *_: (200, "text/event-stream", iter(events))) as url,
        AgentClient(url) as client,
    ):
        stream = client.ask_stream(QUESTION)
        assert isinstance(next(stream), AgentStep)
        with raises(code, url) as raised:
            next(stream)
    assert isinstance(raised.value, ServerUnavailableError)


@pytest.mark.parametrize(
    ("answered", "code"),
    [(502, "serving.unreachable"), (404, "serving.not-an-agent-server"), (200, "serving.not-an-agent-server")],
)
def test_a_response_of_another_server_is_an_error(answered: int, code: str) -> None:
    with (
        run_faulty_server(deque(), lambda *_: (answered, "text/html", b"<h1>Bad gateway</h1>")) as url,
        AgentClient(url) as client,
        raises(code, url),
    ):
        client.ask(QUESTION)


@pytest.mark.parametrize("kind", ["text/html", "text/event-stream"])
def test_a_stream_of_another_server_is_an_error(kind: str) -> None:
    page = b"<!doctype html>\n\n<html>data</html>\n\ndata:{}\n\n"
    with (
        run_faulty_server(deque(), lambda *_: (200, kind, page)) as url,
        AgentClient(url) as client,
        raises("serving.not-an-agent-server", url),
    ):
        list(client.ask_stream(QUESTION))


def test_the_client_needs_only_the_base_installation() -> None:
    """It also imports quickly: neither the server nor a model is loaded."""
    code = "import sys, gumshoe.client; print({'fastapi', 'mcp', 'transformers', 'torch'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_the_responses_have_the_fields_of_the_server_s_own_classes() -> None:
    from gumshoe.environments import base
    from gumshoe.rollouts import answer

    for kind, own in (
        (AgentAnswer, answer.Answer),
        (AgentStep, answer.AnswerStep),
        (AnswerCost, answer.Cost),
        (CitedMessage, base.MessageSource),
        (CitedDocument, base.DocumentSource),
        (CitedText, base.SourceText),
    ):
        assert set(kind.model_fields) == {each.name for each in dataclasses.fields(own)}, kind
