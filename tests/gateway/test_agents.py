"""Agents in Python: every kind is run with the model and the tools of its episode, and none can do harm."""

import asyncio
import gc
import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import create_autospec

import pytest

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.gateway import agent_threads
from gumshoe.gateway.agent_answers import ReturnedAnswer
from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.agent_errors import AgentDeadlineError, AgentFailedError, AgentsHangError
from gumshoe.gateway.agent_task import current_task
from gumshoe.gateway.agents import load_agent
from gumshoe.rollouts.agent_settings import AgentSettings
from tests.conftest import skip_missing
from tests.gateway import agent_events
from tests.gateway.agent_tasks import KEY, TURNS, make_task, start_agent
from tests.tiers import nightly_except
from tests.waiting import Clock, async_wait_until, count_threads

if TYPE_CHECKING:
    from tests.gateway.fake_gateway import FakeGateway

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gateway() -> "Iterator[FakeGateway]":
    from tests.gateway.fake_gateway import run_fake_gateway

    with run_fake_gateway() as running:
        yield running
    forget_clients()


def forget_clients() -> None:
    """Delete the HTTP clients that LangChain keeps for each address, with their open connections."""
    clients: Any = sys.modules.get("langchain_openai.chat_models._client_utils")
    if clients is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            clients._cached_async_httpx_client.cache_clear()
            clients._cached_sync_httpx_client.cache_clear()
            gc.collect()


@pytest.fixture(autouse=True)
def own_events() -> Iterator[None]:
    agent_events.events.clear()
    agent_events.released.clear()
    yield
    agent_events.released.set()


def named(name: str, **settings: Any) -> AgentSettings:
    return AgentSettings(name=f"tests.gateway.python_agents:{name}", **settings)


def run(settings: AgentSettings, gateway: "FakeGateway | None" = None) -> ReturnedAnswer:
    async def run_once() -> ReturnedAnswer:
        answer = await start_agent(settings, gateway.task() if gateway else None)
        with pytest.raises(LookupError):
            current_task()
        return answer

    return asyncio.run(run_once())


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    nightly_except(
        {"async_function", "blocking_function", "ClassAgent"},
        [
            "async_function",
            "sync_function",
            "blocking_function",
            "wrapped_function",
            "partial_function",
            "Holder.agent",
            "ClassAgent",
        ],
    ),
)
def test_functions_and_other_callables(name: str, gateway: "FakeGateway") -> None:
    assert run(named(name), gateway).answer == "function When is the invoice due?"
    assert gateway.refused == 0


@pytest.mark.ci
@pytest.mark.parametrize("name", ["graph", "sync_graph", "chain"])
def test_graphs_and_chains_get_the_prompts_and_the_model(name: str, gateway: "FakeGateway") -> None:
    assert run(named(name), gateway).answer == "search_inbox When is the invoice due?"
    assert [(each["role"], each["content"]) for each in gateway.requests[0]["messages"]] == [
        ("system", "Search the inbox."),
        ("user", "I am ann@example.com. When is the invoice due?"),
    ]
    assert gateway.requests[0]["model"] == "policy"


@pytest.mark.ci
@pytest.mark.parametrize("name", ["graph_of_task", "async_graph_of_task"])
def test_a_function_may_return_a_graph(name: str, gateway: "FakeGateway") -> None:
    gateway.final_text = '{"answer": "Friday", "sources": ["<7@example.com>"]}'
    assert run(named(name), gateway) == ReturnedAnswer("Friday", ("<7@example.com>",))
    assert gateway.episode.calls == list(TURNS[:2])


@pytest.mark.ci
def test_an_agent_of_the_openai_sdk_gets_the_prompts_if_it_has_none(gateway: "FakeGateway") -> None:
    assert run(named("openai_agent"), gateway).answer == "invoice is in <7@example.com>"
    assert gateway.requests[0]["instructions"] == "Search the inbox."
    assert gateway.requests[0]["input"][0]["content"] == "I am ann@example.com. When is the invoice due?"
    assert sys.modules["tests.gateway.python_agents"].openai_agent.instructions is None


@pytest.mark.ci
def test_a_function_may_return_an_agent_of_the_openai_sdk(gateway: "FakeGateway") -> None:
    gateway.final_text = "Friday"
    assert run(named("openai_agent_of_task"), gateway) == ReturnedAnswer("Friday")
    assert gateway.episode.calls == list(TURNS[:2])
    assert gateway.requests[0]["instructions"] == "My own prompt."


