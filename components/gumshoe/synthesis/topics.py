"""What the mail is about: matters such as projects and trips, and the facts each has, some of which change."""

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
_TRIES = 400  # to find a name that is free
_POUNDS = "£"
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class FactKind:
    """One sort of fact that matters of a kind have, with the texts that state it and ask for it."""

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
    """The statement in the words of the firm outside; none where such a firm would not make it."""
    details: dict[str, Any]
    """How its values are made: `range`, `unit`, `ahead`, `trade`, `form`, `each`."""

    def in_own_words(self, texts: list[str]) -> list[str]:
        """Those of the texts that name the fact by its noun; all where none does."""
        named = [text for text in texts if self.noun.split()[-1].casefold() in text.casefold() or "{noun}" in text]
        return named or texts

    def with_value_last(self) -> list[str]:
        """Its statements that name the matter before the value."""
        return [text for text in self.say if -1 < text.casefold().rfind("{it}") < text.find("{value}")]

    @property
    def says_who(self) -> bool:
        """Whether it names a person or a firm."""
        return self.type in {"person", "contact", "firm"}

    @property
    def changes_as(self) -> str:
        """Which texts tell of its change: money, date, place, count, choice, person; or what never changes."""
        return _TYPES.get(self.type, self.type)


@dataclass(frozen=True, slots=True)
class TopicKind:
    """A kind of matter, as `text/matters.toml` describes it."""

    id: str
    name: list[list[str]]
    key: str
    """The fact by which a question may refer to the matter without its name."""
    also: list[str]
    subject: list[str]
    requests: list[str]
    facts: tuple[FactKind, ...]
    ends: str = ""
    """The fact that names its day, where there is one after which nobody plans or asks any more."""
    yearly: bool = False
    """There may have been one of the same name a year before."""


@dataclass(frozen=True, slots=True)
class Version:
    """What a fact is for a time."""

    key: str
    """Marks the letters that state it."""
    value: str
    person: Person | None = None
    """Whom the value belongs to, where it is a telephone number; whose name it is, where it is a name."""
    day: date | None = None
    """The day it names, where it is one."""

    @property
    def states(self) -> frozenset[str]:
        """What a letter states that states this: a telephone number answers for every matter that it is given in."""
        number = {f"mobile/{self.person.address}"} if self.person and self.value == self.person.mobile else set()
        return frozenset({self.key} | number)


@dataclass(slots=True)
class Change:
    """Why a fact became another."""

    reason: str
    decider: Person
    key: str
    """Marks the letters that tell of the change."""


@dataclass(slots=True)
class TopicFact:
    """A fact of a matter: its first version once it is known, and the second where it changes."""

    kind: FactKind
    versions: list[Version] = field(default_factory=list)
    change: Change | None = None


@dataclass(slots=True)
class Approval:
    """A request that somebody granted or refused."""

    request: str
    decider: Person
    granted: bool
    key: str
    evidence: str = ""
    """The sentence that says so."""


@dataclass(slots=True)
class Topic:
    """One matter of one mailbox."""

    id: str
    kind: TopicKind
    name: str
    short: str
    start: datetime
    team: tuple[Person, ...]
    """The colleagues who deal with it; the owner of the mailbox always does."""
    outsider: Person
    """Who writes about it for the firm outside."""
    facts: list[TopicFact] = field(default_factory=list)
    approval: Approval | None = None
    twin: bool = False
    """Another of the same name lies a year before or after it."""

    @property
    def over(self) -> date | None:
        """The day it is about, once that is settled, where it has one."""
        days = [fact.versions[-1].day for fact in self.facts if fact.versions and fact.kind.id == self.kind.ends]
        return days[0] if days else None

    def values(self) -> dict[str, Value]:
        """The slots that are the same in everything said of this matter."""
        return {"name": self.name, "short": self.short, "firm": self.outsider.firm, "it": f"the {self.name}"}


@cache
def topic_kinds() -> tuple[TopicKind, ...]:
    """All kinds of matter there are."""
    return tuple(_topic_kind(name, described) for name, described in load_text("matters").items())


