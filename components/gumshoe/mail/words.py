"""Turn text into index terms: split it into tokens, normalize and stem them, and hash them.

A token is a run of letters and digits, as in FTS5's `unicode61`, with these differences:

- Combining marks and characters that do not show (soft hyphen, zero-width space) are part of the word around them.
- A number with grouped digits is one token: `1,250,000`, `1.250.000`, `1'250'000`, `12,50,000`, and with narrow or
  no-break spaces. Lists, dates, versions, decimals with another number of digits and IP addresses are not.
- The code of a currency and the number to which it is glued are two tokens: `USD1,250`, `1250EUR`.
- A sign that stands for letters or a number is a token: `㎏`, `①`.
- Each character of a script without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), and of Korean,
  is a token.

The first and the last token of a compound, such as `e-mail`, also have the term of the compound as one word: `email`.

A term is a number: the BLAKE2b digest, of 8 bytes, read as little-endian, of a kind and a normalized text in UTF-8. The
kinds are `w` for the stem of a word or the digits of a number, and `c` for one such character or two that follow each
other. `hash_term` computes terms of other kinds for other purposes.

Terms depend on the Unicode version of Python (`unicodedata.unidata_version`) in rare characters only.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.compounds import (
    MARK,
    MIN_JOINED,
    Compound,
    find_compounds,
    join_compounds,
    list_marks,
    mark_compounds,
)
from gumshoe.mail.stems import Stemmer

_MAX_CACHED = 200_000  # tokens; distinct tokens of half a million messages are many more, but most occur once
_MAX_CACHED_LENGTH = 64
_MAX_STEMMED_LENGTH = 32
_MAX_NORMALIZED_LENGTH = 256  # Unicode normalization takes quadratic time for many combining marks in a row
_MAX_GROUPS = 8

_SEPARATORS = {"ascii": ",.'", "any": ",.'\u2019\uff0c\u066c\u00a0\u2007\u2009\u202f"}
# UTF-8 bytes: ASCII letters become lower case, and all that is no letter, digit or `MARK` a space. Others stay.
_LOWER_OR_SPACE = bytes(
    code if chr(code).isalnum() or code > 127 or chr(code) == MARK else 32 for code in range(256)
).lower()
# UTF-8 bytes: digits become 0, letters a, and bytes of characters that may separate digits a comma.
_SHAPE = bytes(
    44 if code > 127 or code in b",.'" else 48 if chr(code).isdecimal() else 97 if chr(code).isalpha() else 32
    for code in range(256)
)
_ASCII_SEPARATORS = dict.fromkeys(map(ord, _SEPARATORS["ascii"] + " "))
_COMMON_MARKS = [mark.encode() for mark in "\u2018\u2019\u201c\u201d\u2013\u2014\u2022\u2026\u00a0"]
_GROUPED_SHAPES = (b"0,000", b"0,,000", b"0,,,000")
_GLUED_SHAPES = ((b"aaa0", 0), (b"0aaa", 1))  # and where the three letters begin
_CURRENCIES = frozenset(
    b"aud brl cad chf cny czk dkk eur gbp hkd huf inr jpy krw mxn nok nzd pln rmb rub sek sgd try usd zar".split()
)

# Scripts whose characters are tokens.
_CHARACTERS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7\u17dc"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97c\uac00-\ud7fb\uffa1-\uffdc"  # Hangul
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U00020000-\U0003ffff\u3100-\u312f\u31a0-\u31bf"  # Han, Bopomofo
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Hiragana, Katakana
)
# Includes all of these and all digits outside ASCII, but not Latin, Greek, Cyrillic, punctuation and emoji.
_OTHER_SCRIPTS = re.compile("[\u0660-\u1dff\u2e80-\ufdff\ufe30-\U0001efff\U0001fb00-\U0010ffff]")
_FIRST_CHARACTER = "\u0e00"
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97c\uac00-\ud7fb\uffa1-\uffdc]")
_CHARACTER = re.compile(f"[{_CHARACTERS}]")
# Vowels and final consonants of decomposed Hangul, and marks of narrow Katakana: part of the character before them.
_TRAILING = "\u1161-\u11ff\ud7b0-\ud7fb\uff9e\uff9f"
_FILLERS = "\u115f\u1160\u3164\uffa0"  # letters that do not show
_FRACTIONS = "\u00bc-\u00be\u2150-\u215f\u2189"
# Signs that stand for letters or a number, e.g. ①, Ⓐ, ㈱, ㎏ and №.
_SIGNS = "\u2116\u2121\u2460-\u24ff\u2776-\u2793\u3200-\u33ff"
_SIGN = re.compile(f"[{_SIGNS}]")
_NOT_LETTERS = re.compile(r"[\W_]+")
_SUPERSCRIPTS = "\u00b2\u00b3\u00b9\u2070\u2074\u2075\u2076\u2077\u2078\u2079"  # they may be a footnote's number

# Marks that only change the letter: of Latin, Greek, Cyrillic, Hebrew and Arabic script. Elsewhere they are vowels.
_OPTIONAL_MARKS = (
    *range(0x300, 0x370), *range(0x483, 0x488), *range(0x591, 0x5C8), *range(0x610, 0x61B), 0x640, *range(0x64B, 0x660),
    0x670, *range(0x6D6, 0x6EE), *range(0x1AB0, 0x1B00), *range(0x1DC0, 0x1E00), *range(0x20D0, 0x2100),
    *range(0xFE20, 0xFE30),
)  # fmt: skip
# Letters without a decomposition, as in CLDR's Latin-ASCII transform.
_LETTERS = dict(
    zip(
        "æðøþđħıĸłŋœŧƀɓƃƈɖɗƌɛƒɠɩɨƙƚɲƞƥƫƭʈʋƴƶ",
        ("ae", "d", "o", "th", "d", "h", "i", "q", "l", "n", "oe", "t", *"bbbcdddefgiiklnnptttvyz"),
        strict=True,
    )
)
# Letters of Arabic script that look alike and are written for each other: kaf, yeh, heh and teh marbuta. Lucene's
# normalizers of Arabic and Persian fold them, too.
_ALIKE = dict(zip("کڪیىۍېےۀہۂۃھةە", "ككيييييههههههه", strict=True))
# Two-letter spellings of letters that also lose their mark, e.g. Mueller and Muller for Müller.
_SPELLINGS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
# Such spellings in a word, but not in blue, does, issued, queue and guest: an umlaut hardly ever ends a word, or stands
# beside another vowel.
_SPELLED = re.compile(
    "(?<![aeiouq])(?:(?<!g)ue(?=[a-z])|(?<=g)ue(?=[ln])|[ao]e(?=[a-z])|aa(?=[a-z]))(?![aeiou]|[sd](?![a-z]))"
)
_MIN_SPELLED_LENGTH = 4
# A number with its unit, a version, and a number with what it counts, e.g. 5M, v2 and PO4711.
_NUMBER_IN_WORD = re.compile(r"([0-9]+)[a-z]{1,3}|v([0-9]+)|[a-z]{1,6}([0-9]{3,})")


def hash_term(kind: str, text: str) -> int:
    """Return the term of a text: 64 bits, the same in every process."""
    return int.from_bytes(_digest(kind, text), "little")


def _digest(kind: str, text: str) -> bytes:
    return blake2b((kind + text).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def find_tokens(text: str) -> Iterator[re.Match[str]]:
    """Find the tokens of a text in order. Their numbers, from 0, are the positions of terms."""
    return _choose_pattern(text).finditer(text)


def split_tokens(text: str) -> list[str]:
    """Return the tokens of a text in order, as they stand in it."""
    return _choose_pattern(text).findall(text)


def _choose_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of the tokens of a text: with currencies, which take most of its time, if there may be any."""
    data = text.encode("utf-8", "surrogatepass")
    has_currencies = _has_glued_currency(data, data.translate(_SHAPE))
    return (_ascii_pattern if text.isascii() else _pattern)(has_currencies)


