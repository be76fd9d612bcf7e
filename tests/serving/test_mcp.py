"""Test the MCP server with the SDK's own client over HTTP."""

import asyncio
import importlib.metadata
import threading
from typing import Any

import httpx
import pytest

from gumshoe.environments.data_marks import NOTE
from tests.inference.fake_vllm import FakeVLLM, stall, status
from tests.serving.agent_server import (
    BOB,
    DAY,
    EVE,
    SECRET,
    AgentProcess,
    ServerFiles,
    code_of,
)
from tests.serving.in_process import make_scenario, make_settings
from tests.serving.mcp_client import call_tools, open_client
from tests.waiting import Clock, async_wait_until, wait_until


def test_an_mcp_client_learns_what_the_server_and_its_tools_do(server_with_key: AgentProcess) -> None:
    async def look() -> tuple[Any, str, list[Any], Any]:
        async with open_client(server_with_key) as client:
            tools = (await client.list_tools()).tools
            read = await client.call_tool("read_email", {"message_id": "<7@example.com>"})
            return client.server_info, str(client.instructions), tools, read

    info, instructions, tools, read = asyncio.run(look())
    assert (info.name, info.title, info.version) == ("gumshoe", "Gumshoe", importlib.metadata.version("gumshoe-agents"))
    for value in ("`ask`", "`search_inbox`", "`read_email`", "inbox_address", "2,000", "3600", "serving.busy", NOTE):
        assert value in instructions
    assert {each.name: each.title for each in tools} == {
        "search_inbox": "Search inbox",
        "read_email": "Read email",
        "ask": "Ask the agent",
    }
    for each in tools:
        assert each.input_schema["additionalProperties"] is False
        hints = each.annotations
        assert (hints.read_only_hint, hints.destructive_hint) == (True, False)
        assert (hints.idempotent_hint, hints.open_world_hint) == (True, False)
        for name, argument in each.input_schema["properties"].items():
            assert argument["description"], name
            assert argument["examples"], name
    named = {each.name: each for each in tools}
    assert all(each["description"] for each in named["ask"].output_schema["properties"].values())
    assert "page" in named["read_email"].input_schema["properties"]
    assert (named["read_email"].output_schema, read.structured_content) == (None, None), "text is sent once"


def test_an_mcp_client_searches_reads_and_asks(server_with_key: AgentProcess, model: FakeVLLM) -> None:
    partial = {"keywords": ["body", "7", "zebra"], "one_per_thread": True, "query_date": DAY}
    blamed, thread, found, read, asked = call_tools(
        server_with_key,
        ("search_inbox", partial),
        ("read_email", {"message_id": "<7@example.com>", "whole_thread": True}),
        ("search_inbox", {"keywords": ["body", "7"], "query_date": DAY}),
        ("read_email", {"message_id": "<7@example.com>"}),
        ("ask", {"question": "What is in 7?", "query_date": DAY}),
    )
    assert '"7" 1, "zebra" 0.' in blamed[1].splitlines()[1]
    assert "id: <7@example.com>" in blamed[1]
    assert "Body of message 7" in thread[1]
    assert "id: <7@example.com>" in found[1]
    assert "Body of message 7" in read[1]
    assert '"answer": "Body of message 7"' in asked[1]
    assert '"policy": "adapter"' in asked[1]
    assert not any(each[0] for each in (blamed, thread, found, read, asked))
    assert len(model.requests) == 3


def test_failed_calls_are_reported_to_the_client(server_with_key: AgentProcess, model: FakeVLLM) -> None:
    model.inject(status(500), times=None)
    none, words, failed, empty, late, unknown, lacking = call_tools(
        server_with_key,
        ("read_email", {"message_id": "<1000@example.com>"}),
        ("search_inbox", {"keywords": []}),
        ("ask", {"question": "What is in 7?"}),
        ("ask", {"question": " "}),
        ("search_inbox", {"keywords": ["body"], "query_date": "9999-12-31"}),
        ("search_inbox", {"keywords": ["body"], "inbox": EVE}),
        ("search_inbox", {}),
    )
    assert all(each[0] for each in (none, words, failed, empty, late, unknown, lacking))
    assert late[1].endswith("[scenarios.invalid-query-date]")
    assert "9999-12-31" in late[1]
    assert "'<1000@example.com>'" in none[1]
    assert none[1].endswith("[serving.source-not-found]")
    assert "keyword" in words[1]
    for each, value in ((unknown, "inbox_address"), (lacking, "keywords: ")):
        assert each[1].endswith("[serving.invalid-request]")
        assert value in each[1]
    assert failed[1].endswith("[serving.model-failed]")
    assert empty[1].endswith("[scenarios.empty-question]")


