"""Documents cut into chunks: whole sentences up to a budget of tokens, under a line that says what they are about."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gumshoe.documents.document import Document
from gumshoe.documents.schema import chunk_text

CountTokens = Callable[[Sequence[str]], list[int]]
"""How many tokens each text has for the model that is to read it, with whatever it is given beside the text."""

CONTEXT = ("category", "synonyms")
"""The metadata that stands in a chunk's first line, after the title."""
_SHARE = 3  # the first line gets at most one part in so many of the budget
_BYTES_A_TOKEN = 4
_BREAKS = re.compile(r"\n+|\s+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document's text, from one character up to another, with its tokens. Only white space lies between
    two chunks of a document.
    """

    start: int
    stop: int
    tokens: int
    """With the context line and whatever else the model is given."""


@dataclass(frozen=True, slots=True)
class Chunked:
    """The chunks of a document, and the line that stands above each."""

    context: str
    chunks: list[Chunk]


def estimate_tokens(texts: Sequence[str]) -> list[int]:
    """Tokens of texts where no tokenizer is at hand: one for four bytes begun."""
    return [-(-len(text.encode()) // _BYTES_A_TOKEN) for text in texts]


def chunk_document(document: Document, budget: int, count: CountTokens, language: str = "en") -> Chunked:
    """Cut a document into chunks of at most `budget` tokens as `count` counts them, the context line included.

    A sentence is cut only where it is longer than a chunk by itself: at a line's end, or between words, or where
    there are none, anywhere.
    """
    context, room = _context(document, budget, count)
    (overhead,) = count([""])
    cutter = _Cutter(document.text, context, budget, room, overhead, count)
    return Chunked(context, list(cutter.chunks(_sentences(document.text, language))))


def _context(document: Document, budget: int, count: CountTokens) -> tuple[str, int]:
    """The line above each chunk, as much of it as its share allows, and the tokens left for the chunk itself."""
    parts = [document.title]
    for name in CONTEXT:
        value = document.metadata.get(name) or []
        parts += value if isinstance(value, list) else [value]
    words = list(dict.fromkeys(filter(None, parts)))
    while True:
        line = " | ".join(words)
        (used,) = count([chunk_text(line, "")])
        if not words or used <= budget // _SHARE:
            return line, budget - used
        # The least telling go first; a title that is too long by itself is cut.
        words = words[:-1] if len(words) > 1 else [words[0][: len(words[0]) // 2].strip()]
        words = list(filter(None, words))


def _sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Where each sentence of a text begins and ends, without the white space round it."""
    from sentencex import segment

    ends = [0]
    for sentence in segment(language, text):
        ends.append(ends[-1] + len(sentence))
    if ends[-1] != len(text):  # it gives back all of a text; where it did not, places would be wrong
        ends = [0, len(text)]
    return [span for start, stop in pairwise(ends) if (span := _trimmed(text, start, stop))]


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int] | None:
    part = text[start:stop]
    begin = start + len(part) - len(part.lstrip())
    return (begin, begin + len(part.strip())) if part.strip() else None


@dataclass(frozen=True, slots=True)
class _Cutter:
    text: str
    context: str
    budget: int
    room: int
    """Tokens for a chunk's own text."""
    overhead: int
    """Tokens that the model is given beside each text."""
    count: CountTokens

    def chunks(self, sentences: list[tuple[int, int]]) -> Iterator[Chunk]:
        """As many sentences in a row as there is room for, again and again."""
        spans = list(self._fitting(sentences))
        first = 0
        while first < len(spans):
            last, used = first + 1, spans[first][2]
            while last < len(spans) and used + spans[last][2] <= self.room:
                used += spans[last][2]
                last += 1
            chunk = self._chunk(spans[first][0], spans[last - 1][1])
            while chunk.tokens > self.budget and last - first > 1:  # what lies between them counts too
                last -= 1
                chunk = self._chunk(spans[first][0], spans[last - 1][1])
            yield from self._cut(chunk)
            first = last

    def _chunk(self, start: int, stop: int) -> Chunk:
        (tokens,) = self.count([chunk_text(self.context, self.text[start:stop])])
        return Chunk(start, stop, tokens)

    def _cut(self, chunk: Chunk) -> Iterator[Chunk]:
        """A chunk; in pieces where one sentence and the line above it are more together than each said alone."""
        if chunk.tokens <= self.budget or chunk.stop - chunk.start < 2:
            yield chunk
            return
        for half in self._halves(chunk.start, chunk.stop):
            yield from self._cut(self._chunk(*half))

    def _fitting(self, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Start, stop and tokens of each span; one that is too long comes in pieces."""
        counts = self.count([self.text[start:stop] for start, stop in spans]) if spans else []
        for (start, stop), tokens in zip(spans, counts, strict=True):
            if tokens - self.overhead <= self.room or stop - start < 2:
                yield start, stop, tokens - self.overhead
            else:
                yield from self._fitting(self._halves(start, stop))

    def _halves(self, start: int, stop: int) -> list[tuple[int, int]]:
        """A span in two, at the end of a line that is nearest to its middle, or else at the white space that is."""
        middle = (start + stop) // 2
        breaks = list(_BREAKS.finditer(self.text, start, stop))
        lines = [each for each in breaks if "\n" in each[0]]
        places = [each.start() for each in lines or breaks]
        place = min(places, key=lambda each: abs(each - middle), default=middle)
        return [span for part in ((start, place), (place, stop)) if (span := _trimmed(self.text, *part))]
