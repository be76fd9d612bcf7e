"""BM25: the words of texts, and their scores per text.

Scores follow Lucene's variant of BM25 (Kamphuis et al., "Which BM25 do you mean?", ECIR 2020). They are computed by the
search and not stored, because they depend on all texts that the caller may read: the number of texts with a word, and
the average length.
"""

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.stems import Stemmer, remove_accents

K1, B = 1.2, 0.75
_MAX_COUNT = (1 << 16) - 1
_WORD = re.compile(r"[^\W_]+")
# Lucene's English stop words.
_STOP_WORDS = {
    "en": frozenset(
        re.split(
            " ",
            "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
            "they this to was will with",
        )
    )
}


class Analyzer:
    """Turn text of a language into words for indexing and search. Thread-safe."""

    def __init__(self, language: str) -> None:
        self._stop_words = _STOP_WORDS.get(language, frozenset())
        self._stemmer = Stemmer(language)
        self._word = lru_cache(1 << 18)(self._stem)

    def split_words(self, text: str) -> list[str]:
        """Return the words of a text in order, stemmed and without stop words."""
        lowered = unicodedata.normalize("NFC", text).casefold()
        return [word for each in _WORD.findall(lowered) if (word := self._word(each))]

    def _stem(self, lowered: str) -> str:
        word = remove_accents(lowered)
        return "" if word in self._stop_words else self._stemmer.stem(word)


@dataclass(frozen=True, slots=True)
class Postings:
    """For each word, the texts that contain it and how often, and the length of each text.

    Words and texts of a collection have numbers of their own, so the postings of a word are all of one collection.
    """

    starts: NDArray[np.int64]
    """[words + 1]: start of each word's part of the next two arrays."""
    texts: NDArray[np.int32]
    """[postings]: text numbers, ascending within each word's part."""
    counts: NDArray[np.uint16]
    """[postings]: number of times that the word is in the text."""
    lengths: NDArray[np.int32]
    """[texts]: number of words."""


class Bm25:
    """Score the texts of some collections with BM25, as if there were no others. Thread-safe.

    `ranges` are the text numbers of each collection. Texts are numbered anew, from 0, in that order.
    """

    def __init__(self, postings: Postings, ranges: Sequence[range]) -> None:
        self._postings, self._ranges = postings, ranges
        lengths = [postings.lengths[each.start : each.stop] for each in ranges]
        self._norms = np.concatenate([np.zeros(0, np.float32), *lengths], dtype=np.float32)
        average = float(self._norms.mean(dtype=np.float64)) if self._norms.any() else 1.0
        self._norms *= np.float32(K1 * B / average)
        self._norms += np.float32(K1 * (1 - B))

    def score(self, words: Iterable[Sequence[int | None]]) -> NDArray[np.float32]:
        """Return the BM25 score of each text: [texts]. A word that is given twice counts twice.

        A word is given as its number in each collection, or None for those that do not contain it.
        """
        scores = np.zeros(len(self._norms), np.float32)
        for numbers in words:
            found = list(self._find_texts(numbers))
            count = sum(len(texts) for texts, _ in found)
            rarity = np.float32(math.log(1 + (len(scores) - count + 0.5) / (count + 0.5)))
            for texts, times in found:  # each text occurs once per word
                scores[texts] += rarity * times / (times + self._norms[texts])
        return scores

    def _find_texts(self, numbers: Sequence[int | None]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Yield the new numbers of texts that contain a word, and how often, for each collection that has it."""
        offset = 0
        for number, texts in zip(numbers, self._ranges, strict=True):
            if number is not None:
                part = slice(self._postings.starts[number], self._postings.starts[number + 1])
                shift = np.int32(offset - texts.start)
                yield self._postings.texts[part] + shift, self._postings.counts[part].astype(np.float32)
            offset += len(texts)


class PostingsBuilder:
    """Collect the words of texts, in the order of the texts' numbers."""

    def __init__(self) -> None:
        self._words = array("i")
        self._counts = array("H")
        self._distinct = array("i")
        self._lengths = array("i")

    def add(self, words: Sequence[int]) -> None:
        """Add the words of the next text, as numbers."""
        counts = Counter(words)
        self._words.extend(counts)
        self._counts.extend(min(each, _MAX_COUNT) for each in counts.values())
        self._distinct.append(len(counts))
        self._lengths.append(len(words))

    def finish(self, words: int) -> Postings:
        """Return the postings of all texts. `words` is the number of different words."""
        numbers = np.frombuffer(self._words, np.int32) if self._words else np.zeros(0, np.int32)
        counts = np.frombuffer(self._counts, np.uint16) if self._counts else np.zeros(0, np.uint16)
        order = np.argsort(numbers, kind="stable")
        texts = np.repeat(np.arange(len(self._lengths), dtype=np.int32), np.asarray(self._distinct, np.int64))
        starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=words))])
        return Postings(starts.astype(np.int64), texts[order], counts[order], np.asarray(self._lengths, np.int32))
