"""Test a server that samples each question several times and returns one of the answers."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.inference.fake_vllm import (
    STOP,
    Act,
    Exchange,
    FakeVLLM,
    after,
    decoded,
    encoded,
    forward,
    logprobs_of,
    stall,
    status,
    together,
)
from tests.rewards.chat_judge import says, shown
from tests.rollouts.conversations import call
from tests.serving.agent_server import ANN, DAY, SECRET, AgentProcess, ServerFiles, code_of, question_body, start_server
from tests.serving.in_process import (
    make_scenario,
    make_settings,
    model_settings,
    open_test_service,
    serve_in_thread,
)
from tests.serving.mcp_client import call_tools
from tests.serving.test_invoke import read_events
from tests.waiting import Clock, async_wait_until, wait_until

SAMPLES = ["--set", "model.samples=4", "--set", "model.temperature=0.8"]


def prefer_quotes(request: dict[str, Any]) -> dict[str, Any]:
    return {
        each["id"]: {"explanation": "it quotes", "score": 0.9 if "Guess" not in json.dumps(each["turns"]) else 0.1}
        for each in shown(request)["trajectories"]
    }


def answer_wrongly(wrong: Callable[[int], bool]) -> Act:
    """Return an act that answers wrongly if `wrong` holds for the number of the answer, from 0."""
    lock, count = threading.Lock(), 0

    def act(exchange: Exchange) -> None:
        nonlocal count
        if decoded(exchange.request["prompt"]).count("<tool_response>") == 2:
            with lock:
                number, count = count, count + 1
            if wrong(number):
                ids = [*encoded(call("return_final_answer", answer=f"Guess {number} of mine", message_ids=[])), *STOP]
                choice = {"token_ids": ids, "text": decoded(ids), "finish_reason": "stop"}
                exchange.answer["choices"][0] |= choice | {"logprobs": {"token_logprobs": logprobs_of(ids)}}
        forward(exchange)

    return act


@pytest.fixture(scope="module")
def majority_server(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server that answers with the majority of four samples and runs eight episodes at once."""
    log = tmp_path_factory.mktemp("majority") / "log"
    bounds = ["--set", "limits.concurrency=8", "--set", "limits.queue=4"]
    with start_server(place, f"vllm:{shared_model.address}#adapter", log, "--open", *SAMPLES, *bounds) as running:
        yield running


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[FakeVLLM]:
    with FakeVLLM(chat=says(prefer_quotes)) as judge:
        yield judge


@pytest.fixture
def judge(shared_judge: FakeVLLM) -> Iterator[FakeVLLM]:
    shared_judge.heal()
    shared_judge.requests.clear()
    yield shared_judge
    assert shared_judge.errors == []


