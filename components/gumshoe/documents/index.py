"""Search a collection of documents by meaning and by words, and read one document."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.documents.document import Document
from gumshoe.documents.lexical import Analyzer
from gumshoe.documents.queries import QueryVectors
from gumshoe.documents.ranking import DENSE_WEIGHT, Fusion, Ranked, Ranker
from gumshoe.documents.schema import DATABASE, chunk_texts, damage_explained, open_files
from gumshoe.documents.snippet import make_snippet
from gumshoe.embeddings.embedder import Embedder, open_embedder
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.message import clean, clean_line

__all__ = ["DocumentHit", "DocumentIndex", "DocumentNotFoundError"]

MOST = 100
"""Results of a search, at most."""
_LONGEST_QUERY = 2_000  # characters that count
_RESULTS = 4_000  # searches whose results are kept in memory
_CACHE_KIB = 2_000  # a connection, one a thread; the operating system caches the file for all
_ALIKE = 0.98  # cosine of a text's vector with itself, by one model on two machines

_ALL = "SELECT document_id, title, text, url, metadata FROM documents"
_HEADS = "SELECT document_id, title, '', url, metadata FROM documents"
_OF_THAT_ID = """
    WHERE document IN (
        SELECT document FROM documents WHERE document_id = :id
        UNION SELECT document FROM other_ids WHERE document_id = :id
    )
"""


class DocumentNotFoundError(GumshoeError):
    """The index holds no document of that id."""


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """One document that a search found, by the chunk of it that fits best."""

    document_id: str
    chunk_id: str
    """`document#n`, n from 0."""
    title: str
    snippet: str
    """The part of the chunk where the query's words are, or its beginning, on one line; as `make_snippet`."""
    score: float
    """Of both sides, fused."""
    dense_rank: int | None
    """The document's place by meaning, from 1; None where that side did not list it."""
    lexical_rank: int | None
    """The document's place by words, from 1; None where that side did not list it."""


