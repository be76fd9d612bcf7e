"""Questions of MedQuAD (https://github.com/abachaa/MedQuAD) as scenarios about the pages that answer them.

A record is a question, an answer and the address of a page. The set asks some questions again, of the same page or of
another: a question is one scenario, its reference all the answers to it, and each page that has one is a right source.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gumshoe.documents.sources import page_of

NO_ANSWER = "without an answer"
"""Why a record is left out: its publisher took the answer back."""


@dataclass(slots=True)
class _Gathered:
    where: str
    question: str
    kind: str
    answers: dict[str, None] = field(default_factory=dict)
    pages: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class MedQuadGatherer:
    """Gathers records by their question."""

    without_answer: int = 0
    _found: dict[str, _Gathered] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any], where: str) -> None:
        """Take in a record, which stands at `where`.

        Raises:
            TypeError: a field is of the wrong type; the message names it.
            ValueError: the question is empty, or no page is named.
        """
        answer = _text(record, "answer")
        if not answer:
            self.without_answer += 1
            return
        question = re.sub(r"[\s?]+$", "?", _text(record, "question"))
        key = " ".join(re.findall(r"\w+", question.casefold()))
        if not key:
            raise ValueError("question has no words")
        kind, page = _text(record, "question_type", "qtype"), page_of(record)
        gathered = self._found.setdefault(key, _Gathered(where, question, kind))
        gathered.answers.setdefault(answer)
        gathered.pages.setdefault(page)

    def scenarios(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each question, as a line of a file has it, with where it stands first, in the order in which they came; in no
        split.
        """
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


def _text(record: Mapping[str, Any], *names: str) -> str:
    value = next((record[name] for name in names if record.get(name)), "")
    if not isinstance(value, str):
        raise TypeError(f"{'/'.join(names)} must be a string, got {type(value).__name__}")
    return value.strip()
