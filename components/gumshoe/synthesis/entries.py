"""Invent the subjects of a reference work, and their facts, some of which change between editions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Literal

from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import Value, expand, load_text
from gumshoe.synthesis.people import CastInventor
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.topics import (
    ChosenWords,
    FactKind,
    TopicInventor,
    TopicKind,
    Version,
    WordLists,
    load_topic_kinds,
)

_TRIES = 400  # attempts to find an unused name or value
_YEARS = (1620, 1960)
_HANDBOOK_CAST = (160, 80)  # colleagues, and outside firms
_HANDBOOK_YEARS = (2015, 2023)
_VARIANT_CHANCE = 0.5  # probability that a subject with a similar name is a variant of the other
_TWO_CHANGES_CHANCE = 0.4  # probability that two facts of a subject change, if one does
_IN_LISTS = {"colour", "culprit", "benefit", "merit", "stuff", "member"}


@dataclass(frozen=True, slots=True)
class SubjectKind:
    """A kind of subject, as described in `text/reference.toml`."""

    id: str
    category: str
    name: list[str]
    short: str
    other_name: list[str]
    key: str
    """Fact by which a question may refer to a subject without its name."""
    also: list[str]
    about: list[str]
    facts: tuple[FactKind, ...]

    @property
    def last_words(self) -> str:
        """List from which the last word of a name is taken."""
        return self.short.strip("{}")


@dataclass(slots=True)
class Fact:
    """A fact of a subject, and its value in the previous edition if it has changed."""

    kind: FactKind
    value: str
    old: str = ""
    reason: str = ""
    """Reason for the change."""
    person: str = ""
    """Owner of the value, if it is a telephone number."""

    def make_key(self, subject: "Subject", what: Literal["now", "before", "change"]) -> str:
        """Return the key of its value, of the previous value, or of the change."""
        return f"{subject.name}/{self.kind.id}/{what}"

    def list_keys(self, subject: "Subject", *, latest: bool) -> Iterator[str]:
        """Yield the keys of what an edition states. Without a change, both editions state the same."""
        yield self.make_key(subject, "now" if latest or not self.old else "before")
        if latest and self.old:  # the latest edition also states the previous value
            yield self.make_key(subject, "before")
            yield self.make_key(subject, "change")


@dataclass(slots=True)
class Subject:
    """The subject of an entry."""

    kind: SubjectKind
    name: str
    short: str
    other_name: str
    facts: list[Fact] = field(default_factory=list)
    firm: str = ""
    """Outside firm, in a handbook."""

    @property
    def noun_phrase(self) -> str:
        """Phrase that refers to it in sentences."""
        return f"the {self.name}"

    @property
    def has_changed(self) -> bool:
        """True if the previous edition has an entry too."""
        return any(fact.old for fact in self.facts)

    def find_fact(self, kind: str) -> Fact | None:
        """Return the fact of that kind, or None."""
        return next((each for each in self.facts if each.kind.id == kind), None)


@cache
def load_subject_kinds() -> tuple[SubjectKind, ...]:
    """Return all kinds of subjects."""
    return tuple(map(_parse_subject_kind, load_text("reference")["kind"]))


def _parse_subject_kind(described: dict[str, Any]) -> SubjectKind:
    facts = []
    for each in described["fact"]:
        fields = {"label": each["noun"], "ask": [], "reply": [], "outside": [], **each, "details": each}
        facts.append(FactKind(**{name: fields[name] for name in FactKind.__dataclass_fields__}))
    return SubjectKind(**{**{k: v for k, v in described.items() if k != "fact"}, "facts": tuple(facts)})


@dataclass(slots=True)
class HandbookInventor:
    """Invent the topics of a company's handbook, with settled facts. They are the topics of its mail."""

    rng: Rng
    difficulty: Difficulty

    def invent_subjects(self) -> Iterator[Subject]:
        """Yield subjects until no names are left."""
        inventor = TopicInventor(self.rng, CastInventor(self.rng).make_cast(*_HANDBOOK_CAST))
        kinds = list(load_topic_kinds())
        while kinds:
            kind = self.rng.pick(kinds)
            start = datetime(self.rng.between(*_HANDBOOK_YEARS), 1, 1, tzinfo=UTC) + timedelta(days=self.rng.below(365))
            topic = inventor.invent_topic(kind, start, self.rng.between(*self.difficulty.facts))
            if topic is None:
                kinds.remove(kind)
                continue
            for fact in topic.facts:
                inventor.settle(topic, fact, start)
            yield Subject(
                _to_subject_kind(kind),
                topic.name,
                topic.short,
                "",
                [_to_fact(fact.kind, fact.versions[0]) for fact in topic.facts],
                topic.outsider.firm,
            )


def _to_fact(kind: FactKind, version: Version) -> Fact:
    return Fact(kind, version.value, person=version.person.name if version.person else "")


def _to_subject_kind(kind: TopicKind) -> SubjectKind:
    about = load_text("reference")["handbook"]["about"]
    return SubjectKind(kind.id, f"{kind.id.capitalize()}s", [], "", [], kind.key, kind.also, about, kind.facts)


