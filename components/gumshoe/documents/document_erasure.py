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
Numbers = NDArray[np.int64]
_Span = tuple[int, int, int, int]  # position, start, stop and tokens of a chunk


@dataclass(frozen=True, slots=True)
class _KeptChunks:
    """The chunks to keep.

    Other documents may have repeated a chunk of an erased document. If one of them has the same words, the chunk
    becomes a part of that document.
    """

    order: Numbers
    """[kept]: old numbers, in the new order."""
    owners: Numbers
    """[chunks]: old number of the document of each, after the erasure."""
    moved: dict[int, _Span]
    """Place in its new document of each chunk that was moved to another one."""
    repeats: list[tuple[int, ...]]
    """Rows of the table `repeats` that stay, with old numbers."""
    lost: int
    """Repeats by other documents that nothing stands for any more: their words are nearly the same, not the same."""


@dataclass(frozen=True, slots=True)
class _Renumbered:
    """New numbers of documents, chunks and words, by the old one. -1 for those to erase."""

    documents: Numbers
    chunks: Numbers
    words: Numbers


def _renumber(order: Numbers, count: int) -> Numbers:
    """Return the new number of each of `count` items, -1 for erased ones. `order` are those to keep, in new order."""
    numbers = np.full(count, -1, np.int64)
    numbers[order] = np.arange(len(order))
    return numbers


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


