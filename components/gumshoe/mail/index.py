"""Search one inbox and read its messages, isolated from all other inboxes.

Every query runs on the postings of one inbox. Ranking uses the statistics of that inbox only. Results, and the work to
find them, are therefore the same as if the inbox were alone in the index.
"""

import itertools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.embeddings.embedder import Embedder
from gumshoe.embeddings.search_options import Fusion
from gumshoe.errors import GumshoeError
from gumshoe.mail.hits import HitReader
from gumshoe.mail.inbox_view import InboxView, Query
from gumshoe.mail.meaning import MeaningQuery, MeaningSearch
from gumshoe.mail.message import Recipient, clean, to_datetime, to_utc
from gumshoe.mail.message_vectors import MessageChunk
from gumshoe.mail.query_terms import QueryTerms, check_words
from gumshoe.mail.quotes import fold_message
from gumshoe.mail.schema import check_exists, index_path
from gumshoe.mail.search_arguments import (
    MEANING_WEIGHT,
    MailSearchError,
    Order,
    check_address,
    check_choices,
    check_fusion,
    check_keywords,
    check_period,
    check_query,
)
from gumshoe.mail.search_results import Hit, Message, PartialResult
from gumshoe.mail.segment import IndexSegments
from gumshoe.mail.snippets import SNIPPET_WORDS
from gumshoe.mail.terms import bare_id, thread_terms

_RESULT_CACHE_SIZE = 1_000  # search results, and messages, in memory
_MAX_CACHED = 1 << 16  # bytes of a message that is kept in memory; texts of attachments may have megabytes
_RECIPIENT = 512  # bytes of a recipient in memory, and of an attachment without its text
_LOOKUP_CACHE_SIZE = 10_000  # ids
_INBOX_CACHE_SIZE = 1_000
_MAX_QUERY_TERMS = 64  # words of a query by meaning that are compared
_GROUPED_HITS = (50, 1_000)  # that are looked at for a search with one hit per thread, first and if these do not do


class MessageNotFoundError(GumshoeError):
    """The inbox contains no message with that id. Other inboxes are not mentioned."""


@dataclass(frozen=True, slots=True)
class _Search:
    """The arguments of a search, checked."""

    inbox: str
    keywords: tuple[str, ...]
    query: Query
    limit: int
    snippet_words: int
    order: Order
    one_per_thread: bool
    until: int | None
    """Only messages sent before this time, in seconds since 1970, are visible."""


