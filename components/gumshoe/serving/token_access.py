"""Tokens (JWT) of an identity provider: verify them with its published keys, and read who may read what."""

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt

from gumshoe.documents.collection_names import is_collection_name
from gumshoe.mail.identities import IdentityError, parse_identity
from gumshoe.serving.access import Principal, SigningKeysUnavailableError, UnauthenticatedError, check_patterns
from gumshoe.serving.access_settings import AccessSettings

_FRESH, _STALE = 600.0, 86400.0  # seconds until signing keys are fetched again, and until they expire
_PAUSE = 5.0  # seconds between two fetches, however many tokens name unknown keys
_LEEWAY = 30  # seconds that clocks may differ
_TIMEOUT = 5.0  # seconds for fetching the signing keys
_LARGEST = 1 << 20  # maximum size of the signing keys in bytes
_OF_RSA = frozenset(f"{padding}{bits}" for padding in ("RS", "PS") for bits in (256, 384, 512))
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A published key."""

    name: str | None
    key: Any
    """Public key, as the `cryptography` package represents it."""
    algorithms: frozenset[str]
    """Algorithms whose signatures it may verify."""

    @classmethod
    def parse(cls, published: dict[str, Any]) -> "SigningKey":
        """Return the key of a JWK. If it names no algorithm, an RSA key verifies any of RSA (RFC 7517, section 4.4).

        The curve of other keys decides on their algorithm.

        Raises:
            jwt.PyJWTError: if the key cannot be used.
        """
        found = jwt.PyJWK.from_dict(published)
        is_open = found.key_type == "RSA" and not published.get("alg")
        return cls(found.key_id, found.key, _OF_RSA if is_open else frozenset({str(found.algorithm_name)}))


@dataclass(slots=True)
class SigningKeys:
    """Fetch and cache the signing keys of a JWKS URL."""

    url: str
    _keys: dict[str | None, SigningKey] = field(default_factory=dict)
    _fetched: float = field(default=-_STALE)
    _tried: float = field(default=-_STALE)
    _fetching: "asyncio.Task[None] | None" = None

    async def get(self, name: str | None) -> SigningKey:
        """Return a signing key. None is the name of a key without one.

        A key that is known is used while the keys are fetched again. For an unknown one, the caller waits for them.

        Raises:
            UnauthenticatedError: if no key of that name is published.
            SigningKeysUnavailableError: if the URL does not answer and the cached keys have expired.
        """
        age = time.monotonic() - self._fetched
        is_usable = name in self._keys and age < _STALE
        if not is_usable or age >= _FRESH:
            fetching = self._start_fetch()
            if fetching is not None and not is_usable:
                await asyncio.shield(fetching)
        if time.monotonic() - self._fetched >= _STALE:
            raise SigningKeysUnavailableError(
                "serving.signing-keys-unavailable", "the signing keys of tokens are not available; try again later"
            )
        if name not in self._keys:
            raise UnauthenticatedError(
                "serving.unknown-signing-key", "The token is signed with a key that is not published."
            )
        return self._keys[name]

    def _start_fetch(self) -> "asyncio.Task[None] | None":
        """Return the fetch that is running, or start one. Return None within the pause after the last one began."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        now = time.monotonic()
        if now - self._tried < _PAUSE:
            return None
        self._tried, self._fetching = now, asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

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
            found = {each.name: each for each in _read_keys(json.loads(content))}
            if not found:
                raise ValueError("it has no key for signatures")
        except (httpx.HTTPError, OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            _log.warning("cannot fetch the signing keys at %s: %s: %s", self.url, type(error).__name__, error)
            return
        self._keys, self._fetched = found, time.monotonic()


def _read_keys(document: Any) -> Iterator[SigningKey]:
    """Yield the keys of a JWKS that may verify signatures. Others are left out (RFC 7517, sections 4.2, 4.3 and 5)."""
    for each in document["keys"]:
        use, operations = each.get("use"), each.get("key_ops")
        is_for_signatures = use in (None, "sig") and (operations is None or "verify" in operations)
        if not is_for_signatures or each.get("kty") == "oct" or not isinstance(each.get("kid"), str | None):
            continue
        try:
            yield SigningKey.parse(each)
        except jwt.PyJWTError as error:
            _log.warning("a published signing key cannot be used: %s", type(error).__name__)


class TokenAccess:
    """Authenticate callers with the tokens of an identity provider."""

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._published = SigningKeys(str(settings.jwks_url))
        self._inboxes = check_patterns(settings.inboxes)

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller with a token.

        Raises:
            UnauthenticatedError: if the token is not valid.
            SigningKeysUnavailableError: if it cannot be verified now.
        """
        try:
            claims = await self._verify(credentials)
        except (jwt.PyJWTError, RecursionError, OverflowError) as error:
            raise UnauthenticatedError(
                "serving.invalid-token", f"The token is not valid: {str(error).lower()}."
            ) from None
        own = _read_claimed_inboxes(claims, self._settings)
        claimed = _read_claimed_collections(claims, self._settings)
        return Principal(claims["sub"], (*own, *self._inboxes), "token", (*claimed, *self._settings.collections))

    async def _verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a valid token."""
        settings = self._settings
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in settings.algorithms:  # do not trust the algorithm in the header
            raise UnauthenticatedError(
                "serving.unsupported-algorithm", "The token is signed with an algorithm that is not allowed."
            )
        published = await self._published.get(header.get("kid"))
        if algorithm not in published.algorithms:
            raise jwt.InvalidAlgorithmError("its key is for another algorithm")
        claims: dict[str, Any] = jwt.decode(
            token,
            key=published.key,
            algorithms=[algorithm],
            issuer=settings.issuer,
            audience=settings.audience,
            leeway=_LEEWAY,
            options={"require": _REQUIRED},
        )
        if not claims["sub"]:
            raise jwt.InvalidTokenError("the subject is empty")
        if int(claims["exp"]) - int(claims["iat"]) > settings.max_token_age:
            raise UnauthenticatedError(
                "serving.token-lives-too-long",
                f"The token is valid for more than {settings.max_token_age:,} seconds after it was issued.",
            )
        return claims


def _read_claimed_inboxes(claims: dict[str, Any], settings: AccessSettings) -> tuple[str, ...]:
    """Return the inboxes in a token's claim. What is not a plain address, such as a pattern, is ignored."""
    name = settings.inbox_claim
    if name == "email" and settings.verified_email and claims.get("email_verified") is not True:
        return ()
    return tuple(address for each in _list_claimed(claims, name) for address in _parse_claim(each))


def _read_claimed_collections(claims: dict[str, Any], settings: AccessSettings) -> tuple[str, ...]:
    """Return the collections in a token's claim. What is not a name, such as a pattern, is ignored."""
    return tuple(each for each in _list_claimed(claims, settings.collection_claim) if is_collection_name(each))


def _list_claimed(claims: dict[str, Any], name: str | None) -> list[str]:
    """Return the strings in a claim, which is one or a list of them."""
    found = claims.get(name) if name else None
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return [each for each in listed if isinstance(each, str)]


def _parse_claim(text: str) -> list[str]:
    try:
        return [parse_identity(text)]
    except IdentityError:
        return []