@dataclass(slots=True)
class SubjectInventor:
    """Invent the subjects of one reference work, with unique names."""

    rng: Rng
    difficulty: Difficulty
    _names: set[str] = field(default_factory=set)
    _words: WordLists = field(init=False)

    def __post_init__(self) -> None:
        reference = load_text("reference")["lists"]
        lists = {**load_text("names"), **load_text("words"), **load_text("facts")["lists"], **reference}
        self._words = WordLists(self.rng, lists, _TRIES)

    def invent_subjects(self) -> Iterator[Subject]:
        """Yield subjects without end."""
        last: Subject | None = None
        while True:
            like = last if last is not None and self.rng.chance(self.difficulty.siblings) else None
            last = self._invent_subject(like.kind if like else self.rng.pick(load_subject_kinds()), like)
            yield last

    def choose_words(self, **fixed: Value) -> ChosenWords:
        """Return words from all lists. The first choice from each list is kept."""
        return ChosenWords(self.rng, self._words.lists, **fixed)

    def invent_person(self) -> str:
        """Return a unique personal name."""
        return self._words.make_unique(lambda: f"{self._words.pick_word('first')} {self._words.pick_word('last')}")

    def _invent_subject(self, kind: SubjectKind, like: Subject | None) -> Subject:
        """Return a subject with facts.

        With `like`, its name shares the first word, the last word or everything with that one.
        """
        name, short = self._choose_name(kind, like)
        form = self.rng.pick(kind.other_name)
        other = self._words.make_unique(lambda: expand(form, self.rng, self.choose_words(**{kind.last_words: short})))
        subject = Subject(kind, name, short, other)
        key = next(each for each in kind.facts if each.id == kind.key)
        others = self.rng.sample(
            [each for each in kind.facts if each is not key], self.rng.between(*self.difficulty.facts)
        )
        chosen = [key, *others[:-1]] if self.rng.chance(0.6) else others
        subject.facts = [Fact(each, self._make_value(each)) for each in kind.facts if each in chosen]
        if self.rng.chance(self.difficulty.changes):
            for fact in self.rng.sample(subject.facts, 1 + self.rng.chance(_TWO_CHANGES_CHANCE)):
                self._change_fact(fact)
        return subject

    def _choose_name(self, kind: SubjectKind, like: Subject | None) -> tuple[str, str]:
        """Return an unused name and its short form."""
        if like is not None and self.rng.chance(_VARIANT_CHANCE):
            name = f"{like.name} {self._words.pick_word('variant')}"
            if " of " not in like.name and name not in self._names:
                self._names.add(name)
                return name, like.short
        for attempt in range(_TRIES):
            chosen = self.choose_words()
            if like is not None and attempt < _TRIES / 2 and self.rng.chance(0.5):
                chosen[kind.last_words] = like.short
            name = expand(self.rng.pick(kind.name), self.rng, chosen)
            if like is not None and attempt < _TRIES / 2 and not set(name.split()) & set(like.name.split()):
                name = f"{like.name.partition(like.short)[0]}{expand(kind.short, self.rng, chosen)}"
            if name not in self._names:
                self._names.add(name)
                return name, expand(kind.short, self.rng, chosen)
        raise AssertionError(f"there are fewer names of the kind {kind.id} than documents may be asked for")

    def _change_fact(self, fact: Fact) -> None:
        """Give a fact another value in the previous edition."""
        for _ in range(_TRIES):
            fact.old = self._make_value(fact.kind)
            if fact.old not in fact.value and fact.value not in fact.old:
                break
        fact.reason = self.rng.pick(load_text("reference")["change"]["reason"])

    def _make_value(self, kind: FactKind) -> str:
        """Return a value of the fact's type."""
        one = self._words.pick_word
        if kind.type in _IN_LISTS:
            return one(kind.type)
        make: dict[str, Callable[[], str]] = {
            "year": lambda: str(self.rng.between(*_YEARS)),
            "days": lambda: f"{self._choose_number(kind)} days",
            "minutes": lambda: f"{self._choose_number(kind)} minutes",
            "money": lambda: f"£{self._choose_number(kind)}",
            "count": lambda: f"{self._choose_number(kind)} {kind.details['unit']}",
            "dose": lambda: f"{self._choose_number(kind)} mg {one('often')}",
            "season": lambda: f"{self.rng.pick(['early', 'mid', 'late'])} {one('month')}",
            "ground": lambda: f"{one('ground')} below {one('city')}",
            "town": lambda: f"{one('street')} House, {one('city')}",
            "store": lambda: f"{one('keep')} {one('stow')}",
            "sign": lambda: f"{one('sense')} and stiff {one('joint')}",
            "remedy": lambda: f"{one('preparation')} of {one('street').lower()} {one('herb')}",
        }
        if kind.type == "person":
            return self.invent_person()
        if kind.type == "code":
            return self._words.make_unique(lambda: self._words.make_code(kind.details["form"]))
        return make[kind.type]()

    def _choose_number(self, kind: FactKind) -> int:
        """Return a number in the kind's range. Small numbers are more frequent."""
        low, high = kind.details["range"]
        return int(low + (high - low) * self.rng.between(0, 1000) ** 2 // 1_000_000)