def erase_documents(directory: Path, numbers: Sequence[int]) -> int:
    """Write an index anew without some documents. If none is left, delete it.

    Nothing is embedded or split again. Chunks that other documents repeat stay as theirs. The new index becomes visible
    in one step, and the old files are deleted. Files of an interrupted build are deleted too.

    Return the number of chunks of other documents that are missing, because they were dropped as nearly the same as an
    erased one.

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
            return 0
        partial.mkdir()
        path = files.folder / DATABASE
        with explain_damage(path), closing(open_read_only(path)) as database:
            chunks = _choose_chunks(database, documents, files.array(OWNERS))
        make_visible(directory, partial, _rewrite(files, documents, chunks, partial))
        return chunks.lost


def _choose_chunks(database: apsw.Connection, documents: Mask, owners: NDArray[np.int32]) -> _KeptChunks:
    """Return the chunks to keep if the documents go that `documents` [documents] marks False."""
    new_owners = owners.astype(np.int64)
    positions = np.zeros(len(owners), np.int64)
    for chunk, position in database.execute("SELECT chunk, position FROM chunks"):
        positions[chunk] = position
    moved: dict[int, _Span] = {}
    repeats: list[tuple[int, ...]] = []
    query = "SELECT document, position, start, stop, tokens, chunk, is_exact FROM repeats ORDER BY document, position"
    for row in database.execute(query):
        document, position, start, stop, tokens, chunk, is_exact = row
        if not documents[document]:
            continue
        if is_exact and not documents[new_owners[chunk]]:
            new_owners[chunk], positions[chunk] = document, position
            moved[chunk] = (position, start, stop, tokens)
        else:
            repeats.append(row)
    kept = documents[new_owners]
    left = [row for row in repeats if kept[row[5]]]
    order = np.lexsort((positions, new_owners))
    return _KeptChunks(order[kept[order]], new_owners, moved, left, len(repeats) - len(left))


def _rewrite(files: IndexFiles, documents: Mask, chunks: _KeptChunks, partial: Path) -> IndexFacts:
    """Write the files of an index with some chunks, and the documents that `documents` [documents] marks True."""
    order = np.flatnonzero(documents)
    arrays, words = _rewrite_postings(files, order, chunks.order)
    new = _Renumbered(
        _renumber(order, len(documents)),
        _renumber(chunks.order, len(chunks.owners)),
        _renumber(np.flatnonzero(words), len(words)),
    )
    arrays[OWNERS] = new.documents[chunks.owners[chunks.order]].astype(np.int32)
    for name, array in arrays.items():
        array.tofile(partial / name)
    if VECTORS in files.facts.files:
        vectors = np.ascontiguousarray(files.array(VECTORS)[chunks.order])
        vectors.tofile(partial / VECTORS)
        has_collections = any(each.name for each in files.facts.collections)
        center = np.array(files.array(CENTER)) if has_collections else compute_center(vectors)
        arrays |= {VECTORS: vectors, SIGNS: write_signs(partial, vectors, center), CENTER: center}
    path = files.folder / DATABASE
    with explain_damage(path), closing(open_read_only(path)) as old, create_database(partial / DATABASE) as database:
        collections = _copy_tables(old, database, new, chunks, files.facts.collections)
        content = _digest_tables(database)
        tokens = database.execute("SELECT sum(tokens) FROM chunks").get
        database.execute(INDEXES)
    erased = int(np.count_nonzero(~documents))
    before = files.facts.counts
    counts = {
        **before,
        "documents": before["documents"] - erased,
        "chunks": len(chunks.order),
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


def _rewrite_postings(files: IndexFiles, documents: Numbers, chunks: Numbers) -> tuple[dict[str, NDArray[Any]], Mask]:
    """Return the arrays of postings of the texts to keep, and a mask of the words that are left: [words].

    The texts are given by their old numbers, in the new order.
    """
    arrays: dict[str, NDArray[Any]] = {}
    words: Mask | None = None
    for names, order in ((DOCUMENT_POSTINGS, documents), (CHUNK_POSTINGS, chunks)):
        starts, texts, counts, lengths = map(files.array, names)
        new_texts = _renumber(order, len(lengths))[texts]
        number = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        left = new_texts >= 0
        if words is not None:  # a moved chunk may have a spelling that its new document does not have
            left &= words[number]
        (places,) = np.nonzero(left)
        places = places[np.lexsort((new_texts[places], number[places]))]
        sizes = np.bincount(number[places], minlength=len(starts) - 1)
        words = sizes > 0 if words is None else words  # a word of a chunk is a word of its document
        new_starts = np.concatenate([[0], np.cumsum(sizes[words])]).astype(np.int64)
        new = new_starts, new_texts[places].astype(np.int32), counts[places], lengths[order]
        arrays |= zip(names, new, strict=True)
    return arrays, np.zeros(0, np.bool_) if words is None else words


def _copy_tables(
    old: apsw.Connection,
    new: apsw.Connection,
    numbers: _Renumbered,
    kept: _KeptChunks,
    collections: Sequence[CollectionFacts],
) -> list[CollectionFacts]:
    """Copy all rows but those of erased documents, and return the collections that are left."""
    documents, chunks, words = (each.tolist() for each in (numbers.documents, numbers.chunks, numbers.words))
    erased: set[str] = set()
    sizes = np.zeros((len(collections), 2), np.int64)
    for number, place, document_id in old.execute("SELECT document, collection, document_id FROM documents"):
        sizes[place, 0] += documents[number] >= 0
        if documents[number] < 0:
            erased.add(document_id)
    places = np.cumsum(sizes[:, 0] > 0) - 1
    for row in old.execute(
        "SELECT document, collection, document_id, title, url, context, metadata, text FROM documents"
    ):
        if documents[row[0]] >= 0:
            values = (documents[row[0]], int(places[row[1]]), *row[2:])
            new.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    query = (
        "SELECT chunk, document, position, start, stop, tokens, collection FROM chunks JOIN documents USING (document)"
    )
    owners = kept.owners.tolist()
    for chunk, _, *span, place in old.execute(query):
        if chunks[chunk] >= 0:
            sizes[place, 1] += 1
            values = (chunks[chunk], documents[owners[chunk]], *kept.moved.get(chunk, span))
            new.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)", values)
    for document, *span, chunk, is_exact in kept.repeats:
        values = (documents[document], *span, chunks[chunk], is_exact)
        new.execute("INSERT INTO repeats VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    for place, document_id, document in old.execute("SELECT collection, document_id, document FROM other_ids"):
        if documents[document] >= 0:
            values = (int(places[place]), document_id, documents[document])
            new.execute("INSERT INTO other_ids VALUES (?, ?, ?)", values)
        else:
            erased.add(document_id)
    for place, name, value, document in old.execute("SELECT collection, name, value, document FROM metadata"):
        if documents[document] >= 0:
            values = (int(places[place]), name, value, documents[document])
            new.execute("INSERT INTO metadata VALUES (?, ?, ?, ?)", values)
    for place, word, number in old.execute("SELECT collection, word, number FROM words"):
        if words[number] >= 0:
            new.execute("INSERT INTO words VALUES (?, ?, ?)", (int(places[place]), word, words[number]))
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