def _grouped_number(separators: str, digit: str) -> str:
    """Return a pattern for a number with grouped digits that no digit with a separator precedes."""
    end = "(?!{0}?" + digit + ")"
    groups = [
        f"(?:{separator}{digit}{{3}}){{1,{_MAX_GROUPS}}}{end.format(separator)}"
        for separator in map(re.escape, separators)
    ]
    groups.append(f"(?:,{digit}{{2}}){{1,4}},{digit}{{3}}{end.format(',')}")  # as in India
    byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2})"
    not_address = rf"(?![0-9]{{0,2}}(?:\.{byte}){{3}}(?!\.?[0-9]))"
    some = f"[{re.escape(separators)}]"
    start = f"(?!0){digit}(?<!{digit}{some}{digit})(?={digit}{{0,2}}{some}{digit}{{2}}){not_address}"
    return f"{start}{digit}{{0,2}}(?:{'|'.join(groups)})"


@cache
def _ascii_number() -> re.Pattern[str]:
    return re.compile(f"(?<![0-9A-Za-z]){_grouped_number(_SEPARATORS['ascii'], '[0-9]')}")


@cache
def _ascii_pattern(has_currencies: bool) -> re.Pattern[str]:
    glued = f"{_glued_currency('0-9A-Za-z')}|" if has_currencies else ""
    return re.compile(f"{glued}[A-Za-z][0-9A-Za-z]*|{_grouped_number(_SEPARATORS['ascii'], '[0-9]')}|[0-9][0-9A-Za-z]*")


