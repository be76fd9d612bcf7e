"""The tables of an index, and the full-text terms of addresses."""

from pathlib import Path

from gumshoe.artifacts.private_data import MARK
from gumshoe.mail.message import ADDRESS_MARK

FILE_NAME = "mail.sqlite"
INDEX_FILES = {
    FILE_NAME: "Messages, recipients, full-text index, what could not be read, and how the index was built.",
    MARK: "Marks the index as private, for `gumshoe artifacts forget`.",
}
"""Description of each file of an index of mail."""
VERSION = 1
TOKENIZER = ("unicode61", "remove_diacritics", "2")

# `search` contains the words of each message and, in its last two columns, one term for each address that sent or
# received it. The inbox is therefore one more term of the query, and other inboxes are never read.
# The text itself is stored once, in `messages` and `bodies`. `search` reads it through `indexed`, for snippets.
TABLES = """
CREATE TABLE build (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE addresses (address INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE messages (
    message INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    sent INTEGER,        -- seconds since 1970, UTC
    utc_offset INTEGER,  -- minutes east of UTC on the sender's clock
    sender INTEGER NOT NULL,
    sender_name TEXT NOT NULL,
    subject TEXT NOT NULL
);
-- `addressed` holds the terms of all who received the message.
CREATE TABLE bodies (message INTEGER PRIMARY KEY, body TEXT NOT NULL, addressed TEXT NOT NULL);
-- Who a message was addressed to, as JSON [[role, address, name], ...]: a row a message is written far faster than
-- a row a recipient. `copy` is 0 for the message itself and counts its dropped duplicates that reached somebody else.
CREATE TABLE envelopes (
    message INTEGER NOT NULL, copy INTEGER NOT NULL, addressed TEXT NOT NULL, PRIMARY KEY (message, copy)
) WITHOUT ROWID;
CREATE VIEW recipients AS
    SELECT message, copy, key AS position, value ->> 0 AS role, value ->> 1 AS address, value ->> 2 AS name
    FROM envelopes, json_each(addressed);
-- Ids of dropped duplicates, and of messages that came under an id which another message had already.
CREATE TABLE other_ids (message_id TEXT NOT NULL, message INTEGER NOT NULL);
CREATE TABLE unreadable (place TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL);
CREATE VIEW indexed AS
    SELECT message, subject, body, 'MARK' || printf('%x', sender) AS sender, addressed AS recipients
    FROM messages JOIN bodies USING (message);
CREATE VIRTUAL TABLE search USING fts5(
    subject, body, sender, recipients,
    content='indexed', content_rowid='message', tokenize='TOKENIZER'
);
""".replace("MARK", ADDRESS_MARK).replace("TOKENIZER", " ".join(TOKENIZER))

# Created after all rows are inserted, because sorting once is faster.
INDEXES = """
CREATE UNIQUE INDEX addresses_text ON addresses (text);
CREATE UNIQUE INDEX messages_id ON messages (message_id);
CREATE INDEX other_ids_id ON other_ids (message_id);
"""


def index_path(directory: Path) -> Path:
    """Return the path of the index file in its directory."""
    return directory / FILE_NAME


def address_term(address: int) -> str:
    """Return the full-text term of an address. No text can contain it, because its mark is removed from all text."""
    return f"{ADDRESS_MARK}{address:x}"
