"""Read the lines of a file, on disk or on S3, plain or gzip."""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from gumshoe.artifacts.storage import InvalidUriError, list_uri, open_uri, split_uri

GZIP_ERRORS = (EOFError, zlib.error)
"""Errors raised by reading a damaged gzip file, after all lines before the damage."""

_BLOCK = 1 << 20
_GZIP = 31  # zlib's number for the gzip format


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
    """Yield the lines of a file without their line ends. A name that ends in `.gz` is decompressed.

    The next block is read and decompressed while the lines of this one are used. `advance` is called with the number of
    bytes read.

    Raises:
        EOFError, zlib.error (`GZIP_ERRORS`): if the rest cannot be decompressed.
        NotFoundError, StorageError, UnavailableError: as in `open_uri`.
    """
    with open_uri(uri) as raw, ThreadPoolExecutor(1) as thread:

        def read(size: int) -> bytes:
            block = raw.read(size)
            advance(len(block))
            return block

        blocks = _decompress(read) if uri.endswith(".gz") else iter(partial(read, _BLOCK), b"")
        next_block = thread.submit(next, blocks, None)
        rest = b""
        while (block := next_block.result()) is not None:
            next_block = thread.submit(next, blocks, None)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if rest:
            yield rest


def _decompress(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the content in blocks, each decompressed in one call that releases the interpreter's lock.

    Content before any damage is yielded first.
    """
    unpack = zlib.decompressobj(_GZIP)
    while packed := read(_BLOCK // 4):
        while packed:
            before = unpack.copy()
            try:
                yield unpack.decompress(packed)
            except zlib.error:
                yield from _salvage(before, packed)
                raise
            if not unpack.eof:
                break
            packed = unpack.unused_data.lstrip(b"\0")  # another member, or padding
            unpack = zlib.decompressobj(_GZIP) if packed else unpack
    if not unpack.eof:
        raise EOFError("it ends before its content does")


def _salvage(unpack: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """Yield what can be decompressed before the damage in a block."""
    with suppress(zlib.error):
        for start in range(len(packed)):
            yield unpack.decompress(packed[start : start + 1])
