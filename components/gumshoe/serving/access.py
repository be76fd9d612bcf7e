"""Authenticate callers, and check which inboxes they may read.

Credentials are keys from a file, or tokens (JWT) of an identity provider. All authenticated callers may read documents.

Invariants: a principal depends only on its credentials. A question about an inbox that the caller may not read is
refused with the same message whether the inbox exists or not.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import jwt
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.mail.message import normalize_address
from gumshoe.model_validation import describe_validation_error
from gumshoe.serving.settings import AccessSettings

_KEY = "gum_"  # prefix of keys, so that scanners can detect leaked ones
_FRESH, _STALE = 600.0, 86400.0  # seconds until signing keys are fetched again, and until they expire
_PAUSE = 30.0  # seconds between two fetches for an unknown signing key
_LEEWAY = 30  # seconds that clocks may differ
_TIMEOUT = 5.0  # seconds for fetching the signing keys
_LARGEST = 1 << 20  # maximum size of the signing keys in bytes

_log = logging.getLogger(__name__)


class UnauthenticatedError(Exception):
    """Report that the caller is unknown. The message says why, but not what would be valid."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ForbiddenError(Exception):
    """Report that the caller may not read an inbox."""


class SigningKeysUnavailableError(UnavailableError):
    """Report that the signing keys of tokens are not available."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Invariant: `patterns` are lower-case addresses in which `*` matches any characters except `@`.
    """

    name: str
    patterns: tuple[str, ...]

    def may_read(self, inbox: str) -> bool:
        """Return True if the caller may read an inbox, in any spelling of its address."""
        address = normalize_address(inbox)
        return bool(address) and any(_matches(each, address) for each in self.patterns)

    @property
    def only_inbox(self) -> str | None:
        """The inbox that the caller may read, if it is exactly one."""
        return self.patterns[0] if len(self.patterns) == 1 and "*" not in self.patterns[0] else None


ANONYMOUS = Principal("anybody", ("*@*",))


class Access(Protocol):
    """Authenticate callers."""

    async def authenticate(self, credentials: str | None) -> Principal:
        """Return the caller with these credentials: what follows `Bearer`, or None.

        Raises:
            UnauthenticatedError: if the credentials are missing or invalid.
            SigningKeysUnavailableError: if a token cannot be verified now.
        """
        ...


def open_access(settings: AccessSettings) -> Access:
    """Return the access control that the settings describe.

    Raises:
        UsageError: if the key file cannot be read.
    """
    if settings.open:
        return _OpenAccess()
    keys = _KeyAccess(read_keys(settings.keys)) if settings.keys else None
    tokens = _TokenAccess(settings, _SigningKeys(settings.jwks_url)) if settings.jwks_url else None
    return _KeyOrTokenAccess(keys, tokens)


class _OpenAccess:
    async def authenticate(self, credentials: str | None) -> Principal:  # noqa: ARG002
        return ANONYMOUS


@dataclass(frozen=True, slots=True)
class _KeyOrTokenAccess:
    """Authenticate by key, and by token if the credentials are not a key."""

    keys: "_KeyAccess | None"
    tokens: "_TokenAccess | None"

    async def authenticate(self, credentials: str | None) -> Principal:
        if not credentials:
            raise UnauthenticatedError(
                "serving.credentials-missing", "Send a key or a token: Authorization: Bearer ..."
            )
        if self.keys is not None and (self.tokens is None or credentials.startswith(_KEY)):
            return self.keys.authenticate(credentials)
        if self.tokens is None:
            raise AssertionError("settings have keys or tokens")
        return await self.tokens.authenticate(credentials)


# Keys.


class Key(BaseModel):
    """An entry of a key file. It contains the key's hash, not the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    inboxes: tuple[str, ...] = ()
    """Empty for a key that only reads documents."""


def read_keys(path: Path) -> list[Key]:
    """Read a key file.

    Raises:
        UsageError: if the file cannot be read or is invalid; the message says where.
    """
    try:
        listed = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        if not isinstance(listed, list):
            raise UsageError(
                "serving.key-file-not-a-list", f"{path} is not a list of keys; write it with `gumshoe serve-key`"
            )
        keys = [Key.model_validate(each) for each in listed]
        for each in keys:
            _check_patterns(each.inboxes)
    except OSError as error:
        raise UsageError(
            "serving.key-file-unreadable",
            f"cannot read the key file {path}: {error.strerror}; write one with `gumshoe serve-key`",
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError("serving.key-file-invalid-yaml", f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        raise UsageError(
            "serving.key-file-invalid-key", f"{path} has an invalid key: {describe_validation_error(error)}"
        ) from None
    return keys


def add_key(path: Path, name: str, inboxes: Iterable[str]) -> str:
    """Create a key, append its name, hash and inboxes to a key file, and return the key, which is not stored.

    Raises:
        UsageError: if the file is not a key file or already has that name, or an inbox is not an address or pattern.
    """
    patterns = _check_patterns(inboxes)
    known = read_keys(path) if path.exists() else []
    if any(each.name == name for each in known):
        raise UsageError(
            "serving.duplicate-key-name",
            f"{path} already has a key named {name!r}; use another name, or remove that key",
        )
    key = _KEY + secrets.token_urlsafe(32)
    line = {"name": name, "sha256": _hash_key(key), "inboxes": list(patterns)}
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        yaml.safe_dump([line], file, sort_keys=False, allow_unicode=True)
    return key


class _KeyAccess:
    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys

    def authenticate(self, credentials: str) -> Principal:
        hashed = _hash_key(credentials)
        found = [each for each in self._keys if hmac.compare_digest(each.sha256, hashed)]  # all of them, always
        if not found:
            raise UnauthenticatedError("serving.unknown-key", "This key is not known.")
        return Principal(found[0].name, _check_patterns(found[0].inboxes))


def _hash_key(key: str) -> str:
    """Return the SHA-256 hash of a key. A slow hash is not needed, because a key has 256 random bits."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


