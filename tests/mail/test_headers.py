"""Reading of headers: broken blocks, encoded words, delivery and ids."""

import pytest

from gumshoe.mail.headers import decode_header_text, parse_references, split_message
from gumshoe.mail.message import ParsedMessage, clean_line
from gumshoe.mail.rfc822 import parse_message


def parse(raw: bytes | str) -> ParsedMessage:
    message = parse_message(raw.encode() if isinstance(raw, str) else raw, "here")
    assert isinstance(message, ParsedMessage)
    return message


# Header blocks


@pytest.mark.parametrize(
    "broken",
    [
        "X-Tracer : 17\n",
        "X-Long: one\ntwo without its space\n",
        "a line of junk\n",
        "a\0b: NUL\n",
        ">From ann@example.com Mon May 14 12:00:00 2001\n",
        "From ann@example.com Mon May 14 12:00:00 2001\n",
        ": no name\n",
        "X-Blank: one\n \n",
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_a_broken_line_does_not_lose_the_message(broken: str, ending: str) -> None:
    for raw in (
        f"{broken}From: pat@example.com\nTo: ann@example.com\nSubject: one\n\nText.\n",
        f"From: pat@example.com\n{broken}To: ann@example.com\nSubject: one\n\nText.\n",
    ):
        message = parse(raw.replace("\n", ending))
        assert (message.sender, message.subject, message.body) == ("pat@example.com", "one", "Text.")
        assert [each.address for each in message.recipients] == ["ann@example.com"]


@pytest.mark.parametrize(
    "before", ["\n\r\n", "\ufeff", "\0\0", " \n\t", "\ufeff\n", "Exported by a program\n\n", "12:30\n"]
)
def test_text_before_the_headers_is_left_out(before: str) -> None:
    message = parse(f"{before}From: pat@example.com\nTo: ann@example.com\nSubject: one\n\nText.")
    assert (message.sender, message.subject, message.body) == ("pat@example.com", "one", "Text.")


def test_quoted_headers_in_a_body_stay_there() -> None:
    message = parse("From: pat@example.com\n\nFrom: eve@example.com\nTo: eve@example.com\nDate: today\n\nText.")
    assert (message.sender, message.recipients) == ("pat@example.com", [])
    assert message.body.startswith("From: eve@example.com")


def test_a_body_without_a_blank_line_before_it_is_kept() -> None:
    assert (
        parse("From: pat@example.com\nSubject: one\nThe lease ends on 30 June.\n").body == "The lease ends on 30 June."
    )
    kind = "Content-Type: multipart/mixed; boundary=b1"
    parts = "--b1\nContent-Type: text/plain\n\nThe lease ends on 30 June.\n--b1--\n"
    assert parse(f"From: pat@example.com\n{kind}\n{parts}").body == "The lease ends on 30 June."


def test_doubled_carriage_returns_end_one_line() -> None:
    message = parse(b"From: pat@example.com\r\r\nSubject: one\r\r\n\r\r\nFirst.\r\r\nSecond.\r\r\n")
    assert (message.sender, message.subject, message.body) == ("pat@example.com", "one", "First.\nSecond.")


def test_a_carriage_return_in_a_line_begins_no_header() -> None:
    message = parse(b"From: pat@example.com\nSubject: one\rTo: eve@example.com\n\nText.")
    assert (message.recipients, message.subject) == ([], "one To: eve@example.com")


@pytest.mark.parametrize("blank", [" ", "\t", " \n \t "])
def test_a_blank_line_inside_a_folded_field_loses_nothing(blank: str) -> None:
    message = parse(f"From: ann@example.com\nSubject: The lease\n{blank}\n of the flat\nTo: bob@example.com\n\nText.")
    assert (message.subject, message.recipients[0].address) == ("The lease of the flat", "bob@example.com")
    message = parse(f"From: ann@example.com\nSubject: The lease\n{blank}\n  An indented text.")
    assert (message.subject, message.body.strip()) == ("The lease", "An indented text.")


def test_fields_are_unfolded_with_their_continuation() -> None:
    fields, body = split_message(b"From: pat@example.com\nSubject: a\n b\n\tc\nTo: ann@example.com\n\nText.")
    assert fields == [("from", "pat@example.com"), ("subject", "a\n b\n\tc"), ("to", "ann@example.com")]
    assert body == b"Text."


# Encoded words


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("=?utf-8?B?R3LDvMOfZQ==?=", "Grüße"),
        ("=?UTF-8?q?Gr=c3=bc=C3=9Fe_aus_K=C3=B6ln?=", "Grüße aus Köln"),
        ("=?utf-8?b?R3LDvMOfZQ?=", "Grüße"),
        ("=?utf-8?b?R3LDvMOfZQ===?=", "Grüße"),
        ("=?utf-8?b?R3LDvA==w59l?=", "Grüße"),
        ("=?utf-8*de?Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?iso-8859-1?Q?Gr=FC=DFe?= an alle", "Grüße an alle"),
        ("Re: =?iso-8859-1?Q?Gr=FC=DFe?= [=?koi8-r?B?8NLJ?=]", "Re: Grüße [При]"),
        ("=?utf-8?B?R3LDvA==?=\n =?utf-8?B?w59l?=", "Grüße"),
        ("=?utf-8?B?R3LDvA==?==?utf-8?B?w59l?=", "Grüße"),
        ("=?utf-8?B?R3LD?= =?utf-8?B?vMOfZQ==?=", "Grüße"),
        ("=?utf-8?B?R3LDv?= =?utf-8?B?MOfZQ==?=", "Grüße"),
        ("=?utf-8?Q?Gr=C3?=\n =?utf-8?Q?=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?Q?Gr=C3?= =?utf-8?B?vMOfZQ==?=", "Grüße"),
        ("=?utf-8?Q?a?= =?iso-8859-1?Q?=FC?=", "aü"),
        ("=?utf-8?Q?with a space?=", "with a space"),
        ("=?utf-8?Q?really??=", "really?"),
        ("=?us-ascii?Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?Q?Gr=FC=DFe?=", "Grüße"),
        ("=??Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?x-nonsense?Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?unicode_escape?Q?=5Cu0041?=", r"\u0041"),
        ("=?ISO-2022-JP?B?GyRCMnE1RBsoQg==?=\n =?ISO-2022-JP?B?GyRCMnE1RBsoQg==?=", "会議会議"),
        ("=?gb2312?B?u+HS6Q?=", "会议"),
        ("=?gb2312?B?u+E=?= =?gb2312?B?0uk=?=", "会议"),
        ("=?utf-8?B?R3LDv?= still readable", "=?utf-8?B?R3LDv?= still readable"),
        ("=?utf-8?B?R3LDv?= but =?utf-8?Q?=C3=BC?=", "=?utf-8?B?R3LDv?= but ü"),
        ("=?utf-8?X?abc?=", "=?utf-8?X?abc?="),
        ("Is 2=?3 or =?", "Is 2=?3 or =?"),
        ("你好 =?utf-8?Q?=C3=BC?= 你好", "你好 ü 你好"),
        (r"Ünder C:\users =?utf-8?Q?=C3=BC?=", r"Ünder C:\users ü"),
        ("folded\n over\n\tlines", "folded over lines"),
        ("  many   spaces  ", "many spaces"),
        ("=?utf-8?Q?two=0D=0ABcc:_x@example.com?=", "two Bcc: x@example.com"),
        ("", ""),
    ],
)
def test_encoded_words_are_decoded(raw: str, text: str) -> None:
    assert clean_line(decode_header_text(raw)) == text
    assert parse(f"From: ann@example.com\nSubject: {raw}\n\nText.").subject == text


