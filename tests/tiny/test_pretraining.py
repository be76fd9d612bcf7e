"""Pretraining on token ids: weights, optimizers, padding and the order of examples."""

from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import pytest

from gumshoe.tiny.pretraining import Example, PretrainingSettings, pretrain
from tests.models import random_model

if TYPE_CHECKING:
    import torch


VOCABULARY = 40


def weights_of(model: Any) -> "dict[str, torch.Tensor]":
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def are_equal(one: "dict[str, torch.Tensor]", other: "dict[str, torch.Tensor]") -> bool:
    import torch

    return all(torch.equal(value, other[name]) for name, value in one.items())


def continuation(model: Any, prompt: list[int], count: int) -> list[int]:
    import torch

    ids = torch.tensor([prompt])
    for _ in range(count):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    return [int(each) for each in ids[0, len(prompt) :]]


def example(ids: list[int], counted: int) -> Example:
    """Return a sequence whose last `counted` tokens have weight 1."""
    return Example(ids, [0.0] * (len(ids) - counted) + [1.0] * counted)


EXAMPLES = [example([1, 2, 3, 11, 12, 13], 3), example([4, 5, 21, 22, 23, 24, 25], 5), example([6, 31, 32], 2)]


def test_a_model_learns_weighted_tokens() -> None:
    model = random_model(VOCABULARY, 1)
    losses: list[float] = []
    last = pretrain(model, EXAMPLES, PretrainingSettings(60, batch_tokens=64, learning_rate=1e-2), losses.append)
    assert len(losses) == 60
    assert losses[0] > 3
    assert last == pytest.approx(sum(losses[-6:]) / 6)
    assert last < 0.1
    assert continuation(model, [1, 2, 3], 3) == [11, 12, 13]
    assert continuation(model, [4, 5], 5) == [21, 22, 23, 24, 25]
    assert not model.training


def test_muon_optimizes_matrices_and_adamw_the_rest() -> None:
    """All other weights change exactly as with AdamW alone, in the first step."""
    import torch

    before = weights_of(random_model(VOCABULARY, 1))
    moved = {}
    for optimizer in get_args(get_type_hints(PretrainingSettings)["optimizer"]):
        model = random_model(VOCABULARY, 1)
        pretrain(model, EXAMPLES, PretrainingSettings(1, batch_tokens=64, optimizer=optimizer))
        moved[optimizer] = weights_of(model)
    for name, value in moved["muon"].items():
        assert not torch.equal(value, before[name])
        is_matrix = value.ndim == 2 and name.startswith("model.layers")
        assert torch.equal(value, moved["adamw"][name]) != is_matrix


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_both_optimizers_learn(optimizer: Literal["adamw", "muon"]) -> None:
    model = random_model(VOCABULARY, 1)
    last = pretrain(model, EXAMPLES, PretrainingSettings(60, 64, learning_rate=1e-2, optimizer=optimizer))
    assert last < 0.1


def test_tokens_without_weight_are_not_learned() -> None:
    """Tokens after the last token with a weight do not affect the model."""
    results = []
    for tail in ([7, 8], [9, 10]):
        model = random_model(VOCABULARY, 1)
        ids = [1, 2, 3, 11, 12, 13, *tail]
        pretrain(model, [Example(ids, [0, 0, 0, 1, 1, 1, 0, 0])], PretrainingSettings(3, batch_tokens=64))
        results.append(weights_of(model))
    assert are_equal(*results)


def test_a_weight_of_two_equals_two_examples() -> None:
    """The losses are the same in all steps."""
    light, other = [1, 2, 3, 11], [4, 5, 6, 21]
    heavy = [Example(light, [0, 0, 0, 2]), Example(other, [0, 0, 0, 1])]
    twice = [example(light, 1), example(light, 1), example(other, 1)]
    once = [example(light, 1), example(other, 1)]
    losses: list[list[float]] = []
    for examples in (heavy, twice, once):
        losses.append([])
        pretrain(random_model(VOCABULARY, 1), examples, PretrainingSettings(6, 64, clip=1e9), losses[-1].append)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != pytest.approx(losses[2], rel=1e-2)


def test_padding_changes_nothing() -> None:
    """The loss of a batch of two lengths is the mean of both losses, weighted by their counted tokens."""
    losses: list[float] = []
    for examples in ([EXAMPLES[0]], [EXAMPLES[1]], EXAMPLES[:2]):
        pretrain(random_model(VOCABULARY, 1), examples, PretrainingSettings(1, batch_tokens=64), losses.append)
    short, long, both = losses
    assert both == pytest.approx((3 * short + 5 * long) / 8, rel=1e-5)


def test_the_result_depends_on_the_seed() -> None:
    examples = [example([number, number + 1, number + 2], 2) for number in range(1, 30)]
    results = []
    for seed in (1, 1, 2):
        model = random_model(VOCABULARY, 1)
        pretrain(model, examples, PretrainingSettings(8, batch_tokens=9, seed=seed))
        results.append(weights_of(model))
    assert are_equal(results[0], results[1])
    assert not are_equal(results[0], results[2])


def test_each_epoch_uses_every_example_once() -> None:
    """With batches of one and no learning, each step has the loss of another example."""
    examples = [example([1, 2, number], 1) for number in range(3, 13)]
    losses: list[float] = []
    pretrain(
        random_model(VOCABULARY, 1), examples, PretrainingSettings(20, batch_tokens=3, learning_rate=0), losses.append
    )
    assert len({round(loss, 6) for loss in losses[:10]}) == 10
    assert sorted(losses[:10]) == pytest.approx(sorted(losses[10:]))
    assert losses[:10] != losses[10:]


@pytest.mark.parametrize("examples", [[], [example(list(range(20)), 3)]])
def test_unusable_examples_are_rejected(examples: list[Example]) -> None:
    with pytest.raises(ValueError, match="at most 16 tokens"):
        pretrain(random_model(VOCABULARY, 1), examples, PretrainingSettings(1, batch_tokens=16))


def test_an_example_without_weight_is_rejected() -> None:
    """Alone in a batch, it would have no loss."""
    with pytest.raises(ValueError, match="weight above 0"):
        pretrain(random_model(VOCABULARY, 1), [EXAMPLES[0], Example([1, 2], [1, 0])], PretrainingSettings(1, 64))
