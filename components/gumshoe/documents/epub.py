"""Extract title and text of an EPUB book: its chapters in reading order."""

import io
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote, urlsplit
from zipfile import BadZipFile, ZipFile

from gumshoe.documents.page_text import page_to_text
from gumshoe.extraction.office import check_archive
from gumshoe.mail.text import decode, find_html_charset

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_MEDIA_TYPE = b"application/epub+zip"
_CHAPTERS = {"application/xhtml+xml", "text/html"}


def is_epub(data: bytes) -> bool:
    """Return True if an archive is an EPUB book."""
    try:
        with ZipFile(io.BytesIO(data)) as archive:
            names = set(archive.namelist())
            return _CONTAINER in names and ("mimetype" not in names or archive.read("mimetype").strip() == _MEDIA_TYPE)
    except (BadZipFile, OSError, RuntimeError, NotImplementedError):
        return False


def extract_epub(data: bytes) -> tuple[str, str]:
    """Return title and text of a book, in the order in which its chapters are read.

    Raises:
        ValueError: if its chapters are encrypted, or it unpacks to too much.
        Other errors of zipfile and lxml: if it is damaged.
    """
    with ZipFile(io.BytesIO(data)) as archive:
        check_archive(archive)
        package_name = _find(_parse(archive.read(_CONTAINER)), "rootfile").get("full-path")
        package = _parse(archive.read(package_name))
        titles = [text for each in _find_all(package, "title") if (text := (each.text or "").strip())]
        chapters = _list_chapters(package, dirname(package_name))
        if _ENCRYPTION in archive.namelist():
            _check_not_encrypted(archive.read(_ENCRYPTION), chapters)
        names = set(archive.namelist())
        texts = []
        for name in chapters:
            if name in names:
                raw = archive.read(name)
                texts.append(page_to_text(decode(raw, find_html_charset(raw))))
        return (titles or [""])[0], "\n\n".join(filter(None, texts))


def _list_chapters(package: Any, folder: str) -> list[str]:
    """Return the names of the parts with text, in reading order, without the table of contents."""
    items = {each.get("id"): each for each in _find_all(package, "item")}
    order = [items[key] for each in _find_all(package, "itemref") if (key := each.get("idref")) in items]
    return [
        normpath(join(folder, unquote(urlsplit(each.get("href", "")).path)))
        for each in order
        if each.get("media-type") in _CHAPTERS and "nav" not in (each.get("properties") or "").split()
    ]


def _check_not_encrypted(encryption: bytes, chapters: list[str]) -> None:
    encrypted = {unquote(each.get("URI", "")) for each in _find_all(_parse(encryption), "CipherReference")}
    if encrypted & set(chapters):
        raise ValueError("encrypted")


def _parse(data: bytes) -> Any:
    from lxml import etree

    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))


def _find_all(root: Any, name: str) -> list[Any]:
    return list(root.iter(f"{{*}}{name}"))


def _find(root: Any, name: str) -> Any:
    found = _find_all(root, name)
    if not found:
        raise ValueError(f"no {name} in the package")
    return found[0]
