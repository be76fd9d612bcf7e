"""Seeded random choices that are identical in every process and on every version of Python."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Rng:
    """Make random choices, using only `Random.random`.

    Python guarantees reproducibility only for that method
    (https://docs.python.org/3/library/random.html#notes-on-reproducibility).
    """

    def __init__(self, *seed: object) -> None:
        digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
        self._random = random.Random(int.from_bytes(digest, "big")).random  # noqa: S311 - not for secrets

    def below(self, limit: int) -> int:
        """Return an integer from 0 to `limit` - 1."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, inclusive."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """Return a random item."""
        return items[self.below(len(items))]

    def pick_weighted(self, weights: Mapping[Item, float]) -> Item:
        """Return a random key. Each has a probability proportional to its weight."""
        left = self._random() * sum(weights.values())
        for item, weight in weights.items():
            left -= weight
            if left < 0:
                return item
        return next(reversed(list(weights)))

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """Return `count` different items in random order, or all if there are fewer."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """Return all items in random order."""
        return self.sample(items, len(items))
