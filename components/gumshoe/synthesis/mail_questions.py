"""Questions that the owner of a mailbox would ask, with the answers that the mail holds."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from gumshoe.scenarios.scenario import Scenario, Split
from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import expand, load_text, sentence
from gumshoe.synthesis.letters import Letter
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.stories import Story
from gumshoe.synthesis.topics import Topic, TopicFact

_WAIT = 60  # days after the answer was written within which it is asked for
_TRIES = 12
_ASKED_APART = {"person", "firm"}  # types of value after which nobody asks "what"
KINDS = {
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
"""What a fact is asked for with, by the type of its value; "where", for all others."""


@dataclass(frozen=True, slots=True)
class _MailQuestionCandidate:
    """A question that could be asked of a story."""

    kind: str
    fact: str
    """The fact it asks for."""
    direct: list[str]
    oblique: list[str]
    answer: str
    keys: frozenset[str]
    """What a message states that answers it."""
    known: date
    """The day the answer was first written."""
    until: date | None
    """The day another answer became true, or the question idle."""
    slots: dict[str, str] = field(default_factory=dict)
    changed: bool = False
    """It asks how the fact went, not what it is."""


@dataclass(frozen=True, slots=True)
class Background:
    """What stands behind a question; for a teacher, and in no file."""

    about: str
    """The name of the matter."""
    asked: str
    """The noun of what is asked for."""
    other_times: tuple[str, ...]
    """What the same fact was before, or became later."""
    neighbours: tuple[str, ...]
    """What the matter's other facts are."""


@dataclass(slots=True)
class Asker:
    """Asks about the stories of one mailbox after another; no question comes twice."""

    dice: Rng
    difficulty: Difficulty
    _asked: set[str] = field(default_factory=set)
    _kinds: Counter[str] = field(default_factory=Counter)

    def ask(self, mailbox: "Archive", prefix: str, split: Split) -> Iterator[tuple[Scenario, Background]]:
        """Scenarios about one mailbox, each with what stands behind it."""
        number = 0
        for story in mailbox.stories:
            candidates = self.dice.shuffled(list(_candidates(story, mailbox, self.dice)))
            candidates.sort(key=lambda each: self._kinds[each.kind] / self._share(each))  # rare kinds first
            for candidate in candidates[: self.dice.between(1, 3)]:
                day = self._day(candidate)
                asked = self._worded(candidate, story.matter, mailbox, day) if day else None
                if day is None or asked is None:
                    continue
                number += 1
                self._kinds[candidate.kind] += 1
                question, realism = asked
                scenario = Scenario(
                    id=f"{prefix}-{number:04}",
                    question=question,
                    answer=candidate.answer,
                    message_ids=tuple(mailbox.stating(candidate.keys, day)),
                    how_realistic=realism,
                    inbox_address=mailbox.owner,
                    query_date=day,
                    split=split,
                    kind=candidate.kind,
                )
                yield scenario, _background(candidate, story.matter)

    def _share(self, candidate: "_MailQuestionCandidate") -> float:
        return self.difficulty.history if candidate.changed else 1

    def _day(self, candidate: "_MailQuestionCandidate") -> date | None:
        """A day on which the answer is known and still true."""
        first = candidate.known + timedelta(days=1)
        last = first + timedelta(days=_WAIT)
        if candidate.until is not None:
            last = min(last, candidate.until - timedelta(days=1))
        days = (last - first).days
        return first + timedelta(days=self.dice.between(0, days)) if days >= 0 else None

    def _worded(
        self, candidate: "_MailQuestionCandidate", matter: Topic, mailbox: "Archive", day: date
    ) -> tuple[str, float] | None:
        """A question in words that no other has, and how realistic it is."""
        for _ in range(_TRIES):
            oblique = bool(candidate.oblique) and self.dice.chance(self.difficulty.oblique)
            indirect = None
            if self.dice.chance(self.difficulty.indirect) and candidate.fact != matter.kind.key:
                indirect = self._other_name(matter, mailbox, day)
            template = self.dice.pick(candidate.oblique if oblique else candidate.direct)
            question = sentence(template, self.dice, {**candidate.slots, "it": indirect or _full_name(matter)})
            if question.casefold() not in self._asked:
                self._asked.add(question.casefold())
                realism = 0.95 - 0.1 * oblique - 0.15 * (indirect is not None) - 0.05 * self.dice.below(3)
                return question, round(realism, 2)
        return None

    def _other_name(self, matter: Topic, mailbox: "Archive", day: date) -> str | None:
        """The matter by who is in charge of it, if the mail says so by then and of this matter alone."""
        key = _key_fact(matter)
        if key is None or key.change is not None:
            return None
        version = key.versions[0]
        if mailbox.first(version.key) >= day or mailbox.in_charge[matter.kind.id, version.value] > 1:
            return None
        return expand(self.dice.pick(matter.kind.also), self.dice, {"short": matter.short, "person": version.value})


