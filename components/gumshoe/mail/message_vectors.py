"""Vectors of the messages of an index: one for each chunk of a message's text.

A segment has the vectors of its own messages, once for all inboxes, in files beside its database:

- `chunks.i4` [5, chunks]: the fields of `MessageChunk`, in the order of messages.
- `vectors.f2`, `signs.u8` and `center.f4`: the arrays of `DenseRetriever`. Missing without chunks.

A search looks only at the chunks of given messages. The center of sign bits depends on the model only, so that neither
the results nor the work for some messages depend on others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.embeddings.chunking import join_context
from gumshoe.embeddings.embedder import Vectors
from gumshoe.embeddings.vectors import CENTER, SIGNS, VECTORS, DenseRetriever, count_compared
from gumshoe.errors import GumshoeError
from gumshoe.mail.message import clean_line
from gumshoe.mail.postings import to_ranges
from gumshoe.mail.schema import CHUNKS
from gumshoe.mail.segment import IndexSegment, IndexSegments, StoredText

_DECIMALS = 4  # of a cosine: vectors of equal texts that were embedded in different batches differ a little more

Numbers = NDArray[np.int64]


class MessageChunk(NamedTuple):
    """The place of a chunk in a message, and the length of the context line above it, in characters."""

    message: int
    part: int
    """0 is the body. Attachments follow."""
    context: int
    start: int
    stop: int


def list_parts(text: StoredText) -> list[tuple[list[str], str]]:
    """Return the parts of a message that are embedded, each with the parts of its context line."""
    subject = clean_line(text.subject)
    attachments = [([subject, clean_line(each.name)], each.text) for each in text.attachments]
    return [([subject], text.body), *attachments]


def cut_chunk(text: StoredText, chunk: MessageChunk) -> tuple[str, str]:
    """Return the context line and the text of a chunk."""
    context, part = list_parts(text)[chunk.part]
    return join_context(context)[: chunk.context], part[chunk.start : chunk.stop]


class SegmentVectors:
    """The vectors of one segment, mapped into memory. Thread-safe, and not affected by a fork.

    Raises on opening:
        GumshoeError: if a file is missing or damaged.
    """

    def __init__(self, segment: IndexSegment) -> None:
        self.first, self.end = segment.first, segment.first + segment.messages
        self._directory = segment.directory
        self._chunks = self._open(CHUNKS, "<i4", len(MessageChunk._fields)).reshape(len(MessageChunk._fields), -1)
        places = self._chunks[0] - self.first
        if places.min(initial=0) < 0 or places.max(initial=0) >= segment.messages:
            raise _damaged(self._directory / CHUNKS)
        counts = np.bincount(places, minlength=segment.messages)
        self._starts: Numbers = np.concatenate([[0], np.cumsum(counts)])
        self.dense: DenseRetriever | None = None
        if len(self):
            center = self._open(CENTER, "<f4")
            vectors = self._open(VECTORS, "<f2", len(self) * len(center)).reshape(len(self), -1)
            signs = self._open(SIGNS, "<u8", len(self) * -(-len(center) // 64)).reshape(-1, len(self))
            if vectors.shape[1] != len(center) or len(signs) != -(-len(center) // 64):
                raise _damaged(self._directory / VECTORS)
            self.dense = DenseRetriever(vectors, signs, center)

    def __len__(self) -> int:
        return int(self._chunks.shape[1])

    def _open(self, name: str, kind: str, multiple: int = 1) -> NDArray[Any]:
        path = self._directory / name
        try:
            size = path.stat().st_size
            if size % (np.dtype(kind).itemsize * multiple):
                raise _damaged(path)
            return np.asarray(np.memmap(path, kind, "r")) if size else np.zeros(0, kind)
        except FileNotFoundError:
            raise _damaged(path) from None

    def read_chunk(self, number: int) -> MessageChunk:
        """Return a chunk by its number in this segment."""
        return MessageChunk(*self._chunks[:, number].tolist())

    def find_chunks(self, messages: Numbers) -> tuple[Numbers, Numbers]:
        """Return the chunks of some messages of this segment, in order, and the place of each one's message."""
        places = messages - self.first
        starts = self._starts[places]
        counts = self._starts[places + 1] - starts
        return to_ranges(starts, counts), np.repeat(np.arange(len(places)), counts)


