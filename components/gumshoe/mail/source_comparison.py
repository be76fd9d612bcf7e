"""Compare sources with an index: what they still have, what is new, and what is gone."""

import pickle
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

import numpy as np

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.errors import UsageError
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.mail_directory import identify_unreadable
from gumshoe.mail.segment import IndexSegments
from gumshoe.mail.source_batches import NumberedItem

_COPY_BITS = 32


class SourceComparison:
    """Record which copies of an index the sources still have. Items that the index does not have go to a file.

    Example: `with SourceComparison(segments, Path("new-items")) as comparison: ...`
    """

    def __init__(self, segments: IndexSegments, path: Path) -> None:
        self.messages: Counter[int] = Counter()
        """Messages that could be read, by number of the source."""
        self.unreadable: list[UnreadableItem] = []
        self._segments, self._path = segments, path
        self._seen = array("q")
        self._has_message = bytearray(1 + max((each.first + each.messages for each in segments.segments), default=0))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w+b")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def mark(self, message: int, copy: int) -> bool:
        """Record that a source has a copy. Return True for the first copy of its message."""
        self._seen.append(message << _COPY_BITS | copy)
        is_first = not self._has_message[message]
        self._has_message[message] = True
        return is_first

    def set_aside(self, item: NumberedItem) -> None:
        """Keep an item that is new."""
        pickle.dump(item, self._file)

    def read_new(self, _: Callable[[int], object]) -> Iterator[NumberedItem]:
        """Yield the items that were set aside."""
        self._file.seek(0)
        while True:
            try:
                yield pickle.load(self._file)  # noqa: S301 - written by this object
            except EOFError:
                return

    def find_missing(self) -> dict[int, set[int]]:
        """Return the copies that no source has, by message."""
        removed = set(self._segments.collect(lambda each: each.execute("SELECT message, copy FROM removed_copies")))
        seen = np.unique(np.array(self._seen, np.int64))
        missing: dict[int, set[int]] = {}
        for segment in self._segments.segments:
            rows = np.array(list(segment.execute("SELECT message, copy FROM copies")), np.int64).reshape(-1, 2)
            keys = rows[:, 0] << _COPY_BITS | rows[:, 1]
            for message, copy in rows[~np.isin(keys, seen)].tolist():
                if (message, copy) not in removed:
                    missing.setdefault(message, set()).add(copy)
        return dict(sorted(missing.items()))

    def has_message(self, message: int) -> bool:
        """Return True if a source has a copy of a message."""
        return bool(self._has_message[message])

    def list_doubtful(self, unsure: Collection[str] | Literal[True]) -> list[UnreadableItem]:
        """Return the unreadable items that may be messages of the index.

        These are items that the index does not list as unreadable, and those of `unsure`: see `UNSURE`.
        """
        listed = {identify_unreadable(place, reason) for place, reason, _ in self._segments.list_unreadable()}
        known = set[str]() if unsure is True else listed.difference(unsure)
        return [each for each in self.unreadable if identify_unreadable(each.where, each.reason) not in known]

    def has_other_unreadable(self) -> bool:
        """Return True if the index lists other unreadable items than there are now."""
        found = Counter((each.where, each.reason, each.detail) for each in self.unreadable)
        return found != Counter(self._segments.list_unreadable())

    def check_sources(self, sources: list[OwnedSource], messages: Mapping[str, int]) -> None:
        """Check that no source is empty that had messages, since that is more likely a mistake than meant.

        `messages` has the number of messages of each source when it was indexed, by URI.

        Raises:
            UsageError: if a source is empty.
        """
        for number, each in enumerate(sources):
            if messages.get(each.uri) and not self.messages[number]:
                raise UsageError(
                    "mail.source-empty",
                    f"{each.uri} has no messages any more, and all of its mail would be removed from the index; check "
                    "the source, or use --allow-missing if that is right",
                )
