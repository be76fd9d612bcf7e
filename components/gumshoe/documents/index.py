"""Search a collection of documents with dense and lexical retrieval, and read documents."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.sqlite import ReadOnlyDatabase, explain_damage, open_read_only
from gumshoe.artifacts.store import fetch_directory
from gumshoe.documents.document import Document
from gumshoe.documents.lexical import Analyzer
from gumshoe.documents.ranking import RankedDocument, Ranker
from gumshoe.documents.schema import DATABASE, chunk_texts, open_index_files
from gumshoe.embeddings.embedder import Embedder, QueryEmbedder, open_embedder
from gumshoe.embeddings.search_options import DENSE_WEIGHT, Fusion
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.message import clean, clean_line

__all__ = ["DocumentHit", "DocumentIndex", "DocumentNotFoundError", "open_index"]

MAX_RESULTS = 100
"""Maximum number of search results."""
MAX_SNIPPET = 240
"""Maximum length of a snippet in characters."""
_LEAD = 40  # characters shown before the first match
_ELLIPSIS = "…"
_MAX_QUERY = 2_000  # characters; the rest is ignored
_RESULT_CACHE_SIZE = 4_000  # searches whose results are kept in memory

_ALL = "SELECT document_id, title, text, url, metadata FROM documents"
_HEADS = "SELECT document_id, title, '', url, metadata FROM documents"
_WHERE_ID = """
    WHERE document IN (
        SELECT document FROM documents WHERE document_id = :id
        UNION SELECT document FROM other_ids WHERE document_id = :id
    )
