"""Extract title and text of an HTML page: everything that it shows but navigation, or only its main element."""

import re
from collections import Counter
from copy import deepcopy
from typing import Any, Literal

from gumshoe.documents.page_cleaning import Element, clean_page, find_elements, link_share
from gumshoe.mail.message import clean_line
from gumshoe.mail.text import mark_raised, remove_invisible

Scope = Literal["page", "main"]
"""Text to extract: of the whole page, or of its main element."""
_MIN_MAIN_TEXT = "50"  # characters; below, the whole page is used
_MIN_OWN_COVERAGE = 0.5  # share of the words of the main text in an element that the page itself calls its main one
_MIN_COVERAGE = 0.8  # the same for any other element
_CONTAINERS = {"div", "section", "article", "main", "body", "center", "form", "td", "tr", "tbody", "table", "font"}
_AROUND_MAIN = {"nav", "header", "footer", "aside"}
_MAX_LINK_SHARE = 0.3  # of what is beside the main text in its parent element
_MAX_FRAMES = 20
_SHADOW = re.compile(r"<template(?=[^<>]{0,200}\sshadowrootmode\b)", re.I)
_TEMPLATE_END = re.compile(r"</template\s*>", re.I)
_BLANKS = re.compile("\u00a0[ \u00a0]*")
_BULLET = re.compile(r"^(?:  )?([ \t]*)(?:\u2022|(\d{1,4}\.)) ", re.M)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")


def extract_html(html: str, scope: Scope) -> tuple[str, str]:
    """Return title and text of a page. Either may be empty.

    The text of `scope="main"` is everything that the page's main element shows.
    """
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(mark_raised(_show_shadows(html)))
    body = tree.body
    if body is None:
        return "", ""
    _show_frames(body)
    title, main_text = _find_title_and_main_text(html, scope)
    clean_page(body, keeps_extras=scope == "page")
    root = body if scope == "page" else _find_main_element(body, main_text)
    return title or _find_own_title(tree, root), _to_text(root)


def page_to_text(html: str) -> str:
    """Return the text of a page without navigation, e.g. of a chapter of a book."""
    from resiliparse.parse.html import HTMLTree

    body = HTMLTree.parse(mark_raised(html)).body
    if body is None:
        return ""
    clean_page(body, keeps_extras=True)
    return _to_text(body)


def _to_text(element: Element) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    text = extract_plain_text(
        element.outer_html, preserve_formatting=True, alt_texts=True, form_fields=True, noscript=True
    )
    text = remove_invisible(_BLANKS.sub(" ", str(text)))
    return _BLANK_LINES.sub("\n\n", _BULLET.sub(lambda item: f"{item[1]}{item[2] or '-'} ", text)).strip()


def _show_shadows(html: str) -> str:
    """Let the content of declarative shadow roots be part of the page, as a browser shows it."""
    if "shadowrootmode" not in html:
        return html
    return _TEMPLATE_END.sub("</div>", _SHADOW.sub("<div", html))


def _show_frames(body: Element) -> None:
    """Put the documents that frames contain in an attribute into the page."""
    from resiliparse.parse.html import HTMLTree

    for frame in find_elements(body, "iframe[srcdoc]")[:_MAX_FRAMES]:
        inner = HTMLTree.parse(frame.getattr("srcdoc") or "").body
        if inner is not None:
            shown = body.owner_document.create_element("div")
            frame.parent_node.insert_before(shown, frame)
            shown.inner_html = inner.inner_html


def _find_title_and_main_text(html: str, scope: Scope) -> tuple[str, str]:
    """Return the title of a page, without the name of its site, and for `scope="main"` its main text."""
    from trafilatura import bare_extraction, extract_metadata
    from trafilatura.settings import DEFAULT_CONFIG, Document

    if scope == "page":
        facts = extract_metadata(html) if html.strip() else None
        return clean_line(facts.title or "") if facts else "", ""
    config = deepcopy(DEFAULT_CONFIG)
    config["DEFAULT"]["MIN_EXTRACTED_SIZE"] = _MIN_MAIN_TEXT
    found = bare_extraction(html, include_comments=False, with_metadata=True, config=config)
    if not isinstance(found, Document):
        return "", ""
    return clean_line(found.title or ""), found.text or ""


def _find_own_title(tree: Any, root: Element) -> str:
    heading = root.query_selector("h1, h2")
    return clean_line(tree.title or (heading.text if heading is not None else "") or "")


def _find_main_element(body: Element, main_text: str) -> Element:
    """Return the element that contains the main text: as the page says, else the smallest one without navigation."""
    words = Counter(main_text.split())
    for selector in ("main, [role=main]", "article"):
        found = [each for each in find_elements(body, selector) if (each.text or "").strip()]
        outer = [each for each in found if each.parent_element.closest(selector) is None]
        if len(outer) == 1 and _coverage(outer[0], words) >= _MIN_OWN_COVERAGE:
            return outer[0]
    if not words:
        return body
    element = body
    while (inner := _find_container(element, words)) is not None:
        element = inner
    return _widen(element, body)


def _find_container(element: Element, words: Counter[str]) -> Element | None:
    """Return the child that contains the main text, or None."""
    children = [each for each in element.children.values() if each.tag in _CONTAINERS or "-" in each.tag]
    return next((each for each in children if _coverage(each, words) >= _MIN_COVERAGE), None)


def _coverage(element: Element, words: Counter[str]) -> float:
    """Return the share of some words that an element contains."""
    total = words.total()
    return (Counter((element.text or "").split()) & words).total() / total if total else 1.0


def _widen(element: Element, body: Element) -> Element:
    """Return the outermost element around the main text whose other parts are text, and not links or page frame."""
    while (parent := element.parent_element) is not None and element != body:
        others = [each for each in parent.children.values() if each != element]
        if any(each.tag in _AROUND_MAIN or link_share(each) > _MAX_LINK_SHARE for each in others):
            break
        if parent == body:
            break
        element = parent
    return element
