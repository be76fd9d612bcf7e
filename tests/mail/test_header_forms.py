"""Header forms of all kinds: the reader gives access to nobody whom a mail server would not deliver to.

The second opinion is `tests.mail.address_oracle`. Lists are drawn by the grammar, with addresses in places where they
mean nothing (names, comments, groups, routes), and then damaged.
"""

from collections.abc import Callable
from email.headerregistry import HeaderRegistry
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail.address_lists import parse_addresses
from gumshoe.mail.inboxes import is_address, list_people
from gumshoe.mail.mail_records import parse_record
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.rfc822 import parse_message
from tests.mail.address_oracle import deliverable

DECOY = "eve@example.com"
TARGETS = ["ann@example.com", "Bob@Example.com", "carol+x@sub.example.com", "d.dave@example.com"]
ODD_TARGETS = [
    "dave%example.com@relay.example",
    "relay.example!dave@example.com",
    '"ann lee"@example.com',
    '"eve@example.com"@other.example',
    '"ann"@example.com',
    "ann@[127.0.0.1]",
    "ann@bücher.example",
    "jörg@example.com",
    "o'brien@example.com",
    "ann..lee@example.com",
    "=?utf-8?q?eve?=@example.com",
]


class Drawn(NamedTuple):
    """A list of addresses as text, and the addresses that it delivers to."""

    text: str
    targets: frozenset[str]


def trusted(text: str) -> set[str]:
    found = {entry.address for entry in parse_addresses(text) if entry.address and not entry.is_doubtful}
    return {each for each in found if is_address(each)}


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def comment(text: str) -> str:
    return "(" + text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)") + ")"


def encode_word(text: str) -> str:
    return "=?utf-8?q?" + "".join(f"={byte:02X}" for byte in text.encode()) + "?="


decoy_texts = st.sampled_from(
    [
        DECOY,
        f"<{DECOY}>",
        f"Eve <{DECOY}>",
        f"x, {DECOY}",
        f"x; {DECOY}",
        f"x: {DECOY};",
        f"mailto:{DECOY}",
        f'x" <{DECOY}>',
        f"x) {DECOY} (",
        f"'{DECOY}'",
        f"x\\\\, {DECOY}",
        f"a {DECOY} b",
        f"{DECOY} {DECOY}",
    ]
)
plain_names = st.sampled_from(["Ann", "Ann Lee", "A. Lee", "Lee, Ann", "O'Brien", "Müller", "李", "Ann (Sales)", "Dr."])
spaces = st.sampled_from(["", " ", "  ", "\t", "\r\n ", "\n\t"])
comments = st.one_of(decoy_texts.map(comment), decoy_texts.map(lambda text: f"(a {comment(text)} b)"), st.just("(x)"))
gaps = st.one_of(spaces, st.tuples(spaces, comments, spaces).map("".join))
names = st.one_of(
    st.just(""),
    plain_names.map(quote),
    st.just("Ann Lee"),
    decoy_texts.map(quote),
    decoy_texts.map(encode_word),
    st.tuples(decoy_texts.map(encode_word), decoy_texts.map(quote)).map(" ".join),
)
routes = st.sampled_from(["", "", "@a.example:", "@a.example,@eve.example:", "@eve.example.com , @b.example :"])


@st.composite
def mailboxes(draw: Callable[[Any], Any]) -> Drawn:
    address = draw(st.sampled_from(TARGETS + ODD_TARGETS))
    inner = deliverable(address)
    if draw(st.booleans()):
        return Drawn(f"{draw(gaps)}{address}{draw(gaps)}", frozenset(inner))
    name = draw(names)
    text = f"{draw(gaps)}{name}{draw(gaps)}<{draw(spaces)}{draw(routes)}{address}{draw(spaces)}>{draw(gaps)}"
    return Drawn(text, frozenset(inner))


def join(entries: list[Drawn], text: str) -> Drawn:
    return Drawn(text, frozenset().union(*(each.targets for each in entries)))


groups = st.tuples(
    st.one_of(st.just("Team"), decoy_texts.map(quote), decoy_texts.map(encode_word)), st.lists(mailboxes(), max_size=2)
).map(lambda drawn: join(drawn[1], f"{drawn[0]}: {','.join(each.text for each in drawn[1])};"))
empty = st.sampled_from([Drawn("", frozenset()), Drawn(" ", frozenset()), Drawn("(x)", frozenset())])
address_lists = st.lists(st.one_of(mailboxes(), mailboxes(), groups, empty), min_size=1, max_size=4).map(
    lambda entries: join(entries, ",".join(each.text for each in entries))
)

SPECIALS = [
    *"<>()[]\",;:\\'@. \t\r\0\x7f\x85\xa0\u2028\ufeff\u200b%!=?",
    "\r\n ",
    DECOY,
    f"<{DECOY}>",
    "?=",
    "=?",
    "<>",
]


@st.composite
def damaged_lists(draw: Callable[[Any], Any]) -> str:
    text = str(draw(address_lists).text)
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(text)))
        last = min(len(text), first + draw(st.sampled_from([0, 0, 1, 1, 2, 9])))
        text = text[:first] + draw(st.one_of(st.just(""), st.sampled_from(SPECIALS))) + text[last:]
    return text


def check_list(drawn: Drawn) -> None:
    assert deliverable(drawn.text) == drawn.targets, "the oracle is wrong"
    assert trusted(drawn.text) <= drawn.targets
    assert DECOY not in trusted(drawn.text)


