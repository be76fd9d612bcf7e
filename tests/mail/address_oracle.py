"""A second reader of address lists: what a mail server would deliver to, by the grammar of RFC 5322 and RFC 6532.

It shares no code with `gumshoe.mail.address_lists`. Obsolete forms (routes, comments and spaces around dots, empty
entries) are read. Beyond the grammar it tolerates only what cannot change who gets a message: any text as the name
before an address in angle brackets, `;` as a separator, dots anywhere in a local part, `mailto:`, and apostrophes
around a whole address. A list with a single `@`, whose address is in angle brackets, is delivered to it, whatever else
is wrong. Any other entry that is broken is delivered to nobody, and neither is a list with a quotation, comment or
square bracket that has no end.

Python's own parser is no measure. `email.utils.getaddresses` reads an unquoted address in a display name as another
recipient and drops whole headers in its strict mode; `email.policy.default` accepts an address behind one in angle
brackets, a local part without a domain, and text behind an unfinished quotation.
"""

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import idna

_ATEXT = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~\-\u00a1-\ud7ff\ue000-\ufffc\U00010000-\U0010ffff"
_LEXEMES = re.compile(
    rf"(?P<space>[ \t\r\n]+)|(?P<atom>[{_ATEXT}]+)|(?P<quoted>\"(?:[^\"\\]|\\.)*\")|(?P<literal>\[[^\[\]\\]*\])"
    r"|(?P<special>[<>,;:@.])|(?P<bad>.)",
    re.S,
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\ud800-\udfff\ufffd\u2028\u2029]")
_ONLY_ADDRESS = re.compile(
    rf"[^@\"]*<[ \t\r\n]*(?:mailto:)?([{_ATEXT}.]+@(?:[{_ATEXT}.]+|\[[0-9.]+\]))[ \t\r\n]*>[^@\"]*", re.I
)


class Lexeme(NamedTuple):
    kind: str
    text: str


class BrokenListError(Exception):
    """The list has no reading."""


def deliverable(text: str) -> set[str]:
    """Return the addresses in an unfolded address list that a mail server would deliver to, in normal form."""
    try:
        lexemes = [*_scan(text)]
        found = {address for entry in _split(lexemes) if (address := _read_entry(entry))}
    except BrokenListError:
        found = set()
    lone = _ONLY_ADDRESS.fullmatch(_QUOTED.sub("", text)) if text.count("@") == 1 and not found else None
    return {normal_form(lone[1])} - {""} if lone and not lone[1].startswith("'") else found


def normal_form(address: str) -> str:
    """Return an address for comparison. Nothing is stripped."""
    local, _, domain = "\u212a".join(part.lower() for part in address.split("\u212a")).rpartition("@")
    if not domain.isascii():
        try:
            domain = idna.encode(domain, strict=True).decode()
        except ValueError:
            return ""
    return f"{local}@{domain}"


def _scan(text: str) -> Iterator[Lexeme]:
    position = 0
    while position < len(text):
        if text[position] == "(":
            position = _comment_end(text, position)
            yield Lexeme("comment", "")
            continue
        found = _LEXEMES.match(text, position)
        assert found is not None
        position = found.end()
        kind = str(found.lastgroup)
        if kind == "bad" and found[0] in '"([':
            raise BrokenListError
        if kind in {"quoted", "literal"} and _CONTROL.search(found[0]):
            kind = "bad"
        yield Lexeme(found[0] if kind == "special" else kind, found[0])


def _comment_end(text: str, position: int) -> int:
    depth = 0
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        depth += {"(": 1, ")": -1}.get(text[position : position + 1], 0)
        position += 1
        if not depth:
            return position
    raise BrokenListError


def _split(lexemes: list[Lexeme]) -> Iterator[list[Lexeme]]:
    """Yield the entries of a list. Names of groups are left out."""
    entry: list[Lexeme] = []
    in_angle = False
    for number, each in enumerate(lexemes):
        if each.kind == "<":
            in_angle = True
        elif each.kind == ">":
            in_angle = False
        if not in_angle and each.kind in {",", ";"}:
            yield entry
            entry = []
        elif not in_angle and each.kind == ":" and _ends_group(lexemes[number:]) and not _is_mailto(entry):
            entry = []
        else:
            entry.append(each)
    yield entry


