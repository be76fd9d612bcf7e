"""Token trees: log-probabilities and gradients are those of whole sequences, with fewer tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.rollouts.trajectory import Span, Trajectory
from tests.models import random_model
from tests.scenarios.questions import QUICK
from tests.training.test_segments import IDS, batch, sampled, trajectory, trees

if TYPE_CHECKING:
    import torch

    from gumshoe.training.grpo.logprobs import ScoreTrees
    from gumshoe.training.grpo.token_trees import TokenTree, TreeReader, TreeRow

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def model() -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    result: Any = get_peft_model(random_model(64, 1, num_key_value_heads=1, num_attention_heads=2), config)
    with torch.no_grad():
        for name, each in result.named_parameters():
            if "lora_B" in name:
                each.normal_(0, 0.3)
    return result


def add_beginning(episode: Trajectory, beginning: tuple[int, ...]) -> Trajectory:
    """Return an episode with more tokens at the start of its prompt. Its segments share them."""
    prompt, *rest = episode.spans
    more = len(beginning)
    segments = [replace(each, shared=each.shared + more) for each in episode.segments]
    return trajectory([replace(prompt, ids=(*beginning, *prompt.ids)), *rest], segments)


@st.composite
def groups(draw: st.DrawFn) -> list[list[Trajectory]]:
    """Draw groups whose episodes are equal, end differently, or have only the prompt in common."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(trees())
        other = trajectory([*first.spans[:-1], sampled(draw(IDS), first.spans[-1].segment)], first.segments)
        apart = trajectory(
            [first.spans[0], sampled(draw(IDS)), Span("injected", "", draw(IDS)), sampled(draw(IDS))], []
        )
        found.append([first, *draw(st.permutations([first, other, apart]))])
    return found


def score_with_labels(model: Any, reader: "TreeReader") -> "ScoreTrees":
    """Return what scores trees with the labels of TRL's head, which knows nothing of trees."""
    import torch

    from gumshoe.training.grpo.token_trees import IGNORED, TreeBatch

    def score(trees: "Sequence[TokenTree]") -> "tuple[torch.Tensor, torch.Tensor]":
        read = TreeBatch.of(trees, model.device)
        logprobs = (model(**reader.arguments(read, 0)).logits / TEMPERATURE).log_softmax(-1)
        chosen = logprobs.gather(2, read.labels.clamp(min=0)[..., None])[..., 0]
        return chosen.where(read.labels != IGNORED, 0.0), torch.zeros_like(chosen)

    return score


def compute_by_sequence(model: Any, given: "tuple[torch.Tensor, ...]") -> "torch.Tensor":
    """Return log-probabilities [rows, keep], sequence by sequence."""
    import torch

    from gumshoe.training.grpo.segments import to_sequences

    found = to_sequences(*given)
    values = []
    for ids, mask in zip(found.input_ids, found.attention_mask, strict=True):
        logprobs = (model(input_ids=ids[mask.bool()][None]).logits[0] / TEMPERATURE).log_softmax(-1)
        chosen = logprobs[:-1].gather(1, ids[mask.bool()][1:, None])[:, 0]
        keep = int(mask[-found.counted.shape[1] :].sum())
        values.append(torch.cat([chosen[len(chosen) - keep :], torch.zeros(found.counted.shape[1] - keep)]))
    return found.to_rows(torch.stack(values), given[3])


