"""Prepare the DOM of an HTML page, so that its text is what the page shows: without navigation and hidden parts."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from gumshoe.documents.page_requests import asks_for_consent, asks_for_javascript

Element = Any
"""An `ElementNode` of resiliparse, which has no types."""

_NAVIGATION = "nav, [role=navigation], [role=menubar], [role=search], search"
_NEVER_SHOWN = "script, style, svg > title, svg > desc, annotation, annotation-xml, datalist, rp, audio, video"
_MAY_NAVIGATE = "header, footer, [role=banner], [role=contentinfo], [role=toolbar], [class], [id]"
_NAVIGATION_WORDS = {
    *("nav", "navbar", "navi", "navigation", "navlinks", "menu", "menubar", "submenu", "topbar", "breadcrumb"),
    *("breadcrumbs", "crumbs", "pagination", "pager", "sitemap", "skip", "skiplink", "skiplinks"),
}
_EXTRA_WORDS = {
    *("ad", "ads", "advert", "advertisement", "comments", "disqus", "newsletter", "promo", "related", "share"),
    *("sharing", "social", "sponsored", "subscribe", "recommended", "teaser", "teasers"),
}
_CONSENT_WORDS = {"cookie", "cookies", "cookiebanner", "consent", "gdpr", "onetrust", "cmp", "didomi", "usercentrics"}
_DISCLOSURE_WORDS = {
    *("accordion", "answer", "collapse", "collapsed", "collapsible", "details", "expand", "expandable", "faq", "pane"),
    *("panel", "spoiler", "tab", "tabpane", "tabs", "toggle"),
}
_DIALOG_WORDS = {"modal", "dialog", "popup", "overlay", "lightbox", "offcanvas", "drawer", "tooltip"}
_HIDDEN = '[hidden], [style*="display" i], [style*="visibility" i]'
_HIDDEN_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))", re.I)
_CONTROLS = ("aria-controls", "data-target", "data-bs-target", "data-toggle-target", "data-tab", "for", "href")
_WORDS = re.compile("[a-z]+")
_CAMEL = re.compile("(?<=[a-z])(?=[A-Z])")
_SKIP_LINK = re.compile(r"\s*(?:skip|jump)\b.{0,20}\b(?:content|main|navigation|menu)\b", re.I)
_MIN_LINK_SHARE = 0.5  # of the characters of navigation
_MAX_OPTIONS = 30  # a longer list to select from is not specific to the page, e.g. all countries
_MIN_ALT_WORDS = 3
_MAX_CONSENT_TEXT = 3_000  # characters of a banner
_MAX_CONTROLS = 20_000


def clean_page(body: Element, *, keeps_extras: bool) -> None:
    """Remove from a DOM what its page does not show, and navigation. Hidden parts that a click opens are kept.

    Without `keeps_extras`, parts around an article are removed too: advertisements, comments, and links to share it or
    to related pages.
    """
    _remove_all(body, f"{_NEVER_SHOWN}, {_NAVIGATION}")
    _remove_requests(body)
    _show_hidden(body)
    for element in _select(body, _MAY_NAVIGATE):
        words = _name_words(element)
        has_role = element.tag in {"header", "footer"} or element.hasattr("role")
        if not keeps_extras and words & _EXTRA_WORDS and element.tag not in {"body", "main", "article"}:
            if "comments" in words or "disqus" in words or link_share(element) >= _MIN_LINK_SHARE:
                element.remove()
        elif (has_role or words & _NAVIGATION_WORDS) and link_share(element) >= _MIN_LINK_SHARE:
            element.remove()
    for link in find_elements(body, 'a[href^="#"]'):
        if _SKIP_LINK.match(link.text or ""):
            link.remove()
    _rewrite_forms(body)
    _rewrite_ruby(body)
    _remove_short_alternatives(body)


def find_elements(element: Element, selector: str) -> list[Element]:
    """Return the elements below one that match, in the order of the page."""
    # Iterating over the result itself makes all of its elements anew for each one.
    return list(element.query_selector_all(selector).values())


def _select(body: Element, selector: str) -> list[Element]:
    """Return the elements that match, inner ones first, so that each is looked at without what was removed from it."""
    return find_elements(body, selector)[::-1]


def link_share(element: Element) -> float:
    """Return the share of an element's characters that are in links, from 0 to 1. Links within the page count too."""
    length = _count_characters(element)
    return sum(map(_count_characters, find_elements(element, "a[href]"))) / length if length else 0.0


def _count_characters(element: Element) -> int:
    return len("".join((element.text or "").split()))


