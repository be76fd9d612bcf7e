"""Rank chunks by dense and by lexical scores, and fuse both rankings."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gumshoe.documents.lexical import Bm25, Postings
from gumshoe.documents.schema import CHUNK_POSTINGS, DOCUMENT_POSTINGS, OWNERS, IndexFiles
from gumshoe.embeddings.embedder import Vectors
from gumshoe.embeddings.fusion import Numbers, RetrieverScores, find_ranks, fuse
from gumshoe.embeddings.search_options import Fusion
from gumshoe.embeddings.vectors import CENTER, SIGNS, VECTORS, DenseRetriever, top_k

DOCUMENT_WEIGHT = 3
"""Weight of the BM25 score of the whole document, relative to that of its best chunk."""
_MIN_LISTED = 200  # minimum number of documents that each retriever lists
_CHUNKS_PER_DOCUMENT = 4  # chunks that dense retrieval fetches per listed document

Allowed = NDArray[np.bool_] | None
"""[documents of the collections]: True for documents that may be found. None means all."""


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document with its best chunk, its fused score, and its rank in each retriever, from 1."""

    chunk: int
    score: float
    dense_rank: int | None
    lexical_rank: int | None


class IndexArrays:
    """The arrays of an index, mapped into memory, and the documents and chunks of each of its collections."""

    def __init__(self, files: IndexFiles) -> None:
        self.owners: NDArray[np.int32] = files.array(OWNERS)
        self.of_documents = Postings(*map(files.array, DOCUMENT_POSTINGS))
        self.of_chunks = Postings(*map(files.array, CHUNK_POSTINGS))
        has_vectors = VECTORS in files.facts.files
        self.dense = DenseRetriever(*map(files.array, (VECTORS, SIGNS, CENTER))) if has_vectors else None
        counts = files.facts.collections
        self.documents = _to_ranges([each.documents for each in counts])
        self.chunks = _to_ranges([each.chunks for each in counts])


def _to_ranges(counts: Iterable[int]) -> list[range]:
    return [range(first, last) for first, last in itertools.pairwise(itertools.accumulate(counts, initial=0))]


