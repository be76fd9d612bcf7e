"""Text of PDF files, some pages of which are damaged."""

import io

import pytest

from gumshoe.extraction.pdf import extract_pdf


def test_the_other_pages_of_a_damaged_file_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from pypdf import PageObject, PdfWriter

    writer, data = PdfWriter(), io.BytesIO()
    for _ in range(3):
        writer.add_blank_page(100, 100)
    writer.write(data)
    texts = iter(["first", "", "third"])

    def extract_text(_: PageObject) -> str:
        text = next(texts)
        if not text:
            raise NotImplementedError("Unsupported filter")
        return text

    monkeypatch.setattr(PageObject, "extract_text", extract_text)
    found = extract_pdf(data.getvalue())
    assert found.pages == ["first", "third"]
    assert [str(each) for each in found.errors] == ["Unsupported filter"]
