"""A server that samples each question several times, and answers with one of them."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from tests.serving.agent_server import ANN, DAY, SECRET, Place, Running, asked, code_of, started
from tests.serving.in_process import question, service_with
from tests.serving.test_invoke import events
from tests.serving.test_mcp import called
from tests.waiting import Clock, async_wait_until, wait_until

SAMPLES = ["--set", "model.samples=4", "--set", "model.temperature=0.8"]


def likes_bodies(request: dict[str, Any]) -> dict[str, Any]:
    return {
        each["id"]: {"explanation": "it quotes", "score": 0.9 if "Guess" not in json.dumps(each["turns"]) else 0.1}
        for each in shown(request)["trajectories"]
    }


def guessing(wrong: Callable[[int], bool]) -> Act:
    """Answers wrongly where the number of the answer, from 0, is one of these."""
    lock, given = threading.Lock(), 0

    def act(exchange: Exchange) -> None:
        nonlocal given
        if decoded(exchange.request["prompt"]).count("<tool_response>") == 2:
            with lock:
                place, given = given, given + 1
            if wrong(place):
                ids = [*encoded(call("return_final_answer", answer=f"Guess {place} of mine", message_ids=[])), *STOP]
                told = {"token_ids": ids, "text": decoded(ids), "finish_reason": "stop"}
                exchange.answer["choices"][0] |= told | {"logprobs": {"token_logprobs": logprobs_of(ids)}}
        forward(exchange)

    return act


@pytest.fixture(scope="module")
def several(place: Place, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Takes the majority of four, and runs eight episodes at once."""
    log = tmp_path_factory.mktemp("several") / "log"
    bounds = ["--set", "limits.concurrency=8", "--set", "limits.queue=4"]
    with started(place, f"vllm:{shared_model.address}#adapter", log, "--open", *SAMPLES, *bounds) as running:
        yield running


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[FakeVLLM]:
    with FakeVLLM(chat=says(likes_bodies)) as judge:
        yield judge


@pytest.fixture
def judge(shared_judge: FakeVLLM) -> Iterator[FakeVLLM]:
    shared_judge.heal()
    shared_judge.requests.clear()
    yield shared_judge
    assert shared_judge.errors == []


