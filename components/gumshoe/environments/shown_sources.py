"""Count the sources that the calls of an episode show, in a way that can be withdrawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gumshoe.environments.base import EpisodeState, Event

Part = tuple[str, int, int | None]
"""Id of a source, its page, and the chunk around which was read."""


@dataclass(frozen=True, slots=True, eq=False)
class Showing:
    """Sources that one call shows."""

    events: list[Event]
    """Events of the call, in the record. Those that follow from its sources are added to them."""
    ids: tuple[str, ...]
    handles: set[str]
    """Handles in the result."""
    parts: frozenset[Part] | None = None
    """Parts that were read; None for a search."""
    partial: bool = False
    """True if the hits of a search match it only in part."""


class ShownSources:
    """Sources that an episode has shown. They count in its record as found or read.

    `add_right(sources, source_id)` adds a source to `sources` once if it is correct, and returns True if it is.
    """

    def __init__(self, record: EpisodeState, add_right: Callable[[list[str], str], bool]) -> None:
        self.ids: list[str] = []
        """Ids in the order in which they were shown. They may repeat."""
        self._record, self._add_right = record, add_right
        self._showings: list[tuple[Showing, int]] = []  # with the number of events that do not follow from its sources
        self._read_parts: set[Part] = set()

    def add(self, showing: Showing) -> None:
        """Count the sources of a call."""
        self._showings.append((showing, len(showing.events)))
        self._count(showing)

    def withdraw(self, calls: Sequence[list[Event]]) -> set[str]:
        """Count again without the sources of calls, given the events of each. Return the handles that none shows."""
        for showing, own in self._showings:
            del showing.events[own:]
        record = self._record
        self.ids.clear()
        self._read_parts.clear()
        record.found.clear()
        record.read.clear()
        record.best_rank, record.empty_searches, record.read_others = None, 0, 0
        earlier = [showing for showing, _ in self._showings]
        self._showings = [each for each in self._showings if not any(each[0].events is events for events in calls)]
        for showing, _ in self._showings:
            self._count(showing)
        left = set[str]().union(*(showing.handles for showing, _ in self._showings))
        return set[str]().union(*(showing.handles for showing in earlier)) - left

    def _count(self, showing: Showing) -> None:
        self.ids += showing.ids
        if showing.parts is None:
            self._count_hits(showing)
        else:
            self._count_reading(showing, showing.parts)

    def _count_hits(self, showing: Showing) -> None:
        record, before = self._record, len(self._record.found)
        right = [rank for rank, source_id in enumerate(showing.ids, 1) if self._add_right(record.found, source_id)]
        if right:
            record.best_rank = min(right[0], record.best_rank or right[0])
        elif showing.partial or not showing.ids:
            record.empty_searches += 1
            showing.events.append("in vain")
        if len(record.found) > before:
            showing.events.append("found")

    def _count_reading(self, showing: Showing, parts: frozenset[Part]) -> None:
        record, before = self._record, len(self._record.read)
        right = [source_id for source_id in showing.ids if self._add_right(record.read, source_id)]
        if not right:
            record.read_others += 1
        new = parts - self._read_parts
        if not new:
            showing.events.append("read again")
        elif len(record.read) > before:
            showing.events.extend(["read"] * (len(record.read) - before))
        elif any(source_id not in right for source_id, *_ in new):  # another part of a correct source is neither
            showing.events.append("read another")
        self._read_parts |= new
