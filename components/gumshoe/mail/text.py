"""Turn bytes into text: wrong charsets, and HTML."""

import codecs
import re

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
_NOT_CHARSETS = {"unicode_escape", "raw_unicode_escape", "idna", "punycode", "undefined", "mbcs", "oem"}
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.I)
_CHARACTERS_PER_ERROR = 4  # one in this many characters outside ASCII may be broken
_MIN_BYTES_TO_GUESS = 64  # outside ASCII; with fewer, Windows-1252 is a better guess


def decode(data: bytes, declared: str | None = None) -> str:
    """Decode bytes whose charset may be missing, unknown or wrong. Never fails.

    Valid UTF-8 wins over a declared single-byte charset, because text in another charset is almost never valid UTF-8. A
    charset may leave a few broken characters. If no charset fits, it is guessed; the last resort is Windows-1252.
    """
    name = _find_codec(declared) or ""
    trusted = b"\0" in data if name.startswith(_WIDE) else name.startswith(_MULTI_BYTE)
    if data.isascii() and not (trusted and name.startswith(_STATEFUL)):
        return data.decode("ascii")
    for charset in (name, "utf_8") if trusted else ("utf_8", name):
        if charset and (text := _decode_if_valid(data, _ALIASES.get(charset, charset))) is not None:
            return text
    if sum(byte > 127 for byte in data[:65536]) >= _MIN_BYTES_TO_GUESS:
        guess = charset_normalizer.from_bytes(data[:65536]).best()
        if guess is not None:
            return data.decode(guess.encoding, "replace")
    return data.decode("cp1252", "replace")


def _decode_if_valid(data: bytes, charset: str) -> str | None:
    """Decode bytes, or return None if too many are invalid. Mail is often truncated or mangled in transit."""
    try:
        return data.decode(charset)
    except ValueError:
        text = data.decode(charset, "replace")
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text if text.count("\ufffd") * _CHARACTERS_PER_ERROR <= foreign else None


def _find_codec(declared: str | None) -> str | None:
    if not declared:
        return None
    try:
        name = codecs.lookup(declared.strip("\"' ")).name.replace("-", "_")
        "".encode(name)  # some codecs are not charsets
    except (LookupError, ValueError):
        return None
    return None if name in _NOT_CHARSETS else name


def decode_html(data: bytes, declared: str | None = None) -> str:
    """Convert the bytes of an HTML document to text. Its own charset declaration is the default."""
    return html_to_text(decode(data, declared or find_html_charset(data)))


def find_html_charset(data: bytes) -> str | None:
    """Return the charset that an HTML document declares in its header."""
    found = _META_CHARSET.search(data[:4096])
    return found[1].decode("ascii") if found else None


def html_to_text(html: str) -> str:
    """Convert HTML to the text it shows, in lines, without scripts, styles and comments."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(clean(html), preserve_formatting=True, alt_texts=False, noscript=True))
