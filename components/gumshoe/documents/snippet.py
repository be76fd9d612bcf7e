"""The part of a chunk that a search shows."""

import re
from collections.abc import Set as AbstractSet

from gumshoe.documents.lexical import Analyzer

LONGEST = 240
"""Characters of a chunk that are shown, at most."""
_LEAD = 40  # characters shown before what was found
_ELLIPSIS = "…"


def make_snippet(text: str, words: AbstractSet[str], analyzer: Analyzer) -> str:
    """The part of a text in which most of some words are, on one line; its beginning where there are none.

    `words` are reduced as the analyzer does it. Whole words are shown, and an ellipsis where others are left out.
    """
    line = " ".join(text.split())
    if len(line) <= LONGEST:
        return line
    first = _densest(line, words, analyzer) if words else 0
    start = max(0, min(first - _LEAD, len(line) - LONGEST))
    if start:
        start = line.find(" ", start, first) + 1 or start
    stop = start + LONGEST
    if stop < len(line) and (end := line.rfind(" ", first, stop + 1)) > 0:
        stop = end
    shown = line[start:stop].strip()
    return f"{_ELLIPSIS} " * (start > 0) + shown + f" {_ELLIPSIS}" * (stop < len(line))


def _densest(line: str, words: AbstractSet[str], analyzer: Analyzer) -> int:
    """Where the stretch begins that has most of some words, each counted once."""
    # To find a word's stem takes long. It begins like the word, but for its last letter.
    begun = sorted({re.escape(word[: max(2, len(word) - 1)]) for word in words})
    likely = re.compile(rf"\b(?:{'|'.join(begun)})\w*", re.I)
    found = [
        (each.start(), stem) for each in likely.finditer(line) for stem in analyzer.words(each[0]) if stem in words
    ]
    counts = [len({stem for at, stem in found if 0 <= at - place < LONGEST - _LEAD}) for place, _ in found]
    return found[counts.index(max(counts))][0] if counts else 0
