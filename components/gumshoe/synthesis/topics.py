"""Invent the topics of mail, such as projects and trips, and their facts, some of which change."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cache
from typing import Any

from gumshoe.synthesis.grammar import Value, expand, load_text
from gumshoe.synthesis.letters import is_working_day
from gumshoe.synthesis.people import Cast, Person
from gumshoe.synthesis.rng import Rng

_PLACES = {"address", "room", "venue", "dock", "desk", "hotel"}
_TYPES = {"time": "date", "firm": "choice", **dict.fromkeys(_PLACES, "place")}
_TRIES = 400  # attempts to find an unused name
_POUNDS = "£"
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class FactKind:
    """A kind of fact that topics of a kind have, with texts that state it and ask for it."""

    id: str
    type: str
    noun: str
    label: str
    say: list[str]
    ask: list[str]
    reply: list[str]
    question: list[str]
    oblique: list[str]
    outside: list[str]
    """Statements in the words of the outside firm. Empty if such a firm would not make them."""
    details: dict[str, Any]
    """Rules for making its values: `range`, `unit`, `ahead`, `trade`, `form`, `each`."""

    def select_own_words(self, texts: list[str]) -> list[str]:
        """Return the texts that contain the fact's noun, or all texts if no text contains it."""
        named = [text for text in texts if self.noun.split()[-1].casefold() in text.casefold() or "{noun}" in text]
        return named or texts

    def select_value_last(self) -> list[str]:
        """Return the statements that name the topic before the value."""
        return [text for text in self.say if -1 < text.casefold().rfind("{it}") < text.find("{value}")]

    @property
    def is_about_person(self) -> bool:
        """True if it names a person or a firm."""
        return self.type in {"person", "contact", "firm"}

    @property
    def change_category(self) -> str:
        """Category of texts about its change: money, date, place, count, choice or person. Other types never change."""
        return _TYPES.get(self.type, self.type)


@dataclass(frozen=True, slots=True)
class TopicKind:
    """A kind of topic, as described in `text/matters.toml`."""

    id: str
    name: list[list[str]]
    key: str
    """Fact by which a question may refer to the topic without its name."""
    also: list[str]
    subject: list[str]
    requests: list[str]
    facts: tuple[FactKind, ...]
    ends: str = ""
    """Fact with the day after which nobody plans or asks any more, if any."""
    yearly: bool = False
    """True if there may be one of the same name a year earlier."""


@dataclass(frozen=True, slots=True)
class Version:
    """The value of a fact for a period of time."""

    key: str
    """Key of letters that state it."""
    value: str
    person: Person | None = None
    """Owner of the value if it is a telephone number; the person if it is a name."""
    day: date | None = None
    """The day, if the value is a date."""

    @property
    def states(self) -> frozenset[str]:
        """Keys of a letter that states this. A telephone number counts for every topic in which it is given."""
        number = {f"mobile/{self.person.address}"} if self.person and self.value == self.person.mobile else set()
        return frozenset({self.key} | number)


@dataclass(slots=True)
class Change:
    """The change of a fact, with its reason."""

    reason: str
    decider: Person
    key: str
    """Key of letters that report the change."""


@dataclass(slots=True)
class TopicFact:
    """A fact of a topic: its first version once it is known, and a second one if it changes."""

    kind: FactKind
    versions: list[Version] = field(default_factory=list)
    change: Change | None = None


@dataclass(slots=True)
class Approval:
    """A request that was granted or refused."""

    request: str
    decider: Person
    granted: bool
    key: str
    evidence: str = ""
    """Sentence that says so."""


@dataclass(slots=True)
class Topic:
    """One topic of one mailbox."""

    id: str
    kind: TopicKind
    name: str
    short: str
    start: datetime
    team: tuple[Person, ...]
    """Colleagues who work on it. The owner of the mailbox always does."""
    outsider: Person
    """Contact at the outside firm."""
    facts: list[TopicFact] = field(default_factory=list)
    approval: Approval | None = None
    twin: bool = False
    """True if there is another of the same name a year earlier or later."""

    @property
    def end_day(self) -> date | None:
        """Day of the event once it is settled, if the topic has one."""
        days = [fact.versions[-1].day for fact in self.facts if fact.versions and fact.kind.id == self.kind.ends]
        return days[0] if days else None

    def values(self) -> dict[str, Value]:
        """Return the slot values that are the same in all texts about this topic."""
        return {"name": self.name, "short": self.short, "firm": self.outsider.firm, "it": f"the {self.name}"}


@cache
def load_topic_kinds() -> tuple[TopicKind, ...]:
    """Return all kinds of topics."""
    return tuple(_parse_topic_kind(name, described) for name, described in load_text("matters").items())


