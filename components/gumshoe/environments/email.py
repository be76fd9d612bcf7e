"""Environment for mail: search one inbox, read messages, answer."""

from datetime import UTC, datetime
from pathlib import Path

from gumshoe.environments.base import MessageSource, SourceText
from gumshoe.environments.search import SearchEnvironment, bare_id
from gumshoe.environments.tools import Toolbox, ToolError
from gumshoe.mail.corpus import MailCorpus
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.search_arguments import MailSearchError, check_period
from gumshoe.mail.search_results import Hit, Message
from gumshoe.scenarios.scenario import Scenario, ScenarioError

_SYSTEM = """\
You are an assistant that answers questions about the mail in the user's inbox.

Use the tools to find the answer: search the inbox, read what looks right, and when you have found the answer, \
return it with the ids of the messages that hold it. Make exactly one call in each turn. You have at most {turns} \
turns. If the answer is not to be found, return "I don't know" and no ids."""
_USER = """\
I am {inbox}. Today is {today}.

{question}"""
_MIN_TIMESTAMP = -62135596800  # year 1, UTC: the earliest datetime


class EmailEnvironment(SearchEnvironment):
    """Answer one scenario from its inbox, as it was on the query date.

    Inbox and date come from the scenario and are part of every query. Neither the model nor the text of a message can
    change them. The index is shared and read-only.

    Raises:
        ScenarioError: if the scenario is not about mail.
    """

    has_inboxes = MailCorpus.has_inboxes

    def __init__(self, index: MailIndex, scenario: Scenario, max_turns: int) -> None:
        if scenario.document_ids:
            raise ScenarioError(
                "environments.not-about-mail", f"scenario {scenario.id} is not about mail: its sources are documents"
            )
        if scenario.inbox_address is None or scenario.visible_before is None:
            raise ScenarioError(
                "environments.no-inbox", f"scenario {scenario.id} is not about mail: it has no inbox or no date"
            )
        self.toolbox = Toolbox([self.search_inbox, self.read_email, self.return_final_answer])
        self._index, self._max_turns = index, max_turns
        self._inbox, self._until = scenario.inbox_address, scenario.visible_before
        super().__init__(scenario)

    @staticmethod
    def open_index(directory: Path) -> MailIndex:
        """Open the index in a directory.

        Raises:
            IndexFileError: if the index does not exist, or is damaged.
        """
        return MailIndex(directory)

    @staticmethod
    def find_source(index: MailIndex, scenario: Scenario, source_id: str) -> MessageSource | None:
        """Return a message of the scenario's inbox that was sent before its date, or None."""
        found = _read_visible(index, scenario, source_id)
        return _to_source(found) if found else None

    @staticmethod
    def read_source(index: MailIndex, scenario: Scenario, source_id: str) -> SourceText | None:
        """Return a message with its text. It must be in the scenario's inbox and sent before its date, or else None."""
        found = _read_visible(index, scenario, source_id)
        return SourceText(_to_source(found), _header_fields(found), found.body) if found else None

    def system_prompt(self) -> str:
        """Return the task and the turn limit. They are the same for every scenario, so a server computes them once."""
        return _SYSTEM.format(turns=self._max_turns)

    def user_prompt(self) -> str:
        """Return the owner of the inbox, the date and the question."""
        today = self.scenario.query_date
        return _USER.format(inbox=self._inbox, today=f"{today:%A}, {today}", question=self.scenario.question)

    def search_inbox(
        self,
        keywords: list[str],
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: str | None = None,
        sent_before: str | None = None,
    ) -> str:
        """Search the inbox: up to ten messages that contain every keyword, the newest first.

        Args:
            keywords: Words that all must appear in a message; several words in one keyword are a phrase.
            sender: Only messages from this address.
            recipient: Only messages to this address.
            sent_after: Only messages sent on this day or later, as YYYY-MM-DD.
            sent_before: Only messages sent before this day, as YYYY-MM-DD.
        """
        events = self.begin_search(keywords, sender, recipient, sent_after, sent_before)
        try:
            after, before = check_period(sent_after, sent_before)
            end = int(self._until.timestamp())
            before = end if before is None else min(before, end)
            if after is not None and after >= before:
                raise ToolError(f"sent_after {sent_after} is later than today; write an earlier day")
            hits = self._index.search(
                self._inbox,
                keywords,
                sender=sender,
                recipient=recipient,
                sent_after=None if after is None else _to_datetime(after),
                sent_before=_to_datetime(before),
                order="date",
            )
        except MailSearchError as error:
            raise ToolError(str(error)) from None
        return self.end_search(events, [hit.message_id for hit in hits], map(_format_hit, hits))

    def read_email(self, message_id: str) -> str:
        """Read one message of the inbox.

        Args:
            message_id: The id of a message, as a search lists it.
        """
        message = _read_visible(self._index, self.scenario, message_id)
        if message is None:
            raise self.unknown_id_error(f"message {message_id!r} in this inbox")
        self.record_reading(message.message_id)
        return _format_message(message)

    def return_final_answer(self, answer: str, message_ids: list[str]) -> str:
        """Give the answer to the question. This ends the conversation.

        Args:
            answer: The answer, as short as it can be; "I don't know" if it is not to be found.
            message_ids: The ids of the messages that hold the answer.
        """
        return self.finish(answer, message_ids)

    def listed_id(self, source_id: str) -> str | None:
        """Return the id of a message as searches list it. `source_id` may be that of a removed duplicate."""
        message = _read_visible(self._index, self.scenario, source_id)
        return bare_id(message.message_id) if message else None

    def bare(self, source_id: str) -> str:
        """Return the id without angle brackets. See `SearchEnvironment.bare`."""
        return bare_id(source_id)


def _read_visible(index: MailIndex, scenario: Scenario, message_id: str) -> Message | None:
    """Return a message of the scenario's inbox, or None if it does not exist or was sent after the scenario's date."""
    until = scenario.visible_before
    try:
        message = index.read(str(scenario.inbox_address), message_id)
    except (MessageNotFoundError, MailSearchError):
        return None
    return message if message.sent is not None and until is not None and message.sent < until else None


def _to_datetime(seconds: int) -> datetime:
    """Convert seconds since 1970 to a datetime; earlier times become the earliest datetime."""
    return datetime.fromtimestamp(max(seconds, _MIN_TIMESTAMP), UTC)


def _format_hit(hit: Hit) -> str:
    """Format a hit for the model. The id comes last, so that a causal model knows what it identifies."""
    sent = f"{hit.sent:%Y-%m-%d}" if hit.sent else "no date"
    return f"{sent} {hit.sender}: {hit.subject}\n  {hit.snippet}\n  id: {hit.message_id}"


def _to_source(message: Message) -> MessageSource:
    return MessageSource(message.message_id, message.sent, message.sender, message.subject)


def _header_fields(message: Message) -> dict[str, str]:
    """Return sender, recipients and date of a message, as they are shown."""
    fields = {"From": f"{message.sender_name} <{message.sender}>".lstrip()}
    for role in ("to", "cc"):
        listed = ", ".join(each.address for each in message.recipients if each.role == role)
        if listed:
            fields[role.capitalize()] = listed
    return {**fields, "Date": f"{message.sent:%A, %Y-%m-%d %H:%M}"}


def _format_message(message: Message) -> str:
    lines = [f"{name}: {value}" for name, value in _header_fields(message).items()]
    return "\n".join([*lines, f"Subject: {message.subject}", "", message.body])
