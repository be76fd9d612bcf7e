"""A document, and the rules that its text, id and metadata follow."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import httpx

from gumshoe.mail.message import clean, clean_line

Metadata = dict[str, str | list[str]]

_DIGITS = 8  # of a digest, in an invented id: short enough for a model to write, and one in four thousand millions
_SLUG = 48
_AROUND_PATH = re.compile(r"^[a-z]+://|[?#].*$")
_DULL = {"default", "home", "index", "main", "page", "pages", "toc"}  # parts of an address that tell nothing
_NOT_IN_ID = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Document:
    """One document as it is indexed and read."""

    document_id: str
    """Stable: the same for the same document, wherever and whenever it is loaded."""
    title: str
    text: str
    url: str = ""
    metadata: Metadata = field(default_factory=dict)
    """Flat: category, synonyms, source and what else the source tells."""


def make_document(
    document_id: Any, title: Any, text: Any, url: Any = None, metadata: Mapping[str, Any] | None = None
) -> Document:
    """A document of fields as a source gives them, cleaned; None is an empty one.

    Without an id it is `page_id` of the address, and without that one made from title and text.

    Raises:
        TypeError: a field is of the wrong type; the message names it.
    """
    name, where, content = _line("title", title), _line("url", url), clean(_text("text", text)).strip()
    given = _line("id", document_id)
    known = {
        key: value
        for name, raw in (metadata or {}).items()
        if (key := clean_line(str(name))) and (value := _metadata_value(raw))
    }
    return Document(given or invent_id(where, name, content), name, content, where, known)


def invent_id(url: str, title: str, text: str) -> str:
    """The id of a document that came without one: a readable part, and a digest of the address or of all there is."""
    if url:
        return page_id(url)
    return _readable_id(title or "document", f"{title}\0{text}")


def page_id(url: str) -> str:
    """The id of the page at an address, such as `leukemia-adult-all-treatment-pdq-1f0c3a9b`."""
    url = one_form(url)
    host, *parts = [part for part in unquote(_AROUND_PATH.sub("", url.lower())).split("/") if part] or [""]
    telling = [name for part in parts if (name := PurePosixPath(part).stem) not in _DULL]
    return _readable_id(" ".join(dict.fromkeys(telling[-2:])) or host or "page", url)


def one_form(url: str) -> str:
    """An address in the one form of all that name the same page: lower case where case does not count, no default port,
    nothing behind `#`. What is no address is left as it is.
    """
    try:
        found = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError):
        return url
    return str(found.copy_with(fragment=None, raw_path=found.raw_path or b"/")) if found.host else url


def _readable_id(name: str, content: str) -> str:
    readable = _NOT_IN_ID.sub("-", name.lower())[:_SLUG].strip("-")
    digest = sha256(content.encode()).hexdigest()[:_DIGITS]
    return f"{readable}-{digest}" if readable else digest


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    return str(value)


def _line(name: str, value: Any) -> str:
    return clean_line(_text(name, value))


def _metadata_value(value: Any) -> str | list[str]:
    """Text, or a list of texts; numbers, days and truth values as text. Anything deeper is left out."""
    if isinstance(value, list | tuple | set):
        return list(dict.fromkeys(filter(None, map(_plain, value))))
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return clean_line(str(value)) if isinstance(value, str | int | float | date) else ""
