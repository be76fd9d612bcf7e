"""Episodes whose agent calls the policy and the tools: limits, failures, records and endings."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.gateway.gateway_errors import (
    ContextFullError,
    EpisodeFailedError,
    InvalidRequestError,
    LimitReachedError,
    TooManyRequestsError,
    UnknownKeyError,
)
from gumshoe.gateway.messages import AgentMessage, ModelRequest, ModelResponse
from gumshoe.inference.policy import Completion, Policy, PolicyError, Sampling, ScriptedPolicy
from gumshoe.inference.vllm_policy import VLLMPolicy
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.turn_rewards import TurnRewardValues, turn_rewards
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.call_forms import FORMS, CallForm
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeObserver, EpisodeStart
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.turn_sampler import TurnSampler
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.conversations import call
from tests.scenarios.questions import scenario

if TYPE_CHECKING:
    from gumshoe.gateway.agent_episode import AgentEpisode

ID = "<1@example.com>"
SEARCH = Call("search_inbox", {"keywords": ["gas"]}, "1")
READ = Call("read_email", {"message_id": ID}, "2")
ANSWER = Call("return_final_answer", {"answer": "42", "message_ids": [ID]}, "3")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    mail = [record(1, body="The gas price is 42."), record(2, body="oil")]
    return make_index(tmp_path_factory.mktemp("agents"), mail, KEEP_ALL)


@pytest.fixture
def play(tokenizer: Any, chat: ChatFormat, index: MailIndex) -> Callable[..., Trajectory]:
    """Run an agent in an episode, and return the trajectory."""
    from gumshoe.gateway.agent_episode import AgentEpisode

    def run(
        agent: Callable[["AgentEpisode"], Awaitable[Any]],
        policy: Policy | None = None,
        limits: EpisodeLimits = EpisodeLimits(max_context=100_000),  # noqa: B008 - frozen
        observer: EpisodeObserver | None = None,
        answer: tuple[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> Trajectory:
        async def main() -> Trajectory:
            async with ToolThreads(2, 3600) as threads:
                place = EmailEnvironment(index, scenario(1), limits.max_turns)
                start = EpisodeStart(place, "seed", limits, threads, 3, observer or EpisodeObserver())
                said = policy or ScriptedPolicy(tokenizer, lambda *_: call("search_inbox", keywords=["gas"]))
                sampler = TurnSampler(said, chat, Sampling(max_tokens=200))
                agent_settings = AgentSettings(name="some.agent:run", **settings)
                episode = AgentEpisode(start, sampler, limits.max_context, agent_settings)
                await agent(episode)
                return await episode.end(*(answer or ()))

        return asyncio.run(main())

    return run


Play = Callable[..., Trajectory]


async def ask(episode: "AgentEpisode", *more: AgentMessage, samples: int = 1, **options: Any) -> ModelResponse:
    """Request a turn after a question and more messages."""
    messages = (
        AgentMessage("system", "You search."),
        AgentMessage("user", "What is the price of gas?"),
        *more,
    )
    tools = tuple(episode.toolbox.schemas())
    return await episode.complete(ModelRequest(messages, tools, samples=samples, **options))


async def talk(episode: "AgentEpisode") -> None:
    """Search, read and answer, as a model would."""
    messages = list[AgentMessage]()
    for made in (SEARCH, READ, ANSWER):
        (turn,) = (await ask(episode, *messages)).messages
        result = await episode.call_tool(made)
        messages += [
            AgentMessage("assistant", turn.text, turn.calls),
            AgentMessage("tool", result, call_id=turn.calls[0].id),
        ]


def test_an_episode_has_the_record_of_our_own_loop(play: Play) -> None:
    done = play(talk)
    assert (done.ending, done.turns, done.sample, done.policy) == ("answer", 3, 3, "scripted")
    assert (done.record.found, done.record.read, done.record.right_sources) == ([ID], [ID], [ID])
    assert (done.record.answer, done.deeds, done.segments, done.mistakes) == ("42", [1, 1, 1], [], [])
    assert done.usage is not None
    assert done.usage.completion_tokens == done.sampled_tokens
    rewards = asyncio.run(turn_rewards(done, scenario(1), TurnRewardValues(), open_judge("heuristic")))
    assert len(rewards) == 3
    assert Trajectory.from_json(done.to_json(), "line 1") == done


def test_what_an_agent_returns_is_the_answer(play: Play) -> None:
    done = play(ask, answer=("41", [ID]))
    assert (done.ending, done.record.answer, done.record.right_sources) == ("answer", "41", [ID])


def test_an_answer_that_was_given_with_a_call_counts(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        assert not (await episode.call_tool(ANSWER)).startswith("Error")
        assert (await episode.call_tool(SEARCH)).startswith("Error")

    assert play(agent, answer=("41", [])).record.answer == "42"


def test_after_the_answer_the_policy_is_not_asked(play: Play) -> None:
    """An agent that goes on gets empty turns, also beyond the maximum number of turns."""

    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        await episode.call_tool(ANSWER)
        for samples in (1, 3):
            found = await ask(episode, samples=samples)
            assert [(each.text, each.calls, each.finish) for each in found.messages] == [("", (), "stop")] * samples
            assert (found.policy, found.completion_tokens) == ("scripted", 0)

    done = play(agent, limits=EpisodeLimits(1, 100_000))
    assert (done.ending, done.turns, len(done.spans)) == ("answer", 1, 2)


def test_without_an_answer_the_ending_says_so(play: Play) -> None:
    assert play(ask).ending == "no answer"


def test_mistakes_of_the_model_are_answered_and_recorded(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        for bad in (Call("dance", {}), Call("read_email", {"message_id": 7}), Call("read_email", {"message_id": "x"})):
            assert (await episode.call_tool(bad)).startswith("Error")

    done = play(agent)
    assert [(each.turn, each.kind) for each in done.mistakes] == [(1, "unknown tool"), (1, "bad arguments")]
    assert done.record.tool_errors == 1


@pytest.mark.parametrize("does_call", [False, True], ids=["not called", "called"])
def test_a_turn_that_calls_an_unknown_tool_is_a_mistake_once(play: Play, tokenizer: Any, does_call: bool) -> None:
    """Whether the agent's framework answers such a call itself, or passes it on."""

    async def agent(episode: "AgentEpisode") -> None:
        found = await ask(episode)
        for made in found.messages[0].calls if does_call else ():
            assert (await episode.call_tool(made)).startswith("Error")

    done = play(agent, ScriptedPolicy(tokenizer, lambda *_: call("dance", steps=2)))
    assert [(each.turn, each.kind) for each in done.mistakes] == [(1, "unknown tool")]


