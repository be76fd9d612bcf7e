"""Dense retrieval: a float16 vector for each chunk of text, and one sign bit per dimension.

A search first compares sign bits, which is fast, and then the vectors of the chunks with the nearest bits. Bits are
signs relative to a center: models such as E5 place all texts close together, so plain signs would hardly differ.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.storage import write_atomically
from gumshoe.embeddings.embedder import Embedder, Vectors

VECTORS, SIGNS, CENTER = "vectors.f2", "signs.u8", "center.f4"
"""Files of the arrays of `DenseRetriever`."""
PLAN = "vectors.plan"
"""File beside unfinished vectors: what they were computed from, and their dimensions."""
MIN_COMPARED = 1000
"""Number of chunks whose vectors are compared, among up to 400 times as many chunks."""
_SHARE = 400  # among more, 1/400 of the chunks are compared
_WINDOW = 1024  # chunks per batch on disk; a killed build resumes after the last complete batch
_ROWS = 1 << 16
_WORD = 64
_MIN_COSINE = 0.98  # between two vectors of one text, if computed by one model on two machines


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

    @property
    def dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def find_nearest(self, query: Vectors, k: int, among: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the chunks nearest to a query vector [dimensions], nearest first: [k].

        `among` is an ascending list of chunks. No other chunk is looked at. None means all.
        """
        chunks = np.arange(len(self._vectors)) if among is None else among
        compared = max(count_compared(len(chunks)), k)
        if len(chunks) > compared:
            distances = self.measure(query, among)
            chunks = chunks[np.sort(np.argpartition(distances, compared)[:compared])]
        scores = self.score(query, chunks)
        return chunks[top_k(scores, k)]

    def score(self, query: Vectors, chunks: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the cosine similarity of a query vector with each chunk: [chunks]."""
        rows = self._vectors[chunks].astype(np.float32)
        # Not `@`: BLAS would start threads for little work, and they would slow each other down.
        cosines: Vectors = np.einsum("ij,j->i", rows, query)
        return cosines

    def measure(self, query: Vectors, chunks: NDArray[np.int64] | None = None) -> NDArray[np.uint16]:
        """Return the number of sign bits in which a query vector differs from some chunks, or from all: [chunks]."""
        query_bits = sign_bits(query[None, :] - self._center)[:, 0]
        distances = np.zeros(len(self._vectors) if chunks is None else len(chunks), np.uint16)
        chosen = slice(None) if chunks is None else _to_slice(chunks)
        for row, word in zip(self._signs, query_bits, strict=True):
            distances += np.bitwise_count(row[chosen] ^ word)
        return distances

    def is_from_model(self, vector: Vectors, chunk: int) -> bool:
        """Return True if a vector [dimensions] can be the same model's of the same text as that of a chunk."""
        return len(vector) == self.dimensions and bool(self.score(vector, np.array([chunk]))[0] >= _MIN_COSINE)


def _to_slice(chunks: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Return ascending chunks as a slice if they have no gaps: a slice of an array is not copied."""
    if len(chunks) and chunks[-1] - chunks[0] + 1 == len(chunks):
        return slice(int(chunks[0]), int(chunks[-1]) + 1)
    return chunks


def count_compared(chunks: int) -> int:
    """Return how many of some chunks are compared by their vectors, after all were compared by their sign bits."""
    return max(MIN_COMPARED, chunks // _SHARE)


def write_vectors(
    partial: Path,
    plan: str,
    texts: Callable[[int], Iterator[str]],
    ends: Sequence[int],
    embedder: Embedder,
    advance: Callable[[int], object],
) -> tuple[NDArray[np.float16], int]:
    """Embed chunks, one window at a time, and append their vectors to the file `VECTORS` in `partial`.

    Return all vectors [chunks, dimensions], and the number of those that an earlier, killed run with the same plan had
    written. `texts` yields the texts from a chunk number on. The windows do not depend on interruptions, so the vectors
    are always identical to the bit. `ends` are the numbers of chunks after which a new window begins, so that the
    vectors before do not depend on the texts after; the last one is the number of all chunks.

    Raises:
        EmbeddingError: if the chunks cannot be embedded.
    """
    windows = _list_windows(ends)
    existing = _count_complete_windows(partial, plan, windows)
    advance(existing)
    waiting = texts(existing)
    for start, end in itertools.pairwise([0, *windows]):
        if start < existing:
            continue
        window = list(islice(waiting, end - start))
        rows = embedder.embed(window, "passage").astype(np.float16)
        if not (partial / PLAN).exists():
            write_atomically(partial / PLAN, BytesIO(f"{plan} {rows.shape[1]}".encode()))
        with (partial / VECTORS).open("ab") as file:
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        advance(len(window))
    return np.memmap(partial / VECTORS, np.float16, "r").reshape(ends[-1], -1), existing


def read_stored_vectors(directory: Path) -> NDArray[np.float16]:
    """Return the vectors in a directory, of an interrupted run as far as it came: [chunks, dimensions]."""
    vectors, note, center = directory / VECTORS, directory / PLAN, directory / CENTER
    if not vectors.exists() or not (note.exists() or center.exists()):
        return np.zeros((0, 0), np.float16)
    dimensions = int(note.read_text().split()[1]) if note.exists() else center.stat().st_size // np.float32().itemsize
    rows = vectors.stat().st_size // (dimensions * np.float16().itemsize)
    return np.fromfile(vectors, np.float16, rows * dimensions).reshape(rows, dimensions)


def write_signs(partial: Path, vectors: NDArray[np.float16], center: Vectors) -> NDArray[np.uint64]:
    """Write sign bits of vectors [chunks, dimensions] and their center into `partial`, and return the bits."""
    signs = np.concatenate(
        [
            sign_bits(vectors[start : start + _ROWS].astype(np.float32) - center)
            for start in range(0, len(vectors), _ROWS)
        ],
        axis=1,
    )
    signs.tofile(partial / SIGNS)
    center.tofile(partial / CENTER)
    return signs


def compute_center(vectors: NDArray[np.float16]) -> Vectors:
    """Return the mean of vectors [chunks, dimensions]."""
    sums = [vectors[start : start + _ROWS].astype(np.float64).sum(axis=0) for start in range(0, len(vectors), _ROWS)]
    return np.asarray(sum(sums) / np.float64(len(vectors)), np.float32)


def _list_windows(ends: Sequence[int]) -> list[int]:
    """Return the end of each window, given the numbers of chunks after which a new one begins."""
    windows: list[int] = []
    for start, end in itertools.pairwise([0, *ends]):
        windows += [*range(start + _WINDOW, end, _WINDOW), *[end] * (end > start)]
    return windows


def _count_complete_windows(partial: Path, plan: str, windows: Sequence[int]) -> int:
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
    existing = max((end for end in windows if end <= stored), default=0)
    os.truncate(vectors, existing * width)
    return existing


def sign_bits(vectors: Vectors) -> NDArray[np.uint64]:
    """Return one bit per dimension, set if the number is positive: [dimensions / 64, vectors]."""
    bits = np.packbits(vectors > 0, axis=1)
    room = -bits.shape[1] % (_WORD // 8)
    padded = np.pad(bits, ((0, 0), (0, room)))
    return np.ascontiguousarray(np.ascontiguousarray(padded).view("<u8").T)
