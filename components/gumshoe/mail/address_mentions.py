"""Find an address in text."""

import re
from functools import lru_cache

import idna

from gumshoe.mail.message import lower_case


@lru_cache(1 << 8)
def list_spellings(address: str) -> tuple[str, ...]:
    """Return how text may spell an address in normal form, in lower case: with A-labels, and with their letters.

    >>> list_spellings("ann@xn--bcher-kva.example")
    ('ann@xn--bcher-kva.example', 'ann@bücher.example')
    """
    local, at, domain = address.rpartition("@")
    try:
        other = f"{local}{at}{idna.decode(domain)}"
    except ValueError:  # such as idna.IDNAError
        return (address,)
    return (address,) if other == address else (address, other)


def mentions_address(text: str, address: str) -> bool:
    """Return True if a text contains an address in normal form as a whole, in any case and spelling.

    >>> mentions_address("From Ann@Example.com.", "ann@example.com")
    True
    >>> mentions_address("joann@example.com, ann@example.com.au", "ann@example.com")
    False
    """
    lowered = lower_case(text)
    return any(each in lowered for each in list_spellings(address)) and bool(_compile(address).search(lowered))


@lru_cache(1 << 8)
def _compile(address: str) -> re.Pattern[str]:
    return compile_whole_name(*list_spellings(address))


def compile_whole_name(*spellings: str) -> re.Pattern[str]:
    """Return a pattern that matches an address or an id of a message, but not as a part of a longer one."""
    return re.compile(rf"(?<![\w.+%@-])(?:{'|'.join(map(re.escape, spellings))})(?![\w@-]|\.\w)")
