"""Files of all kinds in a directory: Office, tables, encodings, titles, scans, and reported cases."""

import codecs
import io
import stat
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.documents.document import Document
from gumshoe.documents.file_kinds import PageKind, find_page_kind
from gumshoe.documents.file_text import FileProblem, extract_file_text
from gumshoe.documents.sources import open_source, parse_text
from gumshoe.extraction.ocr import TextRecognition
from tests.documents.file_samples import SCAN, archive_of, docx, epub, html_page, placed_pdf, pptx, xlsx

GREETING = "Grüße aus Köln, 你好, привет."
RTF = rb"{\rtf1\ansi{\info{\title Hidden}}The lease ends on 30 June. Gr\'fc\'dfe.}"
OLD_WORD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600 + "WordDocument".encode("utf-16-le") + b"\0" * 600


def read_files(
    directory: Path, files: dict[str, bytes] | None = None, recognition: TextRecognition | None = None
) -> tuple[dict[str, tuple[str, str]], list[tuple[str, str]]]:
    """Return title and text of each document of a directory, and what was not read with its reason."""
    for name, data in (files or {}).items():
        (directory / name).write_bytes(data)
    items = list(open_source(f"dir:{directory}", recognition).read(lambda _: None))
    found = {item.document_id: (item.title, item.text) for item in items if isinstance(item, Document)}
    unread = [(item.where.rpartition("/")[2], item.reason) for item in items if isinstance(item, UnreadableItem)]
    return found, unread


def test_office_files_books_and_tables_are_documents(tmp_path: Path) -> None:
    rows: list[list[object]] = [["Pump", 250], ["Valve", 20]]
    found, unread = read_files(
        tmp_path,
        {
            "a.docx": docx("The lease ends on 30 June.", "Lease"),
            "b.pptx": pptx("First slide", "Second slide", title="PowerPoint Presentation"),
            "c.xlsx": xlsx(rows),
            "d.epub": epub(["Chapter one", "Chapter two"], "The Book"),
            "e.rtf": RTF,
            "f.csv": "Item;Price\nPump, large;250\n\nValve;20\n".encode("utf-8-sig"),
            "g.tsv": "1\t2\n3\t4\n".encode("utf-16"),
            "h.doc": RTF,
            "i.xls": b"<html><body><table><tr><td>Pump</td><td>250</td></tr></table></body></html>",
        },
    )
    assert unread == []
    assert found == {
        "a.docx": ("Lease", "The lease ends on 30 June."),
        "b.pptx": ("b", "First slide\nSecond slide"),
        "c.xlsx": ("c", "Sheet\nPump\t250\nValve\t20"),
        "d.epub": ("The Book", "Chapter one\n\nChapter two"),
        "e.rtf": ("e", "The lease ends on 30 June. Grüße."),
        "f.csv": ("f", "Item: Pump, large; Price: 250\nItem: Valve; Price: 20"),
        "g.tsv": ("g", "1\t2\n3\t4"),
        "h.doc": ("h", "The lease ends on 30 June. Grüße."),
        "i.xls": ("i", "Pump\t\t250"),
    }


def bomb() -> bytes:
    """Return a Word document that unpacks to 300 MB."""
    held = io.BytesIO()
    with ZipFile(held, "w", ZIP_DEFLATED) as packed, packed.open("word/document.xml", "w") as part:
        for _ in range(300):
            part.write(b" " * (1 << 20))
    return held.getvalue()


ENTITIES = (
    '<!DOCTYPE w [<!ENTITY file SYSTEM "file:///etc/hostname">'
    '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    "<w:p><w:t>shown &file; &b;</w:t></w:p></w:document>"
)


