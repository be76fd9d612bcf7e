"""Extract the text of PDF files."""

import io
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PdfText:
    """Text of a PDF file."""

    title: str
    """Title in its metadata, or "" if it has none."""
    pages: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    """Errors of the pages that cannot be read. They are missing in `pages`."""


def extract_pdf(data: bytes, max_characters: int | None = None) -> PdfText:
    """Return the text of a PDF file, of no more pages than `max_characters` needs.

    Raises:
        pypdf.errors.PyPdfError and others: if the file as a whole cannot be read.
    """
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    title = reader.metadata.title if reader.metadata else None
    found, length = PdfText(title or ""), 0
    for page in reader.pages:
        try:
            text = page.extract_text()
        except Exception as error:  # noqa: BLE001 - pypdf raises errors of any kind for damaged pages
            found.errors.append(error)
            continue
        found.pages.append(text)
        length += len(text)
        if max_characters is not None and length >= max_characters:
            break
    return found
