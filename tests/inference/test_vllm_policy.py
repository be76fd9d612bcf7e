"""A policy on vLLM's HTTP API: requests, checks of answers, and retries."""

import asyncio
import json
import math
import pickle
import random
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from gumshoe.errors import UsageError
from gumshoe.inference.policy import Completion, PolicyError, Sampling
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.inference.vllm_server import check_server
from tests.conftest import find_free_port
from tests.errors import check_error, raises
from tests.inference.fake_vllm import (
    STOP,
    Act,
    FakeVLLM,
    ServerProcess,
    after,
    altered,
    choice,
    codec,
    cut_body,
    cut_json,
    encoded,
    fewer_logprobs,
    first_tries,
    held,
    logprobs_of,
    raw,
    refuse,
    reset,
    stall,
    status,
    trickle,
    wrong_model,
)
from tests.waiting import Clock, async_wait_until

T = TypeVar("T")
HOUR = 3600.0  # seconds; passes only if a test advances the clock
IMPATIENT = RequestLimits(deadline=HOUR, connect=HOUR, attempts=3, backoff=0.05, patience=0)


def patient(*, attempts: int = 2, backoff: float = 0.05) -> RequestLimits:
    """Return limits whose deadlines do not pass by themselves, and that wait an hour for a server."""
    return RequestLimits(deadline=100 * HOUR, connect=100 * HOUR, attempts=attempts, backoff=backoff, patience=HOUR)


LONG = Sampling(max_tokens=200)


def prompt_for(text: str) -> list[int]:
    """Return a prompt after which the server samples `text`."""
    return encoded(f"<|im_start|>user\nSay:{text}<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM() as server:
        yield server
    assert server.errors == []


async def pass_deadlines(asked: Coroutine[Any, Any, T], server: FakeVLLM, clock: Clock, deadlines: int) -> T:
    """Await an answer while the deadline of an hour passes for `deadlines` requests, one after another."""
    task = asyncio.ensure_future(asked)
    for number in range(1, deadlines + 1):
        await async_wait_until(lambda: len(server.requests) >= number)  # noqa: B023 - it is awaited here
        clock.advance(HOUR - 600)
        await asyncio.sleep(0.02)
        assert (len(server.requests), task.done()) == (number, False)
        clock.advance(601)
    return await task


async def say(policy: VLLMPolicy, text: str = "Yes.", sampling: Sampling = LONG) -> Completion:
    return await policy.sample(prompt_for(text), sampling, stop_ids=STOP, seed=1)


def say_once(
    *addresses: str, text: str = "Yes.", sampling: Sampling = LONG, limits: RequestLimits = IMPATIENT
) -> Completion:
    """Return one turn of a policy on these servers."""
    return asyncio.run(one_turn(*addresses, text=text, sampling=sampling, limits=limits))


async def one_turn(
    *addresses: str, text: str = "Yes.", sampling: Sampling = LONG, limits: RequestLimits = IMPATIENT
) -> Completion:
    """Return one turn of a policy on these servers."""
    async with VLLMPolicy(addresses, "adapter", limits) as policy:
        return await say(policy, text, sampling)


def test_a_turn_has_the_ids_and_log_probabilities_of_the_server(server: FakeVLLM) -> None:
    ids = [*encoded("Grüße, <tool_call>"), *STOP]
    assert say_once(server.address, text="Grüße, <tool_call>") == Completion(
        tuple(ids), tuple(logprobs_of(ids)), "stop", "adapter"
    )
    assert server.requests[0]["prompt"] == prompt_for("Grüße, <tool_call>")


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.0, max_tokens=7),
        Sampling(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05, repetition_penalty=1.05, max_tokens=64),
    ],
)
def test_requests_have_all_sampling_parameters_and_stop_ids(server: FakeVLLM, sampling: Sampling) -> None:
    say_once(server.address, sampling=sampling)
    (request,) = server.requests
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"):
        assert request[name] == getattr(sampling, name)
    asked = {"presence_penalty": 0, "frequency_penalty": 0, "stop_token_ids": STOP, "ignore_eos": True, "n": 1}
    assert {name: request[name] for name in asked} == asked
    assert request["model"] == "adapter"
    assert "seed" not in request