@pytest.mark.ci
@pytest.mark.parametrize("name", ["openai_agent_of_task", "graph_of_task"])
def test_agents_of_frameworks_end_with_their_answer(name: str, gateway: "FakeGateway") -> None:
    """Turns after the answer would be trained on, although nothing depends on them."""
    run(named(name), gateway)
    assert gateway.episode.calls == list(TURNS)
    assert len(gateway.requests) == len(TURNS)


@pytest.mark.ci
def test_an_agent_of_the_openai_sdk_sends_nothing_elsewhere(
    gateway: "FakeGateway", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither traces, nor its requests to a proxy."""
    from agents.tracing import set_trace_processors
    from agents.tracing.processor_interface import TracingProcessor

    traces = create_autospec(TracingProcessor, instance=True)
    set_trace_processors([traces])
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    run(named("openai_agent"), gateway)
    set_trace_processors([])
    assert traces.mock_calls == []
    assert len(gateway.requests) == 1


@pytest.mark.ci
def test_the_key_is_in_no_url(gateway: "FakeGateway") -> None:
    for name in ("graph", "openai_agent", "sync_function"):
        run(named(name), gateway)
    assert [each for each in gateway.paths if KEY in each] == []
    assert gateway.refused == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raise_error", "ValueError: no good: *** (python_agents.py:"),
        ("raise_group", "ValueError: no good: *** (python_agents.py:"),
        ("raise_timeout", "TimeoutError: of the agent"),
        ("raise_stop_iteration", "StopIteration"),
        ("raise_cancelled", "CancelledError"),
        ("exit_function", "SystemExit: 3"),
        ("exit_task", "SystemExit: 3"),
    ],
)
def test_exceptions_are_failures_of_the_agent(name: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AgentFailedError) as caught:
        run(named(name))
    assert caught.value.code == "gateway.agent-raised"
    assert said in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "no good" not in caplog.text
    assert run(named("return_nothing")) == ReturnedAnswer(None)  # the event loop of agents still runs


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    nightly_except(
        {"graph", "sync_function"}, ["graph", "sync_graph", "openai_agent", "async_function", "sync_function"]
    ),
)
def test_a_refusal_of_the_gateway_is_an_exception_of_the_agent(name: str, gateway: "FakeGateway") -> None:
    gateway.status = 429
    with pytest.raises(AgentFailedError) as caught:
        run(named(name), gateway)
    assert "RateLimitError" in str(caught.value)
    assert len(gateway.requests) == 1


def test_an_agent_may_say_that_something_else_has_failed() -> None:
    with pytest.raises(UnavailableError) as caught:
        run(named("raise_unavailable"))
    assert caught.value.code == "agents.search-down"


def test_nonsense_is_no_answer() -> None:
    with pytest.raises(AgentFailedError) as caught:
        run(named("return_nonsense"))
    assert caught.value.code == "gateway.agent-answer-invalid"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no_such.module:agent", "gateway.agent-import-failed"),
        ("tests.gateway.broken_agent:agent", "gateway.agent-import-failed"),
        ("tests.gateway.python_agents:missing", "gateway.agent-not-found"),
        ("tests.gateway.python_agents:Holder.missing.agent", "gateway.agent-not-found"),
        ("tests.gateway.python_agents:number", "gateway.invalid-agent"),
        ("tests.gateway.python_agents:builder", "gateway.invalid-agent"),  # not compiled
    ],
)
def test_names_that_lead_to_no_agent(name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gateway.__path__", [*sys.modules["tests.gateway"].__path__, str(tmp_path)])
    (tmp_path / "broken_agent.py").write_text("1 / 0")
    with pytest.raises(UsageError) as caught:
        load_agent(AgentSettings(name=name))
    assert caught.value.code == code


async def run_to_deadline(name: str, clock: Clock) -> None:
    """Run an agent past its deadline of 100 seconds, and fail unless that ends it."""
    agent_events.events.clear()
    running = asyncio.ensure_future(start_agent(named(name, deadline=100)))
    await async_wait_until(lambda: "started" in agent_events.events or running.done())
    clock.advance(99)
    await asyncio.wait({running}, timeout=0.01)
    if running.done():
        await running
        pytest.fail("the agent has ended by itself")
    clock.advance(2)
    with pytest.raises(AgentDeadlineError) as caught:
        await running
    assert caught.value.code == "gateway.agent-deadline"


def test_an_agent_ends_at_its_deadline(clock: Clock) -> None:
    asyncio.run(run_to_deadline("sleep_forever", clock))
    assert agent_events.events == ["started", "cleaned up"]


def test_a_cancelled_agent_has_ended() -> None:
    async def cancel() -> None:
        running = asyncio.ensure_future(start_agent(named("sleep_forever")))
        await async_wait_until(lambda: "started" in agent_events.events)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert agent_events.events == ["started", "cleaned up"]

    asyncio.run(cancel())


@pytest.mark.ci
@pytest.mark.parametrize("name", ["block_thread", "block_loop", "ignore_cancellation"])
def test_agents_that_do_not_end_are_abandoned(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, gateway: "FakeGateway"
) -> None:
    """Other agents run on, and what they have held is free once they end."""
    monkeypatch.setattr(agent_threads, "GRACE", 0.2)
    run(named("graph"), gateway)
    before = count_threads("agent")
    asyncio.run(run_to_deadline(name, clock))
    assert run(named("graph"), gateway).answer == "search_inbox When is the invoice due?"
    agent_events.released.set()
    asyncio.run(async_wait_until(lambda: count_threads("agent") <= before))


def test_an_agent_that_blocks_the_loop_lets_its_neighbours_go_on_afterwards(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_threads, "GRACE", 0.2)

    async def run_both() -> None:
        neighbour = asyncio.ensure_future(start_agent(named("sleep_forever", deadline=10_000)))
        await async_wait_until(lambda: "started" in agent_events.events)
        await run_to_deadline("block_loop", clock)
        agent_events.released.set()
        neighbour.cancel()
        with pytest.raises(asyncio.CancelledError):
            await neighbour
        await async_wait_until(lambda: "cleaned up" in agent_events.events)

    asyncio.run(run_both())


@pytest.mark.parametrize("name", ["block_thread", "block_loop", "ignore_cancellation"])
def test_only_so_many_agents_may_hang(name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_threads, "GRACE", 0.2)
    run(named("return_nothing"))
    monkeypatch.setattr(agent_threads, "MAX_THREADS", len(agent_threads._live) + 2)

    async def run_until_refused() -> None:
        for _ in range(4):
            await run_to_deadline(name, clock)

    with pytest.raises(AgentsHangError) as caught:
        asyncio.run(run_until_refused())
    assert caught.value.code == "gateway.agents-hang"


def test_many_agents_that_block_their_thread_run_at_once() -> None:
    async def run_all() -> list[ReturnedAnswer]:
        agent = load_agent(named("block_thread"))
        running = asyncio.gather(*[agent(make_task(), AgentClock(100)) for _ in range(64)])
        await async_wait_until(lambda: agent_events.events == ["started"] * 64)
        agent_events.released.set()
        return await running

    assert asyncio.run(run_all()) == [ReturnedAnswer("too late")] * 64


@pytest.mark.ci
def test_an_agent_that_hangs_does_not_keep_the_process_from_ending() -> None:
    script = "import asyncio\nfrom tests.gateway.test_agents import *\n"
    script += "agent_threads.GRACE = 0.1\nfor name in ('block_thread', 'block_loop'):\n"
    script += "    try: run(named(name, deadline=0.2))\n    except AgentDeadlineError: print(name)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["block_thread", "block_loop"], 0), ended.stderr


# The examples.


def assert_example_works(settings: AgentSettings, gateway: "FakeGateway") -> None:
    run(settings, gateway)
    assert gateway.episode.calls == list(TURNS)
    assert len(gateway.requests) == len(TURNS)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["langgraph_email.agent:graph", "openai_agents.agent:search_agent"])
def test_examples_in_python(name: str, gateway: "FakeGateway", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert_example_works(AgentSettings(name=name), gateway)


@pytest.mark.ci
def test_a_turn_without_calls_is_the_answer_of_the_langgraph_example(
    gateway: "FakeGateway", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    gateway.final_text = "Friday"
    assert run(AgentSettings(name="langgraph_email.agent:graph"), gateway) == ReturnedAnswer("Friday")


def node_example() -> AgentSettings:
    if shutil.which("node") is None:
        skip_missing("node")
    return AgentSettings(command=("node", str(ROOT / "examples" / "node" / "agent.mjs")))


@pytest.mark.ci
def test_example_in_node(gateway: "FakeGateway") -> None:
    assert_example_works(node_example(), gateway)


@pytest.mark.ci
def test_a_turn_without_calls_is_the_answer_of_the_node_example(gateway: "FakeGateway") -> None:
    gateway.final_text = "Friday"
    assert run(node_example(), gateway) == ReturnedAnswer("Friday")


@pytest.mark.ci
def test_a_refusal_of_the_gateway_ends_the_node_example(gateway: "FakeGateway") -> None:
    gateway.status = 429
    with pytest.raises(AgentFailedError) as caught:
        run(node_example(), gateway)
    assert caught.value.code == "gateway.agent-exited"
    assert "429" in str(caught.value)
