"""The answer of a demonstration: the reference answer, or one in the words of the source."""

import re

from gumshoe.rewards.heuristic.heuristic_judge import judge_answer
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.sft.gold_words import content_words

_QUOTE_MARKS = re.compile(r"^[> ]+", re.M)  # of the text that a message quotes
_LEAST_F1 = 0.6  # of a passage's words; one that is less like the reference is another answer, or half of it
_MAX_PASSAGES = 50


def answer_from_source(scenario: Scenario, text: str) -> str:
    """Return an answer in the words of the source: a part of the reference answer, or a passage of the source.

    It is the shortest part of the reference answer that has all its words which are not in the question, if that stands
    in the text of the source. Otherwise it is the passage whose words are most like these (by F1). The heuristic judge
    must accept it; if there is none, return the reference.

    >>> scenario = Scenario(id="1", question="When is the audit?", answer="The audit is on 3 May.", document_ids=["d"])
    >>> answer_from_source(scenario, "It begins on 3 May at ten.")
    '3 May'
    >>> answer_from_source(scenario, "Audit: May the 3rd, ten o'clock.")
    'May the 3rd'
    """
    asked = {_singular(word) for word, _ in content_words(scenario.question)}
    new = [(word, start) for word, start in content_words(scenario.answer) if _singular(word) not in asked]
    if not new:
        return scenario.answer
    flat = " ".join(_QUOTE_MARKS.sub("", text).split())
    part = _cut(scenario.answer, new[0][1], new[-1][1] + len(new[-1][0]))
    parts = [part] if part.casefold() in flat.casefold() else []
    passages = _find_passages(flat, {_singular(word) for word, _ in new}, asked)
    for answer in (*parts, *passages):
        if judge_answer(scenario.question, scenario.answer, answer, scenario.query_date).correct:
            return answer
    return scenario.answer


def _find_passages(text: str, wanted: set[str], asked: set[str]) -> list[str]:
    """Return passages of a text, most like some wanted words first. Words of the question count neither way."""
    words = [(_singular(word), start, start + len(word)) for word, start in content_words(text)]
    found = dict[str, float]()
    for first, (key, start, _) in enumerate(words):
        if key not in wanted:
            continue
        own, others = set[str](), 0
        for key, _, end in words[first : first + 2 * len(wanted) + len(asked)]:
            own |= {key} & wanted
            others += key not in wanted and key not in asked
            f1 = 2 * len(own) / (len(own) + others + len(wanted))
            if key not in wanted or f1 < _LEAST_F1:
                continue
            passage = _cut(text, start, end)
            if '"' not in passage:  # small models rarely escape it in a call
                found[passage] = max(f1, found.get(passage, 0))
    return sorted(found, key=lambda each: (-found[each], len(each)))[:_MAX_PASSAGES]


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
