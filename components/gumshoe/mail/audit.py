"""Who a message concerns, without its content: for those who check scenarios, never for tools or the server."""

from pathlib import Path

from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.schema import open_read_only


def addresses_of(index: Path, message_id: str) -> frozenset[str]:
    """The addresses of all whose inboxes hold a message: its sender and every recipient, blind copies included.

    The id may be that of a dropped duplicate.

    Raises:
        MessageNotFoundError: the index holds no such message.
        IndexFileError: there is no index that can be read.
    """
    rows = open_read_only(MailIndex(index).path).execute(
        """
        WITH found AS (
            SELECT message FROM messages WHERE message_id = :id
            UNION SELECT message FROM other_ids WHERE message_id = :id
        )
        SELECT text FROM addresses WHERE address IN (
            SELECT sender FROM messages JOIN found USING (message)
            UNION SELECT address FROM recipients JOIN found USING (message)
        )
        """,
        {"id": message_id},
    )
    addresses = frozenset(text for (text,) in rows)
    if not addresses:
        raise MessageNotFoundError(f"there is no message {message_id!r} in {index}")
    return addresses
