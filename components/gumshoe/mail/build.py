"""Build an index of mail, add to one, and remove messages from one.

A build writes segments into a directory beside their final place, moves them there when all are complete, and makes
them visible with one last write. A build that was interrupted goes on after its last complete segment.
"""

import itertools
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import blake2b
from heapq import merge
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import apsw
import orjson

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.source_files import UnreadableItem, digest_of_uris
from gumshoe.artifacts.storage import explain_os_errors, is_partial, lock_directory
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport
from gumshoe.mail.inboxes import OwnedSource, OwnerGuess, find_inboxes
from gumshoe.mail.items import MailSource, RawItem
from gumshoe.mail.message import list_texts, normalize_address
from gumshoe.mail.message_preparer import (
    BatchPreparer,
    PreparedBatch,
    PreparedMessage,
    TextTerms,
    analyze_text,
    collect_terms,
)
from gumshoe.mail.schema import SEGMENT_PREFIX, VERSION, IndexState, index_path, read_state, write_state
from gumshoe.mail.segment import IndexSegment, IndexSegments
from gumshoe.mail.segment_writer import SegmentWriter
from gumshoe.mail.sources import open_source
from gumshoe.mail.terms import bare_id
from gumshoe.mail.words import MailAnalyzer
from gumshoe.signals import handle_signals
from gumshoe.terminal import progress

_BATCH = 500
_BATCH_BYTES = 4 << 20
_PARTIAL = ".partial"
_PROGRESS_FILE = "progress.json"


def build_mail_index(
    sources: Iterable[str | OwnedSource],
    directory: Path,
    options: MailBuildOptions | None = None,
    *,
    replace: bool = False,
) -> MailBuildReport:
    """Index the messages of some sources in a directory.

    The index appears when it is complete. An interrupted build leaves nothing that looks finished; the same build
    continues after the last complete segment. With `replace`, an existing index is replaced in one step. Threads that
    have the old one open continue to read it, and their `MailIndex` does not open the new one.

    Raises:
        UsageError: if a source does not exist or has another format, or there is an index already.
        UnavailableError: if another build is in progress.
        GumshoeError: if the index cannot be written.
    """
    return _run(directory, sources, options or MailBuildOptions(), "replace" if replace else "create")


def extend_mail_index(
    sources: Iterable[str | OwnedSource], directory: Path, *, remove: Sequence[str] = ()
) -> MailBuildReport:
    """Add the messages of some sources to an index, with its options, and remove messages by id from all inboxes.

    The result has the content digest of an index that is built from all sources at once, without the removed messages.
    Readers that have the index open continue to see it as it was.

    Raises:
        UsageError: if a source does not exist, there is no index, or a message to remove is not in the index.
        UnavailableError: if another build is in progress.
        GumshoeError: if the index is damaged or cannot be written.
    """
    return _run(directory, sources, None, "extend", remove)


def _run(
    directory: Path,
    sources: Iterable[str | OwnedSource],
    options: MailBuildOptions | None,
    how: Literal["create", "replace", "extend"],
    remove: Sequence[str] = (),
) -> MailBuildReport:
    started = time.monotonic()
    owned = [each if isinstance(each, OwnedSource) else OwnedSource(each) for each in sources]
    opened = [open_source(each.uri) for each in owned]
    if not opened and not remove:
        raise UsageError("mail.no-sources", "no source was given; name one or more sources to index")
    if how == "extend" and not index_path(directory).exists():
        raise UsageError("mail.no-index", f"{directory} contains no mail index; build one with `gumshoe mail index`")
    with explain_os_errors(directory), _explain_sqlite_errors(directory), _lock(directory):
        exists = index_path(directory).exists()
        if exists and how == "create":
            raise UsageError(
                "mail.index-exists",
                f"{directory} contains an index already; choose another directory, replace it with --replace, or add "
                "to it with --into",
            )
        old = read_state(directory) if exists and how == "extend" else None
        _remove_leftovers(directory, read_state(directory).segments if exists else ())
        kept = MailBuildOptions.from_dict(old.facts["options"] if old else {})
        build = _Build(directory, owned, opened, options or kept, old, started)
        with _exit_on_sigterm():
            report = build.run(remove)
    report.seconds = time.monotonic() - started
    return report


