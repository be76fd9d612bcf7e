"""Who asks, and whose mail they may read: keys from a file, or tokens (JWT) that somebody else signs.

Documents may be read by all who may ask.

What always holds: a principal is told apart from its credentials alone, and an inbox that it may not read is refused
before a question is taken, in the same words whether there is such an inbox or not.
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

from gumshoe.errors import UnavailableError, UsageError, faults_of
from gumshoe.mail.message import normal_address
from gumshoe.serving.settings import AccessSettings

_KEY = "gum_"  # what keys begin with, so that they are known where they leak
_FRESH, _STALE = 600.0, 86400.0  # seconds for which published keys are used, and where their address is silent
_PAUSE = 30.0  # seconds between two looks for a key that is not published
_LEEWAY = 30  # seconds that clocks may differ
_TIMEOUT = 5.0  # seconds for all that they take
_LARGEST = 1 << 20  # bytes of them

_log = logging.getLogger(__name__)


class UnauthenticatedError(Exception):
    """Report that the caller is not known. The message says why, and nothing of what would be right."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ForbiddenError(Exception):
    """Who asks may not read that inbox."""


class ProviderSilentError(UnavailableError):
    """Report that the keys that tokens are signed with are not available."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Invariant: `patterns` are lower-case addresses in which `*` stands for any run of characters but `@`.
    """

    name: str
    patterns: tuple[str, ...]

    def may_read(self, inbox: str) -> bool:
        """Whether it may read an inbox, however that is written."""
        address = normal_address(inbox)
        return bool(address) and any(_matches(each, address) for each in self.patterns)

    @property
    def only_inbox(self) -> str | None:
        """The one inbox that it may read, where that is one."""
        return self.patterns[0] if len(self.patterns) == 1 and "*" not in self.patterns[0] else None


ANYBODY = Principal("anybody", ("*@*",))


class Access(Protocol):
    """Tells who asks."""

    async def principal(self, credentials: str | None) -> Principal:
        """Who has these: what stands after `Bearer`, or None.

        Raises:
            UnauthenticatedError: nobody.
            ProviderSilentError: it cannot be told now.
        """
        ...


def open_access(settings: AccessSettings) -> Access:
    """
    Raises:
        UsageError: the file of keys cannot be read.
    """
    if settings.open:
        return _Open()
    keys = _Keys(read_keys(settings.keys)) if settings.keys else None
    tokens = _Tokens(settings, _PublishedKeys(settings.jwks_url)) if settings.jwks_url else None
    return _Either(keys, tokens)


class _Open:
    async def principal(self, credentials: str | None) -> Principal:  # noqa: ARG002
        return ANYBODY


@dataclass(frozen=True, slots=True)
class _Either:
    """Keys, and tokens for all that is none."""

    keys: "_Keys | None"
    tokens: "_Tokens | None"

    async def principal(self, credentials: str | None) -> Principal:
        if not credentials:
            raise UnauthenticatedError(
                "serving.credentials-missing", "Send a key or a token: Authorization: Bearer ..."
            )
        if self.keys is not None and (self.tokens is None or credentials.startswith(_KEY)):
            return self.keys.principal(credentials)
        if self.tokens is None:
            raise AssertionError("settings have keys or tokens")
        return await self.tokens.principal(credentials)


# Keys.


class Key(BaseModel):
    """A line of a file of keys: the key itself is not in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    inboxes: tuple[str, ...] = ()
    """None for one that reads documents alone."""


def read_keys(path: Path) -> list[Key]:
    """
    Raises:
        UsageError: the file cannot be read as keys; the message says where.
    """
    try:
        listed = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        if not isinstance(listed, list):
            raise UsageError(
                "serving.key-file-not-a-list", f"{path} is not a list of keys; write it with `gumshoe serve-key`"
            )
        keys = [Key.model_validate(each) for each in listed]
        for each in keys:
            _checked_patterns(each.inboxes)
    except OSError as error:
        raise UsageError(
            "serving.key-file-unreadable",
            f"cannot read the key file {path}: {error.strerror}; write one with `gumshoe serve-key`",
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError("serving.key-file-invalid-yaml", f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        raise UsageError("serving.key-file-invalid-key", f"{path} has an invalid key: {faults_of(error)}") from None
    return keys


def add_key(path: Path, name: str, inboxes: Iterable[str]) -> str:
    """Make a key, and write its name, its hash and what it may read at the end of a file: the key, which is shown this
    once.

    Raises:
        UsageError: the file is none of keys, or has that name; an inbox is no address and no pattern.
    """
    patterns = _checked_patterns(inboxes)
    known = read_keys(path) if path.exists() else []
    if any(each.name == name for each in known):
        raise UsageError(
            "serving.duplicate-key-name",
            f"{path} already has a key named {name!r}; use another name, or remove that key",
        )
    key = _KEY + secrets.token_urlsafe(32)
    line = {"name": name, "sha256": _hashed(key), "inboxes": list(patterns)}
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        yaml.safe_dump([line], file, sort_keys=False, allow_unicode=True)
    return key


class _Keys:
    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys

    def principal(self, credentials: str) -> Principal:
        hashed = _hashed(credentials)
        found = [each for each in self._keys if hmac.compare_digest(each.sha256, hashed)]  # all of them, always
        if not found:
            raise UnauthenticatedError("serving.unknown-key", "This key is not known.")
        return Principal(found[0].name, _checked_patterns(found[0].inboxes))


def _hashed(key: str) -> str:
    """A key has 256 random bits: to hash it slowly would protect nothing."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


# Tokens.


@dataclass(slots=True)
class _PublishedKeys:
    """What a JWKS address publishes, remembered."""

    url: str
    _keys: dict[str, jwt.PyJWK] = field(default_factory=dict)
    _fetched: float = field(default=-_STALE)
    _tried: float = field(default=-_STALE)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def key(self, name: str) -> jwt.PyJWK:
        """
        Raises:
            UnauthenticatedError: none of that name is published.
            ProviderSilentError: the address does not answer, and nothing is known from before.
        """
        if not self._is_fresh(name):
            async with self._lock:  # who waits for it finds what another has fetched
                if not self._is_fresh(name) and time.monotonic() - self._tried >= _PAUSE:
                    self._tried = time.monotonic()
                    await self._fetch()
        if time.monotonic() - self._fetched >= _STALE:
            raise ProviderSilentError(
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
        """Have the keys as they are published now; where that cannot be, those from before stay."""
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
class _Tokens:
    settings: AccessSettings
    published: _PublishedKeys

    async def principal(self, credentials: str) -> Principal:
        settings = self.settings
        try:
            header = jwt.get_unverified_header(credentials)
            if header.get("alg") not in settings.algorithms:  # never the header's own choice
                raise UnauthenticatedError(
                    "serving.unsupported-algorithm", "The token is signed with an algorithm that is not allowed."
                )
            key = await self.published.key(str(header.get("kid")))
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
        own = _claimed(claims, settings)
        return Principal(str(claims["sub"]), (*own, *_checked_patterns(settings.inboxes)))


def _claimed(claims: dict[str, Any], settings: AccessSettings) -> tuple[str, ...]:
    """The inboxes that a claim names, each in full: a pattern there is none."""
    name = settings.inbox_claim
    if name == "email" and settings.verified_email and claims.get("email_verified") is not True:
        return ()
    found = claims.get(name) if name else None
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    addresses = (normal_address(each) for each in listed if isinstance(each, str) and "*" not in each)
    return tuple(each for each in addresses if each)


# Patterns.


def _checked_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """
    Raises:
        UsageError: one is neither an address nor a pattern of one.
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
