"""The files of an index: a directory with `index.json`, which names the folder that contains everything else.

In that folder, `documents.sqlite` contains documents, chunks and words. The other files are plain arrays whose form is
in `index.json`. `index.json` is written last, atomically.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.sqlite import ReadOnlyDatabase
from gumshoe.embeddings.chunking import add_context
from gumshoe.embeddings.vectors import CENTER, SIGNS, VECTORS
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.json_text import load_json
from gumshoe.model_validation import describe_validation_error

Opened = TypeVar("Opened")

FACTS = "index.json"
DATABASE = "documents.sqlite"
VERSION = 6
FOLDER = r"^data-[0-9a-f]{16}(-\d+)?$"
"""Pattern of the folder's name."""

TABLES = """
CREATE TABLE documents (
    document INTEGER PRIMARY KEY,
    collection INTEGER NOT NULL,  -- number in `index.json`, from 0
    document_id TEXT NOT NULL,
    title TEXT NOT NULL,
    url TEXT NOT NULL,
    context TEXT NOT NULL,   -- context line of its chunks
    metadata TEXT NOT NULL,  -- JSON
    text TEXT NOT NULL
);
-- A chunk is part of its document's text, from `start` up to `stop`, in characters. `position` counts all chunks of a
-- document, including dropped duplicates. Documents and chunks are numbered from 0,
-- in the order of the arrays; each document has a chunk. Those of a collection are consecutive. Every other table that
-- a search reads begins with the collection, so that a query reads no row of another one.
CREATE TABLE chunks (
    chunk INTEGER PRIMARY KEY,
    document INTEGER NOT NULL,
    position INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    tokens INTEGER NOT NULL
);
-- Chunks that were dropped because `chunk` has the same context line and the same words, or nearly the same. They are
-- needed if that one is erased.
CREATE TABLE repeats (
    document INTEGER NOT NULL,
    position INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    is_exact INTEGER NOT NULL,  -- 0 if some words differ
    PRIMARY KEY (document, position)
) WITHOUT ROWID;
-- Ids of documents that were dropped because another has the same title and text.
CREATE TABLE other_ids (collection INTEGER NOT NULL, document_id TEXT NOT NULL, document INTEGER NOT NULL);
-- Metadata to filter by, in lower case: that of each document and of its dropped duplicates.
CREATE TABLE metadata (
    collection INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL,
    PRIMARY KEY (collection, name, value, document)
) WITHOUT ROWID;
CREATE TABLE words (
    collection INTEGER NOT NULL, word TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (collection, word)
) WITHOUT ROWID;
CREATE TABLE unreadable (place TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL);
"""
INDEXES = """
CREATE UNIQUE INDEX documents_id ON documents (collection, document_id);
CREATE INDEX chunks_document ON chunks (document);
CREATE INDEX other_ids_id ON other_ids (collection, document_id);
"""
CHUNK = "SELECT context, text, start, stop FROM chunks JOIN documents USING (document)"

OWNERS = "owners.i4"
"""[chunks]: document number of each chunk, from 0, ascending."""
DOCUMENT_POSTINGS = ("document-starts.i8", "document-texts.i4", "document-counts.u2", "document-lengths.i4")
CHUNK_POSTINGS = ("chunk-starts.i8", "chunk-texts.i4", "chunk-counts.u2", "chunk-lengths.i4")
"""The arrays of `lexical.Postings`, for whole documents and for chunks."""
INDEX_FILES = {
    FACTS: "Content digest, sources, options, counts, collections, size and SHA-256 of all files. It is written last.",
    f"data-*/{DATABASE}": "Documents, chunks, metadata, words, and what could not be read.",
    f"data-*/{OWNERS}": "The document of each chunk.",
    f"data-*/{', '.join(DOCUMENT_POSTINGS)}": "BM25 postings of whole documents.",
    f"data-*/{', '.join(CHUNK_POSTINGS)}": "BM25 postings of chunks.",
    f"data-*/{', '.join((VECTORS, SIGNS, CENTER))}": "Embeddings of the chunks. Missing with `--embedding none`.",
}
"""Description of each file of an index of documents."""


class ArrayForm(BaseModel):
    """The form of an array in a file: numbers of one type in sequence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str = Field(pattern="^[<|][fiu][1248]$")
    shape: tuple[int, ...]


class FileFacts(BaseModel):
    """Size and digest of one file of an index, and its form if it is an array."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    sha256: str
    array: ArrayForm | None = None