def _glued_currency(inside: str) -> str:
    """Return a pattern for a currency glued to a number, or the reverse. `inside` are the characters of tokens."""
    currency = f"(?i:{b'|'.join(sorted(_CURRENCIES)).decode()})"
    return f"(?<![{inside}])(?:{currency}(?=[0-9])|[0-9]+(?={currency}(?![{inside}])))"


@cache
def _ascii_glued() -> re.Pattern[str]:
    return re.compile(_glued_currency("0-9A-Za-z"))


@cache
def _pattern(has_currencies: bool) -> re.Pattern[str]:
    """Return the pattern of tokens in any script."""
    invisible = _write_ranges(_find_codes("Mn", "Mc", "Me", "Cf")) + _FILLERS
    other = f"_{_CHARACTERS}{_FILLERS}{_FRACTIONS}{_SIGNS}"
    glued = _glued_currency(rf"^\W{other}") + "|" if has_currencies else ""
    rest = rf"[^\W{other}]*(?:[{invisible}]+[^\W{other}]*)*"
    return re.compile(
        rf"{glued}"
        rf"[^\W\d{other}]{rest}"
        rf"|(?=\w)[{_CHARACTERS}](?<![{_FILLERS}])[{invisible}{_TRAILING}]*"
        rf"|{_grouped_number(_SEPARATORS['any'], chr(92) + 'd')}"
        rf"|\d{rest}"
        rf"|[{_FRACTIONS}{_SIGNS}]"
    )


@cache
def _codes_by_category() -> dict[str, list[int]]:
    """Return the code points of each Unicode category, below the planes for Chinese characters and in the last."""
    codes = (*range(128, 0x1FFFF), *range(0xE0000, 0xE01F0))
    found: dict[str, list[int]] = {}
    for code, category in zip(codes, map(unicodedata.category, map(chr, codes)), strict=True):
        found.setdefault(category, []).append(code)
    return found


def _find_codes(*categories: str) -> list[int]:
    """Return the code points of some Unicode categories, ascending."""
    by_category = _codes_by_category()
    return sorted(code for category in categories for code in by_category[category])


def _write_ranges(codes: Iterable[int]) -> str:
    """Return ascending code points as ranges for a character class. Single characters make it slow."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@cache
def _folding() -> dict[int, str | None]:
    """Return the translation of decomposed text in lower case to the text that is compared."""
    removed = (*_OPTIONAL_MARKS, *_find_codes("Cf"), *map(ord, _FILLERS + "".join(_SEPARATORS.values()) + " "))
    digits = {code: str(unicodedata.decimal(chr(code))) for code in _find_codes("Nd")}
    letters = {ord(letter): ascii_letters for letter, ascii_letters in _LETTERS.items()}
    alike = {ord(letter): other for letter, other in _ALIKE.items()}
    return {**digits, **letters, **alike, **dict.fromkeys(removed)}


def normalize_word(token: str) -> str:
    """Return the form of a token in which spellings of a word are equal, without stemming it.

    Compatibility forms (ligatures, full width), case, accents, digits of other scripts, the grouping of digits and
    invisible characters do not count. May be empty. Tokens of more than 256 characters only lose their case.
    """
    if len(token) > _MAX_NORMALIZED_LENGTH:
        return token.casefold()
    if token.isascii():  # mostly, and what follows needs tables that take a while to make
        return token.lower().translate(_ASCII_SEPARATORS)
    letters = unicodedata.normalize("NFKD", token)
    if _SIGN.match(token):  # e.g. (株) for ㈱
        letters = _NOT_LETTERS.sub("", letters)
    folded = letters.casefold().translate(_folding())
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """The terms of a text. A token has one, or several at the same position."""

    terms: NDArray[np.uint64]
    """[terms]: see the module."""
    positions: NDArray[np.uint32]
    """[terms]: number of the term's token in the text, ascending."""
    tokens: int
    """Number of tokens of the text."""


@dataclass(frozen=True, slots=True)
class QueryPhrase:
    """What a keyword searches for: the terms that a text has at these distances. Empty if it has no letter or digit."""

    terms: tuple[int, ...]
    offsets: tuple[int, ...]
    """Distance in tokens of each term from the first token of the keyword, ascending."""

    def __bool__(self) -> bool:
        return bool(self.terms)


