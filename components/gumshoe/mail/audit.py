"""Which messages an id names and whom they concern, without their content: for those who check scenarios, never for
tools or the server."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gumshoe.artifacts.sqlite import damage_explained, open_read_only
from gumshoe.mail.index import MailIndex
from gumshoe.mail.message import shown_date

_NAMED = """
    SELECT messages.message, message_id, sent FROM messages
    JOIN (
        SELECT message, 0 AS other FROM messages WHERE message_id IN (:exact, :bare, :bracketed)
        UNION ALL SELECT message, 1 FROM other_ids WHERE message_id IN (:exact, :bare, :bracketed)
    ) AS named USING (message)
    GROUP BY message ORDER BY message_id = :exact DESC, min(other), message
"""
_ADDRESSES = """
    SELECT text FROM addresses WHERE address IN (
        SELECT sender FROM messages WHERE message = :message
        UNION SELECT address FROM recipients WHERE message = :message
    )
"""


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message of an index, without its content."""

    message_id: str
    """The id that searches list it by."""
    sent: datetime | None
    """In UTC; None where the message has no date."""
    addresses: frozenset[str]
    """All whose inboxes hold it: its sender and every recipient, blind copies included."""


class MailAudit:
    """Looks ids up in a whole index, whosever inbox they lie in.

    Raises on opening:
        UsageError: there is no index.
        GumshoeError: it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, index: Path) -> None:
        self._path = MailIndex(index).path
        self._database = open_read_only(self._path)

    def find(self, message_id: str) -> list[HeldMessage]:
        """The messages that an id names, with or without its brackets; none where the index holds no such message.

        First the one that is listed by that very id, then those that it is another name of: the kept one of a
        dropped duplicate, and those that came under an id that was used already.

        Raises:
            GumshoeError: the file is damaged.
        """
        bare = message_id.strip("<>")
        with damage_explained(self._path):
            rows = self._database.execute(_NAMED, {"exact": message_id, "bare": bare, "bracketed": f"<{bare}>"})
            found: list[tuple[Any, ...]] = rows.fetchall()
            return [
                HeldMessage(listed, shown_date(sent, None), self._addresses(number)) for number, listed, sent in found
            ]

    def _addresses(self, number: int) -> frozenset[str]:
        return frozenset(str(text) for (text,) in self._database.execute(_ADDRESSES, {"message": number}))
