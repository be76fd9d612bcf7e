"""Authenticate callers with the access control that the settings describe."""

from dataclasses import dataclass

from gumshoe.serving.access import ANONYMOUS, Access, Principal, UnauthenticatedError
from gumshoe.serving.access_settings import AccessSettings
from gumshoe.serving.key_file import KEY_PREFIX, KeyFile
from gumshoe.serving.telemetry import Metrics
from gumshoe.serving.token_access import TokenAccess


def open_access(settings: AccessSettings, metrics: Metrics | None = None) -> Access:
    """Return the access control that the settings describe. A metric says if the key file is in use.

    Raises:
        UsageError: if the key file cannot be read or trusted.
    """
    if settings.open:
        return _OpenAccess()
    keys = KeyFile(settings.keys) if settings.keys else None
    if keys is not None and metrics is not None:
        metrics.key_file_current.set_function(lambda: float(keys.is_current()))
    return _KeyOrTokenAccess(keys, TokenAccess(settings) if settings.jwks_url else None)


class _OpenAccess:
    async def authenticate(self, credentials: str | None) -> Principal:  # noqa: ARG002
        return ANONYMOUS


@dataclass(frozen=True, slots=True)
class _KeyOrTokenAccess:
    """Authenticate by key, and by token if the credentials are not a key."""

    keys: KeyFile | None
    tokens: TokenAccess | None

    async def authenticate(self, credentials: str | None) -> Principal:
        if not credentials:
            raise UnauthenticatedError(
                "serving.credentials-missing", "Send a key or a token: Authorization: Bearer ..."
            )
        if self.keys is not None and (self.tokens is None or credentials.startswith(KEY_PREFIX)):
            return self.keys.authenticate(credentials)
        if self.tokens is None:
            raise AssertionError("settings have keys or tokens")
        return await self.tokens.authenticate(credentials)
