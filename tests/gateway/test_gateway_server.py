"""OpenAI's APIs of the gateway, as their real clients use them over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from gumshoe.environments.email import EmailEnvironment
from gumshoe.inference.policy import Completion, Policy, Sampling, ScriptedPolicy
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.turn_sampler import TurnSampler
from tests.gateway.served_episodes import QUESTION, Held
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.conversations import call
from tests.scenarios.questions import scenario
from tests.waiting import async_wait_until

if TYPE_CHECKING:
    from gumshoe.gateway.agent_episode import AgentEpisode
    from gumshoe.gateway.gateway_server import Gateway

SEARCH = call("search_inbox", keywords=["gas"])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("gateway"), [record(1, body="The gas price is 42.")], KEEP_ALL)


class Place:
    """A gateway with episodes, and clients for them."""

    def __init__(self, gateway: "Gateway", threads: ToolThreads, index: MailIndex, chat: ChatFormat) -> None:
        self.gateway, self.threads, self.index, self.chat = gateway, threads, index, chat

    def episode(self, policy: Policy, max_turns: int = 10) -> "AgentEpisode":
        from gumshoe.gateway.agent_episode import AgentEpisode

        limits = EpisodeLimits(max_turns, 100_000)
        start = EpisodeStart(EmailEnvironment(self.index, scenario(1), max_turns), "seed", limits, self.threads)
        sampler = TurnSampler(policy, self.chat, Sampling(max_tokens=200))
        return AgentEpisode(start, sampler, limits.max_context, AgentSettings(name="some.agent:run"))

    @asynccontextmanager
    async def client(self, episode: "AgentEpisode") -> AsyncIterator[AsyncOpenAI]:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with AsyncOpenAI(base_url=self.gateway.base_url, api_key=episode.key, http_client=http) as client:
            yield client


Test = Callable[[Place], Coroutine[Any, Any, Any]]


@pytest.fixture
def serve(index: MailIndex, chat: ChatFormat) -> Callable[[Test], Any]:
    """Run a test beside a gateway, in its event loop."""

    from gumshoe.gateway.episode_mcp import create_episode_mcp
    from gumshoe.gateway.gateway_server import open_gateway

    def run(test: Test) -> Any:
        async def main() -> Any:
            async with ToolThreads(2, 3600) as threads, open_gateway(create_episode_mcp()) as gateway:
                return await test(Place(gateway, threads, index, chat))

        return asyncio.run(main())

    return run


Serve = Callable[[Test], Any]


def say(tokenizer: Any, *turns: str) -> ScriptedPolicy:
    """Return a policy that says these turns, one after the other, and then the last one."""
    left = list(turns)
    return ScriptedPolicy(tokenizer, lambda *_: left.pop(0) if len(left) > 1 else left[0])


class Slow(Held):
    """Policy that waits until it is released."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.released.clear()

    async def sample(self, prompt_ids: Any, sampling: Sampling, **more: Any) -> Completion:
        await self.wait()
        return await self.policy.sample(prompt_ids, sampling, **more)


def test_a_conversation_with_tools_keeps_the_sampled_ids(serve: Serve, tokenizer: Any) -> None:
    async def test(place: Place) -> Trajectory:
        episode = place.episode(say(tokenizer, SEARCH, "It costs 42."))
        with place.gateway.admit(episode):
            async with place.client(episode) as client:
                tools: Any = episode.toolbox.schemas()
                first = await client.chat.completions.create(model="any", messages=QUESTION, tools=tools)
                choice = first.choices[0]
                assert (first.model, choice.finish_reason, choice.message.content) == ("scripted", "tool_calls", None)
                (made,) = choice.message.tool_calls or []
                assert isinstance(made.function.arguments, str)  # type: ignore[union-attr]
                result = {"role": "tool", "tool_call_id": made.id, "content": "42"}
                sent: Any = [*QUESTION, choice.message.model_dump(exclude_none=True), result]
                second = await client.chat.completions.create(model="any", messages=sent, tools=tools)
                assert second.choices[0].message.content == "It costs 42."
                assert (second.usage and second.usage.completion_tokens) == len(episode.trajectory.spans[-1].ids)
        return await episode.end("42", [])

    done = serve(test)
    assert (done.segments, done.turns, done.ending) == ([], 2, "answer")


@pytest.mark.parametrize("streamed", [False, True])
def test_the_responses_api_has_the_same_episode(serve: Serve, tokenizer: Any, streamed: bool) -> None:
    async def test(place: Place) -> Trajectory:
        episode = place.episode(say(tokenizer, SEARCH, "It costs 42."))
        with place.gateway.admit(episode):
            async with place.client(episode) as client:
                tools: Any = [{"type": "function", **each["function"]} for each in episode.toolbox.schemas()]

                async def ask(sent: Any, **more: Any) -> Any:
                    options = {"model": "any", "instructions": "You search.", "tools": tools, **more}
                    if not streamed:
                        return await client.responses.create(input=sent, **options)
                    async with client.responses.stream(input=sent, **options) as stream:
                        kinds = [event.type async for event in stream]
                        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
                        return await stream.get_final_response()

                first = await ask("What is the price of gas?")
                (made,) = first.output
                assert (made.type, made.name, first.model) == ("function_call", "search_inbox", "scripted")
                result = {"type": "function_call_output", "call_id": made.call_id, "output": "42"}
                second = await ask([result], previous_response_id=first.id)
                assert (second.output_text, second.status) == ("It costs 42.", "completed")
                question = {"role": "user", "content": "What is the price of gas?"}
                items = [question, made.model_dump(), result, second.output[0].model_dump()]
                third = await ask([*items, {"role": "user", "content": "And oil?"}])
                assert third.output_text == "It costs 42."
                with pytest.raises(openai.BadRequestError):
                    await ask("x", previous_response_id="resp_other")
        return await episode.end()

    done = serve(test)
    assert (done.segments, done.turns) == ([], 3)