# Tokens.


@dataclass(slots=True)
class _SigningKeys:
    """Fetch and cache the signing keys of a JWKS URL."""

    url: str
    _keys: dict[str, jwt.PyJWK] = field(default_factory=dict)
    _fetched: float = field(default=-_STALE)
    _tried: float = field(default=-_STALE)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, name: str) -> jwt.PyJWK:
        """Return a signing key.

        Raises:
            UnauthenticatedError: if no key of that name is published.
            SigningKeysUnavailableError: if the URL does not answer and the cached keys have expired.
        """
        if not self._is_fresh(name):
            async with self._lock:  # waiting requests use what the first one has fetched
                if not self._is_fresh(name) and time.monotonic() - self._tried >= _PAUSE:
                    self._tried = time.monotonic()
                    await self._fetch()
        if time.monotonic() - self._fetched >= _STALE:
            raise SigningKeysUnavailableError(
                "serving.signing-keys-unavailable", "the signing keys of tokens are not available; try again later"
            )
        if name not in self._keys:
            raise UnauthenticatedError(
                "serving.unknown-signing-key", "The token is signed with a key that is not published."
            )
        return self._keys[name]

    def _is_fresh(self, name: str) -> bool:
        return name in self._keys and time.monotonic() - self._fetched < _FRESH

    async def _fetch(self) -> None:
        """Fetch the published keys. If that fails, the cached ones are kept."""
        content = b""
        try:
            async with (
                asyncio.timeout(_TIMEOUT),
                httpx.AsyncClient() as client,
                client.stream("GET", self.url) as answer,
            ):
                answer.raise_for_status()
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _LARGEST:
                        raise ValueError("too large")
            listed = jwt.PyJWKSet.from_dict(json.loads(content)).keys
            found = {str(each.key_id): each for each in listed if each.key_type != "oct"}
        except (httpx.HTTPError, OSError, ValueError, jwt.PyJWTError, AttributeError, TypeError) as error:
            _log.warning("cannot fetch the signing keys at %s: %s: %s", self.url, type(error).__name__, error)
            return
        self._keys, self._fetched = found, time.monotonic()


@dataclass(frozen=True, slots=True)
class _TokenAccess:
    settings: AccessSettings
    published: _SigningKeys

    async def authenticate(self, credentials: str) -> Principal:
        settings = self.settings
        try:
            header = jwt.get_unverified_header(credentials)
            if header.get("alg") not in settings.algorithms:  # do not trust the algorithm in the header
                raise UnauthenticatedError(
                    "serving.unsupported-algorithm", "The token is signed with an algorithm that is not allowed."
                )
            key = await self.published.get(str(header.get("kid")))
            claims = jwt.decode(
                credentials,
                key=key,
                algorithms=list(settings.algorithms),
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise UnauthenticatedError(
                "serving.invalid-token", f"The token is not valid: {str(error).lower()}."
            ) from None
        own = _read_claimed_inboxes(claims, settings)
        return Principal(str(claims["sub"]), (*own, *_check_patterns(settings.inboxes)))


def _read_claimed_inboxes(claims: dict[str, Any], settings: AccessSettings) -> tuple[str, ...]:
    """Return the inboxes in a token's claim. They must be complete addresses: patterns are ignored."""
    name = settings.inbox_claim
    if name == "email" and settings.verified_email and claims.get("email_verified") is not True:
        return ()
    found = claims.get(name) if name else None
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    addresses = (normalize_address(each) for each in listed if isinstance(each, str) and "*" not in each)
    return tuple(each for each in addresses if each)


# Patterns.


def _check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Normalize and check addresses and patterns.

    Raises:
        UsageError: if one is neither an address nor a pattern.
    """
    found = tuple(each.strip().lower() for each in patterns)
    for each in found:
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", each):
            raise UsageError(
                "serving.invalid-inbox-pattern",
                f"not an address or pattern: {each!r}; write e.g. ann@example.com or *@example.com",
            )
    return found


def _matches(pattern: str, address: str) -> bool:
    return re.fullmatch("[^@]*".join(map(re.escape, pattern.split("*"))), address) is not None
