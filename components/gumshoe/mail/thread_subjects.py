"""Subjects of threads: subjects without the prefixes of replies, forwards and mailing lists."""

import re
import unicodedata

# English, German, French, Spanish and Portuguese, Italian, Scandinavian and Finnish, Polish and Czech, Hungarian,
# Turkish, Greek, Russian, Hebrew, Arabic, Chinese, Japanese, Korean, Thai, Vietnamese, Indonesian and others.
_REPLY = (
    "re", "reply", "accepted", "declined", "tentative", "automatic reply", "aw", "antw", "antwort", "antwoord",
    "automatische antwort", "out of office", "autoreply", "auto-reply", "zugesagt", "angenommen", "abgelehnt",
    "mit vorbehalt", "accepté", "acceptée", "refusé", "refusée", "aceptado", "aceptada", "rechazado", "rechazada",
    "tentatively accepted", "new time proposed", "canceled", "cancelled", "abgesagt", "annulé", "annulée",
    "cancelado", "cancelada", "svar", "atb", "odg", "odpověď", "odpoveď", "відп", "відповідь", "отг", "ré", "rép",
    "réf", "réponse automatique", "res", "resp", "r", "rif", "ris", "sv", "vs", "odp", "vá", "ynt", "yan", "cevap",
    "απ", "σχετ", "отв", "ответ", "השב", "תגובה", "رد", "回复", "回覆", "答复", "答覆", "返信", "회신", "답장",
    "trả lời", "bls", "balas", "回信", "ตอบกลับ",
)  # fmt: skip
_FORWARD = (
    "fw", "fwd", "forward", "forwarded", "wg", "wtr", "doorst", "tr", "rv", "enc", "i", "vb", "vl", "pd",
    "továbbítás", "továb", "ilt", "i̇lt", "πρθ", "προωθ", "пер", "пересл", "הועבר", "إعادة توجيه", "转发", "轉寄",
    "轉發", "転送", "전달", "chuyển tiếp", "trs", "terusan", "fs", "yml", "ส่งต่อ",
)  # fmt: skip
_MAX_LENGTH = 1000


def _fold(text: str) -> str:
    """Return the start of a text in lower case and compatibility form, with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text[:_MAX_LENGTH]).casefold().split())


def _compile(prefixes: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for prefixes with their colon, and with a count as in `Re[2]:`."""
    names = "|".join(re.escape(_fold(prefix)) for prefix in prefixes)
    return re.compile(rf"(?:{names})\.?(?: ?[\[(^*]?\d{{1,3}}[\])]?)? ?: ?")


_REPLY_PREFIX, _FORWARD_PREFIX = _compile(_REPLY), _compile(_FORWARD)
# Names of lists, also with the number of the message, and notes of mail servers, but not numbers of tickets.
_TAG = re.compile(
    r"(?:\[[^\[\]\d:]{1,60}\]:?|【[^【】\d:]{1,60}】|\[[\w.-]{1,60}:\d{1,8}\]|\*{2,9}[^*\d:]{1,30}\*{2,9}|\{spam\?\}"
    r"|(?:external|ext)(?: e?mail| sender)? ?:) ?(?=.)"
)
_BRACKETED_FORWARD = re.compile(r"\[(fwd?: ?.*)\]")
_FORWARD_END = re.compile(r"(?<=.) ?\((?:fwd|fw)\)$")


def thread_subject(subject: str) -> str:
    """Return the text by which the subjects of a thread are equal: `budget` for `AW: [finance] Re[2]: Budget`.

    Prefixes of replies and forwards in many languages go, names of lists in brackets, case and extra spaces. Only the
    first 1,000 characters count. Returns an empty text if nothing else is in the subject.
    """
    rest = _fold(subject)
    while True:
        found = _REPLY_PREFIX.match(rest) or _FORWARD_PREFIX.match(rest) or _TAG.match(rest)
        if found:
            rest = rest[found.end() :]
        elif bracketed := _BRACKETED_FORWARD.fullmatch(rest):
            rest = bracketed[1]
        elif end := _FORWARD_END.search(rest):
            rest = rest[: end.start()]
        else:
            return rest


def is_reply(subject: str) -> bool:
    """Return True if the first prefix of a subject is that of a reply, e.g. `AW:`."""
    rest = _fold(subject)
    while found := _TAG.match(rest):
        rest = rest[found.end() :]
    return _REPLY_PREFIX.match(rest) is not None