def _parse_topic_kind(name: str, described: dict[str, Any]) -> TopicKind:
    facts = []
    for each in described["fact"]:
        fields = {"outside": [], **each, "details": each}
        facts.append(FactKind(**{field: fields[field] for field in FactKind.__dataclass_fields__}))
    return TopicKind(**{**{k: v for k, v in described.items() if k != "fact"}, "id": name, "facts": tuple(facts)})


@dataclass(slots=True)
class TopicInventor:
    """Invent the topics of one mailbox."""

    rng: Rng
    cast: Cast
    _names: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    """Names of each kind of topic, with the words chosen for each."""
    _words: "WordLists" = field(init=False)

    def __post_init__(self) -> None:
        lists = {**load_text("names"), **load_text("words"), **load_text("facts")["lists"]}
        self._words = WordLists(self.rng, lists, tries=50)

    def invent_topic(self, kind: TopicKind, start: datetime, facts: int, like: Topic | None = None) -> Topic | None:
        """Return a topic with a unique name, or None if no name is left.

        With `like`, which must be of the same kind, it shares part of its name with that topic.
        """
        outsider = self.rng.pick(self.cast.outsiders)
        named = self._choose_name(kind, outsider, like)
        if named is None:
            return None
        name, short = named
        team = tuple(self.rng.sample(self.cast.colleagues, self.rng.between(3, 5)))
        topic = Topic(f"{kind.id}-{len(self._names[kind.id])}", kind, name, short, start, team, outsider)
        key = next(each for each in kind.facts if each.id == kind.key)
        others = self.rng.sample([each for each in kind.facts if each is not key], facts)
        chosen = [key, *others[:-1]] if self.rng.chance(0.6) else others
        chosen.sort(key=lambda each: "each" in each.details)  # an amount per item comes after the number of items
        topic.facts = [TopicFact(each) for each in chosen]
        return topic

    def invent_twin(self, topic: Topic) -> Topic:
        """Return a topic of the same name a year earlier, with its own facts."""
        start = topic.start - timedelta(days=364)
        other = Topic(f"{topic.id}-before", topic.kind, topic.name, topic.short, start, topic.team, topic.outsider)
        other.facts = [TopicFact(fact.kind) for fact in topic.facts]
        topic.twin = other.twin = True
        return other

    def settle(self, topic: Topic, fact: TopicFact, now: datetime) -> None:
        """Give a fact its first value. Dates are after `now`."""
        fact.versions.append(self._make_version(topic, fact, now))

    def change(self, topic: Topic, fact: TopicFact, now: datetime) -> None:
        """Give a fact its second value, and a reason for the change."""
        second = self._make_version(topic, fact, now)
        while second.value == fact.versions[0].value:
            second = self._make_version(topic, fact, now)
        fact.versions.append(second)
        reason = self.rng.pick(load_text("facts")["reason"][fact.kind.change_category])
        fact.change = Change(reason, self._choose_decider(topic), f"{topic.id}/{fact.kind.id}/change")

    def invent_approval(self, topic: Topic) -> Approval:
        """Return a request in a topic, and its outcome."""
        request = self.rng.pick(topic.kind.requests)
        return Approval(request, self._choose_decider(topic), self.rng.chance(0.5), f"{topic.id}/approval")

    def _choose_decider(self, topic: Topic) -> Person:
        named = {version.person for fact in topic.facts for version in fact.versions}
        return self.rng.pick([person for person in self.cast.colleagues if person not in named])

    def _choose_name(self, kind: TopicKind, outsider: Person, like: Topic | None) -> tuple[str, str] | None:
        """Return a name and its short form, or None if no name is left.

        Names of a kind are never ambiguous, as "the Lisbon trip" and "the visit to Lisbon" would be.
        """
        rivals = self._names.setdefault(kind.id, {})
        for attempt in range(_TRIES):
            chosen = ChosenWords(self.rng, self._words.lists, firm=outsider.firm)
            form, short = self.rng.pick(kind.name)
            name = expand(form, self.rng, chosen)
            words = chosen.list_words(form)
            if any(words <= rival or rival <= words for rival in rivals.values()):
                continue
            if like is not None and attempt < _TRIES / 2 and rivals[like.name].isdisjoint(words):
                continue
            rivals[name] = words
            return name, expand(short, self.rng, chosen)
        return None

    def _make_version(self, topic: Topic, fact: TopicFact, now: datetime) -> Version:
        """Return the next value of a fact, according to its type."""
        kind, rng = fact.kind, self.rng
        key = f"{topic.id}/{kind.id}/{len(fact.versions) + 1}"
        match kind.type:
            case "person":
                taken = {version.person for each in topic.facts for version in each.versions}
                person = rng.pick([each for each in self.cast.colleagues if each not in taken])
                return Version(key, person.name, person)
            case "contact":
                return Version(key, topic.outsider.mobile, topic.outsider)
            case "date" | "time":
                day = now + timedelta(days=rng.between(*kind.details["ahead"]))
                while not is_working_day(day):
                    day += timedelta(days=1)
                hours = kind.details.get("hours", [9, 17])
                hour = f" at {rng.between(*hours)}:{rng.pick(['00', '15', '30', '45'])}" if kind.type == "time" else ""
                return Version(key, f"{day:%A} {day.day} {day:%B}{hour}", day=day.date())
            case "money":
                return Version(key, f"{_POUNDS}{_round_amount(self._choose_number(topic, fact)):,}")
            case "count":
                return Version(key, f"{self._choose_number(topic, fact)} {kind.details['unit']}")
        return Version(key, self._make_value(kind))

    def _choose_number(self, topic: Topic, fact: TopicFact) -> int:
        """Return a number in the kind's range, or another one close to the first."""
        if fact.versions:
            return max(2, _extract_number(fact) * self.rng.between(70, 140) // 100 + self.rng.between(0, 1))
        low, high = fact.kind.details["range"]
        each = fact.kind.details.get("each", {})
        many = next((other for other in topic.facts if other.kind.id in each and other.versions), None)
        if many:
            return _extract_number(many) * self.rng.between(*each[many.kind.id])
        return int(low + (high - low) * self.rng.between(0, 1000) ** 2 // 1_000_000)  # small numbers are more frequent

    def _make_value(self, kind: FactKind) -> str:
        match kind.type:
            case "firm":
                return self._words.make_unique(
                    lambda: f"{self._words.pick_word('firm')} {self.rng.pick(kind.details['trade'])}"
                )
            case "code":
                return self._words.make_unique(lambda: self._words.make_code(kind.details["form"]))
            case "cause":
                return self._words.pick_word("cause")
        return self._words.make_unique(lambda: self._make_place(kind.type))

    def _make_place(self, kind: str) -> str:
        one = self._words.pick_word
        street = f"{self.rng.between(2, 180)} {one('street')} {one('road')}"
        match kind:
            case "address":
                return f"{street}, {one('city')}"
            case "room":
                return f"the {one('codename')} {one('room_kind')}"
            case "venue":
                return f"the {one('street')} {one('venue_kind')}"
            case "dock":
                return f"{one('dock_kind')} {street}"
            case "desk":
                return f"on the {one('storey')}, {one('desk_place')}"
        return self.rng.pick([f"Hotel {one('codename')}", f"{one('street')} Hotel", f"{one('firm')} Inn"])


def _extract_number(fact: TopicFact) -> int:
    """Return the number in a fact's current value."""
    return int(re.sub(r"\D", "", fact.versions[-1].value))


def _round_amount(amount: int) -> int:
    """Round an amount as people do: the larger, the rounder."""
    step = 1 if amount < 100 else 5 if amount < 1000 else 20 if amount < 10_000 else 100
    return amount // step * step


class ChosenWords(dict[str, Value]):
    """Words from lists. The first choice from each list is kept."""

    def __init__(self, rng: Rng, lists: dict[str, list[str]], **fixed: Value) -> None:
        super().__init__(fixed)
        self._rng, self._lists = rng, lists

    def __missing__(self, name: str) -> Value:
        self[name] = value = self._rng.pick(self._lists[name])
        return value

    def list_words(self, form: str) -> frozenset[str]:
        """Return the words chosen for the slots of a form."""
        return frozenset(str(self[name]) for name in re.findall(r"\{(\w+)\}", form))


@dataclass(slots=True)
class WordLists:
    """Choose words from lists, and make unique values from them."""

    rng: Rng
    lists: dict[str, list[str]]
    tries: int
    """Attempts to find an unused value."""
    _used: set[str] = field(default_factory=set)

    def pick_word(self, name: str) -> str:
        """Return a word from a list."""
        return self.rng.pick(self.lists[name])

    def make_unique(self, make: Callable[[], str]) -> str:
        """Return a value that was not made before, if any are left."""
        value = make()
        for _ in range(self.tries):
            if value not in self._used:
                break
            value = make()
        self._used.add(value)
        return value

    def make_code(self, form: str) -> str:
        """Replace each `#` in a form by a digit and each `@` by a letter."""
        signs = {"#": lambda: str(self.rng.below(10)), "@": lambda: self.rng.pick(_LETTERS)}
        return "".join(signs[sign]() if sign in signs else sign for sign in form)
