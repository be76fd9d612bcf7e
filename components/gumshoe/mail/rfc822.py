"""Parse raw messages (RFC 5322 and MIME) into `ParsedMessage`. Broken messages yield the text they contain."""

from __future__ import annotations

import re
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.address_lists import Mailbox, parse_address_headers, parse_addresses
from gumshoe.mail.authentication_results import ServerStatement, find_statements
from gumshoe.mail.bodies import extract_body
from gumshoe.mail.headers import (
    DELIVERED_TO,
    Fields,
    begins_with_headers,
    collect_headers,
    decode_header_text,
    find_date,
    has_mail_headers,
    is_utf8,
    parse_message_id,
    parse_references,
    repair_bytes,
    repair_fields,
    repair_part_headers,
    shorten_name,
    split_message,
)
from gumshoe.mail.message import ROLES, AttachedFile, ParsedMessage, Recipient, clean, clean_line, generate_id


class _RawHeaderPolicy(Compat32):
    """Return headers undecoded, because this module decodes them. Ten times as fast as newer policies."""

    def header_fetch_parse(self, name: str, value: str) -> str:  # noqa: ARG002 - the base class defines the parameter
        return value


_POLICY = _RawHeaderPolicy()
_PARSER = BytesParser(policy=_POLICY)
# Errors that Python's email package is known to raise on broken input.
_PARSER_ERRORS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
# Headers that mail servers write when they deliver a message. Lower ones of the same name may be the sender's.
_DELIVERY_HEADERS = (*DELIVERED_TO, "resent-to", "resent-cc", "resent-bcc")
# Headers of the server that puts a message into a mailbox: the copy that a sender keeps has none of them.
_LAST_DELIVERY_HEADERS = ("return-path", *DELIVERED_TO)
_COMMENT = re.compile(r"\([^()]*+\)")
_RECEIVED_FOR = re.compile(r"\sfor\s+(<[^<>\s]++>|[^\s<>();,]++)(?=\s|;|$)", re.I)
_RECEIVED_BY = re.compile(r"(?:^|\s)by(?=\s)", re.I)
_MAX_COMMENT_DEPTH = 5
_MAX_RECEIVED = 2000  # characters


def parse_message(raw: bytes, where: str, fallback_date: str = "") -> ParsedMessage | UnreadableItem:
    """Parse one message. Never fails: anything that is not a message gives an `UnreadableItem`.

    `fallback_date` is used if the message itself has no date.
    """
    if not raw.strip():
        return UnreadableItem(where, "empty")
    try:
        fields, content = split_message(raw)
        if not has_mail_headers(fields) and not begins_with_headers(raw, fields):
            return UnreadableItem(where, "no mail headers", f"{len(raw)} bytes")
        headers = collect_headers(repair_fields(fields, content))
        guessed = {name for name, value in fields if not is_utf8(value)}
        body, files = _read_content(fields, content)
        text = clean(body)
    except _PARSER_ERRORS as error:
        return UnreadableItem(where, "broken beyond reading", f"{type(error).__name__}: {error}"[:200])
    sender = _doubt_guessed(_find_sender(headers), not guessed.isdisjoint(("from", "sender")))
    sent, offset = find_date(headers, fallback_date)
    subject = clean_line(decode_header_text(_find_first(headers, "subject")))
    message_id = parse_message_id(_find_first(headers, "message-id"))
    return ParsedMessage(
        message_id=message_id or generate_id(sender.address, str(sent), subject, text),
        sent=sent,
        utc_offset=offset,
        sender=sender.address,
        sender_name=sender.name or shorten_name(decode_header_text(headers.get("x-from", [""])[0])),
        recipients=[
            Recipient(role, entry.address, entry.name, entry.is_doubtful)
            for role in ROLES
            if role in headers
            for entry in (_doubt_guessed(each, role in guessed) for each in parse_address_headers(headers[role]))
        ],
        subject=subject,
        body=text,
        files=files,
        has_generated_id=not message_id,
        sender_is_doubtful=sender.is_doubtful,
        delivered_to=_find_delivery_addresses({name: headers[name] for name in headers.keys() - guessed}),
        references=parse_references(headers.get("references", []), headers.get("in-reply-to", []), message_id),
        was_delivered=any(name in headers for name in _LAST_DELIVERY_HEADERS),
        statements=_find_statements(headers, sender),
    )


