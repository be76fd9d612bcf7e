"""Sort documents by collection, for any order of their sources."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import apsw

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.documents.collection_names import DEFAULT_COLLECTION
from gumshoe.documents.document import Document

STAGING = "staging.sqlite"


class CollectionStaging:
    """Keep the documents of named collections on disk until the documents without a collection are written."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STAGING
        self._path.unlink(missing_ok=True)
        self._database = apsw.Connection(str(self._path))
        for setting in ("journal_mode = off", "synchronous = off", "locking_mode = exclusive"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("BEGIN")
        self._database.execute("CREATE TABLE staged (collection TEXT, number INTEGER, document TEXT)")
        self._staged = 0
        self.is_used = False
        """True if a document has named a collection."""

    def add(self, document: Document) -> bool:
        """Keep a document of a named collection. Return False if it belongs to the first collection of the index."""
        if not document.collection:
            return False
        self.is_used = True
        if document.collection == DEFAULT_COLLECTION:
            return False
        content = json.dumps(asdict(document), ensure_ascii=False)
        self._database.execute("INSERT INTO staged VALUES (?, ?, ?)", (document.collection, self._staged, content))
        self._staged += 1
        return True

    def read(self) -> Iterator[tuple[str, Iterator[Document]]]:
        """Yield each named collection with its documents, in the order of names and then of the sources."""
        self._database.execute("CREATE INDEX staged_order ON staged (collection, number)")
        for (name,) in list(self._database.execute("SELECT DISTINCT collection FROM staged ORDER BY collection")):
            rows = self._database.execute("SELECT document FROM staged WHERE collection = ? ORDER BY number", (name,))
            yield name, (Document(**json.loads(content)) for (content,) in rows)

    def close(self) -> None:
        """Delete the file."""
        self._database.close()
        self._path.unlink(missing_ok=True)


def assign_collection(item: Document | UnreadableItem, collection: str, uri: str) -> Document | UnreadableItem:
    """Return a document in the collection of its source. A document that names another one becomes unreadable.

    Otherwise readers of the source's collection would see a document that is marked for others.
    """
    if not collection or isinstance(item, UnreadableItem) or item.collection == collection:
        return item
    if item.collection:
        detail = f"{item.document_id} names the collection {item.collection}, its source {collection}"
        return UnreadableItem(uri, "in another collection", detail)
    return replace(item, collection=collection)
