"""Episodes of several segments: rows as trees of tokens, and the sequences that the policy saw."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.environments.base import EpisodeState
from gumshoe.rollouts.trajectory import Segment, Span, Trajectory
from tests.models import random_model
from tests.scenarios.questions import QUICK, scenario

if TYPE_CHECKING:
    import torch

IDS = st.lists(st.integers(3, 60), min_size=1, max_size=5).map(tuple)


def trajectory(spans: list[Span], segments: list[Segment]) -> Trajectory:
    turns = sum(each.origin == "sampled" for each in spans)
    return Trajectory(
        "1", 0, "p", "answer", "", spans, EpisodeState(), turns, 0, 0, segments=segments, rewards={"reward": 1.0}
    )


def sampled(ids: tuple[int, ...], segment: int = 0) -> Span:
    return Span("sampled", "", ids, tuple(-0.1 * each for each in ids), segment=segment)


SPLIT = trajectory(
    [
        Span("prompt", "", (1, 2, 3)),
        sampled((10, 11)),
        Span("injected", "", (20,), segment=1),
        sampled((12,), 1),
        Span("injected", "", (21,), segment=2),
        sampled((13, 14), 2),
    ],
    [Segment(0, 2, (11,)), Segment(1, 3, ())],
)
"""The second segment drops the prompt's last token and the first sampled one; the third goes back to the second's."""


@st.composite
def trees(draw: st.DrawFn) -> Trajectory:
    """Draw an episode in which any segment may continue any earlier one at any place."""
    spans, segments = [Span("prompt", "", draw(IDS))], list[Segment]()
    lengths = [len(spans[0].ids)]
    for _ in range(draw(st.integers(1, 6))):
        segment = draw(st.integers(0, len(segments)))
        if draw(st.booleans()):
            parent = draw(st.integers(0, len(segments)))
            context = draw(st.just(()) | IDS)
            segments.append(Segment(parent, draw(st.integers(1, lengths[parent])), context))
            lengths.append(segments[-1].shared + len(context))
            segment = len(segments)
        for span in (Span("injected", "", draw(IDS), segment=segment), sampled(draw(IDS), segment)):
            spans.append(span)
            lengths[segment] += len(span.ids)
    return trajectory(spans, segments)


def test_the_sequences_of_an_episode_are_what_the_policy_saw() -> None:
    assert [each.ids for each in SPLIT.sequences] == [[1, 2, 3, 10, 11], [1, 2, 11, 20, 12], [1, 2, 11, 21, 13, 14]]
    assert [each.mask for each in SPLIT.sequences] == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1]]
    assert Trajectory.from_json(SPLIT.to_json(), "here").segments == SPLIT.segments


@pytest.mark.parametrize(
    ("weighting", "mask", "advantages"),
    [
        ("share", [1, 1, 0, 0, 1, 0, 1, 1], [3, 3, 3, 3, 3, 3, 3, 3]),
        ("last", [0, 0, 0, 0, 0, 0, 1, 1], [3, 3, 3, 3, 3, 3, 3, 3]),
        ("weigh", [1, 1, 0, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_segments_are_weighted(weighting: Any, mask: list[int], advantages: list[float]) -> None:
    from gumshoe.training.grpo.samples import to_sample

    row = to_sample(SPLIT, 1.0, (3.0,), weighting=weighting)
    assert (row.prompt_ids, row.completion_ids) == ([1, 2, 3], [10, 11, 11, 20, 12, 21, 13, 14])
    assert row.previous == [2, 3, 1, 5, 6, 5, 8, 9]
    assert (row.mask, row.advantages) == (mask, advantages)


def test_mode_rollout_trains_on_results_but_not_on_repeated_context() -> None:
    from gumshoe.training.grpo.samples import to_sample

    row = to_sample(SPLIT, 1.0, (3.0,), train_on_tool_tokens=True)
    assert row.mask == [1, 1, 0, 1, 1, 1, 1, 1]
    assert row.logprobs == pytest.approx([-1.0, -1.1, 0.0, None, -1.2, None, -1.3, -1.4])


def test_a_turn_whose_reasoning_was_ended_is_one_turn() -> None:
    from gumshoe.training.grpo.samples import to_sample

    begun = Span("sampled", "", (10,), (-1.0,), is_continued=True)
    spans = [Span("prompt", "", (1,)), begun, Span("injected", "", (20,)), sampled((11,)), Span("injected", "", (21,))]
    row = to_sample(trajectory([*spans, sampled((12,))], []), 1.0, (1.0, 2.0))
    assert (row.mask, row.advantages) == ([1, 0, 1, 0, 1], [1.0, 1.0, 1.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("ending", "is_trained"), [("answer", True), ("max turns", True), ("truncated", False), ("context full", False)]
)
def test_episodes_that_were_cut_off_can_be_left_out(ending: Any, is_trained: bool) -> None:
    from gumshoe.training.algorithms.lookup import find_algorithm
    from gumshoe.training.grpo.rollout_collector import RolloutBatch, ScoredGroup
    from gumshoe.training.grpo.samples import to_samples

    members = replace(SPLIT, ending=ending), SPLIT
    found = RolloutBatch(1, [ScoredGroup(scenario(1), members, (1.0, 0.0))])
    for mask_truncated in (False, True):
        rows = to_samples(found, find_algorithm("grpo", {}), 2, 0, mask_truncated=mask_truncated)
        assert [any(each.mask) for each in rows] == [is_trained or not mask_truncated, True]


@QUICK
@given(episodes=st.lists(trees(), min_size=1, max_size=3))
def test_sequences_of_rows_are_those_of_the_episodes(episodes: list[Trajectory]) -> None:
    """Each sampled token counts once, after exactly the tokens that the policy saw before it."""
    from gumshoe.training.grpo.segments import to_sequences

    input_ids, attention, counted, previous = batch(episodes)
    found = to_sequences(input_ids, attention, counted, previous)
    keep = found.counted.shape[1]
    seen: list[tuple[int, tuple[int, ...]]] = []
    for row, (ids, mask, asked) in enumerate(zip(found.input_ids, found.attention_mask, found.counted, strict=True)):
        del row
        tokens, start = ids[mask.bool()].tolist(), int(mask[:-keep].sum())
        seen += [(tokens[start + place], tuple(tokens[: start + place])) for place in asked.nonzero()[:, 0].tolist()]
    expected = [
        (token, tuple(each.ids[:place]))
        for episode in episodes
        for each in episode.sequences
        for place, (token, is_sampled) in enumerate(zip(each.ids, each.mask, strict=True))
        if is_sampled
    ]
    assert sorted(seen) == sorted(expected)
    assert len(found.rows) == int(counted.sum())
    values = found.to_rows(found.counted.float() * 7, counted)
    assert (values == counted * 7).all()


def batch(episodes: list[Trajectory]) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return token ids, attention mask, counted tokens and previous places of episodes, in TRL's layout."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from gumshoe.training.grpo.samples import to_sample

    rows = [to_sample(each, 1.0, (1.0,)) for each in episodes]
    prompts = [torch.tensor(each.prompt_ids) for each in rows]
    completions = [torch.tensor(each.completion_ids) for each in rows]
    parts = [
        pad_sequence(prompts, batch_first=True, padding_side="left"),
        pad_sequence(completions, batch_first=True),
    ]
    masks = [
        pad_sequence([torch.ones_like(each) for each in prompts], batch_first=True, padding_side="left"),
        pad_sequence([torch.ones_like(each) for each in completions], batch_first=True),
    ]
    counted = pad_sequence([torch.tensor(each.mask) for each in rows], batch_first=True)
    previous = pad_sequence([torch.tensor(each.previous) for each in rows], batch_first=True)
    return torch.cat(parts, dim=1), torch.cat(masks, dim=1), counted, previous


def test_log_probabilities_of_a_split_episode_are_those_of_its_sequences() -> None:
    import torch

    from gumshoe.training.grpo.logprobs import compute_logprobs
    from gumshoe.training.grpo.segments import to_sequences

    torch.manual_seed(1)
    model: Any = random_model(64, 2)

    def compute(ids: "torch.Tensor", labels: "torch.Tensor") -> Any:
        from types import SimpleNamespace

        logprobs = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        chosen = logprobs.gather(2, ids[:, 1:, None])[..., 0]
        return SimpleNamespace(log_probs=chosen, entropy=torch.zeros_like(chosen), labels=labels)

    plain = trajectory([Span("prompt", "", (1, 2, 3, 4)), sampled((9, 8, 7))], [])
    input_ids, attention, counted, previous = batch([SPLIT, plain])
    found = to_sequences(input_ids, attention, counted, previous)
    values, _ = compute_logprobs(compute, found.input_ids, found.attention_mask, found.counted, 2)
    rows = found.to_rows(values, counted)
    wanted = []
    for episode in (SPLIT, plain):
        for each in episode.sequences:
            logprobs = model(input_ids=torch.tensor([each.ids])).logits[0].log_softmax(-1)
            wanted += [
                logprobs[place - 1, token].item()
                for place, (token, is_sampled) in enumerate(zip(each.ids, each.mask, strict=True))
                if is_sampled
            ]
    torch.testing.assert_close(rows[counted.bool()], torch.tensor(wanted), atol=1e-5, rtol=1e-5)
