"""Log-probabilities of given continuations of a prompt, under a model in this process."""

from collections.abc import Sequence
from typing import Any

import torch

from gumshoe.inference.cache_rows import has_only_attention, join_rows, make_cache, repeat_row

_MAX_ROWS = 16  # continuations in a batch; each has a copy of the prompt's cache
_MAX_LOGITS = 1 << 26  # numbers in a batch


@torch.inference_mode()
def score_continuations(model: Any, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
    """Return the log-probability of each continuation after a prompt. The prompt is processed once.

    Continuations of a batch are padded on the right, so that none of their tokens attends to the padding.
    """
    *before, last = prompt_ids
    known = make_cache(model)
    if before:
        ids = torch.tensor([before], device=model.device)
        model(input_ids=ids, past_key_values=known, use_cache=True, logits_to_keep=1)
    longest = max(map(len, continuations))
    vocabulary = model.get_input_embeddings().num_embeddings
    rows = max(1, min(_MAX_ROWS, _MAX_LOGITS // (longest * vocabulary)))
    found: list[float] = []
    for start in range(0, len(continuations), rows):
        batch = [[last, *each] for each in continuations[start : start + rows]]
        found += _score_batch(model, known if before else None, batch, len(before))
    return found


def _score_batch(model: Any, known: Any, rows: list[list[int]], start: int) -> list[float]:
    """Return the log-probability of each row after its first token. `known` is the cache of the `start` tokens before.

    Rows are [1 + tokens] each.
    """
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    cache = make_cache(model)
    if known is not None:
        repeat = repeat_row if has_only_attention(model) else _copy_row  # states may be changed in place
        cache.layers = [repeat(layer, len(rows)) for layer in known.layers]
    positions = torch.arange(start, start + longest - 1, device=model.device)[None].expand(len(rows), -1)
    logits = model(input_ids=ids[:, :-1], position_ids=positions, past_key_values=cache, use_cache=True).logits
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[:, 1:, None])[..., 0]
    is_own = torch.arange(1, longest, device=model.device)[None] < lengths[:, None]
    return [float(each) for each in (logprobs.double() * is_own).sum(-1).tolist()]


def _copy_row(layer: Any, rows: int) -> Any:
    """Return a layer with `rows` copies of the only row of a layer."""
    return join_rows([layer] * rows)
