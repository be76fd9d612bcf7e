"""Invent the company, its employees and its business partners."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from gumshoe.synthesis.calendar import load_words_in_season
from gumshoe.synthesis.grammar import Value, expand, load_text
from gumshoe.synthesis.rng import Rng

# Numbers that Ofcom reserves for drama. Nobody has them.
# https://www.ofcom.org.uk/phones-and-broadband/phone-numbers/numbers-for-drama
_MOBILE = "07700 900"
_LANDLINES = ("0113 496 0", "0114 496 0", "0117 496 0", "0121 496 0", "0131 496 0", "0161 496 0", "020 7946 0")


@dataclass(frozen=True, slots=True)
class WritingStyle:
    """Habits of a person when writing mail."""

    greeting: str
    farewell: str
    signs: bool
    """True if each message ends with name, title and telephone number."""
    quotes_by_line: bool
    """True if quotes have `>` before each line, False if they follow a block of headers."""
    chatty: float
    """Probability of adding a line that is not about business."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person with an address."""

    first: str
    last: str
    title: str
    firm: str
    address: str
    phone: str
    mobile: str
    style: WritingStyle

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
    """The owner of one mailbox and all correspondents. None of them owns another mailbox."""

    owner: Person
    colleagues: tuple[Person, ...]
    outsiders: tuple[Person, ...]
    """One person per outside firm."""
    office: str


@dataclass(slots=True)
class CastInventor:
    """Invent the company, and then one cast after another, with unique names."""

    rng: Rng
    company: Company = field(init=False)
    _taken: set[str] = field(default_factory=set)
    _names: dict[str, list[str]] = field(default_factory=lambda: load_text("names"))
    _lists: dict[str, list[str]] = field(default_factory=lambda: load_text("facts")["lists"])

    def __post_init__(self) -> None:
        short = self.rng.pick(self._names["firm"])
        name = f"{short} {self.rng.pick(self._lists['business'])}"
        self._taken.add(short)
        self.company = Company(name, short, make_domain(short))

    def make_cast(self, colleagues: int, outsiders: int) -> Cast:
        """Invent a mailbox's owner and correspondents. Some share a surname, as real people do."""
        mobiles = iter(self.rng.shuffled(range(1000)))
        firsts = iter(self.rng.shuffled(self._names["first"]))  # first names are unique, to avoid confusion
        known: list[Person] = []
        while len(known) <= colleagues:
            namesake = self.rng.pick(known).last if known and self.rng.chance(0.15) else None
            known.append(self._make_colleague(next(firsts), mobiles, namesake))
        outside = tuple(
            self._make_outsider(next(firsts), mobiles, self.rng.pick(known).last if self.rng.chance(0.15) else None)
            for _ in range(outsiders)
        )
        return Cast(known[0], tuple(known[1:]), outside, self.rng.pick(self._names["city"]))

    def _make_colleague(self, first: str, mobiles: Iterator[int], last: str | None) -> Person:
        last = self._choose_surname(first, last)
        address = f"{first}.{last}@{self.company.domain}".lower()
        title = self.rng.pick(self._lists["title"])
        return self._make_person(first, last, title, self.company.name, address, mobiles)

    def _make_outsider(self, first: str, mobiles: Iterator[int], last: str | None) -> Person:
        while True:
            firm = self.rng.pick(self._names["firm"])
            surname = self._choose_surname(first, last)
            address = f"{first[0]}.{surname}@{make_domain(firm)}".lower()
            if firm != self.company.short and address not in self._taken:
                break
        self._taken.add(address)
        title = self.rng.pick(self._lists["outside_title"])
        return self._make_person(first, surname, title, firm, address, mobiles)

    def _make_person(
        self, first: str, last: str, title: str, firm: str, address: str, mobiles: Iterator[int]
    ) -> Person:
        manners = load_text("letters")
        manner = WritingStyle(
            greeting=self.rng.pick(manners["greeting"]),
            farewell=self.rng.pick(manners["farewell"]),
            signs=firm != self.company.name or self.rng.chance(0.4),
            quotes_by_line=self.rng.chance(0.5),
            chatty=self.rng.pick([0.0, 0.05, 0.2]),
        )
        phone = f"{self.rng.pick(_LANDLINES)}{self.rng.below(1000):03}"
        return Person(first, last, title, firm, address, phone, f"{_MOBILE}{next(mobiles):03}", manner)

    def _choose_surname(self, first: str, last: str | None) -> str:
        """Return the given surname, or another one, so that the full name is unique."""
        while last is None or f"{first} {last}" in self._taken:
            last = self.rng.pick(self._names["last"])
        self._taken.add(f"{first} {last}")
        return last


def make_domain(firm: str) -> str:
    """Return the mail domain of a firm: a valid host name that nobody can own."""
    return f"{re.sub(r'[^a-z0-9-]', '', firm.lower())}.example"


def make_small_talk_values(
    rng: Rng, cast: Cast, company: Company, me: Person, friend: Person, moment: datetime
) -> dict[str, Value]:
    """Return the slot values of everyday text in one message from `me` to `friend`, written at that moment."""
    others = [person.first for person in cast.colleagues if person not in (me, friend)]
    colleague, other = rng.sample(others, 2)
    words: dict[str, Value] = dict(load_words_in_season(moment))
    words |= {name: load_text("letters")[name] for name in ("weekday", "month")}
    floor = rng.pick(load_text("facts")["lists"]["storey"])
    return {
        **words,
        "friend": friend.first,
        "colleague": colleague,
        "other": other,
        "office": cast.office,
        "company": company.short,
        "floor": floor,
    }


def format_signature(person: Person, rng: Rng) -> str:
    """Return name, title, firm and telephone number in the person's format."""
    values = {"name": person.name, "title": person.title, "firm": person.firm, "phone": person.phone}
    forms = load_text("letters")["signature"]
    return expand(forms[len(person.name) % len(forms)], rng, {**values, "address": person.address})
