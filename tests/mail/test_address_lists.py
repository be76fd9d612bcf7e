"""Parsing of address lists: readable names, and no access by what is not an address to a mail server."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail import address_lists
from gumshoe.mail.address_lists import parse_addresses
from gumshoe.mail.mail_records import parse_record
from gumshoe.mail.message import ParsedMessage, normalize_address
from gumshoe.mail.rfc822 import parse_message
from tests.cpu_time import limit_cpu

QUICK = settings(derandomize=True, deadline=None, database=None)


def trusted(text: str) -> set[str]:
    return {entry.address for entry in parse_addresses(text) if entry.address and not entry.is_doubtful}


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ('"Lee, Ann" <ann@example.com>, bob@example.com', [("Lee, Ann", "ann@example.com"), ("", "bob@example.com")]),
        ("ANN@EXAMPLE.COM, Bob <Bob@Example.com>", [("", "ann@example.com"), ("Bob", "bob@example.com")]),
        ("Team: ann@example.com, Bob <bob@example.com>;", [("", "ann@example.com"), ("Bob", "bob@example.com")]),
        ("undisclosed-recipients:;", []),
        ("Undisclosed recipients: ;", []),
        ("Undisclosed recipients:", []),
        ("ann@example.com (Ann Lee)", [("Ann Lee", "ann@example.com")]),
        ("Ann (Sales) <ann@example.com>", [("Ann (Sales)", "ann@example.com")]),
        ("'ann@example.com'", [("", "ann@example.com")]),
        ("'Ann Lee' <ann@example.com>", [("Ann Lee", "ann@example.com")]),
        ("Ann Lee<ann@example.com>", [("Ann Lee", "ann@example.com")]),
        ("<mailto:ann@example.com>", [("", "ann@example.com")]),
        ("mailto:ann@example.com", [("", "ann@example.com")]),
        ("<ann@example.com>, <bob@example.com>", [("", "ann@example.com"), ("", "bob@example.com")]),
        ("ann@example.com,\n\tbob@example.com,,", [("", "ann@example.com"), ("", "bob@example.com")]),
        ("=?utf-8?Q?J=C3=B6rg=2C_A=2E?= <j@example.com>", [("Jörg, A.", "j@example.com")]),
        ('"=?utf-8?Q?J=C3=B6rg?=" <j@example.com>', [("Jörg", "j@example.com")]),
        ("=?x?B?R3LDv?= <j@example.com>", [("=?x?B?R3LDv?=", "j@example.com")]),
        ("=?utf-8?Q?Meyer, Greg?= <greg@example.com>", [("Meyer, Greg", "greg@example.com")]),
        ("Meyer, Greg <greg@example.com>", [("Meyer, Greg", "greg@example.com")]),
        ("Müller, Hans <h@example.com>, Ek, Bob <b@x>", [("Müller, Hans", "h@example.com"), ("Ek, Bob", "b@x")]),
        ("'Lee, Ann' <ann@x>, 'Ek, Bob' <bob@x>", [("Lee, Ann", "ann@x"), ("Ek, Bob", "bob@x")]),
        ("Smith, John, PhD <john@x>", [("Smith, John, PhD", "john@x")]),
        ("Smith, John, Jr., CPA, M.B.A. <john@x>, Ann", [("Smith, John, Jr., CPA, M.B.A.", "john@x"), ("Ann", "")]),
        ("Lee, Ann, M.D., Ph. D. <ann@x>", [("Lee, Ann, M.D., Ph. D.", "ann@x")]),
        ("Ann, Bob, Eve, Dave <dave@x>", [("Ann", ""), ("Bob, Eve, Dave", "dave@x")]),
        ("O'Brien, Pat <pat@x>, 't Hooft, G. <g@x>", [("O'Brien, Pat", "pat@x"), ("t Hooft, G.", "g@x")]),
        ("Support [Billing, Sales] <bill@x>", [("Support [Billing, Sales]", "bill@x")]),
        ("Ann [at home <ann@x>", [("Ann [at home", "ann@x")]),
        ("RE: Ann <ann@x>", [("RE: Ann", "ann@x")]),
        ("Ann Lee <ann@x>; Bob Ek <bob@x>", [("Ann Lee", "ann@x"), ("Bob Ek", "bob@x")]),
        ("Greg Meyer", [("Greg Meyer", "")]),
        ("Сергей Обухов", [("Сергей Обухов", "")]),
        ('"Doe, Jane" </O=ACME/OU=GROUP ONE/CN=JDOE>', [("Doe, Jane", "")]),
        ("<@a.example,@b.example:ann@example.com>", [("", "ann@example.com")]),
        ("<ann @ example . com>", [("", "ann@example.com")]),
        ('"ann"@example.com', [("", "ann@example.com")]),
        ("ann@[127.0.0.1]", [("", "ann@[127.0.0.1]")]),
        ("<<ann@example.com>>", [("", "ann@example.com")]),
        ("Ann <>", [("Ann", "")]),
        ("Ann Lee/Sales/ACME@ACME, Bob Ek/ACME@ACME", [("Ann Lee/Sales/ACME@ACME", ""), ("Bob Ek/ACME@ACME", "")]),
        ("CN=Ann Lee/OU=Sales/O=ACME@ACME", [("CN=Ann Lee/OU=Sales/O=ACME@ACME", "")]),
        ("Ann Lee/Sales/ACME <ann@example.com>", [("Ann Lee/Sales/ACME", "ann@example.com")]),
        ("unlisted-recipients:; (no To-header on input)", []),
        ("undisclosed-recipients: (nobody) ;", []),
        ("'Ann Lee' via Sales <sales@example.com>", [("'Ann Lee' via Sales", "sales@example.com")]),
        ("\"'Ann Lee' via Sales\" <sales@example.com>", [("'Ann Lee' via Sales", "sales@example.com")]),
        ("", []),
        (" , ,", []),
    ],
)
def test_plain_forms_are_read_and_trusted(text: str, listed: list[tuple[str, str]]) -> None:
    assert parse_addresses(text) == tuple((name, address, False) for name, address in listed)


@pytest.mark.parametrize(
    "text",
    [
        "'eve@example.com' <dave@example.com>",
        '"eve@example.com" <dave@example.com>',
        '"Dave \\" <eve@example.com>" <dave@example.com>',
        "eve@example.com <dave@example.com>",
        "eve@example.com: dave@example.com;",
        "[mailto:eve@example.com] <dave@example.com>",
        "dave@example.com (eve@example.com)",
        "dave@example.com (a (eve@example.com) b)",
        "<dave@example.com (eve@example.com)>",
        "<@eve@example.com,@b.example:dave@example.com>, dave@example.com",
        "<@eve.example.com:dave@example.com>",
        "=?utf-8?Q?eve=40example.com=2C?= <dave@example.com>",
        "=?utf-8?Q?=3Ceve=40example.com=3E?= <dave@example.com>",
        "'x, eve@example.com' <dave@example.com>",
        'dave@example.com, "eve@example.com" <dave@example.com>',
    ],
)
def test_only_the_address_of_a_mail_server_counts(text: str) -> None:
    assert trusted(text) == {"dave@example.com"}


@pytest.mark.parametrize(
    "text",
    [
        "dave@example.com)eve@example.com",
        "dave@example.com (eve@example.com",
        "(eve@example.com",
        '"\'eve"@example.com',
        '<"\'eve"@example.com>',
        '"eve@example.com',
        '"eve@example.com, dave@example.com',
        '"eve@example.com"',
        "Eve Smith eve@example.com",
        '"Eve Smith" eve@example.com',
        "<dave@example.com> eve@example.com",
        "<eve@example.com>dave@example.com",
        "Eve <eve@example.com> <dave@example.com>",
        "Dave <dave@example.com> <eve@example.com>",
        "Cc: eve@example.com",
        "dave@example.com\rCc: eve@example.com",
        "dave@example.com: eve@example.com",
        'dave@example.com: eve@example.com, "x;"',
        "Dave: eve@example.com (x;)",
        "eve\u00a0@example.com",
        "eve@example.com\u00a0",
        "<eve@exam\u0085ple.com>",
        "=?utf-8?q?a(?= <eve@example.com>, x) <dave@example.com>",
        "'a( ' <eve@example.com>, x) <dave@example.com>",
        "<dave@[x>, eve@example.com, <]>",
        "dave@[x\\], eve@example.com, y]",
        "<dave(>, eve@example.com, <)@example.com>",
        "eve@example.com..",
        "<eve@.example.com>",
        "<eve@example.com\x00>",
        "<eve@example.com>, (",
        "<eve@example.com>, [ dave@example.com",
        "<eve@example.com",
        "eve@example.com>",
        "eve@example.com)",
        "[a, eve@example.com, b] <dave@example.com>",
        "=?utf-8?Q?a,eve@example.com,b?= <dave@example.com>",
        "=?utf-8?Q?eve@example.com?=",
        "=?utf-8?B?RXZlIDxldmVAZXhhbXBsZS5jb20+?=",
        "<dave@example.com, eve@example.com>",
        "dave@example.com eve@example.com",
        "eve@example.com Dave",
        "dave(c)eve@example.com",
        "eve@example.com@other.example",
        "<eve@example.com@other.example>",
        "eve@example.com(x).other.example",
        "eve\\@example.com",
        '"eve@example.com"@other.example',
        "e\u200bve@example.com",
        "eve@example.co\u00f1",
        "\u0435ve@example.com",
        "eve@example.com.",
    ],
)
def test_a_doubtful_or_similar_address_gives_no_access(text: str) -> None:
    assert "eve@example.com" not in trusted(text)


def test_a_name_in_apostrophes_does_not_make_recipients() -> None:
    assert trusted("'a, eve@example.com, b' <dave@example.com>") == {"dave@example.com"}


def test_the_address_in_an_encoded_word_is_found_but_doubtful() -> None:
    (entry,) = parse_addresses("=?utf-8?B?SGFucyBNw7xsbGVyIDxoYW5zQGV4YW1wbGUuY29tPg==?=")
    assert entry == ("Hans Müller", "hans@example.com", True)


@pytest.mark.parametrize(
    "text",
    [
        "Ann Lee [mailto:ann@example.com]",
        '"Ann Lee" [SMTP:ann@example.com]',
        "Ann Lee [ann@example.com]",
        "Ann Lee (ann@example.com)",
        "Ann Lee ann@example.com",
    ],
)
def test_an_address_beside_a_name_is_found_but_doubtful(text: str) -> None:
    assert parse_addresses(text) == (("Ann Lee", "ann@example.com", True),)


@pytest.mark.parametrize(
    "text",
    [
        '"Ann Lee" &lt;ann@example.com&gt;',
        "ann@example.com?subject=hi",
        "<mailto:ann@example.com?cc=eve@example.com>",
        "ann@example.com/sales",
        "ann@example.com#",
        "<ann@{domain}>",
        "ann@example.com&eve@example.com",
    ],
)
def test_an_address_whose_domain_cannot_exist_is_doubtful(text: str) -> None:
    assert trusted(text) == set()


def test_letters_outside_ascii_do_not_become_ascii() -> None:
    assert normalize_address("\u212aate@Example.com") == "\u212aate@example.com"
    assert normalize_address("MÜLLER@Example.com") == "müller@example.com"


@pytest.mark.parametrize("text", ["'eve@example.com' <dave@example.com>", "eve@example.com <dave@example.com>"])
def test_mail_and_records_are_read_alike(text: str) -> None:
    mail = parse_message(f"From: {text}\nTo: {text}\n\nText.".encode(), "here")
    record = parse_record({"from": text, "to": [text], "body": "Text."}, "here")
    for message in (mail, record):
        assert isinstance(message, ParsedMessage)
        assert (message.sender, message.sender_is_doubtful) == ("dave@example.com", False)
        assert [(each.address, each.is_doubtful) for each in message.recipients] == [("dave@example.com", False)]


def test_doubt_is_noted_for_sender_and_recipients() -> None:
    message = parse_message(b'From: "eve@example.com\nTo: <eve@example.com\n\nText.', "here")
    assert isinstance(message, ParsedMessage)
    assert message.sender_is_doubtful
    assert [each.is_doubtful for each in message.recipients] == [True]


PIECES = st.sampled_from(
    [*"<>()[]\",;:\\'@ ", "eve@example.com", "Dave", "dave@example.com", "=?utf-8?Q?", "?=", "mailto:", "\n ", "é"]
)


@settings(QUICK, max_examples=400)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_can_be_parsed(text: str) -> None:
    for entry in parse_addresses(text):
        assert entry.address or entry.name
        assert normalize_address(entry.address) == entry.address or entry.is_doubtful or '"' in entry.address


@settings(QUICK, max_examples=200)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_text_in_a_quotation_or_comment_gives_no_access(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    comment = text.replace("\\", "").replace("(", "").replace(")", "")
    assert trusted(f'"{quoted}" <dave@x>') <= {"dave@x"}
    assert trusted(f"dave@x ({comment})") <= {"dave@x"}


@pytest.mark.parametrize(
    "unit", ["(", "()", '"', '\\"', "<", "<a", "[a", "'a,", "a@", "a ", ",", "a;", "a: ", "=?a?b?x"]
)
def test_long_lists_take_linear_time(unit: str) -> None:
    with limit_cpu(5):
        parse_addresses(unit * 50_000 + ", ann@example.com")


@pytest.mark.parametrize("unit", ["'", '"', "<", ">", "\u3000", " "])
def test_long_addresses_take_linear_time(unit: str) -> None:
    with limit_cpu(2):
        normalize_address(f"a{unit * 200_000}@example.com")
        assert normalize_address(f"{unit * 9}a@example.com{unit * 9}") == "a@example.com"
        parse_addresses(f"a{unit * 200_000}@example.com")


def test_a_list_that_is_cut_gives_no_part_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "dave@example.com, eve@example.com.au"
    monkeypatch.setattr(address_lists, "_MAX_LENGTH", len(text) - len(".au"))
    assert [each.address for each in parse_addresses(text)] == ["dave@example.com"]
