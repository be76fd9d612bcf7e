"""Split text into chunks to embed: whole sentences up to a token budget, under a context line."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise

from gumshoe.embeddings.embedder import TokenCounter
from gumshoe.errors import UsageError
from gumshoe.installation import install_command

CountTokens = Callable[[Sequence[str]], list[int]]
"""Return the number of tokens of each text for the embedding model, including prefixes and special tokens."""

MAX_TOKENS = 256
"""Default maximum number of tokens per chunk."""
_CONTEXT_SHARE = 3  # the context line gets at most 1/3 of the budget
_BYTES_PER_TOKEN = 4
_BREAKS = re.compile(r"\n+|\s+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text: characters from `start` to `stop`, and its tokens.

    Only whitespace lies between two chunks of a text.
    """

    start: int
    stop: int
    tokens: int
    """Including the context line, prefixes and special tokens."""


@dataclass(frozen=True, slots=True)
class ChunkedText:
    """The chunks of a text, and the context line above each."""

    context: str
    chunks: list[Chunk]


def check_splitter() -> None:
    """Check that the library that splits text into sentences is installed.

    Raises:
        UsageError: if it is not.
    """
    if find_spec("sentencex") is None:
        raise UsageError("embeddings.not-installed", f"vectors require sentencex: {install_command('sentencex')}")


def estimate_tokens(texts: Sequence[str]) -> list[int]:
    """Estimate the tokens of texts without a tokenizer: one per four bytes, rounded up."""
    return [-(-len(text.encode()) // _BYTES_PER_TOKEN) for text in texts]


def make_token_counter(embedder: object) -> CountTokens:
    """Return the function that counts tokens: the model's tokenizer, or an estimate if it is not known."""
    if not isinstance(embedder, TokenCounter):
        return estimate_tokens
    counting = embedder
    return lambda texts: counting.count_tokens(texts, "passage")


def add_context(context: str, text: str) -> str:
    """Return the text of a chunk for embedding and lexical search: its context line and its text."""
    return f"{context}\n{text}" if context else text


def join_context(parts: Iterable[str]) -> str:
    """Return the whole context line with some parts. `split_text` may shorten it."""
    return " | ".join(dict.fromkeys(filter(None, parts)))


def split_text(
    text: str, context_parts: Sequence[str], budget: int, count: CountTokens, language: str = "en"
) -> ChunkedText:
    """Split a text into chunks of at most `budget` tokens, including the context line.

    The context line has the parts given, the most important first, as far as they fit into a third of the budget. It is
    the beginning of what `join_context` returns. A sentence is split only if it alone is longer than a chunk: at a line
    end, else between words, else anywhere.
    """
    context, room = _build_context(context_parts, budget, count)
    (overhead,) = count([""])
    cutter = _Chunker(text, context, budget, room, overhead, count)
    return ChunkedText(context, list(cutter.make_chunks(_split_sentences(text, language))))


def _build_context(parts: Sequence[str], budget: int, count: CountTokens) -> tuple[str, int]:
    """Return the context line, shortened to its share of the budget, and the tokens left for the chunk itself."""
    words = list(dict.fromkeys(filter(None, parts)))
    while True:
        line = join_context(words)
        (used,) = count([add_context(line, "")])
        if not words or used <= budget // _CONTEXT_SHARE:
            return line, budget - used
        # Drop the least important parts first. A part that is too long is cut.
        words = words[:-1] if len(words) > 1 else [words[0][: len(words[0]) // 2].rstrip()]
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
        (tokens,) = self.count([add_context(self.context, self.text[start:stop])])
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
