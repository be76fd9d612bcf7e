"""A page's bytes to its title and main text, and whether it is a page at all.

Hostile markup can keep a parser busy for hours or bring it down, so pages are read in processes of their own, which
are ended when they take too long.
"""

import asyncio
import codecs
import io
import multiprocessing
import re
import resource
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Overtime
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.mail.message import clean, clean_line
from gumshoe.mail.text import charset_in_html, decode

if TYPE_CHECKING:
    from pebble import ProcessPool

Kind = Literal["html", "text", "pdf"]

LIBRARIES = ("pebble", "protego", "pypdf", "trafilatura")
_SHORT = "50"  # characters of main text; the whole page is taken instead of fewer, menus and all
_PAGES_OF_A_PROCESS = 500
_MEMORY = 4 << 30  # bytes that such a process may map
_CARELESS = {"iso-8859-1", "latin1", "latin-1", "us-ascii", "ascii", "windows-1252"}  # what servers say of anything
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

_TITLE_PARTS = re.compile(r"\s+[|·•:\u2013\u2014-]+\s+|\s*[|·•]\s*")
_NOT = "n['\u2019]t"
_GONE = (
    rf"(?:(?:not|cannot|ca{_NOT}) (?:be )?found|no longer (?:available|exists?|here)|does(?: not|{_NOT}) exist|"
    r"(?:was|been) removed)"
)
_PAGE = "(?:page|document|file|article|content|resource|url)"
_MISSING_TITLE = re.compile(
    r"(?:error |http |status )*(?:404|410)\b.{0,40}"
    rf"|(?:(?:oops|sorry|error)\W+)?{_GONE}\W*|.{{0,40}}\b{_PAGE}\b.{{0,40}}\b{_GONE}\b.{{0,20}}",
    re.I,
)
_MISSING_TEXT = re.compile(rf"\b(?:{_PAGE}|address|link)\b[^.\n]{{0,60}}\b{_GONE}\b|\berror 404\b", re.I)
_FEW_WORDS = 120  # a page that is longer may speak of what was not found
_OPENING = 400  # characters in which a page that is missing says so
_ALIKE = 0.9  # share of words in common


@dataclass(frozen=True, slots=True)
class PageText:
    """What a page says: its title, "" where it has none, and its main text."""

    title: str
    text: str

    @property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", f"{self.title} {self.text}".casefold()))

    @property
    def says_missing(self) -> bool:
        """Whether it says that there is no such page."""
        if any(_MISSING_TITLE.fullmatch(part.strip()) for part in _TITLE_PARTS.split(self.title)):
            return True
        return len(self.text.split()) < _FEW_WORDS and bool(_MISSING_TEXT.search(self.text[:_OPENING]))

    def is_like(self, other: "PageText") -> bool:
        """Whether it has the words of another, as two answers from one template do."""
        mine, others = self.words, other.words
        return len(mine & others) >= _ALIKE * len(mine | others)


class Extractor:
    """Reads pages, each within a bound of seconds."""

    def __init__(self, pool: "ProcessPool", seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds

    async def text(self, body: bytes, kind: Kind, charset: str | None) -> PageText:
        """
        Raises:
            PageFailure: there is no text in it, or it cannot be read, or not in time.
        """
        with self._explained():
            return _with_text(await asyncio.wrap_future(self._begin(body, kind, charset)))

    def read(self, body: bytes, kind: Kind, charset: str | None = None) -> PageText:
        """As `text`, where there is no event loop."""
        with self._explained():
            return _with_text(self._begin(body, kind, charset).result())

    def _begin(self, body: bytes, kind: Kind, charset: str | None) -> "Future[PageText | str]":
        # It may first have to wait for a process; what is bounded is the work itself.
        begun: Future[PageText | str] = self._pool.schedule(
            read_page, args=[body, kind, charset], timeout=self._seconds
        )
        return begun

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from pebble import ProcessExpired

        try:
            yield
        except Overtime:
            raise PageFailure("unreadable", f"text extraction took more than {self._seconds:g} seconds") from None
        except ProcessExpired as error:
            raise PageFailure("unreadable", f"the process that extracts its text crashed ({error})") from None
        except MemoryError:
            raise PageFailure("unreadable", "text extraction ran out of memory") from None


def _with_text(found: PageText | str) -> PageText:
    if isinstance(found, str):
        raise PageFailure("unreadable", found)
    if not found.text:
        raise PageFailure("no text", "no main text found; the page may need a browser to show it")
    return found


@contextmanager
def extractor(processes: int, seconds: float) -> Iterator[Extractor]:
    """An extractor that works in so many processes, which end with the block."""
    from pebble import ProcessPool

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "trafilatura"])
    with ProcessPool(processes, max_tasks=_PAGES_OF_A_PROCESS, initializer=_hold_memory, context=context) as pool:
        yield Extractor(pool, seconds)


def _hold_memory() -> None:
    """Have this process fail before it takes the machine's memory."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    held = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (held, most))


def read_page(body: bytes, kind: Kind, charset: str | None) -> PageText | str:
    """Title and main text of a page; what is wrong where it cannot be read. `charset` is what its server says."""
    try:
        if kind == "pdf":
            return _read_pdf(body)
        text = clean(decode(body, _charset(body, charset)))
        return _read_html(text) if kind == "html" else PageText("", text.strip())
    except Exception as error:  # noqa: BLE001 - the top of its process: whatever the parsers fall over is the page's
        return f"cannot be parsed ({type(error).__name__}: {error})"[:200]


def _charset(body: bytes, said: str | None) -> str | None:
    """Which charset to believe: a mark at the beginning, then the server, unless it says what servers say of anything
    or what the bytes rule out; then the document.
    """
    marked = next((name for mark, name in _BOMS if body.startswith(mark)), None)
    if marked:
        return marked
    inside = charset_in_html(body)
    if said is None or inside is None:
        return said or inside
    if said.strip("\"' ").lower() in _CARELESS:
        return inside
    try:
        body.decode(said.strip("\"' "))
    except (LookupError, ValueError):
        return inside
    return said


def _read_html(html: str) -> PageText:
    from trafilatura import bare_extraction
    from trafilatura.settings import DEFAULT_CONFIG, Document

    config = deepcopy(DEFAULT_CONFIG)
    config["DEFAULT"]["MIN_EXTRACTED_SIZE"] = _SHORT
    found = bare_extraction(html, include_comments=False, with_metadata=True, config=config)
    if not isinstance(found, Document):
        return PageText("", "")
    return PageText(clean_line(found.title or ""), clean(found.text or "").strip())


def _read_pdf(body: bytes) -> PageText:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(body))
    text = "\n\n".join(page.extract_text() for page in reader.pages)
    title = reader.metadata.title if reader.metadata else None
    return PageText(clean_line(title or ""), clean(text).strip())
