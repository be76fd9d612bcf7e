"""OpenAI's Chat Completions API, as its client uses it over a real socket."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import uvloop
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from gumshoe.environments.tools import Call
from gumshoe.gateway.gateway_limits import MAX_CONTAINERS, MAX_DEPTH, MAX_MESSAGES, MAX_SAMPLES
from gumshoe.gateway.messages import AgentMessage, ModelRequest, SampledMessage
from tests.gateway.served_episodes import (
    BOTH,
    CALL,
    POLICY,
    QUESTION,
    TEXT,
    TOOL,
    Served,
    StandIn,
    serve,
    serve_in_thread,
)

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_tools_make_the_round_trip(streamed: bool, loop: Any) -> None:
    """The client of the official SDK runs in a thread, as that of an agent without async."""

    def ask(client: OpenAI, messages: list[Any]) -> Any:
        tools: Any = [TOOL]
        if not streamed:
            return client.chat.completions.create(model="any", messages=messages, tools=tools).choices[0].message
        with client.chat.completions.stream(model="any", messages=messages, tools=tools) as stream:
            return stream.get_final_completion().choices[0].message

    def run_agent(base_url: str, key: str) -> str:
        http = openai.DefaultHttpxClient(trust_env=False)
        with OpenAI(base_url=base_url, api_key=key, http_client=http) as client:
            said = ask(client, QUESTION)
            results = [
                {"role": "tool", "tool_call_id": each.id, "content": f"got {each.id}"} for each in said.tool_calls
            ]
            return str(ask(client, [*QUESTION, said.model_dump(), *results]).content)

    async def test(served: Served) -> None:
        episode = StandIn(BOTH, TEXT)
        with served.gateway.admit(episode):
            answer = await asyncio.to_thread(run_agent, served.gateway.base_url, episode.key)
        assert answer == TEXT.text
        first, second = episode.requests
        assert first.messages == (
            AgentMessage("system", "You search."),
            AgentMessage("user", "What is the price of gas?"),
        )
        assert first.tools == (TOOL,)
        assert second.messages == (
            *first.messages,
            AgentMessage("assistant", BOTH.text, BOTH.calls),
            AgentMessage("tool", "got call_1_ab", call_id="call_1_ab"),
            AgentMessage("tool", "got call_2_cd", call_id="call_2_cd"),
        )

    serve(test, loop=loop)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.1, "top_p": 0.5, "seed": 1, "user": "x", "store": True, "metadata": {"a": "b"}}, {}),
        ({"presence_penalty": 1, "frequency_penalty": 1, "parallel_tool_calls": False, "logit_bias": {}}, {}),
        ({"modalities": ["text"], "reasoning_effort": "low", "service_tier": "auto", "extra_body": {"min_p": 0.1}}, {}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 9, "max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"stop": "x"}, {"stops": ("x",)}),
        ({"stop": ["x", "", "y"]}, {"stops": ("x", "y")}),
        ({"n": 3}, {"samples": 3}),
        ({"logprobs": True}, {"logprobs": True}),
        ({"tools": [TOOL], "tool_choice": "none"}, {"tools": (TOOL,), "allows_calls": False}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": (TOOL,)}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "search_inbox"}}},
            {"tools": (TOOL,)},
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": {"type": "array"}},
                }
            },
            {"json_schema": {"type": "array"}},
        ),
    ],
)
def test_parameters_are_passed_on_or_ignored(given: dict[str, Any], expected: dict[str, Any]) -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                await client.chat.completions.create(model="any", messages=HELLO, **given)
        assert episode.requests == [ModelRequest((AgentMessage("user", "Hello"),), **expected)]

    serve(test)


def test_messages_of_all_roles_are_read() -> None:
    messages: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
        {"role": "user", "content": "Hello", "name": "ann"},
        {"role": "assistant", "content": None, "refusal": "I cannot.", "function_call": None, "audio": None},
        {"role": "user", "content": ""},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "not a name!", "arguments": ""}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "42"}]},
    ]

    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                await client.chat.completions.create(model="any", messages=messages)
        assert episode.requests[0].messages == (
            AgentMessage("system", "One.\nTwo."),
            AgentMessage("user", "Hello"),
            AgentMessage("assistant", ""),
            AgentMessage("user", ""),
            AgentMessage("assistant", "", (Call("not a name!", {}, "1"),)),
            AgentMessage("tool", "42", call_id="1"),
        )

    serve(test)


def test_completions_name_the_policy_and_have_several_choices() -> None:
    async def test(served: Served) -> None:
        episode = StandIn(TEXT, CALL)
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                create = client.chat.completions.create
                found = await create(model="any", messages=HELLO, n=3, logprobs=True, top_logprobs=1)
                other = await create(model="any", messages=HELLO)
        assert (found.model, found.system_fingerprint, found.object) == (POLICY, POLICY, "chat.completion")
        assert found.id != other.id
        assert [(each.index, each.finish_reason, each.message.content) for each in found.choices] == [
            (number, "stop", TEXT.text) for number in range(3)
        ]
        assert found.usage is not None
        assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (20, 4, 24)
        for choice in found.choices:
            assert choice.logprobs is not None
            tokens = choice.logprobs.content or []
            assert [(each.token, each.logprob) for each in tokens] == [*zip(TEXT.tokens, TEXT.logprobs, strict=True)]
            assert [each.top_logprobs[0].logprob for each in tokens] == [*TEXT.logprobs]
            assert bytes(tokens[0].bytes or []) == b"It"
        (choice,) = other.choices
        assert (choice.finish_reason, choice.message.content, choice.logprobs) == ("tool_calls", None, None)
        (made,) = choice.message.tool_calls or []
        assert made.type == "function"
        assert (made.id, json.loads(made.function.arguments)) == ("call_1_ab", {"keywords": ["gas", "Öl"]})

    serve(test)


def test_a_stream_is_events_that_the_api_defines() -> None:
    body = {"messages": HELLO, "stream": True, "n": 2, "logprobs": True, "stream_options": {"include_usage": True}}

    async def test(served: Served) -> None:
        calls = SampledMessage("I look.", BOTH.calls, "", "tool_calls", ("I look.",), (-1.0,))
        episode = StandIn(calls)
        with served.gateway.admit(episode):
            found = await served.post(episode, body)
        assert found.headers["content-type"].startswith("text/event-stream")
        *events, end, rest = found.text.split("\n\n")
        assert (end, rest) == ("data: [DONE]", "")
        chunks = [ChatCompletionChunk.model_validate_json(each.removeprefix("data: "), strict=True) for each in events]
        assert len({each.id for each in chunks}) == 1
        *parts, last = chunks
        assert last.choices == []
        assert (last.usage and last.usage.total_tokens) == 24
        for number in range(2):
            role, text, one, two, finish = (each.choices[0] for each in parts if each.choices[0].index == number)
            assert (role.delta.role, text.delta.content, finish.finish_reason) == ("assistant", "I look.", "tool_calls")
            assert text.logprobs is not None
            assert [each.logprob for each in text.logprobs.content or []] == [-1.0]
            for at, part in enumerate((one, two)):
                (call,) = part.delta.tool_calls or []
                assert (call.index, call.id, part.finish_reason) == (at, BOTH.calls[at].id, None)

    serve(test)


def say(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, **more}


def nest(depth: int) -> Any:
    found: Any = {}
    for _ in range(depth):
        found = {"properties": found}
    return found


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "x", "parameters": parameters}}


def schema(**given: Any) -> dict[str, Any]:
    return say(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": given}})


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[httpx.Client, StandIn]]:
    """Yield a client of a gateway, and its episode."""
    episode = StandIn()
    with serve_in_thread(episode) as http:
        yield http, episode


LARGE_CALL = {"id": "1", "function": {"name": "x", "arguments": f'{{"x": [{"[]," * (MAX_CONTAINERS // 2)}0]}}'}}
INVALID, UNSUPPORTED, PART = "gateway.invalid-request", "unsupported_parameter", "gateway.unsupported-content"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", INVALID, None),
        (b"", INVALID, None),
        (b"[]", INVALID, None),
        (b"[" * 100_000, INVALID, None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', INVALID, None),
        (b'{"messages": [{"role": "user", "content": "a\\u0000b"}]}', INVALID, "messages.0.content"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', INVALID, None),
        (say(tools=[tool(nest(MAX_DEPTH))]), INVALID, None),
        (say(metadata=[{}] * MAX_CONTAINERS), INVALID, None),
        ({}, INVALID, None),
        (say(messages=[]), INVALID, None),
        (say(messages=HELLO * (MAX_MESSAGES + 1)), INVALID, None),
        (say(messages=[{"role": "judge", "content": "x"}]), INVALID, None),
        (say(messages=[{"role": "function", "name": "x", "content": "x"}]), INVALID, None),
        (say(n=MAX_SAMPLES + 1), INVALID, None),
        (say(n=0), INVALID, None),
        (say(max_tokens=0), INVALID, None),
        (say(stop=["x"] * 17), INVALID, None),
        (say(tools=[{"type": "function", "function": {"name": "no name"}}]), INVALID, None),
        (say(tools=[{"type": "web_search"}]), "gateway.unsupported-tool", "tools.0"),
        (say(tools=[{"type": "custom", "custom": {"name": "x"}}]), "gateway.unsupported-tool", "tools.0"),
        (
            say(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "other"}}),
            INVALID,
            "tool_choice",
        ),
        (say(tool_choice={"type": "allowed_tools", "allowed_tools": {}}), UNSUPPORTED, "tool_choice"),
        (say(tool_choice=["auto"]), UNSUPPORTED, "tool_choice"),
        (say(logit_bias={"1": 2}), UNSUPPORTED, "logit_bias"),
        (say(audio={"voice": "x"}), UNSUPPORTED, "audio"),
        (say(modalities=["text", "audio"]), UNSUPPORTED, "modalities"),
        (say(prediction={"type": "content", "content": "x"}), UNSUPPORTED, "prediction"),
        (say(web_search_options={}), UNSUPPORTED, "web_search_options"),
        (say(functions=[{"name": "x"}]), UNSUPPORTED, "functions"),
        (say(function_call="auto"), UNSUPPORTED, "function_call"),
        (say(logprobs=True, top_logprobs=2), UNSUPPORTED, "top_logprobs"),
        (
            say(messages=[{"role": "assistant", "function_call": {"name": "x", "arguments": "{}"}}]),
            UNSUPPORTED,
            "function_call",
        ),
        (
            say(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            PART,
            "messages.0.content.0",
        ),
        (say(messages=[{"role": "user", "content": [{"type": "input_audio"}]}]), PART, "messages.0.content.0"),
        (
            say(
                messages=[
                    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "x", "arguments": "[1]"}}]}
                ]
            ),
            INVALID,
            "messages.0.tool_calls.0",
        ),
        (say(messages=[{"role": "assistant", "tool_calls": [LARGE_CALL, LARGE_CALL]}]), INVALID, None),
        (schema(type="string", maxLength=10**9), "gateway.schema-too-large", None),
        (schema(anyOf=[{"pattern": "a{2,99999}"}]), "gateway.schema-too-large", None),
        (schema(enum=["x" * 70_000]), "gateway.schema-too-large", None),
        (say(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": []}}), INVALID, None),
        (say(response_format={"type": "grammar"}), INVALID, None),
    ],
)
def test_bad_requests_have_an_error_in_openai_s_form(
    refusing: tuple[httpx.Client, StandIn], body: Any, code: str, param: str | None
) -> None:
    http, episode = refusing
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    found = http.post("/chat/completions", **content)
    error = found.json()["error"]
    assert (found.status_code, error["code"], error["param"]) == (400, code, param)
    assert (error["type"], found.headers["x-should-retry"]) == ("invalid_request_error", "false")
    assert error["message"]
    assert episode.requests == []