class Archive:
    """One mailbox, to look up in it what states what."""

    def __init__(self, owner: str, stories: Sequence[Story], letters: dict[str, Letter]) -> None:
        self.owner, self.stories = owner, stories
        self.in_charge = Counter(
            (story.matter.kind.id, version.value)
            for story in stories
            if (fact := _key_fact(story.matter))
            for version in fact.versions
        )
        """How many matters of a kind somebody is in charge of, by their name."""
        self._stating: defaultdict[str, list[tuple[date, str]]] = defaultdict(list)
        for message_id, letter in sorted(letters.items(), key=lambda each: (each[1].sent, each[0])):
            for key in letter.states:
                self._stating[key].append((letter.sent.date(), message_id))

    def first(self, key: str) -> date:
        """When something was first stated."""
        return self._stating[key][0][0]

    def stating(self, keys: frozenset[str], day: date) -> list[str]:
        """Ids of the messages, up to that day, that state any of those, the first one first."""
        found = {message for key in keys for message in self._stating[key] if message[0] <= day}
        return [message_id for _, message_id in sorted(found)]


def _full_name(matter: Topic) -> str:
    return f"the {matter.start.year} {matter.name}" if matter.twin else f"the {matter.name}"


def _key_fact(matter: Topic) -> TopicFact | None:
    return next((fact for fact in matter.facts if fact.kind.id == matter.kind.key), None)


def _background(candidate: _MailQuestionCandidate, matter: Topic) -> Background:
    asked = next((fact for fact in matter.facts if fact.kind.id == candidate.fact), None)
    return Background(
        matter.name,
        asked.kind.noun if asked else candidate.slots["request"],
        tuple(version.value for version in asked.versions if version.value != candidate.answer) if asked else (),
        tuple(version.value for fact in matter.facts if fact is not asked for version in fact.versions),
    )


def _candidates(story: Story, mailbox: Archive, dice: Rng) -> Iterator[_MailQuestionCandidate]:
    over = story.matter.over
    for fact in story.matter.facts:
        yield from _about_fact(fact, over, mailbox, dice)
    approval = story.matter.approval
    if approval is None:
        return
    texts = load_text("facts")["approval"]
    told = mailbox.first(approval.key)
    slots = {"request": approval.request}
    keys = frozenset([approval.key])
    verdict = "Yes" if approval.granted else "No"
    answer = f"{verdict}. {approval.evidence}"
    yield _MailQuestionCandidate(
        "yes or no", "approval", texts["question"], texts["oblique"], answer, keys, told, over, slots
    )
    decided = texts["decided_yes" if approval.granted else "decided_no"]
    yield _MailQuestionCandidate("who decided", "approval", decided, [], approval.decider.name, keys, told, None, slots)


def _about_fact(fact: TopicFact, over: date | None, mailbox: Archive, dice: Rng) -> Iterator[_MailQuestionCandidate]:
    kind, first = fact.kind, fact.versions[0]
    told = mailbox.first(first.key)
    changed = mailbox.first(fact.change.key) if fact.change else None
    until = min(filter(None, [changed, first.day, over]), default=None)  # nobody asks how what has been will be
    slots = {"noun": kind.noun, "person": first.person.name if first.person else ""}
    sort = KINDS.get(kind.type, "where")
    # Whoever is asked for by name has the same number in every matter.
    for by_name, keys in ((False, frozenset([first.key])), (True, first.states)):
        direct, oblique = (
            [text for text in texts if ("{person}" in text) is by_name]
            for texts in (kind.in_own_words(kind.question), kind.oblique)
        )
        if direct:
            yield _MailQuestionCandidate(sort, kind.id, direct, oblique, first.value, keys, told, until, slots)
    if fact.change is None or changed is None:
        return
    asked = load_text("facts")["asked"]
    second, sort_of = fact.versions[1], f"_{kind.type}" if kind.type in _ASKED_APART else ""
    told_of = frozenset([fact.change.key])
    went = [
        ("latest", asked[f"latest{sort_of}"], kind.oblique, second.value, frozenset([second.key])),
        ("what changed", asked[f"changed{sort_of}"], [], f"From {first.value} to {second.value}.", told_of),
        ("why", asked["why"], [], fact.change.reason, told_of),
        ("who decided", asked["decided"], [], fact.change.decider.name, told_of),
    ]
    between = (changed - told).days
    if between > 1:
        then = told + timedelta(days=dice.between(1, between - 1))
        slots["then"] = f"{then.day} {then:%B %Y}"
        went.append(("before a date", asked[f"before{sort_of}"], [], first.value, told_of | {first.key}))
    for sort, direct, oblique, answer, stated in went:
        until = min(filter(None, [second.day, over]), default=None) if sort == "latest" else None
        yield _MailQuestionCandidate(
            sort, kind.id, direct, oblique, answer, stated, changed, until, slots, changed=True
        )
