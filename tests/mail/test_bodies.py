"""Text of messages: parts, alternatives, transfer encodings, and messages inside other formats."""

import base64
import struct
import sys

import pytest
from compressed_rtf import compress

from gumshoe.mail.attachments import AttachmentLimits, AttachmentReader
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.rfc822 import parse_message
from tests.cpu_time import limit_cpu
from tests.mail.raw_messages import HTML, PDF, PLAIN, body, mixed, multipart, multipart_message, parse

SIGNED = (
    "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA1\n\nThe pump costs <250.\nNow.\n"
    "-----BEGIN PGP SIGNATURE-----\n\niQ\n-----END PGP SIGNATURE-----\n"
)


def test_quoted_printable_is_decoded() -> None:
    headers = "Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable"
    assert body(headers, "Gr=FC=DFe aus K=F6ln, lang=\ne Zeile=20\n") == "Grüße aus Köln, lange Zeile"


@pytest.mark.parametrize("end", [" \n", "\t\n", " \t \r\n"])
def test_spaces_behind_a_soft_line_break_are_skipped(end: str) -> None:
    assert body("Content-Transfer-Encoding: quoted-printable", f"one={end}two=20=\n3 = 3\n") == "onetwo 3 = 3"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/enriched", "<bold>The pump</bold>\ncosts <<250.\n\n<color><param>red</param>Now</color>."),
        ("text/enriched", "<nofill>The <Italic>pump</Italic> costs <<250.</nofill>\r\n\r\nNow."),
        ("text/rtf", "{\\rtf1\\ansi The {\\b pump} costs <250.\\par Now.}"),
        ("text/rtf", "The pump costs <250.\nNow."),
        ("text/richtext", "<bold>The pump</bold>\ncosts <lt>250.<comment>x</comment><nl>Now."),
        ("text/richtext", "The pump costs <lt>250.\n<Paragraph>Now.</Paragraph>"),
        ("application/pgp; x-action=sign", SIGNED),
    ],
)
def test_text_with_markup_is_converted(kind: str, content: str) -> None:
    assert body(f"Content-Type: {kind}", content) == "The pump costs <250.\nNow."


def test_bad_quoted_printable_keeps_its_text() -> None:
    headers = "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable"
    assert body(headers, "100=% sure =ZZ caf=C3=A9 =\n") == "100=% sure =ZZ café"


def test_truncated_base64_is_decoded() -> None:
    headers = "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64"
    encoded = base64.encodebytes("Grüße aus Köln. Der Bericht folgt.".encode()).decode()
    assert body(headers, encoded) == "Grüße aus Köln. Der Bericht folgt."
    assert body(headers, encoded.strip()[:40]).startswith("Grüße aus Köln. Der Ber")
    assert body(headers, encoded.strip()[:41]).startswith("Grüße aus Köln.")


def test_an_unknown_transfer_encoding_keeps_the_text() -> None:
    assert body("Content-Transfer-Encoding: x-what", "Text.") == "Text."
    assert body("Content-Transfer-Encoding: 7bit, was base64", "R3LDvMOfZQ==") == "R3LDvMOfZQ=="


def test_a_wrong_charset_of_a_part_is_corrected() -> None:
    assert body("Content-Type: text/plain; charset=us-ascii", "Grüße") == "Grüße"
    assert body("Content-Type: text/plain; charset=utf-8", "Grüße".encode("cp1252")) == "Grüße"
    assert body("Content-Type: text/plain; charset=nonsense", "Grüße") == "Grüße"
    assert body("Content-Type: text/plain; charset*=a\0b''utf-8", "Grüße") == "Grüße"


def test_an_html_message_becomes_text() -> None:
    assert body("Content-Type: text/html; charset=utf-8", "<p>Grüße<br>Ann</p>") == "Grüße\nAnn"
    assert body("Content-Type: text/plain", "<html><body><p>One</p><p>Two</p></body></html>").split() == ["One", "Two"]
    assert body("Content-Type: text/html", "<img src=x>") == ""


def test_the_plain_text_alternative_is_preferred() -> None:
    assert multipart("alternative", PLAIN, HTML) == "Plain text."
    assert multipart("alternative", HTML, PLAIN) == "Plain text."


@pytest.mark.parametrize("blank", ["", "\n \n", "\u00a0"])
def test_html_is_used_if_the_plain_alternative_is_blank(blank: str) -> None:
    blank_part = f"Content-Type: text/plain; charset=utf-8\n\n{blank}"
    assert multipart("alternative", blank_part, HTML) == "HTML text."
    assert multipart("alternative", blank_part) == ""
    assert multipart("alternative") == ""


def test_nested_parts_are_read_in_order_and_attachments_are_named() -> None:
    alternative = "Content-Type: multipart/alternative; boundary=AA\n\n" + mixed(PLAIN, HTML, boundary="AA")
    image = "Content-Type: image/png; name=logo.png\nContent-ID: <1>\n\nx"
    related = "Content-Type: multipart/related; boundary=RR\n\n" + mixed(alternative, image, boundary="RR")
    footer = "Content-Type: text/plain\n\nFooter of the list."
    signature = "Content-Type: application/pgp-signature; name=signature.asc\n\nx"
    signed = "Content-Type: multipart/signed; boundary=SS\n\n" + mixed(related, signature, boundary="SS")
    assert multipart("mixed", signed, PDF, footer) == (
        "Plain text.\n\nFooter of the list.\n\n"
        "[attachment: logo.png]\n\n[attachment: signature.asc]\n\n[attachment: report.pdf]"
    )


def test_an_attachment_in_an_unused_alternative_is_named() -> None:
    attached = PDF.replace("\n", "\nContent-Disposition: attachment\n", 1)
    rich = "Content-Type: multipart/mixed; boundary=MM\n\n" + mixed(HTML, attached, boundary="MM")
    assert multipart("alternative", PLAIN, rich) == "Plain text.\n\n[attachment: report.pdf]"