"""


class DocumentNotFoundError(GumshoeError):
    """The index contains no document with that id."""


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


class DocumentIndex:
    """Search and read an index, opened read-only. Thread-safe.

    All files are verified on opening. The embedding model is loaded by the first search that needs it. `embedder`
    replaces the model that the index names.

    Raises on opening:
        UsageError: if the directory has no index.
        GumshoeError: if the index is damaged, or another version of Gumshoe built it.
        UnavailableError: if the disk does not answer.
    """

    def __init__(self, directory: Path | str, embedder: Embedder | None = None) -> None:
        self._files = open_index_files(Path(directory))
        self.path = self._files.folder / DATABASE
        self._options: dict[str, Any] = self._files.facts.options
        self._ranker = Ranker(self._files)
        self._analyzer = Analyzer(self._options["language"])
        self._embedder = embedder
        self._queries: QueryEmbedder | None = None
        self._opening = threading.Lock()
        self._database = ReadOnlyDatabase(
            self.path,
            lambda: GumshoeError(
                "documents.index-replaced", f"{self.path} was replaced since it was opened; open the index again"
            ),
        )
        # The index never changes, and episodes of one group often send the same queries.
        self._hits = lru_cache(_RESULT_CACHE_SIZE)(self._find_hits)
        self._allowed = lru_cache(8)(self._find_allowed)
        self._word = lru_cache(1 << 16)(self._find_word)

    @property
    def has_vectors(self) -> bool:
        """True if the index supports dense retrieval."""
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
        """Return the best documents for a query, best first. Any text is a query; an empty one finds nothing.

        `filters` is metadata that a document must have; one of several values is enough, and case is ignored.
        `dense_weight` is from 0 (only lexical) to 1 (only dense); an index without vectors always uses lexical
        retrieval. `fusion` is "score" or "rank" (see `fuse`).

        Raises:
            UsageError: if an argument is invalid, no document has the metadata to filter by, or the embedding model
                is missing or not the one that the index was built with.
            EmbeddingError: if the query cannot be embedded.
            GumshoeError: if the index is damaged.
        """
        if not isinstance(query, str):
            raise _invalid_argument(f"query must be a string, got {query!r}")
        if not isinstance(limit, int) or not 1 <= limit <= MAX_RESULTS:
            raise _invalid_argument(f"limit must be an integer from 1 to {MAX_RESULTS}, got {limit!r}")
        if not 0 <= dense_weight <= 1:
            raise _invalid_argument(f"dense_weight must be a number from 0 to 1, got {dense_weight!r}")
        if fusion not in ("score", "rank"):
            raise _invalid_argument(f"fusion must be score or rank, got {fusion!r}")
        cleaned = clean_line(query[:_MAX_QUERY])
        wanted = tuple(
            sorted((str(name), clean_line(str(value)).casefold()) for name, value in (filters or {}).items())
        )
        weight = dense_weight if self.has_vectors else 0.0
        return [*self._hits(cleaned, limit, wanted, weight, fusion)] if cleaned else []

    def _find_hits(
        self, query: str, limit: int, wanted: tuple[tuple[str, str], ...], weight: float, fusion: Fusion
    ) -> tuple[DocumentHit, ...]:
        with self._explain_damage():
            words = self._analyzer.split_words(query)
            numbers = [number for word in words if (number := self._word(word)) is not None]
            vector = self._get_query_embedder().embed(query) if weight else None
            allowed = self._allowed(wanted) if wanted else None
            ranked = self._ranker.rank(vector, numbers, weight, limit, fusion, allowed)
            return tuple(self._to_hit(each, frozenset(words)) for each in ranked)

    def _to_hit(self, ranked: RankedDocument, words: frozenset[str]) -> DocumentHit:
        row = self._database.execute(
            "SELECT document_id, position, title, substr(text, start + 1, stop - start) "
            "FROM chunks JOIN documents USING (document) WHERE chunk = ?",
            (ranked.chunk,),
        )
        document_id, position, title, text = next(row)
        snippet = make_snippet(text, words, self._analyzer)
        chunk_id = f"{document_id}#{position}"
        return DocumentHit(document_id, chunk_id, title, snippet, ranked.score, ranked.dense_rank, ranked.lexical_rank)

    def read(self, document_id: str) -> Document:
        """Return one document, by its id or by the id of a dropped duplicate.

        Raises:
            DocumentNotFoundError: if the index has no such document.
            UsageError: if the id is not a string.
            GumshoeError: if the index is damaged.
        """
        return self._read_row(_ALL, document_id)

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
        with self._explain_damage():
            row = next(self._database.execute(f"{fields} {_WHERE_ID}", {"id": wanted}), None)
        if row is None:
            raise DocumentNotFoundError(
                "documents.document-not-found",
                f"no document {wanted!r} in this index; use an id that a search shows, without #n",
            )
        kept_id, title, text, url, metadata = row
        return Document(kept_id, title, text, url, json.loads(metadata))

    def stats(self) -> dict[str, Any]:
        """Return statistics of the index and how it was built: fields of `IndexFacts`, its size, and metadata names."""
        facts = self._files.facts
        names = "SELECT name, count(DISTINCT document) FROM metadata GROUP BY name ORDER BY name"
        with self._explain_damage():
            metadata = dict(self._database.execute(names))
        return {
            **facts.model_dump(include={"content", "built", "sources", "options"}),
            "schema": facts.schema_version,
            **facts.counts,
            "metadata": metadata,
            "dimensions": self._ranker.dense.dimensions if self._ranker.dense else 0,
            "bytes": sum(file.size for file in facts.files.values()),
        }

    def list_unreadable(self) -> list[tuple[str, str, str]]:
        """Return place, reason and detail of each item that the build could not read."""
        with self._explain_damage():
            return list(self._database.execute("SELECT place, reason, detail FROM unreadable"))

    def _find_allowed(self, wanted: tuple[tuple[str, str], ...]) -> NDArray[np.bool_]:
        """Return which documents have all of the given metadata: [documents]."""
        allowed = np.ones(self._files.facts.counts["documents"], np.bool_)
        for name, value in wanted:
            rows = self._database.execute("SELECT document FROM metadata WHERE name = ? AND value = ?", (name, value))
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
        number: int | None = self._database.execute("SELECT number FROM words WHERE word = ?", (word,)).get
        return number

    def _get_query_embedder(self) -> QueryEmbedder:
        """Return the query embedder, created on first use."""
        with self._opening:
            if self._queries is None:
                embedder = self._embedder or open_embedder(self._options["embedding"])
                self._check_same_model(embedder)
                self._queries = QueryEmbedder(embedder)
            return self._queries

    def _check_same_model(self, embedder: Embedder) -> None:
        """Raise an error if the model is not the one that built the index: its results would be meaningless."""
        with closing(open_read_only(self.path)) as database:
            (vector,) = embedder.embed(list(islice(chunk_texts(database, 0), 1)), "passage")
        dense = self._ranker.dense
        if dense is None or not dense.is_from_model(vector, 0):
            raise UsageError(
                "documents.other-embedding-model",
                f"{embedder.name} is not the model that built this index ({self._options['embedding']}); restore that "
                "model under its name, or build the index again with --replace",
            )

    def _explain_damage(self) -> AbstractContextManager[None]:
        return explain_damage(self.path)


@contextmanager
def open_index(place: str, store: str | None) -> Iterator[DocumentIndex]:
    """Open the index in a directory, or `KIND/VERSION` of a store, which is fetched while the block runs.

    Raises:
        UsageError: if the place is neither.
        GumshoeError: if the index is damaged, or the store does not answer.
    """
    with fetch_directory(place, store) as directory:
        yield DocumentIndex(directory)


def make_snippet(text: str, words: AbstractSet[str], analyzer: Analyzer) -> str:
    """Return the part of a text that contains most of some words, on one line. Without a match, return its beginning.

    `words` are stemmed by the analyzer. Only whole words are shown, with an ellipsis where text is left out.
    """
    line = " ".join(text.split())
    if len(line) <= MAX_SNIPPET:
        return line
    first = _find_densest(line, words, analyzer) if words else 0
    start = max(0, min(first - _LEAD, len(line) - MAX_SNIPPET))
    if start:
        start = line.find(" ", start, first) + 1 or start
    stop = start + MAX_SNIPPET
    if stop < len(line) and (end := line.rfind(" ", first, stop + 1)) > 0:
        stop = end
    shown = line[start:stop].strip()
    return f"{_ELLIPSIS} " * (start > 0) + shown + f" {_ELLIPSIS}" * (stop < len(line))


def _find_densest(line: str, words: AbstractSet[str], analyzer: Analyzer) -> int:
    """Return the start of the section that contains most of some words, each counted once."""
    # Stemming is slow. A word and its stem begin alike, except for the stem's last letter.
    prefixes = sorted({re.escape(word[: max(2, len(word) - 1)]) for word in words})
    likely = re.compile(rf"\b(?:{'|'.join(prefixes)})\w*", re.I)
    found = [
        (each.start(), stem)
        for each in likely.finditer(line)
        for stem in analyzer.split_words(each[0])
        if stem in words
    ]
    counts = [len({stem for at, stem in found if 0 <= at - place < MAX_SNIPPET - _LEAD}) for place, _ in found]
    return found[counts.index(max(counts))][0] if counts else 0


def _invalid_argument(message: str) -> UsageError:
    return UsageError("documents.invalid-argument", message)
