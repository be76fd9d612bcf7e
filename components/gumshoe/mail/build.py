"""Build an index of mail, add to one, and remove messages from one.

A build writes segments into a directory beside their final place, embeds their messages if the options name a model,
moves them when all are complete, and makes them visible with one last write. A build that was interrupted goes on after
its last complete segment, or its last complete window of vectors.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from gumshoe.artifacts.source_files import digest_of_uris, is_on_server
from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.embeddings.chunking import check_splitter
from gumshoe.embeddings.embedder import Embedder, open_embedder
from gumshoe.embeddings.search_options import NO_EMBEDDING
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index_build import IndexBuild, IndexChanges
from gumshoe.mail.index_directory import change_index, check_is_new, remove_leftovers
from gumshoe.mail.items import MailSource
from gumshoe.mail.schema import check_exists, read_state
from gumshoe.mail.sources import open_source
from gumshoe.mail.sync_build import SyncBuild


def build_mail_index(
    sources: Iterable[str | OwnedSource],
    directory: Path,
    options: MailBuildOptions | None = None,
    *,
    replace: bool = False,
    embedder: Embedder | None = None,
) -> MailBuildReport:
    """Index the messages of some sources in a directory.

    The index appears when it is complete. An interrupted build leaves nothing that looks finished; the same build
    continues after the last complete segment. With `replace`, an existing index is replaced in one step. Threads that
    have the old one open continue to read it, and their `MailIndex` does not open the new one. `embedder` replaces the
    model that the options name.

    Raises:
        UsageError: if a source does not exist or has another format, there is an index already, or the embedding model
            does not exist.
        UnavailableError: if another build is in progress.
        EmbeddingError: if the messages cannot be embedded.
        GumshoeError: if the index cannot be written.
    """
    options = options or MailBuildOptions()
    return _run(directory, sources, options, "replace" if replace else "create", embedder=embedder)


def extend_mail_index(
    sources: Iterable[str | OwnedSource],
    directory: Path,
    *,
    remove: Sequence[str] = (),
    sync: bool = False,
    allow_missing: bool = False,
    compact: bool = False,
    embedder: Embedder | None = None,
) -> MailBuildReport:
    """Add the messages of some sources to an index, with its options, and remove messages by id from all inboxes.

    The result has the content digest of an index that is built from all sources at once, without the removed messages.
    With `sync`, it is that of an index of these sources alone: what none of them holds any more is removed. If items
    cannot be read that are new or could be read before, everything is kept, unless `allow_missing` is set.

    Readers that have the index open continue to see it as it was. With `compact`, all segments are written anew, which
    erases removed text, and threads that open old ones later get an error. `embedder` replaces the model that the index
    names.

    Raises:
        UsageError: if a source does not exist, there is no index, a message to remove is not in the index, or the
            embedding model does not exist or is another one than before. With `sync`, also if a source has no messages
            any more, unless `allow_missing` is set.
        UnavailableError: if another build is in progress.
        EmbeddingError: if the messages cannot be embedded.
        GumshoeError: if the index is damaged or cannot be written.
    """
    changes = IndexChanges(remove, sync, allow_missing, compact)
    return _run(directory, sources, None, "extend", changes, embedder)


def _run(
    directory: Path,
    sources: Iterable[str | OwnedSource],
    options: MailBuildOptions | None,
    how: Literal["create", "replace", "extend"],
    changes: IndexChanges | None = None,
    embedder: Embedder | None = None,
) -> MailBuildReport:
    started = time.monotonic()
    owned = [each if isinstance(each, OwnedSource) else OwnedSource(each) for each in sources]
    opened, content = _open_sources([each.uri for each in owned])
    changes = changes or IndexChanges()
    if not opened and (changes.sync or not (changes.remove or changes.compact)):
        raise UsageError("mail.no-sources", "no source was given; name one or more sources to index")
    if how == "extend":
        check_exists(directory)
    with explain_damage(directory), change_index(directory):
        if how == "create":
            check_is_new(directory)
        old = read_state(directory) if how == "extend" else None
        if how != "replace":  # otherwise the old index stays until the new one is complete
            remove_leftovers(directory, old.segments if old else (), at_once=how == "create")
        with explain_damage(directory, content=old is not None):
            kept = MailBuildOptions.from_dict(old.facts["options"] if old else {})
        options = options or kept
        if options.embedding == NO_EMBEDDING or not opened:
            embedder = None
        else:
            check_splitter()
            embedder = embedder or open_embedder(options.embedding)
        kind = SyncBuild if changes.sync else IndexBuild
        with explain_damage(directory, content=old is not None):
            build = kind(directory, owned, opened, content, options, old, started, embedder, changes)
        report = build.run()
    report.seconds = time.monotonic() - started
    return report


def _open_sources(uris: Sequence[str]) -> tuple[list[MailSource], str]:
    """Open sources, and return them with a digest of their content, without that of servers.

    The digest is taken before files are listed: what changes in between changes the digest of the next build.
    """
    try:
        content = digest_of_uris(uri for uri in uris if not is_on_server(uri))
    except GumshoeError:
        for uri in uris:
            open_source(uri)  # its error tells more about a source that does not exist
        raise
    return [open_source(uri) for uri in uris], content
