"""The invented company, those who work there, and those it deals with."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from gumshoe.synthesis.calendar import words_in_season
from gumshoe.synthesis.grammar import Value, expand, load_text
from gumshoe.synthesis.rng import Rng

# Numbers that Ofcom keeps free for drama: they ring nowhere.
# https://www.ofcom.org.uk/phones-and-broadband/phone-numbers/numbers-for-drama
_MOBILE = "07700 900"
_LANDLINES = ("0113 496 0", "0114 496 0", "0117 496 0", "0121 496 0", "0131 496 0", "0161 496 0", "020 7946 0")


@dataclass(frozen=True, slots=True)
class Manner:
    """How somebody writes mail."""

    greeting: str
    farewell: str
    signs: bool
    """Puts name, title and telephone under each message."""
    quotes_by_line: bool
    """Quotes with `>` before each line, not under a block of headers."""
    chatty: float
    """How often they add a line that is not business."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with an address."""

    first: str
    last: str
    title: str
    firm: str
    address: str
    phone: str
    mobile: str
    manner: Manner

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}"


@dataclass(frozen=True, slots=True)
class Company:
    """The company whose mail it is."""

    name: str
    short: str
    domain: str


@dataclass(frozen=True, slots=True)
class Cast:
    """One mailbox's owner and all whom they write to and hear from. Nobody in it is the owner of another mailbox."""

    owner: Person
    colleagues: tuple[Person, ...]
    outsiders: tuple[Person, ...]
    """One for each outside firm."""
    office: str


@dataclass(slots=True)
class Casting:
    """Invents the company, and then one cast after another, never the same name twice."""

    dice: Rng
    company: Company = field(init=False)
    _taken: set[str] = field(default_factory=set)
    _names: dict[str, list[str]] = field(default_factory=lambda: load_text("names"))
    _lists: dict[str, list[str]] = field(default_factory=lambda: load_text("facts")["lists"])

    def __post_init__(self) -> None:
        short = self.dice.pick(self._names["firm"])
        name = f"{short} {self.dice.pick(self._lists['business'])}"
        self._taken.add(short)
        self.company = Company(name, short, domain_of(short))

    def cast(self, colleagues: int, outsiders: int) -> Cast:
        """A new mailbox's owner and their circle.

        Some share a surname, as people do.
        """
        mobiles = iter(self.dice.shuffled(range(1000)))
        firsts = iter(self.dice.shuffled(self._names["first"]))  # two of one first name would confuse their readers
        known: list[Person] = []
        while len(known) <= colleagues:
            namesake = self.dice.pick(known).last if known and self.dice.chance(0.15) else None
            known.append(self._colleague(next(firsts), mobiles, namesake))
        outside = tuple(
            self._outsider(next(firsts), mobiles, self.dice.pick(known).last if self.dice.chance(0.15) else None)
            for _ in range(outsiders)
        )
        return Cast(known[0], tuple(known[1:]), outside, self.dice.pick(self._names["city"]))

    def _colleague(self, first: str, mobiles: Iterator[int], last: str | None) -> Person:
        last = self._surname(first, last)
        address = f"{first}.{last}@{self.company.domain}".lower()
        title = self.dice.pick(self._lists["title"])
        return self._person(first, last, title, self.company.name, address, mobiles)

    def _outsider(self, first: str, mobiles: Iterator[int], last: str | None) -> Person:
        while True:
            firm = self.dice.pick(self._names["firm"])
            surname = self._surname(first, last)
            address = f"{first[0]}.{surname}@{domain_of(firm)}".lower()
            if firm != self.company.short and address not in self._taken:
                break
        self._taken.add(address)
        title = self.dice.pick(self._lists["outside_title"])
        return self._person(first, surname, title, firm, address, mobiles)

    def _person(self, first: str, last: str, title: str, firm: str, address: str, mobiles: Iterator[int]) -> Person:
        manners = load_text("letters")
        manner = Manner(
            greeting=self.dice.pick(manners["greeting"]),
            farewell=self.dice.pick(manners["farewell"]),
            signs=firm != self.company.name or self.dice.chance(0.4),
            quotes_by_line=self.dice.chance(0.5),
            chatty=self.dice.pick([0.0, 0.05, 0.2]),
        )
        phone = f"{self.dice.pick(_LANDLINES)}{self.dice.below(1000):03}"
        return Person(first, last, title, firm, address, phone, f"{_MOBILE}{next(mobiles):03}", manner)

    def _surname(self, first: str, last: str | None) -> str:
        """The surname given, or another, such that nobody has the whole name yet."""
        while last is None or f"{first} {last}" in self._taken:
            last = self.dice.pick(self._names["last"])
        self._taken.add(f"{first} {last}")
        return last


def domain_of(firm: str) -> str:
    """Where a firm has its mail: a valid host name, and one that nobody can own."""
    return f"{re.sub(r'[^a-z0-9-]', '', firm.lower())}.example"


def small_talk_values(
    dice: Rng, cast: Cast, company: Company, me: Person, friend: Person, moment: datetime
) -> dict[str, Value]:
    """What the slots of everyday text take in one message from `me` to `friend`, written about that moment."""
    others = [person.first for person in cast.colleagues if person not in (me, friend)]
    colleague, other = dice.sample(others, 2)
    words: dict[str, Value] = dict(words_in_season(moment))
    words |= {name: load_text("letters")[name] for name in ("weekday", "month")}
    floor = dice.pick(load_text("facts")["lists"]["storey"])
    return {
        **words,
        "friend": friend.first,
        "colleague": colleague,
        "other": other,
        "office": cast.office,
        "company": company.short,
        "floor": floor,
    }


def signature(person: Person, dice: Rng) -> str:
    """Name, title, firm and telephone, as this person sets them."""
    values = {"name": person.name, "title": person.title, "firm": person.firm, "phone": person.phone}
    forms = load_text("letters")["signature"]
    return expand(forms[len(person.name) % len(forms)], dice, {**values, "address": person.address})