class DocumentIndex:
    """An index, opened read-only. One may be used by many threads.

    Every byte is checked when it is opened. The embedding model is loaded with the first search that needs it;
    `embedder` is used in place of the one that the index names.

    Raises on opening:
        UsageError: the directory has no index.
        GumshoeError: the index is damaged, or another version of Gumshoe built it.
        UnavailableError: the disk does not answer.
    """

    def __init__(self, directory: Path | str, embedder: Embedder | None = None) -> None:
        self._files = open_files(Path(directory))
        self.path = self._files.folder / DATABASE
        self._options: dict[str, Any] = self._files.facts.options
        self._ranker = Ranker(self._files)
        self._analyzer = Analyzer(self._options["language"])
        self._embedder = embedder
        self._queries: QueryVectors | None = None
        self._opening = threading.Lock()
        self._local = threading.local()
        # The index never changes, and the episodes of a group, or the turns of one, search for the same.
        self._hits = lru_cache(_RESULTS)(self._find_hits)
        self._allowed = lru_cache(8)(self._find_allowed)
        self._word = lru_cache(1 << 16)(self._find_word)

    @property
    def has_vectors(self) -> bool:
        """Whether it can be searched by meaning."""
        return self._ranker.dense is not None

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        filters: Mapping[str, str] | None = None,
        dense_weight: float = DENSE_WEIGHT,
        fusion: Fusion = "score",
    ) -> list[DocumentHit]:
        """The documents that fit a query best, the best first; any text is a query, and one that says nothing finds
        nothing.

        `filters` are metadata that a document must have; of several values of one name it must have that one. Case
        does not count. `dense_weight` is from 0 (words alone) to 1 (meaning alone); an index without vectors is
        searched by words. `fusion` is by score or by rank, as `fuse` does it.

        Raises:
            UsageError: an argument is invalid, no document has the metadata to filter by, or the embedding model is
                missing or not the one that the index was built with.
            EmbeddingError: the query cannot be embedded.
            GumshoeError: the index is damaged.
        """
        if not isinstance(query, str):
            raise _invalid_argument(f"query must be a string, got {query!r}")
        if not isinstance(limit, int) or not 1 <= limit <= MOST:
            raise _invalid_argument(f"limit must be an integer from 1 to {MOST}, got {limit!r}")
        if not 0 <= dense_weight <= 1:
            raise _invalid_argument(f"dense_weight must be a number from 0 to 1, got {dense_weight!r}")
        if fusion not in ("score", "rank"):
            raise _invalid_argument(f"fusion must be score or rank, got {fusion!r}")
        asked = clean_line(query[:_LONGEST_QUERY])
        wanted = tuple(
            sorted((str(name), clean_line(str(value)).casefold()) for name, value in (filters or {}).items())
        )
        weight = dense_weight if self.has_vectors else 0.0
        return [*self._hits(asked, limit, wanted, weight, fusion)] if asked else []

    def _find_hits(
        self, query: str, limit: int, wanted: tuple[tuple[str, str], ...], weight: float, fusion: Fusion
    ) -> tuple[DocumentHit, ...]:
        with self._explained():
            words = self._analyzer.words(query)
            numbers = [number for word in words if (number := self._word(word)) is not None]
            vector = self._query_vectors().vector(query) if weight else None
            allowed = self._allowed(wanted) if wanted else None
            ranked = self._ranker.rank(vector, numbers, weight, limit, fusion, allowed)
            return tuple(self._hit(each, frozenset(words)) for each in ranked)

    def _hit(self, ranked: Ranked, words: frozenset[str]) -> DocumentHit:
        row = self._connection().execute(
            "SELECT document_id, position, title, substr(text, start + 1, stop - start) "
            "FROM chunks JOIN documents USING (document) WHERE chunk = ?",
            (ranked.chunk,),
        )
        document_id, position, title, text = next(row)
        snippet = make_snippet(text, words, self._analyzer)
        chunk_id = f"{document_id}#{position}"
        return DocumentHit(document_id, chunk_id, title, snippet, ranked.score, ranked.dense_rank, ranked.lexical_rank)

    def read(self, document_id: str) -> Document:
        """One document, by its id or by that of a document that was left out because it says the same.

        Raises:
            DocumentNotFoundError: the index has no such document.
            UsageError: the id is not a string.
            GumshoeError: the index is damaged.
        """
        return self._found(_ALL, document_id)

    def head(self, document_id: str) -> Document:
        """As `read`, without the text, which may be long.

        Raises:
            DocumentNotFoundError, UsageError, GumshoeError: as `read`.
        """
        return self._found(_HEADS, document_id)

    def _found(self, fields: str, document_id: str) -> Document:
        if not isinstance(document_id, str):
            raise _invalid_argument(f"document_id must be a string, got {document_id!r}")
        wanted = clean(document_id).strip()
        with self._explained():
            row = next(self._connection().execute(f"{fields} {_OF_THAT_ID}", {"id": wanted}), None)
        if row is None:
            raise DocumentNotFoundError(
                "documents.document-not-found",
                f"no document {wanted!r} in this index; use an id that a search shows, without #n",
            )
        kept_id, title, text, url, metadata = row
        return Document(kept_id, title, text, url, json.loads(metadata))

    def documents(self) -> Iterator[Document]:
        """All documents, in the order in which they were read.

        Raises:
            GumshoeError: the index is damaged.
        """
        with self._explained():
            for kept_id, title, text, url, metadata in self._connection().execute(_ALL):
                yield Document(kept_id, title, text, url, json.loads(metadata))

    def stats(self) -> dict[str, Any]:
        """What built this index and what is in it: the facts of `IndexFacts`, its size, and the names of metadata."""
        facts = self._files.facts
        names = "SELECT name, count(DISTINCT document) FROM metadata GROUP BY name ORDER BY name"
        with self._explained():
            metadata = dict(self._connection().execute(names))
        return {
            **facts.model_dump(include={"content", "built", "sources", "options"}),
            "schema": facts.schema_version,
            **facts.counts,
            "metadata": metadata,
            "dimensions": self._ranker.dense.dimensions if self._ranker.dense else 0,
            "bytes": sum(file.size for file in facts.files.values()),
        }

    def unreadable(self) -> list[tuple[str, str, str]]:
        """What the build could not read: place, reason, detail."""
        with self._explained():
            return list(self._connection().execute("SELECT place, reason, detail FROM unreadable"))

    def _find_allowed(self, wanted: tuple[tuple[str, str], ...]) -> NDArray[np.bool_]:
        """[documents]: whether each has all of some metadata."""
        allowed = np.ones(self._files.facts.counts["documents"], np.bool_)
        for name, value in wanted:
            rows = self._connection().execute(
                "SELECT document FROM metadata WHERE name = ? AND value = ?", (name, value)
            )
            having = np.zeros_like(allowed)
            having[[document for (document,) in rows]] = True
            allowed &= having
            if not having.any() and name not in (known := self.stats()["metadata"]):
                raise UsageError(
                    "documents.unknown-filter",
                    f"cannot filter by {name!r}: no document has this metadata; they have {', '.join(known) or 'none'}",
                )
        return allowed

    def _find_word(self, word: str) -> int | None:
        number: int | None = self._connection().execute("SELECT number FROM words WHERE word = ?", (word,)).get
        return number

    def _query_vectors(self) -> QueryVectors:
        """What embeds queries, made on its first use."""
        with self._opening:
            if self._queries is None:
                embedder = self._embedder or open_embedder(self._options["embedding"])
                self._check_same(embedder)
                self._queries = QueryVectors(embedder)
            return self._queries

    def _check_same(self, embedder: Embedder) -> None:
        """Refuse another model than that of the index: what it finds would be nonsense, and look like results."""
        with closing(open_read_only(self.path)) as database:
            (vector,) = embedder.embed(list(islice(chunk_texts(database, 0), 1)), "passage")
        dense, first = self._ranker.dense, np.zeros(1, np.int64)
        if dense is None or len(vector) != dense.dimensions or dense.scores(vector, first)[0] < _ALIKE:
            raise UsageError(
                "documents.other-embedding-model",
                f"{embedder.name} is not the model that built this index ({self._options['embedding']}); restore that "
                "model under its name, or build the index again with --replace",
            )

    def _connection(self) -> apsw.Connection:
        """This thread's connection, made on its first use, and made anew after a fork."""
        if getattr(self._local, "process", None) != os.getpid():
            if not self.path.is_file():
                raise GumshoeError(
                    "documents.index-replaced", f"{self.path} was replaced since it was opened; open the index again"
                )
            database = open_read_only(self.path)
            database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._local.database, self._local.process = database, os.getpid()
        connection: apsw.Connection = self._local.database
        return connection

    def _explained(self) -> AbstractContextManager[None]:
        return damage_explained(self.path)


def _invalid_argument(message: str) -> UsageError:
    return UsageError("documents.invalid-argument", message)