class Ranker:
    """Rank the documents of some collections, as if the index contained no others. Thread-safe.

    Documents and chunks of these collections are numbered anew, from 0, in the order of the collections. No number,
    statistic or vector of another collection is read.
    """

    def __init__(self, arrays: IndexArrays, collections: Sequence[int]) -> None:
        chunks = [arrays.chunks[each] for each in collections]
        documents = [arrays.documents[each] for each in collections]
        self._chunks = np.concatenate([np.zeros(0, np.int64), *(np.arange(each.start, each.stop) for each in chunks)])
        """[chunks]: number of each chunk in the index."""
        self._owners = np.zeros(len(self._chunks), np.int32)
        """[chunks]: document of each chunk, ascending."""
        chunk, document = 0, 0
        for part, owned in zip(chunks, documents, strict=True):
            self._owners[chunk : chunk + len(part)] = arrays.owners[part.start : part.stop] - owned.start + document
            chunk, document = chunk + len(part), document + len(owned)
        self._firsts = np.flatnonzero(np.diff(self._owners, prepend=-1))
        """First chunk of each document that has chunks. A document's chunks are consecutive."""
        self._of_documents = Bm25(arrays.of_documents, documents)
        self._of_chunks = Bm25(arrays.of_chunks, chunks)
        self._dense = arrays.dense

    def rank(
        self,
        vector: Vectors | None,
        words: Sequence[Sequence[int | None]],
        weight: float,
        limit: int,
        fusion: Fusion = "score",
        allowed: Allowed = None,
        word_weights: Sequence[float] | None = None,
    ) -> list[RankedDocument]:
        """Return the best documents, at most `limit`, for the vector [dimensions] and the words of a query.

        A word is given as its number in each collection, or None for those that do not contain it. `word_weights`
        [words] are 1 by default. `weight` is the
        weight of the dense score, from 0 to 1; the lexical score gets the rest. A retriever with weight 0 is not used.
        """
        depth = max(_MIN_LISTED, 2 * limit)
        listings: dict[str, _RetrieverResult] = {}
        if weight > 0 and vector is not None:
            listings["dense"] = self._search_dense(vector, weight, depth, allowed)
        if weight < 1:
            listings["lexical"] = self._search_lexical(words, word_weights, 1 - weight, depth, allowed)
        candidates = np.unique(np.concatenate([each.listed for each in listings.values()]))
        sides = {name: each.align(candidates, self._owners) for name, each in listings.items()}
        fused = fuse(list(sides.values()), fusion)
        by_score = fused if fusion == "score" else fuse(list(sides.values()), "score")
        order = np.lexsort((candidates, -by_score, -fused))
        # A document has the rank of its best chunk.
        _, firsts = np.unique(self._owners[candidates[order]], return_index=True)
        chosen = order[np.sort(firsts)[:limit]].tolist()
        ranks = {name: side.ranks.tolist() for name, side in sides.items()}
        return [
            RankedDocument(
                int(self._chunks[candidates[place]]),
                float(fused[place]),
                (ranks["dense"][place] or None) if "dense" in ranks else None,
                (ranks["lexical"][place] or None) if "lexical" in ranks else None,
            )
            for place in chosen
        ]

    def _search_dense(self, vector: Vectors, weight: float, depth: int, allowed: Allowed) -> "_RetrieverResult":
        """List the nearest chunks, one per document.

        Raises:
            ValueError: if the index has no vectors.
        """
        dense = self._dense
        if dense is None:
            raise ValueError("an index without vectors cannot be searched with a vector")
        among = self._chunks if allowed is None else self._chunks[allowed[self._owners]]
        nearest = dense.find_nearest(vector, depth * _CHUNKS_PER_DOCUMENT, among)
        chunks = np.searchsorted(self._chunks, nearest)
        _, firsts = np.unique(self._owners[chunks], return_index=True)
        return _RetrieverResult(
            weight, chunks[np.sort(firsts)[:depth]], lambda found: dense.score(vector, self._chunks[found])
        )

    def _search_lexical(
        self,
        words: Sequence[Sequence[int | None]],
        word_weights: Sequence[float] | None,
        weight: float,
        depth: int,
        allowed: Allowed,
    ) -> "_RetrieverResult":
        """List documents by BM25 of the whole document, times `DOCUMENT_WEIGHT`, plus BM25 of the best chunk.

        The words of a query may be far apart in a document, and a long document has chunks about many subjects.
        """
        scores = self._of_chunks.score(words, word_weights)
        scores += DOCUMENT_WEIGHT * self._of_documents.score(words, word_weights)[self._owners]
        if not len(scores):
            return _RetrieverResult(weight, np.zeros(0, np.int64), lambda among: scores[among])
        highest = np.maximum.reduceat(scores, self._firsts)
        found = np.flatnonzero(highest if allowed is None else highest * allowed[self._owners[self._firsts]])
        ends = np.append(self._firsts[1:], len(scores))
        listed = [
            first + int(scores[first:end].argmax())
            for place in found[top_k(highest[found], depth)].tolist()
            for first, end in [(int(self._firsts[place]), int(ends[place]))]
        ]
        return _RetrieverResult(weight, np.array(listed, np.int64), lambda among: scores[among])


@dataclass(frozen=True, slots=True)
class _RetrieverResult:
    """Chunks that one retriever listed."""

    weight: float
    listed: Numbers
    """Chunks, one per document, best first."""
    score: Callable[[Numbers], NDArray[np.float32]]
    """Return the scores of chunks, listed or not."""

    def align(self, candidates: Numbers, owners: NDArray[np.int32]) -> RetrieverScores:
        return RetrieverScores(self.weight, self.score(candidates), find_ranks(owners[candidates], owners[self.listed]))
