"""Extract the text of Office files: DOCX, PPTX and XLSX, and the OpenDocument formats ODT, ODS and ODP."""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time
from typing import IO, Any
from zipfile import ZipFile

_MAX_UNPACKED = 200 << 20  # bytes of all parts of one file
_MAX_PARTS = 20_000
_WORD_PART = re.compile(r"word/(document|header|footer|footnotes|endnotes|comments)(\d*)\.xml")
_WORD_ORDER = ("document", "header", "footer", "footnotes", "endnotes", "comments")
_SLIDE_PART = re.compile(r"ppt/(slides|notesSlides)/(?:slide|notesSlide)(\d+)\.xml")
_OPEN_DOCUMENT = {"mimetype", "content.xml", "META-INF/manifest.xml"}
_OPEN_DOCUMENT_TYPE = b"application/vnd.oasis.opendocument."
_ENCRYPTION = b":encryption-data"
_NOTES = {"p", "h", "note", "note-citation", "annotation", "creator", "date"}  # inside a paragraph
_SPACES = {"tab": "\t", "line-break": "\n", "s": " "}
_MADE_UP_TITLE = re.compile(
    r"powerpoint[ -]presentation|pr\u00e4sentation|(?:slide|folie) \d+|document\d*|untitled.*", re.I
)
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_OLD_STREAMS = [
    (name, stream.encode("utf-16-le"))
    for name, stream in (
        *(("Word", "WordDocument"), ("PowerPoint", "PowerPoint Document")),
        *(("Excel", "Workbook\0"), ("Excel", "Book\0")),
    )
]
_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class UnknownOfficeTypeError(ValueError):
    """The archive is not a file of Microsoft Office or OpenDocument."""


def is_encrypted_office_file(data: bytes) -> bool:
    """Return True if the bytes are an Office file that is protected with a password."""
    return data.startswith(_OLE_MAGIC) and _ENCRYPTED_PACKAGE in data


def find_old_office_format(data: bytes) -> str:
    """Return the format of a file of Office 97 to 2003, e.g. `Word before 2007`, or "" for another file.

    No maintained library reads these formats. LibreOffice converts them.
    """
    if not data.startswith(_OLE_MAGIC):
        return ""
    return next((f"{name} before 2007" for name, stream in _OLD_STREAMS if stream in data), "")


def check_archive(archive: ZipFile) -> None:
    """Check that an archive does not unpack to too much.

    Raises:
        ValueError: if it does.
    """
    parts = archive.infolist()
    if len(parts) > _MAX_PARTS or sum(part.file_size for part in parts) > _MAX_UNPACKED:
        raise ValueError(f"unpacks to more than {_MAX_UNPACKED} bytes or {_MAX_PARTS} parts")


def read_office_title(data: bytes) -> str:
    """Return the title in the properties of an Office file, or "" if it has none, or one that a program made up."""
    from lxml.etree import XMLSyntaxError

    with ZipFile(io.BytesIO(data)) as archive:
        check_archive(archive)
        for name in ("docProps/core.xml", "meta.xml"):
            if name not in archive.namelist():
                continue
            try:
                with archive.open(name) as stream:
                    for step, tag, element in _walk(stream):
                        if step < 0 and tag == "title" and (title := " ".join((element.text or "").split())):
                            return "" if _MADE_UP_TITLE.fullmatch(title) else title
            except XMLSyntaxError:
                continue
    return ""


def extract_office(data: bytes, max_characters: int) -> str:
    """Return the first `max_characters` of the text of an Office file, whose kind its parts tell.

    Raises:
        UnknownOfficeTypeError: if it is another kind of archive.
        ValueError: if it unpacks to too much, or is encrypted.
        Other errors of zipfile, lxml or openpyxl: if it is damaged.
    """
    with ZipFile(io.BytesIO(data)) as archive:
        check_archive(archive)
        names = archive.namelist()
        if "xl/workbook.xml" in names:
            lines = _read_workbook(data)
        elif word := _sort_parts(names, _WORD_PART, lambda kind, number: (_WORD_ORDER.index(kind), number)):
            lines = _read_parts(archive, word)
        elif slides := _sort_parts(names, _SLIDE_PART, lambda kind, number: (number, kind != "slides")):
            lines = _read_parts(archive, slides)
        elif set(names) >= _OPEN_DOCUMENT and archive.read("mimetype").startswith(_OPEN_DOCUMENT_TYPE):
            if _ENCRYPTION in archive.read("META-INF/manifest.xml"):
                raise ValueError("encrypted")
            lines = _read_open_document(archive)
        else:
            raise UnknownOfficeTypeError("neither a document, nor slides, nor a workbook")
        return _join(lines, max_characters)


