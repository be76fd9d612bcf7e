"""Base class of environments that search an index: records searches, reading and the answer."""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import count

from gumshoe.environments.base import EpisodeState, Event
from gumshoe.environments.budgets import show_page
from gumshoe.environments.shown_sources import Part, Showing, ShownSources
from gumshoe.environments.tools import Toolbox, ToolError, UnknownSourceError
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.unknown_answer import is_unknown

NOTHING_FOUND = "Nothing found."
HIT_ID = re.compile(r"^(?:  chunk: .*\n)?  id: (.+?)(?: \(thread .+, \d+ messages\))?$", re.M)
"""End of each hit in the result of a search: its chunk, its id, which is the first group and may contain spaces, and
its thread. Only some hits have a chunk or a thread."""
HIT = re.compile(rf"^(.*)\n  (.*)\n{HIT_ID.pattern}", re.M)
"""Hit in the result of a search of mail or documents: its title, its snippet and its id."""


def bare_id(source_id: str) -> str:
    """Return an id without the space and the angle brackets that a model may write around it."""
    return source_id.strip().strip("<>")


class SearchEnvironment(ABC):
    """Answer one scenario with a search tool, a reading tool and an answer tool, which a subclass defines.

    The model may write an id in several forms; the record has the ids of the scenario. With `handle_prefix`, e.g. "m",
    tools show short handles in place of ids: m1, m2 and so on, in the order in which sources are first shown. A handle
    means something only in the episode that showed it. The record has the real ids.
    """

    toolbox: Toolbox

    def __init__(self, scenario: Scenario, *, handle_prefix: str = "") -> None:
        """Initialize the record. A subclass must call it after `listed_id` can be called."""
        self.scenario = scenario
        self._handle_prefix = handle_prefix
        self._handles: dict[str, str] = {}
        self._handle_numbers = count(1)
        self._call_handles: set[str] = set()  # those in the result of the present call
        self.record = EpisodeState()
        self._shown_sources = ShownSources(self.record, self._record_source)
        self.shown = self._shown_sources.ids
        """Ids of the sources that tools have shown, in order. They may repeat."""
        self.finished = False
        self._gold = {self.listed_id(source) or self.bare(source): source for source in scenario.sources}
        self._searched: set[str] = set()

    @abstractmethod
    def listed_id(self, source_id: str) -> str | None:
        """Return the id, as `bare` returns it, under which searches list a source, or None if it does not exist."""

    def bare(self, source_id: str) -> str:
        """Return an id without optional delimiters, e.g. the brackets of a message id."""
        return source_id

    def show_id(self, source_id: str) -> str:
        """Return how tools show the id of a source: its handle, or the id itself if the environment has no handles."""
        if not self._handle_prefix:
            return source_id
        if source_id not in self._handles:
            handle = f"{self._handle_prefix}{next(self._handle_numbers)}"
            self._handles[source_id], self.record.handles[handle] = handle, source_id
        self._call_handles.add(self._handles[source_id])
        return self._handles[source_id]

    def resolve_id(self, given: str) -> str:
        """Return the id of a handle that this episode has shown, or else `given`, unchanged."""
        return self.record.handles.get(bare_id(given).lower(), given)

    def begin_search(self, *arguments: object) -> list[Event]:
        """Record the start of a search. Return the events of its call, to pass to `end_search`."""
        self.record.searches += 1
        key = repr(arguments)
        again = key in self._searched
        self.record.repeated_searches += again
        self._searched.add(key)
        return self._record_call("searched again" if again else "searched")

    def end_search(
        self, events: list[Event], ids: Sequence[str], listed: Iterable[str], *, partial: bool = False
    ) -> str:
        """Record the ids that a search listed [hits], and return the tool's result: the lines in `listed` [hits].

        `partial` is True if the hits match the search only in part. It is then in vain without a correct source.
        """
        lines = "\n".join(listed)
        self._record_shown(events, ids, partial=partial)
        return lines if ids else NOTHING_FOUND

    def record_reading(self, *source_ids: str, page: int = 1, around: int | None = None) -> None:
        """Record that a call shows sources, e.g. a thread, or a page or a section of one, around a chunk.

        Their ids are those that searches list.

        If a correct source is among them, the others do not count as other sources that were read.
        """
        parts = frozenset((source_id, page, around) for source_id in source_ids)
        self._record_shown(self._record_call(), source_ids, parts)

    def withdraw_results(self, calls: Iterable[int]) -> None:
        """Withdraw the sources that calls showed, because the model saw errors in place of their results.

        `calls` are indices of `record.deeds`. The sources count as neither found nor read by these calls, and handles
        that no other call showed mean nothing.
        """
        for handle in self._shown_sources.withdraw([self.record.deeds[call] for call in calls]):
            del self._handles[self.record.handles.pop(handle)]

    def unknown_id_error(self, wanted: str) -> ToolError:
        """Record an attempt to read something that does not exist, and return the error for the model."""
        self._record_call("invalid id")
        self.record.invalid_ids += 1
        return UnknownSourceError(f"there is no {wanted}; use an id as a search lists it")

    def show_page(
        self, source_id: str, head: str, text: str, page: int, limit: int | None, around: int | None = None
    ) -> str:
        """Record that a call shows a page of a source, or of its section around a chunk, and return the page.

        See `budgets.show_page`.

        Raises:
            ToolError: if the page does not exist.
        """
        try:
            shown = show_page(head, text, page, limit)
        except ToolError:
            self._record_call()
            raise
        self.record_reading(source_id, page=page, around=around)
        return shown

    def note_reading(self, source_id: str) -> None:
        """Call `record_reading`, of which this is the old name."""
        warnings.warn("note_reading is now record_reading", DeprecationWarning, stacklevel=2)
        self.record_reading(source_id)

    def refused(self, wanted: str) -> ToolError:
        """Call `unknown_id_error`, of which this is the old name."""
        warnings.warn("refused is now unknown_id_error", DeprecationWarning, stacklevel=2)
        return self.unknown_id_error(wanted)

    def finish(self, answer: str, source_ids: Sequence[str]) -> str:
        """Record the answer and end the conversation. Return the tool's result."""
        self._record_call("answered")
        record = self.record
        record.answer, record.sources = answer.strip(), list(dict.fromkeys(map(self.resolve_id, source_ids)))
        record.does_not_know = is_unknown(answer)
        for given in record.sources:
            listed = self.listed_id(given)
            if listed is None:
                record.invalid_ids += 1
            else:
                self._record_source(record.right_sources, listed)
        self.finished = True
        return ""

    def _record_shown(
        self, events: list[Event], ids: Sequence[str], parts: frozenset[Part] | None = None, *, partial: bool = False
    ) -> None:
        """Record that a call shows sources. See `Showing`."""
        handles, self._call_handles = self._call_handles, set()
        self._shown_sources.add(Showing(events, tuple(ids), handles, parts, partial))

    def _record_source(self, sources: list[str], source_id: str) -> bool:
        """Add a source to `sources` once if it is correct. Return True if it is correct."""
        gold = self._gold.get(self.bare(source_id))
        if gold is not None and gold not in sources:
            sources.append(gold)
        return gold is not None

    def _record_call(self, *events: Event) -> list[Event]:
        """Add a tool call to the record, and return its events, to which more may be added."""
        self.record.deeds.append([*events])
        return self.record.deeds[-1]
