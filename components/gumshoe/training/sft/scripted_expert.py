"""A scripted expert that uses the tools properly, and makes deliberate errors of several independent kinds.

A model that imitates it is a starting point for GRPO: it errs often, but also makes the better choice often enough for
GRPO to reinforce it.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gumshoe.environments.search import HIT
from gumshoe.environments.tools import Call
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.unknown_answer import UNKNOWN
from gumshoe.synthesis.mail_questions import QuestionBackground
from gumshoe.synthesis.rng import Rng

ErrorKind = Literal[
    "few keywords", "first hit unread", "wrong person", "older fact", "neighbouring field", "gave up early"
]

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_STOP_WORDS = frozenset(
    {"a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "that", "the", "to", "with"}
)
_SECOND_LOOK = 0.25  # probability that another hit is read before the correct one
_TRUNCATED, _MAX_TRUNCATED = 0.3, 3  # probability of a search for a truncated word; the number after which it gives up


@dataclass(frozen=True, slots=True)
class ErrorInjection:
    """The probabilities of one kind of error.

    `likely` applies if the question starts with one of the openings and the situation invites the error, else
    `unlikely`.
    """

    openings: frozenset[str]
    likely: float
    unlikely: float

    def chance(self, question: str, tempted: bool) -> float:
        """Return the probability of the error for a question; `tempted` is True if the situation invites it."""
        return self.likely if tempted and question.split()[0] in self.openings else self.unlikely


def _error_rate(openings: str, likely: float, unlikely: float) -> ErrorInjection:
    return ErrorInjection(frozenset(openings.split()), likely, unlikely)


ERROR_RATES: Mapping[ErrorKind, ErrorInjection] = {
    "few keywords": _error_rate("Which Where On When", 0.75, 0.0),
    "first hit unread": _error_rate("Who", 0.75, 0.02),
    "wrong person": _error_rate("", 0.0, 0.6),
    "older fact": _error_rate("", 0.0, 0.5),
    "neighbouring field": _error_rate("", 0.0, 0.5),
    "gave up early": _error_rate("How Why Has Was", 0.9, 0.02),
}


@dataclass(frozen=True, slots=True)
class ToolNames:
    """The names of one environment's tools and arguments."""

    search: str
    query_argument: str
    """Argument of the search tool with the search words."""
    is_list: bool
    """The search words are a list, not one text."""
    read: str
    id_argument: str
    ids_argument: str

    def search_call(self, words: list[str]) -> Call:
        """Return a search for words."""
        return Call(self.search, {self.query_argument: words if self.is_list else " ".join(words)})

    def read_call(self, source: str) -> Call:
        """Return a call that reads a message or document."""
        return Call(self.read, {self.id_argument: source})

    def answer_call(self, answer: str, *sources: str) -> Call:
        """Return the final answer with its sources."""
        return Call("return_final_answer", {"answer": answer, self.ids_argument: list(sources)})


MAIL = ToolNames("search_inbox", "keywords", True, "read_email", "message_id", "message_ids")
DOCUMENTS = ToolNames("search_documents", "query", False, "read_document", "document_id", "document_ids")


@dataclass(frozen=True, slots=True)
class ExpertTurn:
    """One turn of the expert."""

    call: Call
    is_learned: bool = True
    """Train on this turn. It is False for a second look or a failed search: only the turns after it are trained on."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One hit in a search result, in the format of the environments."""

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
    """Parse the hits in a search result."""
    return [SearchHit(*found) for found in HIT.findall(result)]