def test_a_forwarded_message_is_text_with_its_headers() -> None:
    forwarded = (
        "Content-Type: message/rfc822\n\nFrom: Eve <eve@example.com>\nTo: ann@example.com\nX-Other: no\n"
        "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nDate: Mon, 14 May 2001 05:00:00 -0700\n\nOriginal text."
    )
    text = multipart("mixed", PLAIN, forwarded)
    assert text == (
        "Plain text.\n\n---- Forwarded message ----\nFrom: Eve <eve@example.com>\nTo: ann@example.com\n"
        "Date: Mon, 14 May 2001 05:00:00 -0700\nSubject: Grüße\n\nOriginal text."
    )


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('Content-Disposition: attachment; filename="Q1 plan.xls"', "Q1 plan.xls"),
        ("Content-Disposition: attachment; filename*=UTF-8''Gr%C3%BC%C3%9Fe.xls", "Grüße.xls"),
        ('Content-Disposition: attachment; filename*0="long "; filename*1="name.xls"', "long name.xls"),
        ("Content-Disposition: attachment; filename*0*=utf-8''%E4%BD%A0; filename*1*=%E5%A5%BD.xls", "你好.xls"),
        ('Content-Disposition: attachment; filename="=?utf-8?B?5L2g5aW9?=.xls"', "你好.xls"),
        ('Content-Disposition: attachment; filename="=?koi8-r?Q?=F0=D2?= =?koi8-r?Q?=C9.xls?="', "При.xls"),
        ('Content-Disposition: attachment; filename="Grüße.xls"', "Grüße.xls"),
        ('Content-Disposition: attachment; filename="a\n b.xls"', "a b.xls"),
        ("Content-Disposition: attachment; filename=\"EURO.xls\"; filename*=UTF-8''%E2%82%AC.xls", "€.xls"),
        ("Content-Disposition: attachment; filename*=UTF-8''%E2%82%AC.xls; filename=\"EURO.xls\"", "€.xls"),
        ('Content-Disposition: attachment; filename="a*b.xls"', "a*b.xls"),
        ("Content-Disposition: attachment", "application/vnd.ms-excel"),
        ("Content-Disposition: attachment; filename*=idna''%FF.xls", "application/vnd.ms-excel"),
        ("Content-Disposition: attachment; filename*=nonsense''plan.xls", "plan.xls"),
        ("Content-Disposition: attachment; filename=%E4%BD%A0%E5%A5%BD.xls", "你好.xls"),
        ("Content-Disposition: attachment; filename=\"UTF-8''%E4%BD%A0%20%E5%A5%BD.xls\"", "你 好.xls"),
        ("Content-Disposition: attachment; filename=\"utf-8'en'a%20b.xls\"", "a b.xls"),
        ("Content-Disposition: attachment; filename=100%25.xls", "100%25.xls"),
        ("Content-Disposition: attachment; filename=%FF%FE.xls", "%FF%FE.xls"),
        ('Content-Disposition: attachment; filename="\x1b$B2q5D\x1b(B.xls"', "会議.xls"),
    ],
)
def test_attachments_are_listed_by_name(header: str, name: str) -> None:
    part = f"Content-Type: application/vnd.ms-excel\n{header}\n\nx"
    assert multipart("mixed", PLAIN, part) == f"Plain text.\n\n[attachment: {name}]"


def test_attachment_text_is_used_only_without_a_body() -> None:
    attached = "Content-Type: text/plain\nContent-Disposition: attachment; filename=notes.txt\n\nText in a file."
    assert multipart("mixed", attached) == "Text in a file.\n\n[attachment: notes.txt]"
    assert multipart("mixed", PLAIN, attached) == "Plain text.\n\n[attachment: notes.txt]"


def test_calendars_and_tables_count_as_attachments() -> None:
    calendar = "Content-Type: text/calendar; name=invite.ics\n\nBEGIN:VCALENDAR\nSUMMARY:Lunch"
    assert multipart("alternative", PLAIN, calendar) == "Plain text."
    assert multipart("mixed", PLAIN, calendar) == "Plain text.\n\n[attachment: invite.ics]"
    assert "SUMMARY:Lunch" in multipart("mixed", calendar)


def test_a_false_multipart_keeps_its_text() -> None:
    assert body("Content-Type: multipart/mixed", "Text after all.") == "Text after all."
    assert body("Content-Type: multipart/mixed; boundary=XX", "Text after all.") == "Text after all."
    assert "Text after all." in body("Content-Type: multipart/alternative; boundary=XX", "--YY\n\nText after all.")
    assert body("Content-Type: multipart/mixed; boundary=XX", "--XX\n\nNo end") == "No end"


@pytest.mark.parametrize("kind", ["", "nonsense", "text", "text/", "text/plain; charset", 'text/plain; "', ";;;"])
def test_a_broken_content_type_keeps_the_text(kind: str) -> None:
    assert body(f"Content-Type: {kind}", "Text.") == "Text."


@pytest.mark.parametrize("depth", [50, 5000])
def test_deeply_nested_parts_are_handled_quickly(depth: int) -> None:
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(depth))
    with limit_cpu(20):
        for inside in (nested, b"Content-Type: message/rfc822\n\n" * depth + b"Subject: inside\n\n"):
            message = parse_message(b"From: ann@example.com\n" + inside + b"\nDeep text.", "here")
            assert isinstance(message, ParsedMessage)
            assert message.body.endswith("Deep text.")
            assert ("boundary" in message.body or "message/rfc822" in message.body) == (depth > 50), (
                "as it is, if too deep"
            )


# Alternatives

TRAIN = "<p>Your train leaves at 10:55 from platform 7.</p><p>Booking QX7RTZ, seat 41, 39.90 euros.</p>"


def alternative(plain: str, html: str) -> str:
    return multipart("alternative", f"Content-Type: text/plain\n\n{plain}", f"Content-Type: text/html\n\n{html}")