def test_each_unknown_tool_that_an_agent_calls_itself_is_a_mistake(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        for name in ("dance", "sing"):
            await episode.call_tool(Call(name, {}))

    assert [(each.turn, each.kind) for each in play(agent).mistakes] == [(1, "unknown tool")] * 2


def test_a_call_that_cannot_be_parsed_reaches_the_agent_as_text(play: Play, tokenizer: Any) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        (turn,) = (await ask(episode)).messages
        assert (turn.calls, turn.finish) == ((), "stop")
        assert "search_inbox" in turn.text

    broken = ScriptedPolicy(tokenizer, lambda *_: '<tool_call>\n{"name": "search_inbox"\n</tool_call>')
    assert [each.kind for each in play(agent, broken).mistakes] == ["unparseable call"]


def test_events_before_the_first_turn_belong_to_it(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await episode.call_tool(SEARCH)
        await ask(episode)
        await episode.call_tool(READ)

    assert play(agent).deeds == [2]


def test_several_calls_at_once_run_one_after_the_other(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        await asyncio.gather(*(episode.call_tool(SEARCH) for _ in range(20)))

    done = play(agent)
    assert (done.record.searches, done.record.repeated_searches) == (20, 19)


def test_turns_of_one_request_have_seeds_of_their_own(play: Play, tokenizer: Any) -> None:
    seeds = list[int]()

    def say(prompt: str, seed: int) -> str:  # noqa: ARG001
        seeds.append(seed)
        return call("search_inbox", keywords=[str(seed)])

    async def agent(episode: "AgentEpisode") -> None:
        found = await ask(episode, samples=3)
        again = await ask(episode)
        ids = [each.calls[0].id for each in (*found.messages, *again.messages)]
        assert len(set(ids)) == 4

    done = play(agent, ScriptedPolicy(tokenizer, say))
    assert (len(set(seeds)), done.turns, len(done.segments)) == (4, 4, 3)
    first, seeds[:] = list(seeds), []
    play(agent, ScriptedPolicy(tokenizer, say))
    assert seeds == first, "they depend on the seed of the episode alone"


def test_a_turn_ends_at_a_stop_and_at_its_maximum(play: Play, tokenizer: Any) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        (turn,) = (await ask(episode, stops=("STOP",), logprobs=True)).messages
        assert (turn.text, turn.finish) == ("Gas costs 42. ", "stop")
        assert len(turn.tokens) == len(turn.logprobs) > 3
        (turn,) = (await ask(episode, max_tokens=3, logprobs=True)).messages
        assert (len(turn.tokens), turn.finish) == (3, "length")
        (turn,) = (await ask(episode)).messages
        assert (turn.tokens, turn.logprobs) == ((), ())

    play(agent, ScriptedPolicy(tokenizer, lambda *_: "Gas costs 42. STOP and so on"))


class Recorder(VLLMPolicy):
    """Policy of a vLLM server that records how it is asked."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.asked = policy, list[Sampling]()

    async def sample(self, prompt_ids: Any, sampling: Sampling, **more: Any) -> Completion:
        self.asked.append(sampling)
        plain = replace(sampling, json_schema=None, json_alternatives=())
        return await self.policy.sample(prompt_ids, plain, **more)


UNTAGGED = {"llama-json", "llama4-pythonic", "harmony", "functionary-v3.2", "muse-glimmer"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_schema_leaves_room_for_calls(
    play: Play, tokenizer: Any, chat: ChatFormat, form: CallForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    policy = Recorder(ScriptedPolicy(tokenizer, lambda *_: "{}"))
    monkeypatch.setattr(chat.template, "form", form)

    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        if form.name in UNTAGGED:
            with raises("gateway.schema-unsupported", form.name):
                await ask(episode, json_schema=schema)
        else:
            await ask(episode, json_schema=schema)
        await ask(episode, json_schema=schema, allows_calls=False)

    play(agent, policy)
    text = json.dumps(schema)  # the order of properties is that of the answer
    asked = [(each.json_schema, each.json_alternatives) for each in policy.asked]
    assert (asked.pop(0), asked.pop()) == ((None, ()), (text, ()))
    assert len(asked) == (form.name not in UNTAGGED)
    for given, alternatives in asked:
        assert given == text
        assert form.write([SEARCH]).startswith(alternatives)
        assert all(alternatives)


def test_other_policies_refuse_a_schema(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        with raises("gateway.schema-unsupported"):
            await ask(episode, json_schema={"type": "object"})
        assert episode.trajectory.turns == 0

    play(agent)


@pytest.mark.parametrize(
    ("limits", "settings", "ending"),
    [
        (EpisodeLimits(2, 100_000), {}, "max turns"),
        (EpisodeLimits(9, 100_000), {"max_sampled_tokens": 80}, "max turns"),
    ],
)
def test_turns_and_tokens_are_limited(play: Play, limits: EpisodeLimits, settings: dict[str, Any], ending: str) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        for _ in range(2):
            await ask(episode)
        with pytest.raises(LimitReachedError):
            await ask(episode)

    done = play(agent, limits=limits, **settings)
    assert (done.ending, done.turns) == (ending, 2)
    assert done.sampled_tokens <= settings.get("max_sampled_tokens", 1000)


def test_turns_that_are_being_sampled_count(play: Play, tokenizer: Any) -> None:
    class Waiting:
        async def sample(
            self, ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
        ) -> Completion:
            await asyncio.sleep(0)  # the other requests arrive
            own = ScriptedPolicy(tokenizer, lambda *_: "Hello.")
            return await own.sample(ids, sampling, stop_ids=stop_ids, seed=seed)

    async def agent(episode: "AgentEpisode") -> None:
        found = await asyncio.gather(*(ask(episode) for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(each, LimitReachedError) for each in found) == 3

    assert play(agent, Waiting(), limits=EpisodeLimits(2, 100_000)).turns == 2


@pytest.mark.parametrize(("samples", "budget"), [(1, None), (2, None), (2, 100), (400, 100)])
def test_requests_at_the_same_time_share_the_tokens_of_an_episode(
    play: Play, tokenizer: Any, chat: ChatFormat, samples: int, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "settings", ChatSettings(thinking_budget=budget))
    endless = ScriptedPolicy(tokenizer, lambda *_: "<think>" * (budget is not None) + "gas and oil " * 1000)

    class Waiting:
        async def sample(self, ids: Sequence[int], *more: Any, **options: Any) -> Completion:
            await asyncio.sleep(0)  # the other requests arrive
            return await endless.sample(ids, *more, **options)

    async def agent(episode: "AgentEpisode") -> None:
        found = await asyncio.gather(*(ask(episode, samples=samples) for _ in range(3)), return_exceptions=True)
        refused = LimitReachedError | TooManyRequestsError
        assert all(isinstance(each, ModelResponse | refused) for each in found)
        with pytest.raises(LimitReachedError):
            await ask(episode, samples=samples)

    done = play(agent, Waiting(), limits=EpisodeLimits(2000, 100_000), max_sampled_tokens=300)
    assert (done.ending, done.sampled_tokens) == ("max turns", 300 if samples < 300 else 0)


def test_a_request_waits_while_others_may_use_up_the_tokens(play: Play, tokenizer: Any) -> None:
    class Waiting:
        async def sample(self, ids: Sequence[int], *more: Any, **options: Any) -> Completion:
            await asyncio.sleep(0)  # the other requests arrive
            return await ScriptedPolicy(tokenizer, lambda *_: "Hello.").sample(ids, *more, **options)

    async def agent(episode: "AgentEpisode") -> None:
        found = await asyncio.gather(*(ask(episode) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in found] == [ModelResponse, ModelResponse, TooManyRequestsError]
        assert isinstance(await ask(episode), ModelResponse)
        assert not episode.has_reached_limit

    assert play(agent, Waiting(), max_sampled_tokens=300).turns == 3


@pytest.mark.parametrize("most", [1, 2, 3, 40, 199, 250, 300, 400])
def test_the_maximum_of_a_request_includes_reasoning(
    play: Play, tokenizer: Any, chat: ChatFormat, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "settings", ChatSettings(thinking_budget=100))

    async def agent(episode: "AgentEpisode") -> None:
        (turn,) = (await ask(episode, max_tokens=most)).messages
        assert turn.finish == "length"

    done = play(agent, ScriptedPolicy(tokenizer, lambda *_: "<think>" + "gas and oil " * 1000))
    assert done.sampled_tokens == min(most, 200 + 100)
    parts = [len(each.ids) for each in done.spans if each.origin == "sampled"]
    assert max(parts[0], 1) <= max(1, most // 2, min(100, most - 200))


def test_tool_calls_are_limited(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        for _ in range(2):
            await episode.call_tool(SEARCH)
        with pytest.raises(LimitReachedError):
            await episode.call_tool(SEARCH)

    done = play(agent, max_tool_calls=2, answer=("42", [ID]))
    assert (done.record.searches, done.ending) == (2, "answer"), "the answer it returns is no call of its own"


def test_a_conversation_that_fills_the_context_is_refused(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        with pytest.raises(ContextFullError):
            await ask(episode, AgentMessage("user", "gas " * 2000))

    done = play(agent, limits=EpisodeLimits(max_context=1500))
    assert (done.ending, done.turns) == ("context full", 1)


@pytest.mark.parametrize("place", ["text", "arguments", "tools"])
def test_a_conversation_that_can_never_fit_is_not_tokenized(
    play: Play, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    huge = "gas " * 10_000
    tools = ({"type": "function", "function": {"name": "x", "description": huge, "parameters": {}}},)
    called = (AgentMessage("assistant", calls=(Call("x", {"y": huge}, "1"),)), AgentMessage("tool", "", call_id="1"))
    user = AgentMessage("user", huge if place == "text" else "Hello.")
    request = ModelRequest((user, *(called if place == "arguments" else ())), tools=tools if place == "tools" else ())

    async def agent(episode: "AgentEpisode") -> None:
        monkeypatch.setattr(ChatFormat, "encode", lambda *_: pytest.fail("it was tokenized"))
        with pytest.raises(ContextFullError):
            await episode.complete(request)

    assert play(agent, limits=EpisodeLimits(max_context=1500)).ending == "context full"


def test_the_end_waits_for_the_thread_of_a_call_whose_request_was_cancelled(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()
    search = MailIndex.search

    def wait(self: MailIndex, *given: Any, **named: Any) -> Any:
        begun.set()
        released.wait()
        found = search(self, *given, **named)
        ended.set()
        return found

    monkeypatch.setattr(MailIndex, "search", wait)

    async def agent(episode: "AgentEpisode") -> None:
        calling = asyncio.create_task(episode.call_tool(SEARCH))
        await asyncio.to_thread(begun.wait)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        following = asyncio.create_task(episode.call_tool(READ))
        await asyncio.wait({following}, timeout=0.2)
        assert not following.done()
        released.set()
        await following
        assert ended.is_set()

    done = play(agent, answer=("42", [ID]))
    assert (done.record.searches, done.ending) == (1, "answer")


def test_a_defect_of_a_tool_is_not_lost(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(MailIndex, "search", fail)

    async def agent(episode: "AgentEpisode") -> None:
        with pytest.raises(ZeroDivisionError):
            await episode.call_tool(SEARCH)

    with pytest.raises(ZeroDivisionError):
        play(agent, answer=("42", [ID]))


def test_errors_of_the_template_do_not_name_directories(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        chat = episode._sampler.chat
        monkeypatch.setattr(chat.template, "name", "the chat template of /models/secret")
        error = UsageError("rollouts.message-left-out", f"{chat.template.name} leaves out a message")
        monkeypatch.setattr(chat, "conversations", SimpleNamespace(encode_opening=raise_error(error)))
        with pytest.raises(InvalidRequestError) as caught:
            await ask(episode)
        assert "secret" not in str(caught.value)

    play(agent)


def raise_error(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_a_failure_of_the_policy_makes_the_episode_worthless(play: Play) -> None:
    class Failing:
        failures = 0

        async def sample(self, *_: object, **__: object) -> Completion:
            self.failures += 1
            raise PolicyError("inference.unreachable", "gone")

    async def agent(episode: "AgentEpisode") -> None:
        for _ in range(2):
            with pytest.raises(EpisodeFailedError):
                await ask(episode)
        with pytest.raises(EpisodeFailedError):
            await episode.call_tool(SEARCH)

    policy = Failing()
    with pytest.raises(PolicyError):
        play(agent, policy, answer=("42", [ID]))
    assert policy.failures == 1


def test_a_policy_that_changes_makes_the_episode_worthless(play: Play, tokenizer: Any) -> None:
    versions = iter(("one", "two"))

    class Changing:
        async def sample(
            self, ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
        ) -> Completion:
            own = ScriptedPolicy(tokenizer, lambda *_: "Hello.", next(versions))
            return await own.sample(ids, sampling, stop_ids=stop_ids, seed=seed)

    async def agent(episode: "AgentEpisode") -> None:
        await ask(episode)
        with pytest.raises(EpisodeFailedError):
            await ask(episode)

    with pytest.raises(PolicyError) as caught:
        play(agent, Changing())
    assert caught.value.code == "rollouts.policy-changed"


def test_after_the_end_nothing_changes(play: Play) -> None:
    kept = list[Any]()

    async def agent(episode: "AgentEpisode") -> None:
        kept.append(episode)
        await ask(episode)

    done = play(agent)
    before = done.to_json()

    async def late() -> None:
        with pytest.raises(UnknownKeyError):
            await ask(kept[0])
        with pytest.raises(UnknownKeyError):
            await kept[0].call_tool(SEARCH)

    asyncio.run(late())
    assert done.to_json() == before


def test_a_turn_that_ends_after_the_episode_is_not_added(play: Play, tokenizer: Any) -> None:
    class Slow:
        def __init__(self) -> None:
            self.begun, self.released = asyncio.Event(), asyncio.Event()

        async def sample(
            self, ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
        ) -> Completion:
            self.begun.set()
            await self.released.wait()
            own = ScriptedPolicy(tokenizer, lambda *_: "Hello.")
            return await own.sample(ids, sampling, stop_ids=stop_ids, seed=seed)

    async def agent(episode: "AgentEpisode") -> None:
        late = asyncio.create_task(ask(episode))
        await policy.begun.wait()
        await episode.end()
        policy.released.set()
        with pytest.raises(UnknownKeyError):
            await late

    policy = Slow()
    assert play(agent, policy).turns == 0


def test_a_conversation_that_the_template_cannot_render_is_refused(play: Play) -> None:
    async def agent(episode: "AgentEpisode") -> None:
        with pytest.raises(InvalidRequestError):
            await episode.complete(ModelRequest((AgentMessage("tool", "x", call_id="1"),)))

    assert play(agent).turns == 0


def test_an_observer_sees_turns_and_results_and_can_end_them(play: Play) -> None:
    class Meter(EpisodeObserver):
        turns, results = 0, 0
        calls: ClassVar[list[Call]] = []

        @contextmanager
        def sampling(self) -> Any:
            if self.turns == 2:
                raise PolicyError("serving.budget-exhausted", "no more")
            yield lambda turn: setattr(self, "turns", self.turns + (turn is not None))

        def begin_calls(self, calls: Sequence[Call]) -> None:
            self.calls.extend(calls)

        def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> None:
            self.results += len(calls) * len(results)

    async def agent(episode: "AgentEpisode") -> None:
        for _ in range(2):
            await ask(episode)
        await episode.call_tool(SEARCH)
        with pytest.raises(EpisodeFailedError):
            await ask(episode)

    meter = Meter()
    with pytest.raises(PolicyError):
        play(agent, observer=meter)
    assert (meter.turns, meter.calls, meter.results) == (2, [SEARCH], 1), (
        "only the agent's own calls count, not those that the model writes"
    )


def test_an_observer_can_refuse_a_call_and_so_end_the_episode(play: Play) -> None:
    class Meter(EpisodeObserver):
        left = 2

        def begin_calls(self, calls: Sequence[Call]) -> None:
            if self.left < len(calls):
                raise UnavailableError("serving.budget-exhausted", "no more")
            self.left -= len(calls)

    async def answers(episode: "AgentEpisode") -> None:
        await episode.call_tool(SEARCH)
        await episode.call_tool(ANSWER)
        assert (await episode.call_tool(SEARCH)).startswith("Error"), "it does not run, so it costs nothing"

    async def reads_on(episode: "AgentEpisode") -> None:
        for _ in range(2):
            await episode.call_tool(SEARCH)
        for _ in range(2):
            with pytest.raises(EpisodeFailedError):
                await episode.call_tool(READ)

    assert play(answers, observer=Meter()).ending == "answer"
    with raises("serving.budget-exhausted"):
        play(reads_on, observer=Meter())
