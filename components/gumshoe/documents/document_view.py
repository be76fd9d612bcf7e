"""Search and read the documents of some collections of an index, as if there were no others."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.sqlite import ReadOnlyDatabase, explain_damage
from gumshoe.documents.document import Document
from gumshoe.documents.document_snippets import MIN_SNIPPET_CHARACTERS, SNIPPET_CHARACTERS, make_snippet
from gumshoe.documents.lexical import Analyzer
from gumshoe.documents.ranking import IndexArrays, RankedDocument, Ranker
from gumshoe.documents.schema import CHUNK
from gumshoe.embeddings.chunking import add_context
from gumshoe.embeddings.embedder import Vectors
from gumshoe.embeddings.reranker import Reranker
from gumshoe.embeddings.search_options import DENSE_WEIGHT, Fusion
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.message import clean, clean_line

MAX_RESULTS = 100
"""Maximum number of search results."""
_MAX_QUERY = 2_000  # characters; the rest is ignored
_RESULT_CACHE_SIZE = 4_000  # searches whose results are kept in memory
OMITTED = "[…]"
"""Stands for the parts of a document that are left out."""
_QUALIFIED = ":"  # between collection and id, if the collections of a view use an id twice

_ALL = "SELECT document_id, title, text, url, metadata FROM documents"
_HEADS = "SELECT document_id, title, '', url, metadata FROM documents"
_NUMBERS = "SELECT document FROM documents"
_WHERE_ID = """
    WHERE document IN (
        SELECT document FROM documents WHERE collection = :collection AND document_id = :id
        UNION SELECT document FROM other_ids WHERE collection = :collection AND document_id = :id
    )
"""
Filters = tuple[tuple[str, str], ...]
"""Names and values of metadata."""


class DocumentNotFoundError(GumshoeError):
    """There is no document with that id in the collections that may be read."""


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """One search result: a document, with its best chunk."""

    document_id: str
    chunk_id: str
    """`document#n`, n from 0."""
    title: str
    snippet: str
    """The part of the chunk with the query's words, or its beginning, on one line (see `make_snippet`)."""
    score: float
    """Fused score of both retrievers."""
    dense_rank: int | None
    """Rank by dense retrieval, from 1. None if it did not list the document."""
    lexical_rank: int | None
    """Rank by lexical retrieval, from 1. None if it did not list the document."""
    rerank_score: float | None = None
    """Score of the reranker, which decides the order. None if the result was not reranked."""


@dataclass(frozen=True, slots=True)
class ViewParts:
    """The parts of an index that its views share."""

    path: Path
    database: ReadOnlyDatabase
    arrays: IndexArrays
    analyzer: Analyzer
    names: tuple[str, ...]
    """Names of the collections, in the order of their numbers."""
    embed: Callable[[str, str], Vectors]
    """Return the vector [dimensions] of a query (first argument) for an asker (second), and cache it for the asker."""
    find_word: Callable[[int, str], int | None]
    """Return the number of a word in a collection."""

    def explain_damage(self) -> AbstractContextManager[None]:
        return explain_damage(self.path)


