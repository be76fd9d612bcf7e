"""Show the part of a text that contains most of the words of a query."""

import re
from collections.abc import Set as AbstractSet

from gumshoe.documents.lexical import Analyzer
from gumshoe.mail.snippets import find_densest
from gumshoe.mail.words import is_character

SNIPPET_CHARACTERS = 240
"""Maximum length of a snippet in characters, unless a search asks for more."""
MIN_SNIPPET_CHARACTERS = 80
"""The shortest limit, so that there is room for words around a match."""
_LEAD = 40  # characters shown before the first match
_ELLIPSIS = "…"


def make_snippet(text: str, words: AbstractSet[str], analyzer: Analyzer, limit: int = SNIPPET_CHARACTERS) -> str:
    """Return the part of a text, of at most `limit` characters, that contains most of some words, on one line.

    Without a match, it is the beginning. `words` are stemmed by the analyzer. Only whole words are shown, with an
    ellipsis where text is left out.
    """
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    first = _find_densest(line, words, analyzer, limit) if words else 0
    start = max(0, min(first - _LEAD, len(line) - limit))
    if start:
        start = line.find(" ", start, first) + 1 or start
    stop = start + limit
    if stop < len(line) and (end := line.rfind(" ", first, stop + 1)) > 0:
        stop = end
    shown = line[start:stop].strip()
    return f"{_ELLIPSIS} " * (start > 0) + shown + f" {_ELLIPSIS}" * (stop < len(line))


def _find_densest(line: str, words: AbstractSet[str], analyzer: Analyzer, limit: int) -> int:
    """Return the start of the section of `limit` characters that contains most of some words, each counted once."""
    # Stemming is slow. A word and its stem begin alike, except for the stem's last letter.
    characters = sorted({re.escape(word) for word in words if is_character(word)})
    prefixes = sorted({re.escape(word[: max(2, len(word) - 1)]) for word in words if not is_character(word)})
    likely = re.compile("|".join([*characters, rf"\b(?:{'|'.join(prefixes)})\w*"] if prefixes else characters), re.I)
    found = [
        (each.start(), term)
        for each in likely.finditer(line)
        for term in ([each[0]] if each[0] in words else analyzer.split_words(each[0]))
        if term in words
    ]
    return find_densest(found, limit - _LEAD)[0] if found else 0
