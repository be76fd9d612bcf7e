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
from gumshoe.mail.message import Attachment, Recipient, clean, to_datetime
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
_PHRASE_CACHE_SIZE = 10_000
_COPIES_CACHE_SIZE = 5_000
_INBOX_CACHE_SIZE = 256
_MAX_HITS_PER_THREAD = 5  # that are looked at for a search with one hit per thread


class MessageNotFoundError(GumshoeError):
    """The inbox contains no message with that id. Other inboxes are not mentioned."""


@dataclass(frozen=True, slots=True)
class _Search:
    """The arguments of a search, checked."""

    inbox: str
    keywords: tuple[str, ...]
    sender: str | None
    recipient: str | None
    after: int | None
    before: int | None
    limit: int
    order: Order
    one_per_thread: bool = False


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
        self._copies = lru_cache(_COPIES_CACHE_SIZE)(self._read_copies)
        self._phrase = lru_cache(_PHRASE_CACHE_SIZE)(self._analyze_keyword)
        self._thread = lru_cache(_PHRASE_CACHE_SIZE)(self._find_thread)
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
        after, before = check_period(sent_after, sent_before)
        search = self._check(inbox, keywords, sender, recipient, after, before, limit, order)
        return [*self._hits(replace(search, one_per_thread=one_per_thread))]

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
        after, before = check_period(sent_after, sent_before)
        search = self._check(inbox, keywords, sender, recipient, after, before, limit, "relevance")
        return self._partial(search)

    def _check(
        self,
        inbox: str,
        keywords: list[str],
        sender: str | None,
        recipient: str | None,
        after: int | None,
        before: int | None,
        limit: int,
        order: Order,
    ) -> _Search:
        words = tuple(check_keywords(keywords))
        for each in words:
            self._phrase(each)
        check_choices(limit, order)
        return _Search(
            check_address("inbox", inbox),
            words,
            None if sender is None else check_person("sender", sender),
            None if recipient is None else check_person("recipient", recipient),
            after,
            before,
            limit,
            order,
        )

    def _find_hits(self, search: _Search) -> tuple[Hit, ...]:
        with self._explain_damage():
            view = self._view(search.inbox)
            query = self._make_query(search)
            if not search.one_per_thread:
                return self._show(view, view.search(query, search.order, search.limit), query)
            threads: dict[int, int] = {}  # first hit of each thread
            for number in view.search(query, search.order, search.limit * _MAX_HITS_PER_THREAD):
                if len(threads) < search.limit:
                    threads.setdefault(self._thread(search.inbox, number)[0], number)
            return self._show(view, list(threads.values()), query)

    def _find_partial(self, search: _Search) -> PartialResult:
        with self._explain_damage():
            view = self._view(search.inbox)
            query = self._make_query(search)
            counts = {
                keyword: view.count(Query((phrase,), query.filters, query.after, query.before))
                for keyword, phrase in zip(search.keywords, query.phrases, strict=True)
            }
            return PartialResult(counts, self._show(view, view.search_any(query, search.limit), query))

    def _make_query(self, search: _Search) -> Query:
        filters: list[int] = []
        people: tuple[tuple[PersonRole, str | None], ...] = (("from", search.sender), ("to", search.recipient))
        for role, person in people:
            if person is not None:
                filters += self._find_person(role, person)
        phrases = tuple(self._phrase(each) for each in search.keywords)
        return Query(phrases, tuple(filters), search.after, search.before)

    def _find_person(self, role: PersonRole, person: str) -> Iterable[int]:
        if "@" in person:
            return (address_term(role, person),)
        return name_terms(role, tuple(self._analyzer.analyze_query(person).terms))

    def _show(self, view: InboxView, numbers: list[int], query: Query) -> tuple[Hit, ...]:
        terms = {term for phrase in query.phrases for term, _ in phrase}
        hits = []
        for number in numbers:
            text = self._segments.read_text(number)
            first = self._copies(view.inbox, number)[0]
            thread = self._thread(view.inbox, number)
            texts = [text.body, *(f"{name}\n{content}" for name, content, _ in text.attachments)]
            hits.append(
                Hit(
                    _shown_id(first, view.inbox),
                    to_datetime(first.sent, first.utc_offset),
                    text.sender,
                    text.subject,
                    make_snippet(self._analyzer, texts, terms),
                    _shown_id(self._copies(view.inbox, thread[0])[0], view.inbox),
                    len(thread),
                )
            )
        return tuple(hits)

    def _read_copies(self, inbox: str, number: int) -> list[StoredCopy]:
        """Return the copies of a message that are in an inbox."""
        return [
            each for each in self._segments.read_copies(number) if any(inbox == address for address, *_ in each.inboxes)
        ]

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
            if number is None:
                raise MessageNotFoundError(
                    "mail.message-not-found",
                    f"message {exact!r} does not exist in this inbox; use an id from `gumshoe mail search`",
                )
            copies = self._copies(inbox, number)
            text = self._segments.read_text(number)
        first = copies[0]
        recipients = [Recipient(*each) for copy in copies for each in _list_visible(copy, inbox)]  # type: ignore[arg-type]
        return Message(
            _shown_id(first, inbox),
            to_datetime(first.sent, first.utc_offset),
            text.sender,
            first.sender_name,
            tuple(dict.fromkeys(recipients)),
            text.subject,
            text.body.strip(),
            tuple(Attachment(*each) for each in text.attachments),
        )

    def _find_number(self, inbox: str, exact: str) -> int | None:
        """Return the message that an inbox lists under an id, or otherwise one that has a copy with it."""
        bare, named = bare_id(exact), None
        for term in thread_terms(exact):
            for number in self._view(inbox).find_term(term):
                copies = self._copies(inbox, number)
                if bare_id(_shown_id(copies[0], inbox)) == bare:
                    return number
                if named is None and any(bare_id(each.message_id) == bare for each in copies):
                    named = number
        return named

    def read_thread(self, inbox: str, message_id: str) -> list[Message]:
        """Return the messages of the inbox in the thread of one of them, oldest first.

        Each body is without what it repeats of earlier messages.

        Raises:
            MessageNotFoundError, MailSearchError, GumshoeError: see `read`.
        """
        first = self.read(inbox, message_id)
        owner = check_address("inbox", inbox)
        with self._explain_damage():
            number = self._find_number(owner, first.message_id)
            assert number is not None  # noqa: S101 - it was read
            ids = [_shown_id(self._copies(owner, each)[0], owner) for each in self._thread(owner, number)]
        messages = [self._message(owner, each) for each in ids]
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
                (sent is None, sent or 0, _shown_id(self._copies(owner, number)[0], owner), sent)
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


def _shown_id(copy: StoredCopy, inbox: str) -> str:
    return next(shown for address, _, shown in copy.inboxes if address == inbox)


def _list_visible(copy: StoredCopy, inbox: str) -> list[list[str]]:
    """Return role, address and name of the recipients of a copy that an inbox may see."""
    hidden = next(numbers for address, numbers, _ in copy.inboxes if address == inbox)
    return [each for number, each in enumerate(copy.recipients) if number not in hidden]


def _is_date(sent: int | None) -> bool:
    return sent is not None
