"""Open an index of documents, and search the collections of it that a caller may read."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from gumshoe.artifacts.sqlite import ReadOnlyDatabase, explain_damage
from gumshoe.artifacts.store import fetch_directory
from gumshoe.documents.collection_names import ALL_COLLECTIONS, check_collection_patterns, matches_collection
from gumshoe.documents.document import Document
from gumshoe.documents.document_view import (
    MAX_RESULTS,
    DocumentHit,
    DocumentNotFoundError,
    DocumentView,
    ViewParts,
)
from gumshoe.documents.lexical import Analyzer
from gumshoe.documents.ranking import IndexArrays
from gumshoe.documents.schema import DATABASE, IndexFiles, chunk_texts, open_present
from gumshoe.embeddings.embedder import Embedder, QueryEmbedder, Vectors, open_embedder
from gumshoe.errors import GumshoeError, UsageError

__all__ = ["MAX_RESULTS", "DocumentHit", "DocumentIndex", "DocumentNotFoundError", "DocumentView", "open_index"]

_VIEWS_CACHED = 64


class DocumentIndex:
    """Search and read an index, opened read-only. Thread-safe.

    All files are verified on opening. The embedding model is loaded by the first search that needs it. `embedder`
    replaces the model that the index names.

    Use `view` to read some collections of an index. `search`, `read` and `head` are only for an index without
    collections, which everybody may read.

    Raises on opening:
        UsageError: if the directory has no index.
        GumshoeError: if the index is damaged, or another version of Gumshoe built it.
        UnavailableError: if the disk does not answer.
    """

    def __init__(self, directory: Path | str, embedder: Embedder | None = None) -> None:
        self._files, self._arrays, self._database = open_present(Path(directory), _open_parts)
        self.path = self._files.folder / DATABASE
        self._options: dict[str, Any] = self._files.facts.options
        self._embedder = embedder
        self._queries: QueryEmbedder | None = None
        self._opening = threading.Lock()
        self._parts = ViewParts(
            self.path,
            self._database,
            self._arrays,
            Analyzer(self._options["language"]),
            tuple(each.name for each in self._files.facts.collections),
            self._embed_query,
            lru_cache(1 << 16)(self._find_word),
        )
        self._view = lru_cache(_VIEWS_CACHED)(self._open_collections)

    @property
    def has_vectors(self) -> bool:
        """True if the index supports dense retrieval."""
        return self._arrays.dense is not None

    @property
    def collections(self) -> tuple[str, ...]:
        """Names of the collections. Empty if the index has none, and everybody may read all of it."""
        return tuple(filter(None, self._parts.names))

    def view(self, patterns: Iterable[str]) -> DocumentView:
        """Return a view of the collections that match `patterns`. Of an index without collections, it shows everything.

        Raises:
            UsageError: if a pattern does not have the allowed form.
        """
        chosen = check_collection_patterns(patterns)
        has_collections = bool(self.collections)
        return self._view(
            tuple(
                number
                for number, name in enumerate(self._parts.names)
                if not has_collections or matches_collection(chosen, name)
            )
        )

    def open_view(self, patterns: Iterable[str] | None) -> DocumentView:
        """Return a `view`. Without patterns, return a view of everything if the index has no collections.

        Raises:
            UsageError: if `patterns` is None and the index has collections, or a pattern does not have the allowed
                form.
        """
        if patterns is None and self.collections:
            raise UsageError(
                "documents.collections-required",
                "this index has collections; name those that may be read, e.g. with --collections, or * for all",
            )
        return self.view(patterns or ())

    def _open_collections(self, collections: tuple[int, ...]) -> DocumentView:
        return DocumentView(self._parts, collections)

    def search(self, query: str, **options: Any) -> list[DocumentHit]:
        """Search an index without collections. See `DocumentView.search`.

        Raises:
            UsageError: if the index has collections, or as in `DocumentView.search`.
        """
        return self.open_view(None).search(query, **options)

    def read(self, document_id: str, around: int | None = None, neighbours: int = 1) -> Document:
        """Return one document of an index without collections, or a part of it. See `DocumentView.read`.

        Raises:
            UsageError: if the index has collections, or as in `DocumentView.read`.
        """
        return self.open_view(None).read(document_id, around, neighbours)

    def head(self, document_id: str) -> Document:
        """Return a document of an index without collections, without its text. See `DocumentView.head`.

        Raises:
            UsageError: if the index has collections, or as in `DocumentView.head`.
        """
        return self.open_view(None).head(document_id)

    def get_ready(self) -> None:
        """Load the embedding model, if the index has vectors.

        Raises:
            UsageError: if it is missing or not the one that built the index.
        """
        if self.has_vectors:
            self._embed_query("What is there?")

    def stats(self) -> dict[str, Any]:
        """Return statistics of the index and how it was built: fields of `IndexFacts`, its size, and metadata names.

        They are about all collections: do not show them to callers.
        """
        facts = self._files.facts
        return {
            **facts.model_dump(include={"content", "built", "sources", "options"}),
            **({"revisions": facts.revisions} if facts.revisions else {}),
            "schema": facts.schema_version,
            **facts.counts,
            "collections": {each.name: each.documents for each in facts.collections if each.name},
            "metadata": self.view(ALL_COLLECTIONS).list_metadata(),
            "dimensions": self._arrays.dense.dimensions if self._arrays.dense else 0,
            "bytes": sum(file.size for file in facts.files.values()),
        }

    def list_unreadable(self) -> list[tuple[str, str, str]]:
        """Return place, reason and detail of each item that the build could not read."""
        with explain_damage(self.path):
            return list(self._database.execute("SELECT place, reason, detail FROM unreadable"))

    def _find_word(self, collection: int, word: str) -> int | None:
        query = "SELECT number FROM words WHERE collection = ? AND word = ?"
        number: int | None = self._database.execute(query, (collection, word)).get
        return number

    def _embed_query(self, query: str, asker: str = "") -> Vectors:
        """Return the vector of a query. The model is loaded on first use."""
        with self._opening:
            if self._queries is None:
                embedder = self._embedder or open_embedder(self._options["embedding"])
                self._check_same_model(embedder)
                self._queries = QueryEmbedder(embedder)
        return self._queries.embed(query, asker)

    def _check_same_model(self, embedder: Embedder) -> None:
        """Raise an error if the model is not the one that built the index: its results would be meaningless."""
        with explain_damage(self.path):
            texts = list(islice(chunk_texts(self._database, 0), 1))
        (vector,) = embedder.embed(texts, "passage")
        dense = self._arrays.dense
        if dense is None or not dense.is_from_model(vector, 0):
            raise UsageError(
                "documents.other-embedding-model",
                f"{embedder.name} is not the model that built this index ({self._options['embedding']}); restore that "
                "model under its name, or build the index again with --replace",
            )


def _open_parts(files: IndexFiles) -> tuple[IndexFiles, IndexArrays, ReadOnlyDatabase]:
    path = files.folder / DATABASE
    database = ReadOnlyDatabase(
        path,
        lambda: GumshoeError(
            "documents.index-replaced", f"{path} was replaced since it was opened; open the index again"
        ),
    )
    return files, IndexArrays(files), database


@contextmanager
def open_index(place: str, store: str | None) -> Iterator[DocumentIndex]:
    """Open the index in a directory, or `KIND/VERSION` of a store, which is fetched while the block runs.

    Raises:
        UsageError: if the place is neither.
        GumshoeError: if the index is damaged, or the store does not answer.
    """
    with fetch_directory(place, store) as directory:
        yield DocumentIndex(directory)