class DocumentView:
    """Search and read the documents of some collections. Thread-safe.

    Invariant: results, their order, scores and errors, and the steps to compute them, are the same as if the index
    contained no other collection. A document of another collection is answered like one that does not exist.

    Ids are unique within a collection. If several collections of the view use an id, it means the document of the
    first one by name; those of the others are listed as `COLLECTION:ID`.
    """

    def __init__(self, parts: ViewParts, collections: Sequence[int]) -> None:
        self._parts, self._collections = parts, collections
        self._asker = ",".join(map(str, collections))
        self._ranker = Ranker(parts.arrays, collections)
        self._documents = [parts.arrays.documents[each] for each in collections]
        # The index never changes, and episodes of one group often send the same queries.
        self._hits = lru_cache(_RESULT_CACHE_SIZE)(self._find_hits)
        self._allowed = lru_cache(8)(self._find_allowed)

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        snippet_characters: int = SNIPPET_CHARACTERS,
        filters: Mapping[str, str] | None = None,
        dense_weight: float = DENSE_WEIGHT,
        fusion: Fusion = "score",
        reranker: Reranker | None = None,
    ) -> list[DocumentHit]:
        """Return the best documents for a query, best first. Any text is a query; an empty one finds nothing.

        `filters` is metadata that a document must have; one of several values is enough, and case is ignored.
        `dense_weight` is from 0 (only lexical) to 1 (only dense); an index without vectors always uses lexical
        retrieval. A snippet has at most `snippet_characters` characters. `fusion` is "score" or "rank" (see `fuse`).
        `reranker` orders its number of candidates anew; it gets only passages that may be read.

        Raises:
            UsageError: if an argument is invalid, no document has the metadata to filter by, or the embedding model
                is missing or not the one that the index was built with.
            EmbeddingError: if the query cannot be embedded.
            RerankError: if the results cannot be reranked.
            GumshoeError: if the index is damaged.
        """
        if not isinstance(query, str):
            raise _invalid_argument(f"query must be a string, got {query!r}")
        if not isinstance(limit, int) or not 1 <= limit <= MAX_RESULTS:
            raise _invalid_argument(f"limit must be an integer from 1 to {MAX_RESULTS}, got {limit!r}")
        if not isinstance(snippet_characters, int) or snippet_characters < MIN_SNIPPET_CHARACTERS:
            raise _invalid_argument(
                f"snippet_characters must be an integer from {MIN_SNIPPET_CHARACTERS}, got {snippet_characters!r}"
            )
        if not 0 <= dense_weight <= 1:
            raise _invalid_argument(f"dense_weight must be a number from 0 to 1, got {dense_weight!r}")
        if fusion not in ("score", "rank"):
            raise _invalid_argument(f"fusion must be score or rank, got {fusion!r}")
        cleaned = clean_line(query[:_MAX_QUERY])
        wanted = tuple(
            sorted((str(name), clean_line(str(value)).casefold()) for name, value in (filters or {}).items())
        )
        weight = dense_weight if self._parts.arrays.dense is not None else 0.0
        if not cleaned:
            return []
        if reranker is None:
            return [*self._hits(cleaned, limit, snippet_characters, wanted, weight, fusion)]
        depth = min(max(limit, reranker.candidates), MAX_RESULTS)
        hits = self._hits(cleaned, depth, snippet_characters, wanted, weight, fusion)
        return self._rerank(cleaned, hits, reranker)[:limit]

    def _rerank(self, query: str, hits: Sequence[DocumentHit], reranker: Reranker) -> list[DocumentHit]:
        """Return hits with those that the reranker looks at in its order, and the others below them."""
        candidates = hits[: reranker.candidates]
        scores = reranker.score(query, [self._read_passage(hit) for hit in candidates])
        scored = [replace(hit, rerank_score=score) for hit, score in zip(candidates, scores, strict=True)]
        return [*sorted(scored, key=lambda hit: -(hit.rerank_score or 0.0)), *hits[len(candidates) :]]

    def _read_passage(self, hit: DocumentHit) -> str:
        """Return the text of a hit's chunk under its context line."""
        with self._parts.explain_damage():
            found = self._resolve_id(hit.document_id)
            position = int(hit.chunk_id.rpartition("#")[2])
            query = f"{CHUNK} WHERE chunks.document = ? AND position = ?"
            row = next(self._parts.database.execute(query, (found[1] if found else -1, position)), ("", "", 0, 0))
        context, text, start, stop = row
        return add_context(context, text[start:stop])

    def _find_hits(
        self, query: str, limit: int, snippet_characters: int, wanted: Filters, weight: float, fusion: Fusion
    ) -> tuple[DocumentHit, ...]:
        parts = self._parts
        with parts.explain_damage():
            words = parts.analyzer.analyze_query(query)
            numbers = [[parts.find_word(collection, word) for collection in self._collections] for word in words]
            vector = parts.embed(query, self._asker) if weight else None
            allowed = self._allowed(wanted) if wanted else None
            ranked = self._ranker.rank(vector, numbers, weight, limit, fusion, allowed, list(words.values()))
            return tuple(self._to_hit(each, frozenset(words), snippet_characters) for each in ranked)

    def _to_hit(self, ranked: RankedDocument, words: frozenset[str], snippet_characters: int) -> DocumentHit:
        row = self._parts.database.execute(
            "SELECT document, collection, document_id, position, title, substr(text, start + 1, stop - start) "
            "FROM chunks JOIN documents USING (document) WHERE chunk = ?",
            (ranked.chunk,),
        )
        document, collection, own_id, position, title, text = next(row)
        document_id = self._list_id(document, collection, own_id)
        snippet = make_snippet(text, words, self._parts.analyzer, snippet_characters)
        chunk_id = f"{document_id}#{position}"
        return DocumentHit(document_id, chunk_id, title, snippet, ranked.score, ranked.dense_rank, ranked.lexical_rank)

    def read(self, document_id: str, around: int | None = None, neighbours: int = 1) -> Document:
        """Return one document, by its id or by the id of a dropped duplicate.

        With `around`, the number of a chunk from 0 as in `DocumentHit.chunk_id`, its text is only that chunk with
        `neighbours` chunks before and after it. Where text is left out, there is `[…]`.

        Raises:
            DocumentNotFoundError: if there is no such document.
            UsageError: if the id is not a string, or the document has no such chunk.
            GumshoeError: if the index is damaged.
        """
        document = self._read_row(_ALL, document_id)
        if around is None:
            return document
        for name, value in (("around", around), ("neighbours", neighbours)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _invalid_argument(f"{name} must be an integer >= 0, got {value!r}")
        return replace(document, text=self._cut(document, around, neighbours))

    def _cut(self, document: Document, around: int, neighbours: int) -> str:
        """Return the text of a chunk of a document and of those beside it. Dropped duplicates have no rows."""
        with self._parts.explain_damage():
            found = self._resolve_id(document.document_id)
            query = "SELECT position, start, stop FROM chunks WHERE document = ? ORDER BY position"
            rows = list(self._parts.database.execute(query, (found[1] if found else -1,)))
        text = document.text
        last = rows[-1][0] + bool(text[rows[-1][2] :].strip())
        if around > last:
            raise UsageError(
                "documents.chunk-not-found",
                f"document {document.document_id!r} has chunks 0 to {last}, got {around}; use the number that a search "
                "shows behind #",
            )
        first, end = around - neighbours, around + neighbours
        start = max((stop for position, _, stop in rows if position < first), default=0)
        start = next((begin for position, begin, _ in rows if position == first), start)
        stop = min((begin for position, begin, _ in rows if position > end), default=len(text))
        stop = next((finish for position, _, finish in rows if position == end), stop)
        before, after = bool(text[:start].strip()), bool(text[stop:].strip())
        return f"{f'{OMITTED} ' * before}{text[start:stop].strip()}{f' {OMITTED}' * after}"

    def head(self, document_id: str) -> Document:
        """Return a document like `read`, without the text, which may be long.

        Raises:
            DocumentNotFoundError, UsageError, GumshoeError: as in `read`.
        """
        return self._read_row(_HEADS, document_id)

    def _read_row(self, fields: str, document_id: str) -> Document:
        if not isinstance(document_id, str):
            raise _invalid_argument(f"document_id must be a string, got {document_id!r}")
        wanted = clean(document_id).strip()
        with self._parts.explain_damage():
            found = self._resolve_id(wanted)
            if found is None:
                raise DocumentNotFoundError(
                    "documents.document-not-found",
                    f"no document {wanted!r} in this index; use an id that a search shows, without #n",
                )
            collection, number = found
            row = next(self._parts.database.execute(f"{fields} WHERE document = ?", (number,)))
            own_id, title, text, url, metadata = row
            listed = self._list_id(number, collection, own_id)
            return Document(listed, title, text, url, json.loads(metadata), self._parts.names[collection])

    def _resolve_id(self, wanted: str) -> tuple[int, int] | None:
        """Return the numbers of the collection and the document that an id means, or None.

        An id with the name of a collection comes first, so that every document can be named.
        """
        name, sign, own_id = wanted.partition(_QUALIFIED)
        named = [each for each in self._collections if sign and self._parts.names[each] == name]
        places = [*((each, own_id) for each in named), *((each, wanted) for each in self._collections)]
        for collection, each in places:
            rows = self._parts.database.execute(f"{_NUMBERS} {_WHERE_ID}", {"collection": collection, "id": each})
            found = next(rows, None)
            if found is not None:
                return collection, found[0]
        return None

    def _list_id(self, document: int, collection: int, own_id: str) -> str:
        """Return the id under which this view lists a document."""
        if len(self._collections) == 1 or self._resolve_id(own_id) == (collection, document):
            return own_id
        return f"{self._parts.names[collection]}{_QUALIFIED}{own_id}"

    def list_metadata(self) -> dict[str, int]:
        """Return the names of metadata, and how many documents have each."""
        found: dict[str, int] = {}
        query = "SELECT name, count(DISTINCT document) FROM metadata WHERE collection = ? GROUP BY name"
        with self._parts.explain_damage():
            for collection in self._collections:
                for name, count in self._parts.database.execute(query, (collection,)):
                    found[name] = found.get(name, 0) + count
        return dict(sorted(found.items()))

    def _find_allowed(self, wanted: Filters) -> NDArray[np.bool_]:
        """Return a mask of the documents that have all of the given metadata: [documents of the view]."""
        allowed = np.ones(sum(map(len, self._documents)), np.bool_)
        query = "SELECT document FROM metadata WHERE collection = ? AND name = ? AND value = ?"
        for name, value in wanted:
            having, offset = np.zeros_like(allowed), 0
            for collection, documents in zip(self._collections, self._documents, strict=True):
                rows = self._parts.database.execute(query, (collection, name, value))
                having[[document - documents.start + offset for (document,) in rows]] = True
                offset += len(documents)
            allowed &= having
            if not having.any() and name not in (known := self.list_metadata()):
                raise UsageError(
                    "documents.unknown-filter",
                    f"cannot filter by {name!r}: no document has this metadata; they have {', '.join(known) or 'none'}",
                )
        return allowed


def _invalid_argument(message: str) -> UsageError:
    return UsageError("documents.invalid-argument", message)
