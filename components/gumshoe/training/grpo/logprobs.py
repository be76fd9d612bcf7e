"""Compute the log-probabilities of completions without padding all of them to the longest.

Episodes differ a lot in length, so episodes of similar length go through the model together. All prompts start with
the same instructions and tools. On small models this prefix costs more than the tokens that are trained on, so it can
go through the model once for all episodes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from gumshoe.inference.cache_rows import make_cache, repeat_row

_MIN_PREFIX = 32  # tokens; a shorter common prefix is not worth a pass of its own
_MAX_LENGTH_RATIO = 1.25  # longest to shortest sequence of a batch
_IGNORED = -100  # label of tokens without a log-probability


def compute_logprobs(
    compute: Callable[[torch.Tensor, torch.Tensor], Any],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    counted: torch.Tensor,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of completions, both [episodes, keep], in nats.

    Both are 0 for tokens that are not in `counted` [episodes, keep], and after the end of a completion.

    `compute` takes token ids and labels of at most `size` episodes of similar length, as TRL's fused head does. They
    are padded on the right, where no counted token attends to. So no attention mask is needed, which would rule out the
    fast attention kernels.

    `input_ids` and `attention_mask` are [episodes, tokens]: prompts padded on the left, then `keep` columns of
    completions padded on the right.
    """
    keep = counted.shape[1]
    rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
    lengths = attention_mask[:, -keep:].sum(1).tolist()
    counted = counted.to(input_ids.device).bool() & attention_mask[:, -keep:].bool()
    order = attention_mask.sum(1).argsort(descending=True, stable=True)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for part in torch.split(order, size):
        ids = pad_sequence([rows[row] for row in part.tolist()], batch_first=True)
        labels = torch.full_like(ids, _IGNORED)
        for place, row in enumerate(part.tolist()):
            end = len(rows[row])
            own = slice(end - lengths[row], end)
            labels[place, own] = ids[place, own].where(counted[row, : lengths[row]], _IGNORED)
        output = compute(ids, labels)
        asked, blank = labels[:, 1:] != _IGNORED, torch.zeros(counted[part].shape, device=ids.device)
        logprobs, entropies = (
            blank.masked_scatter(counted[part], each[asked].float()) for each in (output.log_probs, output.entropy)
        )
        found.append((logprobs, entropies))
    back = order.argsort()
    logprobs, entropies = (torch.cat(each)[back] for each in zip(*found, strict=True))
    return logprobs, entropies


def sort_by_length(passes: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Redistribute the episodes over passes (TRL's batches) by length, with the longest in the first pass."""
    lengths = torch.cat([each["prompt_mask"].sum(1) + each["completion_mask"].sum(1) for each in passes])
    parts = lengths.argsort(descending=True, stable=True).chunk(len(passes))
    shared = [dict(each) for each in passes]
    for name, value in passes[0].items():
        if value.ndim:  # scalars belong to the whole step
            every = torch.cat([each[name] for each in passes])
            for each, rows in zip(shared, parts, strict=True):
                each[name] = every[rows]
    return shared


def common_prefix_length(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> int:
    """Return the number of tokens that all prompts start with; 0 if it is too small to be worth a pass of its own.

    The last token of a prompt is never counted, because the first token of the completion is predicted from it.

    `input_ids` and `attention_mask` are [episodes, tokens]: prompts padded on the left, then `keep` columns of
    completions padded on the right.
    """
    prompts = [row[mask.bool()] for row, mask in zip(input_ids[:, :-keep], attention_mask[:, :-keep], strict=True)]
    shortest = min(len(each) for each in prompts)
    if shortest <= _MIN_PREFIX:
        return 0
    same = torch.stack([each[: shortest - 1] == prompts[0][: shortest - 1] for each in prompts]).all(0)
    length = int(same.long().cumprod(0).sum())
    return length if length >= _MIN_PREFIX else 0


def compute_logprobs_after_prefix(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    counted: torch.Tensor,
    prefix: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies at a temperature, both [episodes, keep], in nats.

    The first `prefix` tokens of all prompts go through the model once, which must have attention layers only. Values
    and gradients are those of the whole sequences. Both results are 0 for tokens that are not in `counted`
    [episodes, keep], and after the end of a completion.
    """
    keep = counted.shape[1]
    rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
    lengths = attention_mask[:, -keep:].sum(1).tolist()
    counted = counted.bool() & attention_mask[:, -keep:].bool()
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # without autocast around it
    prefix_cache = make_cache(base)
    base.get_decoder()(input_ids=rows[0][None, :prefix], past_key_values=prefix_cache, use_cache=True)
    by_row: dict[int, torch.Tensor] = {}  # logits that predict the counted tokens, [tokens, vocabulary]
    for alike in _group_by_length([len(row) - prefix for row in rows]):
        places = []
        for row in alike:
            end = len(rows[row]) - prefix - 1
            own = torch.arange(end - lengths[row], end, device=input_ids.device)
            places.append(own[counted[row, : lengths[row]]])
        found = _run_continuations(base, prefix_cache, [rows[row][prefix:] for row in alike], prefix, places)
        by_row.update(zip(alike, torch.split(found, [len(each) for each in places]), strict=True))
    logits = torch.cat([by_row[row] for row in range(len(rows))]).float() / temperature
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, input_ids[:, -keep:][counted][:, None])[:, 0]
    with torch.no_grad():
        spread = -(logprobs.exp() * logprobs).sum(-1)
    blank = torch.zeros(counted.shape, dtype=chosen.dtype, device=chosen.device)
    return blank.masked_scatter(counted, chosen), blank.masked_scatter(counted, spread)


def _group_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of sequences in groups of similar length, because padding costs as much as tokens."""
    part: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda each: lengths[each]):
        if part and lengths[place] > _MAX_LENGTH_RATIO * lengths[part[0]]:
            yield part
            part = []
        part.append(place)
    yield part


def _run_continuations(
    model: Any,
    prefix_cache: Any,
    continuations: Sequence[torch.Tensor],
    prefix: int,
    places: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return the logits [tokens, vocabulary] at some places of several continuations of one prefix."""
    cache = make_cache(model)
    cache.layers = [repeat_row(layer, len(continuations)) for layer in prefix_cache.layers]
    ids = pad_sequence(list(continuations), batch_first=True)  # no place attends to the padding on the right
    rows = torch.cat([torch.full_like(each, row) for row, each in enumerate(places)])
    positions = torch.arange(prefix, prefix + ids.shape[1], device=ids.device)[None]
    with _at(model.get_output_embeddings(), rows, torch.cat(list(places))):
        logits: torch.Tensor = model(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True
        ).logits  # scaled and capped as the architecture does
    return logits


@contextmanager
def _at(head: torch.nn.Module, rows: torch.Tensor, places: torch.Tensor) -> Iterator[None]:
    """Let a model compute logits [tokens, vocabulary] for these tokens only, in the block."""
    handle = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][rows, places],))
    try:
        yield
    finally:
        handle.remove()
