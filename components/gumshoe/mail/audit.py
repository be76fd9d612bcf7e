"""Look up message ids in a whole index, across inboxes, without any content.

This is for checking scenarios, and never for tools or the server.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.corpus import LookupResult, QuestionScope, ScopeCheck
from gumshoe.mail.message import to_datetime
from gumshoe.mail.schema import check_exists
from gumshoe.mail.segment import IndexSegments, sort_copies
from gumshoe.mail.terms import bare_id


@dataclass(frozen=True, slots=True)
class IndexedMessage:
    """A message as one inbox lists it, without its content."""

    message_id: str
    """Id under which searches of the inbox list it."""
    sent: datetime | None
    """Time sent, in UTC. None if the message has no date."""
    inbox: str


class MailAudit:
    """Look up ids in a whole index, in all inboxes.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, index: Path) -> None:
        check_exists(index)
        self._directory = index
        _, self._segments = IndexSegments.open_present(index)

    def find(self, message_id: str) -> list[IndexedMessage]:
        """Return the messages with an id, given with or without brackets, in each inbox that holds them.

        An inbox may hold another copy of the message, which it lists under another id. Messages that are listed under
        the given id come first.

        Raises:
            GumshoeError: if the index is damaged.
        """
        bare = bare_id(message_id)
        own = bare.partition("#")[0]  # a message with a used id is listed under its id with a suffix
        with explain_damage(self._directory, content=True):
            names = [each for name in dict.fromkeys((bare, own)) for each in (name, f"<{name}>")]
            found = self._segments.find_ids([*names, f"<{own}", message_id])
            numbers = sorted({number for each in found.values() for number in each})
            messages = [each for number in numbers for each in self._list_inboxes(number)]
        if own != bare:
            messages = [each for each in messages if bare_id(each.message_id) == bare]
        return sorted(messages, key=lambda each: bare_id(each.message_id) != bare)

    def _list_inboxes(self, number: int) -> list[IndexedMessage]:
        """Return a message as each inbox lists it."""
        copies = sort_copies(self._segments.read_copies(number))
        first = {entry.address: (each, entry) for each in reversed(copies) for entry in each.inboxes}
        return [
            IndexedMessage(entry.shown_id, to_datetime(copy.sent, None), inbox)
            for inbox, (copy, entry) in first.items()
        ]

    def look_up(self, source_id: str, question: QuestionScope) -> LookupResult:
        """See `gumshoe.corpus.SourceAudit.look_up`."""
        messages = self.find(source_id)
        if not messages:
            return LookupResult(None, "message missing", "is not in the index")
        inbox, before = question.inbox_address, question.visible_before
        message = next((each for each in messages if inbox == each.inbox), None)
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

    def check_scope(self, question: QuestionScope) -> ScopeCheck:
        """See `gumshoe.corpus.SourceAudit.check_scope`."""
        if question.inbox_address in self._inboxes:
            return ScopeCheck()
        return ScopeCheck("inbox missing", f"the index has no inbox {question.inbox_address}")

    @cached_property
    def _inboxes(self) -> set[str]:
        with explain_damage(self._directory, content=True):
            return self._segments.list_inboxes()
