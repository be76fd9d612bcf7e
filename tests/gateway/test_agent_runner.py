"""Episodes that real agents run through the gateway: the same tokens as those of our own loop, and their endings."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import Policy, PolicyError, Sampling, ScriptedPolicy
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.episode_runners import open_token_runner
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.conversations import call
from tests.scenarios.questions import scenario
from tests.waiting import Clock, async_wait_until

if TYPE_CHECKING:
    from gumshoe.gateway.agent_task import AgentTask

ID = "<1@example.com>"
TURNS = (
    f"I look.\n{call('search_inbox', keywords=['gas'])}",
    call("read_email", message_id=ID),
    call("return_final_answer", answer="42", message_ids=[ID]),
)
EXAMPLES = {
    "langgraph": "examples.langgraph_email.agent:graph",
    "openai agents": "examples.openai_agents.agent:search_agent",
    "node": {"command": ["node", str(Path(__file__).parents[2] / "examples" / "node" / "agent.mjs")]},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("runner"), [record(1, body="The gas price is 42.")], KEEP_ALL)


@pytest.fixture
def run(tokenizer: Any, chat: ChatFormat, index: MailIndex) -> Callable[..., list[Trajectory]]:
    """Run episodes of an agent at once, or of our own loop without one."""

    def say(prompt: str, seed: int) -> str:  # noqa: ARG001
        return TURNS[min(prompt.count("<tool_response>"), 2)]

    def play(
        agent: Any = None, policy: Policy | None = None, episodes: int = 1, max_turns: int = 6, **settings: Any
    ) -> list[Trajectory]:
        async def main() -> list[Trajectory]:
            parsed = None
            if agent is not None:
                own = agent if isinstance(agent, dict) else {"name": agent}
                parsed = AgentSettings.parse({**own, **settings})
            limits = EpisodeLimits(max_turns, 100_000)
            said, sampling = policy or ScriptedPolicy(tokenizer, say), Sampling(max_tokens=300)
            async with (
                ToolThreads(2, 3600) as threads,
                open_token_runner(said, chat, sampling, limits.max_context, parsed) as runner,
            ):
                starts = [
                    EpisodeStart(EmailEnvironment(index, scenario(1), max_turns), f"{at}", limits, threads, at)
                    for at in range(episodes)
                ]
                return await asyncio.gather(*map(runner, starts))

        return asyncio.run(main())

    return play


Run = Callable[..., list[Trajectory]]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_have_the_tokens_and_records_of_our_own_loop(run: Run, example: str) -> None:
    (own,) = run()
    assert (own.ending, own.turns, own.record.right_sources) == ("answer", 3, [ID])
    for done in run(EXAMPLES[example], episodes=2):
        assert [(each.origin, each.ids) for each in done.spans] == [(each.origin, each.ids) for each in own.spans]
        assert (done.record, done.ending, done.segments, done.mistakes) == (own.record, own.ending, [], [])
        assert [each.logprobs for each in done.spans] == [each.logprobs for each in own.spans]


async def ask(task: "AgentTask", **more: Any) -> Any:
    """Request one turn. The client has no timeout of its own, which would elapse if a test moves the clock forward."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    http = DefaultAsyncHttpxClient(trust_env=False)
    async with AsyncOpenAI(
        base_url=task.base_url, api_key=task.api_key, http_client=http, max_retries=0, timeout=None
    ) as client:
        texts = {"system": task.system_prompt, "user": task.user_prompt}
        messages: Any = [{"role": role, "content": text} for role, text in texts.items()]
        return await client.chat.completions.create(model=task.model, messages=messages, **more)


async def answers(task: "AgentTask") -> dict[str, Any]:
    """Answer after one turn."""
    await ask(task)
    return {"answer": "42", "sources": [ID]}


async def fails(task: "AgentTask") -> None:
    """Fail after one turn."""
    await ask(task)
    raise RuntimeError("no idea")


async def fails_at_once(_: "AgentTask") -> None:
    """Fail before the first turn."""
    raise RuntimeError("no idea")


async def answers_and_fails(task: "AgentTask") -> None:
    """Answer with a call, and fail."""
    await ask(task)
    await task.tools.call_async("return_final_answer", answer="42", message_ids=[ID])
    raise RuntimeError("I am a clumsy agent")


async def never_ends(task: "AgentTask") -> None:
    """Ask once, and then wait for ever."""
    await ask(task)
    await asyncio.Event().wait()


async def asks_on(task: "AgentTask") -> None:
    """Ask until it is refused."""
    while True:
        await ask(task)


def named(agent: Any) -> str:
    return f"{__name__}:{agent.__name__}"


def test_what_an_agent_returns_is_its_answer(run: Run) -> None:
    (done,) = run(named(answers))
    assert (done.ending, done.record.answer, done.record.right_sources) == ("answer", "42", [ID])


