"""The tables of an index, and the form in which addresses and keywords reach its full-text search."""

from pathlib import Path

from gumshoe.mail.message import ADDRESS_MARK

FILE_NAME = "mail.sqlite"
VERSION = 1
TOKENIZER = ("unicode61", "remove_diacritics", "2")

# `search` holds the words of each message and, in its last two columns, one term for each address that sent or
# received it. An inbox is then one more term of the query: what lies in other inboxes is never looked at.
# The text itself is stored once, in `messages` and `bodies`; `indexed` shows it to `search` for snippets.
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

# Made when everything is in: sorting once is faster than keeping order all the while.
INDEXES = """
CREATE UNIQUE INDEX addresses_text ON addresses (text);
CREATE UNIQUE INDEX messages_id ON messages (message_id);
CREATE INDEX other_ids_id ON other_ids (message_id);
"""


def index_file(directory: Path) -> Path:
    """Where an index lies in its directory."""
    return directory / FILE_NAME


def address_term(address: int) -> str:
    """The full-text term of an address: no text can contain it, since the mark is removed from all text."""
    return f"{ADDRESS_MARK}{address:x}"
