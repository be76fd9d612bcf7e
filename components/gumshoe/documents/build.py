"""Build an index of documents: read the sources, cut, embed, and make it appear whole or not at all."""

import itertools
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import apsw

from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.artifacts.storage import directory_lock, explain_os_errors, write_atomically
from gumshoe.documents.chunking import CountTokens, estimate_tokens
from gumshoe.documents.gathering import Counts, DocumentGatherer
from gumshoe.documents.installed import check_installed
from gumshoe.documents.lexical import check_language
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
from gumshoe.documents.sources import Source, open_source
from gumshoe.documents.vectors import PLAN, write_vectors
from gumshoe.embeddings.embedder import DEFAULT, CountsTokens, Embedder, open_embedder
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.terminal import progress

NO_EMBEDDING = "none"
SMALLEST = 32
"""Tokens of a chunk, at the least."""
_LIBRARIES = ("bm25s", "pebble", "pypdf", "rensa", "sentencex", "trafilatura")
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class DocumentBuildOptions:
    """How documents are indexed."""

    embedding: str = DEFAULT
    """The embedding model, as `open_embedder` takes it; "none" makes an index of words alone."""
    tokens: int = 256
    """Most tokens of a chunk, with the line above it, as the model's own tokenizer counts them."""
    language: str = "en"
    """Of the documents, by ISO 639: how sentences end, and how words are reduced to stems."""
    drop_duplicates: bool = True
    """Leave out documents and chunks that repeat another."""


@dataclass(slots=True)
class DocumentBuildReport:
    """What a build did."""

    counts: Counts
    """What was read, kept and left out."""
    content: str
    """Digest of what was indexed and how: equal for equal documents and options."""
    resumed: int = 0
    """Chunks whose vectors an earlier build had made that was stopped."""
    seconds: float = 0


def build_index(
    sources: Iterable[str],
    directory: Path,
    options: DocumentBuildOptions | None = None,
    *,
    replace: bool = False,
    embedder: Embedder | None = None,
) -> DocumentBuildReport:
    """Index the documents of some sources in `directory`.

    The index appears when it is whole. A build that is killed leaves nothing that looks finished; started again with
    the same documents and options, it goes on with the vectors that it had made. With `replace`, an index that is
    there already is replaced in one step; who has the old one open is told to open it again. `embedder` is used in
    place of the one that the options name.

    Raises:
        UsageError: a source does not exist, has another format, or holds no documents; an option is invalid, the model
            does not exist, a library is not installed, or the directory has an index already.
        UnavailableError: another build is under way.
        StorageError: the directory cannot be written to.
        EmbeddingError: the chunks cannot be embedded.
    """
    started = time.monotonic()
    check_installed("indexing", _LIBRARIES)
    options = options or DocumentBuildOptions()
    opened = [open_source(uri) for uri in sources]
    if not opened:
        raise UsageError("documents.no-sources", "no source to index; name one or more, e.g. dir:manuals")
    check_language(options.language)
    if options.tokens < SMALLEST:
        raise UsageError(
            "documents.invalid-chunk-size", f"tokens per chunk must be >= {SMALLEST}, got {options.tokens}"
        )
    with explain_os_errors(directory), directory_lock(directory, wait=None) as lock:
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
        count = _token_counter(options, embedder)
        partial = _begun(directory)
        facts, report = _build(opened, partial, options, embedder, count)
        _make_visible(directory, partial, facts)
    report.seconds = time.monotonic() - started
    return report


def _begun(directory: Path) -> Path:
    """Where a build writes; what an earlier one had made is there, though it was killed as it moved that into place."""
    partial = directory / _PARTIAL
    facts = directory / FACTS
    told = facts.read_text(errors="replace") if facts.exists() else ""
    for path in _folders(directory):
        if (path / PLAN).exists() and f'"{path.name}"' not in told and not partial.exists():
            path.rename(partial)
    partial.mkdir(exist_ok=True)
    return partial


def _folders(directory: Path) -> list[Path]:
    """The folders of indexes in a directory, whose other things are not touched."""
    found = (path for path in directory.iterdir() if re.fullmatch(FOLDER, path.name) and (path / DATABASE).is_file())
    return sorted(found)


