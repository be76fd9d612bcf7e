"""Environment for mail: search one inbox, read messages, answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gumshoe.environments.base import Event, MessageSource, SourceText
from gumshoe.environments.budgets import PAGE_OF_CALL, HitCharacters, HitCount, PageCharacters
from gumshoe.environments.data_marks import NOTE
from gumshoe.environments.mail_results import MailFormat, explain_no_match, header_fields
from gumshoe.environments.search import SearchEnvironment, bare_id
from gumshoe.environments.tools import Toolbox, ToolError, ToolFunction, vary_tool
from gumshoe.mail.corpus import MailCorpus
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.message import join_texts
from gumshoe.mail.search_arguments import MailSearchError, check_period
from gumshoe.mail.search_results import Hit, Message
from gumshoe.mail.snippets import SNIPPET_WORDS
from gumshoe.scenarios.scenario import Scenario, ScenarioError

_SYSTEM = """\
You are an assistant that answers questions about the mail in the user's inbox.

Use the tools to find the answer: search the inbox, read what looks right, and when you have found the answer, \
return it with the ids of the messages that hold it. Make exactly one call in each turn. You have at most {turns} \
turns. If the answer is not to be found, return "I don't know" and no ids."""
_USER = """\
I am {inbox}. Today is {today}.

