"""A scripted expert that uses the tools properly and is often wrong, on purpose, in several independent ways.

What a model learns from it is a start to learn from: each better choice is there to be found, and where a slip is the
habit, it is the rarer one.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gumshoe.environments.tools import Call
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.mail_questions import QuestionBackground
from gumshoe.synthesis.rng import Rng

ErrorKind = Literal[
    "few keywords", "first hit unread", "wrong person", "older fact", "neighbouring field", "gave up early"
]

UNKNOWN = "I don't know"
_HIT = re.compile(r"^(.*)\n  (.*)\n  id: (\S+)$", re.M)
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_SMALL = frozenset({"a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "that", "the", "to", "with"})
_SECOND_LOOK = 0.25  # how often another hit is read before the right one
_IN_VAIN, _MOST_IN_VAIN = 0.3, 3  # how often a search, or another, is for a word cut short; after so many it gives up


@dataclass(frozen=True, slots=True)
class ErrorInjection:
    """How often a slip is made: where a question begins in one of these ways, if all else tempts too, and elsewhere."""

    openings: frozenset[str]
    there: float
    elsewhere: float

    def chance(self, question: str, tempted: bool) -> float:
        return self.there if tempted and question.split()[0] in self.openings else self.elsewhere


def _habit(openings: str, there: float, elsewhere: float) -> ErrorInjection:
    return ErrorInjection(frozenset(openings.split()), there, elsewhere)


ERROR_RATES: Mapping[ErrorKind, ErrorInjection] = {
    "few keywords": _habit("Which Where On When", 0.75, 0.0),
    "first hit unread": _habit("Who", 0.75, 0.02),
    "wrong person": _habit("", 0.0, 0.6),
    "older fact": _habit("", 0.0, 0.5),
    "neighbouring field": _habit("", 0.0, 0.5),
    "gave up early": _habit("How Why Has Was", 0.9, 0.02),
}


@dataclass(frozen=True, slots=True)
class ToolNames:
    """How one environment's tools are called."""

    search: str
    query_argument: str
    """The argument that holds what is searched for."""
    is_list: bool
    read: str
    id_argument: str
    ids_argument: str

    def search_call(self, words: list[str]) -> Call:
        return Call(self.search, {self.query_argument: words if self.is_list else " ".join(words)})

    def read_call(self, source: str) -> Call:
        return Call(self.read, {self.id_argument: source})

    def answer_call(self, answer: str, *sources: str) -> Call:
        return Call("return_final_answer", {"answer": answer, self.ids_argument: list(sources)})


MAIL = ToolNames("search_inbox", "keywords", True, "read_email", "message_id", "message_ids")
DOCUMENTS = ToolNames("search_documents", "query", False, "read_document", "document_id", "document_ids")


@dataclass(frozen=True, slots=True)
class ExpertTurn:
    """One turn of the expert."""

    call: Call
    is_learned: bool = True
    """Whether a model is to learn it; a second look, or a search in vain, is only there to learn what follows it."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One hit of a search's result, as the environments write it."""

    head: str
    snippet: str
    source: str

    @property
    def sender(self) -> str:
        return self.head.partition(":")[0].rpartition(" ")[2]

    @property
    def subject(self) -> str:
        return self.head.rpartition(": ")[2]

    def __str__(self) -> str:
        return f"{self.head}\n  {self.snippet}\n  id: {self.source}"


def parse_hits(result: str) -> list[SearchHit]:
    """The hits that a search's result lists."""
    return [SearchHit(*found) for found in _HIT.findall(result)]


