"""Find the thread of a message in one inbox: the messages that it answers, and those that answer it.

Messages belong together if one refers to another, or both refer to a third (RFC 5322, section 3.6.4). A message without
such references belongs with those of the same subject that share a person with it and are close in time. Only messages
of the inbox count, so its threads do not depend on other inboxes.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gumshoe.mail.inbox_view import DatedMessages, InboxView
from gumshoe.mail.postings import TIE_BITS, sort_key
from gumshoe.mail.segment import OwnCopy
from gumshoe.mail.terms import bare_id, subject_term, thread_terms
from gumshoe.mail.thread_subjects import is_reply

MAX_MESSAGES = 200
"""Messages of a thread that are listed, at most."""
_MAX_IDS = 2_000
_MAX_GAP = 30 * 24 * 3600  # seconds between messages of the same subject
_MAX_SPAN = 3 * _MAX_GAP  # seconds between the message and others of its subject
_MAX_CANDIDATES = 40  # messages of the same subject that are looked at


MessageHead = tuple[str, str, list[OwnCopy]]
"""Sender, subject and an inbox's copies of a message."""


class ThreadMember(NamedTuple):
    """The properties of a message that decide its thread."""

    message: int
    sent: int
    """Seconds since 1970. 0 without a date."""
    time: int
    """See `sort_key`."""
    ids: tuple[str, ...]
    """Its own ids and those that it refers to, without angle brackets."""
    people: frozenset[str]
    """Sender and visible recipients, without the inbox itself."""
    subject: str
    is_reply: bool


@dataclass(slots=True)
class _GrowingThread:
    """A thread whose references are followed."""

    members: dict[int, ThreadMember]
    newest: list[ThreadMember]
    """Members whose ids were not looked up yet."""
    seen: set[str] = field(default_factory=set)
    """Ids that were looked up."""

    def list_new_ids(self) -> list[str]:
        """Return the ids of the newest members that were not looked up, as many as may still be looked up."""
        new = (each for member in self.newest for each in member.ids if each not in self.seen)
        return list(itertools.islice(new, max(_MAX_IDS - len(self.seen), 0)))


