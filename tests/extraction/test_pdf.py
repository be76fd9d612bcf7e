"""Text of PDF files: reading order, divided words, and pages that are damaged or scanned."""

import io
import zlib

import pypdf
import pytest

from gumshoe.extraction.pdf import extract_pdf, render_page
from tests.documents.file_samples import SCAN, PlacedText, placed_pdf

LEFT = [
    "The left column tells of pumps and",
    "their care in winter, since all of",
    "them freeze if nobody looks after",
    "the valves for more than a week.",
]
RIGHT = [
    "The right column is about leases",
    "and their ends, which are on the",
    "thirtieth of June in most of the",
    "houses that the company lets out.",
]
TITLE = "A title that goes over both of the columns of this page, as titles often do"


def set_rows(*columns: list[str], top: float = 700, width: float = 250) -> list[PlacedText]:
    """Place columns row by row, as many programs write them."""
    rows = enumerate(zip(*columns, strict=True))
    return [(50 + width * x, top - 12 * y, text) for y, row in rows for x, text in enumerate(row)]


def lines_of(*pages: list[PlacedText]) -> list[str]:
    return [line for page in extract_pdf(placed_pdf(pages)).pages for line in page.split("\n")]


def test_columns_are_read_one_after_another() -> None:
    assert lines_of([(50, 730, TITLE), *set_rows(LEFT, RIGHT)]) == [TITLE, *LEFT, *RIGHT]
    assert lines_of(set_rows(LEFT, RIGHT, LEFT, width=185)) == [*LEFT, *RIGHT, *LEFT]


def test_columns_between_lines_of_full_width_are_read_band_by_band() -> None:
    below = [*set_rows(LEFT, RIGHT), (50, 640, TITLE), *set_rows(RIGHT, LEFT, top=620)]
    assert lines_of(below) == [*LEFT, *RIGHT, TITLE, *RIGHT, *LEFT]


def test_rows_of_a_table_stay_together() -> None:
    table = set_rows(["Item", "Pump", "Valve", "Pipe"], ["Price", "250", "20", "5"], ["Count", "3", "14", "100"])
    assert lines_of(table) == ["Item\tPrice\tCount", "Pump\t250\t3", "Valve\t20\t14", "Pipe\t5\t100"]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["The insured pays a deduct-", "ible of 250 euros."], "The insured pays a deductible\nof 250 euros."),
        (["It is well-known. The well-", "known pump."], "It is well-known. The well-known\npump."),
        (["A soft\u00ad", "ware."], "A software."),
        (["In 1990-", "2000 it ran."], "In 1990-\n2000 it ran."),
        (["The Nord-", "See route."], "The Nord-See\nroute."),
        (["a list -", "of items"], "a list -\nof items"),
    ],
)
def test_divided_words_are_joined(lines: list[str], text: str) -> None:
    placed = [(72.0, 700.0 - 12 * number, line) for number, line in enumerate(lines)]
    assert extract_pdf(placed_pdf([placed])).pages == [text]


def test_a_word_divided_between_pages_is_joined() -> None:
    pages: list[list[PlacedText]] = [[(72, 700, "It ends on this pa-")], [(72, 700, "ge and goes on.")]]
    assert extract_pdf(placed_pdf(pages)).pages == ["It ends on this page", "and goes on."]


def test_a_damaged_page_does_not_lose_the_others() -> None:
    data = placed_pdf([[(72, 700, "first")], b"", [(72, 700, "third")]])
    stream = zlib.compress(b"BT (second) Tj ET")[:5] + b"\xff" * 20
    broken = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s" % (len(stream), stream)
    found = extract_pdf(data.replace(b"<< /Length 0 >>\nstream\n", broken))
    assert found.pages == ["first", "", "third"]
    assert [(each.number, each.kind) for each in found.problems] == [(2, "damaged")]


def test_a_blank_page_is_no_problem() -> None:
    found = extract_pdf(placed_pdf([[(72, 700, "first")], b""]))
    assert (found.pages, found.problems) == (["first", ""], [])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_with_many_blank_pages_is_parsed_once(monkeypatch: pytest.MonkeyPatch, is_damaged: bool) -> None:
    parsed: list[object] = []
    original = pypdf.PdfReader

    def parse(file: io.BytesIO) -> pypdf.PdfReader:
        parsed.append(file)
        if is_damaged:
            raise ValueError("no xref table")
        return original(file)

    monkeypatch.setattr(pypdf, "PdfReader", parse)
    found = extract_pdf(placed_pdf([[(72, 700, "first")], *[b""] * 20]))
    assert [each.detail for each in found.problems] == ["no xref table"] * 20 * is_damaged
    assert len(parsed) == 1
    extract_pdf(placed_pdf([[(72, 700, "first")]]))
    assert len(parsed) == 1


@pytest.mark.parametrize("content", [SCAN, b"0 0 m 100 100 l S", SCAN + b" BT /F1 9 Tf 50 50 Td (page 7) Tj ET"])
def test_a_scanned_page_is_detected(content: bytes) -> None:
    found = extract_pdf(placed_pdf([[(72, 700, "A page of text.")], content]))
    assert [(each.number, each.kind) for each in found.problems] == [(2, "scanned")]


def test_a_picture_on_a_page_of_text_is_no_scan() -> None:
    text = b" BT /F1 9 Tf 50 50 Td (A page of text about the picture behind it.) Tj ET"
    assert extract_pdf(placed_pdf([SCAN + text])).problems == []


@pytest.mark.parametrize("data", [b"%PDF-1.4\nrubbish", b"%PDF-", b""])
def test_what_is_no_pdf_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a PDF"):
        extract_pdf(data)


def test_a_page_is_rendered_for_recognition() -> None:
    image = render_page(placed_pdf([[(72, 700, "first")]]), 1)
    header, size, depth, pixels = image.split(b"\n", 3)
    assert (header, size, depth) == (b"P5", b"2550 3301", b"255")
    assert len(pixels) == 2550 * 3301
    assert len(set(pixels)) > 2
