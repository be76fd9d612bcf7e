"""Extract title and main text from a page's bytes, and detect error pages."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import get_args

from gumshoe.documents.file_kinds import PageKind
from gumshoe.documents.file_text import FileProblem, FileText, extract_file_text
from gumshoe.documents.page_text import Scope
from gumshoe.documents.scraping.failure import PageFailure, Reason
from gumshoe.errors import UsageError
from gumshoe.extraction.ocr import RecognizedPage, TextRecognition
from gumshoe.extraction.page_layout import join_hyphenated
from gumshoe.extraction.pdf import PageProblem
from gumshoe.extraction.processes import BoundedProcesses, ExtractionFailure, open_processes
from gumshoe.installation import install_command
from gumshoe.mail.message import clean

LIBRARIES = ("lxml", "openpyxl", "pebble", "protego", "pypdf", "pypdfium2", "trafilatura")

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
_MAX_RECOGNIZED = 500  # pages of one file; each takes some seconds
_RENDER_SECONDS = 30  # per scanned page


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
    refresh: str = ""
    """URL that the page goes to by itself, which may be relative. Empty if it stays."""
    problems: tuple[PageProblem, ...] = ()
    """Pages of a PDF that were not read."""

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
    """Extract the text of pages in separate processes, each within a time limit.

    The text of scanned pages is recognized by `recognition`, if it is given and its program is installed.
    """

    def __init__(
        self, processes: BoundedProcesses, scope: Scope = "main", recognition: TextRecognition | None = None
    ) -> None:
        self._processes, self._scope, self._recognition = processes, scope, recognition

    async def extract_async(self, body: bytes, kind: PageKind, charset: str | None) -> PageText:
        """Return title and text of a page.

        Raises:
            PageFailure: if it contains no text, cannot be parsed, or takes too long.
        """
        with _explain_errors():
            found = await self._processes.run_async(extract_file_text, body, kind, charset, self._scope)
        file = _require_file(found)
        scanned = [each.number for each in file.problems if each.kind == "scanned"]
        pages = await asyncio.gather(*(self._recognize(body, number) for number in scanned[:_MAX_RECOGNIZED]))
        return _require_text(file, dict(zip(scanned, pages, strict=False)))

    def extract(self, body: bytes, kind: PageKind, charset: str | None = None) -> PageText:
        """Work like `extract_async`, without an event loop."""
        return asyncio.run(self.extract_async(body, kind, charset))

    async def _recognize(self, body: bytes, number: int) -> RecognizedPage:
        """Return the text of a scanned page, or the reason why it has none."""
        if self._recognition is None:
            return RecognizedPage("", "convert it to text with a program for OCR")
        if not self._recognition.is_installed:
            return self._recognition.recognize(body, number)
        # tesseract has a limit of its own, and must have ended before the process that waits for it.
        processes = self._processes.with_limit(self._recognition.seconds + _RENDER_SECONDS)
        try:
            return await processes.run_async(self._recognition.recognize, body, number)
        except ExtractionFailure as failure:
            return RecognizedPage("", failure.detail)


@contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except ExtractionFailure as failure:
        raise PageFailure("unreadable", failure.detail) from None


def _require_file(found: FileText | FileProblem) -> FileText:
    if isinstance(found, FileText):
        return found
    reason: Reason = next((each for each in get_args(Reason) if each == found.reason), "unreadable")
    raise PageFailure(reason, found.detail)


def _require_text(file: FileText, recognized: dict[int, RecognizedPage]) -> PageText:
    """Return the text of a file with the recognized texts of its pages, by number.

    Raises:
        PageFailure: if it has none.
    """
    text, problems = file.text, []
    texts = {number: page.text for number, page in recognized.items() if page.text}
    if texts:
        pages = [clean(texts.get(number, page)) for number, page in enumerate(file.pages, 1)]
        text = "\n\n".join(filter(None, join_hyphenated(pages))).strip()
    reasons = Counter[str]()
    for each in file.problems:
        if each.kind != "scanned":
            problems.append(each)
        elif each.number not in texts:
            page = recognized.get(each.number)
            reason = page.problem if page else f"only {_MAX_RECOGNIZED:,} scanned pages of a file are recognized"
            reasons[reason] += 1
            problems.append(replace(each, detail=f"{each.detail}; {reason}"))
    if not text and reasons:
        reason, _ = reasons.most_common(1)[0]
        raise PageFailure("scan", f"{reasons.total():,} of {len(file.pages):,} pages are images; {reason}")
    if not text and not file.refresh:
        raise PageFailure("no text", "nothing in it is text")
    return PageText(file.title, text, file.refresh, tuple(problems))


@contextmanager
def open_extractor(
    processes: int, seconds: float, scope: Scope = "main", recognition: TextRecognition | None = None
) -> Iterator[Extractor]:
    """Yield an extractor with `processes` processes, which end with the block."""
    with open_processes(processes, seconds, preload=(__name__, "trafilatura")) as bounded:
        yield Extractor(bounded, scope, recognition)
