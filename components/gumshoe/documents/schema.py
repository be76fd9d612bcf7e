"""What an index is made of: a directory with `index.json`, which names the folder that everything else lies in.

In that folder, `documents.sqlite` holds documents, chunks and words; the other files are plain arrays of numbers, whose
form `index.json` says. It is written last of all, and in one step.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts import sqlite
from gumshoe.artifacts.manifest import file_digest
from gumshoe.errors import GumshoeError, UnavailableError, UsageError, faults_of

FACTS = "index.json"
DATABASE = "documents.sqlite"
VERSION = 1
FOLDER = r"^data-[0-9a-f]{16}(-\d+)?$"
"""The name of the folder that everything else lies in."""

TABLES = """
CREATE TABLE documents (
    document INTEGER PRIMARY KEY,
    document_id TEXT NOT NULL,
    title TEXT NOT NULL,
    url TEXT NOT NULL,
    context TEXT NOT NULL,   -- the line above each of its chunks
    metadata TEXT NOT NULL,  -- JSON
    text TEXT NOT NULL
);
-- A chunk is part of its document's text, from `start` up to `stop`, in characters. `position` counts the chunks of a
-- document, those too that were left out as duplicates. Documents and chunks are numbered from 0,
-- in the order of the arrays; each document has a chunk.
CREATE TABLE chunks (
    chunk INTEGER PRIMARY KEY,
    document INTEGER NOT NULL,
    position INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    tokens INTEGER NOT NULL
);
-- Ids of documents that were left out because another has the same title and text.
CREATE TABLE other_ids (document_id TEXT NOT NULL, document INTEGER NOT NULL);
CREATE TABLE metadata (
    name TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL, PRIMARY KEY (name, value, document)
) WITHOUT ROWID;
CREATE TABLE words (word TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE unreadable (place TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL);
"""
INDEXES = """
CREATE UNIQUE INDEX documents_id ON documents (document_id);
CREATE INDEX chunks_document ON chunks (document);
CREATE INDEX other_ids_id ON other_ids (document_id);
"""
CHUNK = "SELECT context, text, start, stop FROM chunks JOIN documents USING (document)"

OWNERS = "owners.i4"
"""[chunks]: the document of each, from 0; rising."""
OF_DOCUMENTS = ("document-starts.i8", "document-texts.i4", "document-scores.f4")
OF_CHUNKS = ("chunk-starts.i8", "chunk-texts.i4", "chunk-scores.f4")
"""The parts of `lexical.Postings`, where a text is a whole document, and where it is a chunk."""
VECTORS, SIGNS, CENTER = "vectors.f2", "signs.u8", "center.f4"
"""The parts of `vectors.DenseSide`."""


class ArrayForm(BaseModel):
    """The form of an array in a file of its own: numbers of one type, one after another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str = Field(pattern="^[<|][fiu][1248]$")
    shape: tuple[int, ...]


class FileFacts(BaseModel):
    """One file of an index, and its form if it is an array."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    sha256: str
    array: ArrayForm | None = None


class IndexFacts(BaseModel):
    """What `index.json` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int
    content: str
    """Digest of what was indexed and how: equal for equal documents and options."""
    built: str
    sources: list[str]
    options: dict[str, Any]
    counts: dict[str, Any]
    folder: str = Field(pattern=FOLDER)
    files: dict[str, FileFacts]


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """An index on disk, every byte of it checked."""

    facts: IndexFacts
    folder: Path

    def array(self, name: str) -> NDArray[Any]:
        """An array, mapped into memory: shared by all processes that have it open, and read as it is used."""
        form = self.facts.files[name].array
        if form is None:
            raise GumshoeError("store.index-damaged", f"{self.folder / name} is not an array; build the index again")
        if 0 in form.shape:
            return np.zeros(form.shape, form.dtype)
        return np.asarray(np.memmap(self.folder / name, form.dtype, "r", shape=form.shape))


def is_document_index(directory: Path) -> bool:
    """Whether a directory holds an index of documents, whole or damaged."""
    return (directory / FACTS).is_file()


def open_files(directory: Path) -> IndexFiles:
    """The files of an index.

    Raises:
        UsageError: the directory has no index.
        GumshoeError: the index is damaged, or another version of Gumshoe built it.
        UnavailableError: the disk does not answer.
    """
    facts = read_facts(directory)
    folder = directory / facts.folder
    try:
        for name, said in facts.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != said.size or file_digest(path) != said.sha256:
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
    """What `index.json` says.

    Raises:
        UsageError, GumshoeError, UnavailableError: as `open_files`.
    """
    path = directory / FACTS
    if not path.is_file():
        raise UsageError(
            "documents.no-index", f"no document index in {directory}; build one with `gumshoe documents index`"
        )
    try:
        told = json.loads(path.read_bytes())
        version = told.get("schema_version") if isinstance(told, dict) else None
        if version != VERSION and isinstance(version, int):
            raise GumshoeError(
                "documents.index-version",
                f"{path} has schema {version}, this version of Gumshoe needs {VERSION}; build the index again",
            )
        return IndexFacts.model_validate(told)
    except OSError as error:
        raise UnavailableError("store.index-unreadable", f"cannot read {path} ({error.strerror}); try again") from error
    except ValueError as error:
        fault = faults_of(error) if isinstance(error, ValidationError) else error
        raise GumshoeError(
            "store.index-damaged", f"{path} is damaged ({fault}); fetch it again, or build it again"
        ) from None


def chunk_texts(database: apsw.Connection, first: int) -> Iterator[str]:
    """What is embedded of each chunk, from a number on: its context line, and its text."""
    rows = database.execute(f"{CHUNK} WHERE chunk >= ? ORDER BY chunk", (first,))
    return (chunk_text(context, text[start:stop]) for context, text, start, stop in rows)


def chunk_text(context: str, text: str) -> str:
    """What is embedded, and searched for words, of a chunk."""
    return f"{context}\n{text}" if context else text


def damage_explained(path: Path) -> AbstractContextManager[None]:
    """Turn SQLite's errors about an index into GumshoeError, or UnavailableError if its disk fails."""
    return sqlite.damage_explained(path)