def test_a_schema_is_sent_only_if_it_is_set(server: FakeVLLM) -> None:
    schema = '{"type": "object"}'
    say_once(server.address, sampling=Sampling(json_schema=schema))
    say_once(server.address)
    assert [each.get("structured_outputs") for each in server.requests[-2:]] == [{"json": schema}, None]


def test_a_turn_may_begin_with_something_else_than_the_json_of_its_schema(server: FakeVLLM) -> None:
    say_once(server.address, sampling=Sampling(json_schema='{"type": "object"}', json_alternatives=("<tool_call>",)))
    sent = json.loads(server.requests[-1]["structured_outputs"]["structural_tag"])
    schema, free = sent["format"]["elements"]
    assert schema == {"type": "json_schema", "json_schema": {"type": "object"}}
    assert free["elements"] == [{"type": "const_string", "value": "<tool_call>"}, {"type": "any_text"}]


def test_a_schema_that_the_server_refuses_is_no_failure_of_the_server(server: FakeVLLM) -> None:
    server.inject(refuse("minContains is unsupported", 400), times=None)
    with raises("inference.schema-rejected", "minContains") as refused:
        say_once(server.address, sampling=Sampling(json_schema="{}"))
    assert isinstance(refused.value, UsageError)
    with raises("inference.request-rejected") as failed:
        say_once(server.address)
    assert isinstance(failed.value, PolicyError)
    assert len(server.requests) == 2  # neither is tried again


def test_a_truncated_turn_is_marked(server: FakeVLLM) -> None:
    cut = say_once(server.address, text="a long story", sampling=Sampling(max_tokens=6))
    assert (cut.ids, cut.finish) == (tuple(encoded("a long")), "length")


def test_the_model_s_default_eos_token_does_not_end_a_turn(server: FakeVLLM) -> None:
    assert say_once(server.address, text="one STOP two").ids == tuple(encoded("one <|endoftext|> two") + STOP)


PASSING: dict[str, tuple[Act, str, str]] = {
    "connection reset": (reset, "inference.server-unreachable", "Error"),
    "stall": (stall, "inference.timeout", "3600 seconds"),
    "bytes that trickle": (trickle, "inference.timeout", "3600 seconds"),
    "408": (status(408), "inference.server-error", "408"),
    "429": (status(429), "inference.server-error", "429"),
    "500": (status(500), "inference.server-error", "500"),
    "502": (status(502), "inference.server-unavailable", "502"),
    "503": (status(503), "inference.server-unavailable", "503"),
    "504": (status(504), "inference.server-error", "504"),
    "abort": (choice(finish_reason="abort", logprobs=None), "inference.server-stopping", "stopping"),
    "truncated JSON": (cut_json, "inference.invalid-answer", "JSON"),
    "truncated body": (cut_body, "inference.server-unreachable", "ClientPayloadError"),
    "a page": (raw(b"<html>proxy</html>", "text/html"), "inference.invalid-answer", "JSON"),
    "not the encoding it says": (
        raw(b"plain", **{"Content-Encoding": "gzip"}),
        "inference.invalid-answer",
        "gzip",
    ),
    "bytes that are no text": (raw(b'{"model": "\xff"}'), "inference.invalid-answer", "JSON"),
}


@pytest.mark.parametrize("fault", [act for act, *_ in PASSING.values()], ids=PASSING.keys())
def test_a_temporary_fault_is_retried(server: FakeVLLM, fault: Act, clock: Clock) -> None:
    server.inject(fault)
    asked = pass_deadlines(one_turn(server.address), server, clock, deadlines=fault in (stall, trickle))
    assert asyncio.run(asked).ids == tuple(encoded("Yes.") + STOP)
    first, second = server.requests
    assert first == second


@pytest.mark.parametrize(("fault", "code", "says"), PASSING.values(), ids=PASSING.keys())
def test_a_permanent_fault_is_an_error_after_all_attempts(
    server: FakeVLLM, fault: Act, code: str, says: str, clock: Clock
) -> None:
    server.inject(fault, times=None)
    limits = RequestLimits(deadline=HOUR, attempts=2, backoff=0.05, patience=0)
    deadlines = 2 if fault in (stall, trickle) else 0
    with raises(code, "adapter", server.address, "2 tries", says) as failed:
        asyncio.run(pass_deadlines(one_turn(server.address, limits=limits), server, clock, deadlines))
    assert isinstance(failed.value, PolicyError)
    assert len(server.requests) == 2