class ThreadFinder:
    """Find threads of one inbox.

    `read` returns the sender, the subject and the inbox's copies of each of some messages.
    """

    def __init__(self, view: InboxView, read: Callable[[list[int]], Mapping[int, MessageHead]]) -> None:
        self._view, self._read = view, read
        self._members: dict[int, ThreadMember] = {}
        self._having: dict[int, DatedMessages] = {}  # by term
        self._terms: dict[str, int] = {}  # of ids
        self._by_id: dict[str, list[int]] = {}  # messages

    def find_all(self, messages: list[int]) -> dict[int, list[int]]:
        """Return the thread of each message: its messages, oldest first, at most `MAX_MESSAGES`.

        What the threads need is read together, which is faster than one by one.
        """
        found = self._follow_references(messages)
        alone = [members[0] for members in found.values() if len(members) == 1 and len(members[0].ids) == 1]
        terms = {each.message: subject_term(each.subject) for each in alone}
        self._find_having(term for term in terms.values() if term is not None)
        near = {
            each.message: [] if (term := terms[each.message]) is None else self._list_near(each, term) for each in alone
        }
        self._describe(itertools.chain.from_iterable(near.values()))
        for each in alone:
            found[each.message] = _follow_subject(each, self._describe(near[each.message]))
        return {
            message: [each.message for each in sorted(members, key=lambda each: (each.time, each.message))]
            for message, members in found.items()
        }

    def _term(self, message_id: str) -> int:
        term = self._terms.get(message_id)
        if term is None:
            (term,) = thread_terms(message_id)
            self._terms[message_id] = term
        return term

    def _describe(self, messages: Iterable[int]) -> list[ThreadMember]:
        wanted = list(dict.fromkeys(messages))
        missing = [each for each in wanted if each not in self._members]
        for message, head in (self._read(missing) if missing else {}).items():
            self._members[message] = _to_member(self._view.inbox, message, head)
        return [self._members[each] for each in wanted]

    def _find_having(self, terms: Iterable[int]) -> list[DatedMessages]:
        """Return the messages that have each term."""
        wanted = list(terms)
        missing = [each for each in wanted if each not in self._having]
        if missing:
            self._having.update(self._view.find_terms(missing))
        return [self._having[each] for each in wanted]

    def _follow_references(self, messages: list[int]) -> dict[int, list[ThreadMember]]:
        """Return the messages that references connect with each message, directly or through others."""
        threads = {each.message: _GrowingThread({each.message: each}, [each]) for each in self._describe(messages)}
        while growing := [each for each in threads.values() if each.newest]:
            self._find_having(self._term(name) for thread in growing for name in thread.list_new_ids())
            self._describe(message for thread in growing for message in self._list_related(thread))
            for thread in growing:
                self._grow(thread)
        return {message: list(thread.members.values()) for message, thread in threads.items()}

    def _list_related(self, thread: _GrowingThread) -> list[int]:
        """Return messages that have an id of the newest members of a thread, as many as it may still get."""
        having = itertools.chain.from_iterable(map(self._list_having, thread.list_new_ids()))
        new = (each for each in dict.fromkeys(having) if each not in thread.members)
        return list(itertools.islice(new, MAX_MESSAGES - len(thread.members)))

    def _grow(self, thread: _GrowingThread) -> None:
        """Add the messages that have an id of the newest members of a thread."""
        newest, thread.newest = thread.newest, []
        for member in newest:
            if len(thread.members) >= MAX_MESSAGES or len(thread.seen) >= _MAX_IDS:
                thread.newest = []
                return
            for message_id in member.ids:
                if message_id in thread.seen:
                    continue
                thread.seen.add(message_id)
                new = [each for each in self._list_having(message_id) if each not in thread.members]
                # A copy that is not visible as of the view's time has terms too.
                described = self._describe(new[: MAX_MESSAGES - len(thread.members)])
                found = [each for each in described if message_id in each.ids]
                thread.members.update((each.message, each) for each in found)
                thread.newest += found

    def _list_having(self, message_id: str) -> list[int]:
        """Return the messages that have an id, or refer to it, oldest first, at most `MAX_MESSAGES`."""
        numbers = self._by_id.get(message_id)
        if numbers is None:
            (having,) = self._find_having([self._term(message_id)])
            numbers = self._by_id[message_id] = having.sort()[:MAX_MESSAGES]
        return numbers

    def _list_near(self, first: ThreadMember, term: int) -> list[int]:
        """Return other messages of the subject of one, given by its term, those first that are nearest in time."""
        (having,) = self._find_having([term])
        if len(having.messages) == 1:
            return []
        distances = np.abs((having.times >> TIE_BITS) - first.sent)
        near = np.flatnonzero(distances <= _MAX_SPAN)
        order = np.lexsort((having.messages[near], having.times[near], distances[near]))[:_MAX_CANDIDATES]
        return [each for each in having.messages[near[order]].tolist() if each != first.message]


def _follow_subject(first: ThreadMember, candidates: list[ThreadMember]) -> list[ThreadMember]:
    """Return those messages of one subject that people and time connect with the first. One of each two is a reply."""
    members, waiting = [first], [first]
    while waiting:
        member = waiting.pop(0)
        found = [each for each in candidates if _belong_together(member, each)]
        candidates = [each for each in candidates if each not in found]
        members += found
        waiting += found
    return members


def _to_member(inbox: str, message: int, head: MessageHead) -> ThreadMember:
    sender, subject, copies = head
    ids = dict.fromkeys(bare_id(each) for copy in copies for each in (copy.message_id, *copy.references))
    people = {sender, *(address for copy in copies for _, address, _ in copy.recipients)} - {inbox, ""}
    first = copies[0]
    time = sort_key(first.sent, first.shown_id)
    return ThreadMember(message, first.sent or 0, time, tuple(ids), frozenset(people), subject, is_reply(subject))


def _belong_together(one: ThreadMember, other: ThreadMember) -> bool:
    return (
        (one.is_reply or other.is_reply)
        and abs(one.sent - other.sent) <= _MAX_GAP
        and bool(one.people & other.people or not (one.people or other.people))
    )
