"""Describe callers and the inboxes and collections that they may read.

`access_control` authenticates callers as `access_settings` say: with the keys of `key_file`, or the tokens of
`token_access`. `callers` names them for limits and budgets.

Invariants: a principal depends only on its credentials. A question about an inbox that the caller may not read is
refused with the same message whether the inbox exists or not.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol

from gumshoe.documents.collection_names import ALL_COLLECTIONS
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.mail.identities import IdentityError, parse_identity, parse_identity_pattern
from gumshoe.redaction import escape_control_characters

_LONGEST_NAME = 80  # characters
_SHORTENED = re.compile(r".*~[0-9a-f]{12}", re.S)


class UnauthenticatedError(Exception):
    """Report that the caller is unknown. The message says why, but not what would be valid."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ForbiddenError(Exception):
    """Report that the caller may not read an inbox."""


class NoCollectionsError(Exception):
    """Report that the caller may not read any collection of documents."""


class SigningKeysUnavailableError(UnavailableError):
    """Report that the signing keys of tokens are not available."""


class KeysUnavailableError(UnavailableError):
    """Report that the key file does not exist any more."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Invariants: `name` is one line of at most 80 printable characters, so that it can be logged. `patterns` are
    addresses in the form of `gumshoe.mail.identities`, in which `*` matches any characters except `@`.
    """

    name: str
    """Name of the key, or the subject of the token, shortened."""
    patterns: tuple[str, ...]
    kind: Literal["anybody", "key", "token"] = "key"
    collections: tuple[str, ...] = ()
    """Collections of documents that the caller may read, or patterns of `gumshoe.documents.collection_names`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shorten_name(self.name))

    def may_read(self, inbox: str) -> bool:
        """Return True if the caller may read an inbox. Text that is not a plain address names no inbox."""
        try:
            address = parse_identity(inbox)
        except IdentityError:
            return False
        return any(_matches(each, address) for each in self.patterns)

    @property
    def only_inbox(self) -> str | None:
        """The inbox that the caller may read, if it is exactly one."""
        return self.patterns[0] if len(self.patterns) == 1 and "*" not in self.patterns[0] else None

    @property
    def pseudonym(self) -> str:
        """16 hexadecimal digits of SHA-256 that stand for the caller in recorded data."""
        return sha256(f"{self.kind} {self.name}".encode(errors="replace")).hexdigest()[:16]


class Access(Protocol):
    """Authenticate callers."""

    async def authenticate(self, credentials: str | None) -> Principal:
        """Return the caller with these credentials: what follows `Bearer`, or None.

        Raises:
            UnauthenticatedError: if the credentials are missing or invalid.
            KeysUnavailableError: if the key file does not exist any more.
            SigningKeysUnavailableError: if a token cannot be verified now.
        """
        ...


def shorten_name(name: str) -> str:
    """Return a name as one line of at most 80 printable characters.

    A name that is longer, or has other characters, is escaped and cut, and ends with digits of its hash: two different
    names remain different.
    """
    escaped = escape_control_characters(name)
    if escaped == name and name.isprintable() and len(name) <= _LONGEST_NAME and not _SHORTENED.fullmatch(name):
        return name
    plain = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in escaped)
    digits = sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{plain[: _LONGEST_NAME - len(digits) - 1]}~{digits}"


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return addresses and patterns in the form in which they are compared.

    Raises:
        UsageError: if one is neither an address nor a pattern.
    """
    try:
        return tuple(map(parse_identity_pattern, patterns))
    except IdentityError as error:
        raise UsageError("serving.invalid-inbox-pattern", error.message) from None


def _matches(pattern: str, address: str) -> bool:
    return re.fullmatch("[^@]*".join(map(re.escape, pattern.split("*"))), address) is not None


ANONYMOUS = Principal("anybody", ("*@*",), "anybody", ALL_COLLECTIONS)
