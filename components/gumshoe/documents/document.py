"""A document, and the normalization of its text, id and metadata."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import httpx

from gumshoe.documents.collection_names import check_collection_name
from gumshoe.mail.message import clean, clean_line

Metadata = dict[str, str | list[str]]

CONTEXT_FIELDS = ("category", "synonyms")
"""Metadata in the context line of a chunk, after the title."""
_DIGEST_DIGITS = 8  # in a generated id: short enough for a model to write, with 2**32 values
_LONGER_DIGITS = (16, 32, 64)
_MAX_SLUG = 48
_AROUND_PATH = re.compile(r"^[a-z]+://|[?#].*$")
_UNINFORMATIVE = {"default", "home", "index", "main", "page", "pages", "toc"}  # parts of a URL without meaning
_NOT_IN_ID = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Document:
    """One document, as it is indexed and read."""

    document_id: str
    """Stable: the same document always gets the same id."""
    title: str
    text: str
    url: str = ""
    metadata: Metadata = field(default_factory=dict)
    """Flat: category, synonyms, source and other fields of the source."""
    collection: str = ""
    """Collection that it belongs to. Empty if the index has no collections."""

    def list_context(self) -> list[str]:
        """Return the parts of the context line of its chunks, the most important first."""
        parts = [self.title]
        for name in CONTEXT_FIELDS:
            value = self.metadata.get(name) or []
            parts += value if isinstance(value, list) else [value]
        return parts


def make_document(
    document_id: Any,
    title: Any,
    text: Any,
    url: Any = None,
    metadata: Mapping[str, Any] | None = None,
    collection: Any = None,
) -> Document:
    """Create a document from the fields of a source, and clean them. None means empty.

    A missing id is `page_id` of the URL, or generated from title and text if there is no URL.

    Raises:
        TypeError: if a field has a wrong type; the message names it.
        UsageError: if the collection is not the name of one.
    """
    name, where, content = _to_line("title", title), _to_line("url", url), clean(_to_text("text", text)).strip()
    given = _to_line("id", document_id)
    known = {
        key: value
        for name, raw in (metadata or {}).items()
        if (key := clean_line(str(name))) and (value := _to_metadata_value(raw))
    }
    collected = "" if collection in (None, "") else check_collection_name(collection)
    return Document(given or generate_id(where, name, content), name, content, where, known, collected)


def generate_id(url: str, title: str, text: str) -> str:
    """Return an id for a document without one: a readable part, and a digest of the URL or else of title and text."""
    if url:
        return page_id(url)
    return _readable_id(title or "document", f"{title}\0{text}")


def page_id(url: str) -> str:
    """Return the id of the page at a URL, e.g. `leukemia-adult-all-treatment-pdq-1f0c3a9b`."""
    return next(list_page_ids(url))


def list_page_ids(url: str) -> Iterator[str]:
    """Yield ids for the page at a URL: that of `page_id`, and longer ones for a page whose id another page has."""
    canonical = canonicalize_url(url)
    name = _name_page(canonical)
    yield _readable_id(name, canonical)
    yield from (_readable_id(name, url, digits) for digits in _LONGER_DIGITS)  # canonical forms may be equal


def _name_page(url: str) -> str:
    """Return the part of a canonical URL that says what is on the page."""
    host, *parts = [part for part in unquote(_AROUND_PATH.sub("", url.lower())).split("/") if part] or [""]
    meaningful = [name for part in parts if (name := PurePosixPath(part).stem) not in _UNINFORMATIVE]
    return " ".join(dict.fromkeys(meaningful[-2:])) or host or "page"


def canonicalize_url(url: str) -> str:
    """Return the canonical form of a URL: lower case where case is ignored, without default port and fragment.

    Text that is not a URL is returned unchanged.
    """
    try:
        found = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError):
        return url
    return str(found.copy_with(fragment=None, raw_path=found.raw_path or b"/")) if found.host else url


def _readable_id(name: str, content: str, digits: int = _DIGEST_DIGITS) -> str:
    readable = _NOT_IN_ID.sub("-", name.lower())[:_MAX_SLUG].strip("-")
    digest = sha256(content.encode()).hexdigest()[:digits]
    return f"{readable}-{digest}" if readable else digest


def _to_text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    return str(value)


def _to_line(name: str, value: Any) -> str:
    return clean_line(_to_text(name, value))


def _to_metadata_value(value: Any) -> str | list[str]:
    """Return text or a list of texts. Numbers, dates and booleans become text; deeper values are dropped."""
    if isinstance(value, list | tuple | set):
        return list(dict.fromkeys(filter(None, map(_to_plain_text, value))))
    return _to_plain_text(value)


def _to_plain_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return clean_line(str(value)) if isinstance(value, str | int | float | date) else ""
