"""Build a document index: read the sources, split into chunks, embed, and publish the result in one step."""

import itertools
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import apsw
from numpy.typing import NDArray

from gumshoe.artifacts.hub import get_read_commits
from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.artifacts.storage import explain_os_errors, flush_to_disk, lock_directory, write_atomically
from gumshoe.documents.collection_names import DEFAULT_COLLECTION
from gumshoe.documents.document_writer import DocumentCounts, DocumentWriter
from gumshoe.documents.languages import check_language
from gumshoe.documents.schema import (
    DATABASE,
    FACTS,
    FOLDER,
    INDEXES,
    TABLES,
    VERSION,
    ArrayForm,
    FileFacts,
    IndexFacts,
    chunk_texts,
)
from gumshoe.documents.scraping.extraction import check_installed
from gumshoe.documents.source_entries import CollectionSource, parse_source_entry
from gumshoe.documents.sources import Source, open_source
from gumshoe.documents.staging import CollectionStaging, assign_collection
from gumshoe.embeddings.chunking import MAX_TOKENS, CountTokens, make_token_counter
from gumshoe.embeddings.embedder import DEFAULT_MODEL, Embedder, EndpointEmbedder, TokenCounter, open_embedder
from gumshoe.embeddings.neutral_center import compute_neutral_center
from gumshoe.embeddings.search_options import NO_EMBEDDING
from gumshoe.embeddings.vectors import CENTER, PLAN, SIGNS, VECTORS, compute_center, write_signs, write_vectors
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.extraction.ocr import TextRecognition
from gumshoe.terminal import progress

OpenedCollectionSource = tuple[CollectionSource, Source]
MIN_CHUNK_TOKENS = 32
"""Minimum number of tokens per chunk."""
_LIBRARIES = ("lxml", "openpyxl", "pebble", "pypdf", "pypdfium2", "rensa", "sentencex", "trafilatura")
PARTIAL = ".partial"
"""Directory of the files that a build is writing."""


@dataclass(frozen=True, slots=True)
class DocumentBuildOptions:
    """Options for indexing documents."""

    embedding: str = DEFAULT_MODEL
    """Embedding model, as for `open_embedder`. "none" builds an index without vectors."""
    tokens: int = MAX_TOKENS
    """Maximum tokens per chunk, including the context line, counted by the model's tokenizer."""
    language: str = "en"
    """ISO 639 code of the documents' language, for sentence splitting and stemming."""
    ocr: bool = True
    """Recognize the text of scanned pages of PDF files, if tesseract is installed."""
    drop_duplicates: bool = True
    """Drop documents and chunks that repeat another."""


@dataclass(slots=True)
class DocumentBuildReport:
    """The result of a build."""

    counts: DocumentCounts
    """Numbers of documents and chunks that were read, kept and dropped."""
    content: str
    """Digest of the documents and the options. Equal documents and options give an equal digest."""
    collections: dict[str, int] = field(default_factory=dict)
    """Number of documents of each collection. Empty if everybody may read the index."""
    resumed: int = 0
    """Chunks whose vectors an earlier, interrupted build had computed."""
    seconds: float = 0


