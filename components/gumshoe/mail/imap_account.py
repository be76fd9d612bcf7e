"""Accounts on IMAP servers: their URIs, their secrets, which only the environment contains, and their failures."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from gumshoe.errors import UsageError

PASSWORD = "GUMSHOE_IMAP_PASSWORD"  # noqa: S105 - a name
"""Environment variable with the password, unless one with the user at its end is set, see `find_secret`."""
TOKEN = "GUMSHOE_IMAP_TOKEN"  # noqa: S105 - a name
"""Environment variable with the OAuth 2 access token (XOAUTH2), see `PASSWORD`."""
FORM = "imap://USER@HOST[:PORT]/[FOLDER,...]"
_TLS_PORT = 993


class ConnectionLostError(Exception):
    """The connection failed, or the server did not answer in time. A new session may succeed."""


class CommandRefusedError(Exception):
    """The server refused a command, or its answer cannot be parsed. The session can still be used."""


class TemporaryRefusalError(CommandRefusedError):
    """The server refused a command and said that it may succeed later (RFC 5530)."""


@dataclass(frozen=True, slots=True)
class ImapAccount:
    """A user of an IMAP server."""

    user: str
    host: str
    port: int
    has_implicit_tls: bool
    """True if the connection begins with TLS, False if STARTTLS follows."""

    @property
    def uri(self) -> str:
        """URI without folder, e.g. `imap://ann%40example.com@imap.example.com`. It contains no secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"imap://{quote(self.user, safe='')}@{host}" + ("" if self.port == _TLS_PORT else f":{self.port}")

    def folder_uri(self, folder: str) -> str:
        """Return the URI of a folder."""
        return f"{self.uri}/{quote(folder)}"

    def item_uri(self, folder: str, uidvalidity: int, uid: int) -> str:
        """Return the URI of a message (RFC 5092), which stays the same as long as the message is in this folder."""
        return f"{self.folder_uri(folder)};UIDVALIDITY={uidvalidity}/;UID={uid}"


@dataclass(frozen=True, slots=True)
class ImapSecret:
    """A password or an access token."""

    value: str = field(repr=False)
    variable: str
    """Name of its environment variable."""
    is_token: bool


def parse_imap_uri(uri: str) -> tuple[ImapAccount, list[str]]:
    """Return the account and the folders that a URI names. An empty list stands for the default folders.

    Port 993 (the default) and `imaps` begin with TLS; other ports of `imap` continue with STARTTLS.

    Raises:
        UsageError: if it has another form, or contains a password. The message does not contain the URI.
    """
    try:
        parts = urlsplit(uri)
        user, host, port = unquote(parts.username or ""), parts.hostname or "", parts.port or _TLS_PORT
    except ValueError:  # invalid port, or brackets
        user = host = ""
    else:
        if parts.password is not None:
            raise UsageError(
                "mail.imap-password-in-uri",
                f"the URI of the IMAP account at {host} contains a password, which would be stored and logged; remove "
                f"it from the URI, and set it as {PASSWORD}",
            )
    if not user or not host or not user.isprintable() or parts.query or parts.fragment:
        raise UsageError(
            "mail.imap-uri",
            f"an IMAP source has the form {FORM}, e.g. imap://ann%40example.com@imap.example.com/INBOX; write %23 for "
            "# and %3F for ?",
        )
    folders = [unquote(each) for each in parts.path.strip("/").split(",") if each]
    return ImapAccount(user, host, port, parts.scheme == "imaps" or port == _TLS_PORT), folders


def find_secret(account: ImapAccount) -> ImapSecret:
    """Return the token or the password of an account.

    A variable with the user at its end, e.g. GUMSHOE_IMAP_PASSWORD_ANN_EXAMPLE_COM for ann@example.com, wins over the
    variable for all accounts, and a token over a password.

    Raises:
        UsageError: if neither a password nor a token is set.
    """
    for variable, is_token, value in _list_secrets(account.user):
        if value and value.isprintable():
            return ImapSecret(value, variable, is_token)
        if value:
            raise UsageError("mail.imap-no-secret", f"{variable} contains control characters; set it without line ends")
    raise UsageError(
        "mail.imap-no-secret",
        f"{account.uri}: there is no password; set the environment variable {PASSWORD}, or {TOKEN} with a token",
    )


def _list_secrets(user: str) -> Iterator[tuple[str, bool, str | None]]:
    suffix = re.sub("[^A-Z0-9]", "_", user.upper())
    for name, is_token in ((f"{TOKEN}_{suffix}", True), (f"{PASSWORD}_{suffix}", False)):
        yield name, is_token, os.environ.get(name)
    yield TOKEN, True, os.environ.get(TOKEN)
    yield PASSWORD, False, os.environ.get(PASSWORD)
