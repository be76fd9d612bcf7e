"""Write the segments of a build or an extension of an index, and publish them."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from gumshoe.artifacts.hub import get_read_commits
from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.embeddings.embedder import Embedder
from gumshoe.errors import UsageError
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport, count_attachments
from gumshoe.mail.inboxes import (
    Inboxes,
    OwnedSource,
    OwnerGuess,
    find_inboxes,
    has_sender,
    is_genuine,
    judge_sender,
)
from gumshoe.mail.index_directory import PARTIAL, digest_content, explain_write_errors, remove_leftovers
from gumshoe.mail.items import MailSource
from gumshoe.mail.mail_directory import identify_unreadable
from gumshoe.mail.meaning import MeaningSearch
from gumshoe.mail.message import list_texts, normalize_address
from gumshoe.mail.message_preparer import MessageLimits
from gumshoe.mail.posting_texts import measure_size
from gumshoe.mail.prepared_messages import PreparedBatch, PreparedMessage, TextTerms
from gumshoe.mail.schema import SEGMENT_PREFIX, VERSION, IndexState, write_state
from gumshoe.mail.segment import IndexSegment, IndexSegments
from gumshoe.mail.segment_rewriter import SegmentRewriter, choose_merge
from gumshoe.mail.segment_writer import SegmentWriter
from gumshoe.mail.source_batches import NumberedItem, prepare_items
from gumshoe.mail.source_reader import SourceReader
from gumshoe.mail.term_collector import TermCollector
from gumshoe.mail.unfinished_build import UnfinishedBuild
from gumshoe.mail.words import MailAnalyzer
from gumshoe.signals import delay_signals

UNSURE = "unreadable_is_unsure"
"""Fact of an index: digests (`identify_unreadable`) of the items that extensions could not read, which may be messages
that the index has from before. True stands for all items that it lists.

A sync that misses messages treats these items as doubtful. See `MailBuildReport`."""


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What to do with the present content of an index. See `extend_mail_index`."""

    remove: Sequence[str] = ()
    sync: bool = False
    allow_missing: bool = False
    compact: bool = False


