"""Small mailboxes for tests: records as in JSONL sources, and indexes of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gumshoe.embeddings.embedder import Embedder
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex

KEEP_ALL = MailBuildOptions(max_body=None, max_recipients=None, drop_duplicates=False)


def record(number: int, **fields: Any) -> dict[str, Any]:
    """Return one message with plain defaults. `sender` sets the field `from`."""
    if "sender" in fields:
        fields["from"] = fields.pop("sender")
    return {
        "message_id": f"<{number}@example.com>",
        "date": f"2001-05-{1 + number % 28:02d}T12:00:00+00:00",
        "from": "ann@example.com",
        "to": ["bob@example.com"],
        "cc": [],
        "bcc": [],
        "subject": f"Subject {number}",
        "body": f"Body of message {number}",
        **fields,
    }


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> str:
    """Write records to a file and return the URI of the source."""
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return f"jsonl:{path}"


def make_index(
    directory: Path,
    records: Iterable[dict[str, Any]],
    options: MailBuildOptions | None = None,
    embedder: Embedder | None = None,
) -> MailIndex:
    """Build an index of some records."""
    directory.mkdir(parents=True, exist_ok=True)
    source = write_jsonl(directory / "mail.jsonl", records)
    build_mail_index([source], directory / "index", options, embedder=embedder)
    return MailIndex(directory / "index", embedder)
