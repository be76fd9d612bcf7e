"""Sources of documents with their collections, and lists of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gumshoe.documents.collection_names import check_collection_name
from gumshoe.documents.sources import split_source
from gumshoe.errors import UsageError
from gumshoe.model_validation import validate_model
from gumshoe.yaml_text import load_yaml


@dataclass(frozen=True, slots=True)
class CollectionSource:
    """A source of documents, and the collection that they belong to.

    Raises:
        UsageError: if the collection does not have the form of a name.
    """

    uri: str
    collection: str = ""
    """Empty if the documents name their collections themselves, or have none."""

    def __post_init__(self) -> None:
        if self.collection:
            check_collection_name(self.collection)

    def to_fact(self) -> str | dict[str, str]:
        """Return the source as an index records it."""
        return {"source": self.uri, "collection": self.collection} if self.collection else self.uri


class _SourceValues(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    collection: str = ""


def parse_source_entry(entry: "str | Mapping[str, object] | CollectionSource", place: str) -> CollectionSource:
    """Return an entry of a list of sources: a URI, or a mapping with `source` and `collection`.

    Raises:
        UsageError: if it is invalid. The message begins with `place`.
    """
    if isinstance(entry, CollectionSource):
        return entry
    values = {"source": entry} if isinstance(entry, str) else entry
    found = validate_model(_SourceValues, values, "documents.invalid-source-list", place)
    try:
        split_source(found.source)
        return CollectionSource(found.source, found.collection)
    except UsageError as error:
        raise UsageError(error.code, f"{place}: {error.message}") from None


def read_source_entries(path: Path) -> list[CollectionSource]:
    """Read a YAML list of sources. Each entry is a URI, or a mapping with `source` and `collection`.

    Raises:
        UsageError: if the file cannot be read, or an entry is invalid. The message names the file and the entry.
    """
    code = "documents.invalid-source-list"
    try:
        listed = load_yaml(path.read_text(encoding="utf-8"), only_text=True)
    except OSError as error:
        raise UsageError(code, f"cannot read {path}: {error.strerror}; check the path") from None
    except ValueError as error:
        raise UsageError(code, f"{path} is not valid YAML: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise UsageError(code, f"{path} is not a list of sources; write one per line, e.g. `- dir:DIR`")
    return [parse_source_entry(entry, f"{path}, entry {number}") for number, entry in enumerate(listed, 1)]
