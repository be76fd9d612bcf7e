"""Turn bytes into text: wrong charsets, and HTML."""

import codecs
import re
from html import escape, unescape
from urllib.parse import unquote

import charset_normalizer

from gumshoe.mail.message import clean

# Other charsets can decode any bytes, so success proves nothing.
_MULTI_BYTE = ("big5", "cp9", "euc", "gb", "hz", "iso2022", "johab", "shift", "utf")
_WIDE = ("utf_16", "utf_32")  # text in these contains zero bytes
_STATEFUL = ("hz", "iso2022", "utf_16", "utf_32", "utf_7")  # their bytes may all be ASCII
_ALIASES = {
    "iso8859_1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "utf_8": "utf_8_sig",
}
# Charsets that are confused with a declared one, because they are for the same language.
_RELATIVES = {
    "iso2022_jp": ("euc_jp", "cp932"),
    "euc_jp": ("cp932",),
    "shift_jis": ("euc_jp",),
    "cp932": ("euc_jp",),
    "iso2022_kr": ("cp949",),
    "hz": ("gb18030",),
    "gb2312": ("big5",),
    "gbk": ("big5",),
    "gb18030": ("big5",),
    "big5": ("gb18030",),
}
# Charsets of Windows that add characters to a declared one, where that has control characters.
_WINDOWS = {
    "iso8859_2": "cp1250", "iso8859_7": "cp1253", "iso8859_8": "cp1255", "iso8859_9": "cp1254", "iso8859_11": "cp874",
    "iso8859_13": "cp1257", "iso8859_15": "cp1252", "tis_620": "cp874",
}  # fmt: skip
# Charsets that programs declare, or mean by declaring none, whatever the text is in.
_DEFAULTS = {"", "ascii", "utf_8", "iso8859_1", "iso8859_15", "cp1252"}
# Names of charsets in mail that Python does not know.
_LABEL_PREFIX = re.compile(r"^(?:windows|win|cp|dos|ibm)[-_]?(?=\d)")
_LABELS = {
    "windows-31j": "cp932", "x-ms-cp932": "cp932", "x-windows-949": "cp949", "gb_2312-80": "gb2312",
    "csgb2312": "gb2312", "x-x-big5": "big5", "cn-big5": "big5", "iso-8859-6-i": "iso8859_6",
    "iso-8859-8-i": "iso8859_8", "iso-8859-8-e": "iso8859_8", "x-mac-ce": "mac_latin2", "koi8-ru": "koi8_u",
    "ks_c_5601-1989": "cp949", "ks_c_5601": "cp949", "chinesebig5": "big5",
}  # fmt: skip
_NOT_CHARSETS = {"unicode_escape", "raw_unicode_escape", "idna", "punycode", "undefined", "mbcs", "oem"}
# Escape sequences of ISO-2022-JP behind the escape character, and the bytes of a character, or 0 for ASCII.
_JAPANESE_RUNS = {b"$B": 2, b"$@": 2, b"$(B": 2, b"$(@": 2, b"(I": 1, b"(B": 0, b"(J": 0, b"(H": 0}
_JAPANESE_START = re.compile(rb"\x1b\$[B@]")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.I)
_MULTI_BYTE_UTF_8 = re.compile(rb"(?:[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})")
_WORD_WITH_ACCENTS = re.compile(rb"(?:[A-Za-z][\xc3-\xc5][\x80-\xbf]|[\xc3-\xc5][\x80-\xbf][a-z])")
_UTF_16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHARACTERS_PER_ERROR = 4  # one in this many characters outside ASCII may be broken
_TARGET, _TEXT, _END = "\ue001", "\ue002", "\ue003"  # mark a link: before its target, before its text, behind it
_MARKS = f"{_TARGET}{_TEXT}{_END}"
_MARK = re.compile(f"[{_MARKS}]")
_UNCLOSED_LINK = re.compile(f"{_TARGET}[^{_MARKS}]*{_TEXT}|[{_MARKS}]")
_LINK = re.compile(
    r"(?><a\b[^<>]*?\shref\s*=\s*(\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>]+))[^<>]*>", re.I
)  # atomic, so that the time is linear
_LINK_END = re.compile("</a>", re.I)
_SHOWN_LINK = re.compile(f"{_TARGET}([^{_MARKS}]*){_TEXT}([^{_MARKS}]*){_END}")
_IS_ADDRESS = re.compile(r"(?:https?:|ftp:)?//[^/]|www\.\w|mailto:[^?]|tel:.", re.I)
# Services that check links or count clicks, with the target in their own address: Microsoft, Google, Proofpoint.
_WRAPPED = re.compile(
    r"https?://(?:[\w.-]{1,100}\.safelinks\.protection\.outlook\.com/[^?]{0,40}\?(?:[^#]{0,200}&)?url=([^&#]+)"
    r"|www\.google\.com/url\?(?:[^#]{0,200}&)?(?:q|url)=([^&#]+)|urldefense\.com/v3/__(.+?)__;)",
    re.I,
)
_SCHEME = re.compile(r"^(?:(?:https?:|ftp:)?//)?(?:www\.)?", re.I)
_MAX_ADDRESS = 200  # characters
_RAISED = re.compile(r"(<sup\b[^<>]*>\s*(?:<[^<>]*>\s*){0,3})(?=[-+\u2212\u2013]?\d|[nkxy]\b)", re.I)
_HIDDEN = [
    "[hidden]",
    '[style*="display:none" i]',
    '[style*="display: none" i]',
    '[style*="display :none" i]',
    '[style*="max-height:0" i]',
    '[style*="max-height: 0" i]',
    '[style*="mso-hide:all" i]',
    '[style*="mso-hide: all" i]',
    '[style*="visibility:hidden" i]',
    '[style*="visibility: hidden" i]',
]
_MAY_HIDE = re.compile("hidden|none|max-height: ?0|mso-hide", re.I)
_NO_BREAK_SPACES = re.compile("\u00a0[ \u00a0]*")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\U000e0000-\U000e007f]"
)
# Scripts that need joiners: from Hebrew and Arabic to Myanmar, Khmer, Mongolian and others of South and East Asia.
_JOINED = "\u0590-\u109f\u1780-\u1cff\ua840-\uabff\ufb1d-\ufeff\U00010a00-\U00011fff"
_EMOJI = "\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
_JOINER = re.compile(f"[\u200c\u200d](?!(?<=[{_JOINED}].)[{_JOINED}])(?!(?<=[{_EMOJI}].)[{_EMOJI}])")
_MIN_BYTES_TO_GUESS = 64  # outside ASCII; with fewer, Windows-1252 is a better guess
_CONTROL_BYTE = re.compile(rb"[\x80-\x9f]")
# In Western text, bytes outside ASCII stand alone or in twos, e.g. accents and quotation marks.
_RUN = re.compile(rb"[\x80-\xff]{4,}")
_MIN_BYTES_IN_RUNS = 12
_MIN_KINDS_IN_RUNS = 8  # different bytes; a row of dashes has one
_MIN_SHARE_OF_RUNS = 0.4  # of the bytes outside ASCII
_PRIVATE = re.compile("[\ue000-\uf8ff]")  # characters that no font has: the charset is another one
_CHARACTERS_PER_PRIVATE = 20


