"""The policy `keywords`: search without a model, to compare models with."""

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from gumshoe.environments.base import Environment
from gumshoe.environments.data_marks import strip_marks
from gumshoe.environments.registry import FINAL_ANSWER
from gumshoe.environments.search import HIT_ID
from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import KEYWORDS
from gumshoe.rollouts.call_forms import find_form
from gumshoe.rollouts.chat_format.chat_format import ParsedTurn
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.episode import Turn
from gumshoe.rollouts.trajectory import Span, TokenUsage

_MOST_WORDS = 4
_STARTS = ("search_", "read_", FINAL_ANSWER)  # of the names of the tools that it uses
_HERMES = find_form("hermes")
_WORD = re.compile(r"[^\W_]+(?:['\u2019&.-][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
FUNCTION_WORDS = frozenset(
    "a about all am an and any are as at be been by can could did do does for from give had has have he her "  # noqa: SIM905
    "his how i if in into is it its many me much my of on or our she should some than that the their them then "
    "there these they this those to us was we were what when where which who whom whose why will with would "
    "you your".split()
)
"""Words of questions that are in most messages."""
_IGNORED = FUNCTION_WORDS | {"tell"}


def find_keywords(question: str) -> list[str]:
    """Return the words to search for: names and numbers first, then the longest of the others.

    >>> find_keywords("When did Ann Lee sign the lease in Bergen?")
    ['Ann', 'Lee', 'Bergen', 'lease']
    """
    words = list(dict.fromkeys(each for each in _WORD.findall(question) if each.casefold() not in _IGNORED))
    others = sorted((each for each in words if not _is_specific(each)), key=len, reverse=True)
    return [*filter(_is_specific, words), *others][:_MOST_WORDS]


def _is_specific(word: str) -> bool:
    return word[0].isupper() or any(map(str.isdigit, word))


def closest_sentence(text: str, question: str) -> str:
    """Return the sentence or line of a text that shares most words with a question; the first one, if several do."""
    wanted = {each.casefold() for each in _WORD.findall(question)} - _IGNORED

    def shared(sentence: str) -> int:
        return len(wanted.intersection(each.casefold() for each in _WORD.findall(sentence)))

    sentences = [each.strip() for each in _SENTENCE.split(text) if each.strip()]
    return max(sentences, key=shared, default="")


@dataclass(slots=True)
class KeywordSearcher:
    """Chat session that searches for words of the question, reads the first hit, and quotes its closest sentence.

    While a search finds nothing, the last word is left out. Without any hit, the answer is "I don't know".
    """

    environment: Environment
    settings: ChatSettings = field(default_factory=ChatSettings)
    _results: str = ""
    _prompt: tuple[Span, ...] = ()
    _calls: Generator[Call, str, None] | None = None

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> Sequence[str]:  # noqa: ARG002 - always one call
        """Keep the result of the last call."""
        self._results = "\n\n".join(map(strip_marks, results))
        return results

    async def next_turn(self) -> Turn | None:
        """Return the next call, or None after the last one."""
        if self._calls is None:
            environment = self.environment
            before = Span("prompt", f"{environment.system_prompt()}\n\n{environment.user_prompt()}")
            self._calls = self._play()
            call = next(self._calls)
        else:
            before = Span("injected", self._results)
            try:
                call = self._calls.send(self._results)
            except StopIteration:
                return None
        spans = (before, Span("sampled", _HERMES.write([call]), calls=(call,)))
        return Turn(spans, ParsedTurn((call,)), KEYWORDS, is_truncated=False, usage=TokenUsage(0, 0))

    def _play(self) -> Generator[Call, str, None]:
        search, read, answer = _find_tools(self.environment)
        question = self.environment.scenario.question
        words, found = find_keywords(question), None
        while words and found is None:
            is_list = search.kinds[search.first] == "array"
            found = HIT_ID.search((yield search.call([*words] if is_list else " ".join(words))))
            words.pop()
        if found is None:
            yield answer.call("I don't know", [])
            return
        text = yield read.call(found[1])
        _, _, body = text.partition("\n\n")  # after the header
        yield answer.call(closest_sentence(body or text, question), [found[1]])


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    kinds: dict[str, str]
    """JSON type of each argument."""

    @property
    def first(self) -> str:
        return next(iter(self.kinds))

    def call(self, *values: object) -> Call:
        """Return a call with the values of the first arguments."""
        return Call(self.name, dict(zip(self.kinds, values, strict=False)))


def _find_tools(environment: Environment) -> tuple[_Tool, _Tool, _Tool]:
    """Return the tools that search, read and answer.

    Raises:
        UsageError: if the environment has others.
    """
    described = [each["function"] for each in environment.toolbox.schemas()]
    tools = [
        _Tool(each["name"], {name: str(one.get("type")) for name, one in each["parameters"]["properties"].items()})
        for each in described
    ]

    found = [next((each for each in tools if each.name.startswith(start)), None) for start in _STARTS]
    search, read, answer = found
    if search is None or read is None or answer is None:
        raise UsageError(
            "rollouts.keywords-tools",
            f"the policy {KEYWORDS} needs tools whose names begin with {', '.join(_STARTS)}; this environment has "
            f"{', '.join(each.name for each in tools)}",
        )
    return search, read, answer