# Sender


@pytest.mark.parametrize(
    ("headers", "sender"),
    [
        ("From: Greg Meyer", ("", "Greg Meyer")),
        ("From: Greg Meyer\nSender: Desk <desk@example.com>", ("desk@example.com", "Desk")),
        ("From: a@example.com, b@example.com\nSender: b@example.com", ("a@example.com", "")),
        ('From: "Doe, Jane" </O=ACME/CN=JDOE>', ("", "Doe, Jane")),
    ],
)
def test_the_first_address_of_the_authors_is_the_sender(headers: str, sender: tuple[str, str]) -> None:
    message = parse(f"{headers}\n\nText.")
    assert (message.sender, message.sender_name) == sender


# Delivery


@pytest.mark.parametrize(
    ("headers", "addresses"),
    [
        ("Delivered-To: Ann@example.com\nDelivered-To: eve@example.com", ["ann@example.com"]),
        ("X-Original-To: <ann@example.com>", ["ann@example.com"]),
        ("Envelope-To: ann@example.com\nX-Envelope-To: bob@example.com", ["ann@example.com", "bob@example.com"]),
        ("Resent-To: Ann <ann@example.com>, bob@example.com", ["ann@example.com", "bob@example.com"]),
        ("Received: from a by b for <ann@example.com>; Mon, 14 May 2001 05:00:00 -0700", ["ann@example.com"]),
        ("Received: from a by b\n\tfor ann@example.com; now", ["ann@example.com"]),
        ("Received: from a (x for <eve@example.com>) by b for <ann@example.com>; now", ["ann@example.com"]),
        ("Received: from a by b; now\nReceived: from c by a for <eve@example.com>; now", []),
        ("Received: from a for <eve@example.com> by b for <ann@example.com>; now", []),
        ("Received: from a (x for <eve@example.com> by b; now", []),
        ("Received: from a for <eve@example.com> by b; now", []),
        ("Received: from a by x for <eve@example.com> by b; now", []),
        ("Received: by b id 1 for <ann@example.com>; now", ["ann@example.com"]),
        (f"Received: by b for <eve@example.com>; {'x' * 2000}", []),
        ('Delivered-To: "eve@example.com', []),
        ("Delivered-To: ann@example.com\nX-Original-To: ann@example.com", ["ann@example.com"]),
        ("Delivered-To: mailing list", []),
    ],
)
def test_the_topmost_delivery_headers_count(headers: str, addresses: list[str]) -> None:
    assert parse(f"{headers}\nFrom: pat@example.com\n\nText.").delivered_to == addresses


