"""Generate questions that the owner of a mailbox would ask, with answers from the mail."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from gumshoe.scenarios.scenario import Scenario, Split
from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import expand, expand_sentence, load_text
from gumshoe.synthesis.letters import Letter
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.stories import Story
from gumshoe.synthesis.topics import Topic, TopicFact

_MAX_DAYS = 60  # between the message with the answer and the question
_TRIES = 12
_TYPES_WITH_OWN_QUESTIONS = {"person", "firm"}  # types of value that need their own questions
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
"""Kind of question by the type of a fact's value. The default is "where"."""


@dataclass(frozen=True, slots=True)
class _MailQuestionCandidate:
    """A possible question about a topic."""

    kind: str
    fact: str
    """Id of the fact that it asks for."""
    direct: list[str]
    oblique: list[str]
    answer: str
    keys: frozenset[str]
    """Keys of statements that answer it."""
    known: date
    """Day on which the answer was first written."""
    until: date | None
    """Day on which another answer became true, or the question became pointless."""
    slots: dict[str, str] = field(default_factory=dict)
    changed: bool = False
    """True if it asks how a fact changed, not what it is."""


@dataclass(frozen=True, slots=True)
class QuestionBackground:
    """Facts behind a question, for scripted experts. They are not written to files."""

    about: str
    """Name of the topic."""
    asked: str
    """Noun of the requested fact."""
    other_times: tuple[str, ...]
    """Earlier or later values of the same fact."""
    neighbours: tuple[str, ...]
    """Values of the topic's other facts."""


@dataclass(slots=True)
class MailQuestionGenerator:
    """Generate questions about one mailbox after another, without repetitions."""

    rng: Rng
    difficulty: Difficulty
    _asked: set[str] = field(default_factory=set)
    _kinds: Counter[str] = field(default_factory=Counter)

    def generate(
        self, mailbox: "FactLookup", prefix: str, split: Split
    ) -> Iterator[tuple[Scenario, QuestionBackground]]:
        """Yield scenarios about one mailbox, each with its background."""
        number = 0
        for story in mailbox.stories:
            candidates = self.rng.shuffled(list(_list_candidates(story, mailbox, self.rng)))
            candidates.sort(key=lambda each: self._kinds[each.kind] / self._weight(each))  # rare kinds first
            for candidate in candidates[: self.rng.between(1, 3)]:
                day = self._choose_day(candidate)
                asked = self._write_question(candidate, story.topic, mailbox, day) if day else None
                if day is None or asked is None:
                    continue
                number += 1
                self._kinds[candidate.kind] += 1
                question, realism = asked
                scenario = Scenario(
                    id=f"{prefix}-{number:04}",
                    question=question,
                    answer=candidate.answer,
                    message_ids=tuple(mailbox.find_messages(candidate.keys, day)),
                    how_realistic=realism,
                    inbox_address=mailbox.owner,
                    query_date=day,
                    split=split,
                    kind=candidate.kind,
                )
                yield scenario, _make_background(candidate, story.topic)

    def _weight(self, candidate: "_MailQuestionCandidate") -> float:
        return self.difficulty.history if candidate.changed else 1

    def _choose_day(self, candidate: "_MailQuestionCandidate") -> date | None:
        """Return a day on which the answer is known and still true."""
        first = candidate.known + timedelta(days=1)
        last = first + timedelta(days=_MAX_DAYS)
        if candidate.until is not None:
            last = min(last, candidate.until - timedelta(days=1))
        days = (last - first).days
        return first + timedelta(days=self.rng.between(0, days)) if days >= 0 else None

    def _write_question(
        self, candidate: "_MailQuestionCandidate", topic: Topic, mailbox: "FactLookup", day: date
    ) -> tuple[str, float] | None:
        """Return a question that was not asked before, and how realistic it is."""
        for _ in range(_TRIES):
            oblique = bool(candidate.oblique) and self.rng.chance(self.difficulty.oblique)
            indirect = None
            if self.rng.chance(self.difficulty.indirect) and candidate.fact != topic.kind.key:
                indirect = self._describe_indirectly(topic, mailbox, day)
            template = self.rng.pick(candidate.oblique if oblique else candidate.direct)
            question = expand_sentence(
                template, self.rng, {**candidate.slots, "it": indirect or _format_full_name(topic)}
            )
            if question.casefold() not in self._asked:
                self._asked.add(question.casefold())
                realism = 0.95 - 0.1 * oblique - 0.15 * (indirect is not None) - 0.05 * self.rng.below(3)
                return question, round(realism, 2)
        return None

    def _describe_indirectly(self, topic: Topic, mailbox: "FactLookup", day: date) -> str | None:
        """Refer to the topic by the person in charge, if the mail has named that person for this topic only."""
        key = _find_key_fact(topic)
        if key is None or key.change is not None:
            return None
        version = key.versions[0]
        if mailbox.find_first_date(version.key) >= day or mailbox.in_charge[topic.kind.id, version.value] > 1:
            return None
        return expand(self.rng.pick(topic.kind.also), self.rng, {"short": topic.short, "person": version.value})


