"""Text of PDF files, some pages of which are damaged."""

import io

from gumshoe.extraction.pdf import extract_pdf
from tests.documents.pages import pdf


def test_the_other_pages_of_a_damaged_file_are_read() -> None:
    from pypdf import PdfWriter
    from pypdf.generic import NameObject

    writer, data = PdfWriter(), io.BytesIO()
    for text in ("first", "second", "third"):
        writer.append(io.BytesIO(pdf(text)))
    contents = writer.pages[1]["/Contents"].get_object()
    contents[NameObject("/Filter")] = NameObject("/Unknown")  # type: ignore[index]
    writer.write(data)
    found = extract_pdf(data.getvalue())
    assert found.pages == ["first", "third"]
    assert [str(each) for each in found.errors] == ["Unsupported filter /Unknown"]
