"""What environments over an index have in common: what is noted of searches, of reading, and of the answer."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from gumshoe.environments.base import EpisodeState, Event
from gumshoe.environments.tools import Toolbox, ToolError
from gumshoe.scenarios.scenario import Scenario

NOTHING_FOUND = "Nothing found."
_DOES_NOT_KNOW = re.compile(r"\W*i (?:do not|don['\u2019]?t) know\b", re.I)


class SearchEnvironment(ABC):
    """Answers one scenario by searching, reading and answering; a subclass has the tools, and says what is there.

    An id is taken as the model wrote it; what is noted are the ids that the scenario names.
    """

    toolbox: Toolbox

    def __init__(self, scenario: Scenario) -> None:
        """Of a subclass whose `listed_id` can be asked already."""
        self.scenario = scenario
        self.record = EpisodeState()
        self.finished = False
        self._gold = {self.listed_id(source) or self.bare(source): source for source in scenario.sources}
        self._searched: set[str] = set()
        self._opened: set[str] = set()

    @abstractmethod
    def listed_id(self, source_id: str) -> str | None:
        """The id, bare, under which searches list a source of that id; None where there is none."""

    def bare(self, source_id: str) -> str:
        """An id without what some write round it."""
        return source_id

    def begin_search(self, *arguments: object) -> list[Event]:
        """Note a search that begins: what its call has done, to be added to."""
        self.record.searches += 1
        asked = repr(arguments)
        again = asked in self._searched
        self.record.repeated_searches += again
        self._searched.add(asked)
        return self._begun("searched again" if again else "searched")

    def end_search(self, deeds: list[Event], ids: Sequence[str], listed: Iterable[str]) -> str:
        """Note the sources that a search found [hits]: its result, of how each is listed [hits]."""
        record = self.record
        if not ids:
            record.empty_searches += 1
            deeds.append("in vain")
            return NOTHING_FOUND
        before = len(record.found)
        right = [rank for rank, source_id in enumerate(ids, 1) if self._note(record.found, source_id)]
        if right:
            record.best_rank = min(right[0], record.best_rank or right[0])
        if len(record.found) > before:
            deeds.append("found")
        return "\n".join(listed)

    def record_reading(self, source_id: str) -> None:
        """Note that a source is read, of the id under which searches list it."""
        deeds = self._begun()
        right = self._note(self.record.read, source_id)
        if not right:
            self.record.read_others += 1
        again = source_id in self._opened
        deeds.append("read again" if again else "read" if right else "read another")
        self._opened.add(source_id)

    def unknown_id_error(self, wanted: str) -> ToolError:
        """Note that something was to be read that is not there: what the model is told of it."""
        self._begun("invalid id")
        self.record.invalid_ids += 1
        return ToolError(f"there is no {wanted}; use an id as a search lists it")

    def finish(self, answer: str, source_ids: Sequence[str]) -> str:
        """Note the answer, which ends the conversation."""
        self._begun("answered")
        record = self.record
        record.answer, record.sources = answer.strip(), list(dict.fromkeys(source_ids))
        record.does_not_know = bool(_DOES_NOT_KNOW.match(answer))
        for given in record.sources:
            listed = self.listed_id(given)
            if listed is None:
                record.invalid_ids += 1
            else:
                self._note(record.right_sources, listed)
        self.finished = True
        return ""

    def _note(self, noted: list[str], source_id: str) -> bool:
        """Note a right source once: whether it is one."""
        gold = self._gold.get(self.bare(source_id))
        if gold is not None and gold not in noted:
            noted.append(gold)
        return gold is not None

    def _begun(self, *deeds: Event) -> list[Event]:
        """What the call that begins has done; more may be added."""
        self.record.deeds.append([*deeds])
        return self.record.deeds[-1]
