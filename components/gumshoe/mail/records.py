"""Parse messages that are given as fields: records of JSON Lines files and of datasets."""

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.addresses import parse_addresses
from gumshoe.mail.headers import shorten_name
from gumshoe.mail.message import (
    ROLES,
    ParsedMessage,
    Recipient,
    Role,
    clean,
    clean_line,
    generate_id,
    normalize_address,
    parse_date,
    to_utc,
    validate_date,
)

_FIELDS = {"message_id", "date", "from", *ROLES, "subject", "body", "x_from"}
_NO_SENDER = Recipient("to", "")


def parse_record(record: Any, where: str) -> ParsedMessage | UnreadableItem:
    """Parse a message given as fields. Missing fields are left empty; a wrong type gives an `UnreadableItem`."""
    if not isinstance(record, dict) or not any(name in record for name in ("body", "subject", "from", "message_id")):
        return UnreadableItem(where, "not a message record", "no body, subject, from or message_id")
    field = record.get
    try:
        sent, offset = _parse_record_date(field("date"))
        sender = next(iter(_parse_recipients("to", field("from"))), _NO_SENDER)
        recipients = [
            *_parse_recipients("to", field("to")),
            *_parse_recipients("cc", field("cc")),
            *_parse_recipients("bcc", field("bcc")),
        ]
        subject, body, message_id, x_from = [
            "" if text is None else text for text in map(field, ("subject", "body", "message_id", "x_from"))
        ]
        subject, body, message_id = clean_line(subject), clean(body), clean_line(message_id)
        name = sender.name or shorten_name(x_from)
    except (TypeError, AttributeError):
        return UnreadableItem(where, "wrong type of field", ", ".join(_list_type_errors(record)))
    return ParsedMessage(
        message_id=message_id or generate_id(sender.address, str(sent), subject, body),
        sent=sent,
        utc_offset=offset,
        sender=sender.address,
        sender_name=name,
        recipients=recipients,
        subject=subject,
        body=body,
        has_generated_id=not message_id,
    )


def _list_type_errors(record: dict[str, Any]) -> Iterator[str]:
    """Yield a description of each field that has a wrong type."""
    for name in sorted(_FIELDS & record.keys()):
        value = record[name]
        expected = (str, date, int, float) if name == "date" else str
        for each in value if name in {"from", *ROLES} and isinstance(value, list | tuple) else [value]:
            if each is not None and not isinstance(each, expected):
                yield f"{name} is, or holds, {type(each).__name__}"


def _parse_record_date(value: Any) -> tuple[int | None, int | None]:
    if isinstance(value, str):
        return parse_date(value)
    if isinstance(value, datetime):
        return validate_date(*to_utc(value))
    if isinstance(value, date):
        return validate_date(*to_utc(datetime(value.year, value.month, value.day)))  # noqa: DTZ001 - taken as UTC
    if value is None:
        return None, None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return validate_date(value, None)
    raise TypeError(f"date is {type(value).__name__}, not text or a time")


def _parse_recipients(role: Role, value: Any) -> Iterable[Recipient]:
    """Return the recipients in a list of addresses, or in one string of them."""
    if not value:
        return ()
    if isinstance(value, list | tuple):
        return chain.from_iterable(map(_parse_address_text, repeat(role), value))
    return _parse_address_text(role, value, several=True)


@lru_cache(1 << 16)  # a few people receive most mail
def _parse_address_text(role: Role, text: Any, several: bool = False) -> tuple[Recipient, ...]:
    if text is None:
        return ()
    if not isinstance(text, str):
        raise TypeError(f"an address is {type(text).__name__}, not text")
    if not several and "<" not in text:
        return (Recipient(role, address),) if (address := normalize_address(text)) else ()
    named = [(normalize_address(address), clean_line(name).strip("'\"")) for name, address in parse_addresses(text)]
    return tuple(Recipient(role, address, name) for address, name in named if address)
