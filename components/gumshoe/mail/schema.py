"""The files of an index of mail, and their tables.

An index is a directory. `mail-index.json` lists its segments, each a directory that never changes. A segment holds the
text of messages once, and the postings of each inbox (see `gumshoe.mail.postings`). An index is extended by a segment.
"""

import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.artifacts.private_data import MARK
from gumshoe.artifacts.storage import write_atomically
from gumshoe.embeddings.vectors import CENTER, SIGNS, VECTORS
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.json_text import load_json

FILE_NAME = "mail-index.json"
SEGMENT_PREFIX = "segment-"
DATABASE = "messages.sqlite"
POSTINGS = "postings.bin"
CHUNKS = "chunks.i4"
INDEX_FILES = {
    FILE_NAME: "How the index was built, and its segments.",
    f"{SEGMENT_PREFIX}N/{DATABASE}": "Messages, recipients, attachments, and what could not be read.",
    f"{SEGMENT_PREFIX}N/{POSTINGS}": "Words of the messages of each inbox.",
    f"{SEGMENT_PREFIX}N/{CHUNKS}": "Parts of messages that have a vector. Missing with `--embedding none`.",
    f"{SEGMENT_PREFIX}N/{', '.join((VECTORS, SIGNS, CENTER))}": "Vectors of the messages. Missing as above.",
    MARK: "Marks the index as private, for `gumshoe erase`.",
}
"""Description of each file of an index of mail."""
VERSION = 6

# `message` counts the different messages of an index through all segments, from 1. A copy is a message as somebody
# received or sent it, with its own id, date and recipients. Copies of a message may be in later segments.
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (
    message INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,  -- of what makes messages equal
    sender TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    attachments TEXT NOT NULL  -- JSON [[name, text, problem], ...]
);
CREATE TABLE copies (
    message INTEGER NOT NULL,
    copy INTEGER NOT NULL,
    digest BLOB NOT NULL,  -- of the message, everything below, and the inboxes without shown ids
    message_id TEXT NOT NULL,
    sent INTEGER,        -- seconds since 1970, UTC
    utc_offset INTEGER,  -- minutes east of UTC on the sender's clock
    sender_name TEXT NOT NULL,
    is_unverified INTEGER NOT NULL,  -- 1 if a mail server found that the sender is forged
    recipients TEXT NOT NULL,  -- JSON [[role, address, name], ...]
    refs TEXT NOT NULL,        -- JSON [id, ...]
    PRIMARY KEY (message, copy)
) WITHOUT ROWID;
-- The inboxes that hold a copy. In this order, what an inbox reads does not depend on how many others have the message.
CREATE TABLE entries (
    message INTEGER NOT NULL,
    inbox TEXT NOT NULL,
    copy INTEGER NOT NULL,
    hidden TEXT NOT NULL,    -- JSON [number of a recipient that the inbox may not see, ...]
    shown_id TEXT NOT NULL,  -- id under which the inbox lists the message
    PRIMARY KEY (message, inbox, copy)
) WITHOUT ROWID;
CREATE TABLE inboxes (address TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
-- Of earlier segments: messages that an inbox has no longer, or that this segment holds for it with more copies.
CREATE TABLE removed (inbox TEXT NOT NULL, message INTEGER NOT NULL, PRIMARY KEY (inbox, message)) WITHOUT ROWID;
CREATE TABLE removed_copies (
    message INTEGER NOT NULL, copy INTEGER NOT NULL, PRIMARY KEY (message, copy)
) WITHOUT ROWID;
CREATE TABLE unreadable (place TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL);
"""
# Created after all rows are inserted, because sorting once is faster.
INDEXES = """
CREATE INDEX messages_digest ON messages (digest);
CREATE INDEX copies_id ON copies (message_id);
CREATE INDEX copies_digest ON copies (digest);
"""


@dataclass(frozen=True, slots=True)
class IndexState:
    """Content of `mail-index.json`."""

    version: int
    """Counts the builds and extensions of the index."""
    segments: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    """How the index was built, and its counts."""
    schema: int = VERSION


def index_path(directory: Path) -> Path:
    """Return the path of the file that makes a directory an index."""
    return directory / FILE_NAME


def check_exists(directory: Path) -> None:
    """Check that a directory contains an index.

    Raises:
        UsageError: if it does not.
    """
    if not index_path(directory).is_file():
        raise UsageError("mail.no-index", f"{directory} contains no mail index; build one with `gumshoe mail index`")


def read_state(directory: Path) -> IndexState:
    """Return the state of an index.

    Raises:
        GumshoeError: if the file is damaged, or another version of Gumshoe wrote it.
        OSError: if it cannot be read.
    """
    path = index_path(directory)
    try:
        content = load_json(path.read_bytes())
        schema = content["schema"]
        if schema == VERSION:
            return IndexState(int(content["version"]), tuple(map(str, content["segments"])), dict(content["facts"]))
    except (ValueError, KeyError, TypeError):
        raise GumshoeError(
            "store.index-damaged", f"{path} is damaged; fetch the index again, or build it again"
        ) from None
    raise GumshoeError(
        "mail.index-version",
        f"{path} was written by another version of Gumshoe (schema {schema}, not {VERSION}); build the index again",
    )


def write_state(directory: Path, state: IndexState) -> None:
    """Make a state of an index visible, in one step."""
    text = json.dumps(asdict(state), indent=1, ensure_ascii=False)
    write_atomically(index_path(directory), io.BytesIO(text.encode() + b"\n"))
