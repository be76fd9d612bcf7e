"""Create labelled answers to the real medical questions.

    python -m tests.rewards.medical_answers OUT [SEED]
    python -m tests.rewards.medical_answers OUT [SEED] --echoes

The reference answers are long, and an agent returns a part of one. Correct answers are the first three sentences of the
reference, or any three of it. Wrong answers are the first three sentences of the answer to another question about the
same page, or to a question of the same kind about another page. With `--echoes`, all answers only repeat words of the
question, and are wrong.
"""

import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios

MEDQUAD = Path(__file__).parents[3] / "shared" / "data" / "medquad" / "medquad.jsonl.gz"
QUESTIONS = 400
_SENTENCES = 3


def labelled_answers(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Return up to four answers to each of 400 questions, which each have one answer on one page."""
    dice = random.Random(seed)
    asked = [each for each in load_scenarios(str(MEDQUAD)) if len(each.document_ids) == 1 and "\n\n" not in each.answer]
    pages, kinds = defaultdict[str, list[Scenario]](list), defaultdict[str | None, list[Scenario]](list)
    for each in asked:
        pages[each.document_ids[0]].append(each)
        kinds[each.kind].append(each)
    for each in dice.sample(asked, QUESTIONS):
        sentences = _sentences(each.answer)
        start = dice.randrange(max(1, len(sentences) - _SENTENCES + 1))
        yield _labelled(each, sentences[:_SENTENCES], True, "the first sentences")
        yield _labelled(each, sentences[start : start + _SENTENCES], True, "any sentences")
        beside = [other for other in pages[each.document_ids[0]] if other is not each]
        alike = [other for other in kinds[each.kind] if other.document_ids != each.document_ids]
        for others, kind in ((beside, "another question, same page"), (alike, "another page, same sort of question")):
            if others:
                yield _labelled(each, _sentences(dice.choice(others).answer)[:_SENTENCES], False, kind)


def echoes(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Return wrong answers to the questions of `labelled_answers`: the question, its words in reverse, and its end."""
    asked = {each["question"]: each for each in labelled_answers(seed)}
    for question, labelled in asked.items():
        words = re.findall(r"\w+", question)
        made = {
            "the question": question,
            "reversed": " ".join(words[::-1]),
            "its end": " ".join(words[len(words) // 2 :]),
        }
        for kind, answer in made.items():
            yield {**labelled, "answer": answer, "correct": False, "kind": kind}


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def _labelled(asked: Scenario, said: list[str], correct: bool, kind: str) -> dict[str, Any]:
    answer = {"answer": " ".join(said), "correct": correct, "kind": kind}
    return {"question": asked.question, "reference": asked.answer, **answer}


if __name__ == "__main__":
    place, *seeds = [each for each in sys.argv[1:] if each != "--echoes"]
    make = echoes if "--echoes" in sys.argv else labelled_answers
    made = make(*map(int, seeds))
    Path(place).write_text("".join(f"{json.dumps(each)}\n" for each in made), encoding="utf-8")
