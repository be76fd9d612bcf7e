"""Who a message concerns, without its content: for those who check scenarios, never for tools or the server."""

from pathlib import Path

from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.schema import damage_explained, open_read_only

# Where an id is another name of one message and the own of another, it means its own.
_ADDRESSES = """
    WITH named AS (
        SELECT message, 0 AS other FROM messages WHERE message_id = :id
        UNION ALL SELECT message, 1 FROM other_ids WHERE message_id = :id
    ), found AS (SELECT message FROM named WHERE other = (SELECT min(other) FROM named))
    SELECT text FROM addresses WHERE address IN (
        SELECT sender FROM messages JOIN found USING (message)
        UNION SELECT address FROM recipients JOIN found USING (message)
    )
"""


def addresses_of(index: Path, message_id: str) -> frozenset[str]:
    """The addresses of all whose inboxes hold a message: its sender and every recipient, blind copies included.

    The id may be that of a dropped duplicate.

    Raises:
        MessageNotFoundError: the index holds no such message.
        IndexFileError: there is no index that can be read.
    """
    path = MailIndex(index).path
    with damage_explained(path):
        rows = open_read_only(path).execute(_ADDRESSES, {"id": message_id}).fetchall()
    if not rows:
        raise MessageNotFoundError(f"there is no message {message_id!r} in {index}")
    return frozenset(str(text) for (text,) in rows)
