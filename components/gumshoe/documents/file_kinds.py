"""Detect the kind of a file or page by its first bytes, its media type and the ending of its name."""

import re
from pathlib import PurePosixPath
from typing import Literal

from gumshoe.extraction.office import find_old_office_format

PageKind = Literal["html", "text", "markdown", "csv", "pdf", "office", "rtf", "old-office"]

SUFFIXES: dict[str, PageKind] = {
    **dict.fromkeys((".txt", ".text", ".rst"), "text"),
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml", ".xht", ".shtml"), "html"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    ".pdf": "pdf",
    ".rtf": "rtf",
    **dict.fromkeys(
        (
            *(
                ".docx",
                ".docm",
                ".dotx",
                ".dotm",
                ".pptx",
                ".pptm",
                ".ppsx",
                ".ppsm",
                ".potx",
                ".xlsx",
                ".xlsm",
                ".xltx",
            ),
            *(".odt", ".ott", ".ods", ".ots", ".odp", ".otp", ".epub"),
        ),
        "office",
    ),
    **dict.fromkeys((".doc", ".dot", ".ppt", ".pps", ".xls"), "old-office"),
}
"""Kind of a file by the ending of its name."""
_MEDIA_TYPES: dict[str, PageKind] = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
    "text/x-rst": "text",
    "text/prs.fallenstein.rst": "text",
    "text/markdown": "markdown",
    "text/x-markdown": "markdown",
    "text/csv": "csv",
    "application/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/pdf": "pdf",
    "application/x-pdf": "pdf",
    "application/rtf": "rtf",
    "text/rtf": "rtf",
    "application/epub+zip": "office",
    "application/msword": "old-office",
    "application/vnd.ms-excel": "old-office",
    "application/vnd.ms-powerpoint": "old-office",
}
_OFFICE_PREFIXES = ("application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument.")
_OFFICE_MACROS = re.compile(r"application/vnd\.ms-(?:word|excel|powerpoint)\.\w+\.macroenabled\.12")
_UNCERTAIN = {
    *("", "application/octet-stream", "binary/octet-stream", "application/x-download", "application/download"),
    *("application/force-download", "application/unknown", "application/x-unknown", "unknown/unknown", "*/*"),
    *("application/zip", "application/x-zip-compressed", "application/text", "text"),
}
_PDF_START = 1024  # a PDF may begin behind some junk
_PDF = re.compile(rb"%PDF-\d")
_ZIP, _RTF, _OLE = b"PK\3\4", b"{\\rtf", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HTML_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.{0,2000}?-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.I | re.S,
)
_TEXT_KINDS = {"html", "text", "markdown", "csv"}


def find_page_kind(data: bytes, media_type: str = "", name: str = "") -> PageKind | None:
    """Return the kind of a file, or None if this kind cannot be read.

    What the bytes say wins over the media type and the name, because servers often declare a wrong type, e.g. of a PDF.
    """
    declared = media_type.partition(";")[0].strip().lower()
    suffix = PurePosixPath(name.lower()).suffix
    kind = _MEDIA_TYPES.get(declared) or ("office" if _is_office_type(declared) else None)
    if kind is None and declared in _UNCERTAIN:
        kind = SUFFIXES.get(suffix)
    elif kind == "text" and SUFFIXES.get(suffix) in {"markdown", "csv"}:
        kind = SUFFIXES[suffix]
    if kind is None and declared not in _UNCERTAIN:
        return None
    inside = _find_by_content(data, kind)
    return inside or kind


def _is_office_type(declared: str) -> bool:
    return declared.startswith(_OFFICE_PREFIXES) or _OFFICE_MACROS.fullmatch(declared) is not None


def _find_by_content(data: bytes, kind: PageKind | None) -> PageKind | None:
    """Return the kind that the first bytes prove, or None."""
    found = _PDF.search(data[:_PDF_START])
    if found and (found.start() == 0 or b"endobj" in data):
        return "pdf"
    if data.startswith(_ZIP):
        return "office"
    if data.lstrip()[: len(_RTF)] == _RTF:
        return "rtf"
    if data.startswith(_OLE):
        return "old-office"
    if kind in {"old-office", "office", None} and _HTML_START.match(data):  # programs write tables so
        return "html"
    if kind is None and data.lstrip()[:1] == b"<" and b"\0" not in data[:512]:
        return "html"
    return None


def describe_old_format(data: bytes) -> str:
    """Return the name of a format of Office that cannot be read, e.g. `Word before 2007`."""
    return find_old_office_format(data) or "a format of Office before 2007"
