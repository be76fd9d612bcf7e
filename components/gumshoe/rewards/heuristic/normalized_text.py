"""Prepare texts for comparison: find their values, names and content words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise

from snowballstemmer import stemmer

from gumshoe.mail.stems import remove_accents
from gumshoe.rewards.heuristic.expected import Expected
from gumshoe.rewards.heuristic.person_names import is_nickname
from gumshoe.rewards.heuristic.values import Value, find_values

_WORD = re.compile(r"[^\W\d_]+(?:['&][^\W\d_]+)*")
_SENTENCE = re.compile(r"[.!?;:](?=\s|$)")
_STOP_WORDS = frozenset(
    "a about all also am an and any are as at be because been being but by due did do does for from "  # noqa: SIM905
    "had has have he her here him his how i in into is it it's its me my now of on or our she so "
    "some than that the their them then there they this to us was we were what when where which who "
    "whom whose why will with would you your".split()
)
_ABBREVIATIONS = {
    "rd": "road",
    "st": "street",
    "ave": "avenue",
    "blvd": "boulevard",
    "sq": "square",
    "conf": "conference",
}
_ABBREVIATIONS |= {"ste": "suite", "pkwy": "parkway", "hwy": "highway", "ln": "lane", "ctr": "center", "fl": "floor"}
_ABBREVIATIONS |= {"bldg": "building", "mt": "mount", "ft": "fort", "univ": "university", "assoc": "associates"}
_ABBREVIATIONS |= {"rm": "room", "dept": "department", "apt": "apartment", "intl": "international"}
_IGNORED = _STOP_WORDS | {"mr", "mrs", "ms", "miss", "sir", "madam", "dr", "prof", "phd", "esq", "jr"}
_ACRONYMS = frozenset({"us", "it", "who", "is", "ms"})  # other stop words in capitals are stressed words
LABELS = (
    "annex|appendix|article|building|category|chapter|class|exhibit|factor|grade|group|hall|hepatitis|influenza|"
    "level|option|part|phase|plan|room|schedule|section|series|stage|team|terminal|type|unit|version|vitamin|wing"
)
"""Nouns before a letter or a number that names one of them."""
_LABELLED = re.compile(rf"\b(?:{LABELS}) $", re.I)
_NAME_FOLLOWS = re.compile(r" (?=[^\W\d_])[^a-z\W]")
_NAME_SEPARATOR = re.compile(r"(?:[\s,.;&|-]|\b(?:and|the|mr|mrs|ms|dr)\b)*", re.I)


_ANYTHING = Expected()


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text."""

    key: str
    is_name: bool
    start: int
    end: int
    is_given: bool = False
    """A name that may be a given name: alone, before another name, or after a family name and a comma."""

    def agrees(self, reference: "Word") -> bool:
        """Return True if it matches a word of the reference: names by spelling or nickname, other words by stem."""
        if self.key == reference.key:
            return True
        if reference.is_name:
            return reference.is_given and (self.is_given or not self.is_name) and is_nickname(self.key, reference.key)
        return stem_of(self.key) == stem_of(reference.key)


Item = Value | Word


