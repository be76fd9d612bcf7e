"""Embed the messages of segments, when their text is complete."""

import io
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.response_cache import Cache
from gumshoe.artifacts.storage import flush_to_disk, write_atomically
from gumshoe.embeddings.chunking import MAX_TOKENS, CountTokens, add_context, make_token_counter, split_text
from gumshoe.embeddings.embedder import CachedEmbedder, Embedder, TokenCounter, Vectors
from gumshoe.embeddings.neutral_center import compute_neutral_center
from gumshoe.embeddings.vectors import CENTER, PLAN, SIGNS, read_stored_vectors, write_signs, write_vectors
from gumshoe.mail.message_vectors import MessageChunk, cut_chunk, list_parts
from gumshoe.mail.schema import CHUNKS
from gumshoe.mail.segment import IndexSegment, StoredText
from gumshoe.terminal import progress

MAX_CHUNKS = 200
"""Chunks of a message that are embedded, at most. Words find the rest of a long message."""
_STORED_AT_ONCE = 1024  # vectors


def embed_segments(segments: Sequence[IndexSegment], embedder: Embedder, cache: Cache | None = None) -> None:
    """Write the vectors of all segments that have messages and no vectors yet.

    An interrupted run continues after its last complete window of vectors. `cache` is one that `save_vectors` filled.

    Raises:
        EmbeddingError: if the texts cannot be embedded.
    """
    waiting = [each for each in segments if each.messages and not _is_complete(each.directory)]
    if not waiting:
        return
    count = make_token_counter(embedder)
    budget = min(MAX_TOKENS, embedder.max_tokens) if isinstance(embedder, TokenCounter) else MAX_TOKENS
    chunks = [_split_messages(each, budget, count) for each in waiting]
    with progress("Embedding", total=sum(each.shape[1] for each in chunks)) as advance:
        center: Vectors | None = None
        for segment, placed in zip(waiting, chunks, strict=True):
            content = placed.tobytes()
            write_atomically(segment.directory / CHUNKS, io.BytesIO(content))
            if not content:
                continue
            plan = blake2b(f"{embedder.name}\0".encode() + content, digest_size=16).hexdigest()
            texts = partial(_read_chunk_texts, segment, placed)
            cached = CachedEmbedder(embedder, cache) if cache else embedder
            vectors, _ = write_vectors(segment.directory, plan, texts, [placed.shape[1]], cached, advance)
            if center is None:
                center = compute_neutral_center(embedder)
            write_signs(segment.directory, vectors, center)
            flush_to_disk(segment.directory / name for name in (SIGNS, CENTER))
            (segment.directory / PLAN).unlink()


def save_vectors(segments: Sequence[IndexSegment], embedder: Embedder, cache: Cache) -> None:
    """Store the vectors of segments in a cache, so that texts which did not change are not embedded again.

    `embedder` is the model that the vectors are from. Those of an interrupted run are stored as far as it came.
    """
    cached = CachedEmbedder(embedder, cache)
    for segment in segments:
        vectors = read_stored_vectors(segment.directory)
        if not len(vectors):
            continue
        chunks = np.fromfile(segment.directory / CHUNKS, "<i4").reshape(len(MessageChunk._fields), -1)
        texts = _read_chunk_texts(segment, chunks[:, : len(vectors)], 0)
        for start in range(0, len(vectors), _STORED_AT_ONCE):
            rows = vectors[start : start + _STORED_AT_ONCE]
            cached.store(list(islice(texts, len(rows))), "passage", rows.astype(np.float32))


def _is_complete(directory: Path) -> bool:
    if not (directory / CHUNKS).exists() or (directory / PLAN).exists():
        return False
    return (directory / CENTER).exists() or (directory / CHUNKS).stat().st_size == 0


def _split_messages(segment: IndexSegment, budget: int, count: CountTokens) -> NDArray[np.int32]:
    """Return the chunks of all messages of a segment: [5, chunks]."""
    rows = [
        each
        for (number,) in segment.execute("SELECT message FROM messages ORDER BY message")
        for each in _split_message(number, segment.read_text(number), budget, count)
    ]
    return np.ascontiguousarray(np.array(rows, "<i4").reshape(-1, len(MessageChunk._fields)).T)


def _split_message(number: int, text: StoredText, budget: int, count: CountTokens) -> list[MessageChunk]:
    """Return the chunks of a message. One without a body has its subject as the only chunk of it."""
    found: list[MessageChunk] = []
    for part, (context, content) in enumerate(list_parts(text)):
        split = split_text(content, context, budget, count)
        length = len(split.context)
        found += [MessageChunk(number, part, length, each.start, each.stop) for each in split.chunks]
        if not part and not found and length:
            found.append(MessageChunk(number, part, length, 0, 0))
        if len(found) >= MAX_CHUNKS:
            break
    return found[:MAX_CHUNKS]


def _read_chunk_texts(segment: IndexSegment, chunks: NDArray[np.int32], first: int) -> Iterator[str]:
    """Yield the texts to embed of the chunks of a segment [5, chunks], from one on."""
    text: StoredText | None = None
    message = -1
    for row in chunks[:, first:].T.tolist():
        chunk = MessageChunk(*row)
        if text is None or chunk.message != message:
            text, message = segment.read_text(chunk.message), chunk.message
        yield add_context(*cut_chunk(text, chunk))
