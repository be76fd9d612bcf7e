"""Generate synthetic documents: an invented reference work, and questions about it."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import ScenarioSet, Split, seeded_sort_key
from gumshoe.synthesis.difficulty import LEVELS, Difficulty, Level
from gumshoe.synthesis.document_questions import DocumentQuestionGenerator, ReferenceWork
from gumshoe.synthesis.entries import Fact, HandbookInventor, Subject, SubjectInventor
from gumshoe.synthesis.files import write_dataset
from gumshoe.synthesis.grammar import expand, expand_sentence, load_text
from gumshoe.synthesis.rng import Rng

MIN_DOCUMENTS, MAX_DOCUMENTS = 40, 20_000
DOCUMENTS_FILE = "documents.jsonl"
_TEST, _VALIDATION = 0.15, 0.1  # shares of the subjects
_SENTENCES = (4, 8)  # per article


@dataclass(frozen=True, slots=True)
class SyntheticDocuments:
    """Generated documents and scenarios."""

    documents: list[dict[str, Any]]
    """With the fields of a JSONL document source."""
    scenarios: ScenarioSet
    title: str
    """Title of the reference work."""
    subjects: int
    """Number of subjects with an entry."""


@dataclass(frozen=True, slots=True)
class _EntryPage:
    """A document without an id."""

    title: str
    text: str
    category: str
    facts: frozenset[str] = frozenset()
    """Keys of the facts that it states."""
    synonyms: tuple[str, ...] = ()
    edition: str = ""


def synthesize_documents(
    seed: int, documents: int, level: Level = "normal", advance: Callable[[int], object] = lambda _: None
) -> SyntheticDocuments:
    """Generate a reference work of `documents` documents: entries, some in two editions, and articles.

    All questions about one subject, and the entries that answer them, are in one split. The same arguments give the
    same result on every machine. `advance` is called with the number of documents generated.

    Raises:
        UsageError: if there are too few or too many documents.
    """
    check_size(documents)
    writer = _ReferenceWriter(Rng(seed, level, "documents"), LEVELS[level])
    subjects = writer.fill(documents, advance)
    rng = Rng(seed, "ids")
    ids = _generate_ids(rng)
    named = {next(ids): page for page in rng.shuffled(writer.pages)}
    documents_by_fact: dict[str, list[str]] = {}
    for document_id, page in named.items():
        for key in page.facts:
            documents_by_fact.setdefault(key, []).append(document_id)
    book = ReferenceWork(
        writer.before, writer.now, date(writer.year, 1, 1) + timedelta(days=rng.below(365)), documents_by_fact
    )
    reader = DocumentQuestionGenerator(Rng(seed, level, "questions"), LEVELS[level], book)
    splits = _assign_splits(seed, subjects)
    asked = reader.generate(subjects, f"synthetic-{seed}-{level}", splits)
    records = [_to_record(document_id, page) for document_id, page in named.items()]
    return SyntheticDocuments(records, ScenarioSet.of(asked), writer.title, len(subjects))


def check_size(documents: int) -> None:
    """Check the requested size.

    Raises:
        UsageError: if there are too few or too many documents.
    """
    if not MIN_DOCUMENTS <= documents <= MAX_DOCUMENTS:
        raise UsageError(
            "synthesis.invalid-size",
            f"--documents must be from {MIN_DOCUMENTS} to {MAX_DOCUMENTS:,}, got {documents:,}",
        )


def write_documents(made: SyntheticDocuments, directory: Path) -> None:
    """Write `documents.jsonl` and `scenarios.jsonl` into a directory, which is created if needed.

    Raises:
        StorageError: if the directory is not writable.
    """
    write_dataset(directory, DOCUMENTS_FILE, made.documents, made.scenarios)


@dataclass(slots=True)
class _ReferenceWriter:
    """Write the pages of one reference work."""

    rng: Rng
    difficulty: Difficulty
    pages: list[_EntryPage] = field(default_factory=list)
    title: str = field(init=False)
    before: str = field(init=False)
    """Name of the previous edition."""
    now: str = field(init=False)
    year: int = field(init=False)
    """Year after that of the last edition."""
    _inventor: SubjectInventor = field(init=False)
    _texts: dict[str, Any] = field(default_factory=lambda: load_text("reference"))
    _own_texts: dict[str, Any] = field(init=False)
    """Texts for this type of reference work."""
    _contents: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._inventor = SubjectInventor(self.rng, self.difficulty)
        self._own_texts = self._texts["handbook" if self.is_handbook else "book"]
        words = self._inventor.choose_words(other=self._inventor.invent_person())
        self.title = expand(self.rng.pick(self._own_texts["title"]), self.rng, words)
        editions = self._texts["book"]["edition"]
        latest = self.rng.between(1, len(editions) - 1)
        self.before, self.now = editions[latest - 1], editions[latest]
        self.year = self.rng.between(2015, 2023)

    @property
    def is_handbook(self) -> bool:
        """True for a handbook in the style of plain mail, False for a book of remedies."""
        return self.difficulty.value_last

    def fill(self, count: int, advance: Callable[[int], object]) -> list[Subject]:
        """Write exactly `count` pages: entries for the share given by the difficulty, and articles for the rest."""
        entries = count - round(count * self.difficulty.noise)
        subjects: list[Subject] = []
        inventor = HandbookInventor(self.rng, self.difficulty) if self.is_handbook else self._inventor
        for subject in inventor.invent_subjects():
            if len(self.pages) >= entries:
                break
            if subject.has_changed and len(self.pages) + 2 > entries:
                for fact in subject.facts:
                    fact.old = ""
            pages = [self._write_entry(subject, latest=True)]
            pages += [self._write_entry(subject, latest=False)] if subject.has_changed else []
            self.pages += pages
            subjects.append(subject)
            advance(len(pages))
        while len(self.pages) < count:
            page = self._write_article(subjects)
            digest = hashlib.sha256(page.text.encode()).digest()
            if digest not in self._contents:
                self._contents.add(digest)
                self.pages.append(page)
                advance(1)
        return subjects

    def _write_entry(self, subject: Subject, *, latest: bool) -> _EntryPage:
        """Return the entry about a subject in an edition."""
        values = {"it": subject.noun_phrase, "short": subject.short, "firm": subject.firm}
        parts = [expand_sentence(self.rng.pick(subject.kind.about), self.rng, values)]
        if not self.is_handbook:
            parts[0] += f" It is also called {subject.other_name}."
        section = ""
        for fact in subject.facts:
            sentences = [*self._write_fillers(values), *self._write_fact(fact, values, latest=latest)]
            text = " ".join(self.rng.shuffled(sentences))
            if not self.is_handbook and fact.kind.details["section"] != section:
                section = fact.kind.details["section"]
                text = f"{section}\n{text}"
            parts.append(text)
        name = f"{subject.name[:1].upper()}{subject.name[1:]}"
        edition = self.now if latest else self.before
        return _EntryPage(
            name if latest else f"{name} ({edition} edition)",
            "\n\n".join(parts),
            subject.kind.category,
            frozenset(key for fact in subject.facts for key in fact.list_keys(subject, latest=latest)),
            (subject.other_name.removeprefix("the "),) if subject.other_name else (),
            "" if self.is_handbook else edition,
        )

    def _write_fact(self, fact: Fact, values: Mapping[str, str], *, latest: bool) -> Iterator[str]:
        """Yield the sentences that state a fact."""
        forms = fact.kind.select_value_last() if self.is_handbook else fact.kind.say
        if self.rng.chance(self.difficulty.own_words):
            forms = fact.kind.select_own_words(forms)
        slots = {**values, "value": fact.value if latest else fact.old or fact.value, "person": fact.person}
        states_change = latest and fact.old
        if not states_change or self.rng.chance(0.5):
            yield expand_sentence(self.rng.pick(forms), self.rng, slots)
        if states_change:
            slots |= {"noun": fact.kind.noun, "old": fact.old, "reason": fact.reason}
            slots |= {"before": self.before, "now": self.now}
            yield expand_sentence(self.rng.pick(self._texts["change"]["say"]), self.rng, slots)

    def _write_fillers(self, values: Mapping[str, str]) -> list[str]:
        forms = self.rng.sample(self._own_texts["filler"], self.rng.between(*self.difficulty.filler))
        return [expand_sentence(form, self.rng, values) for form in forms]

    def _write_article(self, subjects: list[Subject]) -> _EntryPage:
        """Return an article that is about no subject, or that mentions one without stating facts."""
        texts = self._texts["article"]
        about = self.rng.pick(subjects) if self.rng.chance(self.difficulty.echoes) else None
        words = self._inventor.choose_words(
            theme=about.noun_phrase if about else self.rng.pick(self._own_texts["theme"])
        )
        title = expand_sentence(self.rng.pick(texts["title"]), self.rng, words)
        count = self.rng.between(*_SENTENCES)
        if about is None:
            sentences = [expand_sentence(form, self.rng, words) for form in self.rng.sample(texts["say"], count)]
        else:
            sentences = list(self._write_remarks(about, count))
        half = len(sentences) // 2
        return _EntryPage(title, f"{' '.join(sentences[:half])}\n\n{' '.join(sentences[half:])}", "Articles")

    def _write_remarks(self, subject: Subject, count: int) -> Iterator[str]:
        """Yield sentences about a subject that state none of its facts, although some mention them."""
        values = {"it": subject.noun_phrase, "short": subject.short}
        echoes = self.rng.sample(self._texts["echo"]["say"], len(subject.facts))
        sentences = [
            expand_sentence(form, self.rng, {**values, "noun": fact.kind.noun})
            for form, fact in zip(echoes, self.rng.shuffled(subject.facts), strict=False)
        ]
        forms = self.rng.sample(self._own_texts["filler"], count)
        yield from self.rng.shuffled([*sentences, *(expand_sentence(form, self.rng, values) for form in forms)])


def _generate_ids(rng: Rng) -> Iterator[str]:
    """Yield unique ids made of syllables, because small models confuse digits."""
    taken: set[str] = set()
    while True:
        word = "".join(rng.pick("bdfgklmnprstvz") + rng.pick("aeiou") for _ in range(4))
        if word not in taken:
            taken.add(word)
            yield f"doc-{word}"


def _assign_splits(seed: int, subjects: list[Subject]) -> dict[str, Split]:
    """Return the split of each subject. Each split gets at least one."""
    order = sorted((subject.name for subject in subjects), key=lambda name: seeded_sort_key(seed, name))
    test = max(1, round(_TEST * len(order)))
    held_out = test + max(1, round(_VALIDATION * len(order)))
    return {
        name: "test" if place < test else "validation" if place < held_out else "train"
        for place, name in enumerate(order)
    }


def _to_record(document_id: str, page: _EntryPage) -> dict[str, Any]:
    metadata: dict[str, Any] = {"category": page.category}
    metadata |= {"synonyms": list(page.synonyms), "edition": page.edition} if page.synonyms else {}
    return {"document_id": document_id, "title": page.title, "text": page.text, "metadata": metadata}
