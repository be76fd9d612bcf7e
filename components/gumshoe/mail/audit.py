"""Look up message ids in a whole index, across inboxes, without any content.

This is for checking scenarios, and never for tools or the server.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gumshoe.artifacts.sqlite import explain_damage, open_read_only
from gumshoe.corpus import LookupResult, QuestionScope
from gumshoe.mail.index import MailIndex
from gumshoe.mail.message import to_datetime

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
class IndexedMessage:
    """A message of an index, without its content."""

    message_id: str
    """Id under which searches list it."""
    sent: datetime | None
    """Time sent, in UTC. None if the message has no date."""
    addresses: frozenset[str]
    """Addresses whose inboxes contain it: the sender and every recipient, including blind copies."""


class MailAudit:
    """Look up ids in a whole index, in all inboxes.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, index: Path) -> None:
        self._path = MailIndex(index).path
        self._database = open_read_only(self._path)

    def find(self, message_id: str) -> list[IndexedMessage]:
        """Return the messages with an id, given with or without brackets. The list is empty if no message has the id.

        The message that is listed under the id comes first. Then come those that have it as another id: the kept
        message of a dropped duplicate, and messages that arrived with a used id.

        Raises:
            GumshoeError: if the file is damaged.
        """
        bare = message_id.strip("<>")
        with explain_damage(self._path):
            rows = self._database.execute(_NAMED, {"exact": message_id, "bare": bare, "bracketed": f"<{bare}>"})
            found: list[tuple[Any, ...]] = rows.fetchall()
            return [
                IndexedMessage(listed, to_datetime(sent, None), self._addresses(number))
                for number, listed, sent in found
            ]

    def look_up(self, source_id: str, question: QuestionScope) -> LookupResult:
        """See `gumshoe.corpus.SourceAudit.look_up`."""
        messages = self.find(source_id)
        if not messages:
            return LookupResult(None, "message missing", "is not in the index")
        inbox, before = question.inbox_address, question.visible_before
        message = next((each for each in messages if inbox in each.addresses), None)
        if message is None:
            return LookupResult(None, "message outside the inbox", f"is in the index, but not in the inbox {inbox}")
        if message.sent is None:
            return LookupResult(None, "message without a date", "has no date, so no search with a query date finds it")
        if before is not None and message.sent >= before:
            detail = f"was sent on {message.sent:%Y-%m-%d}, after the question was asked on {question.query_date}"
            return LookupResult(None, "message after the query date", detail)
        if message.message_id != source_id:
            detail = f"is listed as {message.message_id}"
            return LookupResult(message.message_id, "message known under another id", detail)
        return LookupResult(message.message_id)

    def _addresses(self, number: int) -> frozenset[str]:
        return frozenset(str(text) for (text,) in self._database.execute(_ADDRESSES, {"message": number}))
