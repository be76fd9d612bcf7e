"""What an invented reference work has entries for: its subjects, and the facts of each, some of which change."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Literal

from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import Value, expand, load_text
from gumshoe.synthesis.people import Casting
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.topics import ChosenWords, FactKind, TopicKind, Version, Words, topic_kinds
from gumshoe.synthesis.topics import Inventor as MatterInventor

_TRIES = 400  # to find a name, or a value, that is free
_YEARS = (1620, 1960)
_HANDBOOK_CAST = (160, 80)  # colleagues, and firms outside
_HANDBOOK_YEARS = (2015, 2023)
_VARIANTS = 0.5  # how often what shares part of its name with another is a variant of that
_TWO = 0.4  # how often two facts of a subject change, where one does
_IN_LISTS = {"colour", "culprit", "benefit", "merit", "stuff", "member"}


@dataclass(frozen=True, slots=True)
class SubjectKind:
    """A kind of subject, as `text/reference.toml` describes it."""

    id: str
    category: str
    name: list[str]
    short: str
    other_name: list[str]
    key: str
    """The fact by which a question may refer to a subject without its name."""
    also: list[str]
    about: list[str]
    facts: tuple[FactKind, ...]

    @property
    def last_words(self) -> str:
        """The list that the last word of its names is from."""
        return self.short.strip("{}")


@dataclass(slots=True)
class Fact:
    """A fact of a subject; with what the edition before gave in its place, where it changed."""

    kind: FactKind
    value: str
    old: str = ""
    reason: str = ""
    """Why it changed."""
    person: str = ""
    """Whose the value is, where it is a telephone number."""

    def key(self, subject: "Subject", what: Literal["now", "before", "change"]) -> str:
        """Marks the documents that state its value, the one before it, or how it changed."""
        return f"{subject.name}/{self.kind.id}/{what}"

    def stated(self, subject: "Subject", *, latest: bool) -> Iterator[str]:
        """The keys of what an edition states of it: the one before, too, where nothing has changed."""
        yield self.key(subject, "now" if latest or not self.old else "before")
        if latest and self.old:  # which tells the value before it, too
            yield self.key(subject, "before")
            yield self.key(subject, "change")


@dataclass(slots=True)
class Subject:
    """What one entry is about."""

    kind: SubjectKind
    name: str
    short: str
    other_name: str
    facts: list[Fact] = field(default_factory=list)
    firm: str = ""
    """With whom it is dealt with, of a handbook."""

    @property
    def it(self) -> str:
        """What sentences call it."""
        return f"the {self.name}"

    @property
    def has_changed(self) -> bool:
        """There is an entry of the edition before, too."""
        return any(fact.old for fact in self.facts)

    def fact(self, kind: str) -> Fact | None:
        """The fact of that kind, if it has one."""
        return next((each for each in self.facts if each.kind.id == kind), None)


@cache
def subject_kinds() -> tuple[SubjectKind, ...]:
    """All kinds of subject there are."""
    return tuple(map(_subject_kind, load_text("reference")["kind"]))


def _subject_kind(described: dict[str, Any]) -> SubjectKind:
    facts = []
    for each in described["fact"]:
        fields = {"label": each["noun"], "ask": [], "reply": [], "outside": [], **each, "details": each}
        facts.append(FactKind(**{name: fields[name] for name in FactKind.__dataclass_fields__}))
    return SubjectKind(**{**{k: v for k, v in described.items() if k != "fact"}, "facts": tuple(facts)})


@dataclass(slots=True)
class HandbookInventor:
    """Invents the matters of a company's handbook: those that its mail would be about, each fact as it was settled."""

    dice: Rng
    difficulty: Difficulty

    def subjects(self) -> Iterator[Subject]:
        """One after another, as many as there are names for."""
        inventor = MatterInventor(self.dice, Casting(self.dice).cast(*_HANDBOOK_CAST))
        kinds = list(topic_kinds())
        while kinds:
            kind = self.dice.pick(kinds)
            start = datetime(self.dice.between(*_HANDBOOK_YEARS), 1, 1, tzinfo=UTC) + timedelta(
                days=self.dice.below(365)
            )
            matter = inventor.matter(kind, start, self.dice.between(*self.difficulty.facts))
            if matter is None:
                kinds.remove(kind)
                continue
            for fact in matter.facts:
                inventor.settle(matter, fact, start)
            yield Subject(
                _of_a_handbook(kind),
                matter.name,
                matter.short,
                "",
                [_settled(fact.kind, fact.versions[0]) for fact in matter.facts],
                matter.outsider.firm,
            )


def _settled(kind: FactKind, version: Version) -> Fact:
    return Fact(kind, version.value, person=version.person.name if version.person else "")


def _of_a_handbook(kind: TopicKind) -> SubjectKind:
    about = load_text("reference")["handbook"]["about"]
    return SubjectKind(kind.id, f"{kind.id.capitalize()}s", [], "", [], kind.key, kind.also, about, kind.facts)


