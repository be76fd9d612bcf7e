"""Detect pages that hold no content, but ask a visitor for something: JavaScript, consent, or to go elsewhere."""

import re
from collections.abc import Callable
from html import unescape

_MAX_WORDS = 250
"""A longer text has content of its own, whatever it asks for."""
_MAX_OTHER_WORDS = 12
"""Words that a page without content may have beside its request, e.g. a title and a name."""
_FEW_WORDS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_JAVASCRIPT = re.compile(
    r"java\s?script|\bjs\b.{0,40}\b(?:enabled?|disabled|required)|"
    r"checking (?:if|your) .{0,60}(?:secure|browser)|verify(?:ing)? (?:that )?you are (?:a )?human|"
    r"(?:just a moment|please wait)\b|review the security of your connection|ray id",
    re.I,
)
_ASKS_FOR_JAVASCRIPT = re.compile(
    r"enable|turn(?:ed)? (?:it |javascript )?on|turned off|disabled|switch(?:ed)? (?:it )?o(?:n|ff)|requires?\b|"
    r"required|\bneeds?\b|without|doesn.t work|does not work|not (?:support|activ|available)|support|"
    r"checking|verify|just a moment|please wait|review the security|ray id|"
    r"aktivier|deaktiviert|ben\u00f6tigt|erforderlich|einschalten|"
    r"activ[ae]|d\u00e9sactiv|desactiv|n\u00e9cessite|habilit|abilit|attiv|ative|necesit|richiede|requer|"
    r"inschakel|uitgeschakeld|w\u0142\u0105cz|aktiver|aktivera|\u0432\u043a\u043b\u044e\u0447|\u0443\u0432\u0456\u043c\u043a|"
    r"\u6709\u52b9|\u542f\u7528|\u555f\u7528|\u5f00\u542f|\ud65c\uc131\ud654",
    re.I,
)
_CONSENT = re.compile(
    r"\bcookies?\b|similar technolog|\bconsent\b|\bgdpr\b|personali[sz]ed (?:ads|advertising|content)|"
    r"legitimate interest|our (?:[\d,.]+ )?partners|privacy (?:policy|preferences|settings|notice|choices)|"
    r"your privacy|\btracking\b|einwilligung|datenschutz|zustimm|stimmen sie|partnern|traceurs|t\u00e9moins|"
    r"confidentialit\u00e9|consentement|privacidad|consentimiento|consenso|privacybeleid|toestemming|samtyk|\u30af\u30c3\u30ad\u30fc",
    re.I,
)
_ASKS_FOR_CONSENT = re.compile(
    r"\bwe (?:and our|use|value|process|need|would like|care)\b|accept|agree|reject|consent|allow|manage|"
    r"by (?:clicking|using|continuing)|this (?:web)?site uses|uses cookies|wir (?:verwenden|nutzen|und)|"
    r"akzeptier|zustimm|stimmen sie|ablehn|einwillig|"
    r"nous (?:utilisons|et)|accepte|refuse|utilizamos|usamos|aceptar|rechazar|utilizziamo|accett|rifiuta|"
    r"wij gebruiken|accepter|aceitar|\u540c\u610f",
    re.I,
)
_BUTTON = re.compile(
    r"\W*(?:i\s+)?(?:accept|agree|reject|decline|deny|allow|ok(?:ay)?|got it|close|continue|manage|customi[sz]e|"
    r"settings?|save|confirm|options?|preferences|more|learn|only|loading|please wait|necessary|essential|functional|"
    r"analytics|marketing|statistics|advertising|performance|privacy|policy|cookies?|partners|alle|akzeptieren|ablehnen|"
    r"zustimmen|mehr|einstellungen|accepter|refuser|tout|aceptar|rechazar|accetta|rifiuta)\b.{0,40}",
    re.I,
)
_REFRESH = re.compile(
    r"<meta\b(?=[^<>]{0,300}?http-equiv\s*=\s*[\"']?\s*refresh\b)[^<>]{0,300}?content\s*=\s*"
    r"(?:\"([^\"<>]{0,2000})\"|'([^'<>]{0,2000})'|([^\s\"'<>]{1,2000}))",
    re.I,
)
_REFRESH_CONTENT = re.compile(
    r"\s*(\d{1,9})(?:\.\d*)?\s*[;,]?\s*(?:url\s*=\s*)?(?:\"([^\"]*)\"?|'([^']*)'?|(.*))", re.I | re.S
)
_NOT_READ = re.compile(r"<!--.*?(?:-->|\Z)|<(script|noscript|template|style|textarea)\b.*?(?:</\1\s*>|\Z)", re.I | re.S)
_HEAD = 200_000  # characters in which a page says where to go
_MAX_REFRESH_SECONDS = 10
"""A page that is shown for longer is a page."""


def asks_for_javascript(text: str, title: str = "") -> bool:
    """Return True if a text has no content, but asks for JavaScript, or checks the browser."""
    return _only_asks(text, title, lambda each: bool(_JAVASCRIPT.search(each) and _ASKS_FOR_JAVASCRIPT.search(each)))


def asks_for_consent(text: str, title: str = "") -> bool:
    """Return True if a text has no content, but asks for consent to cookies or the like."""
    return _only_asks(text, title, lambda each: bool(_CONSENT.search(each) and _ASKS_FOR_CONSENT.search(each)))


def _only_asks(text: str, title: str, is_request: Callable[[str], bool]) -> bool:
    """Return True if a text has sentences with a request, and hardly anything else."""
    words = text.split()
    if not words or len(words) > _MAX_WORDS:
        return False
    known = set(title.casefold().split())
    sentences = [each for each in _SENTENCE_END.split(text) if each.strip()]
    asking = [is_request(each) for each in sentences]
    if not any(asking):
        return False
    others = [
        word
        for sentence, asks in zip(sentences, asking, strict=True)
        if not asks and not _BUTTON.fullmatch(sentence.strip())
        for word in sentence.casefold().split()
        if word not in known and any(map(str.isalnum, word))
    ]
    asked = sum(len(each.split()) for each, asks in zip(sentences, asking, strict=True) if asks)
    return len(others) <= min(_MAX_OTHER_WORDS, asked + _FEW_WORDS)


def find_refresh(html: str) -> str | None:
    """Return the URL that a page goes to by itself, soon after it is shown, or None. It may be relative."""
    if "http-equiv" not in html[:_HEAD].lower():
        return None
    found = _REFRESH.search(_NOT_READ.sub("", html[:_HEAD]))
    return parse_refresh(unescape(next(filter(None, found.groups()), ""))) if found else None


def parse_refresh(value: str) -> str | None:
    """Return the URL of the value of a `Refresh` header or `<meta>`, e.g. `0; url=/new`, or None.

    Pages that are shown for more than 10 seconds before, or that only reload themselves, give None.
    """
    found = _REFRESH_CONTENT.fullmatch(value)
    if found is None or int(found[1]) > _MAX_REFRESH_SECONDS:
        return None
    return next(filter(None, found.groups()[1:]), "").strip() or None
