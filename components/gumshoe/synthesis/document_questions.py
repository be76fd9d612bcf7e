"""Questions that a reader of an invented reference work would ask, with the answers that it holds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gumshoe.scenarios.scenario import Scenario, Split
from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.entries import Fact, Subject
from gumshoe.synthesis.grammar import expand, load_text, sentence
from gumshoe.synthesis.mail_questions import KINDS
from gumshoe.synthesis.rng import Rng

_TRIES = 12
_KINDS = {
    **KINDS,
    "year": "when",
    "season": "when",
    "ground": "where",
    "town": "where",
    "store": "where",
    "dose": "how much",
    "days": "how long",
    "minutes": "how long",
    "colour": "which",
    "stuff": "which",
    "member": "which",
    "remedy": "which",
    "sign": "what",
    "culprit": "why",
    "benefit": "why",
    "merit": "why",
}


@dataclass(frozen=True, slots=True)
class Book:
    """A reference work, to look up in it what states what."""

    before: str
    """The edition before the last, as a word."""
    now: str
    day: date
    """On which questions are asked: the last edition is out."""
    stating: Mapping[str, Sequence[str]]
    """The ids of the documents that state a fact, by the fact's key."""


@dataclass(frozen=True, slots=True)
class _DocumentQuestionCandidate:
    """A question that could be asked of a subject."""

    kind: str
    fact: Fact
    direct: list[str]
    oblique: list[str]
    answer: str
    key: str
    """What a document states that answers it."""
    slots: dict[str, str] = field(default_factory=dict)
    changed: bool = False
    """It asks how the fact went, not what it is."""


@dataclass(slots=True)
class Reader:
    """Asks about one subject after another; no question comes twice."""

    dice: Rng
    difficulty: Difficulty
    book: Book
    _asked: set[str] = field(default_factory=set)
    _kinds: Counter[str] = field(default_factory=Counter)

    def ask(self, subjects: Sequence[Subject], prefix: str, splits: Mapping[str, Split]) -> Iterator[Scenario]:
        """Scenarios about subjects, by whose names their splits are."""
        known_by = Counter(
            (subject.kind.id, fact.value)
            for subject in subjects
            if (fact := subject.fact(subject.kind.key)) is not None and not fact.old
        )
        number = 0
        for subject in subjects:
            candidates = self.dice.shuffled(list(self._candidates(subject)))
            candidates.sort(key=lambda each: self._kinds[each.kind] / self._share(each))  # rare kinds first
            names = [subject.other_name] if subject.other_name else []
            key = subject.fact(subject.kind.key)
            if key is not None and known_by[subject.kind.id, key.value] == 1:
                values = {"short": subject.short, "person": key.value}
                names.append(expand(self.dice.pick(subject.kind.also), self.dice, values))
            for candidate in candidates[: self.dice.between(1, 3)]:
                usable = [name for name in names if candidate.answer not in name]
                asked = self._worded(candidate, subject, usable)
                if asked is None:
                    continue
                number += 1
                self._kinds[candidate.kind] += 1
                yield Scenario(
                    id=f"{prefix}-{number:05}",
                    question=asked[0],
                    answer=candidate.answer,
                    document_ids=tuple(self.book.stating[candidate.key]),
                    how_realistic=asked[1],
                    query_date=self.book.day,
                    split=splits[subject.name],
                    kind=candidate.kind,
                )

    def _share(self, candidate: _DocumentQuestionCandidate) -> float:
        return self.difficulty.history if candidate.changed else 1

    def _worded(
        self, candidate: _DocumentQuestionCandidate, subject: Subject, names: Sequence[str]
    ) -> tuple[str, float] | None:
        """A question in words that no other has, and how realistic it is."""
        for _ in range(_TRIES):
            oblique = bool(candidate.oblique) and self.dice.chance(self.difficulty.oblique)
            indirect = self.dice.pick(names) if names and self.dice.chance(self.difficulty.indirect) else None
            template = self.dice.pick(candidate.oblique if oblique else candidate.direct)
            question = sentence(template, self.dice, {**candidate.slots, "it": indirect or subject.it})
            if question.casefold() not in self._asked:
                self._asked.add(question.casefold())
                realism = 0.95 - 0.1 * oblique - 0.15 * (indirect is not None) - 0.05 * self.dice.below(3)
                return question, round(realism, 2)
        return None

    def _candidates(self, subject: Subject) -> Iterator[_DocumentQuestionCandidate]:
        texts = load_text("reference")["change"]
        for fact in subject.facts:
            kind, sort, now = fact.kind, _KINDS.get(fact.kind.type, "where"), fact.key(subject, "now")
            # A handbook's mail would ask for some by a person's name, which is in no entry.
            direct, oblique = (
                [text for text in texts if "{person}" not in text]
                for texts in (kind.in_own_words(kind.question), kind.oblique)
            )
            if direct:
                yield _DocumentQuestionCandidate(sort, fact, direct, oblique, fact.value, now, {"noun": kind.noun})
            if not fact.old:
                continue
            slots = {"noun": kind.noun, "before": self.book.before, "now": self.book.now}
            of = "_person" if kind.says_who else ""
            before, change = fact.key(subject, "before"), fact.key(subject, "change")
            for name, wordings, answer, key in (
                ("latest", f"latest{of}", fact.value, now),
                ("earlier edition", f"earlier{of}", fact.old, before),
                ("what changed", "changed", f"From {fact.old} to {fact.value}.", change),
                ("why it changed", "why", fact.reason, change),
            ):
                yield _DocumentQuestionCandidate(name, fact, texts[wordings], [], answer, key, slots, changed=True)