class MailAnalyzer:
    """Turn texts and keywords into terms. Thread-safe; create one per process, because it remembers tokens.

    Args:
        language: ISO 639 code of the language whose words are stemmed. Stop words are kept.
        cached: maximum number of tokens to remember.
    """

    def __init__(self, language: str = "en", cached: int = _MAX_CACHED) -> None:
        self._digests = _DigestCache(Stemmer(language), cached)

    def analyze(self, text: str) -> TokenTerms:
        """Return the terms of a text."""
        digests = _look_up(text, self._digests)
        terms = np.frombuffer(b"".join(digests), "<u8")
        positions = np.arange(len(digests), dtype=np.uint32)
        if len(terms) != len(digests):
            positions = np.repeat(positions, [len(each) // 8 for each in digests])
        return TokenTerms(terms, positions, len(digests))

    def digest(self, token: str) -> bytes:
        """Return the terms of a token, or of two characters that follow each other, 8 bytes each."""
        return self._digests[token]

    def analyze_query(self, keyword: str) -> QueryPhrase:
        """Return what a keyword searches for: its words, or pairs of characters, in this order."""
        terms: dict[int, int] = {}
        for position, (match, pair) in enumerate(find_pairs(keyword)):
            digest = self._digests[pair or match[0]]
            if digest:
                terms[position - 1 if pair else position] = int.from_bytes(digest[:8], "little")
        return QueryPhrase(tuple(terms.values()), tuple(terms))

    def list_alternatives(self, keyword: str) -> list[QueryPhrase]:
        """Return what a keyword searches for, and the same with each compound as one word."""
        joined = join_compounds(keyword, lambda each: len(each.joined) >= MIN_JOINED)
        return [self.analyze_query(each) for each in dict.fromkeys([keyword, joined])]


class TermNumbers(dict[str, bytes]):
    """Number the terms of tokens from 0, so that the different terms of many texts are found without sorting them.

    Maps a token to the numbers of its terms, 4 bytes each. Not thread-safe.
    """

    def __init__(self, analyzer: MailAnalyzer) -> None:
        super().__init__()
        self._analyzer = analyzer
        self._numbers: dict[bytes, bytes] = {}
        self._terms = bytearray()

    @property
    def terms(self) -> int:
        """Number of terms that have a number."""
        return len(self._numbers)

    def __missing__(self, token: str) -> bytes:
        digests = self._analyzer.digest(token)
        numbers = b"".join([self.number(digests[start : start + 8]) for start in range(0, len(digests), 8)])
        if len(token) <= _MAX_CACHED_LENGTH:
            self[token] = numbers
        return numbers

    def number(self, digest: bytes) -> bytes:
        """Return the number, in 4 bytes, of a term, given as 8 bytes."""
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._numbers).to_bytes(4, "little")
            self._terms += digest
        return number

    def look_up(self, text: str) -> list[bytes]:
        """Return the numbers of each token of a text."""
        return _look_up(text, self)

    def collect(self, numbers: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the different terms of some occurrences, and the place [occurrences] of each occurrence among them."""
        used = np.zeros(self.terms, np.bool_)
        used[numbers] = True
        different = np.flatnonzero(used)
        places = np.empty(self.terms, np.uint32)
        places[different] = np.arange(len(different), dtype=np.uint32)
        return np.frombuffer(bytes(self._terms), "<u8")[different], places[numbers]


def _look_up(text: str, known: Mapping[str, bytes]) -> list[bytes]:
    """Return what is known of each token of a text.

    At the first one of a pair of characters is also what is known of the pair.
    """
    text = text.replace(MARK, " ")
    compounds = [each for each in find_compounds(text) if not _ascii_glued().search(text, each.start, each.end)]
    if text.isascii() or _OTHER_SCRIPTS.search(text) is None:
        return list(map(known.__getitem__, _split_lowered(text, compounds)))
    marks, found = list_marks(compounds), list[bytes]()
    for match, pair in find_pairs(text):
        if pair:
            found[-1] += known[pair]
        found.append(known[match[0] + marks.get(match.start(), "")])
    return found


def find_pairs(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each token, and together with the token before if both are characters and follow each other, or "".

    A line may end between them, but not in Korean, which has spaces between words.
    """
    before, end = "", -1
    for match in find_tokens(text):
        token = match[0]
        pair = ""
        if not is_character(token):
            before = ""
        else:
            start = match.start()
            if before and (start == end or (text[end:start] == "\n" and not _HANGUL.search(before[0] + token[0]))):
                pair = before + token
            before, end = token, match.end()
        yield match, pair


def is_character(token: str) -> bool:
    """Return True if a token is a character of a script without spaces between words, or of Korean."""
    return token >= _FIRST_CHARACTER and _CHARACTER.match(token) is not None


def list_spellings(token: str) -> list[str]:
    """Return the normalized forms of a token, the usual one first, e.g. `muller` and `mueller` for `Müller`."""
    forms = [normalize_word(token)]
    if not token.isascii() and len(token) <= _MAX_NORMALIZED_LENGTH and not _SIGN.match(token):
        composed = unicodedata.normalize("NFKC", token).casefold()
        forms += normalize_word(composed.translate(_SPELLINGS)), normalize_word(token.rstrip(_SUPERSCRIPTS))
    return [form for form in dict.fromkeys(forms) if form]


def _list_forms(token: str) -> list[str]:
    """Return the spellings of a token, and what else finds it: `muller` for `Mueller`, and `4711` for `PO4711`."""
    if not token.isascii():
        return list_spellings(token)
    word = normalize_word(token)
    if not word.isalpha():
        found = _NUMBER_IN_WORD.fullmatch(word)
        return [word, *filter(None, found.groups() if found else ())]
    if len(word) < _MIN_SPELLED_LENGTH or not ("ue" in word or "oe" in word or "ae" in word or "aa" in word):
        return [word]
    return list(dict.fromkeys((word, _SPELLED.sub(lambda found: found[0][0], word))))


def _split_lowered(text: str, compounds: Sequence[Compound]) -> list[str]:
    """Return the tokens of a text that `_OTHER_SCRIPTS` does not match, several times as fast as the pattern.

    ASCII tokens are in lower case, numbers without separators, and those of compounds have marks.
    """
    marked = mark_compounds(text, compounds) if compounds else text
    data = marked.encode("utf-8", "surrogatepass")
    shape = data.translate(_SHAPE)
    is_ascii = text.isascii()
    if _has_glued_currency(data, shape):
        if not is_ascii:
            return _split_marked(text, compounds)
        data = _ascii_glued().sub(r"\g<0> ", marked).encode()
    if any(grouped in shape for grouped in _GROUPED_SHAPES[: 1 if is_ascii else None]):
        if not is_ascii:
            return _split_marked(text, compounds)
        data = _ascii_number().sub(_ungroup, data.decode()).encode()
    if not is_ascii:
        for mark in _COMMON_MARKS:
            data = data.replace(mark, b" ")
    lowered = data.translate(_LOWER_OR_SPACE).decode("utf-8", "surrogatepass")
    if lowered.isascii():
        return lowered.split()
    find = _pattern(False).findall
    return [token for word in lowered.split() for token in ((word,) if word.isascii() else find(word))]


def _split_marked(text: str, compounds: Sequence[Compound]) -> list[str]:
    if not compounds:
        return split_tokens(text)
    marks = list_marks(compounds)
    return [match[0] + marks.get(match.start(), "") for match in find_tokens(text)]


def _has_glued_currency(data: bytes, shape: bytes) -> bool:
    """Return True if the code of a currency may be glued to a number in a text, given as UTF-8 and as its shape."""
    for glued, start in _GLUED_SHAPES:
        place = shape.find(glued)
        while place >= 0:
            if data[place + start : place + start + 3].lower() in _CURRENCIES:
                return True
            place = shape.find(glued, place + 1)
    return False


def _ungroup(number: re.Match[str]) -> str:
    return "".join(filter(str.isdecimal, number[0])) + " "


class _DigestCache(dict[str, bytes]):
    """Digests of the terms of each token, 8 bytes a term, or of two characters. Computed when needed."""

    def __init__(self, stemmer: Stemmer, cached: int) -> None:
        super().__init__()
        self._stemmer, self._cached = stemmer, cached

    def __missing__(self, token: str) -> bytes:
        digests = self._digest(token)
        if len(token) <= _MAX_CACHED_LENGTH:
            if len(self) >= self._cached:
                self.clear()
            self[token] = digests
        return digests

    def _digest(self, token: str) -> bytes:
        if MARK in token:
            token, *parts = token.split(MARK)
            return self[token] + _digest("w", self._stem(normalize_word("".join(parts))))
        if _CHARACTER.match(token) or _SIGN.match(token):
            word = normalize_word(token)
            return _digest("c" if _CHARACTER.match(word) else "w", word) if word else b""
        return b"".join(_digest("w", self._stem(form)) for form in _list_forms(token))

    def _stem(self, word: str) -> str:
        return self._stemmer.stem(word) if word.isalpha() and len(word) <= _MAX_STEMMED_LENGTH else word