def _token_counter(options: DocumentBuildOptions, embedder: object) -> CountTokens:
    """
    Raises:
        UsageError: the model does not read that many tokens.
    """
    if not isinstance(embedder, CountsTokens):
        return estimate_tokens
    if options.tokens > embedder.longest:
        raise UsageError(
            "documents.invalid-chunk-size",
            f"tokens per chunk must be <= {embedder.longest} (the input limit of {options.embedding}), got "
            f"{options.tokens}",
        )
    counting = embedder
    return lambda texts: counting.count_tokens(texts, "passage")


def _build(
    sources: list[Source], partial: Path, options: DocumentBuildOptions, embedder: Embedder | None, count: CountTokens
) -> tuple[IndexFacts, DocumentBuildReport]:
    """Make everything in `partial`, and say what it is."""
    path = partial / DATABASE
    path.unlink(missing_ok=True)
    with _writing(path) as database:
        gatherer = DocumentGatherer(database, options.tokens, options.language, count, options.drop_duplicates)
        _read(sources, gatherer)
        report = DocumentBuildReport(gatherer.counts, content=gatherer.digest(VERSION, asdict(options)))
        if not gatherer.counts.chunks:
            listed = ", ".join(f"{count:,} {reason}" for reason, count in gatherer.counts.unreadable.items())
            raise UsageError(
                "documents.no-documents",
                f"no document to index in {', '.join(each.uri for each in sources)} ({listed or 'empty'}); check the "
                "sources",
            )
        arrays = gatherer.write_words(partial)
        database.execute(INDEXES)
    if embedder is not None:
        with closing(open_read_only(path)) as reader, progress("Embedding", total=report.counts.chunks) as advance:
            plan = blake2b(f"{report.content} {embedder.name}".encode(), digest_size=16).hexdigest()
            made, report.resumed = write_vectors(
                partial, plan, lambda chunk: chunk_texts(reader, chunk), report.counts.chunks, embedder, advance
            )
            arrays |= made
    forms = {name: ArrayForm(dtype=each.dtype.str, shape=each.shape) for name, each in arrays.items()}
    files = {
        name: FileFacts(size=(partial / name).stat().st_size, sha256=file_digest(partial / name), array=forms.get(name))
        for name in (DATABASE, *forms)
    }
    facts = IndexFacts(
        schema_version=VERSION,
        content=report.content,
        built=datetime.now(UTC).isoformat(timespec="seconds"),
        sources=[source.uri for source in sources],
        options=asdict(options),
        counts=asdict(report.counts),
        folder=f"data-{report.content[:16]}",
        files=files,
    )
    return facts, report


def _read(sources: list[Source], gatherer: DocumentGatherer) -> None:
    totals = [source.total for source in sources]
    total = None if None in totals else sum(filter(None, totals))
    with progress("Reading", total=total, in_bytes=total is not None) as advance:
        for source in sources:
            for item in source.read(advance if total is not None else _ignore):
                gatherer.add(item)
                counts = gatherer.counts
                advance(int(total is None), note=f"{counts.documents:,} documents, {counts.chunks:,} chunks")


def _ignore(_: int) -> None:
    """Takes no account of bytes."""


@contextmanager
def _writing(path: Path) -> Iterator[apsw.Connection]:
    """A new database, written without a journal: until it is moved into place, nobody else reads it.

    Raises:
        GumshoeError: the disk is full, or fails.
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


def _make_visible(directory: Path, partial: Path, facts: IndexFacts) -> None:
    """Move what was built into place; the last write is that of the facts, which name its folder."""
    names = itertools.chain([facts.folder], (f"{facts.folder}-{count}" for count in itertools.count(2)))
    folder = next(name for name in names if not (directory / name).exists())
    for path in partial.iterdir():
        if path.name in facts.files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.name != PLAN:
            path.unlink()
    partial.rename(directory / folder)
    told = facts.model_copy(update={"folder": folder}).model_dump_json(indent=2)
    write_atomically(directory / FACTS, BytesIO(f"{told}\n".encode()))
    (directory / folder / PLAN).unlink(missing_ok=True)
    for path in _folders(directory):
        if path.name != folder:
            shutil.rmtree(path)
