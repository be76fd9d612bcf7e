"""Rows whose tokens form a tree: the segments of an episode that share the beginning of its history.

In a row, `previous` names for each token of the completion the place of the token before it, counted from the first
token of the prompt, or -1. A token usually follows the one to its left. The first token of a segment follows an earlier
one.
The path from the prompt to the end of a segment is a sequence as the policy saw it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from gumshoe.rollouts.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rows as the sequences of their segments, in the layout of TRL's batches."""

    input_ids: torch.Tensor
    """[sequences, tokens]: prompts padded on the left, then `keep` columns padded on the right."""
    attention_mask: torch.Tensor
    """[sequences, tokens]"""
    counted: torch.Tensor
    """[sequences, keep]: 1 for tokens that count, each in one sequence only."""
    rows: torch.Tensor
    """[tokens that count]: the row of each, in the order of the sequences."""
    columns: torch.Tensor
    """[tokens that count]: the column of each in the completions of its row."""

    def to_rows(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return values of sequences [sequences, keep] in the rows [rows, columns], 0 where no token counts."""
        result = torch.zeros(like.shape, dtype=values.dtype, device=values.device)
        return result.index_put((self.rows, self.columns), values[self.counted])


def find_previous(trajectory: Trajectory) -> list[int]:
    """Return the place of the token before each token of an episode after its prompt [tokens].

    Tokens are placed in the order of the spans; the context of a segment stands before its first span.
    """
    places, previous = [list(range(len(trajectory.spans[0].ids)))], list[int]()
    end = len(places[0])
    for span in trajectory.spans[1:]:
        count = len(span.ids)
        if span.segment == len(places):
            segment = trajectory.segments[span.segment - 1]
            places.append(places[segment.parent][: segment.shared])
            count += len(segment.context)
        own = places[span.segment]
        for place in range(end, end + count):
            previous.append(own[-1] if own else -1)
            own.append(place)
        end += count
    return previous


def has_segments(previous: torch.Tensor, attention_mask: torch.Tensor) -> bool:
    """Return True if a row has several sequences.

    `previous` is [rows, keep]; `attention_mask` is [rows, prompt tokens + keep].
    """
    keep = previous.shape[1]
    left = attention_mask[:, :-keep].sum(1, keepdim=True) + torch.arange(keep, device=previous.device) - 1
    return bool(((previous != left) & attention_mask[:, -keep:].bool()).any())


def to_sequences(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, counted: torch.Tensor, previous: torch.Tensor
) -> Sequences:
    """Return the sequences of rows, which are in TRL's layout. `counted` and `previous` are [rows, keep]."""
    keep, device = counted.shape[1], input_ids.device
    prompts, completions = list[torch.Tensor](), list[torch.Tensor]()
    asked, rows, columns = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
        tokens = ids[mask.bool()]
        length = int(mask[-keep:].sum())
        start = len(tokens) - length
        wanted = counted[row, :length].bool().clone()
        for path in _find_paths(previous[row, :length].tolist(), start):
            places = torch.tensor(path, device=device)
            begin = int((places < start).sum())
            own = places[begin:] - start
            prompts.append(tokens[places[:begin]])
            completions.append(tokens[places[begin:]])
            asked.append(wanted[own])
            columns.append(own[wanted[own]])
            rows.append(torch.full_like(columns[-1], row))
            wanted[own] = False  # a shared token counts in the first of its sequences
    prompt_ids = pad_sequence(prompts, batch_first=True, padding_side="left")
    prompt_mask = pad_sequence([torch.ones_like(each) for each in prompts], batch_first=True, padding_side="left")
    completion_ids = pad_sequence(completions, batch_first=True)
    completion_mask = pad_sequence([torch.ones_like(each) for each in completions], batch_first=True)
    return Sequences(
        torch.cat([prompt_ids, completion_ids], dim=1),
        torch.cat([prompt_mask, completion_mask], dim=1),
        pad_sequence(asked, batch_first=True),
        torch.cat(rows),
        torch.cat(columns),
    )


def _find_paths(previous: Sequence[int], start: int) -> list[list[int]]:
    """Return the paths from the first token to each token that no other one follows, in the order of their ends.

    `previous` has the place before each token from `start` on.
    """
    followed = set(previous)
    ends = [place for place in range(start, start + len(previous)) if place not in followed]
    paths = []
    for end in ends or [start - 1]:
        path, place = list[int](), end
        while place >= start:
            path.append(place)
            place = previous[place - start]
        paths.append([*range(place + 1), *reversed(path)])
    return paths