@dataclass(slots=True)
class SubjectInventor:
    """Invents the subjects of one reference work, no two of one name."""

    dice: Rng
    difficulty: Difficulty
    _names: set[str] = field(default_factory=set)
    _words: Words = field(init=False)

    def __post_init__(self) -> None:
        reference = load_text("reference")["lists"]
        lists = {**load_text("names"), **load_text("words"), **load_text("facts")["lists"], **reference}
        self._words = Words(self.dice, lists, _TRIES)

    def subjects(self) -> Iterator[Subject]:
        """One after another, as many as there are names for."""
        last: Subject | None = None
        while True:
            like = last if last is not None and self.dice.chance(self.difficulty.siblings) else None
            last = self._subject(like.kind if like else self.dice.pick(subject_kinds()), like)
            yield last

    def words(self, **fixed: Value) -> ChosenWords:
        """Words of all lists to write with, each list's picked once and then kept."""
        return ChosenWords(self.dice, self._words.lists, **fixed)

    def person(self) -> str:
        """A name that nobody else has."""
        return self._words.fresh(lambda: f"{self._words.one('first')} {self._words.one('last')}")

    def _subject(self, kind: SubjectKind, like: Subject | None) -> Subject:
        """A subject with its facts; with `like`, one that shares the first or the last word of its name, or all."""
        name, short = self._named(kind, like)
        form = self.dice.pick(kind.other_name)
        other = self._words.fresh(lambda: expand(form, self.dice, self.words(**{kind.last_words: short})))
        subject = Subject(kind, name, short, other)
        key = next(each for each in kind.facts if each.id == kind.key)
        others = self.dice.sample(
            [each for each in kind.facts if each is not key], self.dice.between(*self.difficulty.facts)
        )
        chosen = [key, *others[:-1]] if self.dice.chance(0.6) else others
        subject.facts = [Fact(each, self._value(each)) for each in kind.facts if each in chosen]
        if self.dice.chance(self.difficulty.changes):
            for fact in self.dice.sample(subject.facts, 1 + self.dice.chance(_TWO)):
                self._change(fact)
        return subject

    def _named(self, kind: SubjectKind, like: Subject | None) -> tuple[str, str]:
        """A name that is free, and its short form."""
        if like is not None and self.dice.chance(_VARIANTS):
            name = f"{like.name} {self._words.one('variant')}"
            if " of " not in like.name and name not in self._names:
                self._names.add(name)
                return name, like.short
        for attempt in range(_TRIES):
            chosen = self.words()
            if like is not None and attempt < _TRIES / 2 and self.dice.chance(0.5):
                chosen[kind.last_words] = like.short
            name = expand(self.dice.pick(kind.name), self.dice, chosen)
            if like is not None and attempt < _TRIES / 2 and not set(name.split()) & set(like.name.split()):
                name = f"{like.name.partition(like.short)[0]}{expand(kind.short, self.dice, chosen)}"
            if name not in self._names:
                self._names.add(name)
                return name, expand(kind.short, self.dice, chosen)
        raise AssertionError(f"there are fewer names of the kind {kind.id} than documents may be asked for")

    def _change(self, fact: Fact) -> None:
        """Have the edition before give it otherwise."""
        for _ in range(_TRIES):
            fact.old = self._value(fact.kind)
            if fact.old not in fact.value and fact.value not in fact.old:
                break
        fact.reason = self.dice.pick(load_text("reference")["change"]["reason"])

    def _value(self, kind: FactKind) -> str:
        """A value, made as the fact's type says."""
        one = self._words.one
        if kind.type in _IN_LISTS:
            return one(kind.type)
        make: dict[str, Callable[[], str]] = {
            "year": lambda: str(self.dice.between(*_YEARS)),
            "days": lambda: f"{self._number(kind)} days",
            "minutes": lambda: f"{self._number(kind)} minutes",
            "money": lambda: f"£{self._number(kind)}",
            "count": lambda: f"{self._number(kind)} {kind.details['unit']}",
            "dose": lambda: f"{self._number(kind)} mg {one('often')}",
            "season": lambda: f"{self.dice.pick(['early', 'mid', 'late'])} {one('month')}",
            "ground": lambda: f"{one('ground')} below {one('city')}",
            "town": lambda: f"{one('street')} House, {one('city')}",
            "store": lambda: f"{one('keep')} {one('stow')}",
            "sign": lambda: f"{one('sense')} and stiff {one('joint')}",
            "remedy": lambda: f"{one('preparation')} of {one('street').lower()} {one('herb')}",
        }
        if kind.type == "person":
            return self.person()
        if kind.type == "code":
            return self._words.fresh(lambda: self._words.code(kind.details["form"]))
        return make[kind.type]()

    def _number(self, kind: FactKind) -> int:
        """A number within the kind's range, smaller ones more often."""
        low, high = kind.details["range"]
        return int(low + (high - low) * self.dice.between(0, 1000) ** 2 // 1_000_000)
