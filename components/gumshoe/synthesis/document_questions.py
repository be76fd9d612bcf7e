"""Generate questions about a synthetic reference work, with their answers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gumshoe.scenarios.scenario import Scenario, Split
from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.entries import Fact, Subject
from gumshoe.synthesis.grammar import expand, expand_sentence, load_text
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
class ReferenceWork:
    """A reference work, and the documents that state each fact."""

    before: str
    """Name of the previous edition."""
    now: str
    day: date
    """Day on which questions are asked, after the last edition appeared."""
    documents_by_fact: Mapping[str, Sequence[str]]
    """Ids of the documents that state a fact, by the fact's key."""


@dataclass(frozen=True, slots=True)
class _DocumentQuestionCandidate:
    """A possible question about a subject."""

    kind: str
    fact: Fact
    direct: list[str]
    oblique: list[str]
    answer: str
    key: str
    """Key of the fact that answers it."""
    slots: dict[str, str] = field(default_factory=dict)
    changed: bool = False
    """True if it asks how a fact changed, not what it is."""


@dataclass(slots=True)
class DocumentQuestionGenerator:
    """Generate questions about one subject after another, without repetitions."""

    rng: Rng
    difficulty: Difficulty
    book: ReferenceWork
    _asked: set[str] = field(default_factory=set)
    _kinds: Counter[str] = field(default_factory=Counter)

    def generate(self, subjects: Sequence[Subject], prefix: str, splits: Mapping[str, Split]) -> Iterator[Scenario]:
        """Yield scenarios about subjects. `splits` maps subject names to splits."""
        known_by = Counter(
            (subject.kind.id, fact.value)
            for subject in subjects
            if (fact := subject.find_fact(subject.kind.key)) is not None and not fact.old
        )
        number = 0
        for subject in subjects:
            candidates = self.rng.shuffled(list(self._list_candidates(subject)))
            candidates.sort(key=lambda each: self._kinds[each.kind] / self._weight(each))  # rare kinds first
            names = [subject.other_name] if subject.other_name else []
            key = subject.find_fact(subject.kind.key)
            if key is not None and known_by[subject.kind.id, key.value] == 1:
                values = {"short": subject.short, "person": key.value}
                names.append(expand(self.rng.pick(subject.kind.also), self.rng, values))
            for candidate in candidates[: self.rng.between(1, 3)]:
                usable = [name for name in names if candidate.answer not in name]
                asked = self._write_question(candidate, subject, usable)
                if asked is None:
                    continue
                number += 1
                self._kinds[candidate.kind] += 1
                yield Scenario(
                    id=f"{prefix}-{number:05}",
                    question=asked[0],
                    answer=candidate.answer,
                    document_ids=tuple(self.book.documents_by_fact[candidate.key]),
                    how_realistic=asked[1],
                    query_date=self.book.day,
                    split=splits[subject.name],
                    kind=candidate.kind,
                )

    def _weight(self, candidate: _DocumentQuestionCandidate) -> float:
        return self.difficulty.history if candidate.changed else 1

    def _write_question(
        self, candidate: _DocumentQuestionCandidate, subject: Subject, names: Sequence[str]
    ) -> tuple[str, float] | None:
        """Return a question that was not asked before, and how realistic it is."""
        for _ in range(_TRIES):
            oblique = bool(candidate.oblique) and self.rng.chance(self.difficulty.oblique)
            indirect = self.rng.pick(names) if names and self.rng.chance(self.difficulty.indirect) else None
            template = self.rng.pick(candidate.oblique if oblique else candidate.direct)
            question = expand_sentence(template, self.rng, {**candidate.slots, "it": indirect or subject.noun_phrase})
            if question.casefold() not in self._asked:
                self._asked.add(question.casefold())
                realism = 0.95 - 0.1 * oblique - 0.15 * (indirect is not None) - 0.05 * self.rng.below(3)
                return question, round(realism, 2)
        return None

    def _list_candidates(self, subject: Subject) -> Iterator[_DocumentQuestionCandidate]:
        texts = load_text("reference")["change"]
        for fact in subject.facts:
            kind, sort, now = fact.kind, _KINDS.get(fact.kind.type, "where"), fact.make_key(subject, "now")
            # Some texts ask by a person's name, which occurs in mail but not in entries.
            direct, oblique = (
                [text for text in texts if "{person}" not in text]
                for texts in (kind.select_own_words(kind.question), kind.oblique)
            )
            if direct:
                yield _DocumentQuestionCandidate(sort, fact, direct, oblique, fact.value, now, {"noun": kind.noun})
            if not fact.old:
                continue
            slots = {"noun": kind.noun, "before": self.book.before, "now": self.book.now}
            of = "_person" if kind.is_about_person else ""
            before, change = fact.make_key(subject, "before"), fact.make_key(subject, "change")
            for name, wordings, answer, key in (
                ("latest", f"latest{of}", fact.value, now),
                ("earlier edition", f"earlier{of}", fact.old, before),
                ("what changed", "changed", f"From {fact.old} to {fact.value}.", change),
                ("why it changed", "why", fact.reason, change),
            ):
                yield _DocumentQuestionCandidate(name, fact, texts[wordings], [], answer, key, slots, changed=True)
