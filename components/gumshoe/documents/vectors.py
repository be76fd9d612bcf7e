"""The dense side of an index: a vector for each chunk, kept as float16, and one bit of each of its numbers.

A search compares bits first, which is quick, and then the vectors of the chunks whose bits come nearest. The bits say
on which side of the collection's mean a vector lies: models such as E5 put all texts close together, where the plain
signs would hardly differ.
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
"""Beside vectors that are being made: what of, and how many numbers each has."""
COMPARED = 1000
"""Chunks whose vectors are compared, where the collection has not more than so many hundred times as many."""
_SHARE = 400  # of a larger collection, one in so many
_WINDOW = 1024  # chunks between two moments from which a build that was killed goes on
_ROWS = 1 << 16
_WORD = 64


def best(scores: NDArray[Any], most: int) -> NDArray[np.int64]:
    """The places of the highest scores, the highest first; of equal ones the first."""
    places = np.arange(len(scores))
    if len(scores) > most:
        last = -np.partition(-scores, most - 1)[most - 1]
        above, equal = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
        places = np.sort(np.concatenate([above, equal[: most - len(above)]]))
    return places[np.argsort(-scores[places], kind="stable")]


class DenseSide:
    """Finds the chunks whose vectors are nearest to one. It may be used from several threads."""

    def __init__(self, vectors: NDArray[np.float16], signs: NDArray[np.uint64], center: NDArray[np.float32]) -> None:
        """`vectors` is [chunks, dimensions], `signs` [dimensions / 64, chunks] and `center` [dimensions]."""
        self._vectors, self._signs, self._center = vectors, signs, np.array(center)
        self._compared = max(COMPARED, len(vectors) // _SHARE)

    @property
    def dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def nearest(self, query: Vectors, most: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The chunks nearest to a vector [dimensions], the nearest first; only those allowed, where that is said."""
        chunks = self._shortlist(query, max(self._compared, most), allowed)
        scores = self.scores(query, chunks)
        return chunks[best(scores, most)]

    def scores(self, query: Vectors, chunks: NDArray[np.int64]) -> NDArray[np.float32]:
        """[chunks]: the cosine of a vector with that of each chunk."""
        rows = self._vectors[chunks].astype(np.float32)
        # Not `@`: BLAS would start threads for so little, and they would be in each other's way.
        cosines: Vectors = np.einsum("ij,j->i", rows, query)
        return cosines

    def _shortlist(self, query: Vectors, most: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        chunks = np.arange(len(self._vectors)) if allowed is None else np.flatnonzero(allowed)
        if len(chunks) <= most:
            return chunks
        asked = signs_of(query[None, :] - self._center)[:, 0]
        differing = np.zeros(len(self._vectors), np.uint16)
        for row, word in zip(self._signs, asked, strict=True):
            differing += np.bitwise_count(row ^ word)
        if allowed is not None:
            differing[~allowed] = np.iinfo(np.uint16).max
        return np.sort(np.argpartition(differing, most)[:most])


def write_vectors(
    partial: Path,
    plan: str,
    texts: Callable[[int], Iterator[str]],
    chunks: int,
    embedder: Embedder,
    advance: Callable[[int], object],
) -> tuple[dict[str, NDArray[Any]], int]:
    """Embed chunks, and write their vectors, bits and mean into `partial`: each file's array, and how many chunks had
    been embedded before.

    `texts` gives the texts from a chunk on. What an earlier run with the same plan made, and then was killed, is kept.

    Raises:
        EmbeddingError: the chunks cannot be embedded.
    """
    kept = _embed(partial, plan, texts, chunks, embedder, advance)
    vectors = np.memmap(partial / VECTORS, np.float16, "r").reshape(chunks, -1)
    center = sum(
        vectors[start : start + _ROWS].astype(np.float64).sum(axis=0) for start in range(0, chunks, _ROWS)
    ) / np.float64(chunks)
    center = np.asarray(center, np.float32)
    signs = np.concatenate(
        [signs_of(vectors[start : start + _ROWS].astype(np.float32) - center) for start in range(0, chunks, _ROWS)],
        axis=1,
    )
    signs.tofile(partial / SIGNS)
    center.tofile(partial / CENTER)
    return {VECTORS: vectors, SIGNS: signs, CENTER: center}, kept


def _embed(
    partial: Path,
    plan: str,
    texts: Callable[[int], Iterator[str]],
    chunks: int,
    embedder: Embedder,
    advance: Callable[[int], object],
) -> int:
    """Append the vectors that are missing to their file, a window at a time: how many chunks had been there.

    The windows are the same however often a build is stopped, and with them the vectors, to the bit.
    """
    kept = _whole_windows(partial, plan, chunks)
    advance(kept)
    waiting = texts(kept)
    while window := list(islice(waiting, _WINDOW)):
        rows = embedder.embed(window, "passage").astype(np.float16)
        if not (partial / PLAN).exists():
            write_atomically(partial / PLAN, BytesIO(f"{plan} {rows.shape[1]}".encode()))
        with (partial / VECTORS).open("ab") as file:
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        advance(len(window))
    return kept


def _whole_windows(partial: Path, plan: str, chunks: int) -> int:
    """How many vectors of the same plan are there, without what an unfinished window left; others are removed."""
    vectors, note = partial / VECTORS, partial / PLAN
    made, _, numbers = note.read_text().partition(" ") if note.exists() else ("", "", "")
    if made != plan or not vectors.exists():
        vectors.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        return 0
    width = int(numbers) * np.dtype(np.float16).itemsize
    there = vectors.stat().st_size // width
    kept = chunks if there >= chunks else there // _WINDOW * _WINDOW
    os.truncate(vectors, kept * width)
    return kept


def signs_of(vectors: Vectors) -> NDArray[np.uint64]:
    """[dimensions / 64, vectors]: one bit for each number, set where it is above nothing."""
    bits = np.packbits(vectors > 0, axis=1)
    room = -bits.shape[1] % (_WORD // 8)
    padded = np.pad(bits, ((0, 0), (0, room)))
    return np.ascontiguousarray(np.ascontiguousarray(padded).view("<u8").T)