@pytest.mark.parametrize(
    ("agent", "settings", "ending"),
    [
        (fails, {}, "agent failed"),
        (never_ends, {"deadline": 2}, "agent too slow"),
        (asks_on, {}, "max turns"),
        (asks_on, {"on_error": "retry"}, "max turns"),
    ],
)
def test_an_agent_s_own_failure_is_scored(run: Run, agent: Any, settings: dict[str, Any], ending: str) -> None:
    (done,) = run(named(agent), max_turns=3, **settings)
    assert done.ending == ending
    assert done.turns == (3 if agent is asks_on else 1)
    assert Trajectory.from_json(done.to_json(), "line 1") == done


def test_a_failure_after_the_answer_does_not_matter(run: Run) -> None:
    (done,) = run(named(answers_and_fails), on_error="retry")
    assert (done.ending, done.record.answer) == ("answer", "42")


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        (fails, {"on_error": "retry"}),
        (fails_at_once, {}),
        (never_ends, {"deadline": 2, "on_deadline": "retry"}),
        ({"command": ["sh", "-c", "kill -9 $$"]}, {}),
    ],
)
def test_other_failures_say_nothing_about_the_policy(run: Run, agent: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(UnavailableError) as caught:
        run(agent if isinstance(agent, dict) else named(agent), **settings)
    assert caught.value.code == "gateway.agent-failed"


def test_a_slow_policy_is_no_slow_agent(run: Run, tokenizer: Any, clock: Clock) -> None:
    class Slow(ScriptedPolicy):
        async def sample(self, *given: Any, **more: Any) -> Any:
            clock.advance(1000)
            await asyncio.sleep(0.01)
            return await super().sample(*given, **more)

    (done,) = run(named(answers), Slow(tokenizer, lambda *_: TURNS[0]), deadline=100)
    assert (done.ending, done.turns) == ("answer", 1)


def test_a_failure_of_the_policy_is_none_of_the_agent(run: Run) -> None:
    class Failing:
        async def sample(self, *_: Any, **__: Any) -> Any:
            raise PolicyError("inference.unreachable", "gone")

    for agent in (answers, fails, asks_on):
        with pytest.raises(PolicyError):
            run(named(agent), Failing())


held: list["AgentTask"] = []


async def leaks_and_fails(task: "AgentTask") -> None:
    """Keep the task, and fail before the first turn."""
    held.append(task)
    raise RuntimeError("no idea")


async def leaks_and_waits(task: "AgentTask") -> None:
    """Keep the task, and wait for ever."""
    held.append(task)
    await asyncio.Event().wait()


@pytest.mark.parametrize("agent", [leaks_and_fails, leaks_and_waits])
def test_an_abandoned_agent_cannot_read_on(tokenizer: Any, chat: ChatFormat, index: MailIndex, agent: Any) -> None:
    """Its episode was cancelled, or is run again, but its threads may go on with the tools that they hold."""
    from gumshoe.gateway.gateway_errors import UnknownKeyError

    held.clear()
    policy, settings = ScriptedPolicy(tokenizer, lambda *_: TURNS[0]), AgentSettings.parse(named(agent))

    async def read_on() -> None:
        async with ToolThreads(2, 3600) as threads, open_token_runner(policy, chat, Sampling(), 4096, settings) as run:
            environment = EmailEnvironment(index, scenario(1), 6)
            episode = asyncio.ensure_future(run(EpisodeStart(environment, "0", EpisodeLimits(6, 4096), threads)))
            await async_wait_until(lambda: bool(held))
            if agent is leaks_and_waits:
                episode.cancel()
            await asyncio.wait({episode})
            with pytest.raises(UnknownKeyError):
                await held[0].tools.call_async("search_inbox", keywords=["gas"])
            assert environment.record.searches == 0

    asyncio.run(read_on())


refused = threading.Event()


async def gives_up(task: "AgentTask") -> str | None:
    """Ask twice at once, and have no answer if a request is refused."""
    from openai import RateLimitError

    async def ask_once() -> bool:
        try:
            await ask(task)
        except RateLimitError:
            refused.set()
            return True
        return False

    return None if any(await asyncio.gather(ask_once(), ask_once())) else "42"


async def carries_on(task: "AgentTask") -> str:
    """Answer although a request is refused."""
    await gives_up(task)
    return "42"


def test_an_agent_that_gives_up_because_the_gateway_is_busy_runs_again(
    run: Run, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.gateway import gateway_server
    from gumshoe.gateway.gateway_limits import GatewayLimits

    class Slow(ScriptedPolicy):
        async def sample(self, *given: Any, **more: Any) -> Any:
            await async_wait_until(refused.is_set)
            return await super().sample(*given, **more)

    monkeypatch.setattr(gateway_server, "GatewayLimits", lambda: GatewayLimits(requests=1))
    refused.clear()
    policy = Slow(tokenizer, lambda *_: TURNS[0])
    with pytest.raises(UnavailableError) as caught:
        run(named(gives_up), policy)
    assert caught.value.code == "gateway.agent-refused"
    refused.clear()
    (done,) = run(named(carries_on), policy)
    assert (done.ending, done.turns) == ("answer", 1)
