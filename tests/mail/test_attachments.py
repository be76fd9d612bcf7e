"""Text of attached files, and the reasons why files are not read."""

import io
import itertools
import os
import time
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from pypdf import PdfWriter

from gumshoe.mail import attachments
from gumshoe.mail.attachments import AttachmentLimits, AttachmentReader
from gumshoe.mail.message import AttachedFile, Attachment
from tests.documents.pages import pdf
from tests.mail.raw_messages import PLAIN, multipart_message

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "bomb"}">' for n in range(12))


@pytest.fixture(scope="module")
def reader() -> Iterator[AttachmentReader]:
    with AttachmentReader(AttachmentLimits(max_bytes=3_000_000, max_characters=2000)) as opened:
        yield opened


def archive(**parts: str) -> bytes:
    """Return a zip archive. In the names, `__` stands for `/`, and `.xml` is added."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name.replace("__", "/") + ".xml", content)
    return packed.getvalue()


def docx(text: str, **parts: str) -> bytes:
    return archive(word__document=f"<w:document {W}><w:body>{text}</w:body></w:document>", **parts)


def paragraph(text: str, prefix: str = "w") -> str:
    return f"<{prefix}:p><{prefix}:r><{prefix}:t>{text}</{prefix}:t></{prefix}:r></{prefix}:p>"


def cell(text: str) -> str:
    return f"<w:tc>{paragraph(text)}</w:tc>"


def xlsx(*rows: list[Any]) -> bytes:
    workbook, packed = Workbook(), io.BytesIO()
    sheet = workbook.active
    sheet.title = "Prices"
    for row in rows:
        sheet.append(row)
    workbook.save(packed)
    return packed.getvalue()


def encrypted_pdf() -> bytes:
    writer, out = PdfWriter(clone_from=io.BytesIO(pdf("Secret."))), io.BytesIO()
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def read(
    reader: AttachmentReader, data: bytes | str, name: str = "file", kind: str = "application/octet-stream"
) -> Attachment:
    found = reader.read(AttachedFile(name, kind, data.encode() if isinstance(data, str) else data))
    assert found.name == name
    return found


def test_the_text_of_a_pdf_is_read(reader: AttachmentReader) -> None:
    assert read(reader, pdf("The pump costs 250 euros.", "Offer")).text == "Offer\n\nThe pump costs 250 euros."
    assert read(reader, b"junk\n" + pdf("Text.")).text == "Text."


def test_the_text_of_a_document_is_read_in_lines(reader: AttachmentReader) -> None:
    table = f"<w:tbl><w:tr>{cell('Item')}{cell('Price')}</w:tr><w:tr>{cell('Pump')}{cell('250')}</w:tr></w:tbl>"
    split = "<w:p><w:r><w:t>Lea</w:t></w:r><w:r><w:t>se</w:t><w:tab/><w:t>June</w:t></w:r></w:p>"
    notes = f"<w:footnotes {W}>{paragraph('A note.')}</w:footnotes>"
    deleted = "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del></w:p>"
    found = read(reader, docx(split + table + deleted, word__footnotes=notes, docProps__core="<x/>"))
    assert found.text == "Lease\tJune\nItem\tPrice\nPump\t250\nA note."


def test_slides_are_read_in_order_with_their_notes(reader: AttachmentReader) -> None:
    slides = {f"ppt__slides__slide{n}": f"<x {A}>{paragraph(f'Slide {n}', 'a')}</x>" for n in (10, 2, 1)}
    notes = {"ppt__notesSlides__notesSlide2": f"<x {A}>{paragraph('Note 2', 'a')}</x>"}
    assert read(reader, archive(**slides, **notes)).text == "Slide 1\nSlide 2\nNote 2\nSlide 10"


def test_a_workbook_is_read_by_rows(reader: AttachmentReader) -> None:
    rows: list[list[Any]] = [["Pump", 250.0, None, 0.5], [datetime(2024, 3, 5), True], [datetime(2024, 3, 5, 9, 30)]]  # noqa: DTZ001
    assert read(reader, xlsx(*rows)).text == "Prices\nPump\t250\t0.5\n2024-03-05\tTrue\n2024-03-05 09:30"


def test_text_html_rtf_and_calendars_are_read(reader: AttachmentReader) -> None:
    assert read(reader, "a;b\r\n1;2", "t.csv", "text/csv").text == "a;b\n1;2"
    assert read(reader, "Grüße".encode("utf-16"), "t.txt").text == "Grüße"
    assert read(reader, "<p>One<p>Two", "t.html").text.split() == ["One", "Two"]
    assert (
        read(reader, rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}Gr\'fc\'dfe\par \u20320?x}").text == "Grüße\n你x"
    )
    box = rb"{\rtf1 Text. {\shp{\*\shpinst hidden{\shptxt In a box.}}}}"
    assert read(reader, box).text == "Text. In a box."
    calendar = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Lunch\nDTSTART:20240305T120000Z\nEND:VEVENT\nEND:VCALENDAR\n"
    assert read(reader, calendar, "c.ics").text == "Event: Lunch\nWhen: Tue 2024-03-05 12:00 UTC"
    assert read(reader, "BEGIN:VCALENDAR\nSUMMARY:Lunch", "c.ics").text == "BEGIN:VCALENDAR\nSUMMARY:Lunch"


@pytest.mark.parametrize(
    ("data", "name", "problem"),
    [
        (b"x" * 3_000_001, "a.txt", "too large"),
        (b"", "a.pdf", "no text"),
        (b" \n\0", "a.txt", "no text"),
        (pdf(""), "scan.pdf", "no text"),
        (docx(""), "a.docx", "no text"),
        (encrypted_pdf(), "a.pdf", "encrypted"),
        (OLE + "EncryptedPackage".encode("utf-16-le"), "a.docx", "encrypted"),
        (b"-----BEGIN PGP MESSAGE-----\n", "encrypted.asc", "encrypted"),
        (OLE + b"\0", "a.doc", "unknown type"),
        (OLE + "WordDocument".encode("utf-16-le"), "a.doc", "Word before 2007"),
        (OLE + "Workbook\0".encode("utf-16-le"), "a.xls", "Excel before 2007"),
        (b"\x89PNG\r\n\x1a\n\0", "a.png", "unknown type"),
        (archive(other="<x/>"), "a.zip", "unknown type"),
        (b"%PDF-1.4 broken", "a.pdf", "cannot be read"),
        (docx(paragraph("x"))[:-30], "a.docx", "cannot be read"),
        (docx("<w:p>"), "a.docx", "cannot be read"),
    ],
)
def test_a_file_that_is_not_read_has_a_reason(reader: AttachmentReader, data: bytes, name: str, problem: str) -> None:
    assert read(reader, data, name) == Attachment(name, problem=problem)


def open_document(content: str, manifest: str = "", kind: str = "text") -> bytes:
    names = " ".join(f'xmlns:{name}="urn:{name}"' for name in ("office", "text", "table", "draw"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        file.writestr("content.xml", f"<office:body {names}>{content}</office:body>")
        file.writestr("META-INF/manifest.xml", f"<manifest:manifest>{manifest}</manifest:manifest>")
    return packed.getvalue()


def test_the_text_of_an_open_document_is_read(reader: AttachmentReader) -> None:
    text = (
        "<text:h>The <text:span>lease</text:span></text:h><!-- note --><text:list><text:list-item>"
        "<text:p>one<text:tab/>two<text:s/>three<text:line-break/>four</text:p></text:list-item></text:list>"
        "<draw:frame><text:p>outer <draw:text-box><text:p>inner</text:p></draw:text-box></text:p></draw:frame>"
    )
    assert read(reader, open_document(text), "a.odt").text == "The lease\none\ttwo three\nfour\nouter inner"
    row = "<table:table-row>{}</table:table-row>"
    cells = "<table:table-cell><text:p>{}</text:p></table:table-cell><table:table-cell/>"
    rows = "".join(row.format(cells.format(a) + cells.format(b)) for a, b in (("Rent", "900 €"), ("Heat", "80 €")))
    table = f'<table:table table:name="Costs">{rows}</table:table><text:p>End</text:p>'
    expected = "Costs\nRent\t900 €\nHeat\t80 €\nEnd"
    assert read(reader, open_document(table, kind="spreadsheet"), "a.ods").text == expected
    outer = (
        f'<table:table table:name="Plan">{row.format(f"<table:table-cell>{table}</table:table-cell>")}</table:table>'
    )
    assert read(reader, open_document(outer), "a.odt").text == "Plan\nRent\t900 €\tHeat\t80 €\tEnd"
    locked = open_document("x", manifest="<manifest:encryption-data/>")
    assert read(reader, locked, "a.odt").problem == "encrypted"
    assert read(reader, open_document("<text:p>"), "a.odt").problem == "cannot be read"


def test_notes_of_an_open_document_stay_apart_and_deleted_text_is_left_out(reader: AttachmentReader) -> None:
    note = "<text:note><text:note-citation>1</text:note-citation><text:p>See below</text:p></text:note>"
    deleted = "<text:tracked-changes><text:deletion><text:p>gone</text:p></text:deletion></text:tracked-changes>"
    text = f"{deleted}<text:p>The lease{note}ends</text:p>"
    assert read(reader, open_document(text), "a.odt").text == "The lease 1 See below ends"


@pytest.mark.parametrize("kind", ["application/msword", "application/vnd.ms-excel"])
def test_html_and_text_named_as_an_office_file_are_read(reader: AttachmentReader, kind: str) -> None:
    for data in (b"<html><p>The lease ends", b"\xef\xbb\xbf<TABLE><tr><td>The lease ends", b"The lease ends"):
        assert reader.read(AttachedFile("a.xls", kind, data)).text == "The lease ends"
    assert reader.read(AttachedFile("a.doc", kind, b"\x01" * 100)).problem == "unknown type"
    assert reader.read(AttachedFile("a", "plain/text", b"The lease")).text == "The lease"


@pytest.mark.parametrize("name", ["README", "authors.list", "plan"])
def test_a_file_with_words_is_text_whatever_its_name(reader: AttachmentReader, name: str) -> None:
    assert read(reader, "The leasé is signed.\n" * 300, name).text.startswith("The leasé")
    assert read(reader, "é " * 3000, name).text.startswith("é é")  # the first 4,096 bytes end inside a letter
    for data in (b"QUJD" * 500, b"\xe9t\xe9 et hiver", b"a \x01 b", b"12 34 56"):
        assert read(reader, data, name).problem == "unknown type"


@pytest.mark.ci
@pytest.mark.timeout(20)
def test_bombs_are_harmless(reader: AttachmentReader) -> None:
    big = archive(word__document=f"<w:document {W}>{paragraph('x')}</w:document>", other=" " * (201 << 20))
    assert read(reader, big).problem == "cannot be read"
    bomb = f"<!DOCTYPE x [{ENTITIES}]><w:document {W}>{paragraph('&e11;')}</w:document>"
    assert read(reader, archive(word__document=bomb)).problem in {"no text", "cannot be read"}


def test_a_document_cannot_include_another_file(reader: AttachmentReader, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("Secret.")
    doctype = f'<!DOCTYPE x [<!ENTITY e SYSTEM "{(tmp_path / "secret.txt").as_uri()}">]>'
    document = f"{doctype}<w:document {W}>{paragraph('Text. &e;')}</w:document>"
    assert read(reader, archive(word__document=document)).text == "Text."


def test_text_is_cut_to_its_limit(reader: AttachmentReader) -> None:
    assert len(read(reader, "word " * 1000, "a.txt").text) == 2000
    assert len(read(reader, docx(paragraph("x" * 500) * 9)).text) == 2000


def test_the_number_of_files_of_a_message_is_limited() -> None:
    with AttachmentReader(AttachmentLimits(max_per_message=1)) as reader:
        found = reader.read_all([AttachedFile("a", "text/plain", b"x"), AttachedFile("b", "text/plain", b"y")])
    assert found == [Attachment("a", "x"), Attachment("b", problem="too many")]


def test_the_time_for_the_files_of_a_message_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=20)  # two calls for the first file, one for each other file
    monkeypatch.setattr(attachments, "monotonic", lambda: next(clock))
    files = [AttachedFile(str(number), "text/plain", b"x") for number in range(5)]
    files.append(AttachedFile("image", "image/png", b"", problem="unknown type"))
    with AttachmentReader(AttachmentLimits(seconds_per_message=80)) as reader:
        found = reader.read_all(files)
    assert [each.problem for each in found] == ["", "", "", "timeout", "timeout", "unknown type"]


@pytest.mark.ci
def test_a_file_that_keeps_its_process_busy_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with AttachmentReader(AttachmentLimits(seconds=0.5)) as reader:
        monkeypatch.setattr(attachments, "extract_file", _sleep)
        assert read(reader, pdf("x")).problem == "timeout"
        monkeypatch.setattr(attachments, "extract_file", _crash)
        assert read(reader, pdf("x")).problem == "cannot be read"


def _sleep(*_: object) -> None:
    time.sleep(60)


def _crash(*_: object) -> None:
    os._exit(3)


def test_a_missing_extractor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "find_spec", lambda _: None)
    with AttachmentReader(AttachmentLimits()) as reader:
        assert read(reader, pdf("x")).problem == "extractor missing: pebble, pypdf, pypdfium2"


def test_a_message_hands_over_its_files() -> None:
    image = "Content-Type: image/png; name=a.png\n\nx"
    notes = "Content-Type: text/plain; charset=koi8-r; name=n.txt\nContent-Disposition: attachment\n\nNotes."
    message = multipart_message("mixed", PLAIN, image, notes)
    assert message.files == [
        AttachedFile("a.png", "image/png", b"", problem="unknown type"),
        AttachedFile("n.txt", "text/plain", b"Notes.", "koi8-r"),
    ]
