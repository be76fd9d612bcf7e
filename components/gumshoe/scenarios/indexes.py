"""Detect the kind of an index."""

from pathlib import Path
from typing import Literal

from gumshoe.errors import UsageError
from gumshoe.mail.schema import index_path

IndexKind = Literal["email", "documents"]


def detect_index_kind(directory: Path) -> IndexKind:
    """Return the kind of the index in a directory.

    Raises:
        UsageError: if the directory has no index.
    """
    if index_path(directory).exists():
        return "email"
    from gumshoe.documents.schema import is_document_index  # slow to import

    if is_document_index(directory):
        return "documents"
    raise UsageError(
        "scenarios.no-index",
        f"no index in {directory}; build one with `gumshoe mail index` or `gumshoe documents index`",
    )