@dataclass(slots=True)
class ScriptedExpert:
    """Answer one scenario, knowing its background."""

    scenario: Scenario
    background: QuestionBackground
    right_sources: frozenset[str]
    """Ids of the correct sources, as the environment's tools name them."""
    tools: ToolNames
    rng: Rng
    makes_errors: bool = True
    """Make deliberate errors."""
    other_answers: Mapping[str, str] = field(default_factory=dict)
    """Answers to other questions, by source: the answer given if the wrong source is read."""
    errors: list[ErrorKind] = field(default_factory=list)
    """The errors made so far."""

    def play(self) -> Generator[ExpertTurn, str, None]:
        """Yield the turns of an episode; the generator expects the result of each turn to be sent to it."""
        if (yield from self._search_truncated_words()):
            yield self._answer(UNKNOWN)
            return
        hits = yield from self._search()
        if self._should_err("gave up early"):
            yield self._answer(UNKNOWN)
            return
        if hits and self._should_err("first hit unread", tempted=len(hits) == 1):
            yield self._answer(hits[0].subject, hits[0].source)
            return
        right = [hit for hit in hits if hit.source in self.right_sources]
        others = [hit for hit in hits if hit.source not in self.right_sources]
        answering = [hit for hit in hits if hit in right or hit.source in self.other_answers]
        strangers = [hit for hit in answering if hit not in right and hit.sender not in {each.sender for each in right}]
        if "few keywords" in self.errors and answering:
            yield from self._answer_from(answering[0])
            return
        if strangers and self._should_err("wrong person"):
            yield from self._answer_from(strangers[0])
            return
        if others and self.rng.chance(_SECOND_LOOK):
            yield ExpertTurn(self.tools.read_call(self.rng.pick(others).source), is_learned=False)
        if not right:
            yield self._answer(UNKNOWN)
            return
        text = yield ExpertTurn(self.tools.read_call(right[0].source))
        yield self._answer(self._value(text), right[0].source)

    def _answer_from(self, hit: SearchHit) -> Generator[ExpertTurn, str, None]:
        """Read one hit and answer from it, correctly or not."""
        yield ExpertTurn(self.tools.read_call(hit.source))
        answer = self.scenario.answer if hit.source in self.right_sources else self.other_answers[hit.source]
        yield self._answer(answer, hit.source)

    def _search_truncated_words(self) -> Generator[ExpertTurn, str, bool]:
        """Search the inbox for truncated words, which find nothing, and return True if the expert gives up after them.

        A model that copies badly makes such searches. If it has never seen one, it repeats them until its last turn.
        """
        words = [word for word in _WORD.findall(self.scenario.question) if len(word) > 1]
        for _ in range(_MAX_TRUNCATED):
            if self.tools is not MAIL or not self.rng.chance(_TRUNCATED):  # any word finds documents
                return False
            word = self.rng.pick(words)
            yield ExpertTurn(self.tools.search_call([word[: self.rng.between(1, len(word) - 1)]]), is_learned=False)
        return True

    def _search(self) -> Generator[ExpertTurn, str, list[SearchHit]]:
        """Search with fewer words each time until a correct source is listed; or once, with too few words."""
        exact = self._phrases(self.background.about, self.background.asked)
        named = self._phrases(self.background.about)
        words = [word for phrase in named for word in _WORD.findall(phrase)]
        tries = [exact, named, words[:2], words[:1]]
        if len(words) > 1 and self._should_err("few keywords"):
            tries = [words[-1:]]
        hits: list[SearchHit] = []
        for number, keywords in enumerate(tries):
            if keywords not in tries[:number]:
                hits = parse_hits((yield ExpertTurn(self.tools.search_call(keywords))))
            if any(hit.source in self.right_sources for hit in hits):
                break
        return hits

    def _phrases(self, *named: str) -> list[str]:
        """Return the longest phrases of the question that occur in one of the names, in order.

        If no phrase occurs, return the capitalized words of the question, or else its last word.
        """
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
            while phrase and phrase[-1].casefold() in _STOP_WORDS:
                phrase.pop()
            if phrase and phrase[0].casefold() not in _STOP_WORDS:
                found.append(" ".join(phrase))
            start = max(end, start + 1)
        return list(dict.fromkeys(found or [word for word in words[1:] if word[0].isupper()] or words[-1:]))

    def _value(self, text: str) -> str:
        """Return the answer that the expert takes from the text of a correct source."""
        wrong: dict[ErrorKind, tuple[str, ...]] = {
            "older fact": self.background.other_times,
            "neighbouring field": self.background.neighbours,
        }
        for kind, values in wrong.items():
            found = next((value for value in values if value in text), None)
            if found and self._should_err(kind):
                return found
        return self.scenario.answer

    def _should_err(self, kind: ErrorKind, *, tempted: bool = True) -> bool:
        """Decide randomly if the expert makes this error now, and record it."""
        is_error = self.makes_errors and self.rng.chance(ERROR_RATES[kind].chance(self.scenario.question, tempted))
        if is_error:
            self.errors.append(kind)
        return is_error

    def _answer(self, answer: str, *sources: str) -> ExpertTurn:
        return ExpertTurn(self.tools.answer_call(answer, *sources))
