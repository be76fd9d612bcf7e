"""Extract title and text of a file of any kind that is read. It runs in a process of its own, with limits."""

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from zipfile import BadZipFile

from gumshoe.documents.epub import extract_epub, is_epub
from gumshoe.documents.file_kinds import PageKind, describe_old_format
from gumshoe.documents.markdown_titles import find_markdown_title, find_underlined_title, split_front_matter
from gumshoe.documents.page_requests import asks_for_consent, asks_for_javascript, find_refresh
from gumshoe.documents.page_text import Scope, extract_html
from gumshoe.extraction.office import (
    UnknownOfficeTypeError,
    extract_office,
    is_encrypted_office_file,
    read_office_title,
)
from gumshoe.extraction.pdf import PageProblem, extract_pdf
from gumshoe.extraction.rtf import extract_rtf
from gumshoe.mail.message import clean, clean_line
from gumshoe.mail.text import decode, find_html_charset, remove_invisible

MAX_CHARACTERS = 20_000_000
"""Maximum length of the text of one file."""
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Servers often declare these charsets for any content.
_UNRELIABLE_CHARSETS = {"iso-8859-1", "latin1", "latin-1", "us-ascii", "ascii", "windows-1252"}
_XML_CHARSET = "<?xml"
_SAMPLE = 2_048  # bytes
_MANY_ZEROS, _FEW_ZEROS = 0.4, 0.05  # share of the bytes of UTF-16
_MAX_STUB_WORDS = 40  # of a page that only leads to another
_DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class FileText:
    """Title (may be empty) and text of a file."""

    title: str
    text: str
    refresh: str = ""
    """URL that the page goes to by itself, which may be relative. Empty if it stays."""
    pages: tuple[str, ...] = ()
    """Text of each page of a PDF, which `text` joins. Those of `problems` may be empty."""
    problems: tuple[PageProblem, ...] = ()
    """Pages of a PDF that were not read."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """The reason why a file was not read."""

    reason: str
    detail: str


def extract_file_text(
    body: bytes, kind: PageKind, charset: str | None, scope: Scope = "main"
) -> FileText | FileProblem:
    """Return title and text of a file, or the reason for not reading it. `charset` is the one that a server declares.

    A page that only asks for JavaScript or for consent is not read.
    """
    try:
        return _extract(body, kind, charset, scope)
    except UnknownOfficeTypeError as error:
        return FileProblem("unreadable", f"unknown kind of archive: {error}")
    except Exception as error:  # noqa: BLE001 - top level of the process: any parser error belongs to the file
        if type(error).__name__ == "FileNotDecryptedError" or "encrypted" in str(error).lower():
            return FileProblem("unreadable", "encrypted; remove its password")
        if isinstance(error, BadZipFile):
            return FileProblem("unreadable", "damaged archive")
        return FileProblem("unreadable", f"cannot be parsed ({type(error).__name__}: {error})"[:200])


def _extract(body: bytes, kind: PageKind, charset: str | None, scope: Scope) -> FileText | FileProblem:
    if kind == "pdf":
        return _extract_pdf(body)
    if kind in {"office", "old-office"}:
        return _extract_office(body)
    if kind == "rtf":
        return _limit("", extract_rtf(body))
    text = clean(decode(body, choose_charset(body, charset)))
    if kind == "html":
        return _extract_page(text, scope)
    if kind == "csv":
        return _limit("", "\n".join(_format_rows(text)))
    if kind != "markdown":
        return _limit(find_underlined_title(text), text)
    metadata, text = split_front_matter(text)
    named = metadata.get("title")
    return _limit(named if isinstance(named, str) and named else find_markdown_title(text), text)


def check_length(text: str) -> FileProblem | None:
    """Return the problem of a file whose text is longer than `MAX_CHARACTERS`, otherwise None."""
    if len(text) > MAX_CHARACTERS:
        return FileProblem("too large", f"more than {MAX_CHARACTERS:,} characters of text; split it")
    return None


def _limit(title: str, text: str) -> FileText | FileProblem:
    if problem := check_length(text):
        return problem
    return FileText(clean_line(title), remove_invisible(clean(text)).strip())


def _extract_page(html: str, scope: Scope) -> FileText | FileProblem:
    title, text = extract_html(html, scope)
    refresh = find_refresh(html)
    if refresh and len(text.split()) <= _MAX_STUB_WORDS:
        return FileText(title, text, refresh)
    if asks_for_javascript(text, title):
        return FileProblem("needs JavaScript", "the page only asks for JavaScript; a browser is needed to show it")
    if asks_for_consent(text, title):
        return FileProblem("asks for consent", "the page only asks for consent, e.g. to cookies")
    if not text:
        return FileProblem("no text", "no main text found; the page may need a browser to show it")
    return _limit(title, text)


def _extract_pdf(body: bytes) -> FileText | FileProblem:
    found = extract_pdf(body, MAX_CHARACTERS + 1)
    pages = tuple(clean(each) for each in found.pages)
    limited = _limit(found.title, "\n\n".join(filter(None, pages)))
    if isinstance(limited, FileProblem):
        return limited
    if not limited.text and found.problems and all(each.kind == "damaged" for each in found.problems):
        return FileProblem("unreadable", f"no page can be read ({found.problems[0].detail})"[:200])
    return FileText(limited.title, limited.text, pages=pages, problems=tuple(found.problems))


def _extract_office(body: bytes) -> FileText | FileProblem:
    if is_encrypted_office_file(body):
        return FileProblem("unreadable", "encrypted; remove its password")
    if not body.startswith(b"PK"):
        return FileProblem("old format", f"{describe_old_format(body)}; convert it, e.g. with LibreOffice")
    if is_epub(body):
        return _limit(*extract_epub(body))
    return _limit(read_office_title(body), extract_office(body, MAX_CHARACTERS + 1))


def choose_charset(body: bytes, declared: str | None) -> str | None:
    """Return the most trustworthy charset: byte order mark, then the server's, then the document's.

    The server's is ignored if it is unreliable or does not fit the bytes. UTF-16 is detected without a mark too.
    """
    marked = next((name for mark, name in _BOMS if body.startswith(mark)), None) or _find_wide_charset(body)
    if marked:
        return marked
    inside = find_html_charset(body)
    if declared is None or inside is None:
        return declared or inside
    if declared.strip("\"' ").lower() in _UNRELIABLE_CHARSETS:
        return inside
    try:
        body.decode(declared.strip("\"' "))
    except (LookupError, ValueError):
        return inside
    return declared


def _find_wide_charset(body: bytes) -> str | None:
    """Return the charset of text whose ASCII characters have a zero byte each."""
    sample = body[: min(_SAMPLE, len(body) // 2 * 2)]
    half = len(sample) // 2
    if not half:
        return None
    even, odd = sample[::2].count(0) / half, sample[1::2].count(0) / half
    if odd >= _MANY_ZEROS and even <= _FEW_ZEROS:
        return "utf-16-le"
    return "utf-16-be" if even >= _MANY_ZEROS and odd <= _FEW_ZEROS else None


def _format_rows(text: str) -> Iterator[str]:
    """Yield each row of a table as a line, with the name of the column before each value if the first row has names."""
    head = text[:20_000]
    delimiter = max(_DELIMITERS, key=lambda each: head.partition("\n")[0].count(each))
    csv.field_size_limit(MAX_CHARACTERS)
    rows = (list(map(clean_line, row)) for row in csv.reader(io.StringIO(text), delimiter=delimiter))
    rows = (row for row in rows if any(row))
    first = next(rows, [])
    names = first if _are_names(first) else []
    following = next(rows, None)
    if following is None or not names:
        names = []
        yield "\t".join(filter(None, first))
    for row in () if following is None else (following, *rows):
        if names and len(row) <= len(names):
            yield "; ".join(f"{name}: {value}" for name, value in zip(names, row, strict=False) if value)
        else:
            yield "\t".join(filter(None, row))


def _are_names(row: list[str]) -> bool:
    """Return True for a row of different texts without numbers."""
    has_numbers = any(value.replace(".", "").replace(",", "").lstrip("-+").isdecimal() for value in row)
    return len(row) > 1 and all(row) and len(set(row)) == len(row) and not has_numbers
