"""Which kind of index a directory holds."""

from pathlib import Path
from typing import Literal

from gumshoe.errors import UsageError
from gumshoe.mail.schema import index_file

IndexKind = Literal["email", "documents"]


def kind_of_index(directory: Path) -> IndexKind:
    """What an index is of: mail, or documents.

    Raises:
        UsageError: the directory has no index.
    """
    if index_file(directory).exists():
        return "email"
    from gumshoe.documents.schema import is_document_index  # takes longer to import

    if is_document_index(directory):
        return "documents"
    raise UsageError(
        "scenarios.no-index",
        f"no index in {directory}; build one with `gumshoe mail index` or `gumshoe documents index`",
    )
