"""Format messages, search results and threads for the model."""

from collections.abc import Callable, Sequence
from functools import cache

from gumshoe.mail.quotes import fold_message
from gumshoe.mail.search_results import Hit, Message

_MAX_THREAD = 12_000  # characters of a thread that are shown; the wanted message is always shown whole
_MAX_OTHER = 2_000  # characters shown of the text of another message of the thread
_MAX_SUBJECT = 500  # characters, except of a message that is read alone
_MAX_PEOPLE = 10  # recipients shown of each message of a thread, for each role


def format_hit(hit: Hit) -> str:
    """Format a hit on three lines. The id comes last, so that a causal model knows what it identifies."""
    sent = f"{hit.sent:%Y-%m-%d}" if hit.sent else "no date"
    return f"{sent} {hit.sender}: {_cut_subject(hit.subject)}\n  {hit.snippet}\n  id: {hit.message_id}"


def format_threaded_hit(hit: Hit) -> str:
    """Format a hit with its thread, if that has other messages."""
    thread = f" (thread {hit.thread}, {hit.thread_size} messages)" if hit.thread_size > 1 else ""
    return f"{format_hit(hit)}{thread}"


def explain_no_match(counts: dict[str, int], *, limited: bool, has_partial: bool) -> str:
    """Say on one line why no message has all keywords, given how many messages have each of them.

    `limited` is True if only some messages were searched, e.g. those of one sender; `has_partial` if hits follow.
    """
    message = "message within these limits" if limited else "message"
    if not has_partial:
        return f"No {message} has any of the keywords."
    listed = ", ".join(f'"{" ".join(keyword.split())}" {count:,}' for keyword, count in counts.items())
    return f"No {message} has all keywords. Messages with each: {listed}. The best with only some of them:"


def header_fields(message: Message, most: int | None = None) -> dict[str, str]:
    """Return sender, recipients and date of a message, as they are shown, with at most `most` recipients a role."""
    fields = {"From": f"{message.sender_name} <{message.sender}>".lstrip()}
    for role in ("to", "cc"):
        people = [each.address for each in message.recipients if each.role == role]
        if most is not None and len(people) > most:
            people[most:] = [f"and {len(people) - most} more"]
        if people:
            fields[role.capitalize()] = ", ".join(people)
    return {**fields, "Date": f"{message.sent:%A, %Y-%m-%d %H:%M}"}


def format_message(message: Message) -> str:
    """Format a message with its header."""
    return f"{_format_header(message)}\n\n{message.body}"


def _format_header(message: Message, most: int | None = None) -> str:
    subject = message.subject if most is None else _cut_subject(message.subject)
    fields = {**header_fields(message, most), "Subject": subject}
    return "\n".join(f"{name}: {value}" for name, value in fields.items())


def _cut_subject(subject: str) -> str:
    return subject if len(subject) <= _MAX_SUBJECT else f"{subject[:_MAX_SUBJECT]} […]"


def format_thread(thread: Sequence[Message], wanted: int) -> tuple[str, range]:
    """Format the messages of a thread around the wanted one, oldest first. Return the text, and which are shown.

    They are whole messages, and shown without what they repeat. The text has about `_MAX_THREAD` characters at most,
    unless the wanted message alone is longer.

    Raises:
        UsageError: if a package for reading threads is missing.
    """

    @cache  # a thread may have many more messages than are shown, and to fold one takes time
    def format_part(number: int) -> str:
        longest = None if number == wanted else _MAX_OTHER
        return _format_part(fold_message(thread, number), number + 1, len(thread), longest)

    shown = _select_around(lambda number: len(format_part(number)), len(thread), wanted)
    head = f"Thread of {len(thread)} messages, oldest first."
    sides = (shown.start, "earlier", shown.start - 1), (len(thread) - shown.stop, "later", shown.stop)
    if left_out := [(f"{count} {when}", thread[nearest].message_id) for count, when, nearest in sides if count]:
        counts, ids = zip(*left_out, strict=True)
        head += f" Left out: {' and '.join(counts)} ones. To see them, read the whole thread of {' or '.join(ids)}."
    return "\n\n".join([head, *map(format_part, shown)]), shown


def _format_part(message: Message, number: int, size: int, longest: int | None) -> str:
    """Format a message of a thread, with at most `longest` characters of its text."""
    body = message.body.strip()
    if longest is not None and len(body) > longest:
        body = f"{body[:longest]} […]\n[{len(body) - longest:,} more characters: read this message alone to see them]"
    return f"[{number} of {size}]\n{_format_header(message, _MAX_PEOPLE)}\nId: {message.message_id}\n\n{body}"


def _select_around(measure: Callable[[int], int], count: int, wanted: int) -> range:
    """Return the range of items, of `count`, around the wanted one that has at most `_MAX_THREAD` characters.

    `measure` returns the characters of an item, and is called only for these and the next one on each side.
    """
    first, last = wanted, wanted
    room = _MAX_THREAD - measure(wanted)
    open_ends = [-1, 1]  # directions, the next one first
    while open_ends:
        direction = open_ends.pop(0)
        place = first - 1 if direction < 0 else last + 1
        if 0 <= place < count and measure(place) <= room:
            room -= measure(place)
            first, last = min(first, place), max(last, place)
            open_ends.append(direction)
    return range(first, last + 1)