def decode(data: bytes, declared: str | None = None) -> str:
    """Decode bytes whose charset may be missing, unknown or wrong. Never fails.

    Valid UTF-8 wins over a declared single-byte charset, because text in another charset is almost never valid UTF-8,
    and over a declared multi-byte one if it contains what is improbable there. A charset may leave a few broken
    characters. If no charset fits, or a declared one is a mere default and the text is not Western, it is guessed; the
    last resort is Windows-1252.
    """
    name = _find_codec(declared) or ""
    if not name.startswith(_STATEFUL) and _JAPANESE_START.search(data) and (text := _decode_iso_2022_jp(data)):
        return text  # programs leave the charset out, because all of its bytes are ASCII
    trusted = b"\0" in data if name.startswith(_WIDE) else name.startswith(_MULTI_BYTE)
    if data.isascii() and not (trusted and name.startswith(_STATEFUL)):
        return data.decode("ascii")
    if data.startswith(_UTF_16_BOMS) and not trusted and (not name or b"\0" in data):
        return data.decode("utf_16", "replace")
    if trusted and not name.startswith("utf") and _is_probably_utf_8(data):
        trusted = False
    if name in _WINDOWS and _CONTROL_BYTE.search(data):
        name = _WINDOWS[name]
    for charset in (*((name, "utf_8") if trusted else ("utf_8", name)), *_RELATIVES.get(name, ())):
        if not charset or (charset != "utf_8" and _is_wrong_default(data, charset)):
            continue
        if (text := _decode_if_valid(data, _ALIASES.get(charset, charset))) is not None:
            return _choose_relative(data, charset, text)
    is_long = sum(byte > 127 for byte in data[:65536]) >= _MIN_BYTES_TO_GUESS
    if is_long or _is_wrong_default(data, name):
        guess = charset_normalizer.from_bytes(data[:65536]).best()
        if guess is not None:
            return data.decode(guess.encoding, "replace")
    return data.decode("cp1252", "replace")


