"""Log-probabilities of given continuations: the same as of a plain pass, and as a vLLM server gives them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gumshoe.inference.policy import PolicyError
from gumshoe.inference.transformers_policy import TransformersPolicy
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from tests.architectures import ARCHITECTURES, compute_plain_logprobs, make_model
from tests.inference.fake_vllm import Act, FakeVLLM, altered, choice, first_tries, logprobs_of, status

pytestmark = pytest.mark.group("torch")  # which other tests of the group have imported
PROMPT = [place * 7 % 90 + 3 for place in range(40)]
CONTINUATIONS = [[5], [9, 9, 4], [80, 3, 17, 22, 6, 6, 41], [5, 6], [9, 9, 5]]
NOW = RequestLimits(attempts=2, backoff=0.01, patience=0)


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM() as server:
        yield server
    assert server.errors == []


async def score_on(server: FakeVLLM, prompt: list[int], continuations: list[list[int]]) -> list[float]:
    async with VLLMPolicy([server.address], "adapter", NOW) as policy:
        return await policy.score(prompt, continuations)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]], ids=["long", "one token"])
def test_continuations_are_scored_as_by_a_plain_pass(name: str, prompt: list[int]) -> None:
    model = make_model(name)
    found = asyncio.run(TransformersPolicy.from_model(model, name).score(prompt, CONTINUATIONS))
    expected = [float(compute_plain_logprobs(model, prompt, each).sum()) for each in CONTINUATIONS]
    assert found == pytest.approx(expected, abs=1e-3)


def test_batches_do_not_change_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("qwen3")
    policy = TransformersPolicy.from_model(model, "qwen3")
    together = asyncio.run(policy.score(PROMPT, CONTINUATIONS))
    monkeypatch.setattr("gumshoe.inference.continuations._MAX_ROWS", 2)
    assert asyncio.run(policy.score(PROMPT, CONTINUATIONS)) == pytest.approx(together, abs=1e-4)


def test_a_server_scores_continuations_without_their_prompt(server: FakeVLLM) -> None:
    found = asyncio.run(score_on(server, PROMPT, CONTINUATIONS))
    assert found == pytest.approx([sum(logprobs_of(each)) for each in CONTINUATIONS])
    assert {each["prompt_logprobs"] for each in server.requests} == {0}
    assert {each["max_tokens"] for each in server.requests} == {1}


def test_a_temporary_fault_is_retried(server: FakeVLLM) -> None:
    server.inject(first_tries(status(500)), times=None)
    found = asyncio.run(score_on(server, PROMPT, CONTINUATIONS[:2]))
    assert found == pytest.approx([sum(logprobs_of(each)) for each in CONTINUATIONS[:2]])


def _with_nan(answer: dict[str, Any]) -> None:
    answer["choices"][0]["prompt_logprobs"][-1] = {str(CONTINUATIONS[0][0]): {"logprob": None}}


def _with_other_ids(answer: dict[str, Any]) -> None:
    answer["choices"][0]["prompt_logprobs"][-1] = {"1": {"logprob": -1.0}}


@pytest.mark.parametrize(
    "fault",
    [choice(prompt_logprobs=None), choice(prompt_logprobs=[None]), altered(_with_nan), altered(_with_other_ids)],
)
def test_an_answer_without_usable_log_probabilities_is_rejected(server: FakeVLLM, fault: Act) -> None:
    server.inject(fault, times=None)
    with pytest.raises(PolicyError) as rejected:
        asyncio.run(score_on(server, PROMPT, CONTINUATIONS[:1]))
    assert rejected.value.code == "inference.prompt-logprobs-missing"


@pytest.mark.parametrize(("prompt", "continuations"), [([], [[1]]), ([1], []), ([1], [[1], []])])
def test_nothing_empty_is_scored(server: FakeVLLM, prompt: list[int], continuations: list[list[int]]) -> None:
    policy = TransformersPolicy.from_model(make_model("qwen3"), "qwen3")
    with pytest.raises(ValueError, match="at least one token"):
        asyncio.run(policy.score(prompt, continuations))
    with pytest.raises(ValueError, match="at least one token"):
        asyncio.run(score_on(server, prompt, continuations))
