"""Read winmail.dat: messages that Outlook wraps in TNEF (Transport Neutral Encapsulation Format, [MS-OXTNEF]).

Each loop ends with the data. tnefparse, the library for it, counts to numbers that the data claims.
"""

import codecs
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from gumshoe.extraction.rtf import extract_rtf
from gumshoe.mail.message import clean_line
from gumshoe.mail.text import decode, decode_html

_SIGNATURE = 0x223E9F78
_BODY, _CODEPAGE, _PROPERTIES = 0x800C, 0x9007, 0x9003
_NEW_FILE, _FILE_TITLE, _FILE_DATA, _FILE_PROPERTIES = 0x9002, 0x8010, 0x800F, 0x9005
_TEXT, _HTML, _COMPRESSED_RTF = 0x1000, 0x1013, 0x1009
_FILE_NAME, _LONG_FILE_NAME, _MEDIA_TYPE, _FILE_OBJECT = 0x3704, 0x3707, 0x370E, 0x3701
_INTERNET_CODEPAGE, _DISPLAY_NAME = 0x3FDE, 0x3001
_STRING, _UNICODE, _OBJECT = 0x1E, 0x1F, 0x0D
_HEADING = (("From", 0x0C1A), ("To", 0x0E04), ("Subject", 0x0037))
_SIZES = {0x00: 0, 0x01: 0, 0x02: 4, 0x03: 4, 0x04: 4, 0x05: 8, 0x06: 8, 0x07: 8, 0x0A: 4, 0x0B: 4, 0x14: 8, 0x40: 8}
_SIZES[0x48] = 16
_VARIABLE = {_OBJECT, _STRING, _UNICODE, 0x102}
_INTERFACE_SIZE = 16  # bytes of the id of its interface, in front of an object
_MULTIPLE = 0x1000
_NAMED = 0x8000
_MAX_RTF = 8 << 20  # bytes
# Code pages that Python does not name by their numbers.
_CODEPAGES = {
    1200: "utf-16-le", 10000: "mac-roman", 20127: "ascii", 20866: "koi8-r", 20936: "gb2312", 21866: "koi8-u",
    28591: "cp1252", 50220: "iso-2022-jp", 50221: "iso-2022-jp", 50222: "iso-2022-jp", 50225: "iso-2022-kr",
    51932: "euc-jp", 51936: "gb2312", 51949: "euc-kr", 52936: "hz", 54936: "gb18030", 65000: "utf-7", 65001: "utf-8",
}  # fmt: skip
_ISO_8859 = 28590


@dataclass(slots=True)
class TnefFile:
    """A file attached inside a winmail.dat."""

    name: str = ""
    media_type: str = ""
    data: bytes = b""


@dataclass(slots=True)
class TnefMessage:
    """The content of a winmail.dat. Of each form of the body that it lacks, the text is ""."""

    heading: list[str] = field(default_factory=list)
    """Lines with sender, recipients and subject, as far as it has them."""
    plain: str = ""
    html: str = ""
    rtf: str = ""
    missing_library: str = ""
    """Package that is not installed and without which `rtf` is not read."""
    files: list[TnefFile] = field(default_factory=list)


def is_tnef(data: bytes) -> bool:
    """Return True if the data is that of a winmail.dat."""
    return len(data) >= 6 and struct.unpack_from("<I", data)[0] == _SIGNATURE


def read_tnef(data: bytes) -> TnefMessage:
    """Return the bodies and files in a winmail.dat, as far as it is not damaged.

    Raises:
        ValueError: if the data is no TNEF.
    """
    if not is_tnef(data):
        raise ValueError("not TNEF")
    message, codepage = TnefMessage(), "cp1252"
    for attribute, value in _split_attributes(data):
        if attribute == _CODEPAGE and len(value) >= 4:
            codepage = find_codepage(struct.unpack_from("<I", value)[0], codepage)
        elif attribute == _BODY:
            message.plain = message.plain or decode(value.rstrip(b"\0"), codepage)
        elif attribute == _PROPERTIES:
            _add_bodies(message, dict(_split_properties(value)), codepage)
        elif attribute == _NEW_FILE:
            message.files.append(TnefFile())
        elif message.files:
            _add_to_file(message.files[-1], attribute, value, codepage)
    return message