@pytest.fixture(scope="module")
def best(
    place: Place, shared_model: FakeVLLM, shared_judge: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Takes the best of four, by a judge."""
    by = f"model.choose_by={{ruler: {{model: {{model: base, url: '{shared_judge.address}/v1', attempts: 1}}}}}}"
    words = ["--open", *SAMPLES, "--set", "model.choose=best", "--set", by]
    log = tmp_path_factory.mktemp("best") / "log"
    with started(place, f"vllm:{shared_model.address}#adapter", log, *words, OPENAI_API_KEY="none") as running:
        yield running


def test_the_answer_of_most_samples_is_given_with_what_all_of_them_took(several: Running, model: FakeVLLM) -> None:
    model.inject(guessing(lambda place: place % 2 == 0), times=None)
    before = {kind: several.metric("gumshoe_tokens_total", kind=kind) for kind in ("given", "sampled")}
    episodes, choices = (several.metric(f"gumshoe_{name}_total") for name in ("episodes", "choices"))
    told = several.ask(steps=True).json()
    assert (told["answer"], told["success"], told["turns"]) == ("Body of message 7", True, 3)
    assert told["chosen"] == "2 of 4 samples agree"
    assert [each["tool"] for each in told["steps"]] == ["search_inbox", "read_email", "return_final_answer"]
    cost = told["cost"]
    assert (cost["samples"], cost["failed"], cost["turns"], cost["judge_requests"]) == (4, 0, 12, 0)
    assert cost["prompt_tokens"] == sum(len(each["prompt"]) for each in model.requests)
    assert 0 < cost["longest"] <= cost["seconds"]
    assert several.metric("gumshoe_episodes_total") == episodes + 4
    assert several.metric("gumshoe_choices_total", how="majority") == choices + 1
    sampled = several.metric("gumshoe_tokens_total", kind="sampled") - before["sampled"]
    assert sampled == cost["sampled_tokens"]
    assert several.metric("gumshoe_tokens_total", kind="given") > before["given"]
    wait_until(lambda: any("cost" in each for each in several.logged()))
    line = next(each for each in reversed(several.logged()) if "cost" in each)
    assert (line["cost"]["turns"], line["cost"]["sampled_tokens"]) == (12, cost["sampled_tokens"])
    assert "Body of message" not in several.log.read_text()


def test_samples_run_at_once_by_one_adapter(several: Running, model: FakeVLLM) -> None:
    model.inject(together(4), times=None)
    model.most_at_once = 0
    assert several.ask().is_success
    assert model.most_at_once == 4
    assert {each["model"] for each in model.requests} == {"adapter"}
    assert {each["temperature"] for each in model.requests} == {0.8}
    assert len(model.requests) == 12


def test_all_samples_of_all_questions_keep_to_the_bound_and_none_is_lost(several: Running, model: FakeVLLM) -> None:
    model.inject(after(0.02), times=None)
    model.most_at_once = 0
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: several.ask(1 + number % 20), range(12)))
    assert {each.status_code for each in answers} == {200}, "two run and four wait"
    assert model.most_at_once <= 8
    wait_until(
        lambda: several.metric("gumshoe_running") == 0 and several.metric("gumshoe_waiting", what="episode") == 0
    )
    assert several.ask().is_success, "every place was given back"


def test_a_sample_that_fails_is_left_out(several: Running, model: FakeVLLM) -> None:
    failed = several.metric("gumshoe_model_errors_total", why="failed")
    model.inject(status(400))
    told = several.ask().json()
    assert (told["answer"], told["cost"]["samples"], told["cost"]["failed"]) == ("Body of message 7", 3, 1)
    assert several.metric("gumshoe_model_errors_total", why="failed") == failed + 1
    assert re.search(r"1 of 4 samples .*\[inference\.[a-z-]+\]", several.log.read_text())
    model.heal()
    model.inject(status(400), times=None)
    failed_answer = several.ask()
    assert (failed_answer.status_code, code_of(failed_answer)) == (502, "serving.model-failed")


DEADLINE = 10_000.0
FOUR = {"samples": 4, "temperature": 0.8}


def test_a_sample_that_is_late_is_left_out_in_time_for_an_answer(place: Place, model: FakeVLLM, clock: Clock) -> None:
    async def answer() -> None:
        async with service_with(place, model.address, {"deadline": DEADLINE}, **FOUR) as service:
            model.inject(stall)
            late = asyncio.create_task(service.answer(question(), None, lambda _: None))
            await async_wait_until(lambda: len(model.requests) == 10 and model.under_way == 1)
            await async_wait_until(lambda: service.metrics.running._value.get() == 1)
            clock.advance(0.74 * DEADLINE)
            await asyncio.sleep(0.05)
            assert not late.done()
            clock.advance(0.02 * DEADLINE)
            told = await late
            assert told.cost is not None
            assert (told.answer, told.cost.failed) == ("Body of message 7", 1)
            assert service.metrics.model_errors.labels("too slow")._value.get() == 1

    asyncio.run(answer())


def test_samples_that_are_all_late_give_no_answer(place: Place, model: FakeVLLM, clock: Clock) -> None:
    from gumshoe.serving.errors import TooSlowError

    async def answer() -> None:
        async with service_with(place, model.address, {"deadline": DEADLINE}, **FOUR) as service:
            model.inject(stall, times=None)
            late = asyncio.create_task(service.answer(question(), None, lambda _: None))
            await async_wait_until(lambda: model.under_way == 4)
            clock.advance(DEADLINE + 1)
            with pytest.raises(TooSlowError):
                await late

    asyncio.run(answer())


def test_a_stream_sends_the_steps_of_the_one_that_answers(several: Running, model: FakeVLLM) -> None:
    model.inject(guessing(lambda place: place == 0), times=None)
    with several.client.stream("POST", "/invoke/stream", json=asked(7)) as response:
        found = events(response)
    assert [name for name, _ in found] == ["step"] * 3 + ["answer"]
    answer = found[-1][1]
    assert [data for name, data in found if name == "step"] == answer["steps"]
    assert (answer["chosen"], answer["answer"]) == ("3 of 4 samples agree", "Body of message 7")


def test_an_mcp_client_is_answered_likewise(several: Running, model: FakeVLLM) -> None:
    model.inject(guessing(lambda place: place == 0), times=None)
    (told,) = called(several, ("ask", {"question": "What is in 7?", "inbox_address": ANN, "query_date": DAY}), key="x")
    assert '"answer": "Body of message 7"' in told[1]
    assert '"chosen": "3 of 4 samples agree"' in told[1]


def test_the_best_by_a_judge_is_given_and_its_requests_are_counted(
    best: Running, model: FakeVLLM, judge: FakeVLLM
) -> None:
    model.inject(guessing(lambda place: place != 2), times=None)
    told = best.ask().json()
    assert told["answer"] == "Body of message 7"
    assert "0.90" in told["chosen"]
    assert "of 4: it quotes" in told["chosen"]
    assert (told["cost"]["judge_requests"], told["cost"]["judge_prompt_tokens"]) == (1, 1000)
    assert best.metric("gumshoe_judge_requests_total") == 1
    assert best.metric("gumshoe_judge_tokens_total", kind="given") == 1000
    assert best.metric("gumshoe_choices_total", how="best") == 1
    assert SECRET not in judge.requests[0]["messages"][-1]["content"]


def test_where_the_judge_fails_the_first_answer_is_given_and_that_is_told(
    best: Running, model: FakeVLLM, judge: FakeVLLM
) -> None:
    model.inject(guessing(lambda place: place != 2), times=None)
    judge.inject(status(500), times=None)
    before = best.metric("gumshoe_choices_total", how="first")
    told = best.ask().json()
    assert told["success"]
    assert "first sample" in told["chosen"]
    assert best.metric("gumshoe_choices_total", how="first") == before + 1
    assert "ruler:base chose" in best.log.read_text()
    assert "Guess" not in best.log.read_text()


def test_where_the_judge_stalls_the_first_answer_is_given_in_time(
    place: Place, model: FakeVLLM, judge: FakeVLLM, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model.inject(guessing(lambda place: place != 2), times=None)
    judge.inject(stall, times=None)
    by = {"ruler": {"model": {"model": "base", "url": f"{judge.address}/v1", "attempts": 1, "deadline": 2 * DEADLINE}}}

    async def answer() -> None:
        limits = {"deadline": DEADLINE}
        async with service_with(place, model.address, limits, **FOUR, choose="best", choose_by=by) as service:
            late = asyncio.create_task(service.answer(question(), None, lambda _: None))
            await async_wait_until(lambda: judge.under_way == 1)
            clock.advance(0.89 * DEADLINE)
            await asyncio.sleep(0.05)
            assert not late.done()
            clock.advance(0.02 * DEADLINE)
            told = await late
            assert told.success
            assert "first sample" in told.chosen
            assert service.metrics.choices.labels("first")._value.get() == 1

    asyncio.run(answer())


def test_one_sample_is_answered_as_ever(server: Running) -> None:
    told = server.ask().json()
    assert (told["chosen"], told["cost"]["samples"], told["cost"]["turns"]) == ("", 1, 3)
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
    ],
)
def test_settings_that_cannot_be_are_refused(sets: list[str], code: str, value: str, place: Place, run: Any) -> None:
    words = [word for each in sets for word in ("--set", each)]
    ran = run("serve", "--index", place.index, "--policy", "chat:x@http://127.0.0.1:9", "--open", "--port", 0, *words)
    assert (ran.status, ran.code) == (2, code), ran.err
    assert value in ran.err


def test_the_command_line_asks_for_several_here_and_tells_what_they_took(
    place: Place, several: Running, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GUMSHOE_INDEX", raising=False)
    words = ["ask", "What is in 7?", "--inbox", ANN, "--date", DAY]
    served = run(*words, "--url", several.url)
    assert served.status == 0
    for value in ("4 of 4 samples agree", "4 of 4 ended", "12 turns"):
        assert value in served.err
    refused = run(*words, "--url", several.url, "--samples", 4)
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
def test_the_tiny_policy_is_asked_several_times(place: Place, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_ENGINE", "transformers")  # in this process, without vLLM
    words = ["ask", "What is in 7?", "--inbox", ANN, "--date", DAY, "--index", place.index, "--max-turns", 3]
    ran = run(*words, "--max-tokens", 60, "--samples", 3, "--json")
    told = json.loads(ran.out)
    assert (told["cost"]["samples"], told["cost"]["failed"]) == (3, 0)
    assert "of 3 samples" in told["chosen"]
    assert ran.status == (0 if told["success"] else 3), ran.err
    again = json.loads(run(*words, "--max-tokens", 60, "--samples", 3, "--json").out)
    assert (again["answer"], again["chosen"], again["cost"]["turns"]) == (
        told["answer"],
        told["chosen"],
        told["cost"]["turns"],
    )