@pytest.mark.parametrize(
    "plain",
    [
        "This message is in HTML. Please view it with a program that can show HTML.",
        "View this email in your browser: https://example.com/v/1",
        "Your email client does not support this format.",
        "Hello!",
        "-",
        "Diese Nachricht ist leer",
    ],
)
def test_html_wins_over_plain_text_that_says_nothing(plain: str) -> None:
    assert "platform 7" in alternative(plain, TRAIN)
    assert "platform 7" in alternative(plain, f"<html><head><style>{'p {color: red} ' * 99}</style></head>{TRAIN}")


def test_plain_text_is_kept_if_it_says_what_the_html_says() -> None:
    plain = "Your train leaves at 10:55 from platform 7. Booking QX7RTZ, seat 41, 39.90 euros. -- plain"
    assert alternative(plain, TRAIN).endswith("plain")
    assert alternative("Short. -- plain", "<p>Short.</p><img src=x>").endswith("plain")
    assert alternative(f"{plain * 20} plain", "<p>Open the report</p>").endswith("plain")
    assert alternative("会議は金曜日です。\n二時に来て。plain", "<p>会議は金曜日です。二時に来て。</p>").endswith(
        "plain"
    )


# Transfer encodings


@pytest.mark.parametrize(
    "encoding", ["base64 ", "BASE64;", "base64 (by hand)", "(by hand) base64", '"base64"', "base-64", "utf-8, base64"]
)
def test_a_transfer_encoding_with_something_added_is_read(encoding: str) -> None:
    assert body(f"Content-Transfer-Encoding: {encoding}", "R3LDvMOfZQ==") == "Grüße"


@pytest.mark.parametrize(
    "footer", ["____\ndev mailing list", "-- \ndev, a list", "This is a list.", "Unsubscribe\nhttps://example.com/u"]
)
def test_a_footer_behind_base64_is_kept(footer: str) -> None:
    encoded = base64.encodebytes("Die Pumpe läuft wieder, und alle Leute am Ort wissen das.".encode()).decode()
    text = body("Content-Transfer-Encoding: base64", encoded + footer)
    assert text == "Die Pumpe läuft wieder, und alle Leute am Ort wissen das.\n" + footer


@pytest.mark.parametrize("text", ["Grüße, die Pumpe.", "Die Pumpe läuft wieder, und alle Leute am Ort wissen das."])
def test_a_warning_above_base64_is_kept(text: str) -> None:
    encoded = base64.encodebytes(text.encode()).decode()
    warning = "[EXTERNAL] Take care, this is from outside.\nDo not click."
    assert body("Content-Transfer-Encoding: base64", f"{warning}\n\n{encoded}") == f"{warning}\n{text}"
    assert body("Content-Transfer-Encoding: base64", f"{warning}\n\nabcdefghijklmnopq\n\nPat").startswith(warning)
    text = f"{warning}\n\nabcdefghijklmnopq\n\nPat."  # the long word has too few letters for base64
    assert body("Content-Transfer-Encoding: base64", text) == text


@pytest.mark.parametrize("encoding", ["quoted_printable", "QuotedPrintable", "quoted printable;"])
def test_a_misspelt_transfer_encoding_is_read(encoding: str) -> None:
    assert body(f"Content-Transfer-Encoding: {encoding}", "Gr=C3=BC=C3=9Fe") == "Grüße"


def test_odd_characters_and_padding_inside_base64_are_skipped() -> None:
    encoded = base64.b64encode(b"one two three " * 20).decode()
    lines = "\n".join(encoded[start : start + 76] for start in range(0, len(encoded), 76))
    assert (
        body("Content-Transfer-Encoding: base64", lines.replace("\n", "\n!!\n", 1)) == ("one two three " * 20).strip()
    )
    assert body("Content-Transfer-Encoding: base64", "b25lIA==\ndHdv\n") == "one two"


UUENCODED = "begin 644 report.txt\n,5&AE(')E<&]R=\"X*\n`\nend\n"


def test_uuencoded_text_becomes_a_file() -> None:
    message = parse(f"From: ann@example.com\n\nBelow.\n\n{UUENCODED}\nBehind.\n")
    assert message.body == "Below.\n\n\nBehind.\n\n[attachment: report.txt]"
    assert [(file.name, file.data) for file in message.files] == [("report.txt", b"The report.\n")]
    assert body("Content-Type: text/plain", "begin-base64 644 a.txt\nVGV4dA==\n====\n") == "[attachment: a.txt]"
    assert body("Content-Transfer-Encoding: x-uuencode", UUENCODED) == "The report."
    assert body("Content-Type: text/plain", UUENCODED.replace("644", "100644")) == "[attachment: report.txt]"
    assert body("Content-Type: text/plain", "begin 644 times\nwe met, again.") == "begin 644 times\nwe met, again."


# Conventions of plain text


def test_flowed_text_is_unwrapped() -> None:
    flowed = "Content-Type: text/plain; format=flowed"
    assert body(f"{flowed}; delsp=yes", "See https://example.com/quar \nterly.pdf for the  \nrest.") == (
        "See https://example.com/quarterly.pdf for the rest."
    )
    assert body(flowed, "One \ntwo.\n> quoted \n> more\n>> deep \n From here\n-- \nAnn") == (
        "One two.\n> quoted more\n>> deep \nFrom here\n-- \nAnn"
    )
    assert body("Content-Type: text/plain", "One \ntwo") == "One \ntwo"


