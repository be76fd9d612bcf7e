"""Hostile messages: dates, encodings, texts, HTML and attached files."""

import bz2
import gzip
import io
import tarfile
import zlib

from tests.fuzzing.hostile_registry import (
    TOKEN,
    attached,
    head,
    hostile,
    html_message,
    multipart,
    plain,
    zip_file,
)

# Dates


@hostile("date overflow")
def _() -> bytes:
    return head("date overflow", date="Tue, 99 Mar 99999999999 99:99:99 +9999") + TOKEN.encode()


@hostile("date at the end of time")
def _() -> bytes:
    return head("date at the end of time", date="Fri, 31 Dec 9999 23:59:59 -2359") + TOKEN.encode()


@hostile("date of digits")
def _() -> bytes:
    return head("date of digits", date="9" * 10_000) + TOKEN.encode()


# Transfer encodings and charsets


@hostile("quoted-printable bomb")
def _() -> bytes:
    text = TOKEN + "\r\n" + "=\r\n" * 300_000 + "=3D" * 300_000 + "=XX=" * 1000
    return multipart("quoted-printable bomb", plain(text, "Content-Transfer-Encoding: quoted-printable\r\n"))


@hostile("base64 that is none")
def _() -> bytes:
    return multipart(
        "base64 that is none", plain(TOKEN + " !!! " * 100, "Content-Transfer-Encoding: base64\r\n"), plain()
    )


@hostile("uuencode without end")
def _() -> bytes:
    lines = "begin 644 a.txt\r\n" + "M" * 61 + "\r\n"
    return head("uuencode without end") + f"{TOKEN}\r\n{lines * 2000}\r\nbegin 999999999999 ../../x\r\n".encode()


@hostile("unknown charset")
def _() -> bytes:
    part = b"Content-Type: text/plain; charset=x-klingon\r\n\r\n" + TOKEN.encode() + b" \xff\xfe\x80\r\n"
    return multipart("unknown charset", part)


@hostile("charset that runs code")
def _() -> bytes:
    part = (
        b"Content-Type: text/plain; charset=unicode_escape\r\n\r\n" + TOKEN.encode() + b" \\ud800 \\x00 \\N{BELL}\r\n"
    )
    other = b"Content-Type: text/plain; charset=zlib_codec\r\n\r\n" + zlib.compress(bytes(10**6))
    return multipart("charset that runs code", part, other)


@hostile("utf-7")
def _() -> bytes:
    part = (
        b"Content-Type: text/plain; charset=utf-7\r\n\r\n"
        + TOKEN.encode()
        + b" +2AA-x+AAA- +"
        + b"A" * 10_000
        + b"\r\n"
    )
    return multipart("utf-7", part)


@hostile("shift states")
def _() -> bytes:
    part = b"Content-Type: text/plain; charset=iso-2022-jp\r\n\r\n" + TOKEN.encode() + b"\r\n" + b"\x1b$B" * 50_000
    return multipart("shift states", part)


@hostile("half characters")
def _() -> bytes:
    part = b"Content-Type: text/html\r\n\r\n<p>" + TOKEN.encode() + b" &#xD800; &#0; &#1114112; \xed\xa0\x80</p>"
    return multipart("half characters", part)


# Text


@hostile("one line of 10 MB")
def _() -> bytes:
    return head("one line of 10 MB") + TOKEN.encode() + b" " + b"x" * 10_000_000


@hostile("a million lines")
def _() -> bytes:
    return head("a million lines") + TOKEN.encode() + b"\r\n" * 1_000_000 + b"end"


@hostile("quotes of quotes")
def _() -> bytes:
    lines = "".join(f"{'> ' * depth}On Monday, Bob wrote:\r\n" for depth in range(1500))
    return head("quotes of quotes") + f"{TOKEN}\r\n{lines}".encode()


@hostile("combining characters")
def _() -> bytes:
    return (
        head("combining characters", "Content-Type: text/plain; charset=utf-8")
        + f"{TOKEN} a{chr(0x301) * 500_000}".encode()
    )


@hostile("invisible text")
def _() -> bytes:
    return (
        head("invisible text", "Content-Type: text/plain; charset=utf-8") + f"{TOKEN} {chr(0x200B) * 300_000}".encode()
    )


# HTML


@hostile("a million divs")
def _() -> bytes:
    return html_message("a million divs", f"<p>{TOKEN}</p>" + "<div>" * 1_000_000)


@hostile("a table in a table")
def _() -> bytes:
    return html_message("a table in a table", f"<p>{TOKEN}</p>" + "<table><tr><td>" * 30_000 + "x")