def _is_wrong_default(data: bytes, name: str) -> bool:
    """Return True if text outside ASCII and UTF-8 is hardly Western, as a charset that is only a default claims."""
    if name not in _DEFAULTS:
        return False
    start = data[:65536]
    runs = b"".join(_RUN.findall(start))
    if len(runs) < _MIN_BYTES_IN_RUNS or len(set(runs)) < _MIN_KINDS_IN_RUNS:
        return False
    return len(runs) >= _MIN_SHARE_OF_RUNS * sum(byte > 127 for byte in start)


def _choose_relative(data: bytes, name: str, text: str) -> str:
    """Return a text in its declared charset, or in a related one if that alone gives no private characters."""
    private = len(_PRIVATE.findall(text)) if name in _RELATIVES else 0
    if not private or private * _CHARACTERS_PER_PRIVATE < len(text):
        return text
    for charset in _RELATIVES[name]:
        try:
            other = data.decode(_ALIASES.get(charset, charset))
        except ValueError:
            continue
        if not _PRIVATE.search(other):
            return other
    return text


def _is_probably_utf_8(data: bytes) -> bool:
    """Return True for valid UTF-8 that is hardly meant as text in an East Asian charset.

    Two characters of three bytes or more, or an accented letter in a Latin word, are valid UTF-8 only by rare chance.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return len(_MULTI_BYTE_UTF_8.findall(data[:65536])) > 1 or _WORD_WITH_ACCENTS.search(data[:65536]) is not None


def _decode_if_valid(data: bytes, charset: str) -> str | None:
    """Decode bytes, or return None if too many are invalid. Mail is often truncated or mangled in transit."""
    try:
        return data.decode(charset)
    except ValueError:
        if charset == "iso2022_jp":
            return _decode_iso_2022_jp(data)
        text = data.decode(charset, "replace")
    is_wide = charset.startswith(_WIDE)
    foreign = len(text) if is_wide else len(text) - len(text.encode("ascii", "ignore"))
    return text if text.count("\ufffd") * _CHARACTERS_PER_ERROR <= foreign else None


def _decode_iso_2022_jp(data: bytes) -> str | None:
    """Decode ISO-2022-JP as mail programs write it, with characters of Windows. Return None if it is something else.

    Each escape sequence begins a run of characters: one byte each, or two as in EUC-JP without the high bits.
    """
    if not data.isascii():
        return None
    pieces = []
    first, *runs = data.split(b"\x1b")
    for run in runs:
        escape = next((each for each in _JAPANESE_RUNS if run.startswith(each)), b"")
        content = run[len(escape) :]
        if _JAPANESE_RUNS.get(escape):
            lines = (_to_cp932(line, _JAPANESE_RUNS[escape]) for line in content.split(b"\n"))
            pieces.append(b"\n".join(lines).decode("cp932", "replace"))
        else:
            pieces.append(content.decode("ascii"))
    return first.decode("ascii") + "".join(pieces)


def _to_cp932(content: bytes, size: int) -> bytes:
    """Return characters of JIS X 0201 (size 1) or JIS X 0208 (size 2) in Windows-932."""
    if size == 1:
        return bytes(byte | 0x80 for byte in content)
    converted = bytearray()
    for high, low in zip(content[::2], content[1::2], strict=False):
        if not (0x21 <= high <= 0x7E and 0x21 <= low <= 0x7E):
            converted += bytes((high, low))
            continue
        lead = (high + 1) // 2 + (0x70 if high < 0x5F else 0xB0)
        trail = low + (0x7E if high % 2 == 0 else 0x1F if low < 0x60 else 0x20)
        converted += bytes((lead, trail))
    return bytes(converted)


def _find_codec(declared: str | None) -> str | None:
    if not declared:
        return None
    label = declared.strip("\"' ").lower()
    for spelling in (label, _LABEL_PREFIX.sub("cp", label).removeprefix("x-"), _LABELS.get(label, "")):
        try:
            name = codecs.lookup(spelling).name.replace("-", "_")
            "".encode(name)  # some codecs are not charsets
        except (LookupError, ValueError):
            continue
        return None if name in _NOT_CHARSETS else name
    return None


def decode_html(data: bytes, declared: str | None = None) -> str:
    """Convert the bytes of an HTML document to text. Its own charset declaration is the default."""
    return html_to_text(decode(data, declared or find_html_charset(data)))


def find_html_charset(data: bytes) -> str | None:
    """Return the charset that an HTML document declares in its header."""
    found = _META_CHARSET.search(data[:4096])
    return found[1].decode("ascii") if found else None


def html_to_text(html: str) -> str:
    """Convert HTML to the text it shows, in lines, with the targets of its links, e.g. `here <https://example.com>`.

    Scripts, styles, comments and hidden elements are left out.
    """
    prepared = mark_raised(_mark_links(clean(html)))
    text = _extract(prepared, _HIDDEN) if _MAY_HIDE.search(prepared) else _extract(prepared)
    if not text.strip():  # all of it is hidden, which cannot be meant
        text = _extract(prepared)
    if _TARGET in text or _END in text:
        text = _UNCLOSED_LINK.sub("", _SHOWN_LINK.sub(_format_link, text))
    return remove_invisible(_NO_BREAK_SPACES.sub(" ", text))


def _extract(html: str, skipped: list[str] | None = None) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    return str(
        extract_plain_text(html, preserve_formatting=True, alt_texts=False, noscript=True, skip_elements=skipped)
    )


def _mark_links(html: str) -> str:
    """Put marks, and the target, around the text of each link. Targets that are no addresses are left out."""
    if "href" not in html and "HREF" not in html:
        return html
    return _LINK_END.sub(f"{_END}</a>", _LINK.sub(_mark_link, _MARK.sub("", html)))


def _mark_link(link: re.Match[str]) -> str:
    target = "".join(unescape(link[1].strip("\"'")).split())
    if wrapped := _WRAPPED.match(target):
        target = "".join(clean(unquote(wrapped[1] or wrapped[2] or "") or wrapped[3]).split())
    if not _IS_ADDRESS.match(target):
        return link[0]
    return f"{link[0]}{_TARGET}{escape(_MARK.sub('', _shorten_address(target)))}{_TEXT}"


def _shorten_address(target: str) -> str:
    """Return an address without what makes it too long: first fragment and query, then its end."""
    for separator in "#?":
        if len(target) > _MAX_ADDRESS:
            target = target.partition(separator)[0]
    if len(target) > _MAX_ADDRESS:
        return target[:_MAX_ADDRESS] + "\u2026"
    return target.partition("?")[0] if target[:7].lower() == "mailto:" else target


def _format_link(link: re.Match[str]) -> str:
    target, text = link[1], link[2]
    if not text.strip():
        return text
    shown = target.partition(":")[2] if target[:7].lower() in {"mailto:", "tel:"} else target
    core = _SCHEME.sub("", shown).rstrip("/").casefold()
    if core in text.casefold():
        return text
    stripped = text.rstrip()
    return f"{stripped} <{shown}>{text[len(stripped) :]}"


def mark_raised(html: str) -> str:
    """Put `^` before a raised number, so that 10 to the power of 9 is not read as 109."""
    return _RAISED.sub(r"\1^", html) if "<sup" in html or "<SUP" in html else html


def remove_invisible(text: str) -> str:
    """Remove characters that are not shown, e.g. soft hyphens and zero-width spaces.

    Joiners stay between letters of scripts that need them, e.g. Persian, and inside emoji.
    """
    if text.isascii():
        return text
    return _INVISIBLE.sub("", _JOINER.sub("", text))
