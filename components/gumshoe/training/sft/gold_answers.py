"""The answer of a demonstration: the reference answer, or the shortest part of it that stands in the source."""

from gumshoe.rewards.heuristic.heuristic_judge import judge_answer
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.sft.gold_words import content_words


def shorten_answer(scenario: Scenario, text: str) -> str:
    """Return the shortest part of the reference answer that has all its words which are not in the question.

    If the part does not stand in the text of the source, or would not be accepted as an answer, return the reference.

    >>> shorten_answer(Scenario(id="1", question="When is the audit?", answer="The audit is on 3 May.",
    ...                         document_ids=["d"]), "It begins on 3 May at ten.")
    '3 May'
    """
    answer = scenario.answer
    asked = {_singular(word) for word, _ in content_words(scenario.question)}
    new = [(word, start) for word, start in content_words(answer) if _singular(word) not in asked]
    if not new:
        return answer
    part = _cut(answer, new[0][1], new[-1][1] + len(new[-1][0]))
    in_source = part.casefold() in " ".join(text.casefold().split())
    accepted = in_source and judge_answer(scenario.question, answer, part, scenario.query_date).correct
    return part if accepted else answer


def share_of_answer(answer: str, text: str) -> float:
    """Return the share of the words of an answer that a text has; 1 if the answer has no words."""
    words = {word.casefold() for word, _ in content_words(answer)}
    found = {word.casefold() for word, _ in content_words(text)}
    return len(words & found) / len(words) if words else 1.0


def _singular(word: str) -> str:
    return word.casefold().removesuffix("s")


def _cut(text: str, start: int, end: int) -> str:
    """Return a part of a text with the signs at its ends, e.g. of a currency, but without quotation marks and stops."""
    first = text.rfind(" ", 0, start) + 1
    last = text.find(" ", end)
    return text[first : last if last >= 0 else len(text)].strip("\"'\u201c\u201d").rstrip(".,;:!?")
