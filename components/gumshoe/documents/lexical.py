"""BM25: the words of texts, and their scores per text.

Scores follow Lucene's variant of BM25 (Kamphuis et al., "Which BM25 do you mean?", ECIR 2020). They are computed by the
search and not stored, because they depend on all texts that the caller may read: the number of texts with a word, and
the average length.
"""

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.compounds import MIN_JOINED, find_compounds
from gumshoe.mail.stems import Stemmer
from gumshoe.mail.words import find_pairs, is_character, list_spellings, normalize_word

K1, B = 1.2, 0.75
PHRASE_WEIGHT = 0.1
"""Weight of a phrase with a stop word, relative to a word. It decides between texts that have the same other words."""
_MAX_COUNT = (1 << 16) - 1
_MAX_GAP = 3  # characters between two words that belong together, e.g. `hepatitis (A)`
_SEPARATES = re.compile(r"[.!?;:,|\t]|\n\s*\n")
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


@dataclass(frozen=True, slots=True)
class AnalyzedText:
    """The terms of a text: what it is found by."""

    words: list[str]
    """Stems of its words without stop words, and characters of scripts without spaces, in order."""
    extras: list[str]
    """Terms that do not count as words for its length: phrases with a stop word, pairs of characters, spellings, and
    compounds as one word, such as `il6` for IL-6.
    """


class Analyzer:
    """Turn text of a language into terms for indexing and search. Thread-safe.

    Stop words are terms only together with the word before or after them, e.g. `hepatitis a` (CommonGrams of Lucene),
    and alone if they are written in capital letters, e.g. `IT`. Text of scripts without spaces between words, and of
    Korean, is divided into characters, and searched by pairs of them.
    """

    def __init__(self, language: str) -> None:
        self._stop_words = _STOP_WORDS.get(language, frozenset())
        self._stemmer = Stemmer(language)
        self._forms = lru_cache(1 << 18)(self._find_forms)

    def split_words(self, text: str) -> list[str]:
        """Return the words of a text in order, stemmed and without stop words."""
        return self.analyze(text).words

    def analyze(self, text: str) -> AnalyzedText:
        """Return the terms of a text that is indexed."""
        found = AnalyzedText([], [])
        before, end = "", 0
        for match, pair in find_pairs(text):
            token = match[0]
            if is_character(token):
                found.words.append(normalize_word(token) or token)
                if pair:
                    found.extras.append(normalize_word(pair) or pair)
                before = ""
                continue
            form, *others = self._forms(token)
            is_stop = form in self._stop_words
            if (is_stop or before in self._stop_words) and before and _is_near(text, end, match.start()):
                found.extras.append(f"{before} {form}")
            if not is_stop:
                found.words.append(form)
            elif token.isupper() and (len(token) > 1 or before):
                found.extras.append(token)
            found.extras.extend(others)
            before, end = form, match.end()
        found.extras.extend(self._forms(each.joined)[0] for each in find_compounds(text))
        return found

    def analyze_query(self, text: str) -> dict[str, float]:
        """Return the terms to search for with their weights: words, pairs of characters, phrases with a stop word, and
        compounds as one word.

        A term that is given twice counts twice. A query of stop words alone is searched for phrases, and for the words
        in capital letters.
        """
        words: list[str] = []
        phrases: dict[str, float] = {}
        alone: list[str] = []
        before, end, is_paired, is_emphatic = "", 0, False, False
        for match, pair in find_pairs(text):
            token = match[0]
            if is_character(token):
                if pair and not is_paired:  # the pair stands for both
                    del words[-1]
                words.append(normalize_word(pair or token) or token)
                before, is_paired = "", bool(pair)
                continue
            form = self._forms(token)[0]
            is_stop = form in self._stop_words
            is_capital = is_stop and token.isupper() and not text.isupper()
            if (is_stop or before in self._stop_words) and before and _is_near(text, end, match.start()):
                phrases[f"{before} {form}"] = 1.0 if is_capital or is_emphatic else PHRASE_WEIGHT
            (alone if is_stop else words).append(token.upper() if is_stop else form)
            before, end, is_emphatic = form, match.end(), is_capital and len(token) > 1
        if not words:
            return {**dict.fromkeys(alone, 1.0), **dict.fromkeys(phrases, 1.0)}
        compounds = [self._forms(each.joined)[0] for each in find_compounds(text) if len(each.joined) >= MIN_JOINED]
        return {**Counter(words + compounds), **phrases}

    def _find_forms(self, token: str) -> list[str]:
        """Return the stem of a word, or the word itself if it is a stop word, and the stems of its other spellings."""
        forms = list_spellings(token) or [token.casefold()]
        return list(dict.fromkeys(each if each in self._stop_words else self._stemmer.stem(each) for each in forms))


def _is_near(text: str, end: int, start: int) -> bool:
    """Return True if nothing is between two words that separates them."""
    between = text[end:start]
    return between == " " or (len(between) <= _MAX_GAP and _SEPARATES.search(between) is None)


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

    def score(
        self, words: Iterable[Sequence[int | None]], weights: Iterable[float] | None = None
    ) -> NDArray[np.float32]:
        """Return the BM25 score of each text: [texts]. A word that is given twice counts twice.

        A word is given as its number in each collection, or None for those that do not contain it. `weights` [words]
        are 1 by default.
        """
        scores = np.zeros(len(self._norms), np.float32)
        for numbers, weight in zip(words, itertools.repeat(1.0) if weights is None else weights, strict=False):
            found = list(self._find_texts(numbers))
            count = sum(len(texts) for texts, _ in found)
            rarity = np.float32(weight * math.log(1 + (len(scores) - count + 0.5) / (count + 0.5)))
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

    def add(self, words: Sequence[int], extras: Sequence[int] = ()) -> None:
        """Add the words of the next text, as numbers, and other terms, which do not count for its length."""
        counts = Counter(words)
        counts.update(extras)
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
