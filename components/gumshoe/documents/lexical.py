"""BM25: the words of texts, and their scores per text, computed when the index is built.

Scores follow Lucene's variant of BM25 (Kamphuis et al., "Which BM25 do you mean?", ECIR 2020), computed by bm25s
(https://arxiv.org/abs/2407.03618). A search only adds up stored numbers.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.errors import UsageError
from gumshoe.mail.stems import Stemmer, remove_accents

K1, B = 1.2, 0.75
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


def check_language(code: str) -> None:
    """Check the code of a language.

    Raises:
        UsageError: if it is not an ISO 639 code.
    """
    if not re.fullmatch(r"[a-z]{2,3}", code):
        raise UsageError("documents.invalid-language", f"language must be an ISO 639 code such as en, got {code!r}")


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
    """For each word, the texts that contain it and its score in each."""

    starts: NDArray[np.int64]
    """[words + 1]: start of each word's part of the next two arrays."""
    texts: NDArray[np.int32]
    """[postings]: text numbers, ascending within each word's part."""
    scores: NDArray[np.float32]
    """[postings]."""

    def score(self, words: Iterable[int], texts: int) -> NDArray[np.float32]:
        """Return the BM25 score of each text: [texts]. A word that is given twice counts twice."""
        found = np.zeros(texts, np.float32)
        for word in words:
            part = slice(self.starts[word], self.starts[word + 1])
            found[self.texts[part]] += self.scores[part]  # each text occurs once per word
        return found


class PostingsBuilder:
    """Collect the words of texts, in the order of the texts' numbers. Adds new words to `numbers`."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        self._words = array("i")
        self._lengths = array("i")

    def add(self, words: list[str]) -> None:
        """Add the words of the next text, as returned by `Analyzer`."""
        numbers = self._numbers
        self._words.extend([numbers.setdefault(word, len(numbers)) for word in words])
        self._lengths.append(len(words))

    def finish(self) -> Postings:
        """Compute all scores."""
        if not self._words:
            return Postings(np.zeros(len(self._numbers) + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
        import bm25s

        index = bm25s.BM25(k1=K1, b=B, method="lucene")
        rows: Any = _PostingRows(self._words, self._lengths)
        parts = index.build_index_from_ids(list(range(len(self._numbers))), rows, show_progress=False)
        return Postings(
            np.asarray(parts["indptr"], np.int64),
            np.asarray(parts["indices"], np.int32),
            np.asarray(parts["data"], np.float32),
        )


@dataclass(frozen=True, slots=True)
class _PostingRows:
    """The word numbers of each text, created on demand: all lists at once would take gigabytes."""

    words: "array[int]"
    lengths: "array[int]"

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for length in self.lengths:
            yield self.words[start : start + length].tolist()
            start += length