def test_tools_cannot_read_another_user_s_mail(server_with_key: AgentProcess, model: FakeVLLM) -> None:  # noqa: ARG001 - healthy
    answers = call_tools(
        server_with_key,
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
    assert all(each[1].endswith("[serving.inbox-forbidden]") for each in answers[:4])
    assert not any(SECRET in each[1] or "Mine alone" in each[1] for each in answers)


def test_requests_without_a_valid_key_are_refused(server_with_key: AgentProcess) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    kinds = {"Accept": "application/json, text/event-stream"}
    for headers in ({}, {"Authorization": "Bearer gum_nothing"}):
        response = httpx.post(f"{server_with_key.url}/mcp", json=hello, headers={**kinds, **headers}, trust_env=False)
        assert response.status_code == 401
        assert code_of(response) == ("serving.unknown-key" if headers else "serving.credentials-missing")


def test_only_post_requests_are_accepted(server_with_key: AgentProcess) -> None:
    """A GET request would open a stream of server notifications, which never sends anything."""
    for method in ("GET", "DELETE"):
        response = server_with_key.client.request(method, "/mcp", headers={"Accept": "text/event-stream"})
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert code_of(response) == "serving.method-not-allowed"


def test_a_stream_of_changes_cannot_be_opened(server_with_key: AgentProcess) -> None:
    """It would hold its connection without end, and never send anything."""
    from mcp import MCPError

    async def listen() -> None:
        async with open_client(server_with_key) as client:
            offered = client.server_capabilities.tools
            assert offered is not None
            assert not offered.list_changed
            with pytest.raises(MCPError, match="Method not found"):
                async with asyncio.timeout(30), client.listen(tools_list_changed=True):
                    raise AssertionError("it was opened")

    asyncio.run(listen())


@pytest.mark.ci
def test_a_disconnected_client_frees_its_slot(server_with_key: AgentProcess, model: FakeVLLM) -> None:
    def count_cancelled() -> float:
        return server_with_key.metric("gumshoe_questions_total", policy="adapter", result="cancelled")

    model.inject(stall, times=None)
    before = count_cancelled()
    call = {"name": "ask", "arguments": {"question": "What is in 7?", "query_date": DAY}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    for version in ("2025-06-18", "2025-11-25"):
        kinds = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
        with pytest.raises(httpx.ReadTimeout):
            server_with_key.client.post("/mcp", json=body, headers=kinds, timeout=0.7)
        wait_until(lambda: server_with_key.metric("gumshoe_running") == 0)
    wait_until(lambda: count_cancelled() == before + 2)


def test_calls_have_a_limit_and_a_deadline(place: ServerFiles, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    from gumshoe.environments.registry import open_env
    from gumshoe.environments.tools import Call
    from gumshoe.mail.index import MailIndex
    from gumshoe.rollouts.tool_threads import ToolThreads
    from gumshoe.serving.errors import DeadlineExceededError
    from gumshoe.serving.fair_limiter import BusyError
    from gumshoe.serving.service import AnswerService
    from gumshoe.serving.telemetry import Metrics, create_tracer

    env_factory, is_searched, go_on = open_env(place.index), threading.Event(), threading.Event()

    def search_for_long(*_: Any, **__: Any) -> list[Any]:
        is_searched.set()
        return [go_on.wait()]

    monkeypatch.setattr(MailIndex, "search", search_for_long)
    settings = make_settings(place, limits={"concurrency": 1, "queue": 1, "deadline": 3600})
    search = Call("search_inbox", {"keywords": ["body"]})

    async def call() -> list[Any]:
        async with ToolThreads(deadline=7200) as threads:
            service = AnswerService(settings, env_factory, Metrics(), create_tracer(), threads, lambda *_: None, [])
            try:
                calls = [asyncio.create_task(service.call(make_scenario(), search, "ann")) for _ in range(3)]
                await async_wait_until(lambda: is_searched.is_set() and calls[2].done())
                clock.advance(3500)
                await asyncio.sleep(0.05)
                assert not any(each.done() for each in calls[:2])
                clock.advance(101)
                return await asyncio.gather(*calls, return_exceptions=True)
            finally:
                go_on.set()

    assert [type(each) for each in asyncio.run(call())] == [DeadlineExceededError, DeadlineExceededError, BusyError]
