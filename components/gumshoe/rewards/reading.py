"""A text as it is compared with another: its values, its names, and the words that carry meaning."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise

from snowballstemmer import stemmer

from gumshoe.rewards.values import Value, values_in

_WORD = re.compile(r"[^\W\d_]+(?:['&][^\W\d_]+)*")
_SENTENCE = re.compile(r"[.!?;:](?=\s|$)")
_SMALL = frozenset(
    "a about after all also am an and any are as at be been being but by did do does for from had has have he her here "  # noqa: SIM905
    "him his how i in into is it it's its me my now of off on or our out she so some than that the their them then "
    "there they this to up us was we were what when where which who whom whose why will with would you your".split()
)
_SAME = {"rd": "road", "st": "street", "ave": "avenue", "blvd": "boulevard", "sq": "square", "conf": "conference"}
_SAME |= {"rm": "room", "dept": "department", "prof": "professor", "apt": "apartment", "intl": "international"}
_TITLES = frozenset({"mr", "mrs", "ms", "miss", "sir", "madam"})
_LIST = re.compile(r"(?:[\s,.;&-]|\b(?:and|the|mr|mrs|ms|dr)\b)*", re.I)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text."""

    key: str
    is_name: bool
    start: int
    end: int

    def agrees(self, reference: "Word") -> bool:
        """Names letter by letter, other words by their stems."""
        return self.key == reference.key or (not reference.is_name and _stem(self.key) == _stem(reference.key))


Item = Value | Word


@dataclass(frozen=True)
class Text:
    """A text with its values, and the words that are no part of one."""

    text: str
    asked: date | None

    @cached_property
    def values(self) -> list[Value]:
        return list(values_in(self.text, self.asked))

    @cached_property
    def words(self) -> list[Word]:
        """Those that carry meaning."""
        taken = [(each.start, each.end) for each in self.values]
        found = []
        for match in _WORD.finditer(self.text):
            key = match[0].casefold().removesuffix("'s")
            key = _SAME.get(key, key)
            if key in _SMALL or key in _TITLES or any(start <= match.start() < end for start, end in taken):
                continue
            found.append(Word(key, match[0][0].isupper(), *match.span()))
        return found

    @property
    def items(self) -> list[Item]:
        return sorted([*self.values, *self.words], key=lambda each: each.start)

    def where(self, item: Item) -> list[Item]:
        """The places that say the same."""
        own: list[Value] | list[Word] = self.values if isinstance(item, Value) else self.words
        return [each for each in own if each.agrees(item)]  # type: ignore[arg-type] # both are of one kind

    def names(self) -> Iterator[list[Word]]:
        """Names of several words."""
        run: list[Word] = []
        for word in [*self.words, Word("", False, len(self.text) + 9, len(self.text) + 9)]:
            if run and not (word.is_name and re.fullmatch(r"[\s&.-]*", self.text[run[-1].end : word.start])):
                if len(run) > 1:
                    yield run
                run = []
            if word.is_name:
                run.append(word)

    def names_from(self, first: Word) -> list[Word]:
        """All the names of a list, as in "Ann Lee, Bo Ek and Cy Ay"."""
        found = [first]
        for word in self.words[self.words.index(first) + 1 :]:
            if not word.is_name or not _LIST.fullmatch(self.text[found[-1].end : word.start]):
                break
            found.append(word)
        return found

    def sentence(self, start: int) -> tuple[int, int]:
        """Where the sentence round a place begins and ends."""
        ends = [0, *(match.end() for match in _SENTENCE.finditer(self.text)), len(self.text)]
        return next((one, other) for one, other in pairwise(ends) if one <= start < other or other == len(self.text))


_STEMMER = stemmer("english")


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    stem: str = _STEMMER.stemWord(word)
    return stem
