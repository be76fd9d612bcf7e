"""Chunks that say the same as one that is there already."""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal

ALIKE = 0.9
"""The share of word triples in common (Jaccard) from which two chunks are near duplicates."""
_TRIPLE = 3
_PERMUTATIONS, _BANDS = 128, 16  # 8 rows a band: two chunks that are 90 % alike are compared in 99.99 % of cases
_SEED = 1
_WORD = re.compile(r"\w+")

Kind = Literal["exact", "near"]


class Duplicates:
    """Chunks as they come, and which of them repeat another.

    Only chunks with the same context line are compared: what is said of one subject in words that are used of another
    too is no repetition. `read` gives context and text of a chunk that was kept, by its number.
    """

    def __init__(self, read: Callable[[int], tuple[str, str]]) -> None:
        from rensa import RMinHashLSH

        self._read = read
        self._exact: set[bytes] = set()
        self._near = RMinHashLSH(ALIKE, _PERMUTATIONS, _BANDS)

    def find(self, number: int, context: str, text: str) -> Kind | None:
        """How a chunk repeats another. One that does not is remembered by its own number."""
        words, about = _words(text), _words(context)
        digest = blake2b(f"{about}\0{words}".encode(), digest_size=16).digest()
        if digest in self._exact:
            return "exact"
        triples = _triples(about, words)
        sketch = _sketch()
        sketch.update(sorted(triples))
        for candidate in sorted(self._near.query(sketch)):
            others = _triples(*map(_words, self._read(candidate)))
            if len(triples & others) >= ALIKE * len(triples | others):
                return "near"
        self._exact.add(digest)
        self._near.insert(number, sketch)
        return None


def _sketch() -> Any:
    from rensa import RMinHash

    return RMinHash(_PERMUTATIONS, _SEED)


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold())) or text


def _triples(about: str, words: str) -> set[str]:
    """Each three words in a row, beside what they are about: chunks about something else have none in common."""
    listed = words.split()
    places = range(max(1, len(listed) - _TRIPLE + 1))
    return {f"{about}\0{' '.join(listed[place : place + _TRIPLE])}" for place in places}
