"""Chunks ranked by meaning and by words, and both rankings in one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gumshoe.documents.lexical import Postings
from gumshoe.documents.schema import CENTER, OF_CHUNKS, OF_DOCUMENTS, OWNERS, SIGNS, VECTORS, IndexFiles
from gumshoe.documents.vectors import DenseSide, best
from gumshoe.embeddings.embedder import Vectors

Fusion = Literal["score", "rank"]
"""By the scores of both sides, or by their ranks alone."""
DENSE_WEIGHT = 0.8
RANK_OFFSET = 60
"""Of reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009."""
WHOLE = 3
"""How often words count in the document as a whole, where they count once in its chunk."""
_LISTED = 200  # documents that each side lists, at the least
_CHUNKS_EACH = 4  # of a document that is listed by meaning, on average and at most

Numbers = NDArray[np.int64]
Allowed = NDArray[np.bool_] | None
"""[documents]: whether each may be found; None where all may."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one side says of the candidates."""

    weight: float
    scores: NDArray[np.float32]
    """[candidates]: of all of them, those too that the other side listed."""
    ranks: Numbers
    """[candidates]: from 1; 0 where this side did not list it."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document by its best chunk, its score, and the document's places on both sides, from 1."""

    chunk: int
    score: float
    dense_rank: int | None
    lexical_rank: int | None


class Ranker:
    """Ranks the documents of an index. It may be used from several threads."""

    def __init__(self, files: IndexFiles) -> None:
        self._owners: NDArray[np.int32] = files.array(OWNERS)
        self._firsts = np.flatnonzero(np.diff(self._owners, prepend=-1))
        """Of each document that has chunks, the first; a document's chunks stand together."""
        self._documents: int = files.facts.counts["documents"]
        self._of_documents = Postings(*map(files.array, OF_DOCUMENTS))
        self._of_chunks = Postings(*map(files.array, OF_CHUNKS))
        has_vectors = VECTORS in files.facts.files
        self.dense = DenseSide(*map(files.array, (VECTORS, SIGNS, CENTER))) if has_vectors else None

    def rank(
        self,
        vector: Vectors | None,
        words: Iterable[int],
        weight: float,
        limit: int,
        fusion: Fusion = "score",
        allowed: Allowed = None,
    ) -> list[Ranked]:
        """The best documents, at most `limit`, for the vector [dimensions] of a query and the numbers of its words.

        `weight` is that of the vector, the rest that of the words; a side without weight is not asked.
        """
        most = max(_LISTED, 2 * limit)
        listings: dict[str, _Listing] = {}
        if weight > 0 and vector is not None:
            listings["dense"] = self._by_meaning(vector, weight, most, allowed)
        if weight < 1:
            listings["lexical"] = self._by_words(list(words), 1 - weight, most, allowed)
        candidates = np.unique(np.concatenate([each.listed for each in listings.values()]))
        sides = {name: each.side(candidates, self._owners) for name, each in listings.items()}
        fused = fuse(list(sides.values()), fusion)
        by_score = fused if fusion == "score" else fuse(list(sides.values()), "score")
        order = np.lexsort((candidates, -by_score, -fused))
        # A document stands where its best chunk does.
        _, firsts = np.unique(self._owners[candidates[order]], return_index=True)
        chosen = order[np.sort(firsts)[:limit]].tolist()
        ranks = {name: side.ranks.tolist() for name, side in sides.items()}
        return [
            Ranked(
                int(candidates[place]),
                float(fused[place]),
                (ranks["dense"][place] or None) if "dense" in ranks else None,
                (ranks["lexical"][place] or None) if "lexical" in ranks else None,
            )
            for place in chosen
        ]

    def _by_meaning(self, vector: Vectors, weight: float, most: int, allowed: Allowed) -> "_Listing":
        """
        Raises:
            ValueError: there are no vectors.
        """
        dense = self.dense
        if dense is None:
            raise ValueError("an index of words alone cannot be asked with a vector")
        chunks = dense.nearest(vector, most * _CHUNKS_EACH, None if allowed is None else allowed[self._owners])
        _, firsts = np.unique(self._owners[chunks], return_index=True)
        return _Listing(weight, chunks[np.sort(firsts)[:most]], lambda among: dense.scores(vector, among))

    def _by_words(self, words: list[int], weight: float, most: int, allowed: Allowed) -> "_Listing":
        """BM25 of the whole document, `WHOLE` times, and of its best chunk: a word of a query may stand far from the
        others, and a long document has chunks about many things.
        """
        scores = self._of_chunks.score(words, len(self._owners))
        scores += WHOLE * self._of_documents.score(words, self._documents)[self._owners]
        highest = np.maximum.reduceat(scores, self._firsts)
        found = np.flatnonzero(highest if allowed is None else highest * allowed[self._owners[self._firsts]])
        ends = np.append(self._firsts[1:], len(scores))
        listed = [
            first + int(scores[first:end].argmax())
            for place in found[best(highest[found], most)].tolist()
            for first, end in [(int(self._firsts[place]), int(ends[place]))]
        ]
        return _Listing(weight, np.array(listed, np.int64), lambda among: scores[among])


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one side found."""

    weight: float
    listed: Numbers
    """Chunks, one of each document, the best first."""
    score: Callable[[Numbers], NDArray[np.float32]]
    """Scores of chunks, listed or not."""

    def side(self, candidates: Numbers, owners: NDArray[np.int32]) -> Side:
        return Side(self.weight, self.score(candidates), ranks_of(owners[candidates], owners[self.listed]))


def ranks_of(documents: NDArray[Any], listed: NDArray[Any]) -> Numbers:
    """[documents]: the place of each in a list of different ones, from 1; 0 where it is not in it."""
    if not len(listed):
        return np.zeros(len(documents), np.int64)
    order = np.argsort(listed)
    places = np.searchsorted(listed, documents, sorter=order).clip(max=len(listed) - 1)
    return np.where(listed[order[places]] == documents, order[places] + 1, 0)


def fuse(sides: list[Side], fusion: Fusion) -> NDArray[np.float64]:
    """[candidates]: the sum of what the sides say, by their weights.

    By score, each side's scores are stretched to reach from 0 to 1 over the candidates (Bruch et al., "An Analysis of
    Fusion Functions for Hybrid Retrieval", TOIS 2023); by rank, each counts
    1 / (60 + rank).
    """
    if fusion == "rank":
        parts = [np.where(side.ranks > 0, 1.0 / (RANK_OFFSET + side.ranks), 0.0) for side in sides]
    else:
        parts = [_stretched(side.scores.astype(np.float64)) for side in sides]
    fused: NDArray[np.float64] = np.einsum("s,sc->c", np.array([side.weight for side in sides]), np.stack(parts))
    return fused


def _stretched(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    lowest, highest = scores.min(initial=np.inf), scores.max(initial=-np.inf)
    # All the same are those of a single candidate, or of a query without a known word.
    even = np.full(len(scores), float(highest > 0))
    return np.asarray((scores - lowest) / (highest - lowest)) if highest > lowest else even
