"""Find the thread of a message in one inbox: the messages that it answers, and those that answer it.

Messages belong together if one refers to another, or both refer to a third (RFC 5322, section 3.6.4). A message without
such references belongs with those of the same subject that share a person with it and are close in time. Only messages
of the inbox count, so its threads do not depend on other inboxes.
"""

from collections.abc import Callable
from typing import NamedTuple

from gumshoe.mail.inbox_view import InboxView
from gumshoe.mail.segment import StoredCopy
from gumshoe.mail.terms import subject_term, thread_terms
from gumshoe.mail.thread_subjects import is_reply

MAX_MESSAGES = 200
"""Messages of a thread that are listed, at most."""
_MAX_IDS = 2_000
_MAX_GAP = 30 * 24 * 3600  # seconds between messages of the same subject
_MAX_SPAN = 3 * _MAX_GAP  # seconds between the message and others of its subject
_MAX_CANDIDATES = 40  # messages of the same subject that are looked at


class ThreadMember(NamedTuple):
    """The properties of a message that decide its thread."""

    message: int
    sent: int
    """Seconds since 1970. 0 without a date."""
    ids: tuple[str, ...]
    """Its own ids and those that it refers to."""
    people: frozenset[str]
    """Sender and visible recipients, without the inbox itself."""
    is_reply: bool


class ThreadFinder:
    """Find threads of one inbox. `read` returns the sender, the subject and the inbox's copies of a message."""

    def __init__(self, view: InboxView, read: Callable[[int], tuple[str, str, list[StoredCopy]]]) -> None:
        self._view, self._read = view, read

    def find(self, message: int) -> list[int]:
        """Return the messages of a message's thread, oldest first, at most `MAX_MESSAGES`."""
        found = self._follow_references(message)
        if len(found) == 1 and len(found[0].ids) == 1:
            found = self._follow_subject(found[0])
        return [each.message for each in sorted(found, key=lambda each: (each.sent, each.message))]

    def _describe(self, message: int) -> ThreadMember:
        sender, subject, copies = self._read(message)
        ids = dict.fromkeys(each for copy in copies for each in (copy.message_id, *copy.references))
        inbox = self._view.inbox
        visible = [each for copy in copies if (entry := copy.find_entry(inbox)) for each in copy.list_visible(entry)]
        people = frozenset({sender, *(address for _, address, _ in visible)} - {inbox, ""})
        return ThreadMember(message, copies[0].sent or 0, tuple(ids), people, is_reply(subject))

    def _follow_references(self, message: int) -> list[ThreadMember]:
        members = {message: self._describe(message)}
        waiting = [members[message]]
        seen: set[str] = set()
        while waiting and len(members) < MAX_MESSAGES and len(seen) < _MAX_IDS:
            for message_id in waiting.pop(0).ids:
                if message_id in seen:
                    continue
                seen.add(message_id)
                (term,) = thread_terms(message_id)
                for number in self._view.find_term(term)[:MAX_MESSAGES]:
                    if number not in members and len(members) < MAX_MESSAGES:
                        members[number] = self._describe(number)
                        waiting.append(members[number])
        return list(members.values())

    def _follow_subject(self, first: ThreadMember) -> list[ThreadMember]:
        """Return the messages of the same subject that are connected by people and time. One of each two is a reply."""
        term = subject_term(self._read(first.message)[1])
        if term is None:
            return [first]
        nearest = sorted(self._view.find_dated(term), key=lambda each: (abs(each[1] - first.sent), each[0]))
        near = [number for number, sent in nearest[:_MAX_CANDIDATES] if abs(sent - first.sent) <= _MAX_SPAN]
        candidates = [self._describe(number) for number in near if number != first.message]
        members, waiting = [first], [first]
        while waiting:
            member = waiting.pop(0)
            found = [each for each in candidates if _belong_together(member, each)]
            candidates = [each for each in candidates if each not in found]
            members += found
            waiting += found
        return members


def _belong_together(one: ThreadMember, other: ThreadMember) -> bool:
    return (
        (one.is_reply or other.is_reply)
        and abs(one.sent - other.sent) <= _MAX_GAP
        and bool(one.people & other.people or not (one.people or other.people))
    )