def test_pgp_signatures_are_removed_and_encrypted_text_is_told() -> None:
    signed = (
        "Above.\n-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nPaid.\n- -- Ann\n"
        "-----BEGIN PGP SIGNATURE-----\n\niQEz\n-----END PGP SIGNATURE-----\nBelow."
    )
    assert body("Content-Type: text/plain", signed) == "Above.\nPaid.\n-- Ann\n\nBelow."
    secret = "Hi.\n-----BEGIN PGP MESSAGE-----\n\nhQEM\n-----END PGP MESSAGE-----"
    assert body("Content-Type: text/plain", secret) == "Hi.\n[encrypted: PGP]"
    cut = f"Hi.\n-----BEGIN PGP MESSAGE-----\nVersion: 1\n\n{'hQEMA' * 12}\n{'hQEMA' * 12}\n\nList footer"
    assert body("Content-Type: text/plain", cut) == "Hi.\n[encrypted: PGP]\nList footer"
    mentioned = "Look for -----BEGIN PGP MESSAGE-----\nin the text."
    assert body("Content-Type: text/plain", mentioned) == mentioned


@pytest.mark.parametrize("kind", ['encrypted; protocol="application/pgp-encrypted"', "mixed"])
def test_a_message_encrypted_by_pgp_is_told(kind: str) -> None:
    control = 'Content-Type: application/pgp-encrypted; name="PGPMIME Versions Identification"\n\nVersion: 1'
    content = 'Content-Type: application/octet-stream; name="encrypted.asc"\n\n-----BEGIN PGP MESSAGE-----'
    assert multipart(kind, control, content) == "[encrypted: PGP]\n\n[attachment: encrypted.asc]"


def test_the_icon_of_a_file_is_no_attachment() -> None:
    icon = 'Content-Type: application/{}; name="{}"\nContent-Transfer-Encoding: base64\n\nAAUWBwACAAA='
    file = 'Content-Type: application/msword; name="Report.doc"\n\nx'
    double = "Content-Type: multipart/appledouble; boundary=YY\n\n"
    both = mixed(icon.format("applefile", "Report.doc"), file, boundary="YY")
    assert multipart("mixed", PLAIN, double + both) == "Plain text.\n\n[attachment: Report.doc]"
    other = icon.format("octet-stream", "._Report.doc")
    assert multipart("mixed", PLAIN, file, other) == "Plain text.\n\n[attachment: Report.doc]"
    assert multipart("mixed", PLAIN, other.replace("AAUW", "AAAA")) == "Plain text.\n\n[attachment: ._Report.doc]"


def test_text_with_a_file_in_yenc_becomes_a_file() -> None:
    content = bytes(range(256)) * 2
    critical = {0, 10, 13, 61}
    shifted = (bytes([(code + 42) % 256]) for code in content)
    encoded = b"".join(b"=" + bytes([(each[0] + 64) % 256]) if each[0] in critical else each for each in shifted)
    lines = b"\r\n".join([encoded[:300], encoded[300:]])
    text = b"Look:\n=ybegin line=300 size=512 name=a b.bin\r\n" + lines + b"\r\n=yend size=512\r\nBye."
    message = parse(b"From: a@b\nContent-Type: text/plain; charset=iso-8859-1\n\n" + text)
    assert message.body == "Look:\nBye.\n\n[attachment: a b.bin]"
    assert message.files[0].data == content
    for begin in ("=ybegin line=1 name=x", "=ybegin line=1"):
        assert body("Content-Type: text/plain", f"{begin}\nnothing") == f"{begin}\nnothing"
    named = body("Content-Type: text/plain", "=ybegin line=1\n=ybegin name=x\nKK\n=yend size=2\n")
    assert named == "=ybegin line=1\n\n[attachment: x]"


@pytest.mark.parametrize("end", ["", "\r!", "\n"])
def test_a_long_line_that_begins_a_file_in_yenc_takes_linear_time(end: str) -> None:
    with limit_cpu(2):
        body("Content-Type: text/plain", f"=ybegin {'name=' * 100_000}{end}")


# Messages inside other formats

FORWARDED = "From: carol@example.com\nSubject: The lease\n\nThe lease ends on 30 June.\n"
SHOWN = "---- Forwarded message ----\nFrom: carol@example.com\nSubject: The lease\n\nThe lease ends on 30 June."


@pytest.mark.parametrize("kind", ["message/rfc822", "message/global", "application/octet-stream", "text/plain"])
@pytest.mark.parametrize("encoding", ["base64", "quoted-printable"])
def test_a_forwarded_message_in_a_file_is_text(kind: str, encoding: str) -> None:
    data = base64.encodebytes(FORWARDED.encode()).decode() if encoding == "base64" else FORWARDED.replace("J", "=4A")
    part = f"Content-Type: {kind}; name=lease.EML\nContent-Disposition: attachment\n"
    assert (
        multipart("mixed", PLAIN, f"{part}Content-Transfer-Encoding: {encoding}\n\n{data}") == f"Plain text.\n\n{SHOWN}"
    )


def test_a_file_that_is_no_message_stays_a_file() -> None:
    part = "Content-Type: application/octet-stream; name=a.eml\n\nno headers"
    assert multipart("mixed", PLAIN, part) == "Plain text.\n\n[attachment: a.eml]"


def test_messages_inside_messages_are_opened_to_a_limited_depth() -> None:
    message = FORWARDED
    for _ in range(15):
        encoded = base64.encodebytes(message.encode()).decode()
        message = (
            "From: a@example.com\nContent-Type: application/octet-stream; name=a.eml\n"
            f"Content-Transfer-Encoding: base64\n\n{encoded}"
        )
    assert parse(message).body.count("---- Forwarded message ----") == 10
    file = f"Content-Type: application/octet-stream; name=a.eml\n\n{FORWARDED}"
    assert multipart("mixed", *[file] * 60).count("---- Forwarded message ----") == 50


def der(tag: int, *contents: bytes) -> bytes:
    """Return an ASN.1 value in DER."""
    content = b"".join(contents)
    length = bytes([len(content)]) if len(content) < 128 else b"\x82" + len(content).to_bytes(2, "big")
    return bytes([tag]) + length + content


