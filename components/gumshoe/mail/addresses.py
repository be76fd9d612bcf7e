"""Parse lists of addresses, in headers and in records."""

import inspect
import re
from collections.abc import Iterator
from email.utils import getaddresses
from functools import lru_cache

from gumshoe.mail.headers import decode_header_text, repair_bytes
from gumshoe.mail.message import clean_line, normalize_address

_STRUCTURED = re.compile(r"[\"()<>:;\\\[\]]|[^\s,]\s+[^\s,]")  # more than plain addresses between commas
# Since 3.11.10 it drops addresses that it cannot parse strictly, unless strict is off.
_LENIENT = {"strict": False} if "strict" in inspect.signature(getaddresses).parameters else {}
_MAILTO = re.compile(r"\bmailto:", re.I)
_ADDRESS = re.compile(r"[^\s<>()\",;:]+@[^\s<>()\",;:]+")


def parse_addresses(text: str) -> list[tuple[str, str]]:
    """Return name and address, as written, of each entry of an address list."""
    text = _MAILTO.sub("", text)
    try:
        return getaddresses([text], **_LENIENT)
    except RecursionError:  # hundreds of nested brackets
        return [("", address) for address in _ADDRESS.findall(text)]


def parse_address_headers(values: list[str]) -> Iterator[tuple[str, str]]:
    """Yield address and name of each entry of the headers. A group without members has no entries."""
    for value in values:
        yield from _parse_header(value)


@lru_cache(1 << 14)  # the same few people write to each other
def _parse_header(value: str) -> tuple[tuple[str, str], ...]:
    line = repair_bytes(value).replace("\r", " ").replace("\n", " ")
    pairs = parse_addresses(line) if _STRUCTURED.search(line) else [("", each) for each in line.split(",")]
    named = [(normalize_address(address), clean_line(decode_header_text(name)).strip("'\"")) for name, address in pairs]
    return tuple(pair for pair in named if pair[0])