# Ids


@pytest.mark.parametrize(
    ("raw", "message_id"),
    [
        ("<1@example.com>", "<1@example.com>"),
        ("1@example.com", "<1@example.com>"),
        ("<1@example.com> (added by a server)", "<1@example.com>"),
        ("\n <1@\n example.com>", "<1@example.com>"),
        ("<1>", "<1>"),
        ("number 1", "number 1"),
    ],
)
def test_an_id_has_a_normal_form(raw: str, message_id: str) -> None:
    assert parse(f"From: a@x\nMessage-ID: {raw}\n\nText.").message_id == message_id


@pytest.mark.parametrize("raw", ["<>", "< >", " <\n >"])
def test_messages_with_an_empty_id_get_ids_of_their_own(raw: str) -> None:
    one, other = (parse(f"From: a@x\nMessage-ID: {raw}\n\n{text}.") for text in ("One", "Other"))
    assert one.has_generated_id
    assert one.message_id != other.message_id


@pytest.mark.parametrize(
    ("references", "in_reply_to", "ids"),
    [
        ("<1@x> <2@x>", "<2@x>", ["<1@x>", "<2@x>"]),
        ("<1@x><2@x>,<3@x>", "<4@x>", ["<1@x>", "<2@x>", "<3@x>", "<4@x>"]),
        ("<1@x>\n <2@\n x>", "", ["<1@x>", "<2@x>"]),
        ("1@x 2@x", "3@x", ["<1@x>", "<2@x>", "<3@x>"]),
        ("", 'Your message of "Mon, 5 Mar" <1@x>', ["<1@x>"]),
        ("", "<2001.1234@x> from Ann <ann@example.com>", ["<2001.1234@x>"]),
        ("", 'Message from Ann <ann@example.com> of "Mon" <2001.1234@x>', ["<2001.1234@x>"]),
        ("", "Message from ann@example.com", []),
        ("<own@x> <1@x> <", "", ["<1@x>"]),
    ],
)
def test_references_are_listed_oldest_first(references: str, in_reply_to: str, ids: list[str]) -> None:
    assert parse_references([references], [in_reply_to], "<own@x>") == ids
    message = parse(f"From: a@x\nMessage-ID: <own@x>\nReferences: {references}\nIn-Reply-To: {in_reply_to}\n\nText.")
    assert message.references == ids