@pytest.mark.ci
def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    found, unread = read_files(
        tmp_path,
        {
            "bomb.docx": bomb(),
            "cut.docx": docx("x")[:60],
            "empty.docx": docx(""),
            "locked.epub": epub(["x"], encrypted=True),
            "old.doc": OLD_WORD,
            "other.docx": archive_of({"a.txt": "x"}),
            "entities.docx": archive_of({"word/document.xml": ENTITIES}),
        },
    )
    assert sorted(unread) == [
        ("bomb.docx", "unreadable"),
        ("cut.docx", "unreadable"),
        ("empty.docx", "no text"),
        ("locked.epub", "unreadable"),
        ("old.doc", "old format"),
        ("other.docx", "unreadable"),
    ]
    assert found["entities.docx"][1].startswith("shown")
    assert "aaaa" not in found["entities.docx"][1]


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.html"])
@pytest.mark.parametrize(
    ("charset", "bom"),
    [
        ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE),
        ("utf-16-le", b""),
        ("utf-16-be", b""),
        ("utf-32-le", codecs.BOM_UTF32_LE),
        ("utf-8", codecs.BOM_UTF8),
    ],
)
def test_every_unicode_encoding_is_read(tmp_path: Path, name: str, charset: str, bom: bytes) -> None:
    text = f"The lease ends on 30 June.\r\n{GREETING}\r\n"
    raw = bom + (f"<html><body><p>{text}</p></body></html>" if name == "a.html" else text).encode(charset)
    found, _ = read_files(tmp_path, {name: raw})
    assert "The lease ends on 30 June." in found[name][1]
    assert all(word in found[name][1] for word in GREETING.replace(",", "").split())
    assert "\ufeff" not in found[name][1]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("```sh\n# comment\n```\n\n## Install", "Install"),
        ("~~~~\n# comment\n~~~\n# still\n~~~~\n# Install", "Install"),
        ("    # indented code\n\n# Install", "Install"),
        ("<!-- # comment -->\n# Install", "Install"),
        ("<!--\n# comment\n-->\n# Install", "Install"),
        ("> # quoted\n\n# Install", "Install"),
        ("- # in a list\n\n# Install", "Install"),
        ("Pumps of the north\n==================\n\nText", "Pumps of the north"),
        ("Text\n\nPumps\n---\n", "Pumps"),
        ("Text.\n\n---\n\n# Install", "Install"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n# Install", "Install"),
        ("#no heading\n\n# Install #", "Install"),
        ("   # Install", "Install"),
        ("# [Install](x.md) the `pump` ![icon](i.png)\n", "Install the pump icon"),
        ("# Install {#install .top}", "Install"),
        ("<h1 align=center>Pump <b>guide</b></h1>\n\nText", "Pump guide"),
        ("+++\ntitle = 'From TOML'\ntags = ['a']\n+++\n# Install", "From TOML"),
        ("---\ntitle: From YAML\n---\n# Install", "From YAML"),
        ('{\n  "title": "From JSON"\n}\n\n# Install', "From JSON"),
        ("+++\nbroken = \n+++\n# Install", "Install"),
        ("Only text.", "a"),
    ],
)
def test_the_title_of_markdown(text: str, title: str) -> None:
    found = parse_text(text.encode(), "a.md", "a")
    assert isinstance(found, Document)
    assert found.title == title
    assert "From TOML" not in found.text


def test_toml_front_matter_is_metadata() -> None:
    found = parse_text(b"+++\ntitle = 'x'\ntags = ['a', 'b']\ndate = 2024-02-29\n+++\nText", "a.md", "a")
    assert isinstance(found, Document)
    assert (found.text, found.metadata["tags"], found.metadata["date"]) == ("Text", ["a", "b"], "2024-02-29")


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("a.rst", "Pumps\n=====\n\nText", "Pumps"),
        ("a.rst", ".. _top:\n\n=====\nPumps\n=====\n\nText", "Pumps"),
        ("a.txt", "\nPUMPS OF THE NORTH\n------------------\nText", "PUMPS OF THE NORTH"),
        ("a.txt", "A first line\nof a letter\n-----", "a"),
    ],
)
def test_an_underlined_title_of_plain_text(name: str, text: str, title: str) -> None:
    found = parse_text(text.encode(), name, "a")
    assert isinstance(found, Document)
    assert found.title == title


PDF = placed_pdf([[(72, 700, "A lease.")]])


@pytest.mark.parametrize(
    ("data", "media_type", "name", "kind"),
    [
        (PDF, "application/octet-stream", "/a", "pdf"),
        (PDF, "text/html; charset=utf-8", "/a.html", "pdf"),
        (PDF, "text/plain", "/a", "pdf"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PDF, "binary/octet-stream", "/a", "pdf"),
        (b"A PDF begins with %PDF-1.4.", "text/plain", "/a", "text"),
        (b"# Title", "text/markdown; variant=GFM", "/a", "markdown"),
        (b"# Title", "text/x-markdown", "/a", "markdown"),
        (b"# Title", "text/plain", "/raw/README.md", "markdown"),
        (b"# Title", "application/octet-stream", "/raw/README.md", "markdown"),
        (b"a,b", "text/csv", "/a", "csv"),
        (docx("x"), "application/octet-stream", "/a", "office"),
        (docx("x"), "application/vnd.openxmlformats-officedocument.wordprocessingml.document", "/a", "office"),
        (RTF, "application/msword", "/a.doc", "rtf"),
        (b"<html><table>", "application/vnd.ms-excel", "/a.xls", "html"),
        (b"<!DOCTYPE html><p>", "", "/a", "html"),
        (b"<p>x", "application/octet-stream", "/a", "html"),
        (b"\x89PNG", "image/png", "/a.pdf", None),
        (b"\0\1\2", "", "/a", None),
        (b"\0\1\2", "application/octet-stream", "/a", None),
    ],
)
def test_the_bytes_of_a_file_tell_its_kind(data: bytes, media_type: str, name: str, kind: PageKind | None) -> None:
    assert find_page_kind(data, media_type, name) == kind


# Scans


def test_a_scan_is_called_a_scan(tmp_path: Path) -> None:
    text = [(72.0, 700.0, "A page of text, which can be read.")]
    found, unread = read_files(
        tmp_path,
        {"scan.pdf": placed_pdf([SCAN, SCAN]), "half.pdf": placed_pdf([text, SCAN])},
        TextRecognition("en", None),
    )
    assert found["half.pdf"][1] == text[0][2]
    assert sorted(unread) == [("half.pdf#page=2", "scanned page"), ("scan.pdf", "scan")]


