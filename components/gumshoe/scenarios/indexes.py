"""Which kind of index a directory holds."""

from pathlib import Path
from typing import Literal

from gumshoe.mail.schema import IndexPlaceError, index_file

IndexKind = Literal["email", "documents"]


def kind_of_index(directory: Path) -> IndexKind:
    """What an index is of: mail, or documents.

    Raises:
        IndexPlaceError: there is none.
    """
    if index_file(directory).exists():
        return "email"
    from gumshoe.documents.schema import is_document_index  # takes longer to import

    if is_document_index(directory):
        return "documents"
    raise IndexPlaceError(
        f"there is no index in {directory}; build one with `gumshoe mail index` or `gumshoe documents index`"
    )
