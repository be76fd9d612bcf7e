"""The passes of an optimizer step, each a batch of episodes in TRL's layout, and which episodes go well together.

A batch has prompts padded on the left and completions padded on the right, [episodes, tokens] each. Its `previous` and
`group` are those of `TreeRow` and the number of the group of each episode.
"""

from collections.abc import Mapping, Sequence

import torch

from gumshoe.training.grpo.token_trees import TreeRow, common_beginning, divide

Pass = Mapping[str, torch.Tensor]


def whole_rows(batch: Pass) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask of prompts and completions, both [episodes, tokens]."""
    ids, mask = (torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], dim=1) for name in ("ids", "mask"))
    return ids, mask


def loss_mask(batch: Pass) -> torch.Tensor:
    """Return 1 for each token that is trained on, else 0, [episodes, completion tokens]."""
    return batch["completion_mask"] * batch["tool_mask"]


def to_tree_rows(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, counted: torch.Tensor, previous: torch.Tensor
) -> list[TreeRow]:
    """Return rows in TRL's layout as rows of trees. `counted` and `previous` are [rows, keep]."""
    keep = counted.shape[1]
    lengths = attention_mask[:, -keep:].sum(1).tolist()
    return [
        TreeRow(ids[mask.bool()].tolist(), before[:length].tolist(), asked[:length].bool().tolist())
        for ids, mask, before, asked, length in zip(
            input_ids.cpu(), attention_mask.cpu(), previous.cpu(), counted.cpu(), lengths, strict=True
        )
    ]


def redistribute(passes: Sequence[Pass], parts: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return passes with these episodes each, numbered over all passes."""
    changed = [dict(passes[0]) for _ in parts]  # scalars belong to the whole step
    for name, value in passes[0].items():
        if value.ndim:
            every = torch.cat([each[name] for each in passes])
            for each, rows in zip(changed, parts, strict=True):
                each[name] = every[rows]
    return changed


def sort_by_length(passes: Sequence[Pass]) -> list[dict[str, torch.Tensor]]:
    """Redistribute the episodes by length, with the longest in the first pass."""
    lengths = torch.cat([each["prompt_mask"].sum(1) + each["completion_mask"].sum(1) for each in passes])
    return redistribute(passes, lengths.argsort(descending=True, stable=True).chunk(len(passes)))


def sort_by_group(passes: Sequence[Pass]) -> list[dict[str, torch.Tensor]]:
    """Redistribute the episodes by group, equally many to each pass."""
    groups = torch.cat([each["group"] for each in passes])
    return redistribute(passes, groups.argsort(stable=True).chunk(len(passes)))


def fill_by_group(
    passes: Sequence[Pass], size: int, width: int, *, shares_beginning: bool, starts_empty: bool
) -> list[dict[str, torch.Tensor]]:
    """Redistribute the episodes by group, as many to each pass as its tokens allow, larger passes first.

    A pass may have as many tokens in its trees as `size` of the longest episodes. Passes that remain are empty, and
    come before the last one, which never is empty. Neither is the first one, unless `starts_empty`; a single part is
    then divided. `width` is the number of dimensions of the model. With `shares_beginning`, the trees of a pass have
    one common beginning.
    """
    rows = [row for each in passes for row in to_tree_rows(*whole_rows(each), loss_mask(each), each["previous"])]
    groups = torch.cat([each["group"] for each in passes])
    counted = [row for row in rows if any(row.counted)]
    beginning = common_beginning(counted) if shares_beginning and counted else 0
    parts = divide(rows, groups.tolist(), beginning, width, size * max(len(row.ids) for row in rows))
    if len(parts) > len(passes):
        return sort_by_group(passes)
    if len(parts) == 1 < len(passes) and not starts_empty:
        middle = (len(rows) + 1) // 2
        parts = [parts[0][:middle], parts[0][middle:]]
    parts[-1:-1] = [[] for _ in range(len(passes) - len(parts))]
    return redistribute(passes, [torch.tensor(each, dtype=torch.long, device=groups.device) for each in parts])
