"""Supervised learning on token ids: what is learned, what is not, and in which order."""

from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import pytest

from gumshoe.tiny.pretraining import Example, PretrainingSettings, pretrain
from tests.models import random_model

if TYPE_CHECKING:
    import torch


VOCABULARY = 40


def weights_of(model: Any) -> "dict[str, torch.Tensor]":
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: "dict[str, torch.Tensor]", other: "dict[str, torch.Tensor]") -> bool:
    import torch

    return all(torch.equal(value, other[name]) for name, value in one.items())


def continuation(model: Any, prompt: list[int], count: int) -> list[int]:
    import torch

    ids = torch.tensor([prompt])
    for _ in range(count):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    return [int(each) for each in ids[0, len(prompt) :]]


def example(ids: list[int], counted: int) -> Example:
    """A sequence of which the last tokens count."""
    return Example(ids, [0.0] * (len(ids) - counted) + [1.0] * counted)


LESSONS = [example([1, 2, 3, 11, 12, 13], 3), example([4, 5, 21, 22, 23, 24, 25], 5), example([6, 31, 32], 2)]


def test_a_model_learns_what_counts() -> None:
    model = random_model(VOCABULARY, 1)
    losses: list[float] = []
    last = pretrain(model, LESSONS, PretrainingSettings(60, batch_tokens=64, learning_rate=1e-2), losses.append)
    assert len(losses) == 60
    assert losses[0] > 3
    assert last == pytest.approx(sum(losses[-6:]) / 6)
    assert last < 0.1
    assert continuation(model, [1, 2, 3], 3) == [11, 12, 13]
    assert continuation(model, [4, 5], 5) == [21, 22, 23, 24, 25]
    assert not model.training


def test_muon_moves_the_matrices_between_the_embeddings_and_adamw_the_rest() -> None:
    """What Muon does not take is moved just as AdamW alone moves it in its first step."""
    import torch

    before = weights_of(random_model(VOCABULARY, 1))
    moved = {}
    for optimizer in get_args(get_type_hints(PretrainingSettings)["optimizer"]):
        model = random_model(VOCABULARY, 1)
        pretrain(model, LESSONS, PretrainingSettings(1, batch_tokens=64, optimizer=optimizer))
        moved[optimizer] = weights_of(model)
    for name, value in moved["muon"].items():
        assert not torch.equal(value, before[name])
        is_matrix = value.ndim == 2 and name.startswith("model.layers")
        assert torch.equal(value, moved["adamw"][name]) != is_matrix


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_both_optimizers_learn(optimizer: Literal["adamw", "muon"]) -> None:
    model = random_model(VOCABULARY, 1)
    last = pretrain(model, LESSONS, PretrainingSettings(60, 64, learning_rate=1e-2, optimizer=optimizer))
    assert last < 0.1


def test_tokens_that_do_not_count_are_not_learned() -> None:
    """What follows the last token that counts changes no weight at all."""
    results = []
    for tail in ([7, 8], [9, 10]):
        model = random_model(VOCABULARY, 1)
        ids = [1, 2, 3, 11, 12, 13, *tail]
        pretrain(model, [Example(ids, [0, 0, 0, 1, 1, 1, 0, 0])], PretrainingSettings(3, batch_tokens=64))
        results.append(weights_of(model))
    assert same(*results)


def test_a_weight_says_how_much_a_token_counts() -> None:
    """Twice the weight is as good as the same example twice."""
    light, other = [1, 2, 3, 11], [4, 5, 6, 21]
    heavy = [Example(light, [0, 0, 0, 2]), Example(other, [0, 0, 0, 1])]
    twice = [example(light, 1), example(light, 1), example(other, 1)]
    once = [example(light, 1), example(other, 1)]
    losses: list[list[float]] = []
    for examples in (heavy, twice, once):
        losses.append([])
        pretrain(random_model(VOCABULARY, 1), examples, PretrainingSettings(6, 64, clip=1e9), losses[-1].append)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "in the loss, and in what is learned by it"
    assert losses[0] != pytest.approx(losses[2], rel=1e-2)


def test_padding_changes_nothing() -> None:
    """The loss of two lengths in one batch is the mean of the losses of each, by its tokens that count."""
    losses: list[float] = []
    for lessons in ([LESSONS[0]], [LESSONS[1]], LESSONS[:2]):
        pretrain(random_model(VOCABULARY, 1), lessons, PretrainingSettings(1, batch_tokens=64), losses.append)
    alone, longer, together = losses
    assert together == pytest.approx((3 * alone + 5 * longer) / 8, rel=1e-5)


def test_the_seed_decides_the_order_and_so_the_result() -> None:
    lessons = [example([number, number + 1, number + 2], 2) for number in range(1, 30)]
    results = []
    for seed in (1, 1, 2):
        model = random_model(VOCABULARY, 1)
        pretrain(model, lessons, PretrainingSettings(8, batch_tokens=9, seed=seed))
        results.append(weights_of(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_every_example_is_seen_once_before_any_is_seen_again() -> None:
    """With batches of one, each step's loss is that of another example of an untrained model."""
    lessons = [example([1, 2, number], 1) for number in range(3, 13)]
    losses: list[float] = []
    pretrain(
        random_model(VOCABULARY, 1), lessons, PretrainingSettings(20, batch_tokens=3, learning_rate=0), losses.append
    )
    assert len({round(loss, 6) for loss in losses[:10]}) == 10
    assert sorted(losses[:10]) == pytest.approx(sorted(losses[10:]))
    assert losses[:10] != losses[10:]


@pytest.mark.parametrize("lessons", [[], [example(list(range(20)), 3)]])
def test_what_cannot_be_learned_from_is_refused(lessons: list[Example]) -> None:
    with pytest.raises(ValueError, match="at most 16 tokens"):
        pretrain(random_model(VOCABULARY, 1), lessons, PretrainingSettings(1, batch_tokens=16))


def test_an_example_of_which_nothing_counts_is_refused() -> None:
    """Alone in a batch it would have no loss at all."""
    with pytest.raises(ValueError, match="weight above 0"):
        pretrain(random_model(VOCABULARY, 1), [LESSONS[0], Example([1, 2], [1, 0])], PretrainingSettings(1, 64))
