"""Dense retrieval: a float16 vector for each chunk, and one sign bit per dimension.

A search first compares sign bits, which is fast, and then the vectors of the chunks with the nearest bits. Bits are
signs relative to the collection's mean: models such as E5 place all texts close together, so plain signs would hardly
differ.
"""

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.storage import write_atomically
from gumshoe.documents.schema import CENTER, SIGNS, VECTORS
from gumshoe.embeddings.embedder import Embedder, Vectors

PLAN = "vectors.plan"
"""File beside unfinished vectors: what they were computed from, and their dimensions."""
MIN_COMPARED = 1000
"""Number of chunks whose vectors are compared, in collections of up to 400 times as many chunks."""
_SHARE = 400  # in larger collections, 1/400 of the chunks are compared
_WINDOW = 1024  # chunks per batch on disk; a killed build resumes after the last complete batch
_ROWS = 1 << 16
_WORD = 64


def top_k(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the positions of the k highest scores, highest first. Of equal scores, the first wins."""
    places = np.arange(len(scores))
    if len(scores) > k:
        last = -np.partition(-scores, k - 1)[k - 1]
        above, equal = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
        places = np.sort(np.concatenate([above, equal[: k - len(above)]]))
    return places[np.argsort(-scores[places], kind="stable")]


class DenseRetriever:
    """Find the chunks whose vectors are nearest to a query. Thread-safe."""

    def __init__(self, vectors: NDArray[np.float16], signs: NDArray[np.uint64], center: NDArray[np.float32]) -> None:
        """Use `vectors` [chunks, dimensions], `signs` [dimensions / 64, chunks] and `center` [dimensions]."""
        self._vectors, self._signs, self._center = vectors, signs, np.array(center)
        self._compared = max(MIN_COMPARED, len(vectors) // _SHARE)

    @property
    def dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def find_nearest(self, query: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return the chunks nearest to a query vector [dimensions], nearest first, among those allowed: [k]."""
        chunks = self._shortlist(query, max(self._compared, k), allowed)
        scores = self.score(query, chunks)
        return chunks[top_k(scores, k)]

    def score(self, query: Vectors, chunks: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the cosine similarity of a query vector with each chunk: [chunks]."""
        rows = self._vectors[chunks].astype(np.float32)
        # Not `@`: BLAS would start threads for little work, and they would slow each other down.
        cosines: Vectors = np.einsum("ij,j->i", rows, query)
        return cosines

    def _shortlist(self, query: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        chunks = np.arange(len(self._vectors)) if allowed is None else np.flatnonzero(allowed)
        if len(chunks) <= k:
            return chunks
        query_bits = sign_bits(query[None, :] - self._center)[:, 0]
        distances = np.zeros(len(self._vectors), np.uint16)
        for row, word in zip(self._signs, query_bits, strict=True):
            distances += np.bitwise_count(row ^ word)
        if allowed is not None:
            distances[~allowed] = np.iinfo(np.uint16).max
        return np.sort(np.argpartition(distances, k)[:k])


def write_vectors(
    partial: Path,
    plan: str,
    texts: Callable[[int], Iterator[str]],
    chunks: int,
    embedder: Embedder,
    advance: Callable[[int], object],
) -> tuple[dict[str, NDArray[Any]], int]:
    """Embed chunks, and write their vectors, sign bits and mean into `partial`.

    Return the array of each file, and the number of chunks that an earlier, killed run with the same plan had embedded.
    `texts` yields the texts from a chunk number on.

    Raises:
        EmbeddingError: if the chunks cannot be embedded.
    """
    existing = _embed(partial, plan, texts, chunks, embedder, advance)
    vectors = np.memmap(partial / VECTORS, np.float16, "r").reshape(chunks, -1)
    center = sum(
        vectors[start : start + _ROWS].astype(np.float64).sum(axis=0) for start in range(0, chunks, _ROWS)
    ) / np.float64(chunks)
    center = np.asarray(center, np.float32)
    signs = np.concatenate(
        [sign_bits(vectors[start : start + _ROWS].astype(np.float32) - center) for start in range(0, chunks, _ROWS)],
        axis=1,
    )
    signs.tofile(partial / SIGNS)
    center.tofile(partial / CENTER)
    return {VECTORS: vectors, SIGNS: signs, CENTER: center}, existing


def _embed(
    partial: Path,
    plan: str,
    texts: Callable[[int], Iterator[str]],
    chunks: int,
    embedder: Embedder,
    advance: Callable[[int], object],
) -> int:
    """Append the missing vectors to their file, one window at a time, and return how many existed before.

    The windows do not depend on interruptions, so the vectors are always identical to the bit.
    """
    existing = _count_complete_windows(partial, plan, chunks)
    advance(existing)
    waiting = texts(existing)
    while window := list(islice(waiting, _WINDOW)):
        rows = embedder.embed(window, "passage").astype(np.float16)
        if not (partial / PLAN).exists():
            write_atomically(partial / PLAN, BytesIO(f"{plan} {rows.shape[1]}".encode()))
        with (partial / VECTORS).open("ab") as file:
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        advance(len(window))
    return existing


def _count_complete_windows(partial: Path, plan: str, chunks: int) -> int:
    """Return the number of usable vectors of the same plan.

    Truncate an unfinished window, and delete vectors of another plan.
    """
    vectors, note = partial / VECTORS, partial / PLAN
    saved_plan, _, dimensions = note.read_text().partition(" ") if note.exists() else ("", "", "")
    if saved_plan != plan or not vectors.exists():
        vectors.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        return 0
    width = int(dimensions) * np.dtype(np.float16).itemsize
    stored = vectors.stat().st_size // width
    existing = chunks if stored >= chunks else stored // _WINDOW * _WINDOW
    os.truncate(vectors, existing * width)
    return existing


def sign_bits(vectors: Vectors) -> NDArray[np.uint64]:
    """Return one bit per dimension, set if the number is positive: [dimensions / 64, vectors]."""
    bits = np.packbits(vectors > 0, axis=1)
    room = -bits.shape[1] % (_WORD // 8)
    padded = np.pad(bits, ((0, 0), (0, room)))
    return np.ascontiguousarray(np.ascontiguousarray(padded).view("<u8").T)