def _name_words(element: Element) -> set[str]:
    """Return the words in the names that an author gave to an element."""
    names = " ".join(filter(None, (element.getattr("class"), element.getattr("id"))))
    return set(_WORDS.findall(_CAMEL.sub(" ", names).lower()))


def _remove_all(body: Element, selector: str, condition: Callable[[Element], bool] = lambda _: True) -> None:
    for element in _select(body, selector):
        if condition(element):
            element.remove()


def _remove_requests(body: Element) -> None:
    """Remove what a page shows without JavaScript if it only asks for it, and banners that ask for consent."""
    _remove_all(body, "noscript", lambda each: asks_for_javascript(each.text or ""))

    def is_banner(element: Element) -> bool:
        if element.tag in {"main", "article"} or not (_name_words(element) & _CONSENT_WORDS):
            return False
        text = element.text or ""
        return len(text) < _MAX_CONSENT_TEXT and asks_for_consent(text)

    _remove_all(body, "[class], [id]", is_banner)


def _show_hidden(body: Element) -> None:
    """Remove hidden elements, and show those that a click on the page opens, e.g. answers and tabs."""
    hidden = [
        each
        for each in find_elements(body, _HIDDEN)
        if each.hasattr("hidden") or _HIDDEN_STYLE.search(each.getattr("style") or "")
    ]
    if not hidden:
        return
    selector = ", ".join(f"[{name}]" for name in _CONTROLS)
    controls = find_elements(body, selector)[:_MAX_CONTROLS]
    opened = {value.lstrip("#") for each in controls for name in _CONTROLS if (value := each.getattr(name))}
    is_all_hidden = not _has_text_outside(body, hidden)  # which cannot be meant
    for element, is_kept in [(each, is_all_hidden or _is_disclosed(each, opened)) for each in hidden]:
        if not is_kept:
            element.remove()
            continue
        for name in ("hidden", "style"):
            if element.hasattr(name):
                element.delattr(name)


def _has_text_outside(body: Element, hidden: Iterable[Element]) -> bool:
    """Return True if there is text outside of elements, which are in the order of the page."""
    outer: list[Element] = []
    for each in hidden:
        if not outer or not outer[-1].contains(each):
            outer.append(each)
    return _count_characters(body) > sum(map(_count_characters, outer))


def _is_disclosed(element: Element, opened: set[str]) -> bool:
    words = _name_words(element)
    role = (element.getattr("role") or "").lower()
    if words & (_DIALOG_WORDS | _CONSENT_WORDS | _NAVIGATION_WORDS) or role in {"dialog", "alertdialog", "menu"}:
        return False
    if role == "tabpanel" or (element.getattr("hidden") or "").lower() == "until-found":
        return True
    return bool(words & _DISCLOSURE_WORDS) or (element.id or "") in opened


def _rewrite_forms(body: Element) -> None:
    """Let buttons and options be text, and remove what a form sends but does not show."""
    _remove_all(body, "input[type=hidden], input[type=submit], input[type=button], input[type=reset]")
    _remove_all(body, "input[type=password], input[type=image], input[type=checkbox], input[type=radio]")
    for button in _select(body, "button"):
        _replace_tag(button, "div" if (button.text or "").strip() else "")
    for selection in _select(body, "select"):
        options = [text for each in find_elements(selection, "option") if (text := (each.text or "").strip())]
        _replace_by_text(selection, ", ".join(options) if len(options) <= _MAX_OPTIONS else "")


def _rewrite_ruby(body: Element) -> None:
    """Put the reading of a word behind it. In HTML it is behind each character, which would cut the word."""
    for ruby in _select(body, "ruby"):
        reading = "".join((each.text or "").strip() for each in find_elements(ruby, "rt"))
        _remove_all(ruby, "rt, rtc")
        _replace_by_text(ruby, f"{ruby.text or ''} ({reading})" if reading else ruby.text or "")


def _remove_short_alternatives(body: Element) -> None:
    """Remove alternative texts of images that only name a decoration, such as `logo`."""
    for image in find_elements(body, "img[alt], area[alt]"):
        if len((image.getattr("alt") or "").split()) < _MIN_ALT_WORDS or image.tag == "area":
            image.delattr("alt")


def _replace_tag(element: Element, tag: str) -> None:
    """Replace an element by one with another tag and the same content, or by nothing."""
    if tag:
        other = element.owner_document.create_element(tag)
        while element.first_child is not None:
            other.append_child(element.first_child)
        element.parent_node.insert_before(other, element)
    element.remove()


def _replace_by_text(element: Element, text: str) -> None:
    if text:
        element.parent_node.insert_before(element.owner_document.create_text_node(text), element)
    element.remove()
