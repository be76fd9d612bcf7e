"""Small collections to index."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.document import Document
from gumshoe.documents.index import DocumentIndex
from gumshoe.documents.sources import open_source
from tests.embeddings.word_vectors import WordVectors

LEXICAL = DocumentBuildOptions("none")
DISEASES: list[dict[str, Any]] = [
    {
        "id": "flu",
        "title": "Influenza",
        "text": "Influenza is caused by a virus. It begins suddenly with fever. Vaccination prevents it.",
        "url": "https://health.example/flu",
        "category": "Infection",
        "synonyms": ["flu", "grippe"],
        "year": 2019,
    },
    {
        "id": "gout",
        "title": "Gout",
        "text": "Gout is caused by crystals of uric acid. The big toe hurts at night.",
        "category": "Joints",
        "synonyms": ["podagra"],
    },
    {"id": "scurvy", "title": "Scurvy", "text": "Scurvy comes from want of vitamin C. The gums bleed."},
    {
        "id": "cold",
        "title": "Common cold",
        "text": "A cold is caused by a virus too. The nose runs.",
        "category": "infection",
    },
]


def write_jsonl(path: Path, records: Iterable[Any]) -> str:
    """Write records to a file, one per line, and return the URI of the source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return f"jsonl:{path}"


def make_index(
    directory: Path,
    records: Iterable[Any],
    options: DocumentBuildOptions = LEXICAL,
    embedder: WordVectors | None = None,
) -> DocumentIndex:
    """Build and open an index of some records."""
    source = write_jsonl(directory / "documents.jsonl", records)
    build_document_index([source], directory / "index", options, embedder=embedder)
    return DocumentIndex(directory / "index", embedder)


def plain_records(count: int) -> list[dict[str, str]]:
    """Return different documents of one short sentence each."""
    return [
        {"id": str(number), "title": f"Item {number}", "text": f"Thing {number * 7} is part {number}."}
        for number in range(count)
    ]


def read_documents(uri: str) -> list[Document]:
    """Return the documents of a source, in order."""
    return [item for item in open_source(uri).read(lambda _: None) if isinstance(item, Document)]
