"""Choices that a seed decides, the same in every process and on every version of Python."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Rng:
    """Random choices, built on `Random.random` alone.

    Of all methods that one is promised to stay reproducible
    (https://docs.python.org/3/library/random.html#notes-on-reproducibility).
    """

    def __init__(self, *seed: object) -> None:
        digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
        self._random = random.Random(int.from_bytes(digest, "big")).random  # noqa: S311 - nothing secret

    def below(self, limit: int) -> int:
        """A whole number from 0 to `limit` - 1."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self._random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.below(len(items))]

    def weighted(self, weights: Mapping[Item, float]) -> Item:
        """One of the keys, each as often as its weight says."""
        left = self._random() * sum(weights.values())
        for item, weight in weights.items():
            left -= weight
            if left < 0:
                return item
        return next(reversed(list(weights)))

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """So many different items (all, where there are fewer), in a random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """All items in a random order."""
        return self.sample(items, len(items))