class MailIndex:
    """Search and read an index, opened read-only. Thread-safe and fork-safe.

    It shows the index as it was when it was opened, also after it was extended. The embedding model is loaded by the
    first search that needs it. `embedder` replaces the model that the index names.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, directory: Path, embedder: Embedder | None = None) -> None:
        self.directory = directory
        self.path = index_path(directory)
        check_exists(directory)
        with self._explain_damage():
            self._state, self._segments = IndexSegments.open_present(directory)
            embedding = self._state.facts["options"]["embedding"]
            self._meaning = MeaningSearch(self._segments, embedding, embedder)
        self._terms = QueryTerms()
        self._reader = HitReader(self._segments, self._terms.analyzer)
        # The files never change, and episodes of one group often send the same queries. Every cache is for one inbox:
        # what others search for or read must not save time.
        self._hits = lru_cache(_RESULT_CACHE_SIZE)(self._find_hits)
        self._meant = lru_cache(_RESULT_CACHE_SIZE)(self._find_meant)
        self._partial = lru_cache(_RESULT_CACHE_SIZE)(self._find_partial)
        self._small_message = lru_cache(_RESULT_CACHE_SIZE)(self._read_small_message)
        self._number = lru_cache(_LOOKUP_CACHE_SIZE)(self._find_number)
        self._view = lru_cache(_INBOX_CACHE_SIZE)(self._open_view)

    @property
    def has_vectors(self) -> bool:
        """True if searches by meaning compare vectors."""
        return self._meaning.vectors > 0

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
        snippet_words: int = SNIPPET_WORDS,
        order: Order = "relevance",
        one_per_thread: bool = False,
        visible_before: datetime | None = None,
    ) -> list[Hit]:
        """Return the messages of an inbox that contain every keyword, sorted by relevance or newest first.

        A keyword with spaces is a phrase. Case, accents and endings of words are ignored; everything except letters and
        digits only separates words. A word of several parts, such as e-mail, is also found as one word, and the
        reverse. Subject, body, attachments and the names of people are searched. `sender` and `recipient` are whole
        addresses, or names, of which all words must match. `sent_after` is inclusive and `sent_before` is exclusive; a
        day (YYYY-MM-DD) begins at midnight UTC. A message without a date is found only if neither is given. `limit` is
        1 to 10. A snippet has at most `snippet_words` words. With `one_per_thread`, only the first hit of each thread
        is returned. With `visible_before`, the result is as if the inbox held only messages sent before that time:
        threads, counts and ranking too. Messages without a date are then left out.

        Raises:
            MailSearchError: if an argument is invalid; the message says what to write instead.
            GumshoeError: if the index is damaged.
        """
        period = check_period(sent_after, sent_before)
        until = _to_seconds(visible_before)
        checked = self._check(
            inbox, keywords, sender, recipient, period, limit, snippet_words, until, order, one_per_thread
        )
        return [*self._hits(checked)]

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
        snippet_words: int = SNIPPET_WORDS,
        one_per_thread: bool = False,
        visible_before: datetime | None = None,
    ) -> PartialResult:
        """Return how many messages contain each keyword, and the messages that contain most of them.

        This is for a search that found nothing. Arguments and errors are those of `search`.
        """
        period = check_period(sent_after, sent_before)
        until = _to_seconds(visible_before)
        checked = self._check(
            inbox, keywords, sender, recipient, period, limit, snippet_words, until, one_per_thread=one_per_thread
        )
        return self._partial(checked)

    def search_by_meaning(
        self,
        inbox: str,
        query: str,
        *,
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: str | date | None = None,
        sent_before: str | date | None = None,
        limit: int = 10,
        snippet_words: int = SNIPPET_WORDS,
        dense_weight: float = MEANING_WEIGHT,
        fusion: Fusion = "score",
        visible_before: datetime | None = None,
    ) -> list[Hit]:
        """Return the messages of an inbox that fit a query best, by their vectors and by any of its words.

        Any text is a query; an empty one finds nothing. `dense_weight` is from 0 (only words) to 1 (only vectors);
        without vectors, words are always used. `fusion` is "score" or "rank" (see `fuse`). Other arguments are those of
        `search`.

        Raises:
            MailSearchError: if an argument is invalid; the message says what to write instead.
            UsageError: if the embedding model is missing, or is not the one that the index was built with.
            EmbeddingError: if the query cannot be embedded.
            GumshoeError: if the index is damaged.
        """
        period = check_period(sent_after, sent_before)
        check_choices(limit, "relevance", snippet_words)
        check_fusion(dense_weight, fusion)
        text = check_query(query)
        owner = check_address("inbox", inbox)
        filters = self._terms.read_people(owner, sender, recipient)
        check_words((), filters)
        alternatives = self._terms.analyzer(owner).list_alternatives(text)
        terms = dict.fromkeys(term for each in alternatives for term in each.terms)
        words = tuple((((term, 0),),) for term in itertools.islice(terms, _MAX_QUERY_TERMS))
        until, weight = _to_seconds(visible_before), dense_weight if self.has_vectors else 0.0
        checked = MeaningQuery(owner, text, Query(words, filters, *period), limit, snippet_words, weight, fusion, until)
        return [*self._meant(checked)] if text else []

    def _find_meant(self, search: MeaningQuery) -> tuple[Hit, ...]:
        weight = search.dense_weight
        vector = self._meaning.embed(search.text, search.inbox) if weight else None
        with self._explain_damage():
            view = self._view(search.inbox, search.until)
            view.check_size(search.query)
            found = self._meaning.rank(view.score_all(search.query), vector, weight, search.limit, search.fusion)
            chunks = {each.message: each.chunk for each in found if each.chunk}
            hits = self._show(view, [each.message for each in found], search, chunks)
            return tuple(
                replace(hit, dense_rank=each.dense_rank, lexical_rank=each.lexical_rank)
                for hit, each in zip(hits, found, strict=True)
            )

    def _check(
        self,
        inbox: str,
        keywords: list[str],
        sender: str | None,
        recipient: str | None,
        period: tuple[int | None, int | None],
        limit: int,
        snippet_words: int,
        until: int | None,
        order: Order = "relevance",
        one_per_thread: bool = False,
    ) -> _Search:
        words = tuple(check_keywords(keywords))
        check_choices(limit, order, snippet_words)
        owner = check_address("inbox", inbox)
        found = self._terms.read_keywords(owner, words)
        filters = self._terms.read_people(owner, sender, recipient)
        check_words(found, filters)
        return _Search(owner, words, Query(found, filters, *period), limit, snippet_words, order, one_per_thread, until)

    def _find_hits(self, search: _Search) -> tuple[Hit, ...]:
        with self._explain_damage():
            view, query = self._view(search.inbox, search.until), search.query
            view.check_size(query)
            return self._show(view, self._select(search, partial(view.search, query, search.order)), search)

    def _select(self, search: _Search, find: Callable[[int], list[int]]) -> list[int]:
        """Return the first messages of those that `find` returns up to a number: at most one per thread, if asked."""
        if not search.one_per_thread:
            return find(search.limit)
        view = self._view(search.inbox, search.until)
        chosen: list[int] = []
        seen: set[int] = set()  # messages of their threads
        for count in _GROUPED_HITS:
            numbers = found = find(count)
            while len(chosen) < search.limit and (numbers := [each for each in numbers if each not in seen]):
                some, numbers = numbers[: search.limit], numbers[search.limit :]
                threads = self._reader.find_threads(view, some)
                for number in some:
                    if number not in seen:
                        chosen.append(number)
                        seen.update(threads[number])
            if len(chosen) >= search.limit or len(found) < count:
                break
        return chosen[: search.limit]

    def _find_partial(self, search: _Search) -> PartialResult:
        with self._explain_damage():
            view, query = self._view(search.inbox, search.until), search.query
            view.check_size(query)
            counts = dict(zip(search.keywords, view.count_each(query), strict=True))
            return PartialResult(
                counts, self._show(view, self._select(search, partial(view.search_any, query)), search)
            )

    def _show(
        self,
        view: InboxView,
        numbers: list[int],
        search: _Search | MeaningQuery,
        chunks: Mapping[int, MessageChunk] | None = None,
    ) -> tuple[Hit, ...]:
        return self._reader.read_hits(view, numbers, search.query.terms, search.snippet_words, chunks)

    def read(self, inbox: str, message_id: str, *, visible_before: datetime | None = None) -> Message:
        """Return one message of an inbox, by the id of any copy that the inbox holds.

        `visible_before` is as for `search`.

        Raises:
            MessageNotFoundError: if the inbox does not contain the message, even if another inbox does.
            MailSearchError: if an argument is invalid.
            GumshoeError: if the index is damaged.
        """
        with self._explain_damage():
            return self._message(*self._locate(inbox, message_id, visible_before))

    def _locate(self, inbox: str, message_id: str, visible_before: datetime | None) -> tuple[str, int | None, int]:
        """Check the arguments of `read`. Return the inbox, the time before which messages count, and the message."""
        owner = check_address("inbox", inbox)
        if not isinstance(message_id, str):
            raise MailSearchError("mail.invalid-message-id", "message_id is not text; write an id as a search shows it")
        until = _to_seconds(visible_before)
        return owner, until, self._number(owner, until, clean(message_id).strip())

    def _message(self, inbox: str, until: int | None, number: int) -> Message:
        return self._small_message(inbox, until, number) or self._read_message(inbox, until, number)

    def _read_small_message(self, inbox: str, until: int | None, number: int) -> Message | None:
        """Return a message, or None if it is too large to be kept in memory."""
        message = self._read_message(inbox, until, number)
        return message if _measure(message) <= _MAX_CACHED else None

    def _read_message(self, inbox: str, until: int | None, number: int) -> Message:
        copies = self._reader.read_copies(self._view(inbox, until), [number])[number]
        text = self._segments.read_text(number)
        recipients = [Recipient(*each) for copy in copies for each in copy.recipients]  # type: ignore[arg-type]
        return Message(
            copies[0].shown_id,
            to_datetime(copies[0].sent, copies[0].utc_offset),
            text.sender,
            copies[0].sender_name,
            tuple(dict.fromkeys(recipients)),
            text.subject,
            text.body.strip(),
            tuple(text.attachments),
            all(each.is_unverified for each in copies),
        )

    def _find_number(self, inbox: str, until: int | None, exact: str) -> int:
        """Return the message that an inbox lists under an id, or otherwise one that has a copy with it."""
        bare = bare_id(exact)
        view = self._view(inbox, until)
        found = [number for term in thread_terms(exact) for number in view.find_term(term)]
        for number, copies in self._reader.read_each(view, found):
            if bare_id(copies[0].shown_id) == bare:
                return number
        for number, copies in self._reader.read_each(view, found):  # others only refer to the id
            if any(bare_id(each.message_id) == bare for each in copies):
                return number
        raise MessageNotFoundError(
            "mail.message-not-found",
            f"message {exact!r} does not exist in this inbox; use an id from `gumshoe mail search`",
        )

    def read_thread(self, inbox: str, message_id: str, *, visible_before: datetime | None = None) -> list[Message]:
        """Return the messages of `list_thread`, each without what it repeats of earlier ones. See `fold_message`.

        Raises:
            MessageNotFoundError, MailSearchError, GumshoeError: see `read`.
            UsageError: if a package for reading threads is missing.
        """
        thread = self.list_thread(inbox, message_id, visible_before=visible_before)
        return [fold_message(thread, number) for number in range(len(thread))]

    def list_thread(self, inbox: str, message_id: str, *, visible_before: datetime | None = None) -> list[Message]:
        """Return the whole messages of the inbox in the thread of one of them, oldest first.

        `visible_before` is as for `search`.

        Raises:
            MessageNotFoundError, MailSearchError, GumshoeError: see `read`.
        """
        with self._explain_damage():
            owner, until, number = self._locate(inbox, message_id, visible_before)
            thread = self._reader.find_threads(self._view(owner, until), [number])[number]
            return [self._message(owner, until, each) for each in thread]

    def list_messages(self, inbox: str) -> list[tuple[str, datetime | None]]:
        """Return id and time (UTC) of all messages of an inbox, oldest first. Messages without a date come last."""
        owner = check_address("inbox", inbox)
        with self._explain_damage():
            view = self._view(owner, None)
            dates = dict(view.list_messages())
            ids = ((number, copies[0].shown_id) for number, copies in self._reader.read_each(view, list(dates)))
            rows = [((sent := dates[number]) is None, sent or 0, shown_id, sent) for number, shown_id in ids]
            rows.sort(key=lambda row: row[:3])
            return [(message_id, to_datetime(sent, None)) for *_, message_id, sent in rows]

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
            facts["inboxes"] = len(self._segments.list_inboxes())
            query = "SELECT (SELECT count(*) FROM copies) - (SELECT count(*) FROM removed_copies)"
            facts["copies"] = sum(count for (count,) in self._segments.collect(lambda each: each.execute(query)))
            facts["vectors"], facts["dimensions"] = self._meaning.vectors, self._meaning.dimensions
            facts["segments"] = len(self._state.segments)
            facts["bytes"] = sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())
        return facts

    def list_unreadable(self) -> list[tuple[str, str, str]]:
        """Return place, reason and detail of each item that the build could not read."""
        with self._explain_damage():
            return self._segments.list_unreadable()

    def _open_view(self, inbox: str, until: int | None) -> InboxView:
        return InboxView(self._segments, inbox, until)

    def _explain_damage(self) -> AbstractContextManager[None]:
        return explain_damage(self.directory, content=True)


def _measure(message: Message) -> int:
    """Return about how many bytes a message takes in memory."""
    texts = sum(map(sys.getsizeof, (message.body, *(each.text for each in message.attachments))))
    return texts + _RECIPIENT * (len(message.recipients) + len(message.attachments))


def _to_seconds(moment: datetime | None) -> int | None:
    return None if moment is None else to_utc(moment)[0]


def _is_date(sent: int | None) -> bool:
    return sent is not None
