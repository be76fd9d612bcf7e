"""Format messages, search results and threads for the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from gumshoe.environments.budgets import cut, cut_hit, join_within
from gumshoe.mail.message import join_texts
from gumshoe.mail.quotes import fold_message
from gumshoe.mail.search_results import UNVERIFIED, Hit, Message

MAX_ATTACHED = 12_000
"""Maximum number of characters shown of the attachments of a message, if it has no pages."""

_MAX_THREAD = 12_000  # characters of a thread that are shown; the body of the wanted message is always shown whole
_MAX_OTHER = 2_000  # characters shown of the text of another message of the thread
_MAX_ATTACHED_IN_THREAD = 2_000  # of the wanted message of a thread, if there is no budget
_MAX_SUBJECT = 500  # characters, except of a message that is read alone
_MAX_PEOPLE = 10  # recipients shown of each message of a thread, for each role
_MAX_SENDER = 60  # characters of the sender of a hit, if there is a budget
_MIN_FIELD = 80  # characters of a header field, if there is a budget


def explain_no_match(counts: dict[str, int], *, limited: bool, has_partial: bool) -> str:
    """Say on one line why no message has all keywords, given how many messages have each of them.

    `limited` is True if only some messages were searched, e.g. those of one sender; `has_partial` if hits follow.
    """
    message = "message within these limits" if limited else "message"
    if not has_partial:
        return f"No {message} has any of the keywords."
    listed = ", ".join(f'"{" ".join(keyword.split())}" {count:,}' for keyword, count in counts.items())
    return f"No {message} has all keywords. Messages with each: {listed}. The best with only some of them:"


def header_fields(message: Message, most: int | None = None, limit: int | None = None) -> dict[str, str]:
    """Return sender, recipients and date of a message, as they are shown.

    There are at most `most` recipients a role, and about `limit` characters a field.
    """
    name = message.sender_name if limit is None else cut(message.sender_name, limit // 2)
    fields = {"From": f"{name} <{message.sender}>".lstrip() + _mark_sender(message.is_unverified)}
    for role in ("to", "cc"):
        people = [each.address for each in message.recipients if each.role == role]
        if most is not None and len(people) > most:
            people[most:] = [f"and {len(people) - most} more"]
        if people:
            fields[role.capitalize()] = ", ".join(people) if limit is None else join_within(people, limit)
    return {**fields, "Date": f"{message.sent:%A, %Y-%m-%d %H:%M}"}


@dataclass(frozen=True, slots=True)
class MailFormat:
    """How mail is shown to the model, within a budget of characters (see `EmailEnvironment`)."""

    threads: bool
    hit_characters: int | None
    message_characters: int | None
    show_id: Callable[[str], str]
    attachments: bool

    def format_hits(self, hits: Sequence[Hit], query: str) -> list[str]:
        """Format the hits of a search for `query`, each with its thread, if that has other messages."""
        return [self._format_hit(hit, query) for hit in hits]

    def _format_hit(self, hit: Hit, query: str) -> str:
        """Format a hit on three lines. The id comes last, so that a causal model knows what it identifies."""
        sent = f"{hit.sent:%Y-%m-%d}" if hit.sent else "no date"
        sender = hit.sender if self.hit_characters is None else cut(hit.sender, _MAX_SENDER)
        subject, snippet = cut_hit(_cut_subject(hit.subject), hit.snippet, query, self.hit_characters)
        sender += _mark_sender(hit.is_unverified)
        shown = f"{sent} {sender}: {subject}\n  {snippet}\n  id: {self.show_id(hit.message_id)}"
        if self.threads and hit.thread_size > 1:
            shown += f" (thread {self.show_id(hit.thread)}, {hit.thread_size} messages)"
        return shown

    def format_header(self, message: Message, *, in_thread: bool = False) -> str:
        """Format the header of a message; in a thread it is shorter."""
        limit = self.message_characters and max(_MIN_FIELD, self.message_characters // 8)
        subject = _cut_subject(message.subject) if in_thread else message.subject
        fields = {
            **header_fields(message, _MAX_PEOPLE if in_thread else None, limit),
            "Subject": subject if limit is None else cut(subject, limit),
        }
        return "\n".join(f"{name}: {value}" for name, value in fields.items())

    def format_text(self, message: Message) -> str:
        """Return the text of a message: its body and, unless the setting is off, the text of its attachments."""
        if not self.attachments:
            return message.body
        return join_texts(message.body, message.attachments, MAX_ATTACHED if self.message_characters is None else None)

    def format_thread(self, thread: Sequence[Message], wanted: int) -> tuple[str, range]:
        """Format the messages of a thread around the wanted one, oldest first. Return the text, and which are shown.

        They are shown without what they repeat. The text has about as many characters at most as a page of a message,
        or without a budget `_MAX_THREAD`, unless the body of the wanted message alone is longer.

        Raises:
            UsageError: if a package for reading threads is missing.
        """
        budget = self.message_characters
        longest = {True: budget and budget // 2, False: _MAX_OTHER if budget is None else budget // 4}

        @cache  # a thread may have many more messages than are shown, and to fold one takes time
        def format_part(number: int) -> str:
            message = fold_message(thread, number)
            return self._format_part(message, number + 1, len(thread), longest[number == wanted])

        room = _MAX_THREAD if budget is None else budget
        shown = _select_around(lambda number: len(format_part(number)), len(thread), wanted, room)
        head = f"Thread of {len(thread)} messages, oldest first."
        sides = (shown.start, "earlier", shown.start - 1), (len(thread) - shown.stop, "later", shown.stop)
        if left_out := [(f"{count} {when}", self.show_id(thread[at].message_id)) for count, when, at in sides if count]:
            counts, ids = zip(*left_out, strict=True)
            head += f" Left out: {' and '.join(counts)} ones. To see them, read the whole thread of {' or '.join(ids)}."
        return "\n\n".join([head, *map(format_part, shown)]), shown

    def _format_part(self, message: Message, number: int, size: int, longest: int | None) -> str:
        """Format a message of a thread, with at most `longest` characters of its text, or else its whole body."""
        text = self.format_text(message).strip()
        if longest is None:
            longest = len(message.body) + _MAX_ATTACHED_IN_THREAD
        if len(text) > longest:
            more = f"[{len(text) - longest:,} more characters: read this message alone to see them]"
            text = f"{text[:longest]} […]\n{more}"
        header = self.format_header(message, in_thread=True)
        return f"[{number} of {size}]\n{header}\nId: {self.show_id(message.message_id)}\n\n{text}"


def _mark_sender(is_unverified: bool) -> str:
    return f" ({UNVERIFIED})" if is_unverified else ""


def _cut_subject(subject: str) -> str:
    return subject if len(subject) <= _MAX_SUBJECT else f"{subject[:_MAX_SUBJECT]} […]"


def _select_around(measure: Callable[[int], int], count: int, wanted: int, room: int) -> range:
    """Return the range of items, of `count`, around the wanted one that has at most `room` characters.

    `measure` returns the characters of an item, and is called only for these and the next one on each side.
    """
    first, last = wanted, wanted
    room -= measure(wanted)
    open_ends = [-1, 1]  # directions, the next one first
    while open_ends:
        direction = open_ends.pop(0)
        place = first - 1 if direction < 0 else last + 1
        if 0 <= place < count and measure(place) <= room:
            room -= measure(place)
            first, last = min(first, place), max(last, place)
            open_ends.append(direction)
    return range(first, last + 1)
