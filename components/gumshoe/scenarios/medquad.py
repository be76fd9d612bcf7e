"""Turn questions of MedQuAD (https://github.com/abachaa/MedQuAD) into scenarios about the pages that answer them.

A record is a question, an answer and the URL of a page. Some questions occur several times, for the same page or for
others. Each question becomes one scenario: its reference contains all the answers, and each page with an answer is a
right source.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gumshoe.documents.sources import find_page_id

NO_ANSWER = "without an answer"
"""Reason for skipping a record whose answer was withdrawn by its publisher."""


@dataclass(slots=True)
class _QuestionRecords:
    where: str
    question: str
    kind: str
    answers: dict[str, None] = field(default_factory=dict)
    pages: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class MedQuadGrouper:
    """Group records by question."""

    without_answer: int = 0
    _found: dict[str, _QuestionRecords] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any], where: str) -> None:
        """Add a record with its location.

        Raises:
            TypeError: if a field has a wrong type; the message names it.
            ValueError: if the question is empty, or the record has no page.
        """
        answer = _get_text(record, "answer")
        if not answer:
            self.without_answer += 1
            return
        question = re.sub(r"[\s?]+$", "?", _get_text(record, "question"))
        key = " ".join(re.findall(r"\w+", question.casefold()))
        if not key:
            raise ValueError("question has no words")
        kind, page = _get_text(record, "question_type", "qtype"), find_page_id(record)
        gathered = self._found.setdefault(key, _QuestionRecords(where, question, kind))
        gathered.answers.setdefault(answer)
        gathered.pages.setdefault(page)

    def make_scenarios(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each question with its first location, as a scenario without a split, in order of occurrence."""
        for key, each in self._found.items():
            yield (
                each.where,
                {
                    "id": f"medquad-{hashlib.sha256(key.encode()).hexdigest()[:12]}",
                    "question": each.question,
                    "answer": "\n\n".join(each.answers),
                    "document_ids": tuple(each.pages),
                    "kind": each.kind or None,
                },
            )


def _get_text(record: Mapping[str, Any], *names: str) -> str:
    value = next((record[name] for name in names if record.get(name)), "")
    if not isinstance(value, str):
        raise TypeError(f"{'/'.join(names)} must be a string, got {type(value).__name__}")
    return value.strip()