def _topic_kind(name: str, described: dict[str, Any]) -> TopicKind:
    facts = []
    for each in described["fact"]:
        fields = {"outside": [], **each, "details": each}
        facts.append(FactKind(**{field: fields[field] for field in FactKind.__dataclass_fields__}))
    return TopicKind(**{**{k: v for k, v in described.items() if k != "fact"}, "id": name, "facts": tuple(facts)})


@dataclass(slots=True)
class Inventor:
    """Invents the matters of one mailbox."""

    dice: Rng
    cast: Cast
    _names: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    """For each kind of matter, its names and the words chosen for each."""
    _words: "Words" = field(init=False)

    def __post_init__(self) -> None:
        lists = {**load_text("names"), **load_text("words"), **load_text("facts")["lists"]}
        self._words = Words(self.dice, lists, tries=50)

    def matter(self, kind: TopicKind, start: datetime, facts: int, like: Topic | None = None) -> Topic | None:
        """A matter whose name nothing else in this mailbox has; None when no name is left.

        With `like` of the same kind it shares part of its name with that one.
        """
        outsider = self.dice.pick(self.cast.outsiders)
        named = self._name(kind, outsider, like)
        if named is None:
            return None
        name, short = named
        team = tuple(self.dice.sample(self.cast.colleagues, self.dice.between(3, 5)))
        matter = Topic(f"{kind.id}-{len(self._names[kind.id])}", kind, name, short, start, team, outsider)
        key = next(each for each in kind.facts if each.id == kind.key)
        others = self.dice.sample([each for each in kind.facts if each is not key], facts)
        chosen = [key, *others[:-1]] if self.dice.chance(0.6) else others
        chosen.sort(key=lambda each: "each" in each.details)  # an amount for so many comes after how many they are
        matter.facts = [TopicFact(each) for each in chosen]
        return matter

    def twin(self, matter: Topic) -> Topic:
        """A matter of the same name a year before, with facts of its own."""
        start = matter.start - timedelta(days=364)
        other = Topic(
            f"{matter.id}-before", matter.kind, matter.name, matter.short, start, matter.team, matter.outsider
        )
        other.facts = [TopicFact(fact.kind) for fact in matter.facts]
        matter.twin = other.twin = True
        return other

    def settle(self, matter: Topic, fact: TopicFact, now: datetime) -> None:
        """Give a fact its first value; days lie after `now`."""
        fact.versions.append(self._version(matter, fact, now))

    def change(self, matter: Topic, fact: TopicFact, now: datetime) -> None:
        """Give a fact its second value, and the reason for it."""
        second = self._version(matter, fact, now)
        while second.value == fact.versions[0].value:
            second = self._version(matter, fact, now)
        fact.versions.append(second)
        reason = self.dice.pick(load_text("facts")["reason"][fact.kind.changes_as])
        fact.change = Change(reason, self._decider(matter), f"{matter.id}/{fact.kind.id}/change")

    def approval(self, matter: Topic) -> Approval:
        """A request in a matter, and what became of it."""
        request = self.dice.pick(matter.kind.requests)
        return Approval(request, self._decider(matter), self.dice.chance(0.5), f"{matter.id}/approval")

    def _decider(self, matter: Topic) -> Person:
        named = {version.person for fact in matter.facts for version in fact.versions}
        return self.dice.pick([person for person in self.cast.colleagues if person not in named])

    def _name(self, kind: TopicKind, outsider: Person, like: Topic | None) -> tuple[str, str] | None:
        """A name and its short form, as long as there are any.

        No two names of a kind leave open which is meant, as "the Lisbon trip" and "the visit to Lisbon" would.
        """
        rivals = self._names.setdefault(kind.id, {})
        for attempt in range(_TRIES):
            chosen = ChosenWords(self.dice, self._words.lists, firm=outsider.firm)
            form, short = self.dice.pick(kind.name)
            name = expand(form, self.dice, chosen)
            words = chosen.taken_by(form)
            if any(words <= rival or rival <= words for rival in rivals.values()):
                continue
            if like is not None and attempt < _TRIES / 2 and rivals[like.name].isdisjoint(words):
                continue
            rivals[name] = words
            return name, expand(short, self.dice, chosen)
        return None

    def _version(self, matter: Topic, fact: TopicFact, now: datetime) -> Version:
        """The next value of a fact, made as its type says."""
        kind, dice = fact.kind, self.dice
        key = f"{matter.id}/{kind.id}/{len(fact.versions) + 1}"
        match kind.type:
            case "person":
                taken = {version.person for each in matter.facts for version in each.versions}
                person = dice.pick([each for each in self.cast.colleagues if each not in taken])
                return Version(key, person.name, person)
            case "contact":
                return Version(key, matter.outsider.mobile, matter.outsider)
            case "date" | "time":
                day = now + timedelta(days=dice.between(*kind.details["ahead"]))
                while not is_working_day(day):
                    day += timedelta(days=1)
                hours = kind.details.get("hours", [9, 17])
                hour = (
                    f" at {dice.between(*hours)}:{dice.pick(['00', '15', '30', '45'])}" if kind.type == "time" else ""
                )
                return Version(key, f"{day:%A} {day.day} {day:%B}{hour}", day=day.date())
            case "money":
                return Version(key, f"{_POUNDS}{_rounded(self._number(matter, fact)):,}")
            case "count":
                return Version(key, f"{self._number(matter, fact)} {kind.details['unit']}")
        return Version(key, self._value(kind))

    def _number(self, matter: Topic, fact: TopicFact) -> int:
        """A first number within the kind's range, or another that is not far from the first."""
        if fact.versions:
            return max(2, _digits(fact) * self.dice.between(70, 140) // 100 + self.dice.between(0, 1))
        low, high = fact.kind.details["range"]
        each = fact.kind.details.get("each", {})
        many = next((other for other in matter.facts if other.kind.id in each and other.versions), None)
        if many:
            return _digits(many) * self.dice.between(*each[many.kind.id])
        return int(low + (high - low) * self.dice.between(0, 1000) ** 2 // 1_000_000)  # smaller ones are commoner

    def _value(self, kind: FactKind) -> str:
        match kind.type:
            case "firm":
                return self._words.fresh(lambda: f"{self._words.one('firm')} {self.dice.pick(kind.details['trade'])}")
            case "code":
                return self._words.fresh(lambda: self._words.code(kind.details["form"]))
            case "cause":
                return self._words.one("cause")
        return self._words.fresh(lambda: self._place(kind.type))

    def _place(self, kind: str) -> str:
        one = self._words.one
        street = f"{self.dice.between(2, 180)} {one('street')} {one('road')}"
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
        return self.dice.pick([f"Hotel {one('codename')}", f"{one('street')} Hotel", f"{one('firm')} Inn"])


def _digits(fact: TopicFact) -> int:
    """The number that a fact has now."""
    return int(re.sub(r"\D", "", fact.versions[-1].value))


def _rounded(amount: int) -> int:
    """An amount such as people write: rounder, the larger it is."""
    step = 1 if amount < 100 else 5 if amount < 1000 else 20 if amount < 10_000 else 100
    return amount // step * step


class ChosenWords(dict[str, Value]):
    """Words of the lists, each list's picked once and then kept."""

    def __init__(self, dice: Rng, lists: dict[str, list[str]], **fixed: Value) -> None:
        super().__init__(fixed)
        self._dice, self._lists = dice, lists

    def __missing__(self, name: str) -> Value:
        self[name] = value = self._dice.pick(self._lists[name])
        return value

    def taken_by(self, form: str) -> frozenset[str]:
        """What the slots of a form took."""
        return frozenset(str(self[name]) for name in re.findall(r"\{(\w+)\}", form))


@dataclass(slots=True)
class Words:
    """Words of lists, and values made of them, of which no two are the same."""

    dice: Rng
    lists: dict[str, list[str]]
    tries: int
    """To find a value that is free."""
    _used: set[str] = field(default_factory=set)

    def one(self, name: str) -> str:
        """A word of a list."""
        return self.dice.pick(self.lists[name])

    def fresh(self, make: Callable[[], str]) -> str:
        """A value that was not made before, as far as there are any left."""
        value = make()
        for _ in range(self.tries):
            if value not in self._used:
                break
            value = make()
        self._used.add(value)
        return value

    def code(self, form: str) -> str:
        """A form with a digit for each `#` and a letter for each `@`."""
        signs = {"#": lambda: str(self.dice.below(10)), "@": lambda: self.dice.pick(_LETTERS)}
        return "".join(signs[sign]() if sign in signs else sign for sign in form)
