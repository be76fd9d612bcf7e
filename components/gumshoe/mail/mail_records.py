"""Parse messages that are given as fields: records of JSON Lines files and of datasets.

| field | form |
|---|---|
| message_id, subject, body, x_from | text |
| date | text in any usual form, a time, or seconds or milliseconds since 1970 |
| from, to, cc, bcc | text as in a header, an object with name and email or address, or a list of these |
| delivered_to | addresses to which mail servers delivered the message, in the same forms |
| references, in_reply_to | ids of earlier messages of the thread: text as in a header, or a list |
| state | deleted, trash or spam |
| labels | labels or folders, a list or text with commas; those such as Trash and Spam give the state |

Every field may be missing, None or NaN. Names and subjects may have encoded words (RFC 2047).
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.address_lists import Mailbox, parse_addresses
from gumshoe.mail.dates import parse_date, parse_timestamp
from gumshoe.mail.headers import decode_header_text, parse_references, shorten_name
from gumshoe.mail.message import (
    ROLES,
    ParsedMessage,
    Recipient,
    Role,
    clean,
    clean_line,
    generate_id,
    to_utc,
    validate_date,
)
from gumshoe.mail.states import find_label_state

_TEXT_FIELDS = ("subject", "body", "message_id", "x_from")
_PEOPLE_FIELDS = ("from", *ROLES, "delivered_to")
_NO_VALUE = {"", "None", "null", "nan", "NaN", "<NA>"}  # as text, in tables that were exported
_NOBODY = Recipient("to", "")
_MAX_CACHED = 300  # characters of a list of addresses that is kept in the cache
# What Python writes for a list, a tuple or a set of texts: frozenset({'ann@example.com', "Bob <bob@example.com>"})
_QUOTED_ITEM = r"(?:'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")"
_COLLECTION = re.compile(
    rf"(?:(?:frozen)?set\()?[(\[{{]\s*({_QUOTED_ITEM}(?:[\s,]++{_QUOTED_ITEM})*+)?[\s,]*+[)\]}}]\)?|(?:frozen)?set\(\)",
    re.S,
)
_ITEM = re.compile(_QUOTED_ITEM, re.S)


def parse_record(record: Any, where: str) -> ParsedMessage | UnreadableItem:
    """Parse a message given as fields. Missing fields are left empty; a wrong type gives an `UnreadableItem`."""
    if not isinstance(record, dict) or not any(name in record for name in ("body", "subject", "from", "message_id")):
        return UnreadableItem(where, "not a message record", "no body, subject, from or message_id")
    field = record.get
    try:
        sent, offset = _parse_record_date(field("date"))
        sender = _choose_sender(_parse_recipients("to", field("from")))
        recipients = [each for role in ROLES if (value := field(role)) for each in _parse_recipients(role, value)]
        subject, body, message_id, x_from = map(_read_text, map(field, _TEXT_FIELDS))
        subject = clean_line(decode_header_text(subject) if "=?" in subject else subject)
        body, message_id = clean(body), clean_line(message_id)
        name = sender.name or shorten_name(x_from)
        message = ParsedMessage(
            message_id=message_id or generate_id(sender.address, str(sent), subject, body),
            sent=sent,
            utc_offset=offset,
            sender=sender.address,
            sender_name=name,
            recipients=recipients,
            subject=subject,
            body=body,
            has_generated_id=not message_id,
            sender_is_doubtful=sender.is_doubtful,
        )
        _add_optional_fields(message, record)
    except (TypeError, AttributeError):
        return UnreadableItem(where, "wrong type of field", ", ".join(_list_type_errors(record)))
    return message


def _add_optional_fields(message: ParsedMessage, record: dict[str, Any]) -> None:
    if "delivered_to" in record:
        people = _parse_recipients("to", record["delivered_to"])
        trusted = (each.address for each in people if each.address and not each.is_doubtful)
        message.delivered_to = list(dict.fromkeys(trusted))
    if "references" in record or "in_reply_to" in record:
        references, replied = (_list_texts(record.get(name)) for name in ("references", "in_reply_to"))
        message.references = parse_references(references, replied, message.message_id)
    if "state" in record or "labels" in record:
        states = _list_texts(record.get("state"))
        is_deleted = [each.lower() for each in states] == ["deleted"]
        labels = ",".join([*states, *_list_texts(record.get("labels"))])
        message.state = "deleted" if is_deleted else find_label_state(labels)


def _is_missing(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and value in _NO_VALUE)


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    raise TypeError(f"{type(value).__name__} is not text")


def _list_texts(value: Any) -> list[str]:
    """Return the texts in a list of texts, or in a text that may be a list as Python writes it."""
    if _is_missing(value):
        return []
    if isinstance(value, str):
        return _split_collection(value) or [value]
    return [_read_text(each) for each in value if not _is_missing(each)]


def _list_type_errors(record: dict[str, Any]) -> Iterator[str]:
    """Yield a description of each field that has a wrong type."""
    expected: dict[str, tuple[type, ...]] = dict.fromkeys(_TEXT_FIELDS, (str,))
    expected["date"] = (str, date, int, float)
    for name in (*_PEOPLE_FIELDS, "references", "in_reply_to", "state", "labels"):
        expected[name] = (str,)
    for name in sorted(expected.keys() & record.keys()):
        value = record[name]
        is_list = name not in {*_TEXT_FIELDS, "date"} and isinstance(value, list | tuple | set | frozenset)
        for each in value if is_list else [value]:
            is_object = name in _PEOPLE_FIELDS and isinstance(each, dict)
            for part in map(each.get, ("name", "email", "address")) if is_object else [each]:
                if part is not None and (not isinstance(part, expected[name]) or isinstance(part, bool)):
                    yield f"{name} is, or holds, {type(part).__name__}"


def _parse_record_date(value: Any) -> tuple[int | None, int | None]:
    if isinstance(value, str):
        return parse_date(value)
    if isinstance(value, datetime):
        return validate_date(*to_utc(value)) if value == value else (None, None)
    if isinstance(value, date):
        return validate_date(*to_utc(datetime(value.year, value.month, value.day)))  # noqa: DTZ001 - taken as UTC
    if value is None:
        return None, None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return parse_timestamp(value)
        except (ValueError, OverflowError):  # not finite
            return None, None
    raise TypeError(f"date is {type(value).__name__}, not text or a time")


def _choose_sender(senders: Sequence[Recipient]) -> Recipient:
    """Return the first sender with an address, or else the first one."""
    if len(senders) == 1:
        return senders[0]
    return next((each for each in senders if each.address), senders[0] if senders else _NOBODY)


def _parse_recipients(role: Role, value: Any) -> Sequence[Recipient]:
    """Return the recipients in a text, an object, or a list of these."""
    if isinstance(value, list | tuple | set | frozenset):
        recipients: list[Recipient] = []
        for each in value:
            recipients += _parse_item(role, each)
        return recipients
    return _parse_item(role, value)


def _parse_item(role: Role, item: Any) -> Sequence[Recipient]:
    if isinstance(item, str):
        return _parse_cached(role, item) if len(item) <= _MAX_CACHED else _parse_text(role, item)
    if isinstance(item, dict):
        return _parse_object(role, item)
    if _is_missing(item):
        return ()
    raise TypeError(f"an address is {type(item).__name__}, not text")


def _parse_object(role: Role, fields: dict[str, Any]) -> Sequence[Recipient]:
    """Return the recipient in an object such as {"name": "Ann Lee", "email": "ann@example.com"}."""
    inner = fields.get("emailAddress")  # as in Microsoft Graph
    if isinstance(inner, dict):
        fields = inner
    address = _read_text(fields.get("email") or fields.get("address"))
    name = clean_line(decode_header_text(_read_text(fields.get("name"))))
    entries = [each for each in parse_addresses(address) if each.address] or [Mailbox("", "")]
    is_doubtful = entries[0].is_doubtful or len(entries) > 1
    if not name and not entries[0].address:
        return ()
    return (Recipient(role, entries[0].address, name or entries[0].name, is_doubtful),)


def _parse_text(role: Role, text: str) -> tuple[Recipient, ...]:
    if text.strip() in _NO_VALUE:
        return ()
    items = _split_collection(text)
    entries = parse_addresses(text) if items is None else [entry for item in items for entry in parse_addresses(item)]
    return tuple(Recipient(role, entry.address, entry.name, entry.is_doubtful) for entry in entries)


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_parse_cached = lru_cache(1 << 16)(_parse_text)  # a few people receive most mail


def _split_collection(text: str) -> list[str] | None:
    """Return the items of a list, a tuple or a set as Python writes it, or None if the text is not one."""
    if not text.lstrip().startswith(("[", "(", "{", "set(", "frozenset(")) or not _COLLECTION.fullmatch(text.strip()):
        return None
    return [
        re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), item[1:-1]) for item in _ITEM.findall(text)
    ]
