"""Search one inbox by meaning: the vectors of its messages beside their words."""

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.embeddings.chunking import add_context
from gumshoe.embeddings.embedder import Embedder, QueryEmbedder, Vectors, open_embedder
from gumshoe.embeddings.fusion import Numbers, RetrieverScores, find_ranks, fuse
from gumshoe.embeddings.search_options import NO_EMBEDDING, Fusion
from gumshoe.errors import UsageError
from gumshoe.mail.inbox_view import Query, ScoredMessages
from gumshoe.mail.message_vectors import MessageChunk, MessageVectors, cut_chunk
from gumshoe.mail.segment import IndexSegments

_LISTED = 200  # messages that each retriever lists, at most
_CHUNKS_PER_MESSAGE = 4  # chunks that dense retrieval compares per listed message, at least


@dataclass(frozen=True, slots=True)
class MeaningQuery:
    """The arguments of a search by meaning, checked."""

    inbox: str
    text: str
    query: Query
    """The words of the text, and the filters."""
    limit: int
    snippet_words: int
    dense_weight: float
    fusion: Fusion
    until: int | None
    """Only messages sent before this time, in seconds since 1970, are visible."""


class RankedMessage(NamedTuple):
    """A message that a search by meaning found."""

    message: int
    dense_rank: int | None
    lexical_rank: int | None
    chunk: MessageChunk | None
    """The chunk that is nearest to the query. None without vectors."""


class MeaningSearch:
    """Rank messages by their vectors and their words. Thread-safe.

    The embedding model is loaded by the first search that needs it. `embedder` replaces the model with the name
    `embedding`.

    Raises on opening:
        GumshoeError: if the vectors are damaged.
    """

    def __init__(self, segments: IndexSegments, embedding: str, embedder: Embedder | None = None) -> None:
        self._segments, self._embedding, self._embedder = segments, embedding, embedder
        self._queries: QueryEmbedder | None = None
        self._opening = threading.Lock()
        self._vectors = None if embedding == NO_EMBEDDING else MessageVectors(segments)

    @property
    def vectors(self) -> int:
        """Number of vectors. 0 means that only words are compared."""
        return len(self._vectors or ())

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector. 0 without vectors."""
        return self._vectors.dimensions if self._vectors else 0

    def embed(self, query: str, inbox: str) -> Vectors:
        """Return the vector of a query of an inbox: [dimensions].

        Raises:
            UsageError: if the model does not exist, or is not the one that the index was built with.
            EmbeddingError: if the query cannot be embedded.
        """
        with self._opening:
            if self._queries is None:
                embedder = self._embedder or open_embedder(self._embedding)
                self.check_same_model(embedder)
                self._queries = QueryEmbedder(embedder)
        return self._queries.embed(query, inbox)

    def check_same_model(self, embedder: Embedder) -> None:
        """Check that a model is the one that the vectors are from: otherwise results would be meaningless.

        Raises:
            UsageError: if it is not.
            EmbeddingError: if it cannot be used.
        """
        first = self._vectors.find_first() if self._vectors else None
        if self._vectors is None or first is None:
            return
        with explain_damage(self._segments.segments[0].directory.parent, content=True):
            text = add_context(*cut_chunk(self._segments.read_text(first.message), first))
        (vector,) = embedder.embed([text], "passage")
        if not self._vectors.is_from_model(vector):
            raise UsageError(
                "mail.other-embedding-model",
                f"{embedder.name} is not the model that built this index ({self._embedding}); restore that model under "
                "its name, or build the index again with --replace",
            )

    def rank(
        self, found: ScoredMessages, vector: Vectors | None, weight: float, limit: int, fusion: Fusion
    ) -> list[RankedMessage]:
        """Return the best of some messages, at most `limit`, with their BM25 scores, for the vector of a query.

        `weight` is the weight of the dense score, from 0 to 1; the lexical score gets the rest. A retriever with weight
        0 is not used. Without `vector`, only words are.
        """
        having = np.flatnonzero(found.scores) if weight < 1 or vector is None else np.zeros(0, np.int64)
        by_words = _sort(found, having, found.scores[having])[:_LISTED]
        if self._vectors is None or vector is None:
            chosen = found.messages[by_words[:limit]].tolist()
            return [RankedMessage(message, None, rank, None) for rank, message in enumerate(chosen, 1)]
        near, best = self._vectors.find_nearest(vector, found.messages, _LISTED * _CHUNKS_PER_MESSAGE)
        near = _sort(found, near, best)[:_LISTED]
        candidates = np.unique(np.concatenate([near, by_words]))
        scores, chunks = self._vectors.score(vector, found.messages[candidates])
        near = _sort(found, near, scores[np.searchsorted(candidates, near)])  # by all of their chunks
        dense = RetrieverScores(weight, scores, find_ranks(candidates, near))
        lexical = RetrieverScores(1 - weight, found.scores[candidates], find_ranks(candidates, by_words))
        fused, by_score = fuse([dense, lexical], fusion), fuse([dense, lexical], "score")
        order = np.lexsort((found.messages[candidates], -found.times[candidates], -by_score, -fused))[:limit]
        return [
            RankedMessage(
                int(found.messages[candidates[place]]),
                int(dense.ranks[place]) or None,
                int(lexical.ranks[place]) or None,
                chunks[place],
            )
            for place in order.tolist()
        ]


def _sort(found: ScoredMessages, places: Numbers, scores: NDArray[Any]) -> Numbers:
    """Return the places of some messages, best first. Of equal scores, the newest comes first."""
    ordered: Numbers = places[np.lexsort((found.messages[places], -found.times[places], -scores))]
    return ordered
