"""Read what is shown of the messages that a search found."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from gumshoe.mail.inbox_view import InboxView
from gumshoe.mail.message import list_texts, to_datetime
from gumshoe.mail.message_vectors import MessageChunk, cut_chunk
from gumshoe.mail.postings import NO_DATE
from gumshoe.mail.search_results import Hit
from gumshoe.mail.segment import IndexSegments, OwnCopy, StoredText
from gumshoe.mail.snippets import find_places, make_snippet
from gumshoe.mail.threads import MessageHead, ThreadFinder
from gumshoe.mail.words import MailAnalyzer

_MAX_THREADS = 10_000  # that are kept in memory
_BATCH = 200  # messages read at once


class HitReader:
    """Read messages of an inbox, several at once. Thread-safe. `analyzer` returns the analyzer of an inbox."""

    def __init__(self, segments: IndexSegments, analyzer: Callable[[str], MailAnalyzer]) -> None:
        self._segments, self._analyzer = segments, analyzer
        self._threads: dict[tuple[str, int | None, int], list[int]] = {}  # by inbox, time and message

    def read_copies(self, view: InboxView, messages: Iterable[int]) -> dict[int, list[OwnCopy]]:
        """Return the copies of visible messages that are in the inbox and, with a time, were sent before it.

        The first one decides id and date. With a time, copies without a date are left out.
        """
        found, until = view.read_copies(messages), view.until
        if until is None:
            return found
        return {
            message: [each for each in copies if each.sent is not None and each.sent < until]
            for message, copies in found.items()
        }

    def read_each(self, view: InboxView, messages: list[int]) -> Iterator[tuple[int, list[OwnCopy]]]:
        """Yield messages with their copies, in order, without reading all before the first is needed."""
        for start in range(0, len(messages), _BATCH):
            yield from self.read_copies(view, messages[start : start + _BATCH]).items()

    def find_threads(
        self,
        view: InboxView,
        messages: list[int],
        copies: dict[int, list[OwnCopy]] | None = None,
        texts: Mapping[int, StoredText] | None = None,
    ) -> dict[int, list[int]]:
        """Return the thread of each message, oldest first.

        Messages that are read on the way are added to `copies`. Those with a text in `texts` are not looked up again.
        """
        known = ((each, self._threads.get((view.inbox, view.until, each))) for each in messages)
        found = {message: thread for message, thread in known if thread is not None}
        missing = [each for each in messages if each not in found]
        if missing:
            read = partial(self._read_heads, view, {} if copies is None else copies, texts or {})
            new = ThreadFinder(view, read).find_all(missing)
            if len(self._threads) + len(new) > _MAX_THREADS:
                self._threads.clear()
            self._threads.update(((view.inbox, view.until, message), thread) for message, thread in new.items())
            found |= new
        return {message: found[message] for message in messages}

    def _read_heads(
        self,
        view: InboxView,
        copies: dict[int, list[OwnCopy]],
        texts: Mapping[int, StoredText],
        messages: list[int],
    ) -> dict[int, MessageHead]:
        copies |= self.read_copies(view, messages)
        heads = {each: (texts[each].sender, texts[each].subject) for each in messages if each in texts}
        if missing := [each for each in messages if each not in texts]:
            heads |= self._segments.read_heads(missing)
        return {message: (*heads[message], copies[message]) for message in messages}

    def read_hits(
        self,
        view: InboxView,
        messages: list[int],
        terms: set[int],
        snippet_words: int,
        chunks: Mapping[int, MessageChunk] | None = None,
    ) -> tuple[Hit, ...]:
        """Return messages as hits. A snippet has at most `snippet_words` words, with some of the terms.

        It is of the message's chunk in `chunks`, if there is one.
        """
        if not messages:
            return ()
        copies: dict[int, list[OwnCopy]] = {}
        texts = self._segments.read_texts(messages)
        threads = self.find_threads(view, messages, copies, texts)
        shown = dict.fromkeys([*messages, *(each[0] for each in threads.values())])
        copies |= self.read_copies(view, [each for each in shown if each not in copies])
        dates = {each: NO_DATE if (sent := copies[each][0].sent) is None else sent for each in messages}
        places = view.find_occurrences(dates, terms)
        hits = []
        for message in messages:
            first, text, thread = copies[message][0], texts[message], threads[message]
            if chunk := chunks.get(message) if chunks else None:
                part = cut_chunk(text, chunk)[1]
                snippet = make_snippet([part], find_places(self._analyzer(view.inbox), part, terms), snippet_words)
            else:
                snippet = make_snippet(list_texts(text.body, text.attachments), places[message], snippet_words)
            hits.append(
                Hit(
                    first.shown_id,
                    to_datetime(first.sent, first.utc_offset),
                    text.sender,
                    text.subject,
                    snippet,
                    copies[thread[0]][0].shown_id,
                    len(thread),
                    is_unverified=all(each.is_unverified for each in copies[message]),
                )
            )
        return tuple(hits)
