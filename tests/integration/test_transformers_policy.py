"""The in-process policy: the same contract as vLLM's, and the same tokens for the same seeds."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.inference.policy import Completion, Sampling
from tests.errors import raises
from tests.integration.test_vllm import PROMPTS, STOP, logprobs_of, sample
from tests.shared_server import SharedServer
from tests.waiting import async_wait_until

pytestmark = pytest.mark.ci

if TYPE_CHECKING:
    from gumshoe.inference.transformers_policy import TransformersPolicy


def sample_here(policy: "TransformersPolicy", sampling: Sampling, seed: int = 0) -> list[Completion]:
    """Return the continuation of each prompt; the later the prompt, the earlier it is requested."""

    async def one(number: int) -> Completion:
        member = policy.open_conversation()
        for _ in range(len(PROMPTS) - number):
            await asyncio.sleep(0)
        try:
            return await member.sample(PROMPTS[number], sampling, stop_ids=[STOP], seed=seed + number)
        finally:
            member.leave()

    async def run() -> list[Completion]:
        return await asyncio.gather(*map(one, range(len(PROMPTS))))

    return asyncio.run(run())


@pytest.fixture(scope="session")
def policy(model_directory: Path) -> "TransformersPolicy":
    from gumshoe.inference.transformers_policy import TransformersPolicy

    return TransformersPolicy(model_directory)


def test_an_error_in_a_batch_is_raised_and_the_next_turn_works(policy: "TransformersPolicy") -> None:
    async def run() -> None:
        with policy.open_conversation() as member:
            with pytest.raises(IndexError):
                await member.sample([policy.vocabulary], Sampling(max_tokens=4), stop_ids=[STOP], seed=1)
            assert (await member.sample(PROMPTS[0], Sampling(max_tokens=4), stop_ids=[STOP], seed=1)).ids

    asyncio.run(run())


def test_cancelling_before_a_batch_starts_has_no_effect_on_others(
    policy: "TransformersPolicy",
) -> None:
    async def run() -> None:
        member = policy.open_conversation()
        asked = asyncio.create_task(member.sample(PROMPTS[0], Sampling(max_tokens=4), stop_ids=[STOP], seed=1))
        await asyncio.sleep(0)
        asked.cancel()
        member.leave()
        for _ in range(100):  # longer than a batch waits before it starts
            await asyncio.sleep(0)
        with policy.open_conversation() as other:
            assert (await other.sample(PROMPTS[0], Sampling(max_tokens=4), stop_ids=[STOP], seed=1)).ids

    asyncio.run(run())


def test_cancelling_ends_a_batch(policy: "TransformersPolicy") -> None:
    """A batch runs in a thread that `asyncio.run` waits for: for minutes here, if cancelling did not end it."""

    async def run() -> None:
        with policy.open_conversation() as member:
            long = Sampling(1.0, max_tokens=100_000)
            asked = asyncio.create_task(member.sample(PROMPTS[0], long, stop_ids=[-1], seed=1))
            await async_wait_until(lambda: asked.done() or policy._running)
            asked.cancel()

    asyncio.run(run())


def test_greedy_tokens_equal_those_of_vllm(policy: "TransformersPolicy", vllm: SharedServer) -> None:
    greedy = Sampling(0, max_tokens=24)
    mine, theirs = sample_here(policy, greedy), sample(vllm, greedy)
    assert [each.ids for each in mine] == [each.ids for each in theirs]
    assert [each.finish for each in mine] == [each.finish for each in theirs]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_the_model(policy: "TransformersPolicy", model: Any, temperature: float) -> None:
    for prompt, completion in zip(PROMPTS, sample_here(policy, Sampling(temperature, max_tokens=48)), strict=True):
        assert completion.logprobs == pytest.approx(logprobs_of(model, prompt, completion.ids, temperature), abs=1e-3)
        assert completion.finish == ("stop" if completion.ids[-1] == STOP else "length")


def test_tokens_depend_on_the_seed(policy: "TransformersPolicy") -> None:
    settings = Sampling(1.0, max_tokens=32)
    first, again, other = (
        sample_here(policy, settings),
        sample_here(policy, settings),
        sample_here(policy, settings, seed=99),
    )
    assert first == again
    assert [each.ids for each in first] != [each.ids for each in other]


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0)], ids=["top_k", "top_p", "min_p"]
)
def test_limits_that_leave_one_token_are_greedy(policy: "TransformersPolicy", sampling: Sampling) -> None:
    settings = Sampling(1.0, sampling.top_p, sampling.top_k, sampling.min_p, max_tokens=12)
    found = sample_here(policy, settings)
    assert [each.ids for each in found] == [each.ids for each in sample_here(policy, Sampling(0, max_tokens=12))]
    assert all(logprob == 0 for each in found for logprob in each.logprobs)


def test_the_repetition_penalty_equals_that_of_vllm(policy: "TransformersPolicy", vllm: SharedServer) -> None:
    settings = Sampling(0, repetition_penalty=1.3, max_tokens=24)
    mine, theirs = sample_here(policy, settings), sample(vllm, settings)
    assert [each.ids for each in mine] == [each.ids for each in theirs]
    assert [each.ids for each in mine] != [each.ids for each in sample_here(policy, Sampling(0, max_tokens=24))]


def test_an_adapter_changes_the_output_as_in_vllm(
    model_directory: Path, adapter_directory: Path, vllm: SharedServer
) -> None:
    from gumshoe.inference.transformers_policy import TransformersPolicy

    greedy = Sampling(0, max_tokens=24)
    adapted = TransformersPolicy(model_directory, adapter_directory)
    with vllm.adapter(adapter_directory) as name:
        mine, theirs = sample_here(adapted, greedy), sample(vllm, greedy, name)
    assert [each.ids for each in mine] == [each.ids for each in theirs]
    assert {each.version for each in mine} == {f"{model_directory}#{adapter_directory}"}


@pytest.mark.parametrize("config", [None, "{", "[]", '{"model_type": "qwen2", "num_hidden_layers": null}'])
def test_a_directory_without_a_model_is_rejected(config: str | None, tmp_path: Path) -> None:
    from gumshoe.inference.transformers_policy import TransformersPolicy

    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with raises("inference.model-not-loadable", tmp_path):
        TransformersPolicy(tmp_path)
