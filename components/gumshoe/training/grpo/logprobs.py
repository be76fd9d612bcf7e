"""Log-probabilities of completions, for less than padding all of them to the longest.

An agent's episodes are of very different lengths, so those of like lengths go through the model together. They all
begin with the same instructions and tools, and most of what follows are results of tools, which do not count: on small
models both cost more than what does, so what they begin with goes through the model once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicCache

_WORTH = 32  # tokens that prompts must have in common
_UNLIKE = 1.25  # times as long
_NOT_ASKED = -100  # the label of what no log-probability is wanted of


def passed_logprobs(
    ask: Callable[[torch.Tensor, torch.Tensor], Any],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    counted: torch.Tensor,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [episodes, keep] of completions, in nats; 0 where `counted` [episodes, keep] is
    false, or a completion has ended.

    `ask` is asked of at most `size` episodes at a time, those of like lengths together, with token ids and labels, as
    TRL's fused head takes them. They are padded on the right, which nothing that counts sees, so that there is no mask:
    with one, attention has no quick kernel.

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
        labels = torch.full_like(ids, _NOT_ASKED)
        for place, row in enumerate(part.tolist()):
            end = len(rows[row])
            own = slice(end - lengths[row], end)
            labels[place, own] = ids[place, own].where(counted[row, : lengths[row]], _NOT_ASKED)
        told = ask(ids, labels)
        asked, blank = labels[:, 1:] != _NOT_ASKED, torch.zeros(counted[part].shape, device=ids.device)
        logprobs, entropies = (
            blank.masked_scatter(counted[part], each[asked].float()) for each in (told.log_probs, told.entropy)
        )
        found.append((logprobs, entropies))
    back = order.argsort()
    logprobs, entropies = (torch.cat(each)[back] for each in zip(*found, strict=True))
    return logprobs, entropies


def by_length(passes: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """The episodes of passes, as TRL has them, shared out anew: the longest in the first pass."""
    lengths = torch.cat([each["prompt_mask"].sum(1) + each["completion_mask"].sum(1) for each in passes])
    parts = lengths.argsort(descending=True, stable=True).chunk(len(passes))
    shared = [dict(each) for each in passes]
    for name, value in passes[0].items():
        if value.ndim:  # others are of the whole step
            every = torch.cat([each[name] for each in passes])
            for each, rows in zip(shared, parts, strict=True):
                each[name] = every[rows]
    return shared


def common_beginning(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> int:
    """How many tokens all prompts begin with; 0 where that is not worth anything. The last token of a prompt is never
    among them, since it is what the first of its completion is told from.

    `input_ids` and `attention_mask` are [episodes, tokens]: prompts padded on the left, then `keep` columns of
    completions padded on the right.
    """
    prompts = [row[mask.bool()] for row, mask in zip(input_ids[:, :-keep], attention_mask[:, :-keep], strict=True)]
    shortest = min(len(each) for each in prompts)
    if shortest <= _WORTH:
        return 0
    same = torch.stack([each[: shortest - 1] == prompts[0][: shortest - 1] for each in prompts]).all(0)
    length = int(same.long().cumprod(0).sum())
    return length if length >= _WORTH else 0


def completion_logprobs(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    counted: torch.Tensor,
    beginning: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [episodes, keep], in nats, of the distribution at a temperature; 0 where
    `counted` [episodes, keep] is false, or a completion has ended.

    Its gradient is that of the whole sequences.
    """
    keep = counted.shape[1]
    rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
    lengths = attention_mask[:, -keep:].sum(1).tolist()
    counted = counted.bool() & attention_mask[:, -keep:].bool()
    begun = model.get_decoder()(input_ids=rows[0][None, :beginning], use_cache=True).past_key_values
    told: dict[int, torch.Tensor] = {}  # by row: what each counted token is told from, [tokens, hidden]
    for alike in _of_like_lengths([len(row) - beginning for row in rows]):
        hidden = _continued(model, begun, [rows[row][beginning:] for row in alike], beginning)
        for row, found in zip(alike, hidden, strict=True):
            end = len(rows[row]) - beginning - 1
            told[row] = found[end - lengths[row] : end][counted[row, : lengths[row]]]
    every = torch.cat([told[row] for row in range(len(rows))])
    logits = model.get_output_embeddings()(every).float() / temperature  # [tokens, vocabulary]
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, input_ids[:, -keep:][counted][:, None])[:, 0]
    with torch.no_grad():
        spread = -(logprobs.exp() * logprobs).sum(-1)
    blank = torch.zeros(counted.shape, dtype=chosen.dtype, device=chosen.device)
    return blank.masked_scatter(counted, chosen), blank.masked_scatter(counted, spread)


def _of_like_lengths(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The places of lengths, in parts in which none is much longer than another: what pads costs as what counts."""
    part: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda each: lengths[each]):
        if part and lengths[place] > _UNLIKE * lengths[part[0]]:
            yield part
            part = []
        part.append(place)
    yield part


def _continued(model: Any, begun: Any, rests: Sequence[torch.Tensor], beginning: int) -> torch.Tensor:
    """[rests, tokens, hidden]: what the model makes of several continuations of one beginning."""
    cache = DynamicCache()
    for number, layer in enumerate(begun.layers):
        shape = (len(rests), -1, -1, -1)
        cache.update(layer.keys.expand(shape), layer.values.expand(shape), number)
    ids = pad_sequence(list(rests), batch_first=True)
    places = torch.arange(beginning, beginning + ids.shape[1], device=ids.device)[None]
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True
    ).last_hidden_state  # what pads on the right is seen by nothing that counts
    return hidden
