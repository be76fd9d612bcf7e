"""Extract the text of PDF files: in reading order, page by page, so that one damaged page does not lose the others."""

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from gumshoe.extraction.page_layout import Character, join_hyphenated, order_lines

ProblemKind = Literal["damaged", "scanned"]
_MIN_TEXT = 25  # characters; a scanned page may have a number or a stamp as text
_MIN_IMAGE_SHARE = 0.5  # of a page that is an image of its text
_MIN_STREAM = 16  # bytes of a page that is not blank
_SAMPLE = 200  # bytes
_MAX_PAGES = 20_000
_MAX_CHARACTERS_PER_PAGE = 200_000
RENDER_DPI = 300
"""Resolution of the images of pages."""
_MAX_PIXELS = 30_000_000  # of one rendered page
_POINTS_PER_INCH = 72


@dataclass(frozen=True, slots=True)
class PageProblem:
    """A page whose text was not read."""

    number: int
    """Number of the page, from 1."""
    kind: ProblemKind
    detail: str


@dataclass(frozen=True, slots=True)
class PdfText:
    """Text of a PDF file."""

    title: str
    """Title in its metadata, or "" if it has none."""
    pages: list[str] = field(default_factory=list)
    """Text of each page. Empty if the page has none, or cannot be read."""
    problems: list[PageProblem] = field(default_factory=list)
    """Pages that cannot be read, or are images."""


def extract_pdf(data: bytes, max_characters: int | None = None) -> PdfText:
    """Return the text of a PDF file, of no more pages than `max_characters` needs.

    Columns are read one after another, and words that are hyphenated at the end of a line are joined.

    Raises:
        ValueError: if the file as a whole cannot be read, e.g. because it is encrypted.
    """
    with _open(data) as document:
        found, length = PdfText(_read_title(document)), 0
        faults = _FaultFinder(data)
        pages: list[str] = []
        for number in range(1, min(len(document), _MAX_PAGES) + 1):
            text, problem = _read_page(document, faults, number)
            pages.append(text)
            if problem:
                found.problems.append(problem)
            length += len(text)
            if max_characters is not None and length >= max_characters:
                break
    found.pages.extend(join_hyphenated(pages))
    return found


@contextmanager
def _open(data: bytes) -> Iterator[Any]:
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        is_locked = "password" in str(error).lower()
        raise ValueError("encrypted" if is_locked else f"not a PDF that can be read ({error})") from None
    with closing(document):
        yield document


def _read_title(document: Any) -> str:
    return " ".join((document.get_metadata_value("Title") or "").split())


def _read_page(document: Any, faults: "_FaultFinder", number: int) -> tuple[str, PageProblem | None]:
    import pypdfium2

    try:
        with closing(document[number - 1]) as page:
            text = "\n".join(order_lines(_read_characters(page)))
            is_image = len(text) < _MIN_TEXT and _is_image(page)
    except pypdfium2.PdfiumError as error:
        return "", PageProblem(number, "damaged", str(error))
    if is_image:
        return text, PageProblem(number, "scanned", "the page is an image")
    if not text and (fault := faults.find(number)):
        return "", PageProblem(number, "damaged", fault)
    return text, None


def _read_characters(page: Any) -> list[Character]:
    """Return the characters of a page in the order of the file, with their boxes."""
    import ctypes

    import pypdfium2.raw as pdfium

    with closing(page.get_textpage()) as text:
        found = []
        left, right, bottom, top = (ctypes.c_double() for _ in range(4))
        for index in range(min(text.count_chars(), _MAX_CHARACTERS_PER_PAGE)):
            code = pdfium.FPDFText_GetUnicode(text, index)
            pdfium.FPDFText_GetCharBox(text, index, left, right, bottom, top)
            found.append(
                Character(
                    chr(code) if 0 < code < 0x110000 else "",
                    left.value,
                    right.value,
                    bottom.value,
                    top.value,
                    bool(pdfium.FPDFText_IsHyphen(text, index) == 1),
                )
            )
    return found


def _is_image(page: Any) -> bool:
    """Return True if a page shows images or drawings, of which images cover most, or there is no text."""
    import pypdfium2.raw as pdfium

    drawn = [pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_PATH, pdfium.FPDF_PAGEOBJ_SHADING]
    objects = list(page.get_objects(filter=drawn, max_depth=4))
    if not objects:
        return False
    area = float(page.get_width() * page.get_height())
    covered = 0.0
    for each in objects:
        if each.type == pdfium.FPDF_PAGEOBJ_IMAGE:
            left, bottom, right, top = each.get_bounds()
            covered += max(0.0, right - left) * max(0.0, top - bottom)
    with closing(page.get_textpage()) as text:
        return covered >= _MIN_IMAGE_SHARE * area or int(text.count_chars()) == 0


class _FaultFinder:
    """Finds out why nothing of a page is shown, which PDFium does not tell. The file is parsed once, if needed."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def _pages(self) -> Any:
        """The pages as pypdf reads them, or why it cannot read the file."""
        from pypdf import PdfReader

        try:
            pages = PdfReader(io.BytesIO(self._data)).pages
            len(pages)  # reads the list of pages
        except Exception as error:  # noqa: BLE001 - pypdf raises errors of any kind for damaged files
            return _describe(error)
        return pages

    def find(self, number: int) -> str:
        """Return why nothing of a page is shown, or "" if it is blank."""
        if isinstance(self._pages, str):
            return self._pages
        try:
            page = self._pages[number - 1]
            contents = page.get_contents()
            if contents is not None and not _draws(contents.get_data()) and _count_raw_bytes(page) > _MIN_STREAM:
                return "its content cannot be decoded"
        except Exception as error:  # noqa: BLE001 - as above, for damaged pages
            return _describe(error)
        return ""


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


def _draws(content: bytes) -> bool:
    """Return True if a page's content has the characters of its language only, e.g. if it is blank on purpose."""
    return bool(content.strip()) and content[:_SAMPLE].isascii()


def _count_raw_bytes(page: Any) -> int:
    """Return the number of bytes of a page's content as the file has it."""
    contents = page["/Contents"].get_object()
    streams = [each.get_object() for each in contents] if isinstance(contents, list) else [contents]
    return sum(len(each._data) for each in streams)


def render_page(data: bytes, number: int) -> bytes:
    """Return an image of a page, from 1, for text recognition: PGM with `RENDER_DPI` dots per inch.

    Raises:
        ValueError: if the file or the page cannot be read.
    """
    import pypdfium2

    with _open(data) as document:
        try:
            with closing(document[number - 1]) as page:
                scale = RENDER_DPI / _POINTS_PER_INCH
                area = page.get_width() * page.get_height() * scale**2
                if area > _MAX_PIXELS:
                    scale *= (_MAX_PIXELS / area) ** 0.5
                image = page.render(scale=scale, grayscale=True)
        except pypdfium2.PdfiumError as error:
            raise ValueError(str(error)) from None
        pixels, stride = bytes(image.buffer), image.stride
        rows = (pixels[start : start + image.width] for start in range(0, stride * image.height, stride))
        return b"P5\n%d %d\n255\n" % (image.width, image.height) + b"".join(rows)