@dataclass(frozen=True)
class NormalizedText:
    """A text with its values, and the content words outside of them."""

    text: str
    asked: date | None
    expected: Expected = _ANYTHING

    @cached_property
    def values(self) -> list[Value]:
        return list(find_values(self.text, self.asked, self.expected))

    @cached_property
    def words(self) -> list[Word]:
        """Content words, without accents. Titles and initials between names are left out.

        Stop words that are acronyms or labels, such as "US" and the letter of "grade A", are content words.
        """
        taken = [(each.start, each.end) for each in self.values]
        found: list[Word] = []
        for match in _WORD.finditer(self.text):
            key = remove_accents(match[0].casefold().removesuffix("'s"))
            key = _ABBREVIATIONS.get(key, key)
            is_name = match[0][0].isupper()
            after_name = bool(found) and found[-1].is_name and self.text[found[-1].end : match.start()] == " "
            before_name = _NAME_FOLLOWS.match(self.text, match.end()) is not None
            is_labelled = is_name and self._is_label(match)
            is_initial = is_name and len(key) == 1 and self.text.startswith(".", match.end()) and not is_labelled
            is_will = key == "will" and before_name and not (match.start() == 0 and self.text.endswith("?"))
            is_part = is_name and ((len(key) == 1 and after_name) or is_will)  # Option A
            if (
                is_initial
                or (key in _IGNORED and not is_part and not is_labelled)
                or any(start <= match.start() < end for start, end in taken)
            ):
                continue
            found.append(Word(key, is_name, *match.span()))
        return [self._with_given(found, place) for place in range(len(found))]

    def _is_label(self, word: re.Match[str]) -> bool:
        """Return True if a word in capitals is an acronym spelled as a stop word, or a letter as in "grade A".

        In a text of capitals only, nothing is an acronym unless the text has no other word.
        """
        is_alone = self.text.strip(" .!?") == word[0]
        if len(word[0]) > 1:
            is_acronym = word[0].isupper() and word[0].casefold() in _ACRONYMS
            return is_acronym and (is_alone or not self.text.isupper())
        return (is_alone and word[0] == "A") or _LABELLED.search(self.text, 0, word.start()) is not None

    def _with_given(self, words: list[Word], place: int) -> Word:
        """Return a word, marked as a given name if it may be one."""
        word = words[place]
        if not word.is_name:
            return word
        follows = place > 0 and words[place - 1].is_name and self._is_one_name(words[place - 1], word)
        precedes = place + 1 < len(words) and words[place + 1].is_name and self._is_one_name(word, words[place + 1])
        return replace(word, is_given=precedes or not follows)

    def _is_one_name(self, first: Word, second: Word) -> bool:
        return re.fullmatch(r"(?:[\s-]|\b[A-Z]\.)*", self.text[first.end : second.start]) is not None

    def has_initial_of(self, name: Word, others: list[Word]) -> bool:
        """Return True if the text has the initial of a given name, before one of the other names: "J. Skilling"."""
        pattern = rf"\b{re.escape(name.key[0])}\b\.?(?:\s?[a-z]\.)? ?(?=[a-z]{{2}})"
        places = {match.end() for match in re.finditer(pattern, self.text, re.I)}
        return any(word.start in places and any(word.agrees(other) for other in others) for word in self.words)

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
_SHORTEST_PAST = 4  # letters
_FORMS = (
    "arise arose arisen / bear bore borne / beat beaten / become became / begin began begun / bend bent / bind "
    "bound / bite bit bitten / bleed bled / blow blew blown / break broke broken / bring brought / build built / "
    "burn burnt / buy bought / catch caught / choose chose chosen / cling clung / come came / cost / deal dealt / "
    "dig dug / do did done / draw drew drawn / drink drank drunk / drive drove driven / eat ate eaten / fall fell "
    "fallen / feed fed / feel felt / fight fought / find found / flee fled / fly flew flown / forbid forbade "
    "forbidden / forget forgot forgotten / forgive forgave forgiven / freeze froze frozen / get got gotten / give "
    "gave given / go went gone / grow grew grown / hang hung / hear heard / hide hid hidden / hold held / keep kept "
    "/ know knew known / lay laid / lead led / leave left / lend lent / light lit / lose lost / make made / mean "
    "meant / meet met / pay paid / ride rode ridden / ring rang rung / rise rose risen / run ran / say said / see "
    "saw seen / seek sought / sell sold / send sent / shake shook shaken / shine shone / shoot shot / show shown / "
    "shrink shrank shrunk / sing sang sung / sink sank sunk / sit sat / sleep slept / slide slid / speak spoke "
    "spoken / spend spent / spin spun / stand stood / steal stole stolen / stick stuck / strike struck / swear "
    "swore sworn / sweep swept / swim swam swum / swing swung / take took taken / teach taught / tear tore torn / "
    "tell told / think thought / throw threw thrown / understand understood / wake woke woken / wear wore worn / "
    "win won / write wrote written "
)
_IRREGULAR = {form: verb for verb, *forms in map(str.split, _FORMS.split("/")) for form in forms}


def is_past(word: str) -> bool:
    """Return True if a word in lower case may be a verb in the past."""
    return word in _IRREGULAR or (word.endswith("ed") and len(word) > _SHORTEST_PAST)


@lru_cache(maxsize=65536)
def stem_of(word: str) -> str:
    """Return the stem of an English word in lower case."""
    stem: str = _STEMMER.stemWord(_IRREGULAR.get(word, word))
    return stem