@hostile("formats that are not closed")
def _() -> bytes:
    return html_message("formats that are not closed", f"<p>{TOKEN}</p>" + "<a><b><i><p>" * 10_000 + "x")


@hostile("an attribute of 3 MB")
def _() -> bytes:
    return html_message("an attribute of 3 MB", f"<p title='{'x' * 3_000_000}'>{TOKEN}</p>")


@hostile("a comment that does not end")
def _() -> bytes:
    return html_message("a comment that does not end", f"<p>{TOKEN}</p>" + "<!--" * 200_000)


# Attachments


@hostile("zip bomb")
def _() -> bytes:
    return multipart("zip bomb", plain(), attached("a.zip", zip_file({"a": bytes(50_000_000)})))


@hostile("document bomb")
def _() -> bytes:
    xml = b'<w:document xmlns:w="x"><w:body>' + b"<w:p>" * 3_000_000
    return multipart("document bomb", plain(), attached("a.docx", zip_file({"word/document.xml": xml})))


@hostile("entities")
def _() -> bytes:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "bomb"}">' for n in range(12))
    text = "<w:body><w:p><w:r><w:t>&e11;</w:t></w:r></w:p></w:body>"
    xml = f"<!DOCTYPE x [{entities}]><w:document xmlns:w='x'>{text}</w:document>"
    return multipart("entities", plain(), attached("a.docx", zip_file({"word/document.xml": xml.encode()})))


@hostile("archives in archives")
def _() -> bytes:
    inner = bytes(1_000_000)
    for _ in range(20):
        inner = zip_file({"a.zip": inner})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("../../etc/passwd")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    files = [
        ("a.zip", inner),
        ("a.tar", packed.getvalue()),
        ("a.gz", gzip.compress(inner, mtime=0)),
        ("a.bz2", bz2.compress(inner)),
    ]
    return multipart("archives in archives", plain(), *(attached(*each) for each in files))


@hostile("a PDF of loops")
def _() -> bytes:
    pdf = b"%PDF-1.7\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    pdf += b"2 0 obj<</Type/Pages/Kids[2 0 R 2 0 R]/Count 999999999>>endobj\n"
    pdf += b"xref\n0 3\n0000000000 65535 f \n0000000009 00000 n \n0000000054 00000 n \n"
    pdf += b"trailer<</Root 1 0 R/Size 3/Prev 0>>\n"
    return multipart("a PDF of loops", plain(), attached("a.pdf", pdf + b"startxref\n120\n%%EOF", "application/pdf"))


@hostile("a PDF that unpacks to 200 MB")
def _() -> bytes:
    stream = zlib.compress(zlib.compress(b"BT (x) Tj ET\n" * 16_000_000, 9), 9)
    head = f"4 0 obj<</Length {len(stream)}/Filter[/FlateDecode/FlateDecode]>>stream\n".encode()
    pdf = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    pdf += b"3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R>>endobj\n" + head + stream + b"\nendstream endobj\n"
    pdf += b"trailer<</Root 1 0 R>>\n%%EOF"
    return multipart("a PDF that unpacks to 200 MB", plain(), attached("a.pdf", pdf, "application/pdf"))


@hostile("rich text of groups")
def _() -> bytes:
    rtf = b"{\\rtf1 " + b"{" * 200_000 + b"\\bin999999999 x" + b"}" * 10
    return multipart("rich text of groups", plain(), attached("a.rtf", rtf, "application/rtf"))


@hostile("a calendar for ever")
def _() -> bytes:
    rule = "DTSTART:20240101T000000Z\r\nRRULE:FREQ=SECONDLY;COUNT=999999999999\r\n"
    event = f"BEGIN:VEVENT\r\n{rule}SUMMARY:x\r\nEND:VEVENT\r\n"
    calendar = "BEGIN:VCALENDAR\r\n" + event * 3000 + "BEGIN:VEVENT\r\n" * 3000
    return multipart("a calendar for ever", plain(), attached("a.ics", calendar.encode(), "text/calendar"))


@hostile("an Outlook file of loops")
def _() -> bytes:
    data = b"\x78\x9f\x3e\x22\1\0" + b"\2\2\x90\x06\0\x0e\0\0\0" + bytes(16) + b"\1\3\x90\x06\0\xff\xff\xff\x7f"
    return multipart("an Outlook file of loops", plain(), attached("winmail.dat", data, "application/ms-tnef"))


@hostile("a file name of a path")
def _() -> bytes:
    return multipart(
        "a file name of a path", plain(), attached("../../../../etc/cron.d/x" + "a" * 5000, b"x", "text/plain")
    )
