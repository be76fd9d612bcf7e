"""Questions that the owner of a mailbox would ask, with the answers that the mail holds."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from gumshoe.scenarios.scenario import Scenario, Split
from gumshoe.synthesis.dice import Dice
from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import expand, load_text, sentence
from gumshoe.synthesis.letters import Letter
from gumshoe.synthesis.matters import Fact, Matter
from gumshoe.synthesis.stories import Story

_WAIT = 60  # days after the answer was written within which it is asked for
_TRIES = 12
_KINDS = {
    "person": "who",
    "money": "how much",
    "date": "when",
    "time": "when",
    "count": "how many",
    "firm": "which",
    "hotel": "which",
    "code": "reference",
    "contact": "contact",
    "cause": "why",
}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A question that could be asked of a story."""

    kind: str
    fact: str
    """The fact it asks for."""
    direct: list[str]
    oblique: list[str]
    answer: str
    keys: frozenset[str]
    """What a message states that answers it."""
    known: datetime
    """When the answer was first written."""
    until: datetime | None
    """When another answer became true."""
    slots: dict[str, str] = field(default_factory=dict)
    changed: bool = False
    """It asks how the fact went, not what it is."""


@dataclass(slots=True)
class Asker:
    """Asks about the stories of one mailbox after another; no question comes twice."""

    dice: Dice
    difficulty: Difficulty
    _asked: set[str] = field(default_factory=set)
    _kinds: Counter[str] = field(default_factory=Counter)

    def ask(
        self, stories: Sequence[Story], ids: dict[Letter, str], inbox: str, prefix: str, split: Split
    ) -> Iterator[Scenario]:
        """Scenarios about the stories of one mailbox; `ids` are the letters' message ids."""
        letters = [letter for story in stories for letter in story.letters]
        number = 0
        for story in stories:
            candidates = self.dice.shuffled(list(_candidates(story, self.dice)))
            candidates.sort(key=lambda each: self._kinds[each.kind] / self._share(each))  # rare kinds first
            for candidate in candidates[: self.dice.between(1, 3)]:
                day = self._day(candidate)
                asked = self._worded(candidate, story, stories, day) if day else None
                if day is None or asked is None:
                    continue
                question, realism = asked
                gold = [
                    ids[letter]
                    for letter in sorted(letters, key=lambda each: (each.sent, ids[each]))
                    if candidate.keys & letter.states and letter.sent.date() < day
                ]
                number += 1
                self._kinds[candidate.kind] += 1
                yield Scenario(
                    id=f"{prefix}-{number:04}",
                    question=question,
                    answer=candidate.answer,
                    message_ids=tuple(gold),
                    how_realistic=realism,
                    inbox_address=inbox,
                    query_date=day,
                    split=split,
                    kind=candidate.kind,
                )

    def _share(self, candidate: _Candidate) -> float:
        return self.difficulty.history if candidate.changed else 1

    def _day(self, candidate: _Candidate) -> date | None:
        """A day on which the answer is known and still true."""
        first = candidate.known.date() + timedelta(days=1)
        last = first + timedelta(days=_WAIT)
        if candidate.until is not None:
            last = min(last, candidate.until.date() - timedelta(days=1))
        days = (last - first).days
        return first + timedelta(days=self.dice.between(0, days)) if days >= 0 else None

    def _worded(
        self, candidate: _Candidate, story: Story, stories: Sequence[Story], day: date
    ) -> tuple[str, float] | None:
        """A question in words that no other has, and how realistic it is."""
        for _ in range(_TRIES):
            oblique = bool(candidate.oblique) and self.dice.chance(self.difficulty.oblique)
            indirect = None
            if self.dice.chance(self.difficulty.indirect):
                indirect = _other_name(story, stories, candidate, day, self.dice)
            it = indirect or _full_name(story.matter)
            template = self.dice.pick(candidate.oblique if oblique else candidate.direct)
            question = sentence(template, self.dice, {**candidate.slots, "it": it})
            if question.casefold() not in self._asked:
                self._asked.add(question.casefold())
                realism = 0.95 - 0.1 * oblique - 0.15 * (indirect is not None) - 0.05 * self.dice.below(3)
                return question, round(realism, 2)
        return None


def _full_name(matter: Matter) -> str:
    return f"the {matter.start.year} {matter.name}" if matter.twin else f"the {matter.name}"


def _other_name(story: Story, stories: Sequence[Story], candidate: _Candidate, day: date, dice: Dice) -> str | None:
    """The matter by who is in charge of it, if the mail says so by then and of this matter alone."""
    matter = story.matter
    key = _key_fact(matter)
    if key is None or key.change is not None or key.kind.id == candidate.fact:
        return None
    person = key.versions[0].person
    told = story.stating(key.versions[0].key)
    if person is None or not told or told[0].sent.date() >= day:
        return None
    for other in stories:
        rival = _key_fact(other.matter)
        if other is not story and rival and other.matter.kind is matter.kind:
            if person in {version.person for version in rival.versions}:
                return None
    return expand(dice.pick(matter.kind.also), dice, {"short": matter.short, "person": person.name})


def _key_fact(matter: Matter) -> Fact | None:
    return next((fact for fact in matter.facts if fact.kind.id == matter.kind.key), None)


def _candidates(story: Story, dice: Dice) -> Iterator[_Candidate]:
    for fact in story.matter.facts:
        yield from _about_fact(story, fact, dice)
    approval = story.matter.approval
    if approval is None:
        return
    texts = load_text("facts")["approval"]
    (told, *_) = story.stating(approval.key)
    slots = {"request": approval.request}
    keys = frozenset([approval.key])
    verdict = "Yes" if approval.granted else "No"
    answer = f"{verdict}. {approval.evidence}"
    yield _Candidate("yes or no", "approval", texts["question"], texts["oblique"], answer, keys, told.sent, None, slots)
    decided = texts["decided_yes" if approval.granted else "decided_no"]
    yield _Candidate("who decided", "approval", decided, [], approval.decider.name, keys, told.sent, None, slots)


def _about_fact(story: Story, fact: Fact, dice: Dice) -> Iterator[_Candidate]:
    kind, first = fact.kind, fact.versions[0]
    direct = kind.in_own_words(kind.question)
    told = story.stating(first.key)[0].sent
    changed = story.stating(fact.change.key)[0].sent if fact.change else None
    slots = {"noun": kind.noun, "person": first.person.name if first.person else ""}
    sort = _KINDS.get(kind.type, "where")
    keys = frozenset([first.key])
    yield _Candidate(sort, kind.id, direct, kind.oblique, first.value, keys, told, changed, slots)
    if fact.change is None or changed is None:
        return
    asked = load_text("facts")["asked"]
    second, person = fact.versions[1], "_person" if kind.type == "person" else ""
    told_of = frozenset([fact.change.key])
    went = [
        ("latest", asked[f"latest{person}"], kind.oblique, second.value, frozenset([second.key])),
        ("what changed", asked["changed"], [], f"From {first.value} to {second.value}.", told_of),
        ("why", asked["why"], [], fact.change.reason, told_of),
        ("who decided", asked["decided"], [], fact.change.decider.name, told_of),
    ]
    between = (changed.date() - told.date()).days
    if between > 1:
        then = told.date() + timedelta(days=dice.between(1, between - 1))
        slots["then"] = f"{then.day} {then:%B %Y}"
        went.append(("before a date", asked[f"before{person}"], [], first.value, keys | told_of))
    for sort, direct, oblique, answer, stated in went:
        yield _Candidate(sort, kind.id, direct, oblique, answer, stated, changed, None, slots, changed=True)