class CollectionFacts(BaseModel):
    """A collection of an index, and its numbers of documents and chunks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Empty for the only collection of an index whose documents name none."""
    documents: int
    chunks: int


class IndexFacts(BaseModel):
    """The content of `index.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int
    content: str
    """Digest of the documents and the options. Equal documents and options give an equal digest."""
    built: str
    sources: list[str | dict[str, str]]
    """URI of each source, or a mapping of `source` and `collection`."""
    revisions: dict[str, str] = {}
    """Commit of each source that is a dataset on the hub, by URI."""
    options: dict[str, Any]
    counts: dict[str, Any]
    collections: list[CollectionFacts]
    """In the order of their documents and chunks."""
    folder: str = Field(pattern=FOLDER)
    files: dict[str, FileFacts]


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """An index on disk whose files have all been verified."""

    facts: IndexFacts
    folder: Path

    def array(self, name: str) -> NDArray[Any]:
        """Return an array, mapped into memory: shared between processes and read on demand."""
        form = self.facts.files[name].array
        if form is None:
            raise GumshoeError("store.index-damaged", f"{self.folder / name} is not an array; build the index again")
        if 0 in form.shape:
            return np.zeros(form.shape, form.dtype)
        return np.asarray(np.memmap(self.folder / name, form.dtype, "r", shape=form.shape))


def is_document_index(directory: Path) -> bool:
    """Return True if a directory contains a document index, intact or damaged."""
    return (directory / FACTS).is_file()


def open_index_files(directory: Path) -> IndexFiles:
    """Verify and return the files of an index.

    Raises:
        UsageError: if the directory has no index.
        GumshoeError: if the index is damaged, or another version of Gumshoe built it.
        UnavailableError: if the disk does not answer.
    """
    return open_present(directory, lambda files: files)


def open_present(directory: Path, open_files: Callable[[IndexFiles], Opened]) -> Opened:
    """Return what `open_files` returns for the verified files of an index.

    If the index is replaced meanwhile, which deletes these files, the files of the new one are opened.

    Raises:
        UsageError, GumshoeError, UnavailableError: as in `open_index_files`.
    """
    while True:
        facts = read_facts(directory)
        try:
            opened = open_files(_verify_files(directory, facts))
        except (GumshoeError, OSError):
            if read_facts(directory) == facts:
                raise
            continue
        if read_facts(directory) == facts:
            return opened


def _verify_files(directory: Path, facts: IndexFacts) -> IndexFiles:
    folder = directory / facts.folder
    try:
        for name, expected in facts.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != expected.size or file_digest(path) != expected.sha256:
                raise GumshoeError(
                    "store.index-damaged",
                    f"{path} is damaged or missing; fetch the index again, or build it again",
                )
    except OSError as error:
        raise UnavailableError(
            "store.index-unreadable", f"cannot read {folder} ({error.strerror}); try again"
        ) from error
    return IndexFiles(facts, folder)


def read_facts(directory: Path) -> IndexFacts:
    """Return the content of `index.json`.

    Raises:
        UsageError, GumshoeError, UnavailableError: as in `open_index_files`.
    """
    path = directory / FACTS
    if not path.is_file():
        raise UsageError(
            "documents.no-index", f"no document index in {directory}; build one with `gumshoe documents index`"
        )
    try:
        content = load_json(path.read_bytes())
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != VERSION and isinstance(version, int):
            raise GumshoeError(
                "documents.index-version",
                f"{path} has schema {version}, this version of Gumshoe needs {VERSION}; build the index again",
            )
        return IndexFacts.model_validate(content)
    except OSError as error:
        raise UnavailableError("store.index-unreadable", f"cannot read {path} ({error.strerror}); try again") from error
    except ValueError as error:
        fault = describe_validation_error(error) if isinstance(error, ValidationError) else error
        raise GumshoeError(
            "store.index-damaged", f"{path} is damaged ({fault}); fetch it again, or build it again"
        ) from None


def chunk_texts(database: apsw.Connection | ReadOnlyDatabase, first: int) -> Iterator[str]:
    """Yield the text to embed of each chunk, from a number on: its context line and its text."""
    rows = database.execute(f"{CHUNK} WHERE chunk >= ? ORDER BY chunk", (first,))
    return (add_context(context, text[start:stop]) for context, text, start, stop in rows)
