"""Read the items of sources in batches, and prepare them."""

import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import StorageError
from gumshoe.mail.items import RawItem, RawRecord
from gumshoe.mail.message_preparer import BatchPreparer, MessageLimits
from gumshoe.mail.prepared_messages import PreparedBatch
from gumshoe.terminal import progress

_BATCH = 500
_BATCH_BYTES = 4 << 20

NumberedItem = tuple[int, RawItem]
"""An item, and the number of its source."""


def prepare_items(
    read: Callable[[Callable[[int], object]], Iterator[NumberedItem]],
    total: int | None,
    limits: MessageLimits,
    describe: Callable[[], str],
) -> Generator[tuple[PreparedBatch, list[NumberedItem]]]:
    """Yield the items that `read` yields in prepared batches, each with the items themselves.

    Close the generator, e.g. with `closing`, since it may have started processes.

    Raises:
        StorageError: if the operating system refuses to read the sources, or to write temporary files of them.

    Args:
        read: is called with a function that takes the number of bytes read.
        total: size of all items in bytes, if known.
        limits: limits on messages.
        describe: returns a note on the progress.
    """
    measured = total is not None  # otherwise messages are counted
    waiting: list[list[NumberedItem]] = []  # batches that are being prepared

    def read_batches() -> Iterator[list[RawItem]]:
        for batch in _split_batches(read(advance if measured else _ignore_bytes)):
            waiting.append(batch)
            yield [item for _, item in batch]

    with progress("Indexing", total=total, in_bytes=measured) as advance, BatchPreparer(limits) as preparer:
        for prepared in _explain_os_errors(preparer.prepare(read_batches())):
            items = waiting.pop(0)
            yield prepared, items
            advance(0 if measured else len(items), note=describe())


def _explain_os_errors(batches: Iterator[PreparedBatch]) -> Iterator[PreparedBatch]:
    """Yield prepared batches. Without this, errors of sources would be taken for errors of the index and its disk."""
    try:
        yield from batches
    except OSError as error:
        raise StorageError(
            "mail.sources-not-read",
            f"the sources cannot be read: {error}; check their files, and the space for temporary files in "
            f"{tempfile.gettempdir()}, then try again",
        ) from error


def _split_batches(items: Iterable[NumberedItem]) -> Iterator[list[NumberedItem]]:
    """Yield items in batches of at most `_BATCH`, and of about `_BATCH_BYTES` if they are large."""
    batch: list[NumberedItem] = []
    size = 0
    for each in items:
        batch.append(each)
        size += _measure(each[1])
        if len(batch) == _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _measure(item: RawItem) -> int:
    """Return about how many bytes an item takes."""
    if isinstance(item, RawRecord):
        values = item.fields.values() if isinstance(item.fields, Mapping) else ()
        return sum(len(each) for each in values if isinstance(each, str | bytes))
    return 0 if isinstance(item, UnreadableItem) else len(item.raw)


def _ignore_bytes(_: int) -> None:
    """Ignore the number of bytes."""