def test_references_are_bounded_and_have_the_form_of_the_own_id() -> None:
    many = parse_references([" ".join(f"<{number}@x>" for number in range(5000))], [], "")
    assert (len(many), many[0], many[-1]) == (100, "<0@x>", "<4999@x>")
    assert parse_references(["<" + "1" * 5000 + "@x>"], [], "") == []
    assert parse_references(["<1@x> 2@x"], [], "own@x") == ["1@x", "2@x"]


@pytest.mark.parametrize("declared", ["; charset=windows-1255", ";\n charset = 'windows-1255'"])
def test_raw_bytes_in_headers_have_the_charset_of_the_text(declared: str) -> None:
    raw = f"From: דוד <david@example.com>\nSubject: חשבון\nContent-Type: text/plain{declared}\n\nText."
    message = parse(raw.encode("windows-1255"))
    assert (message.sender_name, message.sender, message.subject) == ("דוד", "david@example.com", "חשבון")
    part = (
        "Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/plain; charset=koi8-r\n\nText.\n--x--\n"
    )
    assert parse(f"From: ann@example.com\nSubject: Счёт\n{part}".encode("koi8-r")).subject == "Счёт"


def test_raw_bytes_keep_an_address_whatever_the_charset() -> None:
    for charset in ("shift_jis", "gb18030", "cp037", "utf-7", "mac-arabic", "hz", "big5"):
        raw = b'From: ann@example.com\nTo: \x81"eve@example.com\x81 <dave@example.com>\xa2\n'
        for each in (raw, b"\xe4" + raw):
            message = parse_message(each + f"Content-Type: text/plain; charset={charset}\n\nText.".encode(), "here")
            expected = parse_message(each + b"\nText.", "here")
            assert isinstance(message, ParsedMessage)
            assert isinstance(expected, ParsedMessage)
            assert message.recipients == expected.recipients


def test_a_guessed_charset_makes_no_addresses() -> None:
    hidden = "Dear Ann, we would like to meet you at nine in the office. <eve@example.com>, ".encode("cp037")
    message = parse(b"From: ann@example.com\nTo: " + hidden + b" <dave@example.com>\n\nText.")
    assert not any("eve@example.com" in each.address for each in message.recipients)
    quoted = "数字来週の会議は金曜日です。表".encode("cp932") * 4 + b'" <eve@example.com>, "'
    for charset in ("", "\nContent-Type: text/plain; charset=shift_jis"):
        raw = b'From: ann@example.com\nTo: "' + quoted + b" <dave@example.com>" + charset.encode() + b"\n\nText."
        assert [each.address for each in parse(raw).recipients if not each.is_doubtful] == ["dave@example.com"]


def test_the_first_subject_that_is_not_blank_counts() -> None:
    message = parse("From: ann@example.com\nSubject: \nSubject: one\nSubject: two\nMessage-ID:\nMessage-ID: <1@x>\n\nb")
    assert (message.subject, message.message_id) == ("one", "<1@x>")


def test_an_encoded_date_is_read() -> None:
    message = parse("From: ann@example.com\nDate: =?utf-8?q?Tue,_5_Mar_2024_09:30:00?= =?utf-8?q?_+0100?=\n\nb")
    assert (message.sent, message.utc_offset) == (1709627400, 60)


@pytest.mark.parametrize("kind", ["", "Content-Type: text/plain; charset=iso-2022-jp\n", "X-Note: \xe9\n"])
def test_a_subject_in_iso_2022_jp_that_was_never_encoded_is_decoded(kind: str) -> None:
    subject = "日本語のメール".encode("iso-2022-jp")
    assert (
        parse(b"From: ann@example.com\nSubject: " + subject + b"\n" + kind.encode() + b"\nb").subject
        == "日本語のメール"
    )
    raw = "From: ann@example.com\nX-Note: \xe9\nSubject: a+b-c ~{x~}\nContent-Type: text/plain; charset={}\n\nb"
    for charset in ("utf-7", "hz"):
        assert parse(raw.replace("{}", charset)).subject == "a+b-c ~{x~}"
