"""Cut what tools return to a budget of characters, for models with a small context."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from gumshoe.environments.tools import ToolError
from gumshoe.mail.snippets import find_densest

HitCount = Annotated[int, Field(ge=1, le=10)]
"""Maximum number of hits of a search."""
HitCharacters = Annotated[int, Field(ge=40)] | None
"""Maximum number of characters of a hit's title and snippet together; None for the index's usual snippets, uncut."""
PageCharacters = Annotated[int, Field(ge=200)] | None
"""Maximum number of characters of a text that a call shows; longer texts have pages. None if they are not cut."""
PAGE_OF_CALL = 20_000
"""Characters of a page that a single tool call shows, e.g. of an MCP client: Claude Code refuses results of more than
25,000 tokens."""

_MARK = " …"  # at the end of a text that is cut
_MIN_PREFIX = 3  # characters of a word; words are compared without their last characters, which may be an ending
_ENDING = 3


def cut(text: str, limit: int) -> str:
    """Return a text, or its beginning with a mark if it has more than `limit` characters. Prefer whole words.

    >>> cut("Notes of the meeting", 16)
    'Notes of the …'
    """
    if len(text) <= limit:
        return text
    return text[: _find_end(text, 0, max(limit - len(_MARK), 1))].rstrip() + _MARK


def cut_hit(title: str, snippet: str, query: str, limit: int | None) -> tuple[str, str]:
    """Cut title and snippet of a hit to `limit` characters together. The snippet keeps words of the query.

    A long title gets a third of them, or what the snippet leaves.
    """
    if limit is None:
        return title, snippet
    title = cut(title, max(limit // 3, limit - len(snippet)))
    return title, _cut_around(snippet, query, limit - len(title))


def _cut_around(text: str, query: str, limit: int) -> str:
    """Cut a text to `limit` characters: the part with the most different words of the query, or the beginning."""
    if len(text) <= limit:
        return text
    beginnings = {word[: max(_MIN_PREFIX, len(word) - _ENDING)] for word in re.findall(r"\w+", query)}
    words = {word.lower(): re.compile(rf"\b{word}", re.I) for word in beginnings}
    places = sorted((place.start(), word) for word, pattern in words.items() for place in pattern.finditer(text))
    size = limit * 2 // 3
    best, last = find_densest(places, size) if places else (0, 0)
    if last < size or best <= limit // 3:
        return cut(text, limit)
    start = text.rfind(" ", best - limit // 3, best) + 1 or best
    return f"… {cut(text[start:], limit - 2)}"


def split_pages(text: str, limit: int) -> list[str]:
    """Split a text into pages of at most `limit` characters, which end at the end of a line or word if possible.

    The pages joined are the text. An empty text has one page.

    >>> split_pages("One line.\\nAnother line.", 12)
    ['One line.\\n', 'Another ', 'line.']
    """
    return list(_iterate_pages(text, limit)) or [""]


def _iterate_pages(text: str, limit: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = _find_end(text, start, start + limit)
        yield text[start:end]
        start = end


def _find_end(text: str, start: int, end: int) -> int:
    """Return where to end a part of a text that begins at `start` and may go on to `end`.

    This is after a line in its second half, or else after a word there, or else at `end`.
    """
    if end >= len(text):
        return len(text)
    middle = (start + end) // 2
    if (line := text.rfind("\n", middle, end)) >= 0:
        return line + 1
    return next((place for place in range(end, middle, -1) if text[place - 1].isspace()), end)


def show_page(head: str, text: str, page: int, limit: int | None) -> str:
    """Return a page of a text, below its head if it is the first, and below its number if there are several.

    Pages are counted from 1. Without a limit, there is only one.

    Raises:
        ToolError: if the page does not exist.
    """
    pages = [text] if limit is None else split_pages(text, limit)
    if not 1 <= page <= len(pages):
        raise ToolError(f"there is no page {page}: the last page is {len(pages)}")
    above = [head] if page == 1 else []
    if len(pages) > 1:
        above.append(f"Page {page} of {len(pages)}")
    return "\n".join([*above, "", pages[page - 1]])


def join_within(names: Iterable[str], limit: int) -> str:
    """Join names with commas. If they have more than `limit` characters, the last ones are only counted.

    >>> join_within(["ann@example.com", "bob@example.com", "eve@example.com"], 30)
    'ann@example.com, and 2 more'
    """
    names = list(names)
    if len(joined := ", ".join(names)) <= limit:
        return joined
    shown = [cut(names[0], limit)]
    while len(", ".join([*shown, names[len(shown)], f"and {len(names)} more"])) <= limit:
        shown.append(names[len(shown)])
    return ", ".join([*shown, f"and {len(names) - len(shown)} more"]) if len(names) > len(shown) else shown[0]