SIGNED_DATA, ENVELOPED_DATA, DATA = (b"\x2a\x86\x48\x86\xf7\x0d\x01\x07" + bytes([n]) for n in (2, 3, 1))


def smime(content_type: bytes, content: bytes, name: str = "smime.p7m") -> str:
    encapsulated = der(0x30, der(6, DATA), der(0xA0, der(4, content)))
    data = der(0x30, der(2, b"\1"), der(0x31), encapsulated, der(0x31))
    encoded = base64.encodebytes(der(0x30, der(6, content_type), der(0xA0, data))).decode()
    kind = "application/pkcs7-mime" if name == "smime.p7m" else "application/octet-stream"
    return f"Content-Type: {kind}; name={name}\nContent-Transfer-Encoding: base64\n\n{encoded}"


@pytest.mark.parametrize("name", ["smime.p7m", "mail.p7m"])
def test_the_text_of_a_signed_message_is_read(name: str) -> None:
    html = b"Content-Type: text/html\r\n\r\n<p>The lease ends on 30 June.</p>"
    assert multipart("mixed", smime(SIGNED_DATA, html, name)) == "The lease ends on 30 June."


def test_an_encrypted_or_damaged_message_is_told() -> None:
    assert multipart("mixed", smime(ENVELOPED_DATA, b"x")) == "[encrypted: S/MIME]\n\n[attachment: smime.p7m]"
    damaged = multipart_message("mixed", PLAIN, "Content-Type: application/pkcs7-mime\n\nMIIx")
    assert (damaged.body, damaged.files[0].problem) == ("Plain text.\n\n[attachment: smime.p7m]", "cannot be read")


def tnef(*attributes: tuple[int, bytes]) -> str:
    data = struct.pack("<IH", 0x223E9F78, 1)
    for number, value in attributes:
        data += struct.pack("<BHHI", 1, number, 6, len(value)) + value + struct.pack("<H", sum(value) & 0xFFFF)
    encoded = base64.encodebytes(data).decode()
    return f"Content-Type: application/ms-tnef; name=winmail.dat\nContent-Transfer-Encoding: base64\n\n{encoded}"


def mapi(*properties: tuple[int, int, bytes]) -> bytes:
    """Return MAPI properties of variable length: type, tag and value."""
    packed = struct.pack("<I", len(properties))
    for kind, tag, value in properties:
        packed += struct.pack("<HHII", kind, tag, 1, len(value)) + value + b"\0" * (-len(value) % 4)
    return packed


def test_the_text_and_files_in_winmail_dat_are_read() -> None:
    files = [
        (0x9002, b""),
        (0x8010, b"A~1.TXT\0"),
        (0x800F, b"Notes."),
        (0x9005, mapi((0x1F, 0x3707, "äb.txt".encode("utf-16-le")))),
    ]
    message = multipart_message("mixed", "Content-Type: text/plain\n\n", tnef((0x800C, b"The lease.\0"), *files))
    assert message.body == "The lease.\n\n[attachment: äb.txt]"
    assert [(file.name, file.data) for file in message.files] == [("äb.txt", b"Notes.")]
    rtf = compress(rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}The {\b lease}\par}")
    assert multipart("mixed", tnef((0x9003, mapi((0x102, 0x1009, rtf))))) == "The lease"
    html = b"<p>The <b>lease</b></p>"
    assert multipart("mixed", tnef((0x9003, mapi((0x102, 0x1013, html))))) == "The lease"
    assert multipart("mixed", PLAIN, tnef((0x800C, b"Plain text."))) == "Plain text."
    renamed = tnef((0x800C, b"The lease.")).replace("winmail", "att1").replace("ms-tnef", "octet-stream")
    assert multipart("mixed", renamed) == "The lease."


def test_a_winmail_dat_that_claims_too_much_is_harmless() -> None:
    with limit_cpu(5):
        rtf_bytes = compress(b"{\\rtf1 Plain text.}")
        for value in (
            struct.pack("<IHHI", 2**32 - 1, 0x1F, 0x1000, 2**32 - 1),
            struct.pack("<I", 2**32 - 1) + b"\2\x10" * 9,
        ):
            assert multipart("mixed", PLAIN, tnef((0x9003, value), (0x9005, value))) == "Plain text."
        for damaged in (b"x", b"x" * 16, rtf_bytes[:-4], rtf_bytes[:-1] + b"x"):
            assert multipart("mixed", PLAIN, tnef((0x9003, mapi((0x102, 0x1009, damaged))))) == "Plain text."
        broken = "Content-Type: application/ms-tnef\n\nx"
        assert multipart_message("mixed", PLAIN, broken).files[0].problem == "cannot be read"


@pytest.mark.parametrize("declared", ["; boundary=other", "", '; boundary="'])
def test_a_wrong_boundary_is_corrected(declared: str) -> None:
    content = mixed(PLAIN, PDF, boundary="=_real").replace("--=_real--\n", "")
    assert body(f"Content-Type: multipart/mixed{declared}", content) == "Plain text.\n\n[attachment: report.pdf]"


# Calendars

EVENT = (
    "BEGIN:VCALENDAR\nMETHOD:{method}\nBEGIN:VEVENT\nSUMMARY:Budget review for the nor\n thern site\n"
    "DTSTART;TZID=Europe/Berlin:20240314T140000\nDTEND;TZID=Europe/Berlin:20240314T150000\n"
    "RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE;UNTIL=20240630T000000Z\nLOCATION:Room 4\\, second floor\n"
    "ORGANIZER;CN=Pat:mailto:pat@example.com\nATTENDEE;CN=Ann;PARTSTAT=ACCEPTED:MAILTO:ann@example.com\n"
    "{more}END:VEVENT\nEND:VCALENDAR\n"
)
LINES = (
    "Budget review for the northern site\nWhen: Thu 2024-03-14 14:00 to 15:00 Europe/Berlin\n"
    "Repeats: every 2 weeks on Mon, Wed until 2024-06-30\nWhere: Room 4, second floor\n"
    "Organizer: Pat <pat@example.com>\nAttendees: Ann <ann@example.com> (accepted)"
)