def _add_bodies(message: TnefMessage, properties: dict[int, tuple[int, bytes]], codepage: str) -> None:
    _, number = properties.get(_INTERNET_CODEPAGE, (0, b""))
    internet = find_codepage(struct.unpack("<I", number)[0], codepage) if len(number) == 4 else codepage
    for name, tag in _HEADING:
        if tag in properties and (text := _decode_string(*properties[tag], codepage)):
            message.heading.append(f"{name}: {clean_line(text)}")
    if _TEXT in properties:
        message.plain = _decode_string(*properties[_TEXT], codepage) or message.plain
    if _HTML in properties:
        kind, value = properties[_HTML]
        message.html = decode_html(value.rstrip(b"\0"), internet) if kind != _UNICODE else _decode_html_string(value)
    if _COMPRESSED_RTF in properties:
        try:
            message.rtf = read_compressed_rtf(properties[_COMPRESSED_RTF][1])
        except ImportError:
            message.missing_library = "compressed-rtf"


def _decode_html_string(value: bytes) -> str:
    return decode_html(value.decode("utf-16-le", "replace").rstrip("\0").encode("utf-8", "replace"), "utf-8")


def _add_to_file(file: TnefFile, attribute: int, value: bytes, codepage: str) -> None:
    if attribute == _FILE_TITLE:
        file.name = file.name or decode(value.rstrip(b"\0"), codepage)
    elif attribute == _FILE_DATA:
        file.data = value
    elif attribute == _FILE_PROPERTIES:
        properties = dict(_split_properties(value))
        kind, content = properties.get(_FILE_OBJECT, (0, b""))
        is_message = kind == _OBJECT and is_tnef(content[_INTERFACE_SIZE:])
        for tag in (_DISPLAY_NAME,) if is_message else (_LONG_FILE_NAME, _FILE_NAME):
            if tag in properties:
                file.name = _decode_string(*properties[tag], codepage) or file.name
                break
        if _MEDIA_TYPE in properties:
            file.media_type = _decode_string(*properties[_MEDIA_TYPE], codepage).lower()
        if is_message or not file.data:  # the data of a message only says that it is one
            file.data = content[_INTERFACE_SIZE:]


def _split_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the id and value of each attribute: level, id, type and length (9 bytes), value, checksum (2 bytes)."""
    position = 6
    while position + 9 <= len(data):
        _, attribute, _, length = struct.unpack_from("<BHHI", data, position)
        yield attribute, data[position + 9 : position + 9 + length]
        position += length + 11


def _split_properties(data: bytes) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yield the tag of each MAPI property, and its type and first value. Stop at what is damaged or unknown."""
    position = 4
    while position + 4 <= len(data):
        kind, tag = struct.unpack_from("<HH", data, position)
        position += 4
        try:
            if tag >= _NAMED:
                position = _skip_name(data, position)
            value, position = _read_values(data, position, kind)
        except (struct.error, KeyError):
            return
        yield tag, (kind & ~_MULTIPLE, value)


def _skip_name(data: bytes, position: int) -> int:
    """Return the position behind the name of a named property."""
    form, number = struct.unpack_from("<II", data, position + 16)
    return position + 24 + (_pad(number) if form else 0)


def _read_values(data: bytes, position: int, kind: int) -> tuple[bytes, int]:
    """Return the first value of a property, and the position behind all of them."""
    base, count = kind & ~_MULTIPLE, 1
    if kind & _MULTIPLE or base in _VARIABLE:
        (count,) = struct.unpack_from("<I", data, position)
        position += 4
    if base not in _VARIABLE:
        size = _SIZES[base]
        return data[position : position + size], position + size * count
    first = b""
    for number in range(count):
        (length,) = struct.unpack_from("<I", data, position)  # raises at the end of the data
        if number == 0:
            first = data[position + 4 : position + 4 + length]
        position += 4 + _pad(length)
    return first, position


def _pad(length: int) -> int:
    return (length + 3) // 4 * 4


def _decode_string(kind: int, value: bytes, codepage: str) -> str:
    if kind == _UNICODE:
        return value.decode("utf-16-le", "replace").rstrip("\0")
    return decode(value.rstrip(b"\0"), codepage)


def find_codepage(number: int, default: str) -> str:
    """Return the name of a code page of Windows, or `default` if it is unknown."""
    is_iso = _ISO_8859 + 1 < number <= _ISO_8859 + 16
    name = f"iso8859-{number - _ISO_8859}" if is_iso else _CODEPAGES.get(number, f"cp{number}")
    try:
        return codecs.lookup(name).name
    except LookupError:
        return default


def read_compressed_rtf(value: bytes) -> str:
    """Return the text of compressed RTF, or "" if it cannot be read.

    Raises:
        ImportError: if compressed-rtf is not installed.
    """
    from compressed_rtf import decompress

    if len(value) > _MAX_RTF:
        return ""
    try:
        return extract_rtf(decompress(value)).replace("\0", "")
    except Exception:  # noqa: BLE001 - the package raises nothing more specific for damaged data
        return ""
