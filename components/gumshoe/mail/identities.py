"""Bring the addresses by which people are identified into one form, in which they are compared exactly.

The address in a token, a key file or a request decides whose mail is read. Two different addresses must therefore never
be taken for the same one. The form of an address is

- its local part, with A to Z in lower case and all else unchanged,
- `@`, and
- its domain, with A to Z in lower case and each internationalized label as its A-label: `xn--bcher-kva` for `bücher`
  (IDNA 2008, RFC 5891). Nothing else is mapped.

Everything that is not a plain address is refused instead of repaired: white space, quotes, comments, angle brackets,
control characters, invisible characters, and characters that Unicode considers a variant of others, such as the Kelvin
sign, full-width letters and capital letters outside ASCII.
"""

import re
import unicodedata
from functools import lru_cache

import idna

from gumshoe.errors import UsageError

_MAX_LENGTH = 320  # characters
_MAX_DOMAIN = 253
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_PATTERN_LABEL = re.compile(r"[a-z0-9_*-]{1,63}")
_LOCAL = re.compile(r"[^\x00-\x20\x7f\"(),:;<>@\[\\\]]+")
_WORD = re.compile(r"[a-z0-9\x80-\U0010ffff]+")
_UPPER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_SHOWN = 100  # characters of an address in a message


class IdentityError(UsageError):
    """Report text that is not a plain address, or not a pattern of addresses."""


def parse_identity(text: str) -> str:
    """Return the form of an address in which addresses are compared.

    >>> parse_identity("Ann@bücher.example")
    'ann@xn--bcher-kva.example'

    Raises:
        IdentityError: if the text is not a plain address.
    """
    return _parse(text[: _MAX_LENGTH + 1], False)


def parse_identity_pattern(text: str) -> str:
    """Return the form of an address or of a pattern, in which `*` stands for any characters except `@`.

    Raises:
        IdentityError: if the text is neither.
    """
    return _parse(text[: _MAX_LENGTH + 1], True)


def lower_ascii(text: str) -> str:
    """Return text with A to Z in lower case, and all else unchanged."""
    return text.translate(_UPPER)


@lru_cache(1 << 12)
def _parse(text: str, is_pattern: bool) -> str:
    local, at, domain = lower_ascii(text).partition("@")
    try:
        if not at or len(text) > _MAX_LENGTH:
            raise ValueError("it has no @" if not at else f"it has more than {_MAX_LENGTH} characters")
        if "*" in text and not is_pattern:
            raise ValueError("it is a pattern")
        _check_local_part(local)
        return f"{local}@{_encode_domain(domain)}"
    except ValueError as error:  # idna's errors are ValueErrors
        example = "ann@example.com or *@example.com" if is_pattern else "ann@example.com"
        raise IdentityError(
            "mail.invalid-identity", f"not a plain address: {text[:_SHOWN]!r} ({error}); write e.g. {example}"
        ) from None


def _check_local_part(local: str) -> None:
    """Raise ValueError unless a local part consists of characters that stand for themselves.

    A leading apostrophe is refused, because readers of mail remove it: it is often a quote.
    """
    if not _LOCAL.fullmatch(local) or local.startswith("'"):
        raise ValueError("its local part is not plain")
    if not local.isascii():
        _check_visible(local)
        for word in _WORD.findall(local):
            if not word.isascii():
                idna.check_label(word)


def _encode_domain(domain: str) -> str:
    """Return a domain with A-labels.

    Raises:
        ValueError: if it is not a domain.
    """
    labels = [_encode_label(label) for label in domain.split(".")]
    encoded = ".".join(labels)
    if len(encoded) > _MAX_DOMAIN:
        raise ValueError(f"its domain has more than {_MAX_DOMAIN} characters")
    return encoded


def _encode_label(label: str) -> str:
    if "*" in label:
        if not _PATTERN_LABEL.fullmatch(label):
            raise ValueError("its domain is not plain")
        return label
    if not label.isascii():
        _check_visible(label)
        return idna.alabel(label).decode()
    if not _LABEL.fullmatch(label):
        raise ValueError("its domain is not plain")
    if label.startswith("xn--") and idna.alabel(idna.ulabel(label)).decode() != label:
        raise ValueError("its domain is not plain")
    return label


def _check_visible(text: str) -> None:
    if any(unicodedata.category(each) == "Cf" for each in text):  # also joiners, which IDNA allows in some places
        raise ValueError("it has invisible characters")
