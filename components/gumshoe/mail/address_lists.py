"""Parse lists of addresses, in headers and in records.

Mail is written by strangers, so an address counts only where a mail server would look for it. Text in a display name, a
comment, the name of a group, or behind a complete address is never an address. If a list can be read in more than one
way, its addresses are doubtful: they are shown, but give access to nobody.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gumshoe.mail.headers import decode_header_text, repair_bytes
from gumshoe.mail.message import clean, clean_line, normalize_address

_MAX_LENGTH = 1 << 20  # characters of one list; the rest is ignored
_MAX_CACHED = 300  # characters of a list, or of an address, that is kept in the cache
_MAX_NAME_PIECES = 3  # Smith, John, Sales <john@example.com>; titles do not count
_TITLES = frozenset(
    re.split(
        " ",
        "jr sr ii iii iv phd dphil edd md dds dvm jd llb llm esq cpa cfa cfp mba mph rn bsn msn msw bsc msc pmp cissp",
    )
)

_LOCAL = r"[^\s@<>()\[\],;:\\\"]++"
_DOMAIN = r"(?:[^\s@<>()\[\],;:\\\"']++|\[[^\s@<>()\[\]\\\"]++\])"
_ADDRESS = re.compile(rf"{_LOCAL}@{_DOMAIN}")
_QUOTED_LOCAL = re.compile(rf'"((?:[^"\\]|\\.)*+)"(@{_DOMAIN})')
_ATOM = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*+")

# The common entries: ann@example.com, Ann Lee <ann@example.com>, "Lee, Ann" <ann@example.com>
_PLAIN = r"[A-Za-z0-9!#$%&*+/=^_`{|}~.-]++@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)*+"
_COMMON = re.compile(rf"(?:({_PLAIN})|(?:\"([^\"\\@?]*+)\"|([\w .&/'-]*+)) ?<({_PLAIN})>) ?(?:, ?|$)")
_TOKEN = re.compile(
    r"(?P<space>\s++)"
    r"|(?P<encoded>=\?[\w.*+:-]{1,80}\?[bq]\?[^?()<>\"\[\]\\]{0,2000}\?=)"
    r"|(?P<quoted>\"(?:[^\"\\]|\\.)*+\")"
    r"|(?P<single>'[^'<>()\"\[\]\\@]{0,200}'(?=\s{0,9}<))"
    r"|(?P<angle><(?:[^<>\"]|\"(?:[^\"\\]|\\.)*+\")*+>)"
    r"|(?P<mark>[,;:])"
    r"|(?P<word>(?:[^\s,;:<>()\"\[\]]|\[[^\[\]<>()\"\\]*+\])++)",
    re.S | re.I | re.A,  # other spaces than those of ASCII are part of a word
)
_SPACES = re.compile(r"[ \t\n]++")
_NOTES_NAME = re.compile(r"[^/@]++(?:/[^/@]++)++@[^.@]++")  # Ann Lee/Sales/ACME@ACME
_QUOTED_PART = re.compile(r"'[^']++' \w")  # 'Ann Lee' via Sales
_UNSTABLE = re.compile("[\x7f-\xa0\ufffd]")  # controls, and characters that may have been some
# An address that a mail server delivers to as it is written: no quotation, and a domain that exists in DNS. Dots may be
# anywhere in the local part, since some providers have given out such addresses.
_HOST = r"[\w-]++"
_DELIVERABLE = re.compile(rf"(?!'){_LOCAL}@(?:{_HOST}(?:\.{_HOST})*+|\[[!-&(-Z^-~]++\])", re.A)
_STRAY = re.compile(r"[\[\])>]|<(?=[^<>\"]*+<)")  # a bracket without a partner, which leaves the rest readable
_CLOSING_APOSTROPHE = re.compile(r"'(?=[\s,;<]|$)")
_PARENTHESIS = re.compile(r"[()]|\\.", re.S)
_LITERAL = re.compile(r"\[[^\[\]\\]*+\]")
_ROUTE = re.compile(rf"@{_HOST}(?:\.{_HOST})*+(?: ?, ?@{_HOST}(?:\.{_HOST})*+)*+ ?:", re.A)
_SEPARATORS = re.compile(r"[\s<>()\",;:\[\]\\]+")
_SCHEMES = {"mailto", "smtp"}  # as Outlook writes them in front of addresses
_NO_DOTS = str.maketrans("", "", ". ")
_PART_SEPARATORS = re.compile(r"[,;]")


class Mailbox(NamedTuple):
    """One entry of a list of addresses."""

    name: str
    address: str
    """Address in normal form. Empty if the entry has none."""
    is_doubtful: bool = False
    """True if the entry can be read in another way."""


def parse_address_headers(values: list[str]) -> list[Mailbox]:
    """Return the entries of all address headers of one kind, as the parser of messages stores them."""
    return [entry for value in values for entry in parse_addresses(repair_bytes(value))]


def parse_addresses(text: str) -> tuple[Mailbox, ...]:
    """Return the entries of an address list. An empty group has none.

    >>> parse_addresses('Meyer, Greg <greg@example.com>; "eve@example.com" <dave@example.com>')
    (Mailbox(name='Meyer, Greg', address='greg@example.com', is_doubtful=False), Mailbox(name='eve@example.com', ...
    """
    if len(text) > _MAX_LENGTH:
        text = text[:_MAX_LENGTH].rpartition(",")[0]  # a cut address may be that of somebody else
    return _parse_cached(text) if len(text) <= _MAX_CACHED else _parse(text)


def _parse(text: str) -> tuple[Mailbox, ...]:
    entries: list[Mailbox] = []
    line = _SPACES.sub(" ", clean(text)).strip(" ")
    position, end = 0, len(line)
    while position < end:
        common = _COMMON.match(line, position)
        if common is None:
            return tuple(entry for entry in _ListReader(line).read() if entry.name or entry.address)
        bare, quoted, plain, bracketed = common.groups()
        name = "" if bare else quoted or plain or ""
        entries.append(Mailbox(_unquote(clean_line(name)), _normalize(bare or bracketed)))
        position = common.end()
    return tuple(entries)


_parse_cached = lru_cache(1 << 14)(_parse)  # the same few people write to each other


class _Part(NamedTuple):
    """A piece of an entry: a word, an encoded word, a quoted text, a comment, or a text in angle brackets."""

    kind: str
    text: str
    is_glued: bool
    """True if no space stands before it."""


class _ListReader:
    """Reads one list of addresses, from left to right, in time linear in its length."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._last_semicolon = line.rfind(";")
        self._last_apostrophe = max((found.start() for found in _CLOSING_APOSTROPHE.finditer(line)), default=-1)
        self._is_in_apostrophes = False
        self._parts: list[_Part] = []
        self._names: list[list[_Part]] = []  # entries without an address: perhaps the beginning of `Meyer, Greg <...>`
        self._entries: list[Mailbox] = []
        self._has_stray = False
        self._open_group: int | None = None  # number of entries before a group that has not ended
        self._has_group = False

    def read(self) -> list[Mailbox]:
        if not self._read_tokens():
            return list(_read_loosely(self._line))
        self._end_entry()
        self._end_names()
        if self._open_group is not None:  # the semicolon that was to end it stands in a quotation or a comment
            self._entries[self._open_group :] = map(_doubt, self._entries[self._open_group :])
        if self._has_stray and not self._has_one_reading():
            return [*map(_doubt, self._entries)]
        return self._entries

    def _has_one_reading(self) -> bool:
        """Return True if a stray bracket changes nothing: the only address of the list stands in angle brackets."""
        return self._line.count("@") == 1 and bool(_ONE_IN_BRACKETS.fullmatch(self._line))

    def _read_tokens(self) -> bool:
        """Split the line into entries. Return False if a quotation, a comment or a bracket has no end."""
        position, end, is_glued = 0, len(self._line), False
        while position < end:
            token = _TOKEN.match(self._line, position)
            kind = token.lastgroup if token else None
            if token is None:
                kind, next_position = self._read_bracket(position)
                if not kind:
                    return False
                text = self._line[position:next_position]
            else:
                text, next_position = token[0], token.end()
            if kind == "mark":
                self._read_mark(text, position, is_glued)
            elif kind and kind != "space":
                if kind in {"encoded", "word"} and _hides_address(text):
                    return False
                if kind == "angle" and not _is_closed(text):
                    return False
                if kind == "word":
                    self._note_apostrophe(text, position)
                self._parts.append(_Part(kind, text, is_glued))
            is_glued = kind != "space"
            position = next_position
        return True

    def _read_bracket(self, position: int) -> tuple[str, int]:
        """Return kind and end of a comment or of a stray bracket. The kind is empty if the line is broken here."""
        if self._line[position] == "(":
            end = _find_comment_end(self._line, position)
            return ("comment", end) if end else ("", 0)
        if _STRAY.match(self._line, position):
            self._has_stray = True
            return "stray", position + 1
        return "", 0

    def _note_apostrophe(self, word: str, position: int) -> None:
        """Keep track of names such as 'Lee, Ann', which are no quotations to a mail server, but to people."""
        if not self._parts and word.startswith("'") and position < self._last_apostrophe:
            self._is_in_apostrophes = True
        if len(word) > 1 and word.endswith("'"):
            self._is_in_apostrophes = False

    def _read_mark(self, mark: str, position: int, is_glued: bool) -> None:
        parts = self._parts
        if mark == ":":
            if len(parts) == 1 and parts[0].kind == "word" and parts[0].text.lower() == "mailto":
                parts.pop()
            elif position > self._last_semicolon:  # no group: RE: Ann <ann@example.com>
                parts.append(_Part("colon", ":", is_glued))
            else:  # the name of a group
                parts.clear()
                self._end_names()
                self._open_group = len(self._entries)
                self._has_group = True
            return
        self._end_entry(mark == ",")
        if mark == ";":
            self._end_names()
            self._open_group = None

    def _end_entry(self, may_continue: bool = False) -> None:
        parts, self._parts = self._parts, []
        if not parts or parts[-1].kind == "colon":  # the name of a group without members
            return
        if self._has_group and all(part.kind == "comment" for part in parts):  # (no To-header on input)
            return
        if any(part.kind == "angle" for part in parts):
            before = [part for name in self._names for part in (*name, _Part("comma", ",", True))]
            self._names.clear()
            self._add(_read_bracketed(before + parts))
            return
        if may_continue and "@" not in (text := _join(parts)):
            if self._names and text.translate(_NO_DOTS).lower() in _TITLES:
                self._names[-1] += [_Part("comma", ",", True), *parts]
                return
            self._names.append(parts)
            if len(self._names) >= _MAX_NAME_PIECES:
                self._entries.append(_read_bare(self._names.pop(0)))
            return
        self._end_names()
        self._add(_read_bare(parts))

    def _add(self, entry: Mailbox) -> None:
        self._entries.append(_doubt(entry) if self._is_in_apostrophes else entry)

    def _end_names(self) -> None:
        self._entries += map(_read_bare, self._names)
        self._names.clear()


_ONE_IN_BRACKETS = re.compile(rf"[^@]*<\s*(?:mailto:)?{_LOCAL}@{_DOMAIN}\s*>[^@]*", re.I)


def _normalize(address: str) -> str:
    return _normalize_cached(address) if len(address) <= _MAX_CACHED else normalize_address(address)


_normalize_cached = lru_cache(1 << 16)(normalize_address)  # a few people write most mail


def _doubt(entry: Mailbox) -> Mailbox:
    return entry._replace(is_doubtful=bool(entry.address))


def _find_comment_end(line: str, start: int) -> int:
    """Return the index behind the comment that begins at `start`, or 0 if it has no end."""
    depth = 0
    for found in _PARENTHESIS.finditer(line, start):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return 0


def _is_closed(text: str) -> bool:
    """Return True if comments and square brackets in angle brackets end there. Otherwise they may hide what follows."""
    if text.count("[") != len(_LITERAL.findall(text)):
        return False
    position = text.find("(")
    while position >= 0:
        position = _find_comment_end(text, position)
        if not position:
            return False
        position = text.find("(", position)
    return True


def _hides_address(text: str) -> bool:
    """Return True if an address and a separator stand in an encoded word or in square brackets of a name."""
    return "@" in text and any(mark in text for mark in ',;<>()"') and not _ADDRESS.fullmatch(text)


def _read_bracketed(parts: list[_Part]) -> Mailbox:
    """Read an entry with an address in angle brackets. The text before it is its name.

    It is doubtful if more than comments stands behind the brackets.
    """
    index = next(index for index, part in enumerate(parts) if part.kind == "angle")
    address, is_doubtful = _read_angle(parts[index].text[1:-1])
    name = _join(parts[:index] + parts[index + 1 :])
    if not address and not name:
        name = clean_line(parts[index].text.strip("<> "))
    has_more = any(part.kind not in {"comment", "stray"} for part in parts[index + 1 :])
    return _to_mailbox(name, address, is_doubtful or has_more)


def _to_mailbox(name: str, address: str, is_doubtful: bool = False) -> Mailbox:
    """Return an entry. It is doubtful if the normal form of its address is not deliverable as it is written."""
    normal = _normalize(address)
    is_exact = _DELIVERABLE.fullmatch(normal) and not _UNSTABLE.search(normal)
    return Mailbox(name, normal, bool(normal) and (is_doubtful or not is_exact))


def _read_angle(content: str) -> tuple[str, bool]:
    """Return the address in angle brackets and True if it is doubtful. RFC 5322 allows a route and comments there."""
    text = content.strip(" ")
    if text.isascii() and _ADDRESS.fullmatch(text) and "'" not in text:
        return text, False
    if "(" in text:
        text = re.sub(r"\([^()]*+\)", " ", text)
    text = re.sub(r" ?([.@]) ?", r"\1", _SPACES.sub(" ", text).strip(" "))
    if text[:7].lower() == "mailto:":
        text = text[7:].lstrip()
    text = _ROUTE.sub("", text, count=1) if text.startswith("@") else text
    if "@" not in text:
        return "", False
    address = _read_address(text)
    if address:
        return address, False
    return next((entry.address for entry in _read_loosely(text) if entry.address), ""), True


def _read_address(text: str) -> str:
    """Return an address as written, without quotation marks that it does not need, or "" if it is not one."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]
    if _ADDRESS.fullmatch(text):
        return "" if text.startswith("'") else text
    quoted = _QUOTED_LOCAL.fullmatch(text)
    if quoted is None:
        return ""
    is_plain = _ATOM.fullmatch(quoted[1]) and not quoted[1].startswith("'")  # quotes are stripped from the ends
    return quoted[1] + quoted[2] if is_plain else text


def _read_bare(parts: list[_Part]) -> Mailbox:
    """Read an entry without angle brackets: an address or a name. An address among other words is doubtful."""
    words = [part for part in parts if part.kind != "comment"]
    if not words:
        return Mailbox(_join(parts), "")
    holders = [index for index, part in enumerate(words) if part.kind == "word" and "@" in part.text]
    name = _join(parts)
    if len(words) > 1 and _NOTES_NAME.fullmatch(name):
        return Mailbox(name, "")
    if not holders:
        return _find_loosely(name)
    begin = parts.index(words[0])
    has_comment_between = any(part.kind == "comment" for part in parts[begin : parts.index(words[-1])])
    address = _read_address(_join_address(words))
    if address and not has_comment_between:
        return _to_mailbox(_join([part for part in parts if part.kind == "comment"]), address)
    for index in holders:
        if address := _read_address(words[index].text):
            others = [part for part in parts if part is not words[index]]
            return _to_mailbox(_join(others), address, is_doubtful=True)
    return _find_loosely(name)


def _find_loosely(name: str) -> Mailbox:
    """Return an address in a name, e.g. `Ann [mailto:ann@example.com]`, which is doubtful, or the name alone."""
    found = next((entry for entry in _read_loosely(name) if entry.address), None) if "@" in name else None
    return found or Mailbox(name, "")


def _join_address(words: list[_Part]) -> str:
    """Return the text of an address, which may have spaces around its @ but nowhere else."""
    text = "".join(part.text for part in words)
    if len(words) == 1 or (len(words) == 2 and words[0].kind == "quoted" and words[1].is_glued):
        return text
    spaced = " ".join(part.text for part in words)
    return text if text.count("@") == 1 and re.sub(" ?@ ?", "@", spaced) == text else ""


def _join(parts: list[_Part]) -> str:
    """Return the text of a name, decoded and on one line."""
    if len(parts) == 1 and parts[0].kind == "comment":
        text = parts[0].text[1:-1]
    else:
        text = "".join(
            ("" if part.is_glued else " ")
            + (re.sub(r"\\(.)", r"\1", part.text[1:-1]) if part.kind in {"quoted", "single"} else part.text)
            for part in parts
            if part.text not in {"<", ">"}
        )
    return _unquote(clean_line(decode_header_text(text)))


def _unquote(name: str) -> str:
    """Return a name without quotation marks around it."""
    return name.strip('"') if _QUOTED_PART.match(name) else name.strip("'\"")


def _read_loosely(text: str) -> Iterator[Mailbox]:
    """Yield the entries of a list whose quotation marks or brackets do not match. All of them are doubtful."""
    for part in _PART_SEPARATORS.split(text):
        words = [word for word in _SEPARATORS.split(part) if word and word.lower() not in _SCHEMES]
        address = next((word for word in words if _ADDRESS.fullmatch(word)), "")
        name = " ".join(word for word in words if word is not address)
        if address or name:
            yield Mailbox(_unquote(clean_line(decode_header_text(name))), _normalize(address), True)