@pytest.mark.parametrize(
    ("method", "more", "first"),
    [
        ("REQUEST", "", "Invitation: "),
        ("REQUEST", "SEQUENCE:2\n", "Updated invitation: "),
        ("CANCEL", "", "Cancelled: "),
        ("REPLY", "", "Reply: "),
        ("PUBLISH", "", "Event: "),
    ],
)
def test_a_calendar_becomes_lines(method: str, more: str, first: str) -> None:
    assert body("Content-Type: text/calendar; charset=utf-8", EVENT.format(method=method, more=more)) == first + LINES


@pytest.mark.parametrize("piece", [";ENCODING=QUOTED-PRINTABLE", "DTSTART:", "=\n", ";TZID=(GMT", "DTSTART;x=2024"])
def test_odd_calendars_are_read_quickly(piece: str) -> None:
    with limit_cpu(5):
        body("Content-Type: text/calendar", f"BEGIN:VCALENDAR\nA;ENCODING=QUOTED-PRINTABLE:{piece * 60_000}")


@pytest.mark.parametrize("name", ["CONFERENCE;VALUE=URI", "X-GOOGLE-CONFERENCE", "X-MICROSOFT-SKYPETEAMSMEETINGURL"])
def test_the_address_of_a_call_is_told(name: str) -> None:
    calendar = EVENT.format(method="REQUEST", more=f"{name}:https://meet.example.com/a\n")
    assert "\nJoin: https://meet.example.com/a\n" in body("Content-Type: text/calendar", calendar)


def test_a_calendar_beside_text_is_added() -> None:
    calendar = "Content-Type: text/calendar\n\n" + EVENT.format(method="REQUEST", more="")
    assert multipart("alternative", PLAIN, HTML, calendar) == f"Plain text.\n\nInvitation: {LINES}"
    attached = calendar.replace("\n", "; name=i.ics\nContent-Disposition: attachment\n", 1)
    assert multipart("mixed", PLAIN, attached) == f"Plain text.\n\nInvitation: {LINES}\n\n[attachment: i.ics]"
    repeated = f"Content-Type: text/plain\n\nInvitation: {LINES}"
    assert multipart("alternative", repeated, calendar) == f"Invitation: {LINES}"


@pytest.mark.parametrize(
    ("lines", "when"),
    [
        ("DTSTART;VALUE=DATE:20240314\nDTEND;VALUE=DATE:20240315", "Thu 2024-03-14"),
        ("DTSTART;VALUE=DATE:20240314\nDTEND;VALUE=DATE:20240317", "Thu 2024-03-14 to Sat 2024-03-16"),
        ("DTSTART:20240314T140000Z\nDURATION:PT90M", "Thu 2024-03-14 14:00 to 15:30 UTC"),
        ("DTSTART:20240314T230000Z\nDTEND:20240315T010000Z", "Thu 2024-03-14 23:00 UTC to Fri 2024-03-15 01:00 UTC"),
        ("DTSTART;TZID=Our own:20240314T140000", "Thu 2024-03-14 14:00 Our own"),
        ("DTSTART:20240314T140000", "Thu 2024-03-14 14:00"),
        ("DTSTART:2024-03-14T14:00:00Z", "Thu 2024-03-14 14:00 UTC"),
        ("DTSTART:2024-03-14 14:00:00.000\nDTEND:2024-03-14 15:00", "Thu 2024-03-14 14:00 to 15:00"),
        ("DTSTART;TZID=Europe/Berlin:20240314T1400", "Thu 2024-03-14 14:00 Europe/Berlin"),
        ("DTSTART;VALUE=DATE:2024-03-14", "Thu 2024-03-14"),
        ("DTSTART;TZID=(GMT+01:00) Berlin:20240314T140000", "Thu 2024-03-14 14:00 (GMT+01:00) Berlin"),
        ('DTSTART;TZID="(UTC-05:00) Lima, Quito":20240314T140000', "Thu 2024-03-14 14:00 (UTC-05:00) Lima, Quito"),
        (
            "DTSTART:20240314T140000Z\nRRULE:FREQ=MONTHLY;BYDAY=-1TH\nEXDATE:20240328T140000Z,20240425T140000Z",
            "Thu 2024-03-14 14:00 UTC\nRepeats: every month on last Thu except 2024-03-28, 2024-04-25",
        ),
    ],
)
def test_the_time_of_an_event_is_told_with_its_zone(lines: str, when: str) -> None:
    calendar = f"BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:x\n{lines}\nEND:VEVENT\nEND:VCALENDAR"
    assert body("Content-Type: text/calendar", calendar) == f"Event: x\nWhen: {when}"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("asn1crypto.cms", "compressed_rtf", "icalendar"):
        monkeypatch.setitem(sys.modules, name, None)
    rtf = tnef((0x9003, mapi((0x102, 0x1009, b"x"))))
    calendar = "Content-Type: text/calendar; name=a.ics\n\n" + EVENT.format(method="REQUEST", more="")
    message = multipart_message("mixed", PLAIN, smime(SIGNED_DATA, b"x"), rtf, calendar)
    assert [file.problem for file in message.files[:2]] == [
        "extractor missing: asn1crypto",
        "extractor missing: compressed-rtf",
    ]
    with AttachmentReader(AttachmentLimits()) as reader:
        assert reader.read(message.files[2]).problem == "extractor missing: icalendar"


def test_fields_of_a_report_on_delivery_are_read() -> None:
    report = (
        "Content-Type: message/delivery-status\n\nReporting-MTA: dns; mx.example.com\n\n"
        "Final-Recipient: rfc822; bob@example.com\nDiagnostic-Code: smtp; 550 no such user\n"
    )
    assert "Diagnostic-Code: smtp; 550 no such user" in multipart("report", PLAIN, report)


