"""The tools of an agent, for MCP clients: with the SDK's own client, over HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gumshoe.serving.access import add_key
from tests.agent.fake_vllm import FakeVLLM, status
from tests.serving.agent_server import ANN, BOB, DAY, EVE, SECRET, Place, Running, started


@pytest.fixture(scope="module")
def walled(place: Place, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose one key reads Ann's mail."""
    directory = tmp_path_factory.mktemp("mcp")
    key = add_key(directory / "keys", "ann", [ANN])
    policy = f"vllm:{shared_model.address}#adapter"
    with started(place, policy, directory / "log", "--keys", str(directory / "keys"), key=key) as running:
        yield running


def called(server: Running, *calls: tuple[str, dict[str, Any]], key: str | None = None) -> list[tuple[bool, str]]:
    """Of each call of a tool whether it failed, and its text."""

    async def call() -> list[tuple[bool, str]]:
        headers = {"Authorization": f"Bearer {key or server.key}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
            Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
        ):
            assert {each.name for each in (await client.list_tools()).tools} == {"search_inbox", "read_email", "ask"}
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [(bool(each.is_error), each.content[0].text) for each in answers]  # type: ignore[union-attr]

    return asyncio.run(call())


def test_an_mcp_client_searches_reads_and_asks(walled: Running, model: FakeVLLM) -> None:
    found, read, asked = called(
        walled,
        ("search_inbox", {"keywords": ["body", "7"], "query_date": DAY}),
        ("read_email", {"message_id": "<7@example.com>"}),
        ("ask", {"question": "What is in 7?", "query_date": DAY}),
    )
    assert "id: <7@example.com>" in found[1]
    assert "Body of message 7" in read[1]
    assert '"answer": "Body of message 7"' in asked[1]
    assert '"policy": "adapter"' in asked[1]
    assert not any(each[0] for each in (found, read, asked))
    assert len(model.requests) == 3


def test_what_cannot_be_done_is_told_to_the_model(walled: Running, model: FakeVLLM) -> None:
    model.inject(status(500), times=None)
    none, words, failed, empty = called(
        walled,
        ("read_email", {"message_id": "<1000@example.com>"}),
        ("search_inbox", {"keywords": []}),
        ("ask", {"question": "What is in 7?"}),
        ("ask", {"question": " "}),
    )
    assert all(each[0] for each in (none, words, failed, empty))
    assert "there is no message '<1000@example.com>' in this inbox" in none[1]
    assert "keyword" in words[1]
    assert "the model gave no answer that can be used" in failed[1]
    assert "the question is empty" in empty[1]


def test_no_tool_reaches_another_s_mail(walled: Running, model: FakeVLLM) -> None:  # noqa: ARG001 - healthy
    answers = called(
        walled,
        ("search_inbox", {"keywords": ["vault"], "inbox_address": EVE}),
        ("search_inbox", {"keywords": ["body"], "inbox_address": BOB}),
        ("read_email", {"message_id": "<99@example.com>", "inbox_address": EVE}),
        ("ask", {"question": "What is in 99?", "inbox_address": EVE}),
        ("read_email", {"message_id": "<99@example.com>"}),
        ("search_inbox", {"keywords": ["vault"]}),
        ("search_inbox", {"keywords": ["body"], "sender": EVE}),
        ("ask", {"question": "What is in 99?"}),
    )
    assert [each[0] for each in answers[:5]] == [True] * 5
    assert all("you may not read that inbox" in each[1] for each in answers[:4])
    assert not any(SECRET in each[1] or "Mine alone" in each[1] for each in answers)


def test_nobody_without_a_key_speaks_to_it(walled: Running) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    kinds = {"Accept": "application/json, text/event-stream"}
    for headers in ({}, {"Authorization": "Bearer gum_nothing"}):
        response = httpx.post(f"{walled.url}/mcp", json=hello, headers={**kinds, **headers}, trust_env=False)
        assert response.status_code == 401
    with pytest.raises(BaseException, match=r"401|unhandled|Unauthorized"):
        called(walled, key="gum_nothing")
