"""Read files that contain one message each: as mail servers store them, compressed, of Apple Mail, or of Outlook."""

import bz2
import lzma
import re
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.message import State
from gumshoe.mail.outlook import OLE_MAGIC, convert_msg
from gumshoe.mail.states import find_header_state

MAX_MESSAGE_SIZE = 64 << 20
"""Bytes. A larger message is not read."""

_MAX_MEMORY = 128 << 20  # bytes that a file may ask for to be unpacked
_ZSTD_BLOCK = 1024  # bytes, which unpack to at most 32 MiB
_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"
_UNKNOWN_PACKING = {b"Dovecot-LZ4": "packed with lz4", b"CRYPTED\x03\x07": "encrypted by Dovecot"}
_THUNDERBIRD = (b"From - ", b"X-Mozilla-", b"X-Account-Key:", b"X-UIDL:")
_EMLX_LENGTH = re.compile(rb"\s{0,20}(\d{1,10})[ \t]{0,20}\r?\n")
_EMLX_FLAGS = re.compile(rb"<key>flags</key>\s{0,100}<integer>(-?\d{1,20})</integer>")
_EMLX_DELETED, _EMLX_JUNK = 1 << 1, 1 << 24


class _TooLargeError(Exception):
    """The content is larger than the maximum."""


def read_message_file(raw: bytes, where: str) -> tuple[bytes, State] | UnreadableItem:
    """Return the message in a file, in the format of mail, and its state according to the program that wrote the file.

    Reads plain and compressed files (gzip, bzip2, xz; zstd if the package zstandard is installed), text in UTF-16, and
    files of Apple Mail (`.emlx`) and Outlook (`.msg`). `where` is the path of the file.
    """
    for start, reason in _UNKNOWN_PACKING.items():
        if raw.startswith(start):
            return UnreadableItem(where, reason)
    if raw.startswith((_GZIP, _BZIP2, _XZ, _ZSTD)):
        unpacked = _unpack(raw, where)
        if isinstance(unpacked, UnreadableItem):
            return unpacked
        raw = unpacked
    if len(raw) > MAX_MESSAGE_SIZE:
        return UnreadableItem(where, "message too large", f"{len(raw):,} bytes; the maximum is {MAX_MESSAGE_SIZE:,}")
    if raw.startswith(OLE_MAGIC):
        converted = convert_msg(raw, where)
        return converted if isinstance(converted, UnreadableItem) else (converted, "")
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raw = raw.decode("utf-16", "replace").encode("utf-8", "replace")
    if length := _EMLX_LENGTH.match(raw):
        return _read_emlx(raw, length.end(), int(length[1]))
    return raw, find_header_state(raw) if raw.startswith(_THUNDERBIRD) else ""


def _unpack(raw: bytes, where: str) -> bytes | UnreadableItem:
    try:
        if raw.startswith(_GZIP):
            unpacked = _unpack_with(zlib.decompressobj(31), raw)
        elif raw.startswith(_BZIP2):
            unpacked = _unpack_with(bz2.BZ2Decompressor(), raw)
        elif raw.startswith(_XZ):
            unpacked = _unpack_with(lzma.LZMADecompressor(memlimit=_MAX_MEMORY), raw)
        else:
            return _unpack_zstd(raw, where)
    except _TooLargeError:
        return UnreadableItem(where, "message too large", f"more than {MAX_MESSAGE_SIZE:,} bytes when unpacked")
    except (zlib.error, EOFError, OSError, ValueError, lzma.LZMAError) as error:
        return UnreadableItem(where, "damaged file", str(error))
    return unpacked


def _unpack_with(unpack: "zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor", raw: bytes) -> bytes:
    data = unpack.decompress(raw, MAX_MESSAGE_SIZE + 1)
    if len(data) > MAX_MESSAGE_SIZE:
        raise _TooLargeError
    if not unpack.eof:
        raise EOFError("it ends before its content does")
    return data


def _unpack_zstd(raw: bytes, where: str) -> bytes | UnreadableItem:
    try:
        import zstandard
    except ImportError:
        return UnreadableItem(where, "packed with zstd", "to read it: pip install zstandard")
    unpack = zstandard.ZstdDecompressor(max_window_size=_MAX_MEMORY).decompressobj()
    data = bytearray()
    try:
        for start in range(0, len(raw), _ZSTD_BLOCK):
            data += unpack.decompress(raw[start : start + _ZSTD_BLOCK])
            if len(data) > MAX_MESSAGE_SIZE:
                raise _TooLargeError
            if unpack.eof:
                return bytes(data)
    except zstandard.ZstdError as error:
        return UnreadableItem(where, "damaged file", str(error))
    raise EOFError("it ends before its content does")


def _read_emlx(raw: bytes, start: int, length: int) -> tuple[bytes, State]:
    """Return the message of a file of Apple Mail: its length on a line, the message, and a property list with flags."""
    end = start + length
    if end > len(raw) or raw[end : end + 200].lstrip()[:5] not in {b"", b"<?xml"}:  # the length is wrong
        end = raw.rfind(b"<?xml version=", start)
        end = end if end >= 0 else len(raw)
    state: State = ""
    if found := _EMLX_FLAGS.search(raw, end):
        flags = int(found[1])
        state = "deleted" if flags & _EMLX_DELETED else "spam" if flags & _EMLX_JUNK else ""
    return raw[start:end], state