def test_a_file_inside_the_richer_alternative_is_kept() -> None:
    """Send a PDF as Apple Mail does: inline, beside the HTML of an alternative."""
    pdf = PDF.replace("\nContent-Transfer", "\nContent-Disposition: inline; filename=report.pdf\nContent-Transfer")
    rich = f"Content-Type: multipart/mixed; boundary=YY\n\n--YY\n{HTML}\n--YY\n{pdf}\n--YY--"
    message = multipart_message("alternative", PLAIN, rich)
    assert message.body == "Plain text.\n\n[attachment: report.pdf]"
    assert [each.name for each in message.files] == ["report.pdf"]
    picture = rich.replace("application/pdf", "image/png")
    assert multipart("alternative", PLAIN, picture) == "Plain text."


@pytest.mark.parametrize("text", ["Hello there, this is not encoded.", "Is it due on Monday? Yes.\nSee you."])
def test_plain_text_that_is_declared_base64_stays(text: str) -> None:
    assert body("Content-Type: text/plain\nContent-Transfer-Encoding: base64", text) == text


def test_words_that_are_declared_base64_stay() -> None:
    text = "We found three old chairs\nand one good table there\n"
    assert body("Content-Transfer-Encoding: base64", text) == text.strip()


def test_base64_with_spaces_is_decoded() -> None:
    assert body("Content-Type: text/plain\nContent-Transfer-Encoding: base64", "SGVs bG8g dGhl cmU=") == "Hello there"


def test_signed_text_on_the_line_of_its_marks_stays() -> None:
    signed = "-----BEGIN PGP SIGNED MESSAGE----- Paid. -----BEGIN PGP SIGNATURE-----\nx\n-----END PGP SIGNATURE-----"
    assert body("Content-Type: text/plain", signed) == "Paid."


def test_signed_blocks_without_line_ends_take_linear_memory() -> None:
    block = "-----BEGIN PGP SIGNED MESSAGE----------BEGIN PGP SIGNATURE----------END PGP SIGNATURE-----"
    assert len(body("Content-Type: text/plain", "x" * 1_000 + block * 2_000)) < 5_000


def test_a_calendar_in_another_form_becomes_lines() -> None:
    event = EVENT.format(method="REQUEST", more="")
    assert body("Content-Type: text/plain", event) == f"Invitation: {LINES}"
    assert multipart("mixed", PLAIN, f"Content-Type: text/plain\n\n{event}") == f"Plain text.\n\nInvitation: {LINES}"
    assert body("Content-Type: text/x-vcalendar", event) == f"Invitation: {LINES}"
    start = b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:Gr\xc3\r\n \xbc\xc3\x9fe\r\n"
    end = b"END:VEVENT\r\nEND:VCALENDAR\r\n"
    assert body("Content-Type: text/calendar; charset=utf-8", start + end) == "Event: Grüße"
    more = b"X-ALT-DESC;FMTTYPE=text/html:Bring <b>it</b>\r\nCONFERENCE;VALUE=URI:https://example.com/j\r\n"
    lines = "Event: Grüße\nJoin: https://example.com/j\nBring it"
    assert body("Content-Type: text/calendar; charset=utf-8", start + more + end) == lines
    with AttachmentReader(AttachmentLimits()) as reader:
        attached = parse(b"From: a@b\nContent-Type: application/ics; name=a.ics\n\n" + start + end)
        assert reader.read(attached.files[0]).text == "Event: Grüße"