@pytest.mark.ci
@settings(QUICK, max_examples=25)
@given(groups(), st.sampled_from([(), tuple(range(3, 43))]), st.sampled_from([0, 10, 1000]), st.integers(0, 2**31))
def test_values_and_gradients_are_those_of_whole_sequences(
    model: Any, found: list[list[Trajectory]], beginning: tuple[int, ...], width: int, seed: int
) -> None:
    """The smaller the width, the less a tree may have besides what its rows have in common."""
    import torch

    from gumshoe.training.grpo.logprobs import compute_tree_logprobs, read_beginning
    from gumshoe.training.grpo.passes import to_tree_rows
    from gumshoe.training.grpo.token_trees import TreeReader

    episodes = [add_beginning(each, beginning) for group in found for each in group]
    ids, mask, counted, previous = batch(episodes)
    chance = torch.Generator().manual_seed(seed)
    counted = counted * torch.randint(0, 5, counted.shape, generator=chance).bool()
    rows, numbers = to_tree_rows(ids, mask, counted, previous), [each // 4 for each in range(len(episodes))]
    weights = torch.randn(counted.shape, generator=chance)
    reader = TreeReader.find(model, model)
    assert reader is not None
    length, score = read_beginning(model, reader, rows, TEMPERATURE)
    assert (length > 0) == (bool(beginning) and counted.any().item() and length >= len(beginning))
    ways = [
        compute_by_sequence(model, (ids, mask, counted, previous)),
        compute_tree_logprobs(score, rows, numbers, counted, width, length)[0],
        compute_tree_logprobs(score_with_labels(model, reader), rows, numbers, counted, width)[0],
        compute_tree_logprobs(score_with_labels(model, reader), rows, numbers, counted, width, at_once=True)[0],
    ]
    gradients = []
    for values in ways:
        torch.testing.assert_close(values, ways[0], rtol=1e-5, atol=1e-6)
        model.zero_grad()
        (values * weights).sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        each = [one.grad for one in model.parameters() if one.requires_grad and one.grad is not None]
        gradients.append(torch.cat([one.flatten() for one in each]) if each else torch.zeros(1))
    for one in gradients[1:]:
        assert (one - gradients[0]).norm() <= 1e-5 * gradients[0].norm() + 1e-7


def rows_of(*episodes: Trajectory) -> "list[TreeRow]":
    from gumshoe.training.grpo.passes import to_tree_rows

    return to_tree_rows(*batch(list(episodes)))


PLAIN = trajectory([Span("prompt", "", (1, 2, 3)), sampled((9, 8)), Span("injected", "", (7, 7)), sampled((5, 4))], [])
OTHER = trajectory([Span("prompt", "", (1, 2, 3)), sampled((9, 6))], [])


def tree_of(rows: "list[TreeRow]", beginning: int) -> "TokenTree":
    from gumshoe.training.grpo.token_trees import TreeBuilder

    builder = TreeBuilder(beginning)
    for row in rows:
        new, before = builder.count_new(row), builder.size
        builder.add(row)
        assert new <= builder.size - before <= new + sum(row.counted)
    return builder.finish()


def test_a_tree_has_each_token_once_and_nothing_after_the_last_that_counts() -> None:
    from gumshoe.training.grpo.token_trees import IGNORED

    end = trajectory([*PLAIN.spans, Span("injected", "", (50, 51, 52))], [])
    tree = tree_of(rows_of(PLAIN, end, PLAIN), 0)
    assert tree.ids == [1, 2, 3, 9, 8, 7, 7, 5]
    assert tree.labels == [IGNORED, IGNORED, 9, 8, IGNORED, IGNORED, 5, 4]
    assert tree.places == [2, 3, 6, 7] * 3
    assert not tree.is_forked
    forked = tree_of(rows_of(PLAIN, OTHER), 2)
    assert forked.ids == [3, 9, 8, 7, 7, 5, 9], "the 9 stands there for each of the tokens that count after it"
    assert forked.depths == [0, 1, 2, 3, 4, 5, 1]
    assert forked.ends == [6, 5, 5, 5, 5, 5, 6]
    assert [forked.labels[each] for each in forked.places] == [9, 8, 5, 4, 9, 6]
    assert forked.is_forked


def test_rows_are_one_tree_if_they_have_enough_in_common() -> None:
    from gumshoe.training.grpo.token_trees import Forest

    chance = iter(range(100, 10_000))

    def row(start: Sequence[int]) -> Trajectory:
        prompt = Span("prompt", "", (*start, *(next(chance) for _ in range(300))))
        return trajectory([prompt, sampled((7,))], [])

    alike = [row(range(10, 60)) for _ in range(2)]
    other = trajectory([alike[0].spans[0], sampled((8,))], [])
    for width, groups, wanted in (
        (1000, [0, 0, 0], [[0, 1, 2]]),
        (10, [0, 0, 0], [[0, 2], [1]]),
        (1000, [0, 0, 1], [[0, 1], [2]]),
    ):
        forest = Forest(0, width)
        for number, each in enumerate(rows_of(*alike, other)):
            assert forest.add(number, each, groups[number])
        trees, numbers = forest.finish()
        assert numbers == wanted
        assert forest.size == sum(len(each.ids) for each in trees)


def test_the_common_beginning_ends_before_the_prompts_differ_or_a_segment_continues_it() -> None:
    from gumshoe.training.grpo.token_trees import common_beginning
    from tests.training.test_segments import SPLIT

    assert common_beginning(rows_of(PLAIN, OTHER)) == 2, "the last token of a prompt is not part of it"
    assert common_beginning(rows_of(PLAIN, trajectory([Span("prompt", "", (1, 5, 3)), sampled((9,))], []))) == 1
    assert common_beginning(rows_of(SPLIT)) == 1
    anew = trajectory([*PLAIN.spans, sampled((5,), 1)], [replace(SPLIT.segments[0], shared=0, context=(1, 2, 3))])
    assert common_beginning(rows_of(anew)) == 0, "a segment with a beginning of its own"


@QUICK
@given(groups(), st.integers(1, 60))
def test_parts_have_every_row_once_and_keep_to_the_budget(found: list[list[Trajectory]], budget: int) -> None:
    from gumshoe.training.grpo.token_trees import Forest, divide

    rows = rows_of(*(each for group in found for each in group))
    numbers = [each // 4 for each in range(len(rows))]
    parts = divide(rows, numbers, 0, 100, budget)
    assert sorted(each for part in parts for each in part) == list(range(len(rows)))
    sizes = []
    for part in parts:
        assert part == sorted(part)
        forest = Forest(0, 100)
        for each in part:
            forest.add(each, rows[each], numbers[each])
        sizes.append(forest.size)
        assert sizes[-1] <= budget + sum(sum(rows[each].counted) for each in part) or len(part) == 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("starts_empty", "counted", "sizes"),
    [(True, 8, [2, 2, 2, 2]), (True, 4, [2, 0, 0, 6]), (True, 0, [0, 0, 0, 8]), (False, 0, [4, 0, 0, 4])],
)
def test_passes_are_filled_and_the_last_one_is_never_empty(starts_empty: bool, counted: int, sizes: list[int]) -> None:
    """Only with a single process may the first one be empty. Episodes without tokens to train on take no room."""
    import torch

    from gumshoe.training.grpo.passes import fill_by_group

    ids = torch.arange(8)[:, None] * 10
    one = torch.ones(8, 1, dtype=torch.long)
    batch = {
        "prompt_ids": ids,
        "prompt_mask": one,
        "completion_ids": ids + torch.arange(1, 4),
        "completion_mask": one.expand(8, 3),
        "tool_mask": (torch.arange(8) < counted).long()[:, None].expand(8, 3),
        "previous": torch.arange(3).expand(8, 3),
        "group": torch.arange(8) // 2,
        "step": torch.tensor(1),
    }
    given = [
        {name: each[start : start + 2] if each.ndim else each for name, each in batch.items()} for start in (0, 2, 4, 6)
    ]
    filled = fill_by_group(given, 2, 100, shares_beginning=False, starts_empty=starts_empty)
    assert [len(each["group"]) for each in filled] == sizes
    assert sorted(torch.cat([each["prompt_ids"] for each in filled]).flatten().tolist()) == ids.flatten().tolist()


def test_a_model_that_cannot_read_trees_is_found_out() -> None:
    import torch
    from transformers import BloomConfig, BloomForCausalLM

    from gumshoe.training.grpo.token_trees import TreeReader

    torch.manual_seed(1)
    made: Any = BloomForCausalLM
    bloom = made(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2)).eval()
    assert TreeReader.find(bloom, bloom) is None, "its attention knows places only, not positions"
    other = random_model(64, 1)
    assert TreeReader.find(other, lambda **given: other(**{**given, "attention_mask": None})) is None
    assert TreeReader.find(other, lambda **given: other(**{**given, "position_ids": None})) is None
    other.config._attn_implementation = "flash_attention_2"
    assert TreeReader.find(other, other) is None
