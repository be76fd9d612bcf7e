"""An index by a word: a directory, or a version in a store."""

from collections.abc import Iterator
from contextlib import contextmanager

from gumshoe.artifacts.store import fetched_directory
from gumshoe.documents.index import DocumentIndex


@contextmanager
def index_place(place: str, store: str | None) -> Iterator[DocumentIndex]:
    """The index in a directory, or `KIND/VERSION` of a store, which is fetched for as long as the block runs.

    Raises:
        UsageError: the place is neither.
        GumshoeError: the index is damaged, or the store does not answer.
    """
    with fetched_directory(place, store) as directory:
        yield DocumentIndex(directory)
