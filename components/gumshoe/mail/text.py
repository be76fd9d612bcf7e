"""Bytes to text: charsets that lie, and HTML."""

import codecs
import re

import charset_normalizer

from gumshoe.mail.message import clean

# Other charsets decode any bytes, so that they do proves nothing.
_MULTI_BYTE = ("big5", "cp9", "euc", "gb", "hz", "iso2022", "johab", "shift", "utf")
_WIDE = ("utf_16", "utf_32")  # text in them has bytes of zero: letters, spaces or the ends of lines
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
_UNFIT = 4  # of so many characters outside ASCII, one may be broken
_ENOUGH_TO_GUESS = 64  # bytes outside ASCII; with fewer, a guess is worse than Western European


def decode(data: bytes, declared: str | None = None) -> str:
    """Text of bytes whose charset may be missing, unknown or wrong. Never fails.

    UTF-8 wins over a declared single-byte charset where the bytes are valid UTF-8, since bytes of another
    charset almost never are. Few broken characters do not rule a charset out. Where nothing fits, it is guessed, and
    last of all Windows-1252 is taken.
    """
    name = _codec(declared) or ""
    trusted = b"\0" in data if name.startswith(_WIDE) else name.startswith(_MULTI_BYTE)
    if data.isascii() and not (trusted and name.startswith(_STATEFUL)):
        return data.decode("ascii")
    for charset in (name, "utf_8") if trusted else ("utf_8", name):
        if charset and (text := _fitting(data, _ALIASES.get(charset, charset))) is not None:
            return text
    if sum(byte > 127 for byte in data[:65536]) >= _ENOUGH_TO_GUESS:
        guess = charset_normalizer.from_bytes(data[:65536]).best()
        if guess is not None:
            return data.decode(guess.encoding, "replace")
    return data.decode("cp1252", "replace")


def _fitting(data: bytes, charset: str) -> str | None:
    """Text of bytes that are in a charset, but for few of them: mail is cut off and mangled on its way."""
    try:
        return data.decode(charset)
    except ValueError:
        text = data.decode(charset, "replace")
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text if text.count("\ufffd") * _UNFIT <= foreign else None


def _codec(declared: str | None) -> str | None:
    if not declared:
        return None
    try:
        name = codecs.lookup(declared.strip("\"' ")).name.replace("-", "_")
        "".encode(name)  # some codecs are not charsets
    except (LookupError, ValueError):
        return None
    return None if name in _NOT_CHARSETS else name


def decode_html(data: bytes, declared: str | None = None) -> str:
    """Text of an HTML document given as bytes; the charset that its own header names counts where none is declared."""
    return html_to_text(decode(data, declared or charset_in_html(data)))


def charset_in_html(data: bytes) -> str | None:
    """The charset that an HTML document names in its own header."""
    found = _META_CHARSET.search(data[:4096])
    return found[1].decode("ascii") if found else None


def html_to_text(html: str) -> str:
    """The text that an HTML document shows, laid out in lines. Scripts, styles and comments are left out."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(clean(html), preserve_formatting=True, alt_texts=False, noscript=True))
