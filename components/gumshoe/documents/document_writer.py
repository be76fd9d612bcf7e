"""Write documents into the tables of an index: drop duplicates, assign ids, split into chunks."""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw
import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.documents.document import Document, Metadata
from gumshoe.documents.lexical import AnalyzedText, Analyzer, PostingsBuilder
from gumshoe.documents.schema import CHUNK, CHUNK_POSTINGS, DOCUMENT_POSTINGS, OWNERS, CollectionFacts
from gumshoe.embeddings.chunking import Chunk, CountTokens, split_text
from gumshoe.mail.message import clean

MIN_SIMILARITY = 0.9
"""Jaccard similarity of word triples from which two chunks are near duplicates."""
_TRIPLE = 3
_PERMUTATIONS, _BANDS = 128, 16  # 8 rows per band: chunks with 90 % similarity are compared in 99.99 % of cases
_SEED = 1
_MAX_CANDIDATES, _MAX_CACHED = 50, 200  # chunks that one is compared with, and whose triples are kept
_WORD = re.compile(r"\w+")

DuplicateKind = Literal["exact", "near"]


class Repeat(NamedTuple):
    """A chunk repeats a kept one."""

    kind: DuplicateKind
    number: int
    """Number of the kept chunk."""


@dataclass(slots=True)
class DocumentCounts:
    """Numbers of documents and chunks that were read, kept and dropped."""

    documents: int = 0
    """Documents in the index."""
    chunks: int = 0
    """Chunks in the index."""
    tokens: int = 0
    """Tokens of these chunks."""
    read: int = 0
    """Documents that could be read."""
    duplicates: dict[str, int] = field(default_factory=dict)
    """Dropped duplicates, by kind."""
    renamed: int = 0
    """Documents whose id was used already. They are listed under it with a number."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """Items that could not be read as a document, by reason. The table `unreadable` lists each."""


class _NumberedTerms(NamedTuple):
    words: list[int]
    extras: list[int]

    def join(self, others: Iterable["_NumberedTerms"]) -> "_NumberedTerms":
        """Return the terms of several texts."""
        listed = [self, *others]
        return _NumberedTerms(
            list(itertools.chain.from_iterable(each.words for each in listed)),
            list(itertools.chain.from_iterable(each.extras for each in listed)),
        )


class DocumentWriter:
    """Write documents in order, one collection after the other, into a database that has the tables of an index.

    Invariant: what is written for a document depends on the documents of its own collection only.
    """

    def __init__(
        self, database: apsw.Connection, budget: int, language: str, count: CountTokens, drop_duplicates: bool
    ) -> None:
        self.counts = DocumentCounts()
        self.collections: list[CollectionFacts] = []
        """The collections that are complete."""
        self._database, self._budget, self._language, self._count = database, budget, language, count
        self._words = 0
        self._analyzer = Analyzer(language)
        self._of_documents = PostingsBuilder()
        self._of_chunks = PostingsBuilder()
        self._owners: list[int] = []
        self._content = blake2b(digest_size=32)
        self._drops = drop_duplicates
        self._begin_collection()

    def _begin_collection(self) -> None:
        """Forget ids, texts and words, so that nothing in the next collection depends on the earlier ones."""
        self._numbers: dict[str, int] = {}
        self._ids: set[str] = set()
        self._next_numbers: dict[str, Iterator[int]] = {}  # of the next documents with an id that others have
        self._contents: dict[bytes, int] = {}
        self._duplicates = DuplicateFinder(self._read_chunk)
        self._first = (self.counts.documents, self.counts.chunks)

    def end_collection(self, name: str) -> None:
        """End the collection of the documents that were added since the last one. Without documents, it is left out."""
        documents, chunks = self.counts.documents - self._first[0], self.counts.chunks - self._first[1]
        if not documents:
            return
        rows = ((len(self.collections), word, number) for word, number in self._numbers.items())
        self._database.executemany("INSERT INTO words VALUES (?, ?, ?)", rows)
        self.collections.append(CollectionFacts(name=name, documents=documents, chunks=chunks))
        self._content.update(json.dumps(["collection", name]).encode())
        self._words += len(self._numbers)
        self._begin_collection()

    def _number_terms(self, text: AnalyzedText) -> "_NumberedTerms":
        """Return the numbers of the terms of a text."""
        numbers, first = self._numbers, self._words
        words, extras = (
            [numbers.setdefault(term, first + len(numbers)) for term in terms] for terms in (text.words, text.extras)
        )
        return _NumberedTerms(words, extras)

    def add(self, item: Document | UnreadableItem) -> None:
        """Add a document, or record an unreadable item."""
        if isinstance(item, UnreadableItem):
            _increment(self.counts.unreadable, item.reason)
            row = (clean(item.where), item.reason, clean(item.detail))
            self._database.execute("INSERT INTO unreadable VALUES (?, ?, ?)", row)
            return
        self.counts.read += 1
        digest = blake2b(f"{item.title}\0{item.text}".encode(), digest_size=16).digest()
        same = self._contents.get(digest)
        if same is not None and self._drops:
            self._add_duplicate(item, same)
            return
        self._contents.setdefault(digest, self.counts.documents)
        self._add_new(self._reserve_id(item.document_id), item, self.counts.documents)
        self.counts.documents += 1

    def _add_duplicate(self, document: Document, kept: int) -> None:
        _increment(self.counts.duplicates, "documents")
        self._add_metadata(document, kept)
        if document.document_id in self._ids:
            return
        self._ids.add(document.document_id)
        row = (len(self.collections), document.document_id, kept)
        self._database.execute("INSERT INTO other_ids VALUES (?, ?, ?)", row)
        self._content.update(f"={document.document_id}\0{kept}\n".encode())

    def _reserve_id(self, document_id: str) -> str:
        """Return the id, with a number if another document has it."""
        free = document_id
        while free in self._ids:
            free = f"{document_id}~{next(self._next_numbers.setdefault(document_id, itertools.count(2)))}"
        self.counts.renamed += free != document_id
        self._ids.add(free)
        return free

    def _add_new(self, document_id: str, document: Document, number: int) -> None:
        chunked = split_text(document.text, document.list_context(), self._budget, self._count, self._language)
        metadata = _to_json(document.metadata)
        row = (number, document_id, document.title, document.url, chunked.context, metadata, document.text)
        collection = len(self.collections)
        self._content.update(json.dumps([row, [(each.start, each.stop) for each in chunked.chunks]]).encode())
        self._database.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (number, collection, *row[1:]))
        self._add_metadata(document, number)
        texts = [chunked.context, *(document.text[each.start : each.stop] for each in chunked.chunks)]
        of_context, *of_chunks = [self._number_terms(self._analyzer.analyze(each)) for each in texts]
        self._of_documents.add(*of_context.join(of_chunks))
        repeated: list[tuple[int, Chunk, Repeat]] = []
        for position, chunk in enumerate(chunked.chunks):
            text = document.text[chunk.start : chunk.stop]
            found = self._duplicates.find(self.counts.chunks, chunked.context, text) if self._drops else None
            if found:
                repeated.append((position, chunk, found))
            else:
                self._add_chunk(number, position, chunk, of_context.join([of_chunks[position]]))
        if chunked.chunks and len(repeated) == len(chunked.chunks):  # a document without chunks could never be found
            del repeated[0]
            self._add_chunk(number, 0, chunked.chunks[0], of_context.join([of_chunks[0]]))
        for position, chunk, (kind, kept) in repeated:
            _increment(self.counts.duplicates, f"{kind} chunks")
            dropped = (number, position, chunk.start, chunk.stop, chunk.tokens, kept, kind == "exact")
            self._database.execute("INSERT INTO repeats VALUES (?, ?, ?, ?, ?, ?, ?)", dropped)

    def _add_metadata(self, document: Document, number: int) -> None:
        """Let filters find a document by the metadata of another one, which is itself or its duplicate."""
        self._content.update(f"{number}{_to_json(document.metadata)}\n".encode())
        for name, value in document.metadata.items():
            values = dict.fromkeys(each.casefold() for each in (value if isinstance(value, list) else [value]))
            rows = [(len(self.collections), name, each, number) for each in values]
            self._database.executemany("INSERT OR IGNORE INTO metadata VALUES (?, ?, ?, ?)", rows)

    def _add_chunk(self, document: int, position: int, chunk: Chunk, terms: "_NumberedTerms") -> None:
        row = (self.counts.chunks, document, position, chunk.start, chunk.stop, chunk.tokens)
        self._database.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)", row)
        self._content.update(f"#{position}\n".encode())
        self.counts.chunks += 1
        self.counts.tokens += chunk.tokens
        self._owners.append(document)
        self._of_chunks.add(*terms)

    def _read_chunk(self, number: int) -> tuple[str, str]:
        """Return context and text of a kept chunk."""
        context, text, start, stop = next(self._database.execute(f"{CHUNK} WHERE chunk = ?", (number,)))
        return context, text[start:stop]

    def compute_digest(self, *options: Any) -> str:
        """Return a digest of everything that was kept, and of the given options."""
        whole = self._content.copy()
        whole.update(json.dumps(options, sort_keys=True).encode())
        return whole.hexdigest()

    def write_postings(self, partial: Path) -> dict[str, NDArray[Any]]:
        """Write the arrays of the lexical retriever to files, and return the array of each file."""
        arrays: dict[str, NDArray[Any]] = {OWNERS: np.asarray(self._owners, np.int32)}
        for names, builder in ((DOCUMENT_POSTINGS, self._of_documents), (CHUNK_POSTINGS, self._of_chunks)):
            found = builder.finish(self._words)
            arrays |= zip(names, (found.starts, found.texts, found.counts, found.lengths), strict=True)
        for name, array in arrays.items():
            array.tofile(partial / name)
        return arrays


def _to_json(metadata: Metadata) -> str:
    return json.dumps(metadata, ensure_ascii=False, sort_keys=True)


def _increment(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1


class DuplicateFinder:
    """Detect chunks that repeat an earlier chunk with the same context line.

    Chunks with different context lines are never duplicates: the same words about another subject are new information.
    `read` returns context and text of a kept chunk by its number. Of many similar chunks, such as form letters, each
    new one is compared with the first ones only.
    """

    def __init__(self, read: Callable[[int], tuple[str, str]]) -> None:
        from rensa import RMinHashLSH

        self._read_triples = lru_cache(_MAX_CACHED)(lambda number: _word_triples(*map(_normalize_words, read(number))))
        self._exact: dict[bytes, int] = {}
        self._near = RMinHashLSH(MIN_SIMILARITY, _PERMUTATIONS, _BANDS)

    def find(self, number: int, context: str, text: str) -> Repeat | None:
        """Return the earlier chunk that a chunk repeats. Remember a chunk that repeats none under its number."""
        words, context_words = _normalize_words(text), _normalize_words(context)
        digest = blake2b(f"{context_words}\0{words}".encode(), digest_size=16).digest()
        if digest in self._exact:
            return Repeat("exact", self._exact[digest])
        triples = _word_triples(context_words, words)
        sketch = _sketch()
        sketch.update(sorted(triples))
        for candidate in sorted(self._near.query(sketch))[:_MAX_CANDIDATES]:
            others = self._read_triples(candidate)
            if len(triples & others) >= MIN_SIMILARITY * len(triples | others):
                return Repeat("near", candidate)
        self._exact[digest] = number
        self._near.insert(number, sketch)
        return None


def _sketch() -> Any:
    from rensa import RMinHash

    return RMinHash(_PERMUTATIONS, _SEED)


def _normalize_words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold())) or text


def _word_triples(context_words: str, words: str) -> set[str]:
    """Return all sequences of three words, combined with the context, so that other contexts share none."""
    listed = words.split()
    places = range(max(1, len(listed) - _TRIPLE + 1))
    return {f"{context_words}\0{' '.join(listed[place : place + _TRIPLE])}" for place in places}
