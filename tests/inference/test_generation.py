"""Sampling in this process: neither the cache nor the other conversations of a batch change any token."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from gumshoe.inference.policy import Sampling, ScriptedPolicy
from tests.errors import raises

if TYPE_CHECKING:
    import torch

    from gumshoe.inference.turn_batch import PastKeyValues, PendingTurn

pytestmark = pytest.mark.group("torch")  # which other tests of the group have imported
VOCABULARY, STOP = 50, 7


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    """Return a model with random weights and peaked distributions, in one thread, which is faster than several."""
    import torch

    from tests.models import random_model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield random_model(VOCABULARY, 3, num_hidden_layers=3, num_attention_heads=4, initializer_range=0.3)
    torch.set_num_threads(threads)


def sample_turns(model: Any, turns: "list[PendingTurn]") -> None:
    from gumshoe.inference import generation

    generation.sample_turns(model, turns)


def shared_prefix(model: Any, prompts: list[list[int]]) -> "PastKeyValues | None":
    from gumshoe.inference import generation

    return generation.compute_shared_prefix(model, prompts)


def turn(prompt: list[int], sampling: Sampling, seed: int = 0, past: "PastKeyValues | None" = None) -> "PendingTurn":
    from gumshoe.inference.turn_batch import PendingTurn

    return PendingTurn(prompt, sampling, (STOP,), seed, past)


def prompts(count: int) -> list[list[int]]:
    """Return prompts of many lengths."""
    return [[(number * place) % (VOCABULARY - 10) + 9 for place in range(1, 4 + 5 * number)] for number in range(count)]


def agree(one: "PendingTurn", other: "PendingTurn") -> None:
    assert (one.ids, one.finish) == (other.ids, other.finish)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("sampling", [Sampling(0, max_tokens=12), Sampling(1.0, max_tokens=12)])
def test_a_cached_conversation_samples_the_same_tokens_as_an_uncached_one(model: Any, sampling: Sampling) -> None:
    """Three turns of six conversations, with injected text of different lengths between them."""
    going = [turn(prompt, sampling, seed) for seed, prompt in enumerate(prompts(6))]
    for _ in range(3):
        sample_turns(model, going)
        for each in going:
            assert each.past is not None
            assert each.past.ids == [*each.prompt, *each.ids[:-1]]
            assert each.past.layers[0].keys.shape[2] == len(each.past.ids)
            anew = turn(each.prompt, sampling, each.seed)
            sample_turns(model, [anew])
            agree(each, anew)
        going = [
            turn([*each.prompt, *each.ids, *range(10, 11 + 3 * row)], sampling, each.seed + 1, each.past)
            for row, each in enumerate(going)
        ]
    assert all(each.cached_tokens > 3 for each in going)


def test_grouped_attention_equals_the_attention_of_transformers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    assert model.config.num_attention_heads == 2 * model.config.num_key_value_heads
    asked_by_each = list[int]()

    def attend(module: Any, query: "torch.Tensor", *rest: Any, **more: Any) -> Any:
        asked_by_each.append(query.shape[2])
        return sdpa_attention_forward(module, query, *rest, **more)

    monkeypatch.setattr("gumshoe.inference.generation.sdpa_attention_forward", attend)
    asked = [turn(prompt, Sampling(1.0, max_tokens=12), seed) for seed, prompt in enumerate(prompts(6))]
    sample_turns(model, asked)
    assert min(asked_by_each) > 1, "keys are copied for prompts alone"
    assert model.config._attn_implementation == "sdpa", "as it was"
    for each in asked:
        with torch.no_grad():
            logits = model(torch.tensor([[*each.prompt, *each.ids]])).logits[0, len(each.prompt) - 1 : -1]
        own = torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(each.ids)[:, None])[:, 0]
        assert each.logprobs == pytest.approx(own.tolist(), abs=1e-4)


def test_a_cache_of_another_prompt_is_not_used(model: Any) -> None:
    sampling = Sampling(0, max_tokens=8)
    first = turn(prompts(4)[3], sampling)
    sample_turns(model, [first])
    other, anew = turn([9, *first.prompt], sampling, past=first.past), turn([9, *first.prompt], sampling)
    assert other.cached_tokens == 0
    sample_turns(model, [other, anew])
    agree(other, anew)


def test_a_shared_prefix_is_computed_once_and_changes_no_token(model: Any) -> None:
    alike = [place % 40 + 9 for place in range(50)]
    asked = [[*alike, *prompt] for prompt in prompts(5)] + [[*alike, 9], [*alike, 9]]
    sampling = Sampling(1.0, max_tokens=12)
    past = shared_prefix(model, asked)
    assert past is not None
    assert past.ids == alike
    together = [turn(prompt, sampling, seed, past) for seed, prompt in enumerate(asked)]
    assert [each.cached_tokens for each in together] == [50] * 7
    sample_turns(model, together)
    for each in together:
        alone = turn(each.prompt, sampling, each.seed)
        sample_turns(model, [alone])
        agree(each, alone)


def test_a_shared_prefix_leaves_one_token_and_has_a_minimum_length(model: Any) -> None:
    whole = shared_prefix(model, [[9] * 60, [9] * 60, [9] * 90])
    assert whole is not None
    assert whole.ids == [9] * 59
    assert turn([9] * 59, Sampling(), past=whole).cached_tokens == 0
    assert shared_prefix(model, [[9] * 20 + [10] * 60, [9] * 80]) is None
    assert shared_prefix(model, [[9], [9] * 80]) is None


def test_turns_in_a_batch_end_independently(model: Any) -> None:
    """Most turns leave the batch before the others end."""
    limits = [1, 2, 3, 5, 8, 13, 21, 34]
    together = [
        turn(prompt, Sampling(1.0, max_tokens=limit), limit) for prompt, limit in zip(prompts(8), limits, strict=True)
    ]
    sample_turns(model, together)
    for each in together:
        alone = turn(each.prompt, each.sampling, each.seed)
        sample_turns(model, [alone])
        agree(each, alone)
        assert each.finish == ("stop" if each.ids[-1] == STOP else "length")
    assert len({len(each.ids) for each in together}) > 4


@pytest.mark.ci
def test_token_frequencies_match_their_log_probabilities(model: Any) -> None:
    import torch

    sampling = Sampling(0.8, top_p=0.9, top_k=20, max_tokens=1)
    many = [turn(prompts(3)[2], sampling, seed) for seed in range(2000)]
    sample_turns(model, many)
    told = {each.ids[0]: each.logprobs[0] for each in many}
    for token, logprob in told.items():
        share = sum(each.ids[0] == token for each in many) / len(many)
        assert share == pytest.approx(torch.tensor(logprob).exp().item(), abs=0.035)
    assert torch.tensor(list(told.values())).exp().sum().item() == pytest.approx(1, abs=0.05)


def test_a_batch_may_have_different_sampling_settings(model: Any) -> None:
    settings = [
        Sampling(0, max_tokens=9),
        Sampling(1.0, max_tokens=9),
        Sampling(0, repetition_penalty=1.5, max_tokens=9),
    ]
    together = [turn(prompts(5)[4], each, 1) for each in settings]
    sample_turns(model, together)
    for each in together:
        alone = turn(each.prompt, each.sampling, 1)
        sample_turns(model, [alone])
        agree(each, alone)
    assert together[0].ids != together[2].ids


def test_policies_that_cannot_follow_a_schema_refuse_it(model: Any) -> None:
    from gumshoe.inference.transformers_policy import TransformersPolicy

    sampling = Sampling(json_schema="{}")
    with TransformersPolicy.from_model(model, "test").open_conversation() as conversation:
        for policy in (conversation, ScriptedPolicy(Mock(), lambda *_: "{}")):
            with raises("inference.schema-unsupported"):
                asyncio.run(policy.sample([1], sampling, stop_ids=[0], seed=1))