def _ends_group(lexemes: list[Lexeme]) -> bool:
    return any(each.kind == ";" for each in lexemes)


def _is_mailto(entry: list[Lexeme]) -> bool:
    return [each.text.lower() for each in _strip(entry)] == ["mailto"]


def _strip(lexemes: list[Lexeme]) -> list[Lexeme]:
    """Leave out comments and spaces at both ends."""
    ignored = {"space", "comment"}
    first = sum(1 for _ in takewhile(lambda each: each.kind in ignored, lexemes))
    last = sum(1 for _ in takewhile(lambda each: each.kind in ignored, reversed(lexemes)))
    return lexemes[first : max(len(lexemes) - last, first)]


def _read_entry(lexemes: list[Lexeme]) -> str:
    entry = _strip(lexemes)
    kinds = [each.kind for each in entry]
    if "<" not in kinds and ">" not in kinds:
        return _read_address(entry)
    if kinds.count("<") != 1 or kinds.count(">") != 1 or kinds[-1] != ">":
        return ""
    inside = _strip(entry[kinds.index("<") + 1 : -1])
    if inside and inside[0].kind == "@":  # a route
        colon = next((number for number, each in enumerate(inside) if each.kind == ":"), None)
        if colon is None or not all(_is_domain(hop) for hop in _hops(inside[:colon])):
            return ""
        inside = _strip(inside[colon + 1 :])
    return _read_address(inside)


def _hops(route: list[Lexeme]) -> Iterator[list[Lexeme]]:
    hop: list[Lexeme] = []
    for each in [*route, Lexeme(",", ",")]:
        if each.kind == ",":
            hop = _strip(hop)
            yield hop[1:] if hop and hop[0].kind == "@" else [Lexeme("bad", "")]
            hop = []
        else:
            hop.append(each)


def _read_address(lexemes: list[Lexeme]) -> str:
    entry = _strip(lexemes)
    if len(entry) > 2 and entry[0].text.lower() == "mailto" and entry[1].kind == ":":
        entry = _strip(entry[2:])
    kinds = [each.kind for each in entry]
    if kinds.count("@") != 1:
        return ""
    at = kinds.index("@")
    local, domain = _join_local(entry[:at]), _join_domain(entry[at + 1 :])
    if len(local) > 1 and local[0] == "'" and domain.endswith("'"):
        local, domain = local[1:], domain[:-1]
    if "'" in domain or local[:1] == "'":  # apostrophes are no part of a name of a host
        return ""
    return normal_form(f"{local}@{domain}") if local and domain else ""


def _join_local(lexemes: list[Lexeme]) -> str:
    words = _drop_spaces(lexemes)
    if [each.kind for each in words] == ["quoted"]:
        text = words[0].text[1:-1]
        return text if re.fullmatch(rf"[{_ATEXT}]+(?:\.[{_ATEXT}]+)*", text) else words[0].text
    if any(each.kind not in {"atom", "."} for each in words) or not any(each.kind == "atom" for each in words):
        return ""
    return "".join(each.text for each in words)


def _join_domain(lexemes: list[Lexeme]) -> str:
    words = _drop_spaces(lexemes)
    if [each.kind for each in words] == ["literal"]:
        return re.sub(r"[ \t\r\n]", "", words[0].text)
    return "".join(each.text for each in words) if _is_domain(lexemes) else ""


def _is_domain(lexemes: list[Lexeme]) -> bool:
    kinds = [each.kind for each in _drop_spaces(lexemes)]
    return len(kinds) % 2 == 1 and all(kind == ("." if n % 2 else "atom") for n, kind in enumerate(kinds))


def _drop_spaces(lexemes: list[Lexeme]) -> list[Lexeme]:
    """Leave out spaces and comments around dots. Two words without a dot between them stay apart, as a bad lexeme."""
    kept: list[Lexeme] = []
    for each in _strip(lexemes):
        if each.kind in {"space", "comment"}:
            continue
        if kept and "." not in (each.kind, kept[-1].kind):
            kept.append(Lexeme("bad", ""))
        kept.append(each)
    return kept