def build_document_index(
    sources: Iterable[str | CollectionSource],
    directory: Path,
    options: DocumentBuildOptions | None = None,
    *,
    replace: bool = False,
    embedder: Embedder | None = None,
) -> DocumentBuildReport:
    """Index the documents of some sources in `directory`.

    As soon as one document belongs to a collection, the index has collections: documents without one belong to
    `default`, and a search must say which collections it may read.

    The index appears when it is complete. A killed build leaves nothing that looks finished; if it is started again
    with the same documents and options, it reads the sources again and reuses the vectors. With `replace`, an existing
    index is replaced in one step, and processes that have the old one open get an error that says to open it again.
    `embedder` replaces the model that the options name.

    Raises:
        UsageError: if a source does not exist, has another format, or contains no documents; if an option is
            invalid, the model does not exist, a library is not installed, or the directory has an index already.
        UnavailableError: if another build is in progress.
        StorageError: if the directory is not writable.
        EmbeddingError: if the chunks cannot be embedded.
    """
    started = time.monotonic()
    check_installed("indexing", _LIBRARIES)
    options = options or DocumentBuildOptions()
    listed = [parse_source_entry(each, "invalid source") for each in sources]
    check_options(options)
    recognition = TextRecognition(options.language) if options.ocr else None
    opened = [(each, open_source(each.uri, recognition)) for each in listed]
    if not opened:
        raise UsageError("documents.no-sources", "no source to index; name one or more, e.g. dir:manuals")
    with explain_os_errors(directory), lock_directory(directory, wait=None) as lock:
        if lock is None:
            raise UnavailableError(
                "documents.index-busy",
                f"another build is writing to {directory}; wait for it, or choose another directory",
            )
        if (directory / FACTS).exists() and not replace:
            raise UsageError(
                "documents.index-exists",
                f"{directory} already holds an index; choose another directory, or overwrite it with --replace",
            )
        if embedder is None and options.embedding != NO_EMBEDDING:
            embedder = open_embedder(options.embedding)
        _check_input_limit(options, embedder)
        count = make_token_counter(embedder)
        partial = _prepare_partial(directory)
        facts, report = _build(opened, partial, options, embedder, count)
        make_visible(directory, partial, facts)
    report.seconds = time.monotonic() - started
    return report


def check_options(options: DocumentBuildOptions) -> None:
    """Check options, as far as this is possible without the embedding model.

    Raises:
        UsageError: if the language cannot be indexed, or the chunks are too small.
    """
    check_language(options.language)
    if options.tokens < MIN_CHUNK_TOKENS:
        raise UsageError(
            "documents.invalid-chunk-size", f"tokens per chunk must be >= {MIN_CHUNK_TOKENS}, got {options.tokens}"
        )


def _prepare_partial(directory: Path) -> Path:
    """Return the directory that a build writes to. It contains the files of an interrupted build, if any.

    That build may have been killed while moving its files into place.
    """
    partial = directory / PARTIAL
    facts = directory / FACTS
    published = facts.read_text(errors="replace") if facts.exists() else ""
    for path in list_folders(directory):
        if (path / PLAN).exists() and f'"{path.name}"' not in published and not partial.exists():
            path.rename(partial)
    partial.mkdir(exist_ok=True)
    return partial


def list_folders(directory: Path) -> list[Path]:
    """Return the folders of indexes in a directory. Other folders are not touched."""
    found = (path for path in directory.iterdir() if re.fullmatch(FOLDER, path.name) and (path / DATABASE).is_file())
    return sorted(found)


def _check_input_limit(options: DocumentBuildOptions, embedder: object) -> None:
    """Check that a model can read chunks of that many tokens.

    Raises:
        UsageError: if it cannot.
    """
    limit = embedder.max_tokens if isinstance(embedder, TokenCounter | EndpointEmbedder) else options.tokens
    if options.tokens > limit:
        raise UsageError(
            "documents.invalid-chunk-size",
            f"tokens per chunk must be <= {limit} (the input limit of {options.embedding}), got {options.tokens}",
        )


def _build(
    sources: list[OpenedCollectionSource],
    partial: Path,
    options: DocumentBuildOptions,
    embedder: Embedder | None,
    count: CountTokens,
) -> tuple[IndexFacts, DocumentBuildReport]:
    """Build everything in `partial`, and return its description and the report."""
    path = partial / DATABASE
    path.unlink(missing_ok=True)
    with create_database(path) as database:
        gatherer = DocumentWriter(database, options.tokens, options.language, count, options.drop_duplicates)
        has_collections = _read_sources(sources, gatherer, partial)
        report = DocumentBuildReport(gatherer.counts, content=gatherer.compute_digest(VERSION, asdict(options)))
        if not gatherer.counts.chunks:
            listed = ", ".join(f"{count:,} {reason}" for reason, count in gatherer.counts.unreadable.items())
            raise UsageError(
                "documents.no-documents",
                f"no document to index in {', '.join(each.uri for each, _ in sources)} ({listed or 'empty'}); check "
                "the sources",
            )
        report.collections = {each.name: each.documents for each in gatherer.collections if each.name}
        arrays = gatherer.write_postings(partial)
        database.execute(INDEXES)
    if embedder is not None:
        ends = list(itertools.accumulate(each.chunks for each in gatherer.collections))
        with closing(open_read_only(path)) as reader, progress("Embedding", total=report.counts.chunks) as advance:
            plan = blake2b(f"{report.content} {embedder.name}".encode(), digest_size=16).hexdigest()
            vectors, report.resumed = write_vectors(
                partial, plan, lambda chunk: chunk_texts(reader, chunk), ends, embedder, advance
            )
            center = compute_neutral_center(embedder) if has_collections else compute_center(vectors)
            arrays |= {VECTORS: vectors, SIGNS: write_signs(partial, vectors, center), CENTER: center}
    facts = IndexFacts(
        schema_version=VERSION,
        content=report.content,
        built=datetime.now(UTC).isoformat(timespec="seconds"),
        sources=[each.to_fact() for each, _ in sources],
        revisions=get_read_commits(each.uri for each, _ in sources),
        options=asdict(options),
        counts=asdict(report.counts),
        collections=gatherer.collections,
        folder=f"data-{report.content[:16]}",
        files=describe_index_files(partial, arrays),
    )
    return facts, report


