"""Choose between the plain text and the HTML of a message."""

import re

_ADDRESS = re.compile(r"<?(?:https?|mailto):[^\s<>]*>?", re.I)
_WORD = re.compile(r"[\u3040-\u9fff\uac00-\ud7af]|[^\W\u3040-\u9fff\uac00-\ud7af]+")
_PLACEHOLDER = re.compile(
    r"\bHTML\b|\b(?:view|read|see|open)\b[^.]{0,60}\b(?:browser|online)\b|\bmail (?:client|program|reader)\b", re.I
)
_UNSHOWN = (("<!--", "-->"), ("<style", "</style"), ("<script", "</script"), ("<head", "</head"))
_TAG = re.compile(r"<[^<>]*>")
_SHORT = 400  # characters; a shorter plain text is compared with the HTML word by word
_MIN_SHARE = 0.5  # of the characters, or of the words, of the HTML


def may_be_incomplete(plain: str, html: str) -> bool:
    """Return True if a plain text is so short that its HTML source may say more. Faster than converting the HTML."""
    if len(plain) < _SHORT:
        return True
    if len(plain) >= len(html) * _MIN_SHARE:
        return False
    for begin, end in _UNSHOWN:
        html = _cut(html, begin, end)
    return len(plain) < len("".join(_TAG.sub("", html).split())) * _MIN_SHARE


def _cut(html: str, begin: str, end: str) -> str:
    """Return HTML without the parts from `begin` to `end`, both in lower case."""
    lower = html.lower() if len(html.lower()) == len(html) else html
    pieces, position = [], 0
    while (start := lower.find(begin, position)) >= 0 and (stop := lower.find(end, start)) >= 0:
        pieces.append(html[position:start])
        position = stop
    return "".join([*pieces, html[position:]])


def is_html_better(plain: str, html: str) -> bool:
    """Return True if a plain text says little of what the text of the HTML says, e.g. only to view it in a browser."""
    plain_words, html_words = _list_words(plain), _list_words(html)
    if not html_words:
        return False
    distinct = set(html_words)
    share = len(distinct & set(plain_words)) / len(distinct)
    if share >= _MIN_SHARE:
        return False
    is_placeholder = len(plain) < _SHORT and _PLACEHOLDER.search(plain) is not None
    return is_placeholder or len(plain_words) <= 2 * len(html_words)


def _list_words(text: str) -> list[str]:
    return _WORD.findall(_ADDRESS.sub(" ", text).casefold())
