"""Read the items of sources, and tell how far they were consumed, so that an interrupted build can read on."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

from gumshoe.errors import GumshoeError
from gumshoe.mail.items import MailSource
from gumshoe.mail.source_batches import NumberedItem


@dataclass(slots=True)
class _SourceProgress:
    """The progress in a source: consumed up to an item with a position, or else a number of items."""

    position: Any
    items: int = 0


class SourceReader:
    """Read the items of sources, one source after the other.

    Items are read ahead of what is consumed. A source with positions is read on from one, whatever has changed before
    it; others yield the same items again, of which those that were consumed are skipped.
    """

    def __init__(self, sources: Sequence[MailSource], positions: Mapping[str, Any]) -> None:
        """Begin after the `positions` of sources that an earlier build read, by URI."""
        self.failure: GumshoeError | None = None
        """Error of a source, if one failed."""
        self._sources = sources
        self._progress = [_SourceProgress(positions.get(each.uri)) for each in sources]
        # The source and the position of each item that was read and not consumed.
        self._ahead: deque[tuple[int, Any]] = deque()

    def read(self, advance: Callable[[int], object]) -> Iterator[NumberedItem]:
        """Yield the items of all sources that were not consumed. See `MailSource.read_raw`.

        If a source fails, the items end and `failure` is set, so that those that were read ahead can be consumed.
        """
        try:
            for number, source in enumerate(self._sources):
                done = self._progress[number]
                items = source.read_after(done.position, advance)
                for item in items if source.position is not None else itertools.islice(items, done.items, None):
                    self._ahead.append((number, copy(source.position)))
                    yield number, item
        except GumshoeError as error:
            self.failure = error

    def consume(self, items: int) -> None:
        """Count the next items as consumed."""
        for _ in range(items):
            number, position = self._ahead.popleft()
            self._progress[number] = _SourceProgress(position, self._progress[number].items + 1)

    def to_state(self) -> list[dict[str, Any]]:
        """Return how far each source was consumed, as values of JSON."""
        return list(map(asdict, self._progress))

    def continue_from(self, state: list[dict[str, Any]]) -> None:
        """Begin after what an earlier reader of the same sources consumed."""
        self._progress = [_SourceProgress(**each) for each in state]
