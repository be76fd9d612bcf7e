"""Search one inbox and read its messages, isolated from all other inboxes.

Every query runs on the postings of one inbox. Ranking uses the statistics of that inbox only. Results, and the work to
find them, are therefore the same as if the inbox were alone in the index.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.inbox_view import InboxView, Phrase, Query
from gumshoe.mail.message import Recipient, clean, list_texts, to_datetime
from gumshoe.mail.quotes import fold_quotes
from gumshoe.mail.schema import index_path, read_state
from gumshoe.mail.search_arguments import (
    MAX_KEYWORD_LENGTH,
    MailSearchError,
    Order,
    check_address,
    check_choices,
    check_keywords,
    check_period,
    check_person,
)
from gumshoe.mail.search_results import Hit, Message, PartialResult
from gumshoe.mail.segment import IndexSegments, StoredCopy
from gumshoe.mail.snippets import make_snippet
from gumshoe.mail.terms import PersonRole, address_term, bare_id, name_terms, thread_terms
from gumshoe.mail.thread_subjects import is_reply
from gumshoe.mail.threads import ThreadFinder
from gumshoe.mail.words import MailAnalyzer

_RESULT_CACHE_SIZE = 1_000  # search results, and messages, in memory
_LOOKUP_CACHE_SIZE = 10_000  # keywords, threads, and copies of messages
_INBOX_CACHE_SIZE = 256
_MAX_HITS_PER_THREAD = 5  # that are looked at for a search with one hit per thread


class MessageNotFoundError(GumshoeError):
    """The inbox contains no message with that id. Other inboxes are not mentioned."""


@dataclass(frozen=True, slots=True)
class _Search:
    """The arguments of a search, checked."""

    inbox: str
    keywords: tuple[str, ...]
    query: Query
    limit: int
    order: Order
    one_per_thread: bool


class MailIndex:
    """Search and read an index, opened read-only. Thread-safe and fork-safe.

    It shows the index as it was when it was opened, also after it was extended.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = index_path(directory)
        if not self.path.is_file():
            raise UsageError(
                "mail.no-index", f"{directory} contains no mail index; build one with `gumshoe mail index`"
            )
        self._state = read_state(directory)
        self._segments = IndexSegments.open(directory, self._state.segments)
        self._analyzer = MailAnalyzer()
        # The files never change, and episodes of one group often send the same queries.
        self._hits = lru_cache(_RESULT_CACHE_SIZE)(self._find_hits)
        self._partial = lru_cache(_RESULT_CACHE_SIZE)(self._find_partial)
        self._message = lru_cache(_RESULT_CACHE_SIZE)(self._find_message)
        self._copies = lru_cache(_LOOKUP_CACHE_SIZE)(self._read_copies)
        self._phrase = lru_cache(_LOOKUP_CACHE_SIZE)(self._analyze_keyword)
        self._thread = lru_cache(_LOOKUP_CACHE_SIZE)(self._find_thread)
        self._view = lru_cache(_INBOX_CACHE_SIZE)(self._open_view)

    def search(
        self,
        inbox: str,
        keywords: list[str],
        *,
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: str | date | None = None,
        sent_before: str | date | None = None,
        limit: int = 10,
        order: Order = "relevance",
        one_per_thread: bool = False,
    ) -> list[Hit]:
        """Return the messages of an inbox that contain every keyword, sorted by relevance or newest first.

        A keyword with spaces is a phrase. Case, accents and endings of words are ignored; everything except letters and
        digits only separates words. Subject, body, attachments and the names of people are searched. `sender` and
        `recipient` are whole addresses, or names, of which all words must match. `sent_after` is inclusive and
        `sent_before` is exclusive; a day (YYYY-MM-DD) begins at midnight UTC. A message without a date is found only if
        neither is given. `limit` is 1 to 10. With `one_per_thread`, only the first hit of each thread is returned.

        Raises:
            MailSearchError: if an argument is invalid; the message says what to write instead.
            GumshoeError: if the index is damaged.
        """
        period = check_period(sent_after, sent_before)
        return [*self._hits(self._check(inbox, keywords, sender, recipient, period, limit, order, one_per_thread))]

    def search_partially(
        self,
        inbox: str,
        keywords: list[str],
        *,
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: str | date | None = None,
        sent_before: str | date | None = None,
        limit: int = 10,
    ) -> PartialResult:
        """Return how many messages contain each keyword, and the messages that contain most of them.

        This is for a search that found nothing. Arguments and errors are those of `search`.
        """
        period = check_period(sent_after, sent_before)
        return self._partial(self._check(inbox, keywords, sender, recipient, period, limit))

    def _check(
        self,
        inbox: str,
        keywords: list[str],
        sender: str | None,
        recipient: str | None,
        period: tuple[int | None, int | None],
        limit: int,
        order: Order = "relevance",
        one_per_thread: bool = False,
    ) -> _Search:
        words = tuple(check_keywords(keywords))
        phrases = tuple(map(self._phrase, words))
        check_choices(limit, order)
        owner = check_address("inbox", inbox)
        people: tuple[tuple[PersonRole, str, str | None], ...] = (
            ("from", "sender", sender),
            ("to", "recipient", recipient),
        )
        filters = [
            term
            for role, name, person in people
            if person is not None
            for term in self._find_person(role, check_person(name, person))
        ]
        return _Search(owner, words, Query(phrases, tuple(filters), *period), limit, order, one_per_thread)

    def _find_person(self, role: PersonRole, person: str) -> Iterable[int]:
        if "@" in person:
            return (address_term(role, person),)
        return name_terms(role, self._analyzer.analyze_query(person).terms)

    def _find_hits(self, search: _Search) -> tuple[Hit, ...]:
        with self._explain_damage():
            view, query = self._view(search.inbox), search.query
            if not search.one_per_thread:
                return self._show(view, view.search(query, search.order, search.limit), query)
            threads: dict[int, int] = {}  # first hit of each thread
            for number in view.search(query, search.order, search.limit * _MAX_HITS_PER_THREAD):
                if len(threads) < search.limit:
                    threads.setdefault(self._thread(search.inbox, number)[0], number)
            return self._show(view, list(threads.values()), query)

    def _find_partial(self, search: _Search) -> PartialResult:
        with self._explain_damage():
            view, query = self._view(search.inbox), search.query
            counts = {
                keyword: view.count(replace(query, phrases=(phrase,)))
                for keyword, phrase in zip(search.keywords, query.phrases, strict=True)
            }
            return PartialResult(counts, self._show(view, view.search_any(query, search.limit), query))

    def _show(self, view: InboxView, numbers: list[int], query: Query) -> tuple[Hit, ...]:
        terms = {term for phrase in query.phrases for term, _ in phrase}
        hits = []
        for number in numbers:
            text = self._segments.read_text(number)
            first = self._copies(view.inbox, number)[0]
            thread = self._thread(view.inbox, number)
            hits.append(
                Hit(
                    self._shown_id(view.inbox, number),
                    to_datetime(first.sent, first.utc_offset),
                    text.sender,
                    text.subject,
                    make_snippet(self._analyzer, list_texts(text.body, text.attachments), terms),
                    self._shown_id(view.inbox, thread[0]),
                    len(thread),
                )
            )
        return tuple(hits)

    def _read_copies(self, inbox: str, number: int) -> list[StoredCopy]:
        """Return the copies of a message that are in an inbox."""
        return [each for each in self._segments.read_copies(number) if each.find_entry(inbox)]

    def _shown_id(self, inbox: str, number: int) -> str:
        """Return the id under which an inbox lists a message: that of its first copy."""
        entry = self._copies(inbox, number)[0].find_entry(inbox)
        return entry.shown_id if entry else ""

    def read(self, inbox: str, message_id: str) -> Message:
        """Return one message of an inbox, by the id of any copy that the inbox holds.

        Raises:
            MessageNotFoundError: if the inbox does not contain the message, even if another inbox does.
            MailSearchError: if an argument is invalid.
            GumshoeError: if the index is damaged.
        """
        owner = check_address("inbox", inbox)
        if not isinstance(message_id, str):
            raise MailSearchError("mail.invalid-message-id", "message_id is not text; write an id as a search shows it")
        return self._message(owner, clean(message_id).strip())

    def _find_message(self, inbox: str, exact: str) -> Message:
        with self._explain_damage():
            number = self._find_number(inbox, exact)
            copies = self._copies(inbox, number)
            text = self._segments.read_text(number)
        recipients = [
            Recipient(*each)  # type: ignore[arg-type]
            for copy in copies
            if (entry := copy.find_entry(inbox))
            for each in copy.list_visible(entry)
        ]
        return Message(
            self._shown_id(inbox, number),
            to_datetime(copies[0].sent, copies[0].utc_offset),
            text.sender,
            copies[0].sender_name,
            tuple(dict.fromkeys(recipients)),
            text.subject,
            text.body.strip(),
            tuple(text.attachments),
        )

    def _find_number(self, inbox: str, exact: str) -> int:
        """Return the message that an inbox lists under an id, or otherwise one that has a copy with it."""
        bare = bare_id(exact)
        found = [number for term in thread_terms(exact) for number in self._view(inbox).find_term(term)]
        for number in found:
            if bare_id(self._shown_id(inbox, number)) == bare:
                return number
        for number in found:  # others only refer to the id
            if any(bare_id(each.message_id) == bare for each in self._copies(inbox, number)):
                return number
        raise MessageNotFoundError(
            "mail.message-not-found",
            f"message {exact!r} does not exist in this inbox; use an id from `gumshoe mail search`",
        )

    def read_thread(self, inbox: str, message_id: str) -> list[Message]:
        """Return the messages of the inbox in the thread of one of them, oldest first.

        Each body is without what it repeats of earlier messages.

        Raises:
            MessageNotFoundError, MailSearchError, GumshoeError: see `read`.
            UsageError: if a package for reading threads is missing.
        """
        first = self.read(inbox, message_id)
        owner = check_address("inbox", inbox)
        with self._explain_damage():
            thread = self._thread(owner, self._find_number(owner, first.message_id))
            messages = [self._message(owner, self._shown_id(owner, number)) for number in thread]
        return [replace(each, body=fold_quotes(each.body)) if is_reply(each.subject) else each for each in messages]

    def _find_thread(self, inbox: str, number: int) -> list[int]:
        return ThreadFinder(self._view(inbox), partial(self._read_member, inbox)).find(number)

    def _read_member(self, inbox: str, number: int) -> tuple[str, str, list[StoredCopy]]:
        return *self._segments.read_head(number), self._copies(inbox, number)

    def list_messages(self, inbox: str) -> list[tuple[str, datetime | None]]:
        """Return id and time (UTC) of all messages of an inbox, oldest first. Messages without a date come last."""
        owner = check_address("inbox", inbox)
        with self._explain_damage():
            rows = [
                (sent is None, sent or 0, self._shown_id(owner, number), sent)
                for number, sent in self._view(owner).list_messages()
            ]
        return [(message_id, to_datetime(sent, None)) for *_, message_id, sent in sorted(rows, key=lambda row: row[:3])]

    def stats(self) -> dict[str, Any]:
        """Return statistics of the index and how it was built: the fields of `MailBuildReport`, and counts."""
        with self._explain_damage():
            facts = {"schema": self._state.schema, "version": self._state.version, **self._state.facts}
            periods = self._segments.collect(lambda each: each.execute("SELECT min(sent), max(sent) FROM copies"))
            firsts, lasts = zip(*periods, strict=True) if periods else ((), ())
            ends = min(filter(_is_date, firsts), default=None), max(filter(_is_date, lasts), default=None)
            facts["first_sent"], facts["last_sent"] = (
                moment.isoformat() if (moment := to_datetime(sent, None)) else None for sent in ends
            )
            addresses = self._segments.collect(lambda each: each.execute("SELECT address FROM inboxes"))
            facts["inboxes"] = len(set(addresses))
            query = "SELECT (SELECT count(*) FROM copies) - (SELECT count(*) FROM removed_copies)"
            facts["copies"] = sum(count for (count,) in self._segments.collect(lambda each: each.execute(query)))
            facts["segments"] = len(self._state.segments)
            facts["bytes"] = sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())
        return facts

    def list_unreadable(self) -> list[tuple[str, str, str]]:
        """Return place, reason and detail of each item that the build could not read."""
        with self._explain_damage():
            return self._segments.collect(lambda each: each.execute("SELECT place, reason, detail FROM unreadable"))

    def _analyze_keyword(self, keyword: str) -> Phrase:
        """Return the terms of a keyword. No character of it is an operator."""
        words = clean(keyword)
        if len(words) > MAX_KEYWORD_LENGTH:
            raise MailSearchError(
                "mail.keyword-too-long", f"a keyword has {len(words)} characters; use at most {MAX_KEYWORD_LENGTH}"
            )
        phrase = self._analyzer.analyze_query(words)
        if not phrase:
            raise MailSearchError(
                "mail.keyword-without-words", f"keyword {words!r} has no letter or digit to search for; use words"
            )
        return tuple(zip(phrase.terms, phrase.offsets, strict=True))

    def _open_view(self, inbox: str) -> InboxView:
        return InboxView(self._segments, inbox)

    def _explain_damage(self) -> AbstractContextManager[None]:
        return explain_damage(self.directory)


def _is_date(sent: int | None) -> bool:
    return sent is not None