def test_a_stream_has_the_parts_of_the_whole(serve: Serve, tokenizer: Any) -> None:
    async def test(place: Place) -> None:
        episode = place.episode(say(tokenizer, f"I look.\n{SEARCH}"))
        with place.gateway.admit(episode):
            async with place.client(episode) as client:
                tools: Any = episode.toolbox.schemas()
                options: Any = {"stream_options": {"include_usage": True}, "n": 2}
                async with client.chat.completions.stream(
                    model="any", messages=QUESTION, tools=tools, **options
                ) as stream:
                    found = await stream.get_final_completion()
        assert found.usage is not None
        assert len(found.choices) == 2
        for choice in found.choices:
            (made,) = choice.message.tool_calls or []
            assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
            assert json.loads(made.function.arguments) == {"keywords": ["gas"]}

    serve(test)


def test_several_turns_with_log_probabilities(serve: Serve, tokenizer: Any) -> None:
    async def test(place: Place) -> None:
        episode = place.episode(say(tokenizer, "It costs 42."))
        with place.gateway.admit(episode):
            async with place.client(episode) as client:
                found = await client.chat.completions.create(
                    model="any", messages=QUESTION, n=3, logprobs=True, stop=["42"], max_tokens=50
                )
        assert [each.message.content for each in found.choices] == ["It costs "] * 3
        for choice in found.choices:
            assert choice.logprobs is not None
            tokens = choice.logprobs.content or []
            assert "".join(each.token for each in tokens).startswith("It costs 42.")

    serve(test)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, 400, "gateway.results-mismatch"),
        ({"n": 3}, 429, "insufficient_quota"),
        ({"response_format": {"type": "json_object"}}, 400, "gateway.schema-unsupported"),
        ({"messages": [QUESTION[0], {"role": "user", "content": "gas " * 100_000}]}, 400, "context_length_exceeded"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_an_episode_refuses_has_its_status_in_streams_too(
    serve: Serve, tokenizer: Any, sent: dict[str, Any], status: int, code: str, streamed: bool
) -> None:
    async def test(place: Place) -> None:
        episode = place.episode(say(tokenizer, "Hello."), max_turns=2)
        async with httpx.AsyncClient(trust_env=False) as http:
            with place.gateway.admit(episode):
                head = {"authorization": f"Bearer {episode.key}"}
                body = {"messages": QUESTION, "stream": streamed, **sent}
                found = await http.post(f"{place.gateway.base_url}/chat/completions", json=body, headers=head)
        assert (found.status_code, found.json()["error"]["code"]) == (status, code)
        assert found.headers["x-should-retry"] == "false"
        assert episode.trajectory.turns == 0

    serve(test)


def test_an_agent_that_wants_no_calls_gets_them_as_text(serve: Serve, tokenizer: Any) -> None:
    async def test(place: Place) -> Trajectory:
        episode = place.episode(say(tokenizer, f"I look.\n{SEARCH}", "It costs 42."))
        with place.gateway.admit(episode):
            async with place.client(episode) as client:
                tools: Any = episode.toolbox.schemas()
                create = client.chat.completions.create
                first = await create(model="any", messages=QUESTION, tools=tools, tool_choice="none")
                (choice,) = first.choices
                assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
                assert choice.message.content == f"I look.\n{SEARCH}"
                sent: Any = [*QUESTION, choice.message.model_dump(), {"role": "user", "content": "Just answer."}]
                second = await create(model="any", messages=sent, tools=tools, tool_choice="none")
                assert second.choices[0].message.content == "It costs 42."
        return await episode.end()

    done = serve(test)
    assert (done.segments, done.turns) == ([], 2)


def test_requests_end_with_their_client_or_their_episode(serve: Serve, tokenizer: Any) -> None:
    async def test(place: Place) -> None:
        policy = Slow(say(tokenizer, "Hello."))
        episode = place.episode(policy, max_turns=100)
        async with place.client(episode) as client:
            create = client.chat.completions.create
            with place.gateway.admit(episode):
                left = asyncio.create_task(create(model="x", messages=QUESTION))
                await async_wait_until(lambda: policy.begun == 1)
                left.cancel()
                await async_wait_until(lambda: policy.cancelled == 1)
                late = asyncio.create_task(create(model="x", messages=QUESTION))
                streamed = asyncio.create_task(create(model="x", messages=QUESTION, stream=True))
                await async_wait_until(lambda: policy.begun == 3)
            for task in (late, streamed):
                with pytest.raises(openai.AuthenticationError):
                    await task
        assert (policy.cancelled, episode.trajectory.turns) == (3, 0)

    serve(test)
