"""Documents with numbers as ids, like the messages in `tests.mail.mailbox`, and an index of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.documents.collection import make_index


def page(number: int, **fields: Any) -> dict[str, Any]:
    """Return one document with plain defaults."""
    return {
        "document_id": f"d{number}",
        "title": f"Title {number}",
        "text": f"Body of document {number}",
        "url": f"https://example.com/{number}",
        **fields,
    }


def make_collection(directory: Path, pages: Iterable[dict[str, Any]]) -> Path:
    """Build a lexical index of some documents and return its directory."""
    make_index(directory, pages)
    return directory / "index"


def pdf(text: str, title: str = "") -> bytes:
    """Return a PDF of one page with one line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Title (%s) >>" % title.encode(),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size 6 /Root 1 0 R /Info 5 0 R >>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 6\n0000000000 65535 f \n" + table + trailer
