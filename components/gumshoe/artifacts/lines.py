"""Lines of a file, on disk or on S3, plain or gzip."""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from gumshoe.artifacts.storage import InvalidUriError, list_uri, open_uri, split_uri

DAMAGED = (EOFError, zlib.error)
"""What reading a gzip file raises when it is damaged, after all that comes before the damage."""

_BLOCK = 1 << 20
_GZIP = 31  # zlib's number for the gzip format


def file_size(uri: str) -> int:
    """Bytes of the file that a path or URI names.

    Raises:
        InvalidUriError: it names a directory, or is of a form that is not read.
        NotFoundError, StorageError, UnavailableError: as `list_uri`.
    """
    found = list_uri(uri)
    if len(found) != 1 or found[0].key not in {uri, split_uri(uri)[2]}:  # a file:// URI is listed as its path
        raise InvalidUriError("store.is-a-directory", f"{uri} is a directory; name one file")
    return found[0].size


def read_lines(uri: str, advance: Callable[[int], object] = lambda _: None) -> Iterator[bytes]:
    """The lines of a file, without their ends; one named `.gz` is unpacked. `advance` is told of bytes as read.

    The next block is read, and unpacked, while the lines of this one are used.

    Raises:
        EOFError, zlib.error (`DAMAGED`): it cannot be unpacked any further.
        NotFoundError, StorageError, UnavailableError: as `open_uri`.
    """
    with open_uri(uri) as raw, ThreadPoolExecutor(1) as thread:

        def read(size: int) -> bytes:
            block = raw.read(size)
            advance(len(block))
            return block

        blocks = _unpacked(read) if uri.endswith(".gz") else iter(partial(read, _BLOCK), b"")
        coming = thread.submit(next, blocks, None)
        rest = b""
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if rest:
            yield rest


def _unpacked(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Content in blocks, each unpacked in one call outside the interpreter's lock.

    What comes before damage is not lost with it.
    """
    unpack = zlib.decompressobj(_GZIP)
    while packed := read(_BLOCK // 4):
        while packed:
            before = unpack.copy()
            try:
                yield unpack.decompress(packed)
            except zlib.error:
                yield from _salvaged(before, packed)
                raise
            if not unpack.eof:
                break
            packed = unpack.unused_data.lstrip(b"\0")  # another member, or padding
            unpack = zlib.decompressobj(_GZIP) if packed else unpack
    if not unpack.eof:
        raise EOFError("it ends before its content does")


def _salvaged(unpack: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """What can be unpacked before the damage in a block."""
    with suppress(zlib.error):
        for start in range(len(packed)):
            yield unpack.decompress(packed[start : start + 1])
