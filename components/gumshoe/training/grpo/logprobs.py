"""Compute the log-probabilities of completions, each different token once and with little padding.

Episodes of a group share many tokens, so their trees go through the model (see `token_trees`). On small models the
instructions and tools, with which all prompts start, cost more than the tokens that are trained on: on a CPU, they go
through the model once for all groups. A model that cannot read trees gets whole sequences of similar length.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from gumshoe.inference.cache_rows import make_cache, repeat_row
from gumshoe.training.grpo.token_trees import (
    IGNORED,
    Forest,
    TokenTree,
    TreeBatch,
    TreeReader,
    TreeRow,
    build_tree,
    common_beginning,
    gather_counted,
    group_alike,
)

ScoreTrees = Callable[[Sequence[TokenTree]], tuple[torch.Tensor, torch.Tensor]]
"""Return log-probabilities and entropies of the labels of trees, both [trees, tokens], 0 elsewhere."""
_MIN_BEGINNING = 32  # tokens; a shorter common beginning is not worth a pass of its own
_MAX_SIZE_RATIO = 1.25  # largest to smallest tree of a forward pass


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
        labels = torch.full_like(ids, IGNORED)
        for place, row in enumerate(part.tolist()):
            end = len(rows[row])
            own = slice(end - lengths[row], end)
            labels[place, own] = ids[place, own].where(counted[row, : lengths[row]], IGNORED)
        output = compute(ids, labels)
        asked, blank = labels[:, 1:] != IGNORED, torch.zeros(counted[part].shape, device=ids.device)
        logprobs, entropies = (
            blank.masked_scatter(counted[part], each[asked].float()) for each in (output.log_probs, output.entropy)
        )
        found.append((logprobs, entropies))
    back = order.argsort()
    logprobs, entropies = (torch.cat(each)[back] for each in zip(*found, strict=True))
    return logprobs, entropies


def compute_tree_logprobs(
    score: ScoreTrees,
    rows: Sequence[TreeRow],
    groups: Sequence[int],
    like: torch.Tensor,
    width: int,
    beginning: int = 0,
    *,
    at_once: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of rows, both in the shape of `like` [rows, keep], in nats.

    Both are 0 for tokens that are not counted. `groups` has the group of each row, and `width` is the number of
    dimensions of the model. Trees of similar size are scored together, or all `at_once`: never more tokens than padded
    rows have. They do not contain the first `beginning` tokens, which all rows that count have in common.
    """
    counted = [number for number, row in enumerate(rows) if any(row.counted)] or [0]
    forest = Forest(beginning, width)
    for number in counted:
        forest.add(number, rows[number], groups[number])
    trees, numbers = forest.finish()
    if at_once and len(trees) * max(len(each.ids) for each in trees) > len(rows) * max(len(row.ids) for row in rows):
        trees, numbers = [build_tree(rows[each], beginning) for each in counted], [[each] for each in counted]
    scored = dict[int, tuple[torch.Tensor, torch.Tensor]]()
    for alike in [range(len(trees))] if at_once else group_alike(trees, _MAX_SIZE_RATIO):
        found = score([trees[each] for each in alike])
        scored.update(zip(alike, zip(*found, strict=True), strict=True))
    logprobs, entropies = zip(*(scored[each] for each in range(len(trees))), strict=True)
    return gather_counted(trees, logprobs, numbers, like), gather_counted(trees, entropies, numbers, like)


def read_beginning(
    model: Any, reader: TreeReader, rows: Sequence[TreeRow], temperature: float
) -> tuple[int, ScoreTrees]:
    """Let a model read the common beginning of all rows that count, and return its length and what scores the rest.

    Only counted tokens get logits. Values and gradients are those of whole sequences, at a temperature.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # without autocast around it
    counted = [row for row in rows if any(row.counted)] or rows[:1]
    beginning, cache = common_beginning(counted), None
    if beginning >= _MIN_BEGINNING:
        cache = make_cache(base)
        first = torch.tensor([counted[0].ids[:beginning]], device=base.device)
        base.get_decoder()(input_ids=first, past_key_values=cache, use_cache=True)
    else:
        beginning = 0

    def score(trees: Sequence[TokenTree]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = TreeBatch.of(trees, base.device)
        given = reader.arguments(batch, beginning, cache)
        if cache is not None:
            given["past_key_values"] = make_cache(base)
            given["past_key_values"].layers = [repeat_row(layer, len(trees)) for layer in cache.layers]
        asked = batch.labels != IGNORED
        with _at(base.get_output_embeddings(), asked):
            logits = base(**given, use_cache=cache is not None).logits  # scaled and capped as the architecture does
        logprobs = (logits.float() / temperature).log_softmax(-1)
        chosen = logprobs.gather(1, batch.labels[asked][:, None])[:, 0]
        with torch.no_grad():
            spread = -(logprobs.exp() * logprobs).sum(-1)
        blank = torch.zeros(asked.shape, dtype=chosen.dtype, device=chosen.device)
        return blank.masked_scatter(asked, chosen), blank.masked_scatter(asked, spread)

    return beginning, score


@contextmanager
def _at(head: torch.nn.Module, asked: torch.Tensor) -> Iterator[None]:
    """Let a model compute logits [tokens, vocabulary] only for the tokens that `asked` selects, in the block."""
    handle = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][asked],))
    try:
        yield
    finally:
        handle.remove()