@dataclass(slots=True)
class ScriptedExpert:
    """Answers one scenario, knowing what stands behind it."""

    scenario: Scenario
    background: QuestionBackground
    right_sources: frozenset[str]
    """The right sources, as the environment's tools name them."""
    tools: ToolNames
    rng: Rng
    makes_errors: bool = True
    """Whether it ever does wrong."""
    other_answers: Mapping[str, str] = field(default_factory=dict)
    """What else could be answered from which source: what is said by whoever took the wrong one."""
    errors: list[ErrorKind] = field(default_factory=list)
    """What it did wrong on purpose."""

    def play(self) -> Generator[ExpertTurn, str, None]:
        """Turn after turn; it is sent the result of each."""
        if (yield from self._searched_in_vain()):
            yield self._answer(UNKNOWN)
            return
        hits = yield from self._searching()
        if self._slips("gave up early"):
            yield self._answer(UNKNOWN)
            return
        if hits and self._slips("first hit unread", tempted=len(hits) == 1):
            yield self._answer(hits[0].subject, hits[0].source)
            return
        right = [hit for hit in hits if hit.source in self.right_sources]
        others = [hit for hit in hits if hit.source not in self.right_sources]
        telling = [hit for hit in hits if hit in right or hit.source in self.other_answers]
        strangers = [hit for hit in telling if hit not in right and hit.sender not in {each.sender for each in right}]
        if "few keywords" in self.errors and telling:
            yield from self._misled(telling[0])
            return
        if strangers and self._slips("wrong person"):
            yield from self._misled(strangers[0])
            return
        if others and self.rng.chance(_SECOND_LOOK):
            yield ExpertTurn(self.tools.read_call(self.rng.pick(others).source), is_learned=False)
        if not right:
            yield self._answer(UNKNOWN)
            return
        text = yield ExpertTurn(self.tools.read_call(right[0].source))
        yield self._answer(self._value(text), right[0].source)

    def _misled(self, hit: SearchHit) -> Generator[ExpertTurn, str, None]:
        """What one hit says, right or not."""
        yield ExpertTurn(self.tools.read_call(hit.source))
        answer = self.scenario.answer if hit.source in self.right_sources else self.other_answers[hit.source]
        yield self._answer(answer, hit.source)

    def _searched_in_vain(self) -> Generator[ExpertTurn, str, bool]:
        """Searches of the inbox for words cut short, which find nothing; whether they were enough to give up.

        A model that copies badly makes such searches; one that never saw any repeats them to its last turn.
        """
        words = [word for word in _WORD.findall(self.scenario.question) if len(word) > 1]
        for _ in range(_MOST_IN_VAIN):
            if self.tools is not MAIL or not self.rng.chance(_IN_VAIN):  # documents are found by any word
                return False
            word = self.rng.pick(words)
            yield ExpertTurn(self.tools.search_call([word[: self.rng.between(1, len(word) - 1)]]), is_learned=False)
        return True

    def _searching(self) -> Generator[ExpertTurn, str, list[SearchHit]]:
        """Search until a right source is listed, with fewer words each time; or once with too few."""
        exact = self._phrases(self.background.about, self.background.asked)
        named = self._phrases(self.background.about)
        words = [word for phrase in named for word in _WORD.findall(phrase)]
        tries = [exact, named, words[:2], words[:1]]
        if len(words) > 1 and self._slips("few keywords"):
            tries = [words[-1:]]
        hits: list[SearchHit] = []
        for number, keywords in enumerate(tries):
            if keywords not in tries[:number]:
                hits = parse_hits((yield ExpertTurn(self.tools.search_call(keywords))))
            if any(hit.source in self.right_sources for hit in hits):
                break
        return hits

    def _phrases(self, *named: str) -> list[str]:
        """The longest phrases of the question that a name has too, in order; its own names where there are none."""
        names = [f" {' '.join(_WORD.findall(name))} ".casefold() for name in named]
        words = _WORD.findall(self.scenario.question)
        found, start = list[str](), 0
        while start < len(words):
            end = start
            while end < len(words) and any(
                f" {' '.join(words[start : end + 1])} ".casefold() in name for name in names
            ):
                end += 1
            phrase = words[start:end]
            while phrase and phrase[-1].casefold() in _SMALL:
                phrase.pop()
            if phrase and phrase[0].casefold() not in _SMALL:
                found.append(" ".join(phrase))
            start = max(end, start + 1)
        return list(dict.fromkeys(found or [word for word in words[1:] if word[0].isupper()] or words[-1:]))

    def _value(self, text: str) -> str:
        """What the expert takes from a message that holds the answer."""
        wrong: dict[ErrorKind, tuple[str, ...]] = {
            "older fact": self.background.other_times,
            "neighbouring field": self.background.neighbours,
        }
        for slip, values in wrong.items():
            found = next((value for value in values if value in text), None)
            if found and self._slips(slip):
                return found
        return self.scenario.answer

    def _slips(self, slip: ErrorKind, *, tempted: bool = True) -> bool:
        slipped = self.makes_errors and self.rng.chance(ERROR_RATES[slip].chance(self.scenario.question, tempted))
        if slipped:
            self.errors.append(slip)
        return slipped

    def _answer(self, answer: str, *sources: str) -> ExpertTurn:
        return ExpertTurn(self.tools.answer_call(answer, *sources))