def _damaged(path: Path) -> GumshoeError:
    return GumshoeError(
        "store.index-damaged", f"{path} is damaged or missing; fetch the index again, or build it again"
    )


class _SegmentChunks(NamedTuple):
    """Chunks of some messages in one segment."""

    segment: SegmentVectors
    chunks: Numbers
    owners: Numbers
    """[chunks]: place of each chunk's message in the list of messages."""


class MessageVectors:
    """The vectors of all segments of an index. Thread-safe.

    Raises on opening:
        GumshoeError: if a file is missing or damaged.
    """

    def __init__(self, segments: IndexSegments) -> None:
        self._segments = [SegmentVectors(each) for each in segments.segments if each.messages]

    def __len__(self) -> int:
        return sum(map(len, self._segments))

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector. 0 without vectors."""
        return next((each.dense.dimensions for each in self._segments if each.dense), 0)

    def find_nearest(self, query: Vectors, messages: Numbers, count: int) -> tuple[Numbers, Vectors]:
        """Return places and scores [found] of the messages that have the chunks nearest to a query [dimensions].

        `messages` are numbers of messages, ascending. At least `count` chunks are compared, if there are as many. The
        places, in `messages`, are ascending.
        """
        found = list(self._find_chunks(messages))
        total = sum(len(each.chunks) for each in found)
        compared = max(count_compared(total), count)
        if total > compared:
            found = _shortlist(found, query, compared)
        return _best_scores(found, query)[:2]

    def score(self, query: Vectors, messages: Numbers) -> tuple[Vectors, list[MessageChunk | None]]:
        """Return score [messages] and nearest chunk of each message. A message without chunks has the lowest score."""
        found = list(self._find_chunks(messages))
        places, best, nearest = _best_scores(found, query)
        scores = np.full(len(messages), best.min(initial=1), np.float32)
        scores[places] = best
        chunks: list[MessageChunk | None] = [None] * len(messages)
        all_chunks = [(each.segment, chunk) for each in found for chunk in each.chunks.tolist()]
        for place, number in zip(places.tolist(), nearest.tolist(), strict=True):
            segment, chunk = all_chunks[number]
            chunks[place] = segment.read_chunk(chunk)
        return scores, chunks

    def _find_chunks(self, messages: Numbers) -> Iterator[_SegmentChunks]:
        for each in self._segments:
            low, high = np.searchsorted(messages, [each.first, each.end]).tolist()
            chunks, owners = each.find_chunks(messages[low:high])
            if each.dense:  # even without chunks: who else has a text decides in which segment its chunks are
                yield _SegmentChunks(each, chunks, owners + low)

    def is_from_model(self, vector: Vectors) -> bool:
        """Return True if a vector can be the same model's of the same text as the first of this index."""
        dense = next(each.dense for each in self._segments if each.dense)
        return dense.is_from_model(vector, 0)

    def find_first(self) -> MessageChunk | None:
        """Return the first chunk, or None without chunks."""
        return next((each.read_chunk(0) for each in self._segments if len(each)), None)


def _shortlist(found: list[_SegmentChunks], query: Vectors, count: int) -> list[_SegmentChunks]:
    """Return the chunks whose sign bits are nearest to those of a query."""
    distances = np.concatenate([each.segment.dense.measure(query, each.chunks) for each in found if each.segment.dense])
    nearest = np.sort(np.argpartition(distances, count)[:count])
    kept, start = [], 0
    for each in found:
        low, high = np.searchsorted(nearest, [start, start + len(each.chunks)]).tolist()
        places = nearest[low:high] - start
        kept.append(_SegmentChunks(each.segment, each.chunks[places], each.owners[places]))
        start += len(each.chunks)
    return kept


def _best_scores(found: list[_SegmentChunks], query: Vectors) -> tuple[Numbers, Vectors, Numbers]:
    """Return each message that has some of the chunks, its best score, and the number of the chunk that has it."""
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64)
    scores = np.concatenate([each.segment.dense.score(query, each.chunks) for each in found if each.segment.dense])
    scores = np.round(scores, _DECIMALS)
    owners = np.concatenate([each.owners for each in found])
    order = np.lexsort((-scores, owners))  # of equal scores, the first chunk
    places, firsts = np.unique(owners[order], return_index=True)
    nearest = order[firsts]
    return places, scores[nearest], nearest
