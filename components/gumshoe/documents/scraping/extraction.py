"""Extract title and main text from a page's bytes, and detect error pages."""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.errors import UsageError
from gumshoe.extraction.pdf import extract_pdf
from gumshoe.extraction.processes import BoundedProcesses, ExtractionFailure, open_processes
from gumshoe.installation import install_command
from gumshoe.mail.message import clean, clean_line
from gumshoe.mail.text import decode, find_html_charset

PageKind = Literal["html", "text", "pdf"]

LIBRARIES = ("pebble", "protego", "pypdf", "trafilatura")
_MIN_MAIN_TEXT = "50"  # characters; below, the whole page is used, including menus
# Servers often declare these charsets for any content.
_UNRELIABLE_CHARSETS = {"iso-8859-1", "latin1", "latin-1", "us-ascii", "ascii", "windows-1252"}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

_TITLE_PARTS = re.compile(r"\s+[|·•:\u2013\u2014-]+\s+|\s*[|·•]\s*")
_NOT = "n['\u2019]t"
_MISSING_PHRASE = (
    rf"(?:(?:not|cannot|ca{_NOT}) (?:be )?found|no longer (?:available|exists?|here)|does(?: not|{_NOT}) exist|"
    r"(?:was|been) removed)"
)
_PAGE = "(?:page|document|file|article|content|resource|url)"
_MISSING_TITLE = re.compile(
    r"(?:error |http |status )*(?:404|410)\b.{0,40}"
    rf"|(?:(?:oops|sorry|error)\W+)?{_MISSING_PHRASE}\W*|.{{0,40}}\b{_PAGE}\b.{{0,40}}\b{_MISSING_PHRASE}\b.{{0,20}}",
    re.I,
)
_MISSING_TEXT = re.compile(rf"\b(?:{_PAGE}|address|link)\b[^.\n]{{0,60}}\b{_MISSING_PHRASE}\b|\berror 404\b", re.I)
_MAX_WORDS_OF_ERROR_PAGE = 120  # a longer page may mention other missing pages
_CHECKED_CHARACTERS = 400  # an error page says so within these characters
_MIN_SIMILARITY = 0.9  # Jaccard similarity of words


def check_installed(purpose: str, libraries: tuple[str, ...]) -> None:
    """Check that the libraries of the extra `documents` are installed.

    Raises:
        UsageError: if some of them are not installed.
    """
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise UsageError(
            "documents.missing-dependency",
            f"{purpose} requires {', '.join(missing)}: {install_command(extra='documents')}",
        )


@dataclass(frozen=True, slots=True)
class PageText:
    """Title of a page ("" if it has none) and its main text."""

    title: str
    text: str

    @property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", f"{self.title} {self.text}".casefold()))

    @property
    def is_missing_page(self) -> bool:
        """True if the page says that it does not exist."""
        if any(_MISSING_TITLE.fullmatch(part.strip()) for part in _TITLE_PARTS.split(self.title)):
            return True
        return len(self.text.split()) < _MAX_WORDS_OF_ERROR_PAGE and bool(
            _MISSING_TEXT.search(self.text[:_CHECKED_CHARACTERS])
        )

    def is_similar_to(self, other: "PageText") -> bool:
        """Return True if two pages have almost the same words, like two error pages from one template."""
        mine, others = self.words, other.words
        return len(mine & others) >= _MIN_SIMILARITY * len(mine | others)


class Extractor:
    """Extract the text of pages in separate processes, each within a time limit."""

    def __init__(self, processes: BoundedProcesses) -> None:
        self._processes = processes

    async def extract_async(self, body: bytes, kind: PageKind, charset: str | None) -> PageText:
        """Return title and main text of a page.

        Raises:
            PageFailure: if it contains no text, cannot be parsed, or takes too long.
        """
        with _explain_errors():
            return _require_text(await self._processes.run_async(extract_page, body, kind, charset))

    def extract(self, body: bytes, kind: PageKind, charset: str | None = None) -> PageText:
        """Work like `extract_async`, without an event loop."""
        with _explain_errors():
            return _require_text(self._processes.run(extract_page, body, kind, charset))


@contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except ExtractionFailure as failure:
        raise PageFailure("unreadable", failure.detail) from None


def _require_text(found: PageText | str) -> PageText:
    if isinstance(found, str):
        raise PageFailure("unreadable", found)
    if not found.text:
        raise PageFailure("no text", "no main text found; the page may need a browser to show it")
    return found


@contextmanager
def open_extractor(processes: int, seconds: float) -> Iterator[Extractor]:
    """Yield an extractor with `processes` processes, which end with the block."""
    with open_processes(processes, seconds, preload=(__name__, "trafilatura")) as bounded:
        yield Extractor(bounded)


def extract_page(body: bytes, kind: PageKind, charset: str | None) -> PageText | str:
    """Return title and main text of a page, or an error message. `charset` is the one that the server declares."""
    try:
        if kind == "pdf":
            return _extract_pdf(body)
        text = clean(decode(body, _choose_charset(body, charset)))
        return _extract_html(text) if kind == "html" else PageText("", text.strip())
    except Exception as error:  # noqa: BLE001 - top level of the process: any parser error belongs to the page
        return f"cannot be parsed ({type(error).__name__}: {error})"[:200]


def _choose_charset(body: bytes, declared: str | None) -> str | None:
    """Return the most trustworthy charset: byte order mark, then the server's, then the document's.

    The server's is ignored if it is unreliable or does not fit the bytes.
    """
    marked = next((name for mark, name in _BOMS if body.startswith(mark)), None)
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


def _extract_html(html: str) -> PageText:
    from trafilatura import bare_extraction
    from trafilatura.settings import DEFAULT_CONFIG, Document

    config = deepcopy(DEFAULT_CONFIG)
    config["DEFAULT"]["MIN_EXTRACTED_SIZE"] = _MIN_MAIN_TEXT
    found = bare_extraction(html, include_comments=False, with_metadata=True, config=config)
    if not isinstance(found, Document):
        return PageText("", "")
    return PageText(clean_line(found.title or ""), clean(found.text or "").strip())


def _extract_pdf(body: bytes) -> PageText:
    found = extract_pdf(body)
    if found.errors:
        raise found.errors[0]
    return PageText(clean_line(found.title), clean("\n\n".join(found.pages)).strip())