@pytest.fixture(scope="module")
def best_server(
    place: ServerFiles, shared_model: FakeVLLM, shared_judge: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server that answers with the best of four samples, by a judge."""
    by = f"model.choose_by={{ruler: {{model: {{model: base, url: '{shared_judge.address}/v1', attempts: 1}}}}}}"
    words = ["--open", *SAMPLES, "--set", "model.choose=best", "--set", by]
    log = tmp_path_factory.mktemp("best") / "log"
    with start_server(place, f"vllm:{shared_model.address}#adapter", log, *words, OPENAI_API_KEY="none") as running:
        yield running


def test_the_majority_s_answer_is_returned_with_the_cost_of_all_samples(
    majority_server: AgentProcess, model: FakeVLLM
) -> None:
    model.inject(answer_wrongly(lambda number: number % 2 == 0), times=None)
    before = {kind: majority_server.metric("gumshoe_tokens_total", kind=kind) for kind in ("given", "sampled")}
    episodes, choices = (majority_server.metric(f"gumshoe_{name}_total") for name in ("episodes", "choices"))
    answer = majority_server.ask(steps=True).json()
    assert (answer["answer"], answer["success"], answer["turns"]) == ("Body of message 7", True, 3)
    assert answer["chosen"] == "2 of 4 samples agree"
    assert [each["tool"] for each in answer["steps"]] == ["search_inbox", "read_email", "return_final_answer"]
    cost = answer["cost"]
    assert (cost["samples"], cost["failed"], cost["turns"], cost["judge_requests"]) == (4, 0, 12, 0)
    assert cost["prompt_tokens"] == sum(len(each["prompt"]) for each in model.requests)
    assert 0 < cost["longest"] <= cost["seconds"]
    assert majority_server.metric("gumshoe_episodes_total") == episodes + 4
    assert majority_server.metric("gumshoe_choices_total", how="majority") == choices + 1
    sampled = majority_server.metric("gumshoe_tokens_total", kind="sampled") - before["sampled"]
    assert sampled == cost["sampled_tokens"]
    assert majority_server.metric("gumshoe_tokens_total", kind="given") > before["given"]
    wait_until(lambda: any("cost" in each for each in majority_server.read_log()))
    line = next(each for each in reversed(majority_server.read_log()) if "cost" in each)
    assert (line["cost"]["turns"], line["cost"]["sampled_tokens"]) == (12, cost["sampled_tokens"])
    assert "Body of message" not in majority_server.log.read_text()


def test_samples_run_concurrently_on_one_adapter(majority_server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(together(4), times=None)
    model.most_at_once = 0
    assert majority_server.ask().is_success
    assert model.most_at_once == 4
    assert {each["model"] for each in model.requests} == {"adapter"}
    assert {each["temperature"] for each in model.requests} == {0.8}
    assert len(model.requests) == 12


def test_samples_of_all_questions_share_the_concurrency_limit(majority_server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(after(0.02), times=None)
    model.most_at_once = 0
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: majority_server.ask(1 + number % 20), range(12)))
    assert {each.status_code for each in answers} == {200}, "two questions run and four wait"
    assert model.most_at_once <= 8
    wait_until(
        lambda: (
            majority_server.metric("gumshoe_running") == 0
            and majority_server.metric("gumshoe_waiting", what="episode") == 0
        )
    )
    assert majority_server.ask().is_success, "all slots were released"


def test_a_failed_sample_is_ignored(majority_server: AgentProcess, model: FakeVLLM) -> None:
    failed = majority_server.metric("gumshoe_model_errors_total", why="failed")
    model.inject(status(400))
    answer = majority_server.ask().json()
    assert (answer["answer"], answer["cost"]["samples"], answer["cost"]["failed"]) == ("Body of message 7", 3, 1)
    assert majority_server.metric("gumshoe_model_errors_total", why="failed") == failed + 1
    assert re.search(r"1 of 4 samples .*\[inference\.[a-z-]+\]", majority_server.log.read_text())
    model.heal()
    model.inject(status(400), times=None)
    failed_answer = majority_server.ask()
    assert (failed_answer.status_code, code_of(failed_answer)) == (502, "serving.model-failed")


DEADLINE = 10_000.0
FOUR = {"samples": 4, "temperature": 0.8}


def test_a_late_sample_is_cancelled_before_the_deadline(place: ServerFiles, model: FakeVLLM, clock: Clock) -> None:
    async def answer() -> None:
        async with open_test_service(place, model.address, {"deadline": DEADLINE}, **FOUR) as service:
            model.inject(stall)
            late = asyncio.create_task(service.answer(make_scenario(), None, lambda _: None, "ann"))
            await async_wait_until(lambda: len(model.requests) == 10 and model.under_way == 1)
            await async_wait_until(lambda: service.metrics.running._value.get() == 1)
            clock.advance(0.74 * DEADLINE)
            await asyncio.sleep(0.05)
            assert not late.done()
            clock.advance(0.02 * DEADLINE)
            answer = await late
            assert answer.cost is not None
            assert (answer.answer, answer.cost.failed) == ("Body of message 7", 1)
            assert service.metrics.model_errors.labels("too slow")._value.get() == 1

    asyncio.run(answer())


def test_all_samples_late_is_a_timeout(place: ServerFiles, model: FakeVLLM, clock: Clock) -> None:
    from gumshoe.serving.errors import DeadlineExceededError

    async def answer() -> None:
        async with open_test_service(place, model.address, {"deadline": DEADLINE}, **FOUR) as service:
            model.inject(stall, times=None)
            late = asyncio.create_task(service.answer(make_scenario(), None, lambda _: None, "ann"))
            await async_wait_until(lambda: model.under_way == 4)
            clock.advance(DEADLINE + 1)
            with pytest.raises(DeadlineExceededError):
                await late

    asyncio.run(answer())


def test_a_stream_sends_the_steps_of_the_chosen_sample(majority_server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(answer_wrongly(lambda number: number == 0), times=None)
    with majority_server.client.stream("POST", "/invoke/stream", json=question_body(7)) as response:
        found = read_events(response)
    assert [name for name, _ in found] == ["step"] * 3 + ["answer"]
    answer = found[-1][1]
    assert [data for name, data in found if name == "step"] == answer["steps"]
    assert (answer["chosen"], answer["answer"]) == ("3 of 4 samples agree", "Body of message 7")


def test_mcp_answers_are_chosen_the_same_way(majority_server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(answer_wrongly(lambda number: number == 0), times=None)
    (answer,) = call_tools(
        majority_server, ("ask", {"question": "What is in 7?", "inbox_address": ANN, "query_date": DAY}), key="x"
    )
    assert '"answer": "Body of message 7"' in answer[1]
    assert '"chosen": "3 of 4 samples agree"' in answer[1]


def test_the_best_answer_by_a_judge_is_returned_and_its_requests_are_counted(
    best_server: AgentProcess, model: FakeVLLM, judge: FakeVLLM
) -> None:
    model.inject(answer_wrongly(lambda number: number != 2), times=None)
    answer = best_server.ask().json()
    assert answer["answer"] == "Body of message 7"
    assert "0.90" in answer["chosen"]
    assert "of 4: it quotes" in answer["chosen"]
    assert (answer["cost"]["judge_requests"], answer["cost"]["judge_prompt_tokens"]) == (1, 1000)
    assert best_server.metric("gumshoe_judge_requests_total") == 1
    assert best_server.metric("gumshoe_judge_tokens_total", kind="given") == 1000
    assert best_server.metric("gumshoe_choices_total", how="best") == 1
    assert SECRET not in judge.requests[0]["messages"][-1]["content"]


def test_tokens_of_the_judge_are_taken_from_the_caller_s_budget(
    place: ServerFiles, model: FakeVLLM, judge: FakeVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving.usage_budgets import UsageBudgets

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    by = {"ruler": {"model": {"model": "base", "url": f"{judge.address}/v1", "attempts": 1}}}
    chosen = {"samples": 4, "temperature": 0.8, "choose": "best", "choose_by": by}
    limits = {"deadline": 3600, "tokens_per_day": 1_000_000, "usage_file": str(tmp_path / "usage.db")}
    model.inject(answer_wrongly(lambda number: number != 2), times=None)
    settings = make_settings(place, model=model_settings(place, model.address, **chosen), limits=limits)
    with serve_in_thread(settings) as server:
        cost = server.ask().json()["cost"]
    assert cost["judge_prompt_tokens"] == 1000
    names = ("prompt_tokens", "sampled_tokens", "judge_prompt_tokens", "judge_sampled_tokens")
    budgets = UsageBudgets(tokens_per_day=1, file=tmp_path / "usage.db")
    assert budgets.read("address 127.0.0.1")[0] == sum(cost[each] for each in names)
    budgets.close()


def test_if_the_judge_fails_the_first_answer_is_returned(
    best_server: AgentProcess, model: FakeVLLM, judge: FakeVLLM
) -> None:
    model.inject(answer_wrongly(lambda number: number != 2), times=None)
    judge.inject(status(500), times=None)
    before = best_server.metric("gumshoe_choices_total", how="first")
    answer = best_server.ask().json()
    assert answer["success"]
    assert "first sample" in answer["chosen"]
    assert best_server.metric("gumshoe_choices_total", how="first") == before + 1
    assert "ruler:base chose" in best_server.log.read_text()
    assert "Guess" not in best_server.log.read_text()


def test_if_the_judge_stalls_the_first_answer_is_returned_in_time(
    place: ServerFiles, model: FakeVLLM, judge: FakeVLLM, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model.inject(answer_wrongly(lambda number: number != 2), times=None)
    judge.inject(stall, times=None)
    by = {"ruler": {"model": {"model": "base", "url": f"{judge.address}/v1", "attempts": 1, "deadline": 2 * DEADLINE}}}

    async def answer() -> None:
        limits = {"deadline": DEADLINE}
        async with open_test_service(place, model.address, limits, **FOUR, choose="best", choose_by=by) as service:
            late = asyncio.create_task(service.answer(make_scenario(), None, lambda _: None, "ann"))
            await async_wait_until(lambda: judge.under_way == 1)
            clock.advance(0.89 * DEADLINE)
            await asyncio.sleep(0.05)
            assert not late.done()
            clock.advance(0.02 * DEADLINE)
            answer = await late
            assert answer.success
            assert "first sample" in answer.chosen
            assert service.metrics.choices.labels("first")._value.get() == 1

    asyncio.run(answer())


def test_one_sample_needs_no_choice(server: AgentProcess) -> None:
    answer = server.ask().json()
    assert (answer["chosen"], answer["cost"]["samples"], answer["cost"]["turns"]) == ("", 1, 3)
    assert server.metric("gumshoe_choices_total") == 0


@pytest.mark.parametrize(
    ("sets", "code", "value"),
    [
        (["model.samples=4"], "serving.invalid-settings", "model.temperature > 0"),
        (["model.samples=65", "model.temperature=1"], "serving.invalid-settings", "equal to 64"),
        (["model.samples=4", "model.temperature=1", "model.choose=best"], "rewards.chooser-missing", "ruler:MODEL"),
        (
            ["model.samples=4", "model.temperature=1", "model.choose=best", "model.choose_by=heuristic"],
            "rewards.chooser-needs-reference",
            "'heuristic'",
        ),
        (["model.choose_by=ruler:m"], "serving.invalid-settings", "model.samples >= 2"),
        (
            ["model.samples=8", "model.temperature=1", "limits.concurrency=4"],
            "serving.invalid-settings",
            "limits.concurrency (4), got 8",
        ),
        (
            ["model.samples=8", "model.temperature=1", "workers=3", "model.agent={command: [agent], processes: 7}"],
            "serving.invalid-settings",
            "the agent's processes (6), got 8",
        ),
    ],
)
def test_invalid_sample_settings_are_refused(
    sets: list[str], code: str, value: str, place: ServerFiles, run: Any
) -> None:
    words = [word for each in sets for word in ("--set", each)]
    ran = run("serve", "--index", place.index, "--policy", "chat:x@http://127.0.0.1:9", "--open", "--port", 0, *words)
    assert (ran.status, ran.code) == (2, code), ran.err
    assert value in ran.err


def test_gumshoe_ask_supports_several_samples(
    place: ServerFiles, majority_server: AgentProcess, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GUMSHOE_INDEX", raising=False)
    words = ["ask", "What is in 7?", "--inbox", ANN, "--date", DAY]
    served = run(*words, "--url", majority_server.url)
    assert served.status == 0
    for value in ("4 of 4 samples agree", "4 of 4 ended", "12 turns"):
        assert value in served.err
    refused = run("ask", "What is in 7?", "--index", place.index)
    assert (refused.status, refused.code) == (2, "serving.no-inbox"), refused.err
    refused = run(*words, "--url", majority_server.url, "--samples", 4)
    assert (refused.status, refused.code) == (2, "serving.option-conflict"), refused.err
    assert "--samples" in refused.err
    for more, code in (
        (["--samples", 4, "--temperature", 0], "rewards.greedy-samples"),
        (["--choose", "majority"], "rewards.samples-missing"),
        (["--samples", 4, "--choose", "best"], "rewards.chooser-missing"),
    ):
        refused = run(*words, "--index", place.index, *more)
        assert (refused.status, refused.code) == (2, code), refused.err


@pytest.mark.ci
def test_the_tiny_policy_supports_several_samples(
    place: ServerFiles, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUMSHOE_ENGINE", "transformers")  # in this process, without vLLM
    words = ["ask", "What is in 7?", "--inbox", ANN, "--date", DAY, "--index", place.index, "--max-turns", 3]
    ran = run(*words, "--max-tokens", 60, "--samples", 3, "--json")
    answer = json.loads(ran.out)
    assert (answer["cost"]["samples"], answer["cost"]["failed"]) == (3, 0)
    assert "of 3 samples" in answer["chosen"]
    assert ran.status == (0 if answer["success"] else 3), ran.err
    again = json.loads(run(*words, "--max-tokens", 60, "--samples", 3, "--json").out)
    assert (again["answer"], again["chosen"], again["cost"]["turns"]) == (
        answer["answer"],
        answer["chosen"],
        answer["cost"]["turns"],
    )


@pytest.mark.ci
def test_an_agent_answers_with_the_tiny_policy(
    place: ServerFiles, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUMSHOE_ENGINE", "transformers")
    (tmp_path / "asked_agent.py").write_text(
        "async def run(task):\n    await task.tools.call_async('search_inbox', keywords=['7'])\n    return 'Mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["ask", "What is in 7?", "--inbox", ANN, "--date", DAY, "--index", place.index, "--json"]
    ran = run(*words, "--agent", "asked_agent:run")
    assert (ran.status, json.loads(ran.out)["answer"]) == (0, "Mine"), ran.err
    ran = run(*words, "--agent", "asked_agent:none")
    assert (ran.status, ran.code) == (2, "gateway.agent-not-found")
