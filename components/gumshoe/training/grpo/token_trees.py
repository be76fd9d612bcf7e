"""Token trees: the different tokens of a group of episodes, so that each goes through the model once.

Episodes of a group have the same prompt and often the same first turns, and the segments of a split episode share
their beginning. Their tokens form a tree, in which the path to a token is what the policy saw before it. A model that
reads the tree with the position of each token on its path, and with attention to the path only, computes what it
computes for the whole sequences, and so are the gradients.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from gumshoe.inference.cache_rows import has_only_attention, layer_types

IGNORED = -100
"""Label of a place without a log-probability."""
_NEW = -2  # in place of a node that does not exist
_ALIGNMENT = 8  # tokens; kernels for GPUs copy masks of other widths
_MASKED_ATTENTION = {"sdpa", "eager"}  # implementations that take a mask of any form


@dataclass(frozen=True, slots=True)
class TreeRow:
    """An episode."""

    ids: Sequence[int]
    """Token ids of the prompt and of everything after it."""
    previous: Sequence[int]
    """For each token after the prompt: the place in `ids` of the token before it, or -1."""
    counted: Sequence[bool]
    """For each token after the prompt: True if its log-probability is needed."""

    @property
    def last(self) -> int:
        """Place in `ids` of the last token that counts, or of the first one after the prompt."""
        column = next((column for column in reversed(range(len(self.counted))) if self.counted[column]), 0)
        return len(self.ids) - len(self.previous) + column


@dataclass(slots=True)
class TokenTree:
    """The different tokens of several rows, depth first. Places are counted from 0.

    A token after which several counted ones follow stands there once for each of them.
    """

    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    """Number of tokens before each on its path; those before the tree are not counted."""
    ends: list[int] = field(default_factory=list)
    """Last place whose path has this token."""
    labels: list[int] = field(default_factory=list)
    """Id of the counted token that follows, or `IGNORED`."""
    rows: list[int] = field(default_factory=list)
    """Row of each counted token, numbered from 0, row by row."""
    columns: list[int] = field(default_factory=list)
    """Place of each counted token after the prompt of its row."""
    places: list[int] = field(default_factory=list)
    """Place of the label of each counted token. Rows may share it."""

    @property
    def is_forked(self) -> bool:
        """False if it is a single path."""
        return bool(self.ends) and min(self.ends) < len(self.ends) - 1


def common_beginning(rows: Sequence[TreeRow]) -> int:
    """Return the number of tokens that all rows start with. What comes after the prompt never follows one of them."""
    first = rows[0].ids
    length = min(min([len(row.ids) - len(row.previous) - 1, *row.previous]) for row in rows)
    for row in rows[1:]:
        length = next((place for place in range(length) if row.ids[place] != first[place]), length)
    return max(0, length)


class TreeBuilder:
    """Makes a tree, row by row, of what follows the first `beginning` tokens, which all rows have in common."""

    def __init__(self, beginning: int) -> None:
        self._beginning, self._tree = beginning, TokenTree()
        self._ids, self._parents, self._labels = list[int](), list[int](), list[int]()  # by node
        self._children, self._carriers = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        self._counted = list[int]()  # node of the label of each counted token
        self._rows = 0

    @property
    def size(self) -> int:
        """Number of tokens of the tree so far."""
        return len(self._ids)

    def count_new(self, row: TreeRow) -> int:
        """Return the number of tokens of a row that the tree does not have yet."""
        start, nodes, new = len(row.ids) - len(row.previous), list[int](), 0
        for place in range(self._beginning, row.last):
            before = place - 1 if place < start else row.previous[place - start]
            parent = nodes[before - self._beginning] if before >= self._beginning else -1
            nodes.append(self._children.get((parent, row.ids[place]), _NEW))
            new += nodes[-1] == _NEW
        return new

    def add(self, row: TreeRow) -> None:
        """Add a row. What follows its last counted token is left out."""
        start, last, tree, labels = len(row.ids) - len(row.previous), row.last, self._tree, self._labels
        nodes = list[int]()  # of the row's tokens after the beginning
        for place in range(self._beginning, min(last + 1, len(row.ids))):
            before = place - 1 if place < start else row.previous[place - start]
            parent = nodes[before - self._beginning] if before >= self._beginning else -1
            key = parent, row.ids[place]
            if place < last:
                node = self._children.get(key)
                if node is None:
                    node = self._children[key] = self._add_node(row.ids[place], parent)
                nodes.append(node)
            if place < start or not row.counted[place - start]:
                continue
            carrier = self._carriers.get(key)
            if carrier is None:
                is_free = labels[parent] == IGNORED
                carrier = parent if is_free else self._add_node(self._ids[parent], self._parents[parent])
                self._carriers[key], labels[carrier] = carrier, row.ids[place]
            tree.rows.append(self._rows)
            tree.columns.append(place - start)
            self._counted.append(carrier)
        self._rows += 1

    def _add_node(self, token: int, parent: int) -> int:
        self._ids.append(token)
        self._parents.append(parent)
        self._labels.append(IGNORED)
        return len(self._ids) - 1

    def finish(self) -> TokenTree:
        """Return the tree of all rows that were added."""
        tree, parents, places = self._tree, self._parents, [0] * self.size
        following: list[list[int]] = [[] for _ in parents]
        waiting = list[int]()
        for node, parent in enumerate(parents):
            (waiting if parent < 0 else following[parent]).append(node)
        waiting.reverse()
        while waiting:
            node = waiting.pop()
            parent = parents[node]
            places[node] = len(tree.ids)
            tree.ids.append(self._ids[node])
            tree.labels.append(self._labels[node])
            tree.depths.append(0 if parent < 0 else tree.depths[places[parent]] + 1)
            waiting.extend(reversed(following[node]))
        tree.ends = list(range(self.size))
        for node in reversed(range(self.size)):  # after all nodes that follow it
            if (parent := parents[node]) >= 0:
                tree.ends[places[parent]] = max(tree.ends[places[node]], tree.ends[places[parent]])
        tree.places = [places[each] for each in self._counted]
        return tree


def build_tree(row: TreeRow, beginning: int) -> TokenTree:
    """Return the tree of a single row without its first `beginning` tokens."""
    builder = TreeBuilder(beginning)
    builder.add(row)
    return builder.finish()


class Forest:
    """Trees of several rows. Rows of a group are one tree as far as that costs less than trees of their own.

    A tree costs attention of each token to all of them, so it must be small, or its rows must have a lot in common.
    Tokens are counted with those of the beginning.
    """

    def __init__(self, beginning: int, width: int) -> None:
        self._beginning, self._width = beginning, width
        self._builders, self._numbers = list[TreeBuilder](), list[list[int]]()
        self._by_group = dict[int, list[int]]()
        self.size = beginning

    def add(self, number: int, row: TreeRow, group: int, budget: int | None = None) -> bool:
        """Add a row to its best tree, and return True; or False if the forest would exceed a budget of tokens."""
        best, new = None, row.last - self._beginning
        cheapest = self._cost(new)
        for place in self._by_group.get(group, ()):
            size, added = self._builders[place].size, self._builders[place].count_new(row)
            if (cost := self._cost(size + added) - self._cost(size)) < cheapest:
                best, new, cheapest = place, added, cost
        if budget is not None and self.size + new > budget and self._builders:
            return False
        if best is None:
            best = len(self._builders)
            self._builders.append(TreeBuilder(self._beginning))
            self._numbers.append([])
            self._by_group.setdefault(group, []).append(best)
        before = self._builders[best].size
        self._builders[best].add(row)
        self._numbers[best].append(number)
        self.size += self._builders[best].size - before
        return True

    def _cost(self, tokens: int) -> int:
        """Return the cost of a tree, in multiplications per layer and dimension, with weights and for attention."""
        return tokens * (6 * self._width + self._beginning + tokens)

    def finish(self) -> tuple[list[TokenTree], list[list[int]]]:
        """Return the trees, and the numbers of the rows of each."""
        return [each.finish() for each in self._builders], self._numbers


def divide(rows: Sequence[TreeRow], groups: Sequence[int], beginning: int, width: int, budget: int) -> list[list[int]]:
    """Return the numbers of rows in parts whose trees, with the beginning, have at most `budget` tokens.

    Rows of a group follow each other. A row that is longer than the budget is a part of its own. `width` is the number
    of dimensions of the model.
    """
    parts, forests = [list[int]()], [Forest(beginning, width)]
    for number in sorted(range(len(rows)), key=lambda each: groups[each]):
        if any(rows[number].counted) and not forests[-1].add(number, rows[number], groups[number], budget):
            parts.append([])
            forests.append(Forest(beginning, width))
            forests[-1].add(number, rows[number], groups[number])
        parts[-1].append(number)
    return [parts[each] for each in sorted(range(len(parts)), key=lambda each: -forests[each].size)]


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Several trees, padded on the right: T trees of N tokens, a multiple of what attention kernels need."""

    ids: torch.Tensor
    """[T, N]"""
    depths: torch.Tensor
    """[T, N]"""
    ends: torch.Tensor
    """[T, N]; a padding token has its own place."""
    labels: torch.Tensor
    """[T, N]; `IGNORED` for padding."""
    is_forked: bool
    """False if each tree is a single path, which needs no mask."""

    @classmethod
    def of(cls, trees: Sequence[TokenTree], device: torch.device) -> "TreeBatch":
        """Return these trees as a batch."""
        longest = -(-max(len(each.ids) for each in trees) // _ALIGNMENT) * _ALIGNMENT

        def pad(rows: Iterable[list[int]], filler: int) -> torch.Tensor:
            return torch.tensor([[*each, *[filler] * (longest - len(each))] for each in rows], device=device)

        return cls(
            ids=pad((each.ids for each in trees), 0),
            depths=pad((each.depths for each in trees), 0),
            ends=torch.tensor([[*each.ends, *range(len(each.ends), longest)] for each in trees], device=device),
            labels=pad((each.labels for each in trees), IGNORED),
            is_forked=any(each.is_forked for each in trees),
        )


class TreeReader:
    """How a model reads token trees: by attention masks, one for each kind of layer.

    Attributes:
        width: number of dimensions of the model.
    """

    def __init__(self, model: Any) -> None:
        self._config = model.config.get_text_config()
        self.width: int = self._config.hidden_size
        kinds = layer_types(model)
        self._windows = {
            **({"full_attention": None} if DynamicLayer in kinds else {}),
            **({"sliding_attention": self._config.sliding_window} if DynamicSlidingWindowLayer in kinds else {}),
        }

    @classmethod
    def find(cls, model: Any, call: Callable[..., Any]) -> "TreeReader | None":
        """Return how a model reads trees, or None if it cannot. `call` calls the model, without dropout.

        All its layers must attend to earlier tokens, to all or to the last ones, and it must compute the same for the
        branches of a small tree as for separate sequences, which is tried.
        """
        names = getattr(model.config.get_text_config(), "layer_types", None) or ()
        is_masked = model.config._attn_implementation in _MASKED_ATTENTION
        if not is_masked or not has_only_attention(model) or not set(names) <= {"full_attention", "sliding_attention"}:
            return None
        reader = cls(model)
        return reader if reader._reads_the_same(call, model.device) else None

    def arguments(self, batch: TreeBatch, beginning: int, cache: Any = None) -> dict[str, Any]:
        """Return ids, positions and attention masks for the model. With a cache, it has the beginning's tokens."""
        if not batch.is_forked and cache is None:
            return {"input_ids": batch.ids}
        masks = {
            name: self._mask(batch, beginning, window, _kept(cache, sliding=window is not None))
            for name, window in self._windows.items()
        }
        return {
            "input_ids": batch.ids,
            "position_ids": batch.depths + beginning,
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
        }

    def _mask(self, batch: TreeBatch, beginning: int, window: int | None, kept: int) -> torch.Tensor:
        """Return what is added to attention scores, [T, 1, N, kept + N]: 0 where a token attends to.

        It has the dtype of the model: if layers had to convert it, each would keep a copy for the backward pass.
        """
        order = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        seen = (order <= order[:, None]) & (order[:, None] <= batch.ends[:, None, :])  # [T, N, N]
        before = torch.ones(*batch.ids.shape, kept, dtype=torch.bool, device=seen.device)
        if window is not None:
            seen &= batch.depths[:, :, None] - batch.depths[:, None, :] < window
            places = torch.arange(beginning - kept, beginning, device=seen.device)
            before &= batch.depths[:, :, None] + beginning - places < window
        attended = torch.cat([before, seen], dim=2)[:, None]
        mask = torch.zeros(attended.shape, dtype=self._config.dtype or torch.float32, device=seen.device)
        return mask.masked_fill_(~attended, torch.finfo(mask.dtype).min)

    @torch.no_grad()
    def _reads_the_same(self, call: Callable[..., Any], device: torch.device) -> bool:
        """Return True if a model computes the same for two branches of a tree as for separate sequences."""
        size = min(self._config.vocab_size, 97)
        beginning, *branches = ([each * factor % size for each in range(5, 11)] for factor in (7, 11, 13))
        rows = [TreeRow([*beginning, *own], range(5, 11), [True] * 6) for own in branches]
        builder = TreeBuilder(0)
        for row in rows:
            builder.add(row)
        tree = builder.finish()
        batch = TreeBatch.of([tree], device)
        given = self.arguments(batch, 0)
        try:
            read = call(**given).logits[0][tree.places]
            elsewhere = call(**{**given, "position_ids": given["position_ids"] + batch.ends}).logits[0][tree.places]
            right = torch.cat([call(input_ids=torch.tensor([row.ids], device=device)).logits[0, 5:-1] for row in rows])
            wrong = call(input_ids=batch.ids).logits[0][tree.places]
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return False
        close = (read - right).abs().max() < 0.1 * (wrong - right).abs().max()
        return bool(close) and not torch.equal(read, elsewhere)


def _kept(cache: Any, *, sliding: bool) -> int:
    """Return the number of tokens that the layers of one kind have in a cache."""
    layers = cache.layers if cache is not None else ()
    kept = (each.keys.shape[-2] for each in layers if isinstance(each, DynamicSlidingWindowLayer) == sliding)
    return next(kept, 0)


def gather_counted(
    trees: Sequence[TokenTree], values: Sequence[torch.Tensor], numbers: Sequence[Sequence[int]], like: torch.Tensor
) -> torch.Tensor:
    """Return values of places, [tree][places], in the rows, [rows, columns], 0 where no token counts.

    `numbers` has the numbers of the rows of each tree.
    """
    result = torch.zeros(like.shape, dtype=values[0].dtype, device=like.device)
    rows = [own[row] for own, tree in zip(numbers, trees, strict=True) for row in tree.rows]
    columns = [column for tree in trees for column in tree.columns]
    found = torch.cat([each[tree.places] for tree, each in zip(trees, values, strict=True)])
    places = (torch.tensor(each, dtype=torch.long, device=like.device) for each in (rows, columns))
    return result.index_put(tuple(places), found)


def group_alike(trees: Sequence[TokenTree], most_ratio: float) -> Iterator[list[int]]:
    """Yield the indices of trees in groups of similar size, because padding costs as much as tokens.

    Forked trees and paths, which need no mask, are not in the same group.
    """
    part: list[int] = []
    for place in sorted(range(len(trees)), key=lambda each: (trees[each].is_forked, len(trees[each].ids))):
        tree, first = trees[place], trees[part[0] if part else place]
        if len(tree.ids) > most_ratio * len(first.ids) or tree.is_forked != first.is_forked:
            yield part
            part = []
        part.append(place)
    yield part
