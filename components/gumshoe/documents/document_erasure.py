"""Erase documents from an index: write its files anew without them, and delete the old ones."""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.sqlite import explain_damage, open_read_only
from gumshoe.artifacts.storage import explain_os_errors, lock_directory
from gumshoe.documents.build import PARTIAL, create_database, describe_index_files, list_folders, make_visible
from gumshoe.documents.schema import (
    CHUNK_POSTINGS,
    DATABASE,
    DOCUMENT_POSTINGS,
    FACTS,
    INDEXES,
    OWNERS,
    CollectionFacts,
    IndexFacts,
    IndexFiles,
    open_index_files,
    read_facts,
)
from gumshoe.embeddings.vectors import CENTER, SIGNS, VECTORS, compute_center, write_signs
from gumshoe.errors import UnavailableError

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The documents, chunks and words to keep: True at the numbers of those."""

    documents: Mask
    chunks: Mask
    words: Mask


def _renumber(kept: Mask) -> NDArray[np.int64]:
    """Return the new number of each kept item, by its old number. The numbers of others have no meaning."""
    return np.cumsum(kept) - 1


def find_documents(directory: Path, ids: Iterable[str], collection: str | None = None) -> list[int]:
    """Return the numbers of the documents with some ids, in one collection or in all.

    The id of a dropped duplicate stands for the document that has its text.

    Raises:
        UsageError, GumshoeError: as in `open_index_files`.
    """
    facts = read_facts(directory)
    path = directory / facts.folder / DATABASE
    names = [each.name for each in facts.collections]
    query = (
        "SELECT collection, document FROM documents WHERE document_id = :id UNION "
        "SELECT collection, document FROM other_ids WHERE document_id = :id"
    )
    with explain_damage(path), closing(open_read_only(path)) as database:
        rows = [row for each in ids for row in database.execute(query, {"id": each})]
    return sorted({number for place, number in rows if collection in (None, names[place])})


def count_leftovers(directory: Path) -> int:
    """Return the number of folders of an index that are not in use, which may hold what was erased.

    Raises:
        UsageError, GumshoeError: as in `read_facts`.
    """
    used = read_facts(directory).folder
    return sum(path.name != used for path in list_folders(directory)) + (directory / PARTIAL).exists()


def erase_documents(directory: Path, numbers: Sequence[int]) -> None:
    """Write an index anew without some documents. If none is left, delete it.

    Nothing is embedded or split again. The new index becomes visible in one step, and the old files are deleted. Files
    of an interrupted build are deleted too.

    Raises:
        UsageError, GumshoeError: as in `open_index_files`.
        UnavailableError: if a build is in progress.
        StorageError: if the directory is not writable.
    """
    with explain_os_errors(directory), lock_directory(directory, wait=None) as lock:
        if lock is None:
            raise UnavailableError("documents.index-busy", f"a build is writing to {directory}; wait for it")
        files = open_index_files(directory)
        partial = directory / PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        documents = np.ones(files.facts.counts["documents"], np.bool_)
        documents[list(numbers)] = False
        if not documents.any():
            (directory / FACTS).unlink()
            for folder in list_folders(directory):
                shutil.rmtree(folder)
            return
        partial.mkdir()
        make_visible(directory, partial, _rewrite(files, documents, partial))


def _rewrite(files: IndexFiles, documents: Mask, partial: Path) -> IndexFacts:
    """Write the files of an index without the documents that `documents` [documents] marks False."""
    chunks = documents[files.array(OWNERS)]
    arrays, words = _rewrite_postings(files, documents, chunks)
    kept = _Kept(documents, chunks, words)
    arrays[OWNERS] = _renumber(documents)[files.array(OWNERS)[chunks]].astype(np.int32)
    for name, array in arrays.items():
        array.tofile(partial / name)
    if VECTORS in files.facts.files:
        vectors = np.ascontiguousarray(files.array(VECTORS)[chunks])
        vectors.tofile(partial / VECTORS)
        has_collections = any(each.name for each in files.facts.collections)
        center = np.array(files.array(CENTER)) if has_collections else compute_center(vectors)
        arrays |= {VECTORS: vectors, SIGNS: write_signs(partial, vectors, center), CENTER: center}
    path = files.folder / DATABASE
    with explain_damage(path), closing(open_read_only(path)) as old, create_database(partial / DATABASE) as new:
        collections = _copy_tables(old, new, kept, files.facts.collections)
        content = _digest_tables(new)
        tokens = new.execute("SELECT sum(tokens) FROM chunks").get
        new.execute(INDEXES)
    erased = int(np.count_nonzero(~documents))
    before = files.facts.counts
    counts = {
        **before,
        "documents": before["documents"] - erased,
        "chunks": int(np.count_nonzero(chunks)),
        "tokens": tokens,
        "read": before["read"] - erased,
    }
    changes: dict[str, Any] = {
        "content": content,
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": counts,
        "collections": collections,
        "folder": f"data-{content[:16]}",
        "files": describe_index_files(partial, arrays),
    }
    return files.facts.model_copy(update=changes)


def _rewrite_postings(files: IndexFiles, documents: Mask, chunks: Mask) -> tuple[dict[str, NDArray[Any]], Mask]:
    """Return the arrays of postings without erased texts, and a mask of the words that are left: [words]."""
    arrays: dict[str, NDArray[Any]] = {}
    words: Mask | None = None
    for names, kept in ((DOCUMENT_POSTINGS, documents), (CHUNK_POSTINGS, chunks)):
        starts, texts, counts, lengths = map(files.array, names)
        left = kept[texts]
        number = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[left]
        sizes = np.bincount(number, minlength=len(starts) - 1)
        words = sizes > 0 if words is None else words  # a word of a chunk is a word of its document
        new_texts = _renumber(kept)[texts[left]].astype(np.int32)
        new_starts = np.concatenate([[0], np.cumsum(sizes[words])]).astype(np.int64)
        arrays |= zip(names, (new_starts, new_texts, counts[left], lengths[kept]), strict=True)
    return arrays, np.zeros(0, np.bool_) if words is None else words


def _copy_tables(
    old: apsw.Connection, new: apsw.Connection, kept: _Kept, collections: Sequence[CollectionFacts]
) -> list[CollectionFacts]:
    """Copy all rows but those of erased documents, and return the collections that are left."""
    documents, chunks, words = map(_renumber, (kept.documents, kept.chunks, kept.words))
    erased: set[str] = set()
    sizes = np.zeros((len(collections), 2), np.int64)
    for number, place, document_id in old.execute("SELECT document, collection, document_id FROM documents"):
        sizes[place, 0] += kept.documents[number]
        if not kept.documents[number]:
            erased.add(document_id)
    places = np.cumsum(sizes[:, 0] > 0) - 1
    for row in old.execute(
        "SELECT document, collection, document_id, title, url, context, metadata, text FROM documents"
    ):
        if kept.documents[row[0]]:
            values = (int(documents[row[0]]), int(places[row[1]]), *row[2:])
            new.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    query = (
        "SELECT chunk, document, position, start, stop, tokens, collection FROM chunks JOIN documents USING (document)"
    )
    for chunk, document, *rest, place in old.execute(query):
        if kept.chunks[chunk]:
            sizes[place, 1] += 1
            values = (int(chunks[chunk]), int(documents[document]), *rest)
            new.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)", values)
    for place, document_id, document in old.execute("SELECT collection, document_id, document FROM other_ids"):
        if kept.documents[document]:
            values = (int(places[place]), document_id, int(documents[document]))
            new.execute("INSERT INTO other_ids VALUES (?, ?, ?)", values)
        else:
            erased.add(document_id)
    for place, name, value, document in old.execute("SELECT collection, name, value, document FROM metadata"):
        if kept.documents[document]:
            values = (int(places[place]), name, value, int(documents[document]))
            new.execute("INSERT INTO metadata VALUES (?, ?, ?, ?)", values)
    for place, word, number in old.execute("SELECT collection, word, number FROM words"):
        if kept.words[number]:
            new.execute("INSERT INTO words VALUES (?, ?, ?)", (int(places[place]), word, int(words[number])))
    for row in old.execute("SELECT place, reason, detail FROM unreadable"):
        if not any(each in row[0] or each in row[2] for each in erased):
            new.execute("INSERT INTO unreadable VALUES (?, ?, ?)", row)
    return [
        CollectionFacts(name=each.name, documents=int(size[0]), chunks=int(size[1]))
        for each, size in zip(collections, sizes, strict=True)
        if size[0]
    ]


def _digest_tables(database: apsw.Connection) -> str:
    """Return a digest of the tables of documents and chunks."""
    digest = blake2b(digest_size=32)
    for table in ("documents", "other_ids", "chunks"):
        for row in database.execute(f"SELECT * FROM {table} ORDER BY rowid"):  # noqa: S608 - names of this module
            digest.update(repr(row).encode())
    return digest.hexdigest()
