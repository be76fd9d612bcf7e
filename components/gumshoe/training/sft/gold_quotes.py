"""Quotes in demonstrations: the sentence for which the expert reads a hit, or from which it takes the answer."""

from gumshoe.environments.budgets import cut
from gumshoe.rollouts.call_forms import find_form
from gumshoe.rollouts.keyword_searcher import split_sentences
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.sft.gold_answers import share_of_answer

_MARKS = "\u2026 "  # where a snippet begins or ends within a text
_MAX_QUOTE = 200  # characters
_HERMES = find_form("hermes")


def find_quote(scenario: Scenario, text: str, *, has_answer: bool) -> str:
    """Return the sentence or line of a text that has most words of the question, in at most 200 characters.

    With `has_answer`, it is one of those with most words of the reference answer. The result is empty if the text is,
    or if the sentence looks like a call of a tool.
    """

    def rank(sentence: str) -> tuple[float, float]:
        of_answer = share_of_answer(scenario.answer, sentence) if has_answer else 0
        return of_answer, share_of_answer(scenario.question, sentence)

    found = cut(max(split_sentences(text), key=rank, default="").strip(_MARKS), _MAX_QUOTE)
    return found if _HERMES.outside(found) == found else ""
