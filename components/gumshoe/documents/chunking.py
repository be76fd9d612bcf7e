"""Split documents into chunks: whole sentences up to a token budget, under a context line."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gumshoe.documents.document import Document
from gumshoe.documents.schema import chunk_text

CountTokens = Callable[[Sequence[str]], list[int]]
"""Return the number of tokens of each text for the embedding model, including prefixes and special tokens."""

CONTEXT_FIELDS = ("category", "synonyms")
"""Metadata in the context line of a chunk, after the title."""
_CONTEXT_SHARE = 3  # the context line gets at most 1/3 of the budget
_BYTES_PER_TOKEN = 4
_BREAKS = re.compile(r"\n+|\s+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document's text: characters from `start` to `stop`, and its tokens.

    Only whitespace lies between two chunks of a document.
    """

    start: int
    stop: int
    tokens: int
    """Including the context line, prefixes and special tokens."""


@dataclass(frozen=True, slots=True)
class ChunkedDocument:
    """The chunks of a document, and the context line above each."""

    context: str
    chunks: list[Chunk]


def estimate_tokens(texts: Sequence[str]) -> list[int]:
    """Estimate the tokens of texts without a tokenizer: one per four bytes, rounded up."""
    return [-(-len(text.encode()) // _BYTES_PER_TOKEN) for text in texts]


def chunk_document(document: Document, budget: int, count: CountTokens, language: str = "en") -> ChunkedDocument:
    """Split a document into chunks of at most `budget` tokens, including the context line.

    A sentence is split only if it alone is longer than a chunk: at a line end, else between words, else anywhere.
    """
    context, room = _build_context(document, budget, count)
    (overhead,) = count([""])
    cutter = _Chunker(document.text, context, budget, room, overhead, count)
    return ChunkedDocument(context, list(cutter.make_chunks(_split_sentences(document.text, language))))


def _build_context(document: Document, budget: int, count: CountTokens) -> tuple[str, int]:
    """Return the context line, shortened to its share of the budget, and the tokens left for the chunk itself."""
    parts = [document.title]
    for name in CONTEXT_FIELDS:
        value = document.metadata.get(name) or []
        parts += value if isinstance(value, list) else [value]
    words = list(dict.fromkeys(filter(None, parts)))
    while True:
        line = " | ".join(words)
        (used,) = count([chunk_text(line, "")])
        if not words or used <= budget // _CONTEXT_SHARE:
            return line, budget - used
        # Drop the least important parts first. A title that is too long is cut.
        words = words[:-1] if len(words) > 1 else [words[0][: len(words[0]) // 2].strip()]
        words = list(filter(None, words))


def _split_sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Return start and end of each sentence of a text, without surrounding whitespace."""
    from sentencex import segment

    ends = [0]
    for sentence in segment(language, text):
        ends.append(ends[-1] + len(sentence))
    if ends[-1] != len(text):  # the segmenter returns the whole text; otherwise positions would be wrong
        ends = [0, len(text)]
    return [span for start, stop in pairwise(ends) if (span := _trim(text, start, stop))]


def _trim(text: str, start: int, stop: int) -> tuple[int, int] | None:
    part = text[start:stop]
    begin = start + len(part) - len(part.lstrip())
    return (begin, begin + len(part.strip())) if part.strip() else None


@dataclass(frozen=True, slots=True)
class _Chunker:
    text: str
    context: str
    budget: int
    room: int
    """Tokens for a chunk's own text."""
    overhead: int
    """Tokens for prefixes and special tokens, per text."""
    count: CountTokens

    def make_chunks(self, sentences: list[tuple[int, int]]) -> Iterator[Chunk]:
        """Yield chunks, each with as many consecutive sentences as fit."""
        spans = list(self._split_to_fit(sentences))
        first = 0
        while first < len(spans):
            last, used = first + 1, spans[first][2]
            while last < len(spans) and used + spans[last][2] <= self.room:
                used += spans[last][2]
                last += 1
            chunk = self._make_chunk(spans[first][0], spans[last - 1][1])
            while chunk.tokens > self.budget and last - first > 1:  # whitespace between sentences counts too
                last -= 1
                chunk = self._make_chunk(spans[first][0], spans[last - 1][1])
            yield from self._split_if_too_long(chunk)
            first = last

    def _make_chunk(self, start: int, stop: int) -> Chunk:
        (tokens,) = self.count([chunk_text(self.context, self.text[start:stop])])
        return Chunk(start, stop, tokens)

    def _split_if_too_long(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield a chunk, or its halves if a sentence together with the context line exceeds the budget."""
        if chunk.tokens <= self.budget or chunk.stop - chunk.start < 2:
            yield chunk
            return
        for half in self._halve(chunk.start, chunk.stop):
            yield from self._split_if_too_long(self._make_chunk(*half))

    def _split_to_fit(self, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield start, stop and tokens of each span. A span that is too long is split."""
        counts = self.count([self.text[start:stop] for start, stop in spans]) if spans else []
        for (start, stop), tokens in zip(spans, counts, strict=True):
            if tokens - self.overhead <= self.room or stop - start < 2:
                yield start, stop, tokens - self.overhead
            else:
                yield from self._split_to_fit(self._halve(start, stop))

    def _halve(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Split a span in two, at the line end nearest to its middle, else at the nearest whitespace."""
        middle = (start + stop) // 2
        breaks = list(_BREAKS.finditer(self.text, start, stop))
        lines = [each for each in breaks if "\n" in each[0]]
        places = [each.start() for each in lines or breaks]
        place = min(places, key=lambda each: abs(each - middle), default=middle)
        return [span for part in ((start, place), (place, stop)) if (span := _trim(self.text, *part))]
