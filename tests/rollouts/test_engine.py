"""Concurrent episodes: simple ones, and real ones with an HTTP server that fails or is killed."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gumshoe.environments.base import EpisodeState
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call, Toolbox
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.inference.policy import Policy, PolicyError, Sampling, ScriptedPolicy
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, ParsedTurn
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.engine import RolloutEngine, RolloutProgress, RunEpisode
from gumshoe.rollouts.episode import ChatSession, EpisodeLimits, EpisodeStart, Turn, run_episode
from gumshoe.rollouts.token_session import TokenChatSession
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Group, Span, Trajectory
from gumshoe.scenarios.scenario import Scenario
from tests.conftest import find_free_port
from tests.inference.fake_vllm import (
    Act,
    Exchange,
    FakeVLLM,
    ServerProcess,
    altered,
    cut_json,
    fewer_logprobs,
    reset,
    stall,
    status,
    write_tokenizer,
    wrong_model,
)
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import scenario
from tests.waiting import Clock, async_wait_until

HOUR = 3600.0  # seconds; passes only if a test advances the clock
LIMITS = EpisodeLimits(max_turns=6, max_context=50_000)
REQUESTS = RequestLimits(HOUR, connect=HOUR, attempts=2, backoff=0.05, patience=HOUR)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("rollout"), map(record, range(1, 41)))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    return ChatFormat(load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("model") / "model")))


def trajectory(about: Scenario, sample: int) -> Trajectory:
    """Return the trajectory of a simple episode."""
    return Trajectory(
        about.id, sample, "plain", "answer", "", [Span("sampled", "Yes.", (1, 2))], EpisodeState(), 1, 0, 0
    )


async def collect(engine: RolloutEngine, scenarios: list[Scenario], samples: int = 1) -> list[Group]:
    return [group async for group in engine.run(scenarios, samples)]


def scenarios(count: int) -> list[Scenario]:
    return [scenario(number) for number in range(1, count + 1)]


def whole(groups: list[Group]) -> dict[str, list[int]]:
    """Return the samples of each group that was not dropped."""
    return {group.scenario: [each.sample for each in group.trajectories] for group in groups if not group.dropped}


def real_episodes(
    policy: Policy, chat: ChatFormat, index: MailIndex, threads: ToolThreads, seed: int = 0
) -> RunEpisode:
    """Return a function that runs episodes of a policy, as `gumshoe rollout` does."""

    async def run(about: Scenario, sample: int, attempt: int) -> Trajectory:
        environment = EmailEnvironment(index, about, LIMITS.max_turns)
        told = environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas()
        prompt = await asyncio.to_thread(chat.encode_prompt, *told)
        name = f"{seed}/{about.id}/{sample}/{attempt}"
        session: ChatSession = TokenChatSession(
            policy, chat, prompt, told[-1], Sampling(max_tokens=400), LIMITS.max_context, name
        )
        return await run_episode(session, EpisodeStart(environment, "", LIMITS, threads, sample))

    return run


def roll(
    addresses: list[str],
    chat: ChatFormat,
    index: MailIndex,
    about: list[Scenario],
    samples: int = 1,
    concurrency: int = 64,
) -> tuple[list[Group], RolloutProgress]:
    """Return the groups of a rollout on vLLM servers, and its final progress."""

    async def keep_checking_the_clock() -> None:
        while True:
            await asyncio.sleep(0.01)

    async def run() -> tuple[list[Group], RolloutProgress]:
        async with VLLMPolicy(addresses, "adapter", REQUESTS) as policy, ToolThreads(deadline=HOUR) as threads:
            looking = asyncio.create_task(keep_checking_the_clock())
            engine = RolloutEngine(real_episodes(policy, chat, index, threads), concurrency)
            groups = await collect(engine, about, samples)
            looking.cancel()
            return groups, engine.progress

    return asyncio.run(run())


def test_each_scenario_gives_one_complete_group() -> None:
    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        await asyncio.sleep(0.001 * ((sample * 7 + int(about.id[1:]) * 3) % 5))
        return trajectory(about, sample)

    engine = RolloutEngine(episode)
    groups = asyncio.run(collect(engine, scenarios(30), 4))
    assert whole(groups) == {f"q{number}": [0, 1, 2, 3] for number in range(1, 31)}
    assert len(groups) == 30
    assert (engine.progress.done, engine.progress.running, engine.progress.sampled_tokens) == (120, 0, 240)
    assert (engine.progress.retried, engine.progress.dropped, engine.progress.causes) == (0, 0, Counter())


def test_no_scenarios_give_no_groups() -> None:
    async def episode(*_: object) -> Trajectory:
        raise AssertionError

    assert asyncio.run(collect(RolloutEngine(episode), [])) == []


def test_a_complete_group_is_yielded_at_once() -> None:
    async def run() -> tuple[list[str], int]:
        last = asyncio.Event()
        begun = 0

        async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
            nonlocal begun
            begun += 1
            if about.id == "q1" and sample == 1:
                await last.wait()
            return trajectory(about, sample)

        order = []
        async with aclosing(RolloutEngine(episode).run(scenarios(5), 2)) as groups:
            async for group in groups:
                assert len(group.trajectories) == 2
                order.append(group.scenario)
                if len(order) == 4:
                    last.set()
        return order, begun

    order, begun = asyncio.run(run())
    assert order[-1] == "q1"
    assert begun == 10


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_the_concurrency_limits_the_episodes(concurrency: int) -> None:
    running = most = 0

    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return trajectory(about, sample)

    asyncio.run(collect(RolloutEngine(episode, concurrency), scenarios(25), 4))
    assert most == concurrency


def test_the_default_concurrency_is_sixty_four() -> None:
    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        return trajectory(about, sample)

    assert RolloutEngine(episode).concurrency == 64


def test_groups_run_one_after_another() -> None:
    """The first groups are complete long before the last ones start."""
    begun: list[str] = []

    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        begun.append(about.id)
        await asyncio.sleep(0.001)
        return trajectory(about, sample)

    asyncio.run(collect(RolloutEngine(episode, 4), scenarios(10), 4))
    assert begun == [f"q{number}" for number in range(1, 11) for _ in range(4)]


@pytest.mark.parametrize("failing", [1, 2])
def test_an_episode_is_retried_after_a_failure_of_infrastructure(failing: int) -> None:
    tries: list[int] = []

    async def episode(about: Scenario, sample: int, attempt: int) -> Trajectory:
        if sample == 1:
            tries.append(attempt)
            if attempt <= failing:
                raise PolicyError("inference.server-unreachable", "gone")
        return trajectory(about, sample)

    engine = RolloutEngine(episode)
    (group,) = asyncio.run(collect(engine, scenarios(1), 3))
    assert tries == list(range(1, failing + 2))
    assert [each.tries for each in group.trajectories] == [1, failing + 1, 1]
    assert (engine.progress.retried, engine.progress.dropped, engine.progress.done) == (failing, 0, 3)
    assert engine.progress.retry_causes == {"inference.server-unreachable": failing}


def test_a_group_is_dropped_after_three_attempts_and_others_continue() -> None:
    tries: Counter[tuple[str, int]] = Counter()
    cancelled: list[int] = []
    stopped = asyncio.Event()

    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        tries[about.id, sample] += 1
        if about.id == "q2" and sample == 1:
            raise PolicyError("inference.server-unreachable", "gone")
        if about.id == "q2" and sample == 2:
            try:
                await asyncio.sleep(HOUR)
            except asyncio.CancelledError:
                cancelled.append(sample)
                stopped.set()
                raise
        if about.id == "q3":
            await stopped.wait()  # the episodes of the dropped group end while others run
        return trajectory(about, sample)

    engine = RolloutEngine(episode)
    groups = asyncio.run(collect(engine, scenarios(3), 3))
    assert whole(groups) == {"q1": [0, 1, 2], "q3": [0, 1, 2]}
    (dropped,) = [group for group in groups if group.dropped]
    assert (dropped.scenario, dropped.trajectories) == ("q2", ())
    assert dropped.dropped == "gone [inference.server-unreachable]"
    assert tries["q2", 1] == 3
    assert cancelled == [2]
    progress = engine.progress
    assert progress.causes == {"inference.server-unreachable": 1}
    assert (progress.dropped, progress.retried, progress.running) == (1, 2, 0)


@pytest.mark.parametrize(
    "error", [UsageError("inference.model-not-served", "no such model"), ZeroDivisionError("a defect")]
)
def test_any_other_error_ends_the_rollout_and_all_episodes(error: Exception) -> None:
    begun: list[str] = []
    cancelled: list[str] = []

    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        if about.id == "q3":
            await async_wait_until(lambda: len(begun) == 4)
            raise error
        begun.append(about.id)
        try:
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            cancelled.append(about.id)
            raise
        return trajectory(about, sample)

    with pytest.raises(type(error)) as ended:
        asyncio.run(collect(RolloutEngine(episode), scenarios(5)))
    assert ended.value is error
    assert sorted(cancelled) == ["q1", "q2", "q4", "q5"]


def test_an_episode_that_cancels_itself_does_not_block_the_rollout() -> None:
    async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
        if about.id == "q2":
            raise asyncio.CancelledError
        return trajectory(about, sample)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(collect(RolloutEngine(episode), scenarios(3)))


async def _cancelled(engine: RolloutEngine, server: FakeVLLM) -> None:
    task = asyncio.create_task(collect(engine, scenarios(40), 4))
    await async_wait_until(lambda: server.under_way == 16)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _left(engine: RolloutEngine, server: FakeVLLM) -> None:
    async with aclosing(engine.run(scenarios(40), 4)) as groups:
        first = asyncio.ensure_future(anext(groups))
        await async_wait_until(lambda: server.under_way == 16)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first


@pytest.mark.parametrize("leave", [_cancelled, _left])
def test_cancelling_stops_all_requests_at_once(
    leave: Callable[[RolloutEngine, FakeVLLM], Awaitable[None]], chat: ChatFormat, index: MailIndex
) -> None:
    async def run(server: FakeVLLM) -> None:
        async with VLLMPolicy([server.address], "adapter", REQUESTS) as policy, ToolThreads() as threads:
            engine = RolloutEngine(real_episodes(policy, chat, index, threads), 16)
            await leave(engine, server)
            assert engine.progress.running == 0
            assert len(asyncio.all_tasks()) == 1

    with FakeVLLM() as server:
        server.inject(stall, times=None)
        asyncio.run(run(server))
        server.wait_until_idle()
        assert server.errors == []


class _Waiter:
    """Environment with one tool, which blocks its thread until an event."""

    finished = False

    def __init__(self, about: Scenario, begun: threading.Event, over: threading.Event) -> None:
        self.scenario, self.record = about, EpisodeState()
        self.toolbox = Toolbox([self.wait])
        self._begun, self._over = begun, over

    def system_prompt(self) -> str:
        return ""

    def user_prompt(self) -> str:
        return ""

    def wait(self) -> str:
        """Wait."""
        self._begun.set()
        self._over.wait()
        self.finished = True
        return ""


class _Caller:
    settings = ChatSettings()

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return results

    async def next_turn(self) -> Turn:
        return Turn((Span("sampled", "wait"),), ParsedTurn((Call("wait", {}),)), "caller", is_truncated=False)


def test_tools_do_not_block_the_event_loop() -> None:
    """The tools wait for an event that only the event loop sets."""
    begun, over = threading.Event(), threading.Event()

    async def run() -> list[Group]:
        async def episode(about: Scenario, sample: int, *_: int) -> Trajectory:
            return await run_episode(_Caller(), EpisodeStart(_Waiter(about, begun, over), "", LIMITS, threads, sample))

        async with ToolThreads(deadline=HOUR) as threads:
            collected = asyncio.create_task(collect(RolloutEngine(episode), scenarios(4)))
            await async_wait_until(begun.is_set)
            over.set()
            return await collected

    assert len(whole(asyncio.run(run()))) == 4


def _stall_past_the_deadline(clock: Clock, exchange: Exchange) -> None:
    clock.advance(HOUR + 1)
    stall(exchange)


FAULTS: dict[str, tuple[Act, set[str], str]] = {
    "connection reset": (reset, {"inference.server-unreachable"}, "ServerDisconnectedError|ClientOSError"),
    "stall past the deadline": (stall, {"inference.timeout", "inference.server-unreachable"}, "3600|ReadTimeout"),
    "500": (status(500), {"inference.server-error"}, "500"),
    "wrong model": (altered(wrong_model), {"inference.invalid-answer"}, "'somebody-else'"),
    "truncated JSON": (cut_json, {"inference.invalid-answer"}, "JSON"),
    "fewer log-probabilities": (altered(fewer_logprobs), {"inference.invalid-answer"}, r"\d+ log-probabilities"),
}


def tokens(groups: list[Group]) -> dict[tuple[str, int], list[int]]:
    return {(each.scenario, each.sample): each.ids for group in groups for each in group.trajectories}


def with_clock(fault: Act, clock: Clock) -> tuple[Act, int]:
    """Return a fault that advances the clock if needed, and how many episodes may run concurrently with it."""
    return (partial(_stall_past_the_deadline, clock), 1) if fault is stall else (fault, 64)


@pytest.mark.parametrize("fault", [act for act, *_ in FAULTS.values()], ids=FAULTS.keys())
def test_a_temporary_fault_does_not_change_trajectories(
    chat: ChatFormat, index: MailIndex, fault: Act, clock: Clock
) -> None:
    act, concurrency = with_clock(fault, clock)
    with FakeVLLM() as server:
        expected, _ = roll([server.address], chat, index, scenarios(2), 2)
        server.inject(act, after=2)
        server.inject(act, after=5)
        groups, progress = roll([server.address], chat, index, scenarios(2), 2, concurrency)
        assert server.errors == []
    assert progress.dropped == 0
    assert tokens(groups) == tokens(expected)
    assert {each.ending for group in groups for each in group.trajectories} == {"answer"}


@pytest.mark.parametrize(("fault", "codes", "cause"), FAULTS.values(), ids=FAULTS.keys())
def test_a_permanent_fault_drops_groups_and_never_becomes_a_trajectory(
    chat: ChatFormat, index: MailIndex, fault: Act, codes: set[str], cause: str, clock: Clock
) -> None:
    act, concurrency = with_clock(fault, clock)
    with FakeVLLM() as server:
        server.inject(act, times=None, after=2)  # an episode takes three requests
        groups, progress = roll([server.address], chat, index, scenarios(2), 2, concurrency)
        assert server.errors == []
    assert [group.trajectories for group in groups] == [(), ()]
    for group in groups:
        assert group.dropped.startswith("adapter: ")
        assert group.dropped.endswith(tuple(f"[{code}]" for code in codes))
    assert any(re.search(cause, group.dropped) for group in groups)
    assert {*progress.causes} <= codes
    assert (progress.dropped, progress.causes.total(), progress.done) == (2, 2, 0)


def test_real_episodes_search_read_and_answer(chat: ChatFormat, index: MailIndex) -> None:
    with FakeVLLM() as server:
        ((group,), _) = roll([server.address], chat, index, scenarios(1))
    (done,) = group.trajectories
    assert (done.ending, done.turns, done.policy, done.record.answer) == ("answer", 3, "adapter", "Body of message 1")
    assert len(done.ids) == len(done.mask) == done.prompt_tokens + done.sampled_tokens


def test_a_killed_and_restarted_server_costs_no_group(chat: ChatFormat, index: MailIndex) -> None:
    server = ServerProcess(find_free_port(), delay=0.02)
    patient = RequestLimits(HOUR, connect=HOUR, attempts=6, backoff=0.2, patience=HOUR)
    server.start()

    async def run() -> tuple[list[Group], RolloutProgress, int]:
        async with VLLMPolicy([server.address], "adapter", patient) as policy, ToolThreads(deadline=HOUR) as threads:
            engine = RolloutEngine(real_episodes(policy, chat, index, threads), 16)
            task = asyncio.create_task(collect(engine, scenarios(16), 4))
            await async_wait_until(lambda: engine.progress.done)
            server.kill()
            before = engine.progress.done
            await asyncio.to_thread(server.start)
            return await task, engine.progress, before

    try:
        groups, progress, before = asyncio.run(run())
    finally:
        server.kill()
    assert before < 64
    assert whole(groups) == {f"q{number}": [0, 1, 2, 3] for number in range(1, 17)}
    assert {each.ending for group in groups for each in group.trajectories} == {"answer"}
    assert (progress.done, progress.dropped, progress.running) == (64, 0, 0)


def _random_turn(prompt: str, seed: int) -> str:
    """Return a turn that depends on the seed alone: some searches, and finally an answer."""
    if prompt.count("<tool_call>") > 3:
        call = {"name": "return_final_answer", "arguments": {"answer": str(seed), "message_ids": []}}
    else:
        call = {"name": "search_inbox", "arguments": {"keywords": ["body", str(seed % 40)]}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def test_trajectories_depend_on_seeds_not_on_concurrency(chat: ChatFormat, index: MailIndex, tmp_path: Path) -> None:
    policy = ScriptedPolicy(load_tokenizer(write_tokenizer(tmp_path / "model")), _random_turn)

    async def rolled(concurrency: int, seed: int) -> list[Group]:
        async with ToolThreads() as threads:
            engine = RolloutEngine(real_episodes(policy, chat, index, threads, seed), concurrency)
            return await collect(engine, scenarios(6), 3)

    def run(concurrency: int, seed: int) -> dict[tuple[str, int], str]:
        groups = asyncio.run(rolled(concurrency, seed))
        plain = [replace(each, policy_seconds=0, tool_seconds=0) for group in groups for each in group.trajectories]
        return {(each.scenario, each.sample): each.to_json() for each in plain}

    first = run(1, 7)
    assert run(16, 7) == first
    assert len(set(first.values())) == 18
    other = run(16, 8)
    assert all(other[name] != text for name, text in first.items())


def test_failures_of_infrastructure_are_counted_by_code() -> None:
    async def episode(about: Scenario, *_: int) -> Trajectory:
        if about.id == "q1":
            raise PolicyError("inference.timeout", "gone")
        raise UnavailableError("models.timeout", "away")

    engine = RolloutEngine(episode)
    asyncio.run(collect(engine, scenarios(3), 2))
    assert engine.progress.causes == {"inference.timeout": 1, "models.timeout": 2}