def _join(lines: Iterable[str], max_characters: int) -> str:
    """Join lines that are not blank, up to a length."""
    kept, length = [], 0
    for line in lines:
        if stripped := line.strip():
            kept.append(stripped)
            length += len(stripped) + 1
            if length > max_characters:
                break
    return "\n".join(kept)[:max_characters]


def _sort_parts(names: list[str], pattern: re.Pattern[str], key: Callable[[str, int], tuple[int, int]]) -> list[str]:
    """Return the names that match, sorted by a key of the pattern's two groups: a kind and a number."""
    found = {name: match for name in names if (match := pattern.fullmatch(name))}
    return sorted(found, key=lambda name: (key(found[name][1], int(found[name][2] or 0)), name))


def _read_parts(archive: ZipFile, names: list[str]) -> Iterator[str]:
    for name in names:
        with archive.open(name) as stream:
            yield from _read_paragraphs(stream)


def _read_paragraphs(stream: IO[bytes]) -> Iterator[str]:
    """Yield the paragraphs of WordprocessingML or DrawingML, and each table row as one line with tabs.

    The libraries for these formats do not return the text of boxes, notes and headers, so this reads the XML itself.
    """
    text: list[str] = []
    cells: list[str] = []
    open_cells = skipped = 0
    for step, name, element in _walk(stream):
        if name == "Fallback":  # repeats a text box for old programs
            skipped += step
        elif name == "tc":
            open_cells += step
        if step > 0 or skipped:
            continue
        if name == "t":
            text.append(element.text or "")
        elif name in {"br", "cr"}:
            text.append("\n")
        elif name == "tab":
            text.append("\t")
        elif name == "p":
            paragraph = "".join(text).strip()
            text.clear()
            if open_cells:
                cells.append(paragraph)
            else:
                yield paragraph
            element.clear()
        elif name == "tr" and not open_cells:
            yield "\t".join(filter(None, cells))
            cells.clear()


def _walk(stream: IO[bytes]) -> Iterator[tuple[int, str, Any]]:
    """Yield 1 for the start of an XML element and -1 for its end, its name without namespace, and the element."""
    from lxml.etree import iterparse

    events = iterparse(stream, events=("start", "end"), resolve_entities=False, no_network=True, load_dtd=False)
    for event, element in events:
        yield 1 if event == "start" else -1, _name(element), element


def _name(element: Any) -> str:
    """Return the name of an XML element without its namespace, or "" for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _read_open_document(archive: ZipFile) -> Iterator[str]:
    """Yield the paragraphs of an OpenDocument file, the names of sheets, and each table row as one line with tabs."""
    cells: list[str] = []
    open_paragraphs = open_cells = deleted = 0
    with archive.open("content.xml") as stream:
        for step, name, element in _walk(stream):
            if name in {"p", "h"}:
                open_paragraphs += step
            elif name == "table-cell":
                open_cells += step
            elif name == "tracked-changes":  # what was deleted
                deleted += step
            if deleted:
                continue
            if step > 0:
                if name == "table" and not open_cells:
                    yield next((value for key, value in element.items() if key.endswith("}name")), "")
            elif name in {"p", "h"} and not open_paragraphs:
                paragraph = _join_text(element)
                if open_cells:
                    cells.append(paragraph)
                else:
                    yield paragraph
                element.clear()
            elif name == "table-row" and not open_cells:
                yield "\t".join(filter(None, cells))
                cells.clear()
                element.clear()


def _join_text(element: Any) -> str:
    """Return the text of a paragraph, in which spaces may be elements, and which may contain notes."""
    for each in element.iterdescendants():
        name = _name(each)
        if name in _SPACES:
            each.text = _SPACES[name]
        elif name in _NOTES:
            each.text, each.tail = f" {each.text or ''}", f" {each.tail or ''}"
    return re.sub(" {2,}", " ", "".join(element.itertext())).strip()


def _read_workbook(data: bytes) -> Iterator[str]:
    """Yield the name of each sheet, and each row as one line with tabs."""
    from openpyxl import load_workbook

    workbook = load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    for sheet in workbook.worksheets:
        yield sheet.title
        sheet.reset_dimensions()  # the file may claim millions of columns
        for row in sheet.iter_rows(values_only=True):
            yield "\t".join(_format_cell(value) for value in row if value is not None)


def _format_cell(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "minutes")
    return value.isoformat() if isinstance(value, date) else " ".join(str(value).split())