def test_a_longer_turn_has_more_time(server: FakeVLLM, clock: Clock) -> None:
    server.inject(stall, times=None)
    limits, long = RequestLimits(deadline=HOUR / 2, attempts=1, patience=0), Sampling(max_tokens=3000)
    with raises("inference.timeout", "in 3600 seconds"):
        asyncio.run(pass_deadlines(one_turn(server.address, sampling=long, limits=limits), server, clock, 1))


def _top_logprobs(value: Any) -> Act:
    return altered(lambda answer: answer["choices"][0]["logprobs"].update(token_logprobs=value))


def _one_logprob(value: Any) -> Act:
    return altered(lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].__setitem__(1, value))


LACKING = "inference.token-ids-missing"
ODD = "inference.invalid-answer"
UNUSABLE: dict[str, tuple[Act, str, str]] = {
    "wrong model": (altered(wrong_model), ODD, "'somebody-else'"),
    "the base model": (altered(lambda answer: answer.update(model="base")), ODD, "'base'"),
    "no model": (altered(lambda answer: answer.pop("model")), LACKING, "adapter"),
    "fewer log-probabilities": (altered(fewer_logprobs), ODD, "4 log-probabilities for 5 tokens"),
    "no log-probabilities": (choice(logprobs=None), LACKING, "adapter"),
    "null for log-probabilities": (_top_logprobs(None), LACKING, "adapter"),
    "a null log-probability": (_one_logprob(None), ODD, "token_logprobs"),
    "a log-probability that is no number": (_one_logprob(math.nan), ODD, "token_logprobs"),
    "a log-probability that no float can hold": (_one_logprob(10**400), ODD, "token_logprobs"),
    "an infinite log-probability": (_one_logprob(-math.inf), ODD, "token_logprobs"),
    "an older vLLM": (choice(token_ids=None, prompt_token_ids=None), LACKING, "adapter"),
    "text for ids": (choice(token_ids="Yes."), LACKING, "adapter"),
    "words for ids": (choice(token_ids=["Yes", "."]), LACKING, "adapter"),
    "parts of ids": (choice(token_ids=[1.5]), LACKING, "adapter"),
    "no prompt": (choice(prompt_token_ids=None), LACKING, "adapter"),
    "a prompt of numbers that are no integers": (
        altered(
            lambda answer: answer["choices"][0].update(prompt_token_ids=[1.0 * each for each in prompt_for("Yes.")])
        ),
        LACKING,
        "adapter",
    ),
    "a number for a prompt": (choice(prompt_token_ids=7), LACKING, "adapter"),
    "another prompt": (choice(prompt_token_ids=[1, 2]), ODD, "prompt_token_ids"),
    "nothing": (choice(token_ids=[], logprobs={"token_logprobs": []}), ODD, "token_ids is empty"),
    "an odd ending": (choice(finish_reason=["stop"]), ODD, "finish_reason is ['stop']"),
    "an end without the stop token": (
        choice(token_ids=[1, 2], logprobs={"token_logprobs": [0, 0]}),
        ODD,
        "stop_token_ids",
    ),
    "too much": (
        choice(token_ids=[1] * 201, logprobs={"token_logprobs": [0] * 201}, finish_reason="length"),
        ODD,
        "201 tokens",
    ),
    "two answers": (altered(lambda answer: answer["choices"].append({})), LACKING, "adapter"),
    "no answer": (altered(lambda answer: answer.update(choices=[])), LACKING, "adapter"),
    "a list": (raw(b"[]"), LACKING, "adapter"),
    "null": (raw(b"null"), LACKING, "adapter"),
}


