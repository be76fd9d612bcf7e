"""Synthetic documents: an invented reference work, page by page, and questions about what it holds."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import ScenarioSet, Split, seeded
from gumshoe.synthesis.difficulty import LEVELS, Difficulty, Level
from gumshoe.synthesis.document_questions import Book, Reader
from gumshoe.synthesis.entries import Fact, HandbookInventor, Subject, SubjectInventor
from gumshoe.synthesis.files import write_made
from gumshoe.synthesis.grammar import expand, load_text, sentence
from gumshoe.synthesis.rng import Rng

MIN_DOCUMENTS, MAX_DOCUMENTS = 40, 20_000
DOCUMENTS = "documents.jsonl"
_TEST, _VALIDATION = 0.15, 0.1  # shares of the subjects
_SENTENCES = (4, 8)  # of an article


@dataclass(frozen=True, slots=True)
class SyntheticDocuments:
    """What was written."""

    documents: list[dict[str, Any]]
    """With the fields of a JSONL source of documents."""
    scenarios: ScenarioSet
    title: str
    """Of the reference work."""
    subjects: int
    """Things that have an entry."""


@dataclass(frozen=True, slots=True)
class _EntryPage:
    """One document before it has an id."""

    title: str
    text: str
    category: str
    states: frozenset[str] = frozenset()
    """Keys of the facts that it states."""
    synonyms: tuple[str, ...] = ()
    edition: str = ""


def synthesize_documents(
    seed: int, documents: int, level: Level = "normal", advance: Callable[[int], object] = lambda _: None
) -> SyntheticDocuments:
    """Invent a reference work of so many documents: entries, some in two editions, and articles that are none.

    All that is asked about one subject is in one split, and so are the entries that answer it. The same arguments give
    the same result on every machine. `advance` is told of documents as they are made.

    Raises:
        UsageError: there are too few documents, or too many.
    """
    check_size(documents)
    writer = _ReferenceWriter(Rng(seed, level, "documents"), LEVELS[level])
    subjects = writer.fill(documents, advance)
    dice = Rng(seed, "ids")
    ids = _ids(dice)
    named = {next(ids): page for page in dice.shuffled(writer.pages)}
    stating: dict[str, list[str]] = {}
    for document_id, page in named.items():
        for key in page.states:
            stating.setdefault(key, []).append(document_id)
    book = Book(writer.before, writer.now, date(writer.year, 1, 1) + timedelta(days=dice.below(365)), stating)
    reader = Reader(Rng(seed, level, "questions"), LEVELS[level], book)
    splits = _splits(seed, subjects)
    asked = reader.ask(subjects, f"synthetic-{seed}-{level}", splits)
    records = [_record(document_id, page) for document_id, page in named.items()]
    return SyntheticDocuments(records, ScenarioSet.of(asked), writer.title, len(subjects))


def check_size(documents: int) -> None:
    """Refuse what cannot be made.

    Raises:
        UsageError: there are too few documents, or too many.
    """
    if not MIN_DOCUMENTS <= documents <= MAX_DOCUMENTS:
        raise UsageError(
            "synthesis.invalid-size",
            f"--documents must be from {MIN_DOCUMENTS} to {MAX_DOCUMENTS:,}, got {documents:,}",
        )


def write_documents(made: SyntheticDocuments, directory: Path) -> None:
    """Write `documents.jsonl` and `scenarios.jsonl` into a directory, made where it is missing.

    Raises:
        StorageError: it cannot be written to.
    """
    write_made(directory, DOCUMENTS, made.documents, made.scenarios)


@dataclass(slots=True)
class _ReferenceWriter:
    """Writes the pages of one work."""

    dice: Rng
    difficulty: Difficulty
    pages: list[_EntryPage] = field(default_factory=list)
    title: str = field(init=False)
    before: str = field(init=False)
    """The edition before the last, as a word."""
    now: str = field(init=False)
    year: int = field(init=False)
    """After that of the last edition."""
    _inventor: SubjectInventor = field(init=False)
    _texts: dict[str, Any] = field(default_factory=lambda: load_text("reference"))
    _own: dict[str, Any] = field(init=False)
    """The texts of this sort of work."""
    _contents: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._inventor = SubjectInventor(self.dice, self.difficulty)
        self._own = self._texts["handbook" if self.is_plain else "book"]
        words = self._inventor.words(other=self._inventor.person())
        self.title = expand(self.dice.pick(self._own["title"]), self.dice, words)
        editions = self._texts["book"]["edition"]
        latest = self.dice.between(1, len(editions) - 1)
        self.before, self.now = editions[latest - 1], editions[latest]
        self.year = self.dice.between(2015, 2023)

    @property
    def is_plain(self) -> bool:
        """It is a handbook, in the words of plain mail, and not a book of remedies."""
        return self.difficulty.value_last

    def fill(self, count: int, advance: Callable[[int], object]) -> list[Subject]:
        """Write exactly so many pages: entries for the share that the difficulty says, and articles for the rest."""
        entries = count - round(count * self.difficulty.noise)
        subjects: list[Subject] = []
        inventor = HandbookInventor(self.dice, self.difficulty) if self.is_plain else self._inventor
        for subject in inventor.subjects():
            if len(self.pages) >= entries:
                break
            if subject.has_changed and len(self.pages) + 2 > entries:
                for fact in subject.facts:
                    fact.old = ""
            pages = [self._entry(subject, latest=True)]
            pages += [self._entry(subject, latest=False)] if subject.has_changed else []
            self.pages += pages
            subjects.append(subject)
            advance(len(pages))
        while len(self.pages) < count:
            page = self._article(subjects)
            digest = hashlib.sha256(page.text.encode()).digest()
            if digest not in self._contents:
                self._contents.add(digest)
                self.pages.append(page)
                advance(1)
        return subjects

    def _entry(self, subject: Subject, *, latest: bool) -> _EntryPage:
        """What an edition says of a subject."""
        values = {"it": subject.it, "short": subject.short, "firm": subject.firm}
        parts = [sentence(self.dice.pick(subject.kind.about), self.dice, values)]
        if not self.is_plain:
            parts[0] += f" It is also called {subject.other_name}."
        section = ""
        for fact in subject.facts:
            told = [*self._fillers(values), *self._told(fact, values, latest=latest)]
            text = " ".join(self.dice.shuffled(told))
            if not self.is_plain and fact.kind.details["section"] != section:
                section = fact.kind.details["section"]
                text = f"{section}\n{text}"
            parts.append(text)
        name = f"{subject.name[:1].upper()}{subject.name[1:]}"
        edition = self.now if latest else self.before
        return _EntryPage(
            name if latest else f"{name} ({edition} edition)",
            "\n\n".join(parts),
            subject.kind.category,
            frozenset(key for fact in subject.facts for key in fact.stated(subject, latest=latest)),
            (subject.other_name.removeprefix("the "),) if subject.other_name else (),
            "" if self.is_plain else edition,
        )

    def _told(self, fact: Fact, values: Mapping[str, str], *, latest: bool) -> Iterator[str]:
        """The sentences that state a fact."""
        forms = fact.kind.with_value_last() if self.is_plain else fact.kind.say
        if self.dice.chance(self.difficulty.own_words):
            forms = fact.kind.in_own_words(forms)
        slots = {**values, "value": fact.value if latest else fact.old or fact.value, "person": fact.person}
        is_told_of = latest and fact.old
        if not is_told_of or self.dice.chance(0.5):
            yield sentence(self.dice.pick(forms), self.dice, slots)
        if is_told_of:
            slots |= {"noun": fact.kind.noun, "old": fact.old, "reason": fact.reason}
            slots |= {"before": self.before, "now": self.now}
            yield sentence(self.dice.pick(self._texts["change"]["say"]), self.dice, slots)

    def _fillers(self, values: Mapping[str, str]) -> list[str]:
        forms = self.dice.sample(self._own["filler"], self.dice.between(*self.difficulty.filler))
        return [sentence(form, self.dice, values) for form in forms]

    def _article(self, subjects: list[Subject]) -> _EntryPage:
        """A page that is no entry: about nothing that has one, or talk of something that has one."""
        texts = self._texts["article"]
        about = self.dice.pick(subjects) if self.dice.chance(self.difficulty.echoes) else None
        words = self._inventor.words(theme=about.it if about else self.dice.pick(self._own["theme"]))
        title = sentence(self.dice.pick(texts["title"]), self.dice, words)
        count = self.dice.between(*_SENTENCES)
        if about is None:
            told = [sentence(form, self.dice, words) for form in self.dice.sample(texts["say"], count)]
        else:
            told = list(self._talk(about, count))
        half = len(told) // 2
        return _EntryPage(title, f"{' '.join(told[:half])}\n\n{' '.join(told[half:])}", "Articles")

    def _talk(self, subject: Subject, count: int) -> Iterator[str]:
        """Sentences about a subject that state nothing of it, some of which speak of its facts."""
        values = {"it": subject.it, "short": subject.short}
        echoes = self.dice.sample(self._texts["echo"]["say"], len(subject.facts))
        told = [
            sentence(form, self.dice, {**values, "noun": fact.kind.noun})
            for form, fact in zip(echoes, self.dice.shuffled(subject.facts), strict=False)
        ]
        forms = self.dice.sample(self._own["filler"], count)
        yield from self.dice.shuffled([*told, *(sentence(form, self.dice, values) for form in forms)])


def _ids(dice: Rng) -> Iterator[str]:
    """Ids that no other document has, of syllables rather than digits, which small models confuse."""
    taken: set[str] = set()
    while True:
        word = "".join(dice.pick("bdfgklmnprstvz") + dice.pick("aeiou") for _ in range(4))
        if word not in taken:
            taken.add(word)
            yield f"doc-{word}"


def _splits(seed: int, subjects: list[Subject]) -> dict[str, Split]:
    """The split of each subject, at least one in each."""
    order = sorted((subject.name for subject in subjects), key=lambda name: seeded(seed, name))
    test = max(1, round(_TEST * len(order)))
    held = test + max(1, round(_VALIDATION * len(order)))
    return {
        name: "test" if place < test else "validation" if place < held else "train" for place, name in enumerate(order)
    }


def _record(document_id: str, page: _EntryPage) -> dict[str, Any]:
    metadata: dict[str, Any] = {"category": page.category}
    metadata |= {"synonyms": list(page.synonyms), "edition": page.edition} if page.synonyms else {}
    return {"document_id": document_id, "title": page.title, "text": page.text, "metadata": metadata}
