"""Find chunks that repeat an earlier one."""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal

MIN_SIMILARITY = 0.9
"""Jaccard similarity of word triples from which two chunks are near duplicates."""
_TRIPLE = 3
_PERMUTATIONS, _BANDS = 128, 16  # 8 rows per band: chunks with 90 % similarity are compared in 99.99 % of cases
_SEED = 1
_WORD = re.compile(r"\w+")

DuplicateKind = Literal["exact", "near"]


class DuplicateFinder:
    """Detect chunks that repeat an earlier chunk with the same context line.

    Chunks with different context lines are never duplicates: the same words about another subject are new information.
    `read` returns context and text of a kept chunk by its number.
    """

    def __init__(self, read: Callable[[int], tuple[str, str]]) -> None:
        from rensa import RMinHashLSH

        self._read = read
        self._exact: set[bytes] = set()
        self._near = RMinHashLSH(MIN_SIMILARITY, _PERMUTATIONS, _BANDS)

    def find(self, number: int, context: str, text: str) -> DuplicateKind | None:
        """Return how a chunk repeats an earlier one. If it does not, remember it under its number and return None."""
        words, context_words = _normalize_words(text), _normalize_words(context)
        digest = blake2b(f"{context_words}\0{words}".encode(), digest_size=16).digest()
        if digest in self._exact:
            return "exact"
        triples = _word_triples(context_words, words)
        sketch = _sketch()
        sketch.update(sorted(triples))
        for candidate in sorted(self._near.query(sketch)):
            others = _word_triples(*map(_normalize_words, self._read(candidate)))
            if len(triples & others) >= MIN_SIMILARITY * len(triples | others):
                return "near"
        self._exact.add(digest)
        self._near.insert(number, sketch)
        return None


def _sketch() -> Any:
    from rensa import RMinHash

    return RMinHash(_PERMUTATIONS, _SEED)


def _normalize_words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold())) or text


def _word_triples(context_words: str, words: str) -> set[str]:
    """Return all sequences of three words, combined with the context, so that other contexts share none."""
    listed = words.split()
    places = range(max(1, len(listed) - _TRIPLE + 1))
    return {f"{context_words}\0{' '.join(listed[place : place + _TRIPLE])}" for place in places}