def _remove_leftovers(directory: Path, segments: Sequence[str]) -> None:
    """Delete what a killed build left, other than its complete segments, and segments of an earlier index."""
    for path in list(directory.iterdir()):
        if is_partial(path.name):
            path.unlink()
        elif path.name.startswith(SEGMENT_PREFIX) and path.name not in segments:
            shutil.rmtree(path)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C does, so that unfinished files and other processes are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with handle_signals(end, signal.SIGTERM):
        yield


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    with lock_directory(directory, wait=None) as lock:
        if lock is None:
            raise UnavailableError(
                "mail.index-busy",
                f"another process is building an index in {directory}; wait for it, or choose another directory",
            )
        yield


@contextmanager
def _explain_sqlite_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        raise GumshoeError(
            "mail.index-not-written", f"cannot write {directory}: {error}; free space on its disk, then try again"
        ) from None


class _Build:
    """One build or extension of an index."""

    def __init__(
        self,
        directory: Path,
        owned: list[OwnedSource],
        sources: list[MailSource],
        options: MailBuildOptions,
        old: IndexState | None,
        started: float,
    ) -> None:
        self._directory, self._owned, self._sources, self._options = directory, owned, sources, options
        self._old, self._started = old, started
        self._partial = directory / _PARTIAL
        self._analyzer = MailAnalyzer()
        self._allowed = frozenset(map(normalize_address, options.inboxes)) or None
        self._report = MailBuildReport.from_dict(old.facts if old else {})
        self._positions: dict[str, Any] = old.facts.get("positions", {}) if old else {}
        """Position of each source up to which the index has it, of sources that have positions."""
        self._segments = IndexSegments.open(directory, old.segments if old else ())
        self._done: list[Path] = []  # complete segments of this build
        self._consumed = 0  # raw items in them
        self._guesses = [OwnerGuess() for _ in owned]
        self._next = 1 + max((each.first + each.messages - 1 for each in self._segments.segments), default=0)
        names = [*(path.name for path in directory.glob(f"{SEGMENT_PREFIX}*")), f"{SEGMENT_PREFIX}0"]
        self._next_segment = 1 + max(int(name.removeprefix(SEGMENT_PREFIX)) for name in names)

    def run(self, remove: Sequence[str]) -> MailBuildReport:
        self._identity = self._describe_build(remove)
        self._resume()
        self._writer = self._start_segment()
        try:
            if remove and not self._done:  # the first segment of an interrupted build has the removals
                self._remove(remove)
                self._begin_segment()  # so that what was removed can be added again
            self._add_sources()
            self._finish_segment()
        finally:
            self._writer.close()
            if self._writer.directory not in self._done:
                shutil.rmtree(self._writer.directory, ignore_errors=True)
            if not self._done:
                shutil.rmtree(self._partial, ignore_errors=True)
        return self._publish()

    def _describe_build(self, remove: Sequence[str]) -> str:
        """Return a digest of everything that decides what this build writes. IMAP sources give a new one each time."""
        parts = [
            VERSION,
            asdict(self._options),
            [each.to_fact() for each in self._owned],
            digest_of_uris([each.uri for each in self._owned]),
            self._old and self._old.version,
            list(remove),
        ]
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _resume(self) -> None:
        """Take over the complete segments of an interrupted build, if it was the same. Otherwise delete them."""
        try:
            state = orjson.loads((self._partial / _PROGRESS_FILE).read_bytes())
        except (OSError, ValueError):
            state = {}
        complete = all((self._partial / name).is_dir() for name in state.get("segments", ()))
        if state.get("build") != self._identity or not complete:
            shutil.rmtree(self._partial, ignore_errors=True)
            return
        for path in list(self._partial.glob(f"{SEGMENT_PREFIX}*")):
            if path.name not in state["segments"]:
                shutil.rmtree(path)
        self._done = [self._partial / name for name in state["segments"]]
        self._segments = IndexSegments((*self._segments.segments, *map(IndexSegment, self._done)))
        self._consumed, self._next = state["consumed"], state["next"]
        self._report = MailBuildReport.from_dict(state["report"])
        self._guesses = [OwnerGuess(each["messages"], Counter(each["named"])) for each in state["guesses"]]
        self._next_segment += len(self._done)

    def _start_segment(self) -> SegmentWriter:
        directory = self._partial / f"{SEGMENT_PREFIX}{self._next_segment}"
        self._next_segment += 1
        shutil.rmtree(directory, ignore_errors=True)
        return SegmentWriter(directory, self._segments, self._analyzer, self._next)

    def _finish_segment(self) -> None:
        """Complete the current segment. Afterwards the build can go on from here."""
        if self._writer.is_empty:
            return
        self._next = self._writer.next_message
        self._writer.finish()
        self._done.append(self._writer.directory)
        state = {
            "build": self._identity,
            "segments": [path.name for path in self._done],
            "consumed": self._consumed,
            "next": self._next,
            "report": self._report.to_dict(),
            "guesses": [{"messages": each.messages, "named": each.named} for each in self._guesses],
        }
        temporary = self._partial / f"{_PROGRESS_FILE}.new"
        temporary.write_bytes(orjson.dumps(state))
        temporary.replace(self._partial / _PROGRESS_FILE)

    def _begin_segment(self) -> None:
        """Complete the current segment, and start another."""
        self._finish_segment()
        self._segments = IndexSegments((*self._segments.segments, IndexSegment(self._done[-1])))
        self._writer = self._start_segment()

    def _add_sources(self) -> None:
        totals = [source.total for source in self._sources]
        measured = None not in totals  # otherwise messages are counted
        with (
            progress("Indexing", total=sum(filter(None, totals)) if measured else None, in_bytes=measured) as advance,
            BatchPreparer(self._options.to_limits()) as preparer,
        ):
            owners: list[list[int]] = []  # source number of each item, of each batch that is being prepared
            batches = self._read_batches(advance if measured else _ignore_bytes, owners)
            for batch in preparer.prepare(batches):
                self._add_batch(batch, owners.pop(0))
                pace = self._report.read / max(time.monotonic() - self._started, 1e-9)
                advance(0 if measured else len(batch.items), note=f"{self._report.read:,} messages, {pace:,.0f}/s")

    def _read_batches(self, advance: Callable[[int], object], owners: list[list[int]]) -> Iterator[list[RawItem]]:
        """Yield the items of all sources in batches, without those that an interrupted build has indexed."""
        numbered = (
            (number, item)
            for number, each in enumerate(self._sources)
            for item in each.read_after(self._positions.get(each.uri), advance)
        )
        remaining = itertools.islice(numbered, self._consumed, None)
        for batch in _split_batches(remaining):
            owners.append([number for number, _ in batch])
            yield [item for _, item in batch]

    def _add_batch(self, batch: PreparedBatch, sources: list[int]) -> None:
        items = batch.items
        self._writer.begin_batch(batch.terms)
        new = [each for each in items if isinstance(each, PreparedMessage) and each.terms is not None]
        digests = self._segments.find_digests([self._identify(each) for each in new])
        ids = self._segments.find_ids([each.message.message_id for each in new])
        for item, number in zip(items, sources, strict=True):
            if isinstance(item, UnreadableItem):
                self._report.unreadable[item.reason] += 1
                self._writer.add_unreadable(item)
            else:
                self._add_message(item, number, digests, ids)
        self._consumed += len(items)
        self._writer.flush()
        if self._writer.is_full:
            self._begin_segment()

    def _identify(self, prepared: PreparedMessage) -> bytes:
        """Return the digest by which messages are equal."""
        if self._options.drop_duplicates:
            return prepared.digest
        return blake2b(prepared.digest + prepared.message.message_id.encode(), digest_size=16).digest()

    def _add_message(
        self, prepared: PreparedMessage, source: int, digests: dict[bytes, int], ids: dict[str, list[int]]
    ) -> None:
        message, terms, report = prepared.message, prepared.terms, self._report
        report.read += 1
        report.without_id += message.has_generated_id
        report.without_date += message.sent is None
        self._guesses[source].add(message)
        if terms is None:
            report.kept_out[prepared.skipped] += 1
            return
        inboxes = find_inboxes(message, self._owned[source], self._allowed)
        if self._allowed is not None and not inboxes:
            report.kept_out["other inbox"] += 1
            return
        digest = self._identify(prepared)
        number = self._writer.find_digest(digest) or digests.get(digest)
        is_new = number is None or (report.removed > 0 and not self._is_alive(number))
        if number is None:
            number = self._writer.add_message(message, digest, terms)
        if is_new:
            report.messages += 1
            report.without_inbox += not inboxes
            report.attachments.update((each.problem or "read").partition(":")[0] for each in message.attachments)
        else:
            report.kept_out["duplicate"] += 1
        used_by = {*self._writer.find_id(message.message_id), *ids.get(message.message_id, ())} - {number}
        self._writer.add_copy(number, message, prepared.digest, terms, inboxes, sorted(used_by))

    def _is_alive(self, number: int) -> bool:
        """Return True if a copy of a message is left."""
        return self._writer.has_copies(number) or bool(self._segments.read_copies(number))

    def _remove(self, ids: Sequence[str]) -> None:
        """Remove all copies of messages with some ids."""
        copies: dict[int, set[int]] = {}
        for given in ids:
            bare = bare_id(given)
            names = {given, bare, f"<{bare}>"}
            messages = {number for found in self._segments.find_ids(sorted(names)).values() for number in found}
            matching = {
                number: {each.copy for each in self._segments.read_copies(number) if each.message_id in names}
                for number in messages
            }
            if not any(matching.values()):
                raise UsageError(
                    "mail.nothing-to-remove", f"no message of the index has the id {given!r}; check the id"
                )
            for number, found in matching.items():
                copies.setdefault(number, set()).update(found)
        for number, found in sorted(copies.items()):
            self._writer.remove_copies(number, found, self._analyze_again)
            self._report.removed += len(found)
            known = self._segments.read_copies(number)
            if len(found) == len(known):
                self._report.messages -= 1
                self._report.without_inbox -= not any(each.inboxes for each in known)

    def _analyze_again(self, number: int) -> TextTerms:
        text = self._segments.read_text(number)
        analyzed = analyze_text(self._analyzer, text.subject, list_texts(text.body, text.attachments))
        self._writer.begin_batch(collect_terms([analyzed]))
        return analyzed.result

    def _publish(self) -> MailBuildReport:
        """Move the segments to their place, and make the new state visible."""
        report = self._report
        names = []
        for path in self._done:
            path.replace(self._directory / path.name)
            names.append(path.name)
        shutil.rmtree(self._partial, ignore_errors=True)
        kept = self._old.segments if self._old else ()
        segments = (*kept, *names)
        opened = IndexSegments.open(self._directory, segments)
        report.content = _digest_content(opened, self._options)
        for source, guess in zip(self._owned, self._guesses, strict=True):
            if not source.owner and (suggestion := guess.suggest()):
                report.owners[source.uri] = suggestion
        counts = {name: value for name, value in report.to_dict().items() if name not in {"seconds", "owners"}}
        earlier = self._old.facts["sources"] if self._old else []
        facts = {
            "sources": [*earlier, *(each.to_fact() for each in self._owned)],
            "options": asdict(self._options),
            "built": datetime.now(UTC).isoformat(timespec="seconds"),
            "positions": self._positions | {each.uri: each.position for each in self._sources if each.position},
            **counts,
        }
        mark_private(self._directory, None)
        write_state(self._directory, IndexState((self._old.version if self._old else 0) + 1, segments, facts))
        _remove_leftovers(self._directory, segments)
        return report


def _split_batches(items: Iterable[tuple[int, RawItem]]) -> Iterator[list[tuple[int, RawItem]]]:
    """Yield items in batches of at most `_BATCH`, and of about `_BATCH_BYTES` if they are large."""
    batch: list[tuple[int, RawItem]] = []
    size = 0
    for each in items:
        batch.append(each)
        size += len(getattr(each[1], "raw", b""))
        if len(batch) == _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _ignore_bytes(_: int) -> None:
    """Ignore the number of bytes."""


def _digest_content(segments: IndexSegments, options: MailBuildOptions) -> str:
    """Return a digest of all copies of messages, in an order that does not depend on how the index was built."""
    removed = set(segments.collect(lambda each: each.execute("SELECT message, copy FROM removed_copies")))
    digest = blake2b(repr((VERSION, options)).encode(), digest_size=32)
    rows = [each.execute("SELECT digest, message, copy FROM copies ORDER BY digest") for each in segments.segments]
    for content, message, copy in merge(*rows):
        if (message, copy) not in removed:
            digest.update(content)
    return digest.hexdigest()
