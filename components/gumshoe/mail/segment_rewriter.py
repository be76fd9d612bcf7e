"""Write segments of an index anew from what they hold: without what was removed, or with some inboxes only.

Nothing is analyzed again: words and vectors are copied.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from gumshoe.mail.build_report import MailBuildReport, count_attachments
from gumshoe.mail.inboxes import drop_hidden_recipients
from gumshoe.mail.posting_texts import measure_size, read_texts
from gumshoe.mail.postings import PostingsWriter
from gumshoe.mail.schema import DATABASE
from gumshoe.mail.segment import InboxEntry, IndexSegment, IndexSegments, StoredCopy
from gumshoe.mail.segment_writer import complete_segment, create_database, digest_copy, to_entry_rows, to_row
from gumshoe.mail.vector_copies import copy_vectors

MAX_SIZE = 6_000_000
"""Maximum size of a merged segment, unless one of the segments alone is larger. See `measure_size`."""
_MAX_PAIRS = 1 << 16  # messages of one inbox, whose numbers have 16 bits
_CLASSES = (30_000, 250_000, 2_000_000)
"""Sizes of segments below which extensions merge them. Merging the largest takes a few seconds."""
_MERGED_TOGETHER = 8
_ROWS = 500

Numbers = NDArray[np.int64]
Row = tuple[Any, ...]


def choose_merge(sizes: Sequence[int]) -> int:
    """Return how many of the last segments to merge, so that few are left and no mail is merged often. 0 for none.

    Sizes are in classes, which differ by a factor of eight. Eight segments of a class are merged, with smaller ones
    after them, and so are all that together have the size of a complete segment.
    """
    left = [*sizes]
    lowest = 0
    for limit in _CLASSES:
        count = _count_last(left, limit)
        of_class = sum(size >= lowest for size in left[len(left) - count :])
        is_complete = count > 1 and limit == _CLASSES[-1] and sum(left[-count:]) >= limit
        if of_class >= _MERGED_TOGETHER or is_complete:
            left[-count:] = [sum(left[-count:])]
        lowest = limit
    return len(sizes) - len(left) + 1 if len(left) < len(sizes) else 0


def _count_last(sizes: Sequence[int], limit: int) -> int:
    """Return the number of the last segments that are smaller than a limit."""
    large = [place for place, size in enumerate(sizes) if size >= limit]
    return len(sizes) - 1 - (large[-1] if large else -1)


class _KeptSegment(NamedTuple):
    """A segment, and which of its messages to keep."""

    segment: IndexSegment
    addresses: list[str]
    """Address of each inbox."""
    pairs: NDArray[np.bool_]
    """[pairs]: True for each pair of inbox and message to keep."""


class SegmentRewriter:
    """Write the last segments of an index anew, from index `first` of the list of segments on.

    With `inboxes`, only these are kept, with what they may see. Messages and copies then get new numbers, so that
    nothing tells how many there are in other inboxes. All segments must be written anew, in order.
    """

    def __init__(self, segments: IndexSegments, first: int = 0, inboxes: Collection[str] | None = None) -> None:
        rewritten = segments.segments[first:]
        self._segments = segments
        self._inboxes = None if inboxes is None else frozenset(inboxes)
        self._first = rewritten[0].first if first and rewritten else 1
        """Number of the first message whose text is in these segments."""
        self._removed = {row for each in rewritten for row in each.execute("SELECT message, copy FROM removed_copies")}
        self._parts = _find_parts(rewritten, self._inboxes)
        self._messages = self._find_messages()
        self._copies: dict[int, list[bytes]] = {}  # digests of the copies of each message, with `inboxes`
        self._counts: Counter[str] = Counter()
        """Number of copies of the chosen inboxes, and of those without a date."""
        self._attachments: Counter[str] = Counter()
        """Attachments of the chosen inboxes, as in `MailBuildReport`."""

    def _find_messages(self) -> Numbers:
        """Return the numbers of the messages to keep whose text is in these segments: [messages], ascending."""
        if self._inboxes is not None:
            held = [each.segment.postings.arrays["pair_messages"][each.pairs] for each in self._parts]
            return np.unique(np.concatenate([*held, np.zeros(0, np.int32)])).astype(np.int64)
        left = {
            message
            for each in self._parts
            for message, copy in each.segment.execute("SELECT message, copy FROM copies")
            if message >= self._first and (message, copy) not in self._removed
        }
        return np.array(sorted(left), np.int64)

    def list_groups(self) -> list[range]:
        """Return which segments to write together, so that they fit in one."""
        groups: list[range] = []
        size = pairs = 0
        for number, part in enumerate(self._parts):
            arrays = part.segment.postings.arrays
            its_size = measure_size(arrays["pair_words"][part.pairs])
            its_pairs = len(np.unique(arrays["pair_messages"][part.pairs]))
            if groups and size + its_size <= MAX_SIZE and pairs + its_pairs < _MAX_PAIRS:
                groups[-1] = range(groups[-1].start, number + 1)
                size, pairs = size + its_size, pairs + its_pairs
            else:
                groups.append(range(number, number + 1))
                size, pairs = its_size, its_pairs
        return groups

    def write(self, group: range, directory: Path) -> None:
        """Write some of the segments as one, in a directory that does not exist."""
        parts = [self._parts[number] for number in group]
        first, end = parts[0].segment.first, parts[-1].segment.first + parts[-1].segment.messages
        numbers = self._messages[slice(*np.searchsorted(self._messages, [first, end]).tolist())]
        directory.mkdir(parents=True)
        database = create_database(directory / DATABASE)
        try:
            insert = database.executemany
            insert("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", self._read_messages(parts, numbers))
            entries: list[Row] = []
            insert("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._read_copies(parts, entries))
            insert("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", entries)
            if self._inboxes is None:
                unreadable = IndexSegments(each.segment for each in parts).list_unreadable()
                insert("INSERT INTO unreadable VALUES (?, ?, ?)", unreadable)
                self._copy_removals(parts, insert)
            postings = PostingsWriter()
            for part in parts:
                self._copy_postings(part, postings)
            replaces = self._inboxes is None and any(each.segment.replaces_unreadable for each in parts)
            places = self._renumber(np.array([first, end])).tolist()
            complete_segment(directory, database, postings, (places[0], places[1] - places[0]), replaces)
        finally:
            database.close()
        copy_vectors([each.segment for each in parts], numbers, self._renumber(numbers), directory)

    def make_report(self, content: str) -> MailBuildReport:
        """Return the numbers of messages that were written, for an index of the chosen inboxes with a content digest.

        All groups must be written before.
        """
        copies = self._counts["copies"]
        return MailBuildReport(
            messages=len(self._messages),
            read=copies,
            kept_out=Counter({"duplicate": copies - len(self._messages)}),
            attachments=self._attachments,
            without_date=self._counts["without date"],
            content=content,
        )

    def _renumber(self, numbers: Numbers) -> Numbers:
        """Return the numbers of messages in the new segments."""
        return numbers if self._inboxes is None else 1 + np.searchsorted(self._messages, numbers)

    def _read_messages(self, parts: list[_KeptSegment], numbers: Numbers) -> Iterator[Row]:
        query = (
            "SELECT message, digest, sender, subject, body, attachments FROM json_each(?) "
            "CROSS JOIN messages ON message = value"
        )
        for part in parts:
            first = part.segment.first
            low, high = np.searchsorted(numbers, [first, first + part.segment.messages]).tolist()
            for start in range(low, high, _ROWS):
                chosen = numbers[start : min(start + _ROWS, high)]
                rows = part.segment.execute(query, (orjson.dumps(chosen.tolist()).decode(),))
                for number, row in zip(self._renumber(chosen).tolist(), rows, strict=True):
                    if self._inboxes is not None:
                        self._attachments.update(count_attachments(problem for _, _, problem in orjson.loads(row[5])))
                    yield number, *row[1:]

    def _read_copies(self, parts: list[_KeptSegment], entries: list[Row]) -> Iterator[Row]:
        """Yield the rows of copies, and add those of their entries to `entries`."""
        query = "SELECT * FROM copies ORDER BY message, copy"
        for part in parts:
            if self._inboxes is None:
                rows = part.segment.execute("SELECT * FROM entries ORDER BY message, inbox, copy")
                entries += (row for row in rows if (row[0], row[2]) not in self._removed)
            for row in part.segment.execute(query):
                if row[:2] not in self._removed:
                    yield from (row,) if self._inboxes is None else self._select_copy(part.segment, row, entries)

    def _select_copy(self, segment: IndexSegment, row: Row, all_entries: list[Row]) -> Iterator[Row]:
        """Yield the row of a copy as the chosen inboxes see it, if they hold it and have no equal one."""
        number, place_in_message, _, message_id, sent, offset, name, forged, people, references = row
        query = "SELECT inbox, hidden, shown_id FROM entries WHERE message = ? AND copy = ? ORDER BY inbox"
        entries = [
            InboxEntry(inbox, orjson.loads(hidden), shown_id)
            for inbox, hidden, shown_id in segment.execute(query, (number, place_in_message))
            if inbox in (self._inboxes or ())
        ]
        if not entries:
            return
        recipients, visible = drop_hidden_recipients(orjson.loads(people), [(each[0], each[1]) for each in entries])
        inboxes = [each._replace(hidden=hidden) for each, (_, hidden) in zip(entries, visible, strict=True)]
        refs = orjson.loads(references)
        copy = StoredCopy(0, message_id, sent, offset, name, bool(forged), recipients, refs, inboxes)
        digest = digest_copy(self._segments.read_digest(number), copy)
        known = self._copies.setdefault(number, [])
        self._counts["copies"] += 1
        self._counts["without date"] += sent is None
        if digest not in known:
            (place,) = self._renumber(np.array([number])).tolist()
            copy = replace(copy, copy=len(known))
            yield to_row(place, digest, copy)
            all_entries += to_entry_rows(place, copy)
            known.append(digest)

    def _copy_removals(self, parts: list[_KeptSegment], insert: Any) -> None:
        """Keep the removals that concern segments before these."""
        if self._first == 1:
            return
        known = {row for each in self._parts for row in each.segment.execute("SELECT message, copy FROM copies")}
        for part in parts:
            rows = part.segment.execute("SELECT inbox, message FROM removed WHERE message < ?", (self._first,))
            insert("INSERT OR IGNORE INTO removed VALUES (?, ?)", rows)
            copies = part.segment.execute("SELECT message, copy FROM removed_copies WHERE message < ?", (self._first,))
            insert("INSERT OR IGNORE INTO removed_copies VALUES (?, ?)", [row for row in copies if row not in known])

    def _copy_postings(self, part: _KeptSegment, postings: PostingsWriter) -> None:
        arrays = part.segment.postings.arrays
        owners = np.repeat(np.arange(len(part.addresses)), np.diff(arrays["pair_starts"]))
        for text in read_texts(arrays, part.pairs, postings.number_terms):
            pair = text.pair
            (message,) = self._renumber(arrays["pair_messages"][pair : pair + 1]).tolist()
            new = postings.add_pair(
                part.addresses[owners[pair]],
                message,
                int(arrays["pair_words"][pair]),
                int(arrays["pair_subjects"][pair]),
            )
            postings.add_time(new, int(arrays["pair_times"][pair]))
            postings.add_part(new, postings.add_text(text.numbers, text.positions))


def _find_parts(segments: Sequence[IndexSegment], inboxes: frozenset[str] | None) -> list[_KeptSegment]:
    """Return the last segments of an index with the pairs to keep: those of some inboxes or of all, if not removed."""
    parts: list[_KeptSegment] = []
    removed: dict[str, list[int]] = {}  # by later segments
    for segment in reversed(segments):
        starts, messages = (segment.postings.arrays[name] for name in ("pair_starts", "pair_messages"))
        numbers: dict[str, int] = dict(segment.execute("SELECT address, number FROM inboxes"))
        kept = np.full(len(messages), inboxes is None)
        for address in inboxes or ():
            if address in numbers:
                kept[slice(*starts[numbers[address] : numbers[address] + 2].tolist())] = True
        for address, gone in removed.items():
            if address in numbers:
                its = slice(*starts[numbers[address] : numbers[address] + 2].tolist())
                kept[its] &= ~np.isin(messages[its], gone)
        parts.append(_KeptSegment(segment, sorted(numbers, key=numbers.__getitem__), kept))
        for address, message in segment.execute("SELECT inbox, message FROM removed"):
            removed.setdefault(address, []).append(message)
    return parts[::-1]