def _read_content(fields: Fields, content: bytes) -> tuple[str, list[AttachedFile]]:
    """Return the text and the files of a message. Content that cannot be parsed is text as it is."""
    try:
        return extract_body(_parse_content(fields, content))
    except _PARSER_ERRORS:  # e.g. 500 parts in each other
        return extract_body(_parse_content([], content))


def _parse_content(fields: Fields, content: bytes) -> Message[str, str]:
    """Return a message with only the headers for its content. Several parts need the email package's slow parser."""
    described = [(name, value) for name, value in fields if name.startswith("content-")]
    kind = next((value for name, value in described if name == "content-type"), "")
    if kind.lstrip().lower().startswith(("multipart/", "message/")):
        lines = "".join(f"{name}: {value}\n" for name, value in described)
        return _PARSER.parsebytes(lines.encode("ascii", "surrogateescape") + b"\n" + repair_part_headers(content))
    message: Message[str, str] = Message(_POLICY)
    message.set_payload(content.decode("ascii", "surrogateescape"))
    for name, value in described:
        message.set_raw(name, value)
    return message


def _find_first(headers: dict[str, list[str]], name: str) -> str:
    """Return the first value of a header that is not blank, or ""."""
    return next(filter(str.strip, headers.get(name, [])), "")


def _doubt_guessed(entry: Mailbox, is_guessed: bool) -> Mailbox:
    """Return an entry, which is doubtful if its address has letters of a charset that had to be guessed."""
    has_letters = not entry.address.isascii() or "xn--" in entry.address
    return entry._replace(is_doubtful=True) if is_guessed and has_letters else entry


def _find_sender(headers: dict[str, list[str]]) -> Mailbox:
    """Return the author: the first address in From, or else in Sender, or else the first name without an address."""
    authors = [each for role in ("from", "sender") if role in headers for each in parse_address_headers(headers[role])]
    return next((each for each in authors if each.address), authors[0] if authors else Mailbox("", ""))


def _find_statements(headers: dict[str, list[str]], sender: Mailbox) -> list[ServerStatement]:
    """Return what servers say about the sender. They confirm nobody if there are several authors."""
    statements = find_statements(headers, sender.address) if "authentication-results" in headers else []
    authors = [each for each in parse_address_headers(headers.get("from", [])) if each.address]
    if not statements or (len(authors) == len(headers.get("from", ())) == 1 and not sender.is_doubtful):
        return statements
    return [each.without_confirmation() for each in statements]


def _find_delivery_addresses(headers: dict[str, list[str]]) -> list[str]:
    """Return the addresses to which mail servers delivered the message, by the topmost header of each name."""
    entries = [
        entry
        for name in _DELIVERY_HEADERS
        if name in headers
        for entry in parse_addresses(repair_bytes(headers[name][0]))
    ]
    if received := _find_received_for(headers.get("received", [""])[0]):
        entries += parse_addresses(repair_bytes(received))
    return list(dict.fromkeys(entry.address for entry in entries if entry.address and not entry.is_doubtful))


def _find_received_for(received: str) -> str:
    """Return the address in `Received: ... for <address>; date`. Comments in it may be the sender's."""
    text = received if len(received) <= _MAX_RECEIVED else ""
    for _ in range(_MAX_COMMENT_DEPTH):
        if "(" not in text:
            break
        text = _COMMENT.sub(" ", text)
    # Above `by`, the sender's computer names itself, with any words.
    start = max((by.end() for by in _RECEIVED_BY.finditer(text)), default=len(text))
    found = list(_RECEIVED_FOR.finditer(text)) if "(" not in text else []
    return found[0][1] if len(found) == 1 and found[0].start() >= start else ""
