"""Show the part of a text that contains the words of a query."""

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from gumshoe.mail.words import MailAnalyzer, find_tokens

SNIPPET_WORDS = 24
_CHARACTERS_PER_WORD = 41  # at most, in the mean: a word, and what is between two, may be of any length
_MAX_TEXT = 1_000_000  # characters of a text that are looked at

Places = list[tuple[int, int]]
"""Numbers of words of one or several texts, with a gap of one between texts, and the term that is there, ascending."""


def find_places(analyzer: MailAnalyzer, text: str, terms: Collection[int]) -> Places:
    """Return where some terms are in a text."""
    found = analyzer.analyze(text)
    is_wanted = np.isin(found.terms, np.array(list(terms), np.uint64))
    return list(zip(found.positions[is_wanted].tolist(), found.terms[is_wanted].tolist(), strict=True))


def make_snippet(texts: list[str], places: Places, size: int = SNIPPET_WORDS) -> str:
    """Return at most `size` words on one line, from the first text with one of the places.

    It is the part with the most different terms. Without any, it is the beginning of the first text.
    """
    first = 0  # number of the first word of a text
    for text in texts if places else ():
        words = sum(1 for _ in find_tokens(text[:_MAX_TEXT])) if len(texts) > 1 else places[-1][0] + 1
        inside = [(place - first, term) for place, term in places if first <= place < first + words]
        if inside:
            return _cut_densest(text[:_MAX_TEXT], inside, size)
        first += words + 1
    return _cut(texts[0][:_MAX_TEXT] if texts else "", 0, 0, size)


def find_densest(places: Sequence[tuple[int, Hashable]], size: int) -> tuple[int, int]:
    """Return the first and the last place in a window of `size` with the most different terms, the first such window.

    `places` are ascending, with the term that is at each; there is at least one.

    >>> find_densest([(0, "tea"), (40, "tea"), (45, "milk"), (90, "milk")], 10)
    (40, 45)
    """
    best, most = 0, len({term for _, term in places})
    found = (places[0][0], places[0][0])
    first, inside = 0, Counter[Hashable]()  # terms in the window
    for place, term in places:
        inside[term] += 1
        while place - places[first][0] >= size:
            left, first = places[first][1], first + 1
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
        if len(inside) > best:
            best, found = len(inside), (places[first][0], place)
            if best == most:
                break
    return found


def _cut_densest(text: str, places: Places, size: int) -> str:
    """Return the `size` words of a text with the most different terms in the middle."""
    first, last = find_densest(places, size)
    before = max(size - 1 - (last - first), 0) // 2
    return _cut(text, first, max(first - before, 0), size)


def _cut(text: str, wanted: int, start: int, size: int) -> str:
    """Return `size` words of a text from `start` on, or its last ones, with signs where something is left out.

    If they are very long, only what is around the word `wanted` is shown.
    """
    longest = size * _CHARACTERS_PER_WORD
    words = list(itertools.islice(find_tokens(text), start + size + 1))
    start = max(min(start, len(words) - size), 0)
    begin = words[start].start() if start else 0
    end = words[start + size].start() if len(words) > start + size else len(text)
    shown = " ".join(text[begin:end].split())
    if len(shown) > longest:
        place = words[min(wanted, len(words) - 1)].start() if words else 0
        begin = max(begin, place - longest // 2)
        end = min(end, begin + longest)
        shown = " ".join(text[begin:end].split())
    return f"{'… ' if begin else ''}{shown}{' …' if end < len(text) else ''}"