{question}"""
_PARTIAL = "\n\n        If no message does, messages that contain some of them are listed, the best first."
_DEFAULT_HITS = 10
_CHARACTERS_PER_WORD = 7  # of a hit; a snippet has as many words as its characters may show
_Found = TypeVar("_Found")


class EmailEnvironment(SearchEnvironment):
    """Answer one scenario from its inbox, as it was on the query date.

    Inbox and date come from the scenario and are part of every query. Neither the model nor the text of a message can
    change them. The index is shared and read-only. With `threads`, hits name their thread, whole threads can be read,
    and a search that no message matches lists partial matches. With `meaning`, there is a tool that searches by meaning
    if the index has vectors. Turn either off for policies that were trained without it.

    A search lists at most `hits` messages, with at most `hit_characters` characters of subject and snippet each: more
    than usual, or fewer for models with a small context. A message with more than `message_characters` characters is
    read in pages of that size, its header fields are cut, and a thread is cut to about the same size. With `handles`,
    tools show handles such as m1 in place of the ids of messages; both can be read and given as sources.

    With `attachments`, a message is read with the text of its attachments below its body: all of it in pages, or else
    the first 12,000 characters.

    With `marks`, results of tools are enclosed in marks that no message can contain, and the system prompt says that
    the text between them is data (see `gumshoe.environments.data_marks`).

    Raises:
        ScenarioError: if the scenario is not about mail.
    """

    has_inboxes = MailCorpus.has_inboxes
    for_tiny: ClassVar[Mapping[str, Any]] = {
        "threads": False,
        "meaning": False,
        "marks": False,
        "attachments": False,
    }
    """Settings that the tiny policy was trained with."""
    for_calls: ClassVar[Mapping[str, Any]] = {
        "threads": True,
        "meaning": True,
        "attachments": True,
        "message_characters": PAGE_OF_CALL,
    }
    """Settings for single tool calls, e.g. of an MCP client, even if the server's own policy is the tiny one."""
    needed_for_calls: ClassVar[Mapping[str, Any]] = {"handles": False}
    """Settings that single tool calls must have: only the episode that shows a handle knows it."""
    if_unrecorded: ClassVar[Mapping[str, Any]] = {"marks": False, "attachments": False}
    """Settings of policies whose record of the training does not have them, because they did not exist."""

    def __init__(
        self,
        index: MailIndex,
        scenario: Scenario,
        max_turns: int,
        *,
        threads: bool = True,
        meaning: bool = True,
        hits: HitCount = _DEFAULT_HITS,
        hit_characters: HitCharacters = None,
        message_characters: PageCharacters = None,
        handles: bool = False,
        marks: bool = True,
        attachments: bool = True,
    ) -> None:
        if scenario.document_ids:
            raise ScenarioError(
                "environments.not-about-mail", f"scenario {scenario.id} is not about mail: its sources are documents"
            )
        if scenario.inbox_address is None or scenario.visible_before is None:
            raise ScenarioError(
                "environments.no-inbox", f"scenario {scenario.id} is not about mail: it has no inbox or no date"
            )
        self._index, self._max_turns, self._threads, self._hits = index, max_turns, threads, hits
        self._page_characters = message_characters
        self._snippet_words = max(SNIPPET_WORDS, (hit_characters or 0) // _CHARACTERS_PER_WORD)
        self._format = MailFormat(threads, hit_characters, message_characters, self.show_id, attachments)
        self._inbox, self._until = scenario.inbox_address, scenario.visible_before
        self._marks = marks
        self.toolbox = Toolbox(list(self._list_tools(meaning and index.has_vectors)), marks=marks)
        super().__init__(scenario, handle_prefix="m" if handles else "")

    def _list_tools(self, has_meaning: bool) -> Iterator[ToolFunction]:
        """Yield the tools. Their arguments and descriptions depend on the settings."""
        threaded = () if self._threads else ("one_per_thread",)
        fewer = (("up to ten messages", f"up to {self._hits} messages"),) if self._hits < _DEFAULT_HITS else ()
        plain = () if self._threads else ((_PARTIAL, ""), (" or name", ""))
        yield vary_tool(self.search_inbox, threaded, (*fewer, *plain))
        if has_meaning:
            yield vary_tool(self.search_by_meaning, (), fewer)
        unused = {"whole_thread": self._threads, "page": self._page_characters}
        yield vary_tool(self.read_email, tuple(name for name, wanted in unused.items() if not wanted))
        yield self.return_final_answer

    @staticmethod
    def open_index(directory: Path) -> MailIndex:
        """Open the index in a directory.

        Raises:
            IndexFileError: if the index does not exist, or is damaged.
        """
        return MailIndex(directory)

    @staticmethod
    def get_ready(index: MailIndex) -> None:
        """Load the model that embeds queries, if the index has vectors."""
        if index.has_vectors:
            index.search_by_meaning("nobody@example.com", "What is there?", limit=1)

    @staticmethod
    def find_source(index: MailIndex, scenario: Scenario, source_id: str) -> MessageSource | None:
        """Return a message of the scenario's inbox that was sent before its date, or None."""
        found = _read_visible(index, scenario, source_id)
        return _to_source(found) if found else None

    @staticmethod
    def read_source(index: MailIndex, scenario: Scenario, source_id: str) -> SourceText | None:
        """Return a message with its text and that of its attachments.

        It must be in the scenario's inbox and sent before its date, or else the result is None.
        """
        found = _read_visible(index, scenario, source_id)
        if found is None:
            return None
        return SourceText(_to_source(found), header_fields(found), join_texts(found.body, found.attachments))

    def system_prompt(self) -> str:
        """Return the task and the turn limit. They are the same for every scenario, so a server computes them once."""
        return _SYSTEM.format(turns=self._max_turns) + (f"\n\n{NOTE}" if self._marks else "")

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
        one_per_thread: bool = False,
    ) -> str:
        """Search the inbox: up to ten messages that contain every keyword, the newest first.

        If no message does, messages that contain some of them are listed, the best first.

        Args:
            keywords: Words that all must appear in a message; several words in one keyword are a phrase.
            sender: Only messages from this address or name.
            recipient: Only messages to this address or name.
            sent_after: Only messages sent on this day or later, as YYYY-MM-DD.
            sent_before: Only messages sent before this day, as YYYY-MM-DD.
            one_per_thread: List only the first match of each thread.
        """
        where = {"sender": sender, "recipient": recipient, "sent_after": sent_after, "sent_before": sent_before}
        events = self.begin_search(keywords, *where.values(), one_per_thread)
        query = " ".join(keywords)
        hits = self._find(self._index.search, keywords, **where, one_per_thread=one_per_thread, order="date")
        if hits or not self._threads or len(keywords) == 1:
            return self._list_hits(events, hits, query)
        found = self._find(self._index.search_partially, keywords, **where, one_per_thread=one_per_thread)
        why = explain_no_match(found.counts, limited=any(where.values()), has_partial=bool(found.hits))
        listed = self._list_hits(events, found.hits, query, partial=True)
        return f"{why}\n{listed}" if found.hits else f"{listed} {why}"

    def search_by_meaning(
        self,
        query: str,
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: str | None = None,
        sent_before: str | None = None,
    ) -> str:
        """Search the inbox by meaning: up to ten messages, the best first. They need not contain the words.

        Args:
            query: What to look for, in a few words or a sentence.
            sender: Only messages from this address or name.
            recipient: Only messages to this address or name.
            sent_after: Only messages sent on this day or later, as YYYY-MM-DD.
            sent_before: Only messages sent before this day, as YYYY-MM-DD.
        """
        where = {"sender": sender, "recipient": recipient, "sent_after": sent_after, "sent_before": sent_before}
        events = self.begin_search(query, *where.values())
        return self._list_hits(events, self._find(self._index.search_by_meaning, query, **where), query)

    def _find(self, search: Callable[..., _Found], wanted: list[str] | str, **arguments: Any) -> _Found:
        """Return the result of a search method of the index, for this inbox as it was on the query date.

        Raises:
            ToolError: if an argument is invalid.
        """
        try:
            after, _ = check_period(arguments["sent_after"], arguments["sent_before"])
            if after is not None and after >= int(self._until.timestamp()):
                raise ToolError(f"sent_after {arguments['sent_after']} is later than today; write an earlier day")
            limits = {"limit": self._hits, "snippet_words": self._snippet_words, "visible_before": self._until}
            return search(self._inbox, wanted, **arguments, **limits)
        except MailSearchError as error:
            raise ToolError(str(error)) from None

    def _list_hits(self, events: list[Event], hits: Sequence[Hit], query: str, *, partial: bool = False) -> str:
        listed = self._format.format_hits(hits, query)
        return self.end_search(events, [hit.message_id for hit in hits], listed, partial=partial)

    def read_email(self, message_id: str, whole_thread: bool = False, page: int = 1) -> str:
        """Read one message of the inbox.

        Args:
            message_id: The id of a message, as a search lists it.
            whole_thread: Show all messages of its thread, oldest first, without quoted repetitions.
            page: The page to read of a long message.
        """
        message = _read_visible(self._index, self.scenario, self.resolve_id(message_id))
        if message is None:
            raise self.unknown_id_error(f"message {message_id!r} in this inbox")
        if whole_thread and page == 1:
            thread = self._index.list_thread(self._inbox, message.message_id, visible_before=self._until)
            if len(thread) > 1:
                ids = [each.message_id for each in thread]
                text, shown = self._format.format_thread(thread, ids.index(message.message_id))
                self.record_reading(*ids[shown.start : shown.stop])
                return text
        header, text = self._format.format_header(message), self._format.format_text(message)
        return self.show_page(message.message_id, header, text, page, self._page_characters)

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
    if scenario.visible_before is None:
        return None
    try:
        return index.read(str(scenario.inbox_address), message_id, visible_before=scenario.visible_before)
    except (MessageNotFoundError, MailSearchError):
        return None


def _to_source(message: Message) -> MessageSource:
    return MessageSource(message.message_id, message.sent, message.sender, message.subject)