@pytest.mark.parametrize(("fault", "code", "says"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_incomplete_answer_or_one_of_another_model_is_rejected(
    server: FakeVLLM, fault: Act, code: str, says: str
) -> None:
    server.inject(fault)
    with raises(code, says):
        say_once(server.address)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [400, 404, 422])
def test_permanent_errors_are_not_retried(server: FakeVLLM, code: int) -> None:
    server.inject(status(code, {"error": {"message": "the prompt is too long"}}))
    with raises("inference.request-rejected", server.address, code, "the prompt is too long"):
        say_once(server.address)
    assert len(server.requests) == 1


def test_a_server_in_the_local_network_is_reached_without_a_proxy(
    server: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{find_free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    say_once(server.address)
    assert len(server.requests) == 1


def test_an_unreachable_server_is_named_in_the_error() -> None:
    address = f"http://127.0.0.1:{find_free_port()}"
    with raises("inference.server-unreachable", address, "Connection refused", "3 tries"):
        say_once(address)


def test_a_policy_error_can_be_pickled() -> None:
    sent = PolicyError("inference.request-rejected", "adapter answered 400", "the prompt: who paid?")
    got = pickle.loads(pickle.dumps(sent))
    assert (got.code, got.message, got.public_message) == (sent.code, sent.message, "adapter answered 400")
    assert "who paid?" in got.message


def test_pauses_between_attempts_are_random_and_limited(server: FakeVLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 20 requests fails four times; without a limit, its last pause would be up to eight seconds."""
    pauses: list[float] = []
    yield_to_others = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await yield_to_others(0)

    async def run() -> None:
        async with VLLMPolicy([server.address], "adapter", RequestLimits(HOUR, attempts=5, backoff=0.4)) as policy:
            await asyncio.gather(*(say(policy, f"Number {number}.") for number in range(20)))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    random.seed(1)  # tenacity draws from it
    server.inject(first_tries(status(500), 4), times=None)
    asyncio.run(run())
    assert len(server.requests) == 20 * 5
    assert len(set(pauses)) == len(pauses) == 20 * 4
    assert min(pauses) < 0.2 < max(pauses) <= 0.4


GONE: dict[str, Act] = {"502": status(502), "503": status(503), "abort": choice(finish_reason="abort")}


@pytest.mark.parametrize("fault", GONE.values(), ids=GONE.keys())
def test_a_server_that_is_not_ready_does_not_use_up_attempts(server: FakeVLLM, fault: Act) -> None:
    server.inject(fault, times=7)
    assert say_once(server.address, limits=patient()).ids == tuple(encoded("Yes.") + STOP)
    assert len(server.requests) == 8


def test_all_requests_wait_for_a_restarting_server(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeVLLM(port=find_free_port())
    address = f"http://127.0.0.1:{server.port}"

    async def run() -> list[Completion]:
        async with VLLMPolicy([address], "adapter", patient(backoff=0.2)) as policy:
            asked = asyncio.gather(*(say(policy) for _ in range(8)))
            await async_wait_until(lambda: caplog.messages)
            assert not asked.done()
            with server:
                return await asked

    assert len(asyncio.run(run())) == 8
    gone, back = caplog.messages
    assert [word in gone for word in (address, "Connection refused", "3600 seconds")] == [True] * 3
    assert address in back


def test_the_patience_for_a_lost_server_is_spent_once(server: FakeVLLM, clock: Clock) -> None:
    server.inject(status(503), times=None)

    async def run() -> int:
        async with VLLMPolicy([server.address], "adapter", patient()) as policy:
            asked = asyncio.gather(*(say(policy) for _ in range(4)), return_exceptions=True)
            await async_wait_until(lambda: len(server.requests) > 4 * 2)
            assert not asked.done()
            clock.advance(HOUR)
            for each in await asked:
                assert isinstance(each, PolicyError)
                check_error(each, "inference.server-unavailable", 503)
            before = len(server.requests)
            with raises("inference.server-unavailable", 503, "2 tries"):
                await say(policy)
            return len(server.requests) - before

    assert asyncio.run(run()) == 2


def test_a_request_that_fails_between_restarts_is_given_up(server: FakeVLLM) -> None:
    """As if the request crashes the server each time: the restarts do not allow more attempts."""
    for _ in range(9):
        server.inject(status(503), times=4)
        server.inject(reset)
    with raises("inference.server-unreachable", "15 tries") as failed:
        say_once(server.address, limits=patient(attempts=3))
    assert "Connection refused" not in failed.value.message
    assert len(server.requests) == 15


def test_requests_go_to_the_least_busy_server() -> None:
    async def run(servers: list[FakeVLLM]) -> None:
        slow, *quick = servers
        done = [0] * 8

        async with VLLMPolicy([each.address for each in servers], "adapter", patient()) as policy:

            async def worker(number: int) -> None:
                for _ in range(5):
                    await say(policy)
                    done[number] += 1

            asked = asyncio.gather(*map(worker, range(8)))
            await async_wait_until(lambda: sum(each.under_way for each in servers) == 8)
            assert [len(each.requests) for each in servers] == [3, 3, 2]
            others_go_on.set()
            await async_wait_until(lambda: done.count(5) == 5)
            assert len(slow.requests) == 3, "it is busy with these, and gets no more"
            assert sum(len(each.requests) for each in quick) == 25
            slow_goes_on.set()
            await asked
            assert sum(len(each.requests) for each in servers) == 40
            assert len(slow.requests) > 3

    slow_goes_on, others_go_on = threading.Event(), threading.Event()
    with FakeVLLM() as slow, FakeVLLM() as quick, FakeVLLM() as brisk:
        slow.inject(held(slow_goes_on), times=None)
        quick.inject(held(others_go_on), times=None)
        brisk.inject(held(others_go_on), times=None)
        asyncio.run(run([slow, quick, brisk]))


def test_sequential_requests_rotate_over_the_servers() -> None:
    async def run(addresses: list[str]) -> None:
        async with VLLMPolicy(addresses, "adapter") as policy:
            for _ in range(6):
                await say(policy)

    with FakeVLLM() as first, FakeVLLM() as second:
        asyncio.run(run([first.address, second.address]))
        assert (len(first.requests), len(second.requests)) == (3, 3)


async def converse(policy: VLLMPolicy, name: str, turns: int) -> None:
    """Send requests in one conversation; each has the name of the conversation."""
    with policy.open_conversation() as member:
        for _ in range(turns):
            await member.sample(prompt_for(name), LONG, stop_ids=STOP, seed=1)


def names(server: FakeVLLM) -> list[tuple[int, ...]]:
    return [tuple(each["prompt"]) for each in server.requests]


def test_a_conversation_stays_on_one_server_and_new_ones_are_balanced() -> None:
    async def run(addresses: list[str]) -> None:
        async with VLLMPolicy(addresses, "adapter") as policy:
            await asyncio.gather(*(converse(policy, f"No. {each}", 1 + each % 5) for each in range(30)))
            await asyncio.gather(*(converse(policy, f"No. {each}", 2) for each in range(30, 40)))

    with FakeVLLM() as first, FakeVLLM() as second, FakeVLLM() as third:
        servers = (first, second, third)
        asyncio.run(run([each.address for each in servers]))
        had = [set(names(each)) for each in servers]
        assert [len(each) for each in had] == [14, 13, 13]
        assert len(set.union(*had)) == 40, "no conversation is on two of them"
        assert sum(len(each.requests) for each in servers) == 6 * sum(range(1, 6)) + 20


def test_conversations_of_a_lost_server_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between attempts would take an hour."""
    monkeypatch.setattr("gumshoe.inference.vllm_policy.wait_random_exponential", lambda max: lambda _: max)  # noqa: A006

    async def run(first: ServerProcess, second: FakeVLLM) -> None:
        limits = patient(backoff=HOUR)
        async with VLLMPolicy([first.address, second.address], "adapter", limits) as policy:
            talks = [asyncio.create_task(converse(policy, f"No. {each}", 10)) for each in range(8)]
            await async_wait_until(lambda: len(set(names(second))) == 4)
            first.kill()
            await asyncio.gather(*talks)

    gone = ServerProcess(find_free_port(), delay=0.05)
    gone.start()
    try:
        with FakeVLLM() as alive:
            alive.inject(after(0.05), times=None)
            asyncio.run(run(gone, alive))
            assert len(set(names(alive))) == 8
    finally:
        gone.kill()


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_dead_server_does_not_attract_requests(at_once: int) -> None:
    """The dead server fails at once, and would therefore be the least busy."""
    dead = f"http://127.0.0.1:{find_free_port()}"

    async def run(addresses: list[str]) -> list[Completion]:
        async with VLLMPolicy(addresses, "adapter", patient(backoff=0.2)) as policy:
            return [turn for _ in range(16) for turn in await asyncio.gather(*(say(policy) for _ in range(at_once)))]

    with FakeVLLM() as alive:
        assert len(asyncio.run(run([dead, alive.address]))) == 16 * at_once
        assert len(alive.requests) == 16 * at_once


def test_a_server_that_comes_back_is_used_again(clock: Clock) -> None:
    async def run(first: FakeVLLM, second: FakeVLLM) -> None:
        async with VLLMPolicy([first.address, second.address], "adapter", patient(backoff=HOUR)) as policy:
            first.inject(status(503))
            await say(policy)
            assert (len(first.requests), len(second.requests)) == (1, 1)
            clock.advance(HOUR)
            await asyncio.gather(*(say(policy) for _ in range(8)))

    with FakeVLLM() as first, FakeVLLM() as second:
        asyncio.run(run(first, second))
        assert len(first.requests) == len(second.requests) == 5


def test_a_server_without_its_adapter_is_avoided_until_it_is_loaded(clock: Clock) -> None:
    """A restarted server is healthy before its adapter is loaded. It fails at once, and would be the least busy."""

    async def run(first: FakeVLLM, second: FakeVLLM) -> None:
        async with VLLMPolicy([first.address, second.address], "adapter", patient(backoff=HOUR)) as policy:

            def begin(numbers: range) -> list[asyncio.Task[None]]:
                return [asyncio.create_task(converse(policy, f"No. {each}", 8)) for each in numbers]

            talks = begin(range(8))
            await async_wait_until(lambda: first.requests and second.requests)
            first.models = ("base",)
            talks += begin(range(8, 16))
            await async_wait_until(lambda: {tuple(prompt_for(f"No. {each}")) for each in range(16)} <= {*names(second)})
            before = len(first.requests)
            first.models = ("base", "adapter")
            clock.advance(HOUR)
            talks += begin(range(16, 24))
            await asyncio.gather(*talks)
            assert len(first.requests) > before, "it is used again"

    with FakeVLLM() as first, FakeVLLM() as second:
        for each in (first, second):
            each.inject(after(0.02), times=None)
        asyncio.run(run(first, second))
        assert len(first.requests) + len(second.requests) == 24 * 8


def test_requests_wait_for_the_adapter_of_a_single_server(server: FakeVLLM, caplog: pytest.LogCaptureFixture) -> None:
    server.models = ("base",)

    async def run() -> Completion:
        async with VLLMPolicy([server.address], "adapter", patient()) as policy:
            asked = asyncio.create_task(say(policy))
            await async_wait_until(lambda: caplog.messages)
            assert not asked.done()
            server.models = ("base", "adapter")
            return await asked

    assert asyncio.run(run()).version == "adapter"


def test_an_adapter_that_is_never_loaded_is_an_error(server: FakeVLLM) -> None:
    server.models = ("base",)
    with raises("inference.model-not-served", 404, "3 tries", "The model `adapter` does not exist"):
        say_once(server.address)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_with_v1(server: FakeVLLM, end: str) -> None:
    async def run() -> Completion:
        async with VLLMPolicy([server.address + end], "base", IMPATIENT) as policy:
            await policy.check(8192)
            return await say(policy)

    assert asyncio.run(run()).version == "base"


def test_cancelling_a_request_closes_its_connection(server: FakeVLLM) -> None:
    server.inject(stall, times=None)

    async def run() -> None:
        async with VLLMPolicy([server.address], "adapter", patient()) as policy:
            task = asyncio.create_task(say(policy))
            await async_wait_until(lambda: server.under_way)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await async_wait_until(lambda: not server.under_way)

    asyncio.run(run())
    assert len(server.requests) == 1


def check(*addresses: str, model: str = "adapter") -> None:
    async def run() -> None:
        async with VLLMPolicy(addresses, model, IMPATIENT) as policy:
            await policy.check(8192)

    asyncio.run(run())


def test_every_server_must_have_the_model(server: FakeVLLM) -> None:
    check(server.address, server.address)
    with FakeVLLM(models=("base",)) as other:
        with raises("inference.model-not-served", other.address, "'adapter'", "base", "vllm:URL#NAME"):
            check(server.address, other.address)
        check(server.address, other.address, model="base")


def test_every_server_must_accept_the_tokens_of_an_episode() -> None:
    with FakeVLLM(max_model_len=8192) as enough, FakeVLLM(max_model_len=8191) as less:
        check(enough.address)
        with raises("inference.context-too-small", less.address, "--max-context 8191", "--max-model-len 8192"):
            check(enough.address, less.address)


def test_an_unreachable_server_is_reported_before_any_request(server: FakeVLLM) -> None:
    gone = f"http://127.0.0.1:{find_free_port()}"
    with raises("inference.server-unreachable", gone):
        check(server.address, gone)


def test_a_server_that_is_not_vllm_is_reported_before_any_request(server: FakeVLLM) -> None:
    with raises("inference.not-vllm", f"{server.address}/elsewhere"):
        check(f"{server.address}/elsewhere")


def check_vocabulary(*addresses: str, text: str = "Who paid?<|im_end|>", add: str = "") -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(codec().to_str())
    if add:
        core.add_tokens([add])
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_object=core)

    async def run() -> None:
        async with VLLMPolicy(addresses, "adapter", IMPATIENT) as policy:
            await policy.check_vocabulary(tokenizer, text, STOP)

    asyncio.run(run())


def _tokens(names: list[str], ids: list[int]) -> Act:
    return lambda exchange: exchange.reply({"count": len(ids), "tokens": ids, "token_strs": names})


def test_the_vocabularies_of_server_and_tokenizer_must_match(server: FakeVLLM) -> None:
    check_vocabulary(server.address)
    check_vocabulary(server.address, add="paid")  # parted otherwise there, into the same tokens
    with FakeVLLM() as other:
        other.tokenize = _tokens(["W", "<|im_end|>"], [7, *STOP])
        with raises("inference.tokenizer-mismatch", other.address, "'adapter'", "'W' is 7"):
            check_vocabulary(server.address, other.address)


@pytest.mark.parametrize(
    ("names", "ids", "says"),
    [
        (["<|im_end|>"], [2], "'<|im_end|>' is 2"),
        (["Who"], [5], "'Who' is 5"),
        (["W"], [54], f"no token {STOP[0]}"),
    ],
)
def test_a_different_vocabulary_is_detected_by_its_tokens(
    server: FakeVLLM, names: list[str], ids: list[int], says: str
) -> None:
    server.tokenize = _tokens(names, ids)
    with raises("inference.tokenizer-mismatch", says):
        check_vocabulary(server.address)


def test_a_server_without_tokenize_is_not_checked(server: FakeVLLM) -> None:
    server.tokenize = None
    check_vocabulary(server.address)
    server.tokenize = status(501)
    check_vocabulary(server.address)
    server.tokenize = lambda exchange: exchange.reply({"count": 1, "tokens": [1], "token_strs": None})
    with raises("inference.not-vllm", server.address):
        check_vocabulary(server.address)


def check_logprobs(*addresses: str) -> None:
    async def run() -> None:
        async with VLLMPolicy(addresses, "adapter", IMPATIENT) as policy:
            await policy.check_logprobs(encoded("Who paid"), STOP)

    asyncio.run(run())


def test_raw_log_probabilities_are_reported_before_any_request(server: FakeVLLM) -> None:
    check_logprobs(server.address)
    with FakeVLLM() as other:
        other.probe = _one_logprob(-0.01)
        with raises("inference.logprobs-not-processed", other.address, "--logprobs-mode processed_logprobs"):
            check_logprobs(server.address, other.address)
        other.probe = status(500)
        with raises("inference.server-error", other.address, 500):
            check_logprobs(other.address)


def test_a_server_is_checked_before_the_first_episode() -> None:
    with FakeVLLM(max_model_len=2000) as server:
        check_server(server.address, 2000)
        with raises("inference.context-too-small", server.address, 2000, 2001, "model.max_context"):
            check_server(server.address, 2001)
        with raises("inference.not-vllm", f"{server.address}/elsewhere"):
            check_server(f"{server.address}/elsewhere", 2000)
    with raises("inference.server-unreachable", server.address):
        check_server(server.address, 2000)