def check_damaged(text: str) -> None:
    assert trusted(text) <= deliverable(text)


@given(address_lists)
def test_valid_lists_give_access_to_recipients_only(drawn: Drawn) -> None:
    check_list(drawn)


@pytest.mark.ci
@settings(max_examples=400)
@given(damaged_lists())
def test_damaged_lists_give_access_to_recipients_only(text: str) -> None:
    check_damaged(text)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("ann@example.com", {"ann@example.com"}),
        ("Ann <ann@example.com>, bob@example.com", {"ann@example.com", "bob@example.com"}),
        ('"eve@example.com" <ann@example.com>', {"ann@example.com"}),
        ("ann@example.com (eve@example.com (x) y)", {"ann@example.com"}),
        (
            "Team: ann@example.com, bob@example.com;, carol@example.com",
            {f"{n}@example.com" for n in ("ann", "bob", "carol")},
        ),
        ("<@a.example,@b.example:ann@example.com>", {"ann@example.com"}),
        ("ann . lee (x) @ example . com", {"ann.lee@example.com"}),
        ('"ann"@example.com, "a b"@example.com', {"ann@example.com", '"a b"@example.com'}),
        ("eve@example.com <ann@example.com>", {"ann@example.com"}),
        ("<ann@example.com> eve@example.com", set()),
        ("Eve eve@example.com", set()),
        ('"Eve <eve@example.com>', set()),
        ("(x, eve@example.com", set()),
        ("eve@example.com@example.com", set()),
        ("eve@example.com.", set()),
        ("eve\x00@example.com", set()),
        ("ann@bücher.example", {"ann@xn--bcher-kva.example"}),
    ],
)
def test_the_oracle_reads_known_forms(text: str, addresses: set[str]) -> None:
    assert deliverable(text) == addresses


SIMPLE = st.lists(
    st.tuples(st.sampled_from(["", "Ann Lee", '"Lee, Ann"', '"eve@example.com"']), st.sampled_from(TARGETS)).map(
        lambda drawn: f"{drawn[0]} <{drawn[1]}>"
    ),
    min_size=1,
    max_size=3,
).map(", ".join)


@given(SIMPLE)
def test_all_readers_agree_on_simple_lists(text: str) -> None:
    header: Any = HeaderRegistry()("To", text)
    standard = {each.addr_spec.lower() for each in header.addresses}
    assert trusted(text) == deliverable(text) == standard


PEOPLE_HEADERS = [
    "To",
    "Cc",
    "Bcc",
    "TO",
    "cc",
    "To ",
    "Delivered-To",
    "X-Original-To",
    "Envelope-To",
    "Resent-To",
    "Resent-Cc",
]
OTHER_HEADERS = [
    "Subject",
    "X-To",
    "Reply-To",
    "Return-Path",
    "Errors-To",
    "Comments",
    "List-Post",
    "Resent-From",
    "Cc-X",
]


@st.composite
def messages(draw: Callable[[Any], Any]) -> tuple[bytes, set[str]]:
    """Draw a message, and the addresses that its headers deliver to. Those of other headers deliver to nobody."""
    encoding = draw(st.sampled_from(["utf-8", "latin-1"]))
    lines, allowed = [f"From: {TARGETS[0]}"], set[str]()
    for name in draw(st.lists(st.sampled_from(PEOPLE_HEADERS), min_size=1, max_size=4)):
        text = draw(st.one_of(address_lists.map(lambda drawn: drawn.text), damaged_lists()))
        text = text.replace("\r\n", "\n").replace("\n", "\n ").replace("\r", " ")
        text = text.encode(encoding, "replace").decode(encoding)
        lines.append(f"{name}: {text}")
        allowed |= deliverable(text.replace("\n", "").strip())
    lines += [f"{name}: {draw(decoy_texts)}" for name in draw(st.lists(st.sampled_from(OTHER_HEADERS), max_size=2))]
    order = draw(st.permutations(lines))
    raw = "\n".join([*order, "Subject: s", "", f"To: {DECOY}", ""]).encode(encoding, "replace")
    return raw, allowed


def check_message(drawn: tuple[bytes, set[str]]) -> None:
    raw, allowed = drawn
    message = parse_message(raw, "here")
    assert isinstance(message, ParsedMessage)
    assert set(list_people(message)) <= allowed


@given(messages())
def test_messages_give_access_to_recipients_only(drawn: tuple[bytes, set[str]]) -> None:
    check_message(drawn)


@given(st.one_of(address_lists.map(lambda drawn: drawn.text), damaged_lists()))
def test_records_give_access_to_recipients_only(text: str) -> None:
    message = parse_record({"to": text, "cc": [text], "body": "x"}, "here")
    assert isinstance(message, ParsedMessage)
    assert set(list_people(message)) <= deliverable(text)


@pytest.mark.nightly
@settings(max_examples=20_000)
@given(messages())
def test_many_messages_give_access_to_recipients_only(drawn: tuple[bytes, set[str]]) -> None:
    check_message(drawn)


@pytest.mark.nightly
@settings(max_examples=20_000)
@given(address_lists)
def test_many_valid_lists_give_access_to_recipients_only(drawn: Drawn) -> None:
    check_list(drawn)


@pytest.mark.nightly
@settings(max_examples=50_000)
@given(damaged_lists())
def test_many_damaged_lists_give_access_to_recipients_only(text: str) -> None:
    check_damaged(text)
