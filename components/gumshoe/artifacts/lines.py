"""Read a file in blocks or lines, on disk or on S3, plain or compressed (`.gz`, `.bz2`, `.xz`)."""

import bz2
import lzma
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from gumshoe.artifacts.storage import InvalidUriError, explain_os_errors, list_uri, open_uri, split_uri

GZIP_ERRORS = (EOFError, zlib.error)
"""Errors raised by reading a damaged compressed file, after all content before the damage."""

_BLOCK = 1 << 20
_GZIP = 31  # zlib's number for the gzip format
_MAX_MEMORY = 128 << 20  # bytes; an xz file may ask for any amount


def file_size(uri: str) -> int:
    """Return the size in bytes of the file at a path or URI.

    Raises:
        InvalidUriError: if it is a directory, or the URI has another form.
        NotFoundError, StorageError, UnavailableError: as in `list_uri`.
    """
    found = list_uri(uri)
    if len(found) != 1 or found[0].key not in {uri, split_uri(uri)[2]}:  # a file:// URI is listed as its path
        raise InvalidUriError("store.is-a-directory", f"{uri} is a directory; name one file")
    return found[0].size


def read_lines(uri: str, advance: Callable[[int], object] = lambda _: None) -> Iterator[bytes]:
    """Yield the lines of a file without their line ends. See `read_blocks`.

    Raises:
        EOFError, zlib.error (`GZIP_ERRORS`): if the rest cannot be decompressed.
        NotFoundError, StorageError, UnavailableError: as in `open_uri`.
    """
    with open_uri(uri) as file:
        rest = b""
        for block in read_blocks(file, uri, advance):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if rest:
            yield rest


def read_blocks(
    file: BinaryIO, name: str, advance: Callable[[int], object] = lambda _: None, size: int = _BLOCK
) -> Iterator[bytes]:
    """Yield the content of an open file in blocks of about `size` bytes. UTF-16 with a byte order mark becomes UTF-8.

    A name that ends in `.gz`, `.bz2` or `.xz`, in any case, is decompressed. The next block is read and decompressed
    while this one is used. `advance` is called with the number of bytes read.

    Raises:
        EOFError, zlib.error (`GZIP_ERRORS`): if the rest cannot be decompressed.
        NotFoundError, StorageError, UnavailableError: if reading fails.
    """

    def read(number: int) -> bytes:
        with explain_os_errors(Path(name)):
            block = file.read(min(number, size))
        advance(len(block))
        return block

    with ThreadPoolExecutor(1) as thread:
        blocks = _to_utf8(filter(None, _decompress(read, name)))
        next_block = thread.submit(next, blocks, None)
        while (block := next_block.result()) is not None:
            next_block = thread.submit(next, blocks, None)
            yield block


def _to_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(blocks, None)
    if first is None:
        return
    if not first.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        yield first
        yield from blocks
        return
    decode = getincrementaldecoder("utf-16")("replace").decode
    yield decode(first).encode("utf-8", "replace")
    for block in blocks:
        yield decode(block).encode("utf-8", "replace")


def _decompress(read: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    name = name.lower()
    if name.endswith(".gz"):
        return _gunzip(read)
    if name.endswith(".bz2"):
        return _decompress_with(read, bz2.BZ2Decompressor)
    if name.endswith(".xz"):
        return _decompress_with(read, partial(lzma.LZMADecompressor, memlimit=_MAX_MEMORY))
    return iter(partial(read, _BLOCK), b"")


def _decompress_with(
    read: Callable[[int], bytes], create: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
) -> Iterator[bytes]:
    """Yield the content of one or more compressed streams in blocks of at most 1 MiB."""
    unpack = create()
    while packed := read(_BLOCK // 4):
        while True:
            if unpack.eof:
                packed = packed.lstrip(b"\0")  # another stream, or padding
                if not packed:
                    break
                unpack = create()
            try:
                block = unpack.decompress(packed, _BLOCK)
            except (OSError, ValueError, lzma.LZMAError) as error:
                raise zlib.error(str(error)) from None
            yield block
            packed = unpack.unused_data if unpack.eof else b""
            if not unpack.eof and unpack.needs_input:
                break
    if not unpack.eof:
        raise EOFError("it ends before its content does")


def _gunzip(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the content in blocks of at most 1 MiB, each decompressed in one call that releases the interpreter's lock.

    Content before any damage is yielded first.
    """
    unpack = zlib.decompressobj(_GZIP)
    while packed := read(_BLOCK // 4):
        while packed:
            before = unpack.copy()
            try:
                yield unpack.decompress(packed, _BLOCK)
            except zlib.error:
                yield from _salvage(before, packed)
                raise
            if not unpack.eof:
                packed = unpack.unconsumed_tail
                continue
            packed = unpack.unused_data.lstrip(b"\0")  # another member, or padding
            unpack = zlib.decompressobj(_GZIP) if packed else unpack
    if not unpack.eof:
        yield unpack.flush()
        raise EOFError("it ends before its content does")


def _salvage(unpack: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """Yield what can be decompressed before the damage in a block."""
    with suppress(zlib.error):
        for start in range(len(packed)):
            yield unpack.decompress(packed[start : start + 1])