class IndexBuild:
    """One build or extension of an index."""

    def __init__(
        self,
        directory: Path,
        owned: list[OwnedSource],
        sources: list[MailSource],
        content: str,
        options: MailBuildOptions,
        old: IndexState | None,
        started: float,
        embedder: Embedder | None,
        changes: IndexChanges,
    ) -> None:
        self._directory, self._owned, self._sources, self._options = directory, owned, sources, options
        self._old, self._started, self._embedder, self._changes = old, started, embedder, changes
        self._partial = directory / PARTIAL
        self._unfinished = UnfinishedBuild(self._partial)
        self._trusting = [each.add_trust(options.trust_from, options.trust_authserv) for each in owned]
        self._analyzer = MailAnalyzer()
        self._allowed = frozenset(map(normalize_address, options.inboxes)) or None
        facts = old.facts if old else {}
        self._earlier_facts = facts
        """Facts of the index that this build adds to."""
        self._content = content
        """Digest of the content of the sources, without that of servers, from before they were opened."""
        self._report = MailBuildReport.from_dict(facts)
        self._positions: dict[str, Any] = facts.get("positions", {})
        """Position of each source up to which the index has it, of sources that have positions."""
        self._segments = IndexSegments.open(directory, old.segments if old else ())
        self._listed = {identify_unreadable(place, reason) for place, reason, _ in self._segments.list_unreadable()}
        """Digests of the unreadable items that the index lists before this build."""
        self._done: list[Path] = []  # complete segments of this build
        self._reader = SourceReader(sources, self._positions)
        self._guesses = [OwnerGuess() for _ in owned]
        self._next = 1 + max((each.first + each.messages - 1 for each in self._segments.segments), default=0)
        names = [*(path.name for path in directory.glob(f"{SEGMENT_PREFIX}*")), f"{SEGMENT_PREFIX}0"]
        self._next_segment = 1 + max(int(name.removeprefix(SEGMENT_PREFIX)) for name in names)

    def run(self) -> MailBuildReport:
        """Write the segments, or go on with those of an interrupted build, and publish them.

        Raises:
            UsageError: if a message to remove is not in the index, or the embedding model is another one than before.
            EmbeddingError: if the messages cannot be embedded.
            UnavailableError, StorageError: if a source failed.
        """
        remove = self._changes.remove
        if self._embedder:
            MeaningSearch(self._segments, self._options.embedding).check_same_model(self._embedder)
        self._identity = self._describe_build()
        self._resume()
        self._writer = self._start_segment()
        try:
            if remove and not self._done:  # the first segment of an interrupted build has the removals
                with self._explain_damage():
                    self._remove(remove)
                self._begin_segment()  # so that what was removed can be added again
            self._add_sources()
            self._finish_segment()
        finally:
            self._writer.close()
            if self._writer.directory not in self._done:
                shutil.rmtree(self._writer.directory, ignore_errors=True)
            if not self._done:
                self._unfinished.clear()
        if self._embedder:
            self._unfinished.embed(self._done, self._embedder)
        try:
            with self._explain_damage():
                return self._publish(self._merge())
        except BaseException:
            self._remove_merged()
            raise

    @contextmanager
    def _explain_damage(self) -> Iterator[None]:
        """Explain the errors of damaged values. Only for what reads the index: sources and models fail too."""
        with (
            explain_damage(self._directory, content=self._old is not None),
            explain_write_errors(self._directory),  # of merges, which also write
        ):
            yield

    def _describe_build(self) -> str:
        """Return a digest of everything that decides what this build writes.

        The mail of IMAP accounts is not part of it, since an interrupted build reads on from their positions.
        """
        parts = [
            VERSION,
            asdict(self._options),
            self._embedder and self._embedder.name,
            [each.to_fact() for each in self._owned],
            self._content,
            self._old and self._old.version,
            astuple(self._changes),
        ]
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _resume(self) -> None:
        """Take over the complete segments of an interrupted build, if it was the same. Otherwise delete them."""
        state = self._unfinished.read_progress()
        if state.get("identity") != self._identity:
            self._unfinished.discard(self._embedder)
            return
        for path in list(self._partial.glob(f"{SEGMENT_PREFIX}*")):
            if path.name not in state["segments"]:
                shutil.rmtree(path)
        self._done = [self._partial / name for name in state["segments"]]
        self._segments = IndexSegments((*self._segments.segments, *map(IndexSegment, self._done)))
        self._reader.continue_from(state["sources"])
        self._next = state["next"]
        self._report = MailBuildReport.from_dict(state["report"])
        self._guesses = [OwnerGuess(each["messages"], Counter(each["named"])) for each in state["guesses"]]
        self._next_segment += len(self._done)

    def _start_segment(self) -> SegmentWriter:
        directory = self._partial / f"{SEGMENT_PREFIX}{self._next_segment}"
        self._next_segment += 1
        shutil.rmtree(directory, ignore_errors=True)
        return SegmentWriter(directory, self._segments, self._analyzer, self._next)

    def _finish_segment(self) -> None:
        """Complete the current segment. Afterwards the build can go on from here. Signals wait until it is complete."""
        with delay_signals():
            if not self._writer.is_empty:
                self._complete_segment()

    def _complete_segment(self) -> None:
        self._next = self._writer.next_message
        self._writer.finish()
        self._done.append(self._writer.directory)
        state = {
            "identity": "" if any(each.has_changed for each in self._sources) else self._identity,
            "segments": [path.name for path in self._done],
            "embedder": self._embedder and self._embedder.name,
            "sources": self._reader.to_state(),
            "next": self._next,
            "report": self._report.to_dict(),
            "guesses": [{"messages": each.messages, "named": each.named} for each in self._guesses],
        }
        self._unfinished.write_progress(state)

    def _begin_segment(self) -> None:
        """Complete the current segment, and start another."""
        self._finish_segment()
        self._segments = IndexSegments((*self._segments.segments, IndexSegment(self._done[-1])))
        self._writer = self._start_segment()

    def _add_sources(self) -> None:
        is_whole = True  # what was consumed is in a segment

        def add(batch: PreparedBatch, items: list[NumberedItem]) -> None:
            nonlocal is_whole
            with delay_signals():
                is_whole = False
                self._reader.consume(len(items))  # first, since the batch may complete a segment
                self._add_batch(batch, items)
                is_whole = True

        try:
            self._handle_sources(self._options.to_limits(), add)
        except BaseException:
            if is_whole:  # e.g. a source failed, or the build was stopped: let the next one go on from here
                self._finish_segment()
            raise

    def _handle_sources(
        self, limits: MessageLimits, handle: Callable[[PreparedBatch, list[NumberedItem]], None]
    ) -> None:
        """Handle the items of all sources.

        Raises:
            UsageError, UnavailableError, StorageError: if a source failed. What was read before was handled.
        """
        self._handle_items(self._reader.read, self._measure_sources(), limits, handle)
        if self._reader.failure:
            raise self._reader.failure

    def _measure_sources(self) -> int | None:
        """Return the size of all sources in bytes, if it is known."""
        totals = [source.total for source in self._sources]
        return None if None in totals else sum(filter(None, totals))

    def _handle_items(
        self,
        read: Callable[[Callable[[int], object]], Iterator[NumberedItem]],
        total: int | None,
        limits: MessageLimits,
        handle: Callable[[PreparedBatch, list[NumberedItem]], None],
    ) -> None:
        with closing(prepare_items(read, total, limits, self._describe_progress)) as batches:
            for batch, items in batches:
                judged = [
                    each if isinstance(each, UnreadableItem) else judge_sender(each, self._trusting[source])
                    for each, (source, _) in zip(batch.items, items, strict=True)
                ]
                handle(replace(batch, items=judged), items)

    def _describe_progress(self) -> str:
        pace = self._report.read / max(time.monotonic() - self._started, 1e-9)
        return f"{self._report.read:,} messages, {pace:,.0f}/s"

    def _add_batch(self, batch: PreparedBatch, numbered: list[NumberedItem]) -> None:
        items = batch.items
        self._writer.begin_batch(batch.terms)
        new = [each for each in items if isinstance(each, PreparedMessage) and not each.skipped]
        wanted = [self._identify(each) for each in new]
        with self._explain_damage():
            digests = self._segments.find_digests(wanted)
            ids = self._segments.find_ids([each.message_id for each in new])
        for item, (number, _) in zip(items, numbered, strict=True):
            if not isinstance(item, UnreadableItem):
                self._add_message(item, number, digests, ids)
            elif identify_unreadable(item.where, item.reason) not in self._listed:
                self._report.unreadable[item.reason] += 1
                self._writer.add_unreadable(item)
        self._writer.flush()
        if self._writer.is_full:
            self._begin_segment()

    def _identify(self, message: PreparedMessage) -> bytes:
        """Return the digest by which messages are equal."""
        if self._options.drop_duplicates:
            return message.digest
        return blake2b(message.digest + message.message_id.encode(), digest_size=16).digest()

    def _add_message(
        self, message: PreparedMessage, source: int, digests: dict[bytes, int], ids: dict[str, list[int]]
    ) -> None:
        inboxes = self._find_inboxes(message, source)
        self._count_read(message, source, inboxes)
        if inboxes is None:
            return
        digest = self._identify(message)
        number = self._writer.find_digest(digest) or digests.get(digest)
        with self._explain_damage():
            is_new = number is None or (self._report.removed > 0 and not self._is_alive(number))
        if number is None:
            number = self._writer.add_message(message, digest)
        self._count_indexed((problem for _, _, problem in message.attachments), inboxes, is_new)
        used_by = {*self._writer.find_id(message.message_id), *ids.get(message.message_id, ())} - {number}
        with self._explain_damage():  # it compares the message with what the index has
            self._writer.add_copy(number, message, digest, inboxes, sorted(used_by))

    def _find_inboxes(self, message: PreparedMessage, source: int) -> Inboxes | None:
        """Return the inboxes that hold a message, or None if it is skipped."""
        if message.skipped:
            return None
        inboxes = find_inboxes(message, self._trusting[source], self._allowed)
        return inboxes if inboxes or self._allowed is None else None

    def _count_read(self, message: PreparedMessage, source: int, inboxes: Inboxes | None) -> None:
        """Count a message that could be read. `inboxes` are those that hold it, or None if it is skipped."""
        self._report.read += 1
        self._report.without_id += message.has_generated_id
        self._report.without_date += message.sent is None
        self._guesses[source].add(message)
        if inboxes is None:
            self._report.kept_out[message.skipped or "other inbox"] += 1
        elif not self._owned[source].owner and has_sender(message):
            self._report.unproven_senders += not is_genuine(message, self._trusting[source])

    def _count_indexed(self, problems: Iterable[str], inboxes: Inboxes, is_new: bool) -> None:
        """Count a message of the index. `problems` are those of its attachments."""
        if is_new:
            self._report.messages += 1
            self._report.without_inbox += not inboxes
            self._report.attachments.update(count_attachments(problems))
        else:
            self._report.kept_out["duplicate"] += 1

    def _is_alive(self, number: int) -> bool:
        """Return True if a copy of a message is left."""
        return self._writer.has_copies(number) or self._segments.has_copies(number)

    def _remove(self, ids: Sequence[str]) -> None:
        """Remove all copies of messages with some ids. See `IndexSegments.find_named_copies`."""
        copies: dict[int, set[int]] = {}
        for given in ids:
            matching = self._segments.find_named_copies(given)
            if not any(matching.values()):
                raise UsageError(
                    "mail.nothing-to-remove", f"no message of the index has the id {given!r}; check the id"
                )
            for number, named in matching.items():
                if named:  # otherwise they were removed before
                    copies.setdefault(number, set()).update(each.copy for each in named)
        for number, found in sorted(copies.items()):
            self._writer.remove_copies(number, found, self._analyze_again)
            self._count_removed(found)
            known = self._segments.read_copies(number)
            if len(found) == len(known):
                self._report.messages -= 1
                self._report.without_inbox -= not any(each.inboxes for each in known)

    def _count_removed(self, copies: set[int]) -> None:
        self._report.removed += len(copies)
        self._report.just_removed += len(copies)

    def _analyze_again(self, number: int) -> TextTerms:
        text = self._segments.read_text(number)
        collector = TermCollector(self._analyzer)
        terms = collector.add_text(text.subject, list_texts(text.body, text.attachments))
        self._writer.begin_batch(collector.finish())
        return terms

    def _merge(self) -> list[Path]:
        """Merge the last segments if they are small, or write all anew to compact the index. Return all segments."""
        paths = [*(self._directory / name for name in (self._old.segments if self._old else ())), *self._done]
        segments = IndexSegments(map(IndexSegment, paths))
        sizes = [measure_size(each.postings.arrays["pair_words"]) for each in segments.segments]
        first = 0 if self._changes.compact else len(paths) - choose_merge(sizes)
        if first == len(paths) or not self._old:
            return paths
        rewriter = SegmentRewriter(segments, first)
        merged: list[Path] = []
        for group in rewriter.list_groups():
            merged.append(self._partial / f"{SEGMENT_PREFIX}{self._next_segment}")
            self._next_segment += 1
            rewriter.write(group, merged[-1])
        return [*paths[:first], *merged]

    def _remove_merged(self) -> None:
        """Delete merged segments that were not published. What the build added stays, so that it can go on."""
        for path in list(self._partial.glob(f"{SEGMENT_PREFIX}*")):
            if path not in self._done:
                shutil.rmtree(path, ignore_errors=True)
        if not self._done:
            self._unfinished.clear()

    def _find_unsure(self) -> list[str] | Literal[True]:
        """Return the value of the fact `UNSURE`."""
        old = self._earlier_facts
        known: list[str] | Literal[True] = old.get(UNSURE, [])
        if not old or known is True:
            return known
        added = IndexSegments(map(IndexSegment, self._done)).list_unreadable()
        return sorted({*known, *(identify_unreadable(place, reason) for place, reason, _ in added)})

    def _publish(self, paths: list[Path]) -> MailBuildReport:
        """Move the segments to their place, and make the new state visible."""
        report = self._report
        report.content = digest_content(IndexSegments(map(IndexSegment, paths)), self._options)
        old = self._earlier_facts
        sources, messages = old.get("sources", []), Counter(old.get("source_messages", {}))
        for source, guess in zip(self._owned, self._guesses, strict=True):
            messages[source.uri] += guess.messages
            if not source.owner and (suggestion := guess.suggest()):
                report.owners[source.uri] = suggestion
        facts = {
            "sources": [*sources, *(fact for each in self._owned if (fact := each.to_fact()) not in sources)],
            "source_messages": dict(messages),
            "options": asdict(self._options),
            "built": datetime.now(UTC).isoformat(timespec="seconds"),
            "positions": self._positions | {each.uri: each.position for each in self._sources if each.position},
            **report.to_facts(),
        }
        facts |= {UNSURE: unsure} if (unsure := self._find_unsure()) else {}
        if commits := {**old.get("revisions", {}), **get_read_commits(each.uri for each in self._owned)}:
            facts["revisions"] = commits  # of datasets on the hub, by URI
        # Until here, a build that is interrupted can go on.
        for path in paths:
            if path.parent == self._partial:
                path.replace(self._directory / path.name)
        shutil.rmtree(self._partial, ignore_errors=True)
        segments = tuple(path.name for path in paths)
        mark_private(self._directory, None)
        write_state(self._directory, IndexState((self._old.version if self._old else 0) + 1, segments, facts))
        remove_leftovers(self._directory, segments, at_once=self._old is None or self._changes.compact)
        return report