class FactLookup:
    """Find the messages of one mailbox that state a fact."""

    def __init__(self, owner: str, stories: Sequence[Story], letters: dict[str, Letter]) -> None:
        self.owner, self.stories = owner, stories
        self.in_charge = Counter(
            (story.topic.kind.id, version.value)
            for story in stories
            if (fact := _find_key_fact(story.topic))
            for version in fact.versions
        )
        """Number of topics of a kind that a person is in charge of."""
        self._stating: defaultdict[str, list[tuple[date, str]]] = defaultdict(list)
        for message_id, letter in sorted(letters.items(), key=lambda each: (each[1].sent, each[0])):
            for key in letter.facts:
                self._stating[key].append((letter.sent.date(), message_id))

    def find_first_date(self, key: str) -> date:
        """Return the date on which something was first stated."""
        return self._stating[key][0][0]

    def find_messages(self, keys: frozenset[str], day: date) -> list[str]:
        """Return the ids of messages up to that day that state any of the keys, oldest first."""
        found = {message for key in keys for message in self._stating[key] if message[0] <= day}
        return [message_id for _, message_id in sorted(found)]


def _format_full_name(topic: Topic) -> str:
    return f"the {topic.start.year} {topic.name}" if topic.twin else f"the {topic.name}"


def _find_key_fact(topic: Topic) -> TopicFact | None:
    return next((fact for fact in topic.facts if fact.kind.id == topic.kind.key), None)


def _make_background(candidate: _MailQuestionCandidate, topic: Topic) -> QuestionBackground:
    asked = next((fact for fact in topic.facts if fact.kind.id == candidate.fact), None)
    return QuestionBackground(
        topic.name,
        asked.kind.noun if asked else candidate.slots["request"],
        tuple(version.value for version in asked.versions if version.value != candidate.answer) if asked else (),
        tuple(version.value for fact in topic.facts if fact is not asked for version in fact.versions),
    )


def _list_candidates(story: Story, mailbox: FactLookup, rng: Rng) -> Iterator[_MailQuestionCandidate]:
    end_day = story.topic.end_day
    for fact in story.topic.facts:
        yield from _list_fact_candidates(fact, end_day, mailbox, rng)
    approval = story.topic.approval
    if approval is None:
        return
    texts = load_text("facts")["approval"]
    known = mailbox.find_first_date(approval.key)
    slots = {"request": approval.request}
    keys = frozenset([approval.key])
    verdict = "Yes" if approval.granted else "No"
    answer = f"{verdict}. {approval.evidence}"
    yield _MailQuestionCandidate(
        "yes or no", "approval", texts["question"], texts["oblique"], answer, keys, known, end_day, slots
    )
    decided = texts["decided_yes" if approval.granted else "decided_no"]
    yield _MailQuestionCandidate(
        "who decided", "approval", decided, [], approval.decider.name, keys, known, None, slots
    )


def _list_fact_candidates(
    fact: TopicFact, end_day: date | None, mailbox: FactLookup, rng: Rng
) -> Iterator[_MailQuestionCandidate]:
    kind, first = fact.kind, fact.versions[0]
    known = mailbox.find_first_date(first.key)
    changed = mailbox.find_first_date(fact.change.key) if fact.change else None
    until = min(
        filter(None, [changed, first.day, end_day]), default=None
    )  # nobody asks about the plan for something in the past
    slots = {"noun": kind.noun, "person": first.person.name if first.person else ""}
    sort = KINDS.get(kind.type, "where")
    # A person has the same telephone number in every topic.
    for by_name, keys in ((False, frozenset([first.key])), (True, first.states)):
        direct, oblique = (
            [text for text in texts if ("{person}" in text) is by_name]
            for texts in (kind.select_own_words(kind.question), kind.oblique)
        )
        if direct:
            yield _MailQuestionCandidate(sort, kind.id, direct, oblique, first.value, keys, known, until, slots)
    if fact.change is None or changed is None:
        return
    asked = load_text("facts")["asked"]
    second, sort_of = fact.versions[1], f"_{kind.type}" if kind.type in _TYPES_WITH_OWN_QUESTIONS else ""
    change_keys = frozenset([fact.change.key])
    history = [
        ("latest", asked[f"latest{sort_of}"], kind.oblique, second.value, frozenset([second.key])),
        ("what changed", asked[f"changed{sort_of}"], [], f"From {first.value} to {second.value}.", change_keys),
        ("why", asked["why"], [], fact.change.reason, change_keys),
        ("who decided", asked["decided"], [], fact.change.decider.name, change_keys),
    ]
    between = (changed - known).days
    if between > 1:
        then = known + timedelta(days=rng.between(1, between - 1))
        slots["then"] = f"{then.day} {then:%B %Y}"
        history.append(("before a date", asked[f"before{sort_of}"], [], first.value, change_keys | {first.key}))
    for sort, direct, oblique, answer, stated in history:
        until = min(filter(None, [second.day, end_day]), default=None) if sort == "latest" else None
        yield _MailQuestionCandidate(
            sort, kind.id, direct, oblique, answer, stated, changed, until, slots, changed=True
        )
