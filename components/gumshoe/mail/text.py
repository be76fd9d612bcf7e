"""Bytes to text: charsets that lie, and HTML."""

import codecs
import re

import charset_normalizer

from gumshoe.mail.message import clean

_SINGLE_BYTE = ("ascii", "iso8859", "cp125", "latin")  # decode any bytes, so what they say proves nothing
_STATEFUL = ("iso2022", "utf_7", "utf_16", "utf_32", "hz")  # their bytes may all be ASCII
_ALIASES = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932"}
_NOT_CHARSETS = {"unicode_escape", "raw_unicode_escape", "idna", "punycode", "undefined", "mbcs", "oem"}
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.I)
_ENOUGH_TO_GUESS = 64  # bytes outside ASCII; with fewer, a guess is worse than Western European


def decode(data: bytes, declared: str | None = None) -> str:
    """Text of bytes whose charset may be missing, unknown or wrong. Never fails.

    UTF-8 wins over a declared single-byte charset where the bytes are valid UTF-8, since bytes of another
    charset almost never are. Where nothing fits, the charset is guessed, and last of all Windows-1252 is taken.
    """
    name = _codec(declared)
    if data.isascii() and not (name or "").startswith(_STATEFUL):
        return data.decode("ascii")
    trusted = name is not None and not name.startswith(_SINGLE_BYTE)
    for charset in (name, "utf-8") if trusted else ("utf-8", name):
        if charset:
            try:
                return data.decode(_ALIASES.get(charset, charset))
            except (ValueError, LookupError):
                continue
    if sum(byte > 127 for byte in data[:65536]) >= _ENOUGH_TO_GUESS:
        guess = charset_normalizer.from_bytes(data[:65536]).best()
        if guess is not None:
            return data.decode(guess.encoding, "replace")
    return data.decode("cp1252", "replace")


def _codec(declared: str | None) -> str | None:
    if not declared:
        return None
    try:
        name = codecs.lookup(declared.strip("\"' ")).name
        b"".decode(name)  # some codecs are not charsets
    except (LookupError, ValueError):
        return None
    return None if name.replace("-", "_") in _NOT_CHARSETS else name


def decode_html(data: bytes, declared: str | None = None) -> str:
    """Text of an HTML document given as bytes; the charset that its own header names counts where none is declared."""
    if not declared and (found := _META_CHARSET.search(data[:4096])):
        declared = found[1].decode("ascii")
    return html_to_text(decode(data, declared))


def html_to_text(html: str) -> str:
    """The text that an HTML document shows, laid out in lines. Scripts, styles and comments are left out."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(clean(html), preserve_formatting=True, alt_texts=False, noscript=True))