def describe_index_files(partial: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, FileFacts]:
    """Return the facts of the database and of the files of arrays."""
    forms = {name: ArrayForm(dtype=each.dtype.str, shape=each.shape) for name, each in arrays.items()}
    return {
        name: FileFacts(size=(partial / name).stat().st_size, sha256=file_digest(partial / name), array=forms.get(name))
        for name in (DATABASE, *forms)
    }


def _read_sources(sources: list[OpenedCollectionSource], gatherer: DocumentWriter, partial: Path) -> bool:
    """Add the documents of all sources, one collection after the other. Return True if the index has collections."""
    totals = [source.total for _, source in sources]
    total = None if None in totals else sum(filter(None, totals))
    with (
        closing(CollectionStaging(partial)) as staging,
        progress("Reading", total=total, in_bytes=total is not None) as advance,
    ):
        for entry, source in sources:
            for item in source.read(advance if total is not None else _ignore_bytes):
                found = assign_collection(item, entry.collection, source.uri)
                if isinstance(found, UnreadableItem) or not staging.add(found):
                    gatherer.add(found)
                counts = gatherer.counts
                advance(int(total is None), note=f"{counts.documents:,} documents, {counts.chunks:,} chunks")
        gatherer.end_collection(DEFAULT_COLLECTION if staging.is_used else "")
        for name, documents in staging.read():
            for document in documents:
                gatherer.add(document)
            gatherer.end_collection(name)
        return staging.is_used


def _ignore_bytes(_: int) -> None:
    """Ignore the number of bytes."""


@contextmanager
def create_database(path: Path) -> Iterator[apsw.Connection]:
    """Create a database without a journal: nobody else reads it before it is moved into place.

    Raises:
        GumshoeError: if the disk is full, or fails.
    """
    try:
        database = apsw.Connection(str(path))
        try:
            for setting in ("journal_mode = off", "synchronous = off", "locking_mode = exclusive"):
                database.execute(f"PRAGMA {setting}")
            database.execute("BEGIN")
            database.execute(TABLES)
            yield database
            database.execute("COMMIT")
        finally:
            database.close()
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        raise GumshoeError(
            "documents.index-not-written",
            f"cannot write {path} ({error}); free space on its disk, then run the command again",
        ) from None


def make_visible(directory: Path, partial: Path, facts: IndexFacts) -> None:
    """Move the built files into place. `index.json`, which names their folder, is written last."""
    names = itertools.chain([facts.folder], (f"{facts.folder}-{count}" for count in itertools.count(2)))
    folder = next(name for name in names if not (directory / name).exists())
    for path in partial.iterdir():
        if path.name in facts.files:
            flush_to_disk([path])
        elif path.name != PLAN:
            path.unlink()
    partial.rename(directory / folder)
    text = facts.model_copy(update={"folder": folder}).model_dump_json(indent=2)
    write_atomically(directory / FACTS, BytesIO(f"{text}\n".encode()))
    (directory / folder / PLAN).unlink(missing_ok=True)
    for path in list_folders(directory):
        if path.name != folder:
            shutil.rmtree(path)
