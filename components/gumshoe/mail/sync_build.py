"""Make an index hold exactly what some sources hold."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.build_report import MailBuildReport, count_attachments
from gumshoe.mail.inboxes import Inboxes
from gumshoe.mail.index_build import UNSURE, IndexBuild
from gumshoe.mail.prepared_messages import PreparedBatch, PreparedMessage
from gumshoe.mail.segment_writer import digest_copy, to_copy
from gumshoe.mail.source_batches import NumberedItem
from gumshoe.mail.source_comparison import SourceComparison
from gumshoe.mail.source_reader import SourceReader

_NEW_ITEMS = "new-items"
_DOUBTFUL_LISTED = 10


class SyncBuild(IndexBuild):
    """An extension that adds what sources have and the index does not, and removes what no source has.

    If it was interrupted, it begins again, since it must see all items.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._report = MailBuildReport(removed=self._earlier_facts["removed"])
        self._positions = {}
        self._reader = SourceReader(self._sources, {})
        self._earlier_facts = {}

    def _resume(self) -> None:
        self._unfinished.discard(self._embedder)

    def _add_sources(self) -> None:
        with SourceComparison(self._segments, self._partial / _NEW_ITEMS) as comparison:
            limits, compare = self._options.to_limits(), partial(self._compare_batch, comparison)
            only_compares = replace(limits, only_compares=True)
            self._handle_sources(only_compares, compare)
            with self._explain_damage():
                self._remove_missing(comparison)
            self._handle_items(comparison.read_new, None, limits, self._add_batch)

    def _compare_batch(self, comparison: SourceComparison, batch: PreparedBatch, numbered: list[NumberedItem]) -> None:
        """Find the messages of a batch that the index has, and set the others aside."""
        self._reader.consume(len(numbered))
        found: list[tuple[PreparedMessage, NumberedItem, Inboxes | None, bytes]] = []
        for item, each in zip(batch.items, numbered, strict=True):
            if isinstance(item, UnreadableItem):
                self._report.unreadable[item.reason] += 1
                comparison.unreadable.append(item)
                continue
            inboxes = self._find_inboxes(item, each[0])
            digest = b"" if inboxes is None else digest_copy(self._identify(item), to_copy(item, inboxes))
            found.append((item, each, inboxes, digest))
        with self._explain_damage():
            known = self._segments.find_copies([digest for *_, digest in found if digest])
        for item, each, inboxes, digest in found:
            source, _ = each
            comparison.messages[source] += 1
            if inboxes is not None and digest not in known:
                comparison.set_aside(each)
                continue
            self._count_read(item, source, inboxes)
            if inboxes is not None:
                message, copy = known[digest]
                is_first = comparison.mark(message, copy)
                with self._explain_damage():
                    problems = list(self._list_problems(message))
                self._count_indexed(problems, inboxes, is_new=is_first)

    def _list_problems(self, message: int) -> Iterator[str]:
        """Yield the problem of each attachment of a message of the index."""
        yield from (each.problem for each in self._segments.read_text(message).attachments)

    def _find_unsure(self) -> list[str] | Literal[True]:
        return self._old.facts.get(UNSURE, []) if self._old and self._report.doubtful else []

    def _remove_missing(self, comparison: SourceComparison) -> None:
        """Remove the copies that no source has, unless items that cannot be read may be those."""
        report, old = self._report, self._old.facts if self._old else {}
        if not self._changes.allow_missing:
            comparison.check_sources(self._owned, old["source_messages"])
        missing = comparison.find_missing()
        doubtful: list[UnreadableItem] = []
        if missing and not self._changes.allow_missing:
            doubtful = comparison.list_doubtful(old.get(UNSURE, []))
        if doubtful:
            report.missing = sum(map(len, missing.values()))
            report.doubtful = [each.where for each in doubtful[:_DOUBTFUL_LISTED]]
            report.unreadable = Counter(old["unreadable"])
            for number in missing:
                if not comparison.has_message(number):
                    report.messages += 1
                    report.without_inbox += not any(each.inboxes for each in self._segments.read_copies(number))
                    report.attachments.update(count_attachments(self._list_problems(number)))
            return
        for number, copies in missing.items():
            self._writer.remove_copies(number, copies, self._analyze_again)
            self._count_removed(copies)
            if self._writer.is_full:
                self._begin_segment()
        if comparison.has_other_unreadable():
            self._writer.replace_unreadable()
            for each in comparison.unreadable:
                self._writer.add_unreadable(each)
        if not self._writer.is_empty:
            self._begin_segment()  # so that what was removed can be added again
