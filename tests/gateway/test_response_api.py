"""OpenAI's Responses API, as its client uses it over a real socket."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gumshoe.environments.tools import Call
from gumshoe.gateway.admitted_episodes import StoredResponses
from gumshoe.gateway.gateway_limits import MAX_STORED, MAX_STORED_BYTES
from gumshoe.gateway.messages import AgentMessage, ModelRequest, SampledMessage
from tests.gateway.served_episodes import BOTH, CALL, POLICY, TEXT, TOOL, Served, StandIn, serve, serve_in_thread

FLAT: dict[str, Any] = {"type": "function", **TOOL["function"], "strict": True}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_tools_make_the_round_trip(streamed: bool) -> None:
    async def test(served: Served) -> None:
        episode = StandIn(BOTH, TEXT)
        with served.gateway.admit(episode):
            async with served.client(episode) as client:

                async def ask(sent: Any) -> Any:
                    options: Any = {"model": "any", "instructions": "You search.", "tools": [FLAT]}
                    if not streamed:
                        return await client.responses.create(input=sent, **options)
                    async with client.responses.stream(input=sent, **options) as stream:
                        return await stream.get_final_response()

                question = {"role": "user", "content": "What is the price of gas?"}
                first = await ask([question])
                calls = [each for each in first.output if each.type == "function_call"]
                results = [
                    {"type": "function_call_output", "call_id": each.call_id, "output": f"got {each.call_id}"}
                    for each in calls
                ]
                second = await ask([question, *(each.model_dump() for each in first.output), *results])
        assert [each.type for each in first.output] == ["message", "function_call", "function_call"]
        assert (first.output_text, first.status, first.model) == (BOTH.text, "completed", POLICY)
        assert (second.output_text, second.usage and second.usage.total_tokens) == (TEXT.text, 24)
        assert first.id != second.id
        opening = (AgentMessage("system", "You search."), AgentMessage("user", "What is the price of gas?"))
        assert episode.requests[0] == ModelRequest(opening, tools=(TOOL,))
        assert episode.requests[1].messages == (
            *opening,
            AgentMessage("assistant", BOTH.text, BOTH.calls),
            AgentMessage("tool", "got call_1_ab", call_id="call_1_ab"),
            AgentMessage("tool", "got call_2_cd", call_id="call_2_cd"),
        )

    serve(test)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_output_tokens": 7}, {"max_tokens": 7}),
        ({"temperature": 0.1, "store": False, "truncation": "auto", "reasoning": {"effort": "low"}}, {}),
        ({"parallel_tool_calls": False, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"]}, {}),
        ({"background": False, "text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"json_schema": {"type": "object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "array"}}}},
            {"json_schema": {"type": "array"}},
        ),
        ({"tools": [FLAT], "tool_choice": "none"}, {"tools": (TOOL,), "allows_calls": False}),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "search_inbox"}}, {"tools": (TOOL,)}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
    ],
)
def test_parameters_are_passed_on_or_ignored(given: dict[str, Any], expected: dict[str, Any]) -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                found = await client.responses.create(model="any", input="Hello", **given)
        assert episode.requests == [ModelRequest((AgentMessage("user", "Hello"),), **expected)]
        part: Any = found.output[0].content[0]
        assert [each.logprob for each in part.logprobs] == [*(TEXT.logprobs if expected.get("logprobs") else ())]

    serve(test)


def test_items_of_all_kinds_are_read() -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "call_id": "1", "name": "search_inbox", "arguments": '{"keywords": ["gas"]}'},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"type": "function_call", "call_id": "2", "name": "search_inbox", "arguments": ""},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "one"}]},
        {"type": "function_call_output", "call_id": "2", "output": "two"},
        {"type": "function_call", "call_id": "3", "name": "search_inbox", "arguments": "{}"},
        {"role": "assistant", "content": "It is late."},
    ]

    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                await client.responses.create(model="any", input=items)
        assert episode.requests[0].messages == (
            AgentMessage("system", "Be brief."),
            AgentMessage("user", "Hello"),
            AgentMessage(
                "assistant",
                "I look.",
                (Call("search_inbox", {"keywords": ["gas"]}, "1"), Call("search_inbox", {}, "2")),
            ),
            AgentMessage("tool", "one", call_id="1"),
            AgentMessage("tool", "two", call_id="2"),
            AgentMessage("assistant", "", (Call("search_inbox", {}, "3"),)),
            AgentMessage("assistant", "It is late."),
        )

    serve(test)


@pytest.mark.parametrize(
    ("turn", "last"),
    [
        (TEXT, "response.completed"),
        (BOTH, "response.completed"),
        (SampledMessage("It co", (), "", "length"), "response.incomplete"),
    ],
)
def test_a_stream_is_events_that_the_api_defines(turn: SampledMessage, last: str) -> None:
    async def test(served: Served) -> None:
        episode = StandIn(turn)
        with served.gateway.admit(episode):
            found = await served.post(episode, {"input": "Hello", "stream": True, "tools": [FLAT]}, "/responses")
        assert found.headers["content-type"].startswith("text/event-stream")
        events = list[Any]()
        for text in found.text.removesuffix("\n\n").split("\n\n"):
            name, data = text.split("\n")
            event = EVENTS.validate_json(data.removeprefix("data: "))
            assert name == f"event: {event.type}"
            events.append(event)
        assert [each.sequence_number for each in events] == list(range(len(events)))
        kinds = [each.type for each in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == last
        begun, whole = events[0].response, events[-1].response
        assert (begun.id, begun.created_at, begun.status) == (whole.id, whole.created_at, "in_progress")
        written = "".join(each.delta for each in events if each.type == "response.output_text.delta")
        assert written == whole.output_text == turn.text
        assert kinds.count("response.function_call_arguments.done") == len(turn.calls)
        added = [each.item.id for each in events if each.type == "response.output_item.added"]
        done = [each.item for each in events if each.type == "response.output_item.done"]
        assert added == [each.id for each in done]
        assert done == whole.output

    serve(test)


def test_a_response_is_continued_by_its_id_in_its_own_episode() -> None:
    async def test(served: Served) -> None:
        one, other = StandIn(CALL, TEXT), StandIn()
        with served.gateway.admit(one), served.gateway.admit(other):
            async with served.client(one) as client, served.client(other) as stranger:
                first = await client.responses.create(model="any", input="Hello", instructions="You search.")
                result: Any = {"type": "function_call_output", "call_id": "call_1_ab", "output": "42"}
                await client.responses.create(model="any", input=[result], previous_response_id=first.id)
                for number in (first.id, "resp_unknown"):
                    with pytest.raises(openai.BadRequestError) as raised:
                        await stranger.responses.create(model="any", input="x", previous_response_id=number)
                    assert raised.value.code == "gateway.unknown-response"
        assert one.requests[1].messages == (  # instructions are not continued
            AgentMessage("user", "Hello"),
            AgentMessage("assistant", "", CALL.calls),
            AgentMessage("tool", "42", call_id="call_1_ab"),
        )
        assert other.requests == []

    serve(test)


def test_old_responses_are_forgotten() -> None:
    async def test(served: Served) -> tuple[int, int]:
        episode = StandIn()
        with served.gateway.admit(episode):
            created = [await served.post(episode, {"input": "Hello"}, "/responses") for _ in range(MAX_STORED + 1)]
            continued = [
                await served.post(episode, {"input": "x", "previous_response_id": each.json()["id"]}, "/responses")
                for each in created[:2]
            ]
        return continued[0].status_code, continued[1].status_code

    assert serve(test) == (400, 200)


def test_large_responses_are_forgotten_earlier() -> None:
    stored = StoredResponses()
    for number in range(4):
        stored.add(str(number), (), MAX_STORED_BYTES // 2)
    assert [stored.find(str(number)) is not None for number in range(4)] == [False, False, True, True]


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[httpx.Client, StandIn]]:
    """Yield a client of a gateway, and its episode."""
    episode = StandIn()
    with serve_in_thread(episode) as http:
        yield http, episode


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "gateway.invalid-request"),
        ({"input": []}, "gateway.invalid-request"),
        ({"input": "x", "background": True}, "unsupported_parameter"),
        ({"input": "x", "conversation": "conv_1"}, "unsupported_parameter"),
        ({"input": "x", "prompt": {"id": "p"}}, "unsupported_parameter"),
        ({"input": "x", "top_logprobs": 5}, "unsupported_parameter"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "gateway.unsupported-tool"),
        ({"input": "x", "tool_choice": {"type": "web_search"}}, "unsupported_parameter"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "gateway.unsupported-item"),
        ({"input": [{"type": "message", "role": "judge", "content": "x"}]}, "gateway.unsupported-item"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "gateway.unsupported-content"),
        ({"input": [{"role": "user", "content": "x"}] * 2_001}, "gateway.invalid-request"),
        (
            {"input": [{"type": "function_call", "name": "x", "arguments": '{"x": [' + "[]," * 50_000 + "0]}"}]},
            "gateway.invalid-request",
        ),
    ],
)
def test_bad_requests_have_an_error_in_openai_s_form(
    refusing: tuple[httpx.Client, StandIn], body: Any, code: str
) -> None:
    http, episode = refusing
    found = http.post("/responses", json=body)
    assert (found.status_code, found.json()["error"]["code"]) == (400, code)
    assert episode.requests == []
