"""Small files of many kinds, made in memory."""

import io
from collections.abc import Iterable, Sequence
from zipfile import ZIP_DEFLATED, ZipFile

PARAGRAPH = "The pumps of the north site are looked after all through the winter, day and night, by two people. " * 3
PlacedText = tuple[float, float, str]
"""A line of text, and the place of its beginning on the page in points."""


def html_page(part: str, *, main: str = "main", title: str = "Pumps") -> str:
    """Return a page with navigation, and a part between two long paragraphs of its main element."""
    return (
        f"<!doctype html><html><head><title>{title}</title></head><body><header><a href=/>Menu entry</a></header>"
        f"<nav><a href='/'>Menu entry</a></nav><{main}><h1>{title}</h1><p>{PARAGRAPH}</p>{part}"
        f"<p>{PARAGRAPH}</p></{main}>"
        "<footer><ul><li><a href=/a>Menu entry</a><li><a href=/b>Menu entry</a></ul></footer></body></html>"
    )


def placed_pdf(pages: Iterable[Sequence[PlacedText] | bytes], title: str = "") -> bytes:
    """Return a PDF with lines of text at places on its pages. Bytes are the content of a page."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Title (%s) >>" % title.encode(),
        b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 "
        b"/Length 1 >>\nstream\n\x80\nendstream",
    ]
    kids = []
    for page in pages:
        lines = page if isinstance(page, bytes) else b"".join(map(_place, page))
        kids.append(len(objects) + 1)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R /Resources "
            b"<< /Font << /F1 3 0 R >> /XObject << /I1 5 0 R >> >> >>" % (len(objects) + 2)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(lines), lines))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(b"%d 0 R" % each for each in kids), len(kids))
    return _join_objects(objects)


def _place(line: PlacedText) -> bytes:
    x, y, text = line
    return f"BT /F1 10 Tf {x} {y} Td ({text}) Tj ET\n".encode("cp1252")


def _join_objects(objects: list[bytes]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    trailer = b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF" % (size, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n" % size + table + trailer


SCAN = b"q 612 0 0 792 0 0 cm /I1 Do Q"
"""Content of a page that is one image."""


def archive_of(parts: dict[str, str | bytes]) -> bytes:
    """Return a ZIP archive with parts by name."""
    held = io.BytesIO()
    with ZipFile(held, "w", ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    return held.getvalue()


_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_A = "http://schemas.openxmlformats.org/drawingml/2006/main"
_CORE = (
    '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{}</dc:title></cp:coreProperties>'
)


def docx(text: str, title: str = "") -> bytes:
    """Return a Word document of one paragraph."""
    body = f'<w:document xmlns:w="{_W}"><w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body></w:document>'
    return archive_of({"word/document.xml": body, "docProps/core.xml": _CORE.format(title)})


def pptx(*slides: str, title: str = "") -> bytes:
    """Return a presentation with one text per slide."""
    parts: dict[str, str | bytes] = {
        f"ppt/slides/slide{number}.xml": (
            f'<p:sld xmlns:p="p" xmlns:a="{_A}"><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>'
        )
        for number, text in enumerate(slides, 1)
    }
    return archive_of({**parts, "docProps/core.xml": _CORE.format(title)})


def xlsx(rows: Iterable[Sequence[object]]) -> bytes:
    """Return a workbook with one sheet."""
    from openpyxl import Workbook

    book, held = Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(held)
    return held.getvalue()


def epub(chapters: Sequence[str], title: str = "", *, encrypted: bool = False) -> bytes:
    """Return a book whose parts are named against its reading order."""
    names = [f"text/part%20{len(chapters) - number}.xhtml" for number in range(len(chapters))]
    items = "".join(
        f'<item id="c{number}" href="{name}" media-type="application/xhtml+xml"/>' for number, name in enumerate(names)
    )
    order = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{title}</dc:title></metadata><manifest>{items}"
        '<item id="nav" properties="nav" href="nav.xhtml" media-type="application/xhtml+xml"/></manifest>'
        f'<spine><itemref idref="nav"/>{order}</spine></package>'
    )
    parts: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/content.opf"/></rootfiles></container>',
        "OEBPS/content.opf": package,
        "OEBPS/nav.xhtml": "<html><body>Table of contents</body></html>",
    }
    for name, text in zip(names, chapters, strict=True):
        parts[f"OEBPS/{name.replace('%20', ' ')}"] = f"<html><body><p>{text}</p></body></html>"
    if encrypted:
        reference = f'<enc:CipherReference xmlns:enc="e" URI="OEBPS/{names[0]}"/>'
        parts["META-INF/encryption.xml"] = f"<encryption>{reference}</encryption>"
    return archive_of(parts)