@pytest.fixture
def tesseract(tmp_path: Path) -> str:
    """Return a program that is called like tesseract, and says which image it got, if it is an image of a page."""
    path = tmp_path / "bin" / "tesseract"
    path.parent.mkdir()
    path.write_text(
        '#!/bin/sh\n[ "$1" = --list-langs ] && { echo deu; exit; }\n'
        '[ "$*" = "stdin stdout -l deu --dpi 300" ] || exit 1\n'
        'head -c 12 | tr "\\n" " "\nprintf "recognized deduct-\\nible\\f"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_text_of_scans_is_recognized(tmp_path: Path, tesseract: str) -> None:
    (tmp_path / "d").mkdir()
    text = [(72.0, 700.0, "A page of text, which can be read.")]
    files = {"a.pdf": placed_pdf([text, SCAN])}
    found, unread = read_files(tmp_path / "d", files, TextRecognition("de", tesseract))
    assert found["a.pdf"][1] == f"{text[0][2]}\n\nP5 2550 3301recognized deductible"
    assert unread == []


def test_a_page_that_cannot_be_recognized_does_not_lose_the_others(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = tmp_path / "tesseract"
    path.write_text(
        '#!/bin/sh\n[ "$1" = --list-langs ] && { echo eng; exit; }\n'
        'case "$(head -c 7)" in *2550*) echo tall;; *) kill -9 $PPID;; esac\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    first, second, third = placed_pdf([SCAN] * 3).split(b"/MediaBox", 2)
    files = {"a.pdf": first + b"/MediaBox" + second + b"/Rotate 90 /MediaBox" + third}
    found, unread = read_files(tmp_path / "d", files, TextRecognition("en", str(path)))
    assert found["a.pdf"][1] == "tall\n\ntall"
    assert unread == [("a.pdf#page=2", "scanned page")]


def test_a_language_without_a_model_is_named(tmp_path: Path, tesseract: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.pdf").write_bytes(placed_pdf([SCAN]))
    (item,) = open_source(f"dir:{tmp_path / 'd'}", TextRecognition("fr", tesseract)).read(lambda _: None)
    assert isinstance(item, UnreadableItem)
    assert item.reason == "scan"
    assert "fra" in item.detail


def test_a_page_that_only_leads_elsewhere_is_no_document(tmp_path: Path) -> None:
    page = b"<meta http-equiv=refresh content='0; url=new.html'><p>This page has moved.</p>"
    assert read_files(tmp_path, {"a.html": page}) == ({}, [("a.html", "redirects")])


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.documents.file_text.MAX_CHARACTERS", 100)
    for data, kind in ((b"x" * 101, "text"), (docx("x" * 101), "office"), (html_page("").encode(), "html")):
        found = extract_file_text(data, kind, None)  # type: ignore[arg-type]
        assert isinstance(found, FileProblem)
        assert found.reason == "too large"
    for name in ("a.txt", "a.md"):
        item = parse_text(b"x" * 101, name, name)
        assert isinstance(item, UnreadableItem)
        assert item.reason == "too large"


# Reported cases


@pytest.mark.parametrize(
    ("case", "name", "title", "texts"),
    [
        ("E01-utf16-text", "notes.txt", "notes", ["The lease ends on 30 June. Grüße."]),
        ("E02-markdown-heading-in-code", "install.md", "install", ["pumpctl stop"]),
        ("E04-markdown-underlined-title", "g.md", "Pumps of the north", ["They run in winter."]),
        ("E05-pdf-hyphenated", "a.pdf", "a", ["a deductible"]),
        ("E06-pdf-one-bad-page", "a.pdf", "a", ["Page one: the lease", "Page three: the fee"]),
        ("E07-pdf-aes-no-password", "a.pdf", "a", ["The lease ends on 30 June."]),
        ("E08-pdf-junk-before", "a.pdf", "a", ["The lease ends on 30 June."]),
        ("E10-html-text-in-div", "a.html", "Pumps", ["The fuse has 16 A.", "Never run it dry."]),
        ("E12-html-faq", "a.html", "Pumps", ["Five years.", "The buyer pays."]),
        ("E13-html-raised-digits", "a.html", "Pumps", ["10^9 cells", "x1 is 3"]),
        ("E17-html-windows-1252-as-utf8", "a.html", "x", ["Grüße aus Köln"]),
    ],
)
def test_reported_files_are_read(shared_cases: Path, case: str, name: str, title: str, texts: list[str]) -> None:
    found, _ = read_files(shared_cases / case / "d")
    assert found[name][0] == title
    assert all(text in found[name][1] for text in texts)


@pytest.mark.parametrize(
    ("case", "unread"),
    [
        ("E06-pdf-one-bad-page", ("a.pdf#page=2", "unreadable page")),
        ("E09-pdf-scanned", ("a.pdf", "scan")),
    ],
)
def test_reported_problems_are_told(shared_cases: Path, case: str, unread: tuple[str, str]) -> None:
    assert read_files(shared_cases / case / "d")[1] == [unread]
