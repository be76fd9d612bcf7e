"""Server-sent events."""

from collections.abc import Iterable

KEEP_ALIVE = b": waiting\n\n"
"""Comment, which clients ignore."""
END_OF_CHAT = b"data: [DONE]\n\n"
"""Last event of a stream of the Chat Completions API."""


def write_event(data: bytes, name: str = "") -> bytes:
    """Return an event. Its data is JSON in one line."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def write_events(events: Iterable[bytes]) -> bytes:
    """Return events without names."""
    return b"".join(map(write_event, events))
