"""Show the part of a text that contains the words of a query."""

import itertools

import numpy as np

from gumshoe.mail.words import MailAnalyzer, find_tokens

SNIPPET_WORDS = 24
_MAX_TEXT = 100_000  # characters of a text that are looked at


def make_snippet(analyzer: MailAnalyzer, texts: list[str], terms: set[int]) -> str:
    """Return at most `SNIPPET_WORDS` words on one line, from the first text that contains one of the terms.

    It is the part with the most different terms. Without any, it is the beginning of the first text.
    """
    for text in texts:
        found = analyzer.analyze(text[:_MAX_TEXT])
        matches = np.zeros(len(found.terms), np.bool_)
        for term in terms:
            matches |= found.terms == np.uint64(term)
        if matches.any():
            places = found.positions[matches].tolist()
            return _cut(text[:_MAX_TEXT], _find_best_start(places, found.terms[matches].tolist()), found.tokens)
    return _cut(texts[0][:_MAX_TEXT] if texts else "", 0, None)


def _find_best_start(places: list[int], terms: list[int]) -> int:
    """Return the word at which a window with the most different terms begins, with some words before the first."""
    best, best_place = 0, places[0]
    first = 0
    for last, place in enumerate(places):
        while place - places[first] >= SNIPPET_WORDS:
            first += 1
        different = len(set(terms[first : last + 1]))
        if different > best:
            best, best_place, best_last = different, places[first], place
    before = max(SNIPPET_WORDS - 1 - (best_last - best_place), 0) // 2
    return max(best_place - before, 0)


def _cut(text: str, start: int, words: int | None) -> str:
    """Return the words of a text from one on, with signs where something is left out."""
    if words is not None:
        start = max(min(start, words - SNIPPET_WORDS), 0)
    shown_words = list(itertools.islice(find_tokens(text), start, start + SNIPPET_WORDS + 1))
    more = len(shown_words) > SNIPPET_WORDS
    begin = shown_words[0].start() if start and shown_words else 0
    end = shown_words[-1].start() if more else len(text)
    shown = " ".join(text[begin:end].split())
    return f"{'… ' if start else ''}{shown}{' …' if more else ''}"
