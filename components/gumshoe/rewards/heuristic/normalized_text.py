"""Prepare texts for comparison: find their values, names and content words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise

from snowballstemmer import stemmer

from gumshoe.mail.stems import remove_accents
from gumshoe.rewards.heuristic.values import Value, find_values

_WORD = re.compile(r"[^\W\d_]+(?:['&][^\W\d_]+)*")
_SENTENCE = re.compile(r"[.!?;:](?=\s|$)")
_STOP_WORDS = frozenset(
    "a about all also am an and any are as at be been being but by did do does for from had has have he her here "  # noqa: SIM905
    "him his how i in into is it it's its me my now of on or our she so some than that the their them then "
    "there they this to us was we were what when where which who whom whose why will with would you your".split()
)
_ABBREVIATIONS = {
    "rd": "road",
    "st": "street",
    "ave": "avenue",
    "blvd": "boulevard",
    "sq": "square",
    "conf": "conference",
}
_ABBREVIATIONS |= {"rm": "room", "dept": "department", "apt": "apartment", "intl": "international"}
_IGNORED = _STOP_WORDS | {"mr", "mrs", "ms", "miss", "sir", "madam", "dr", "prof", "phd", "esq", "jr"}
_NAME_FOLLOWS = re.compile(r" (?=[^\W\d_])[^a-z\W]")
_NAME_SEPARATOR = re.compile(r"(?:[\s,.;&-]|\b(?:and|the|mr|mrs|ms|dr)\b)*", re.I)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text."""

    key: str
    is_name: bool
    start: int
    end: int

    def agrees(self, reference: "Word") -> bool:
        """Return True if it matches a word of the reference: names by spelling, other words by stem."""
        return self.key == reference.key or (not reference.is_name and _stem(self.key) == _stem(reference.key))


Item = Value | Word


@dataclass(frozen=True)
class NormalizedText:
    """A text with its values, and the content words outside of them."""

    text: str
    asked: date | None

    @cached_property
    def values(self) -> list[Value]:
        return list(find_values(self.text, self.asked))

    @cached_property
    def words(self) -> list[Word]:
        """Content words, without accents. Titles and initials between names are left out."""
        taken = [(each.start, each.end) for each in self.values]
        found: list[Word] = []
        for match in _WORD.finditer(self.text):
            key = remove_accents(match[0].casefold().removesuffix("'s"))
            key = _ABBREVIATIONS.get(key, key)
            is_name = match[0][0].isupper()
            after_name = bool(found) and found[-1].is_name and self.text[found[-1].end : match.start()] == " "
            before_name = _NAME_FOLLOWS.match(self.text, match.end()) is not None
            is_initial = is_name and len(key) == 1 and self.text[match.end() : match.end() + 1] == "."
            is_part = is_name and ((len(key) == 1 and after_name) or (key == "will" and before_name))  # Option A
            if (
                is_initial
                or (key in _IGNORED and not is_part)
                or any(start <= match.start() < end for start, end in taken)
            ):
                continue
            found.append(Word(key, is_name, *match.span()))
        return found

    @cached_property
    def items(self) -> list[Item]:
        return sorted([*self.values, *self.words], key=lambda each: each.start)

    def find(self, item: Item) -> list[Item]:
        """Return the values or words of this text that match an item of another text."""
        own: list[Value] | list[Word] = self.values if isinstance(item, Value) else self.words
        return [each for each in own if each.agrees(item)]  # type: ignore[arg-type] # both are of one kind

    def names(self) -> Iterator[list[Word]]:
        """Yield names of two or more words."""
        run: list[Word] = []
        for word in [*self.words, Word("", False, len(self.text) + 9, len(self.text) + 9)]:
            if run and not (
                word.is_name and re.fullmatch(r"(?:[\s&-]|\b[A-Z]\.)*", self.text[run[-1].end : word.start])
            ):
                if len(run) > 1:
                    yield run
                run = []
            if word.is_name:
                run.append(word)

    def names_from(self, first: Word) -> list[Word]:
        """Return the words of all names in a list that starts at a word, e.g. "Ann Lee, Bo Ek and Cy Ay"."""
        found = [first]
        for word in self.words[self.words.index(first) + 1 :]:
            if not word.is_name or not _NAME_SEPARATOR.fullmatch(self.text[found[-1].end : word.start]):
                break
            found.append(word)
        return found

    @cached_property
    def sentences(self) -> list[tuple[int, int]]:
        """Start and end of each sentence."""
        ends = [0, *(match.end() for match in _SENTENCE.finditer(self.text)), len(self.text)]
        return list(pairwise(ends))

    def sentence(self, start: int) -> tuple[int, int]:
        """Return start and end of the sentence at an offset."""
        return next((one, other) for one, other in self.sentences if one <= start < other or other == len(self.text))


_STEMMER = stemmer("english")


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    stem: str = _STEMMER.stemWord(word)
    return stem