def test_times_at_which_somebody_is_busy_are_told() -> None:
    calendar = (
        "BEGIN:VCALENDAR\nMETHOD:REPLY\nBEGIN:VFREEBUSY\nDTSTART:20240305T080000Z\nDTEND:20240306T080000Z\n"
        "ATTENDEE:mailto:bob@example.com\nFREEBUSY;FBTYPE=FREE:20240305T080000Z/PT1H\n"
        "FREEBUSY:20240305T090000Z/PT1H,20240305T120000Z/20240305T133000Z\nEND:VFREEBUSY\nEND:VCALENDAR"
    )
    assert body("Content-Type: text/calendar", calendar) == (
        "Free/busy times\nWhen: Tue 2024-03-05 08:00 UTC to Wed 2024-03-06 08:00 UTC\n"
        "Busy: Tue 2024-03-05 09:00 UTC to 10:00, Tue 2024-03-05 12:00 UTC to 13:30\nAttendees: bob@example.com"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_description_with_bare_line_ends_is_whole(end: str) -> None:
    calendar = (
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Plan\nDESCRIPTION:Bring\nkeys: the new ones\nand see http://x.example\n\n"
        "Thanks, fol\n ded\nLOCATION:Room 4\nEND:VEVENT\nEND:VCALENDAR"
    )
    assert body("Content-Type: text/calendar", calendar.replace("\n", end)) == (
        "Event: Plan\nWhere: Room 4\nBring\nkeys: the new ones\nand see http://x.example\n\nThanks, folded"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_values_of_old_calendars_in_quoted_printable_are_read(end: str) -> None:
    calendar = (
        "BEGIN:VCALENDAR\nVERSION:1.0\nBEGIN:VEVENT\nSUMMARY;ENCODING=QUOTED-PRINTABLE;CHARSET=UTF-8:Gr=C3=BC=C3=9Fe\n"
        "DTSTART:20240314T140000Z\nDESCRIPTION;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:Bring the =\nkeys.=0D=0AThanks\n"
        "LOCATION:Room 4\nEND:VEVENT\nEND:VCALENDAR"
    )
    assert body("Content-Type: text/x-vcalendar", calendar.replace("\n", end)) == (
        "Event: Grüße\nWhen: Thu 2024-03-14 14:00 UTC\nWhere: Room 4\nBring the keys.\nThanks"
    )


@pytest.mark.parametrize("kind", ["text/calendar", "text/plain"])
def test_a_calendar_with_impossible_times_loses_nothing_else(kind: str) -> None:
    event = (
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:x\nDTSTART;VALUE=DATE:00010101\nDTEND;VALUE=DATE:00010101\n"
        "END:VEVENT\nEND:VCALENDAR"
    )
    assert body(f"Content-Type: {kind}", event) == "Event: x"
    assert multipart("mixed", PLAIN, f"Content-Type: {kind}; name=a.ics\n\n{event}").startswith("Plain text.")
    endless = event.replace("00010101\nDTEND;VALUE=DATE:00010101", "99991231\nDURATION:P5D")
    assert body(f"Content-Type: {kind}", endless) == "Event: x\nWhen: Fri 9999-12-31"


def test_encoded_reports_and_messages_are_read() -> None:
    report = base64.encodebytes(b"Reporting-MTA: dns; mx.example.com\n\nAction: failed\n").decode()
    kind = "Content-Transfer-Encoding: base64\nContent-Type: message/"
    assert multipart("report", PLAIN, f"{kind}delivery-status\n\n{report}") == (
        "Plain text.\n\nReporting-MTA: dns; mx.example.com\n\nAction: failed"
    )
    inner = base64.encodebytes(b"Content-Type: text/html\n\n<p>The <b>lease</b></p>").decode()
    assert body(f"{kind}rfc822", inner) == "---- Forwarded message ----\n\nThe lease"


def test_a_message_attached_inside_a_winmail_dat_is_read() -> None:
    inner = mapi((0x1E, 0x0C1A, b"Ann\0"), (0x1E, 0x0037, b"The lease\0"), (0x1E, 0x1000, b"It is signed.\0"))
    files = ((0x9002, b""), (0x8010, b"plan.txt\0"), (0x800F, b"Dig here."))
    raw = base64.b64decode(tnef((0x9003, inner), *files).partition("\n\n")[2])
    attached = mapi((0x1E, 0x3001, b"The lease\0"), (0x0D, 0x3701, b"i" * 16 + raw))
    outer = ((0x9002, b""), (0x8010, b"Untitled\0"), (0x800F, b"a MAPI 1.0 object"), (0x9005, attached))
    message = multipart_message("mixed", PLAIN, tnef(*outer))
    heading = "---- Forwarded message ----\nFrom: Ann\nSubject: The lease\n\n"
    assert message.body == f"Plain text.\n\n{heading}It is signed.\n\n[attachment: plan.txt]"
    attached_file = tnef((0x9002, b""), (0x8010, b"lease.EML\0"), (0x800F, FORWARDED.encode()))
    assert multipart("mixed", PLAIN, attached_file) == f"Plain text.\n\n{SHOWN}"
    for _ in range(60):  # deeper than is opened
        attached = mapi((0x0D, 0x3701, b"i" * 16 + raw))
        raw = base64.b64decode(tnef((0x9002, b""), (0x9005, attached)).partition("\n\n")[2])
    assert multipart("mixed", PLAIN, tnef((0x9002, b""), (0x800F, raw))).startswith("Plain text.")


def test_an_attachment_that_is_only_declared_text_is_not_shown() -> None:
    data = base64.encodebytes(bytes(range(256))).decode()
    headers = "Content-Type: text/pgp; name=a.pgp\nContent-Disposition: attachment\nContent-Transfer-Encoding: base64"
    assert multipart("mixed", f"{headers}\n\n{data}") == "[attachment: a.pgp]"


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ("DTSTART;TZID=Europe/Berlin:20240314T140000", "DTSTART:soon"),
        ("LOCATION:Room 4\\, second floor", "LOCATION;Room:4"),
        ("LOCATION:Room 4\\, second floor", "in Room 4"),
        ("RRULE:FREQ=WEEKLY", "RRULE:FREQ=SOMETIMES"),
        ("END:VEVENT\nEND:VCALENDAR\n", ""),
        ("END:VCALENDAR", "END:VTODO"),
    ],
)
def test_a_broken_line_of_a_calendar_loses_nothing_else(broken: str, line: str) -> None:
    calendar = EVENT.format(method="REQUEST", more="")
    assert broken in calendar
    text = body("Content-Type: text/calendar", calendar.replace(broken, line))
    assert text.startswith("Invitation: Budget review for the northern site\n")
    assert "Organizer: Pat <pat@example.com>\nAttendees: Ann <ann@example.com> (accepted)" in text


def test_an_encrypted_message_with_several_parts_is_told() -> None:
    control = "Content-Type: application/pgp-encrypted\n\nVersion: 1\n"
    secret = "Content-Type: application/octet-stream; name=a.asc\n\n-----BEGIN PGP MESSAGE-----\n"
    assert multipart("encrypted", control, secret) == "[encrypted: PGP]\n\n[attachment: a.asc]"


def test_spaces_before_the_colons_of_part_headers_are_skipped() -> None:
    part = "Content-Type : text/plain\nContent-Transfer-Encoding\t: base64\n\nR3LDvMOfZQ=="
    assert multipart("mixed", part) == "Grüße"
    message = f"From : carol@example.com\nSubject : Old\n{part}"
    for kind in ("application/octet-stream; name=a.eml", "application/eml"):
        text = multipart("mixed", PLAIN, f"Content-Type: {kind}\n\n{message}")
        assert text == "Plain text.\n\n---- Forwarded message ----\nFrom: carol@example.com\nSubject: Old\n\nGrüße"


@pytest.mark.parametrize("html", ["<div dir=ltr>One <b>two</b></div>", "\n<p>One</p><table><tr><td>two</table>\n"])
def test_html_that_is_declared_plain_text_is_converted(html: str) -> None:
    assert body("Content-Type: text/plain", html).split() == ["One", "two"]
    for text in ("<div>\nis a tag of HTML", "<patrick@example.com> wrote </div>", "Use <p>x</p>"):
        assert body("Content-Type: text/plain", text) == text
